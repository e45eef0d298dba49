/* poll, select, epoll and their kin, asked for one connection: the same answers by each. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *limit, const sigset_t *mask, size_t room);

/* Waits for these of POLLIN and POLLOUT. Returns which there are, or -1. */
struct wait_kind {
    const char *name;
    int (*wait)(int fd, int events, int ms, const sigset_t *mask);
    bool has_mask;
};

static struct timespec *limit_of(int ms, struct timespec *limit)
{
    *limit = (struct timespec){ms / 1000, (long)(ms % 1000) * 1000000};
    return ms < 0 ? NULL : limit;
}

static int polled(int found, const struct pollfd *one)
{
    if (found >= 0)
        CHECK_INT(found, one->revents != 0);
    return found < 0 ? -1 : one->revents & (POLLIN | POLLOUT);
}

static int by_poll(int fd, int events, int ms, const sigset_t *mask)
{
    struct pollfd one = {fd, (short)events, -1};

    (void)mask;
    return polled(poll(&one, 1, ms), &one);
}

static int by_ppoll(int fd, int events, int ms, const sigset_t *mask)
{
    struct pollfd one = {fd, (short)events, -1};
    struct timespec limit;

    return polled(ppoll(&one, 1, limit_of(ms, &limit), mask), &one);
}

static int by_poll_chk(int fd, int events, int ms, const sigset_t *mask)
{
    struct pollfd one = {fd, (short)events, -1};

    (void)mask;
    return polled(__poll_chk(&one, 1, ms, sizeof one), &one);
}

static int by_ppoll_chk(int fd, int events, int ms, const sigset_t *mask)
{
    struct pollfd one = {fd, (short)events, -1};
    struct timespec limit;

    return polled(__ppoll_chk(&one, 1, limit_of(ms, &limit), mask, sizeof one), &one);
}

static int selected(int found, int fd, const fd_set *in, const fd_set *out)
{
    int events = (FD_ISSET(fd, in) ? POLLIN : 0) | (FD_ISSET(fd, out) ? POLLOUT : 0);

    if (found >= 0)
        CHECK_INT(found, __builtin_popcount((unsigned)events));
    return found < 0 ? -1 : events;
}

static int by_select(int fd, int events, int ms, const sigset_t *mask)
{
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    fd_set in, out, other;

    (void)mask;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&other);
    FD_SET(fd, &other);
    if (events & POLLIN)
        FD_SET(fd, &in);
    if (events & POLLOUT)
        FD_SET(fd, &out);
    return selected(select(fd + 1, &in, &out, &other, ms < 0 ? NULL : &limit), fd, &in, &out);
}

static int by_pselect(int fd, int events, int ms, const sigset_t *mask)
{
    struct timespec limit;
    fd_set in, out;

    FD_ZERO(&in);
    FD_ZERO(&out);
    if (events & POLLIN)
        FD_SET(fd, &in);
    if (events & POLLOUT)
        FD_SET(fd, &out);
    return selected(pselect(fd + 1, &in, &out, NULL, limit_of(ms, &limit), mask), fd, &in, &out);
}

/* A set for one wait. */
static int set_of(int fd, int events)
{
    struct epoll_event event = {.events = (unsigned)events, .data.u64 = 0x123456789abcdefULL};
    int set = epoll_create1(EPOLL_CLOEXEC);

    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    return set;
}

static int reported(int set, int found, const struct epoll_event *event)
{
    int error = errno;

    if (found == 1)
        CHECK_INT(event->data.u64, 0x123456789abcdefULL);
    close(set);
    errno = error;
    return found == 1 ? (int)event->events & (POLLIN | POLLOUT) : found;
}

static int by_epoll_wait(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event;
    int set = set_of(fd, events);

    (void)mask;
    return reported(set, epoll_wait(set, &event, 1, ms), &event);
}

static int by_edge(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event;
    int set = set_of(fd, (int)((unsigned)events | EPOLLET));

    (void)mask;
    return reported(set, epoll_wait(set, &event, 1, ms), &event);
}

static int by_epoll_pwait(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event;
    int set = set_of(fd, events);

    return reported(set, epoll_pwait(set, &event, 1, ms, mask), &event);
}

