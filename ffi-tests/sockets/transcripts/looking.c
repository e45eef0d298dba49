/* Steps that ask what can be done, or wait for it. */
#include "transcripts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int open_fd(const struct step *step, unsigned connection)
{
    return step->open >> connection & 1 ? self.fds[connection][0] : -1;
}

/* ---- poll and select ------------------------------------------------------------------------------------- */

static void by_poll(const struct step *step, uint64_t variant, bool with_mask)
{
    struct pollfd polled[CONNECTIONS];
    int found;

    for (unsigned at = 0; at < CONNECTIONS; at++) {
        short asked = (short)((choose(&variant, 4) ? POLLIN : 0) | (choose(&variant, 2) ? POLLOUT : 0) |
                              (choose(&variant, 2) ? POLLRDHUP : 0));
        polled[at] = (struct pollfd){open_fd(step, at), asked, 0x55};
    }
    found = with_mask ? ppoll(polled, CONNECTIONS, &(struct timespec){0, 1000}, NULL) : poll(polled, CONNECTIONS, 0);
    note(step, "poll for %#x %#x %#x: %s, %#x %#x %#x", polled[0].events, polled[1].events, polled[2].events,
         returned(found), polled[0].revents, polled[1].revents, polled[2].revents);
}

static void by_select(const struct step *step, bool with_mask)
{
    fd_set readable, writable;
    unsigned found_readable = 0, found_writable = 0;
    int most = 0, found;

    FD_ZERO(&readable);
    FD_ZERO(&writable);
    for (unsigned at = 0; at < CONNECTIONS; at++) {
        int fd = open_fd(step, at);
        if (fd >= 0) {
            FD_SET(fd, &readable);
            FD_SET(fd, &writable);
            most = fd > most ? fd : most;
        }
    }
    found = with_mask ? pselect(most + 1, &readable, &writable, NULL, &(struct timespec){0, 0}, NULL)
                      : select(most + 1, &readable, &writable, NULL, &(struct timeval){0, 0});
    for (unsigned at = 0; at < CONNECTIONS; at++) {
        int fd = open_fd(step, at);
        if (fd >= 0) {
            found_readable |= (unsigned)(FD_ISSET(fd, &readable) != 0) << at;
            found_writable |= (unsigned)(FD_ISSET(fd, &writable) != 0) << at;
        }
    }
    note(step, "select: %s, %#x %#x", returned(found), found_readable, found_writable);
}

void do_poll(const struct step *step)
{
    uint64_t variant = step->variant;
    unsigned way = choose(&variant, 4);

    way < 2 ? by_poll(step, variant, way == 1) : by_select(step, way == 3);
}

void do_count(const struct step *step)
{
    int there = -1, answer = ioctl(any_fd(step), FIONREAD, &there);

    note(step, "%s, %d", returned(answer), there);
}

void do_error(const struct step *step)
{
    int error = -1;
    socklen_t length = sizeof error;
    int answer = getsockopt(any_fd(step), SOL_SOCKET, SO_ERROR, &error, &length);

    note(step, "%s, %s", returned(answer), strerrorname_np(error));
}

void do_mode(const struct step *step)
{
    int fd = any_fd(step), is_on = !step->is_nonblocking;
    int answer = step->variant % 2 ? fcntl(fd, F_SETFL, is_on ? O_RDWR | O_NONBLOCK : O_RDWR) : ioctl(fd, FIONBIO, &is_on);

    note(step, "%s", returned(answer));
}

/* Nothing comes within the limit. */
void do_limit(const struct step *step)
{
    int fd = any_fd(step);
    uint8_t byte;
    ssize_t got;

    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 4000}, sizeof(struct timeval)) == 0);
    got = recv(fd, &byte, 1, 0);
    note(step, "%s", returned(got));
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 0}, sizeof(struct timeval)) == 0);
}

/* ---- epoll ----------------------------------------------------------------------------------------------- */

