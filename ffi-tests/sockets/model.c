/*
 * The kernel's sockets are the model: random calls on connections of this host, each with an outcome that the
 * rules of TCP sockets determine. The program passes over plain TCP, and has to pass with the preload library.
 *
 *   model FIRST END     runs these seeds; prints the seed of a failure. With MODEL_TRACE set, every call.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long seed;
static uint64_t state;
static char last[256];
static bool is_traced;

#define FAIL(...)                                                                                   \
    do {                                                                                            \
        fprintf(stderr, "seed %lu, line %d, after %s: ", seed, __LINE__, last);                     \
        fprintf(stderr, __VA_ARGS__);                                                               \
        fprintf(stderr, " (%s)\n", strerror(errno));                                                \
        _exit(1);                                                                                   \
    } while (0)
#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition))                                                                           \
            FAIL("%s does not hold", #condition);                                                   \
    } while (0)

static unsigned below(unsigned bound)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (unsigned)((state * 0x2545f4914f6cdd1dULL >> 33) % bound);
}

/* One end of a connection. */
struct end {
    int fd, copy;        /* its descriptors; the copy is -1 if there is none */
    uint64_t sent, read; /* bytes of the stream to and from the peer */
    bool ended;          /* it has shut its output down */
    bool saw_end;
    int level, edge;     /* epoll sets that watch it */
    uint64_t told;       /* what had been sent by the peer when the edge was reported last */
    bool told_end;
};

/* Bytes that may be under way: both a socket and a ring hold them. */
#define ROOM 12000

static uint8_t value(uint64_t position)
{
    return (uint8_t)(position * 0x9e3779b9u >> 11);
}

static uint8_t bytes[2 * ROOM];

static void fill(struct end *end, size_t length)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = value(end->sent + i);
}

static void check_bytes(struct end *end, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != value(end->read + i))
            FAIL("byte %zu of %zu is %u, not %u", i, length, bytes[i], value(end->read + i));
}

static size_t unread(struct end *end, struct end *peer)
{
    return (size_t)(peer->sent - end->read);
}

static int any_fd(struct end *end)
{
    return end->copy >= 0 && below(2) ? end->copy : end->fd;
}

/* ---- sending ------------------------------------------------------------------------------- */