static int by_epoll_pwait2(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event;
    struct timespec limit;
    int set = set_of(fd, events);

    return reported(set, epoll_pwait2(set, &event, 1, limit_of(ms, &limit), mask), &event);
}

/* The set in another, which is waited for. */
static int by_nested_sets(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = set_of(fd, events), outer = epoll_create1(0), found, error;

    (void)mask;
    CHECK_INT(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event), 0);
    found = epoll_wait(outer, &event, 1, ms);
    error = errno;
    close(outer);
    if (found == 1)
        return reported(set, epoll_wait(set, &event, 1, 0), &event);
    close(set);
    errno = error;
    return found;
}

static int by_poll_of_a_set(int fd, int events, int ms, const sigset_t *mask)
{
    struct epoll_event event;
    int set = set_of(fd, events), found;

    found = by_poll(set, POLLIN, ms, mask);
    return found > 0 ? reported(set, epoll_wait(set, &event, 1, 0), &event) : reported(set, found, NULL);
}

static const struct wait_kind kinds[] = {
    {"poll", by_poll, false}, {"ppoll", by_ppoll, true}, {"poll_chk", by_poll_chk, false},
    {"ppoll_chk", by_ppoll_chk, true}, {"select", by_select, false}, {"pselect", by_pselect, true},
    {"epoll", by_epoll_wait, false}, {"edge", by_edge, false}, {"epoll_pwait", by_epoll_pwait, true},
    {"epoll_pwait2", by_epoll_pwait2, true}, {"nested_sets", by_nested_sets, false},
    {"poll_of_a_set", by_poll_of_a_set, false},
};

/* ---- at once ------------------------------------------------------------------------------------------- */

FAMILY(says_what_is_there, kinds)
{
    int ends[2];

    open_pair(ends);
    for (uint64_t from = 0; from < 500; from += 100) {
        CHECK_INT(kind->wait(ends[0], POLLIN, 0, NULL), 0);
        CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, 100, NULL), POLLOUT);
        send_part(ends[1], from, 100);
        await_unread(ends[0], 100);
        CHECK_INT(kind->wait(ends[0], POLLIN, 0, NULL), POLLIN);
        CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, -1, NULL), POLLIN | POLLOUT);
        receive_part(ends[0], from, 60);
        CHECK_INT(kind->wait(ends[0], POLLIN, 0, NULL), POLLIN);
        receive_part(ends[0], from + 60, 40);
    }
    CHECK_INT(kind->wait(ends[0], POLLIN, 0, NULL), 0);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    await_events(ends[0], POLLIN | POLLRDHUP);
    CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, -1, NULL), POLLIN | POLLOUT);
}

/* The same connection, asked from its beginning on. */
FAMILY(says_what_is_there_from_the_beginning, kinds)
{
    int ends[2];

    open_fresh(ends);
    for (uint64_t from = 0; from < 3000; from += 100) {
        CHECK_INT(kind->wait(ends[0], POLLIN, 0, NULL), 0);
        send_part(ends[1], from, 100);
        CHECK_INT(kind->wait(ends[0], POLLIN, 2000, NULL), POLLIN);
        receive_part(ends[0], from, 100);
        send_part(ends[0], from, 100);
        CHECK_INT(kind->wait(ends[1], POLLIN | POLLOUT, 2000, NULL) & POLLOUT, POLLOUT);
        receive_part(ends[1], from, 100);
    }
}

FAMILY(says_that_there_is_no_room, kinds)
{
    size_t sent;
    int ends[2];

    open_pair(ends);
    sent = fill_up(ends[0], 0);
    CHECK_INT(kind->wait(ends[0], POLLOUT, 0, NULL), 0);
    CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, 20, NULL), 0);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, -1, NULL), POLLIN);
    receive_part(ends[1], 0, sent);
    await_events(ends[0], POLLOUT);
    CHECK_INT(kind->wait(ends[0], POLLIN | POLLOUT, 0, NULL), POLLIN | POLLOUT);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

struct wait {
    const struct wait_kind *kind;
    int fd, events, ms;
    const sigset_t *mask;
};

static ssize_t make(void *argument)
{
    struct wait *wait = argument;

    return wait->kind->wait(wait->fd, wait->events, wait->ms, wait->mask);
}

static struct caller caller;

static void start_wait(struct wait *wait)
{
    start_caller(&caller, make, wait);
}