void do_watch(const struct step *step)
{
    uint64_t variant = step->variant;
    unsigned set = choose(&variant, SETS), change = choose(&variant, 4);
    struct epoll_event event = {.events = EPOLLIN | (choose(&variant, 2) ? EPOLLRDHUP : 0), .data.u32 = step->connection};
    int fd = self.fds[step->connection][0], first, second = 0;

    if (set == EDGE)
        event.events |= EPOLLET;
    else
        event.events |= (choose(&variant, 3) ? 0 : EPOLLONESHOT) | (choose(&variant, 3) ? 0 : EPOLLOUT);
    if (self.sets[set] < 0)
        REQUIRE((self.sets[set] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    /* Each of them is refused in one of the two states. */
    first = epoll_ctl(self.sets[set], EPOLL_CTL_MOD, fd, &event);
    note(step, "set %u, change: %s", set, returned(first));
    if (change == 3 - 3 * (first == 0))
        second = epoll_ctl(self.sets[set], EPOLL_CTL_DEL, fd, NULL);
    else
        second = epoll_ctl(self.sets[set], EPOLL_CTL_ADD, fd, &event);
    note(step, "set %u, then %u: %s", set, change, returned(second));
}

/* What the set reports of each connection. A wait may leave out what the next ones report. */
static void collect(const struct step *step, unsigned set, uint32_t reported[CONNECTIONS])
{
    enum { WAITS = 9 };
    bool may_wait = step->may_wait;

    for (unsigned wait = 0; wait < WAITS; wait++) {
        struct epoll_event events[CONNECTIONS + 1];
        int found = epoll_wait(self.sets[set], events, CONNECTIONS + 1, may_wait ? 2000 : 0);

        REQUIRE(found >= 0);
        for (int at = 0; at < found; at++)
            reported[events[at].data.u32] |= events[at].events;
        may_wait = false;
    }
}

/* The set makes another one readable. */
static void await_by_other_set(const struct step *step, unsigned set)
{
    struct epoll_event event = {.events = EPOLLIN};
    int outer = epoll_create1(EPOLL_CLOEXEC), found;

    REQUIRE(epoll_ctl(outer, EPOLL_CTL_ADD, self.sets[set], &event) == 0);
    found = epoll_wait(outer, &event, 1, 2000);
    note(step, "outer set: %d", found);
    close(outer);
}

void do_wait(const struct step *step)
{
    uint64_t variant = step->variant;
    unsigned set = choose(&variant, SETS);
    uint32_t reported[CONNECTIONS] = {0};

    /* Without anything to report it may be readable with the library, which is a known limit. */
    if (step->may_wait && choose(&variant, 8) == 0)
        await_by_other_set(step, set);
    collect(step, set, reported);
    for (unsigned at = 0; at < CONNECTIONS; at++) {
        /* An edge may be told once more than by the kernel, which is a known limit. */
        if (!(step->news >> at & 1))
            continue;
        if (set == EDGE)
            reported[at] &= EPOLLIN | EPOLLRDHUP;
        /* What only the kernel knows of a connection's end may come with the next report. */
        if (step->once >> at & 1)
            reported[at] &= EPOLLIN | EPOLLOUT;
        /* A reset may be reported with EPOLLOUT as well, which is a known limit. */
        if (reported[at] & EPOLLERR)
            reported[at] &= ~(uint32_t)EPOLLOUT;
        note(step, "set %u, connection %u: %#x", set, at, reported[at]);
    }
}

/* ---- sleeping -------------------------------------------------------------------------------------------- */

struct sleeper {
    const struct step *step;
    unsigned way;
    /* What the call has returned, and what it found. */
    long result;
    int error;
    uint32_t found;
};

/* Whether the events say that bytes or an end can be read. While a reset arrives, the kernel for a moment reports its
   error alone, as it marks the two directions as ended only afterwards (5 of 100 000 resets that race with EPOLL_CTL_ADD
   of a TCP socket). Then the descriptor is looked at again. */
static uint32_t readable(int fd, uint32_t events)
{
    struct pollfd polled = {fd, POLLIN, (short)events};

    for (unsigned look = 0; look < 1000 && polled.revents & POLLERR && !(polled.revents & POLLIN); look++) {
        usleep(100);
        REQUIRE(poll(&polled, 1, 0) >= 0);
    }
    return polled.revents & POLLIN;
}

static void sleep_in_poll(struct sleeper *sleeper, int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};

    sleeper->result = poll(&polled, 1, 5000);
    sleeper->found = readable(fd, (uint32_t)polled.revents);
}

static void sleep_in_select(struct sleeper *sleeper, int fd)
{
    fd_set readable;

    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    sleeper->result = select(fd + 1, &readable, NULL, NULL, &(struct timeval){5, 0});
    sleeper->found = FD_ISSET(fd, &readable) != 0;
}

static void sleep_in_set(struct sleeper *sleeper, int fd, uint32_t how)
{
    struct epoll_event event = {.events = EPOLLIN | how};
    int set = epoll_create1(EPOLL_CLOEXEC);

    REQUIRE(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    sleeper->result = epoll_wait(set, &event, 1, 5000);
    sleeper->found = sleeper->result > 0 ? readable(fd, event.events) : 0;
    close(set);
}

static void sleep_behind_set(struct sleeper *sleeper, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);

    REQUIRE(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    sleep_in_poll(sleeper, set);
    close(set);
}

static void sleep_in_recv(struct sleeper *sleeper, int fd)
{
    static uint8_t bytes[ROOM];
    bool takes = sleeper->way == 0;

    sleeper->result = recv(fd, bytes, takes ? sleeper->step->length : 1, takes ? MSG_WAITALL : MSG_PEEK);
    sleeper->found = checksum(bytes, sleeper->result > 0 ? (size_t)sleeper->result : 0);
}

static void *sleep_once(void *argument)
{
    struct sleeper *sleeper = argument;
    int fd = any_fd(sleeper->step);

    switch (sleeper->way) {
    case 2: sleep_in_poll(sleeper, fd); break;
    case 3: sleep_in_select(sleeper, fd); break;
    case 4: sleep_in_set(sleeper, fd, 0); break;
    case 5: sleep_in_set(sleeper, fd, EPOLLET); break;
    case 6: sleep_behind_set(sleeper, fd); break;
    default: sleep_in_recv(sleeper, fd);
    }
    sleeper->error = errno;
    return NULL;
}

/* The end that acts sleeps in a thread until the other one sends something, ends its output, or closes. */
void do_sleep(const struct step *step)
{
    uint64_t variant = step->variant;
    unsigned act = choose(&variant, 8);
    struct sleeper sleeper = {step, choose(&variant, 7), -1, 0, 0};
    unsigned delay = choose(&variant, 4), looks = choose(&variant, 3);
    pthread_t thread;

    if (step->end != self.end) {
        usleep(delay * delay * 100);
        if (act == 0)
            do_shut(step);
        else if (act == 1)
            do_close(step);
        else
            send_all(step, step->others_position, step->length, 1 + choose(&variant, 2) * step->length / 3 + ROOM / 20);
        return;
    }
    /* A call that does not wait is no sleep. */
    if (step->is_nonblocking && sleeper.way < 2)
        sleeper.way = 2;
    REQUIRE(pthread_create(&thread, NULL, sleep_once, &sleeper) == 0);
    for (unsigned look = 0; look < looks; look++)
        (void)poll(&(struct pollfd){self.fds[step->connection][0], POLLOUT, 0}, 1, 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    errno = sleeper.error;
    note(step, "way %u: %s, %#x", sleeper.way, returned(sleeper.result), sleeper.found);
}