static void do_send(struct end *end, struct end *peer)
{
    size_t room = ROOM - unread(peer, end), length = room ? below(room) + 1 : 0;
    int fd = any_fd(end), flags = below(2) ? MSG_NOSIGNAL : 0;
    unsigned kind = below(7);
    ssize_t sent;

    if (length > 300 && below(3))
        length = below(300) + 1;
    if (end->ended || length == 0)
        return;
    fill(end, length);
    struct iovec parts[3] = {{bytes, length / 3}, {bytes + length / 3, 0}, {bytes + length / 3, length - length / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (kind) {
    case 0: sent = write(fd, bytes, length); break;
    case 1: sent = writev(fd, parts, 3); break;
    case 2: sent = send(fd, bytes, length, flags); break;
    case 3: sent = sendto(fd, bytes, length, flags, NULL, 0); break;
    case 4: sent = sendmsg(fd, &message, flags); break;
    case 5: sent = send(fd, bytes, length, MSG_DONTWAIT | flags); break;
    default: {
        int file = fileno(tmpfile());
        off_t offset = 0;
        CHECK(pwrite(file, bytes, length, 0) == (ssize_t)length);
        sent = sendfile(fd, file, &offset, length);
        CHECK(sent < 0 || offset == sent);
        close(file);
    }
    }
    snprintf(last, sizeof last, "send kind %u of %zu", kind, length);
    CHECK(sent == (ssize_t)length);
    end->sent += (uint64_t)sent;
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void do_receive(struct end *end, struct end *peer)
{
    size_t there = unread(end, peer), length = below(below(2) ? 100 : sizeof bytes - 1) + 1;
    int fd = any_fd(end), peek = below(5) == 0 ? MSG_PEEK : 0, all = 0, flags = MSG_DONTWAIT | peek;
    unsigned kind = below(6);
    ssize_t got;

    /* A call that waits: there is something, or the end. */
    if ((there > 0 || peer->ended) && below(2))
        flags &= ~MSG_DONTWAIT;
    if (!(flags & MSG_DONTWAIT) && (there >= length || peer->ended) && below(3) == 0)
        flags |= all = MSG_WAITALL;
    struct iovec parts[3] = {{bytes, 0}, {bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    struct sockaddr_storage from;
    socklen_t room = sizeof from;
    /* What was sent arrives soon. */
    if (there > 0)
        CHECK(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 2000) == 1);
    switch (kind) {
    case 0:
        if (!(flags & ~MSG_WAITALL) && !all) {
            got = read(fd, bytes, length);
            break;
        }
        /* fall through */
    case 1: got = recv(fd, bytes, length, flags); break;
    case 2: got = recvfrom(fd, bytes, length, flags, below(2) ? (struct sockaddr *)&from : NULL, &room); break;
    case 3: got = recvmsg(fd, &message, flags); break;
    case 4:
        if (flags == 0) {
            got = readv(fd, parts, 3);
            break;
        }
        /* fall through */
    default: got = recv(fd, bytes, length, flags); break;
    }
    snprintf(last, sizeof last, "receive kind %u of %zu, flags %#x, %zu there", kind, length, (unsigned)flags, there);
    if (got < 0) {
        CHECK(errno == EAGAIN && flags & MSG_DONTWAIT && there == 0 && !peer->ended);
        return;
    }
    if (got == 0) {
        CHECK(there == 0 && peer->ended);
        end->saw_end = true;
        return;
    }
    CHECK((size_t)got <= there && (size_t)got <= length);
    if (all && !peek)
        CHECK((size_t)got == (there < length ? there : length));
    check_bytes(end, (size_t)got);
    if (!peek)
        end->read += (uint64_t)got;
}

/* ---- readiness ----------------------------------------------------------------------------- */

static void do_poll(struct end *end, struct end *peer)
{
    bool is_readable = unread(end, peer) > 0 || peer->ended;
    short asked = (short)((below(4) ? POLLIN : 0) | (below(2) ? POLLOUT : 0) | (below(2) ? POLLRDHUP : 0));
    struct pollfd polled[2] = {{any_fd(end), asked, 99}, {-1, POLLIN, 99}};
    bool is_expected = (asked & POLLIN && is_readable) || asked & POLLOUT || (asked & POLLRDHUP && peer->ended);
    bool is_hung_up = end->ended && peer->ended;
    short wanted = (short)((is_readable ? POLLIN : 0) | POLLOUT | (peer->ended ? POLLRDHUP : 0)) & asked;
    int wait = is_expected || is_hung_up ? 2000 : (int)below(2), found = poll(polled, 2, wait);

    /* What was sent arrives soon: room may be there before. */
    for (unsigned looks = 0; looks < 2000 && (polled[0].revents & ~POLLHUP) != wanted; looks++) {
        usleep(1000);
        found = poll(polled, 2, 0);
    }
    snprintf(last, sizeof last, "poll for %#x says %d with %#x", (unsigned)asked, found, (unsigned)polled[0].revents);
    CHECK(found == (polled[0].revents != 0) && polled[1].revents == 0);
    CHECK(!(polled[0].revents & ~(asked | POLLHUP)));
    CHECK(!!(polled[0].revents & POLLIN) == (asked & POLLIN && is_readable));
    CHECK(!!(polled[0].revents & POLLRDHUP) == (asked & POLLRDHUP && peer->ended));
    CHECK(!!(polled[0].revents & POLLHUP) == is_hung_up);
    CHECK(!!(polled[0].revents & POLLOUT) == (asked & POLLOUT && 1));
}

static void do_select(struct end *end, struct end *peer)
{
    bool is_readable = unread(end, peer) > 0 || peer->ended, asks_output = below(2);
    struct timeval limit = {is_readable || asks_output ? 2 : 0, 0};
    int fd = any_fd(end);
    fd_set readable, writable;

    int found = 0;

    /* What was sent arrives soon: room may be there before. */
    for (unsigned looks = 0; looks < 2000; looks++) {
        FD_ZERO(&readable);
        FD_ZERO(&writable);
        FD_SET(fd, &readable);
        if (asks_output)
            FD_SET(fd, &writable);
        found = select(fd + 1, &readable, &writable, NULL, &limit);
        if (found == is_readable + asks_output)
            break;
        usleep(1000);
    }
    snprintf(last, sizeof last, "select says %d", found);
    CHECK(!!FD_ISSET(fd, &readable) == is_readable);
    CHECK(!!FD_ISSET(fd, &writable) == asks_output);
    CHECK(found == is_readable + asks_output);
}

static void do_level(struct end *end, struct end *peer)
{
    bool is_readable = unread(end, peer) > 0 || peer->ended;
    struct epoll_event events[4];
    int found = epoll_wait(end->level, events, 4, is_readable ? 2000 : (int)below(2));

    snprintf(last, sizeof last, "epoll, by level, says %d with %#x", found, found > 0 ? events[0].events : 0);
    CHECK(found == is_readable);
    if (found == 1)
        CHECK(events[0].events & EPOLLIN && events[0].data.u64 == 77);
}

/* No edge may be missed; one too many is allowed. */
static void do_edge(struct end *end, struct end *peer)
{
    bool is_new = (peer->sent > end->told && unread(end, peer) > 0) || (peer->ended && !end->told_end);
    struct epoll_event event;
    int found = epoll_wait(end->edge, &event, 1, is_new ? 2000 : (int)below(2));

    snprintf(last, sizeof last, "epoll, by edge, says %d", found);
    if (is_new)
        CHECK(found == 1 && event.events & EPOLLIN);
    if (found == 1) {
        CHECK(event.data.u64 == 78);
        end->told = peer->sent;
        end->told_end = peer->ended;
    }
}

static void do_unread(struct end *end, struct end *peer)
{
    int there = -1;

    /* What was sent arrives soon. */
    for (unsigned looks = 0; looks < 2000 && (size_t)there != unread(end, peer); looks++) {
        if (looks > 0)
            usleep(1000);
        CHECK(ioctl(end->fd, FIONREAD, &there) == 0);
    }
    snprintf(last, sizeof last, "FIONREAD, which says %d of %zu", there, unread(end, peer));
    /* The kernel counts an end that was not read as no byte. */
    CHECK((size_t)there == unread(end, peer));
}

static void watch(struct end *end)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};

    if (end->level < 0) {
        CHECK((end->level = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        CHECK(epoll_ctl(end->level, EPOLL_CTL_ADD, end->fd, &event) == 0);
    } else if (below(3) == 0) {
        CHECK(epoll_ctl(end->level, EPOLL_CTL_DEL, end->fd, NULL) == 0);
        CHECK(epoll_ctl(end->level, EPOLL_CTL_DEL, end->fd, NULL) < 0 && errno == ENOENT);
        CHECK(epoll_ctl(end->level, EPOLL_CTL_MOD, end->fd, &event) < 0 && errno == ENOENT);
        CHECK(epoll_ctl(end->level, EPOLL_CTL_ADD, end->fd, &event) == 0);
        CHECK(epoll_ctl(end->level, EPOLL_CTL_ADD, end->fd, &event) < 0 && errno == EEXIST);
    } else {
        CHECK(epoll_ctl(end->level, EPOLL_CTL_MOD, end->fd, &event) == 0);
    }
    if (end->edge < 0) {
        CHECK((end->edge = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        event = (struct epoll_event){.events = EPOLLIN | EPOLLET | EPOLLRDHUP, .data.u64 = 78};
        CHECK(epoll_ctl(end->edge, EPOLL_CTL_ADD, end->fd, &event) == 0);
        end->told = end->told_end = 0;
    }
    snprintf(last, sizeof last, "epoll_ctl");
}

/* ---- threads and processes ------------------------------------------------------------------- */

struct call {
    struct end *end;
    unsigned kind;
    ssize_t got;
};

/* Waits for one byte in one of the ways to wait. */
static void *sleeper(void *argument)
{
    struct call *call = argument;
    int fd = call->end->fd;
    struct epoll_event event;
    fd_set readable;
    uint8_t byte;

    switch (call->kind) {
    case 1: CHECK(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000) == 1); break;
    case 2:
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        CHECK(select(fd + 1, &readable, NULL, NULL, &(struct timeval){5, 0}) == 1);
        break;
    case 3: CHECK(epoll_wait(call->end->level, &event, 1, 5000) == 1); break;
    case 4:
        /* A set may be readable once too often: what it reports decides. */
        do
            CHECK(poll(&(struct pollfd){call->end->level, POLLIN, 0}, 1, 5000) == 1);
        while (epoll_wait(call->end->level, &event, 1, 0) != 1);
        break;
    default: break;
    }
    call->got = recv(fd, &byte, 1, call->kind ? MSG_DONTWAIT | MSG_PEEK : MSG_PEEK);
    return NULL;
}

static void do_sleep(struct end *end, struct end *peer)
{
    struct call call = {end, below(end->level >= 0 ? 5 : 3), -1};
    pthread_t thread;

    if (unread(end, peer) > 0 || peer->ended)
        return;
    CHECK(pthread_create(&thread, NULL, sleeper, &call) == 0);
    if (below(4))
        usleep(below(3) * 200);
    for (unsigned calls = below(3); calls > 0; calls--)
        do_poll(end, peer);
    do_send(peer, end);
    if (unread(end, peer) == 0) {
        peer->ended = true;
        CHECK(shutdown(peer->fd, SHUT_WR) == 0);
    }
    snprintf(last, sizeof last, "a sleep of kind %u", call.kind);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(call.got == (unread(end, peer) > 0));
}

/* A child goes on where its parent was. */
static void do_fork(struct end *end, struct end *peer)
{
    uint64_t counts[2] = {0, 0};
    int pipes[2], status;
    pid_t child;

    CHECK(pipe(pipes) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        uint64_t sent = end->sent, read = end->read;
        for (unsigned calls = below(5); calls > 0; calls--)
            below(2) ? do_send(end, peer) : do_receive(end, peer);
        counts[0] = end->sent - sent;
        counts[1] = end->read - read;
        CHECK(write(pipes[1], counts, sizeof counts) == sizeof counts);
        _exit(0);
    }
    CHECK(read(pipes[0], counts, sizeof counts) == sizeof counts);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(pipes[0]);
    close(pipes[1]);
    end->sent += counts[0];
    end->read += counts[1];
    snprintf(last, sizeof last, "a child that sent %lu and read %lu", counts[0], counts[1]);
}

/* Far more than fits, one way, in calls that wait. */
static void *drain(void *argument)
{
    struct end *end = argument;

    for (size_t left = 3 << 20; left > 0;) {
        uint8_t part[50000];
        ssize_t got = recv(end->fd, part, left < sizeof part ? left : sizeof part, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++)
            CHECK(part[i] == value(end->read + (uint64_t)i));
        end->read += (uint64_t)got;
        left -= (size_t)got;
    }
    return NULL;
}

static void do_flood(struct end *end, struct end *peer)
{
    pthread_t thread;
    uint8_t *all;

    if (end->ended || unread(peer, end) > 0)
        return;
    CHECK(all = malloc(3 << 20));
    for (size_t i = 0; i < 3 << 20; i++)
        all[i] = value(end->sent + i);
    CHECK(pthread_create(&thread, NULL, drain, peer) == 0);
    snprintf(last, sizeof last, "a flood");
    CHECK(send(end->fd, all, 3 << 20, 0) == 3 << 20);
    end->sent += 3 << 20;
    CHECK(pthread_join(thread, NULL) == 0);
    free(all);
}

/* ---- a connection's life --------------------------------------------------------------------- */

static void open_pair(struct end ends[2])
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool is_six = below(3) == 0;
    struct sockaddr *address = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    socklen_t length = is_six ? sizeof six : sizeof four;
    int listener = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);

    CHECK(listener >= 0 && bind(listener, address, length) == 0 && listen(listener, 5) == 0);
    CHECK(getsockname(listener, address, &length) == 0);
    for (unsigned i = 0; i < 2; i++)
        ends[i] = (struct end){.copy = -1, .level = -1, .edge = -1};
    CHECK((ends[0].fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(connect(ends[0].fd, address, length) == 0);
    CHECK((ends[1].fd = accept(listener, NULL, NULL)) >= 0);
    close(listener);
    /* Else what was sent arrives when the other side has acknowledged what came before. */
    for (unsigned i = 0; i < 2 && below(50); i++)
        CHECK(setsockopt(ends[i].fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
}

static void run(void)
{
    struct end ends[2];

    state = (seed + 1) * 0x9e3779b97f4a7c15ULL;
    unsigned calls = 10 + below(150);
    snprintf(last, sizeof last, "nothing");
    open_pair(ends);
    while (calls-- > 0) {
        unsigned at = below(2);
        if (is_traced)
            fprintf(stderr, "%s\nend %u: ", last, at);
        struct end *end = &ends[at], *peer = &ends[1 - at];

        switch (below(40)) {
        case 0: case 1: do_poll(end, peer); break;
        case 2: case 3: do_select(end, peer); break;
        case 4: case 5: watch(end); break;
        case 6: case 7: case 8: if (end->level >= 0) do_level(end, peer); break;
        case 9: case 10: case 11: if (end->edge >= 0) do_edge(end, peer); break;
        case 12: do_unread(end, peer); break;
        case 13: if (below(4) == 0) do_sleep(end, peer); break;
        case 14: if (below(16) == 0) do_fork(end, peer); break;
        case 15: if (below(16) == 0) do_flood(end, peer); break;
        case 16:
            if (end->copy < 0 && below(4) == 0)
                CHECK((end->copy = below(2) ? dup(end->fd) : fcntl(end->fd, F_DUPFD_CLOEXEC, 0)) >= 0);
            break;
        case 17:
            if (below(16) == 0 && !end->ended) {
                end->ended = true;
                CHECK(shutdown(any_fd(end), SHUT_WR) == 0);
                snprintf(last, sizeof last, "a shutdown");
            }
            break;
        case 18: case 19: case 20: case 21: case 22: case 23: case 24: case 25: case 26: case 27:
            do_receive(end, peer);
            break;
        default: do_send(end, peer);
        }
    }
    /* One closes; the other reads what is left, and the end, unless bytes were lost on it. */
    struct end *closing = &ends[below(2)], *reading = closing == &ends[0] ? &ends[1] : &ends[0];
    bool is_reset = unread(closing, reading) > 0;
    size_t left = unread(reading, closing);
    close(closing->fd);
    if (closing->copy >= 0)
        close(closing->copy);
    snprintf(last, sizeof last, "a close, %zu bytes left, reset %d", left, is_reset);
    for (;;) {
        ssize_t got = recv(reading->fd, bytes, sizeof bytes, 0);
        if (got <= 0) {
            if (is_reset)
                CHECK(got == 0 || errno == ECONNRESET);
            else
                CHECK(got == 0 && left == 0);
            break;
        }
        CHECK((size_t)got <= left);
        check_bytes(reading, (size_t)got);
        reading->read += (uint64_t)got;
        left -= (size_t)got;
    }
    close(reading->fd);
    if (reading->copy >= 0)
        close(reading->copy);
    for (unsigned i = 0; i < 2; i++) {
        if (ends[i].level >= 0)
            close(ends[i].level);
        if (ends[i].edge >= 0)
            close(ends[i].edge);
    }
}

int main(int argc, char **argv)
{
    unsigned long first = argc > 1 ? strtoul(argv[1], NULL, 0) : 0, end = argc > 2 ? strtoul(argv[2], NULL, 0) : first + 1;

    is_traced = getenv("MODEL_TRACE") != NULL;
    signal(SIGALRM, SIG_DFL);
    for (seed = first; seed < end; seed++) {
        alarm(30);
        run();
    }
    printf("seeds %lu to %lu\n1 passed, 0 failed\n", first, end - 1);
    return 0;
}