FAMILY(ends_in_time, kinds)
{
    int64_t start = 0, busy;
    int ends[2];

    open_pair(ends);
    start = now_ms();
    busy = busy_ms();
    CHECK_INT(kind->wait(ends[0], POLLIN, 150, NULL), 0);
    CHECK_RANGE(now_ms() - start, 149, 1000);
    CHECK_RANGE(busy_ms() - busy, 0, 30);
    fill_up(ends[0], 0);
    start = now_ms();
    CHECK_INT(kind->wait(ends[0], POLLOUT, 50, NULL), 0);
    CHECK_RANGE(now_ms() - start, 49, 1000);
}

FAMILY(wakes_for_bytes, kinds)
{
    int ends[2];

    open_pair(ends);
    for (uint64_t from = 0; from < 300; from += 100) {
        struct wait wait = {kind, ends[0], POLLIN, -1, NULL};

        start_wait(&wait);
        send_part(ends[1], from, 100);
        join_caller(&caller);
        CHECK_INT(caller.returned, POLLIN);
        receive_part(ends[0], from, 100);
    }
}

FAMILY(wakes_for_room, kinds)
{
    int ends[2];
    struct wait wait;
    size_t sent;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN | POLLOUT, -1, NULL};
    sent = fill_up(ends[0], 0);
    start_wait(&wait);
    receive_part(ends[1], 0, sent);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLOUT);
    send_part(ends[0], sent, 1000);
    receive_part(ends[1], sent, 1000);
}

FAMILY(wakes_for_the_end, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, -1, NULL};
    start_wait(&wait);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLIN);
    CHECK_INT(recv(ends[0], &(char){0}, 1, 0), 0);
}

FAMILY(wakes_for_a_close, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, 5000, NULL};
    start_wait(&wait);
    CHECK_INT(close(ends[1]), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLIN);
    CHECK_INT(recv(ends[0], &(char){0}, 1, 0), 0);
}

FAMILY(wakes_for_a_reset, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, -1, NULL};
    start_wait(&wait);
    CHECK_INT(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
    CHECK_INT(close(ends[1]), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLIN);
    CHECK_ERROR(recv(ends[0], &(char){0}, 1, 0), ECONNRESET);
}

FAMILY(wakes_for_a_shutdown_here, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, -1, NULL};
    start_wait(&wait);
    CHECK_INT(shutdown(ends[0], SHUT_RD), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLIN);
    CHECK_INT(recv(ends[0], &(char){0}, 1, 0), 0);
}

/* Never restarted. */
FAMILY(a_signal_ends_a_wait, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, -1, NULL};
    count_signals(SIGUSR1, SA_RESTART);
    start_wait(&wait);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, EINTR);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(kind->wait(ends[0], POLLIN, -1, NULL), POLLIN);
}

FAMILY(cancels_a_wait, kinds)
{
    int ends[2];
    struct wait wait;

    open_pair(ends);
    wait = (struct wait){kind, ends[0], POLLIN, -1, NULL};
    start_wait(&wait);
    CHECK_INT(pthread_cancel(caller.pthread), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -2);
    start_wait(&wait);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, POLLIN);
    receive_part(ends[0], 0, 10);
}

/* The mask holds during the wait only, in which a signal that is pending comes. */
FAMILY(a_mask_during_the_wait, kinds)
{
    sigset_t one, none;
    int ends[2];

    if (!kind->has_mask)
        return;
    open_pair(ends);
    count_signals(SIGUSR1, 0);
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    CHECK_INT(pthread_sigmask(SIG_BLOCK, &one, NULL), 0);
    CHECK_INT(raise(SIGUSR1), 0);
    CHECK_INT(kind->wait(ends[0], POLLIN, 20, NULL), 0);
    CHECK_INT(signals, 0);
    CHECK_ERROR(kind->wait(ends[0], POLLIN, -1, &none), EINTR);
    CHECK_INT(signals, 1);
    CHECK_INT(raise(SIGUSR1), 0);
    CHECK_INT(kind->wait(ends[0], POLLIN, 20, &one), 0);
    CHECK_INT(signals, 1);
}

/* Several connections, of which some have something. */
TEST(poll_of_many)
{
    enum { MANY = 20 };
    static int ends[MANY][2];
    struct pollfd polled_fds[MANY + 2];

    for (unsigned i = 0; i < MANY; i++) {
        i % 2 ? open_pair(ends[i]) : open_fresh(ends[i]);
        polled_fds[i] = (struct pollfd){ends[i][0], POLLIN, -1};
        if (i % 3 == 0) {
            send_part(ends[i][1], 0, 10);
            await_events(ends[i][0], POLLIN);
        }
    }
    polled_fds[MANY] = (struct pollfd){-1, POLLIN, -1};
    polled_fds[MANY + 1] = (struct pollfd){900, POLLIN, -1};
    CHECK_INT(poll(polled_fds, MANY + 2, -1), (MANY + 2) / 3 + 1);
    for (unsigned i = 0; i < MANY; i++)
        CHECK_INT(polled_fds[i].revents, i % 3 == 0 ? POLLIN : 0);
    CHECK_INT(polled_fds[MANY].revents, 0);
    CHECK_INT(polled_fds[MANY + 1].revents, POLLNVAL);
}

/* One of them in the middle of the wait. */
TEST(poll_with_other_files)
{
    struct pollfd fds[3];
    int ends[2], pipes[2];

    open_pair(ends);
    CHECK_INT(pipe(pipes), 0);
    fds[0] = (struct pollfd){ends[0], POLLIN, 0};
    fds[1] = (struct pollfd){pipes[0], POLLIN, 0};
    fds[2] = (struct pollfd){ends[0], POLLOUT, 0};
    CHECK_INT(poll(fds, 2, 10), 0);
    CHECK_INT(write(pipes[1], "x", 1), 1);
    CHECK_INT(poll(fds, 2, -1), 1);
    CHECK_INT(fds[1].revents, POLLIN);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    /* The same descriptor twice. */
    CHECK_INT(poll(fds, 3, -1), 3);
    CHECK_INT(fds[0].revents, POLLIN);
    CHECK_INT(fds[2].revents, POLLOUT);
}

TEST(select_says_what_is_left_of_the_time)
{
    struct timeval limit = {2, 0};
    fd_set in;
    int ends[2];

    open_pair(ends);
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(select(ends[0] + 1, &in, NULL, NULL, &limit), 1);
    CHECK_RANGE(limit.tv_sec * 1000 + limit.tv_usec / 1000, 1500, 2000);
    receive_part(ends[0], 0, 10);
    limit = (struct timeval){0, 30000};
    CHECK_INT(select(ends[0] + 1, &in, NULL, NULL, &limit), 0);
    CHECK_INT(limit.tv_sec + limit.tv_usec, 0);
    CHECK(!FD_ISSET(ends[0], &in));
}

/* Microseconds may make more than a second. */
TEST(select_with_many_microseconds)
{
    struct timeval limit = {0, 1100000};
    int64_t start;
    fd_set in;
    int ends[2];

    open_pair(ends);
    start = now_ms();
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    CHECK_INT(select(ends[0] + 1, &in, NULL, NULL, &limit), 0);
    CHECK(now_ms() - start >= 1100);
}

TEST(bad_arguments_of_waits)
{
    struct timespec bad = {0, 2000000000};
    struct timeval negative = {-1, 0};
    struct epoll_event event;
    fd_set in;
    int ends[2], set = epoll_create1(0);

    open_pair(ends);
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    CHECK_ERROR(ppoll(&(struct pollfd){ends[0], POLLIN, 0}, 1, &bad, NULL), EINVAL);
    CHECK_ERROR(pselect(ends[0] + 1, &in, NULL, NULL, &bad, NULL), EINVAL);
    CHECK_ERROR(select(ends[0] + 1, &in, NULL, NULL, &negative), EINVAL);
    CHECK_ERROR(select(-1, &in, NULL, NULL, &negative), EINVAL);
    CHECK_ERROR(epoll_wait(set, &event, 0, 0), EINVAL);
    CHECK_ERROR(epoll_wait(ends[0], &event, 1, 0), EINVAL);
    CHECK_ERROR(epoll_wait(900, &event, 1, 0), EBADF);
    CHECK_INT(dup2(ends[0], 50), 50);
    FD_SET(50, &in);
    CHECK_INT(close(50), 0);
    CHECK_ERROR(select(51, &in, NULL, NULL, &(struct timeval){0, 0}), EBADF);
}
