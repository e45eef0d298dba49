/* Waiting for connections: poll, select and epoll, by level and by edge, beside other descriptors. */
#include "sockets_c.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void poll_answers_by_level(void)
{
    int ends[2];

    open_pair(ends);
    CHECK_INT(polled(ends[0], POLLIN, 0), 0);
    CHECK_INT(polled(ends[0], POLLIN | POLLOUT, -1), POLLOUT);
    send_part(ends[1], 0, 10);
    for (int i = 0; i < 3; i++)
        CHECK_INT(polled(ends[0], POLLIN, -1), POLLIN);
    receive_part(ends[0], 0, 10);
    CHECK_INT(polled(ends[0], POLLIN, 10), 0);
    close_pair(ends);
}

static void poll_takes_other_descriptors_too(void)
{
    int ends[2], ways[2];

    open_pair(ends);
    CHECK_SYS(pipe(ways));
    struct pollfd fds[] = {{ways[0], POLLIN, 0}, {ends[0], POLLIN, 0}, {-1, POLLIN, 0}};
    CHECK_INT(rs_poll(fds, 3, 10), 0);
    send_part(ends[1], 0, 1);
    CHECK_INT(rs_poll(fds, 3, -1), 1);
    CHECK_INT(fds[1].revents, POLLIN);
    /* What comes while nobody sleeps wakes nobody. */
    receive_part(ends[0], 0, 1);
    send_part(ends[1], 1, 1);
    CHECK_INT(write(ways[1], "x", 1), 1);
    CHECK_INT(rs_ppoll(fds, 3, NULL, NULL), 2);
    CHECK_INT(fds[0].revents, POLLIN);
    CHECK_INT(rs_poll(fds, 1, -1), 1);
    close_pair(ends);
}

static void select_answers_by_level(void)
{
    struct timeval moment = {0, 10000};
    fd_set in, out;
    int ends[2];

    open_pair(ends);
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    CHECK_INT(rs_select(ends[0] + 1, &in, NULL, NULL, &moment), 0);
    CHECK(!FD_ISSET(ends[0], &in));
    CHECK_INT(moment.tv_usec, 0);
    send_part(ends[1], 0, 1);
    FD_SET(ends[0], &in);
    FD_ZERO(&out);
    FD_SET(ends[0], &out);
    CHECK_INT(rs_select(ends[0] + 1, &in, &out, NULL, NULL), 2);
    CHECK(FD_ISSET(ends[0], &in) && FD_ISSET(ends[0], &out));
    close_pair(ends);
}

/* ---- epoll ---------------------------------------------------------------------------------------------- */

#define DATA 0x1234567890abcdef

static int open_set(int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = DATA};
    int set = (int)CHECK_SYS(rs_epoll_create1(EPOLL_CLOEXEC));

    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    return set;
}

/* What the set says of its descriptor within `ms`. */
static uint32_t reported(int set, int ms)
{
    struct epoll_event events[4];
    int found = (int)CHECK_SYS(rs_epoll_wait(set, events, 4, ms));

    CHECK_BETWEEN(found, 0, 1);
    if (found == 0)
        return 0;
    CHECK(events[0].data.u64 == DATA);
    return events[0].events;
}

static void epoll_by_level_reports_what_is_there(void)
{
    int ends[2], set;

    open_pair(ends);
    set = open_set(ends[0], EPOLLIN);
    CHECK_INT(reported(set, 10), 0);
    send_part(ends[1], 0, 10);
    for (int i = 0; i < 20; i++)
        CHECK_INT(reported(set, -1), EPOLLIN);
    receive_part(ends[0], 0, 10);
    CHECK_INT(reported(set, 10), 0);
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_MOD, ends[0],
                           &(struct epoll_event){.events = EPOLLOUT, .data.u64 = DATA}), 0);
    CHECK_INT(reported(set, -1), EPOLLOUT);
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL), 0);
    CHECK_INT(reported(set, 0), 0);
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

static void epoll_by_edge_reports_what_is_new(void)
{
    int ends[2], set;

    open_pair(ends);
    set = open_set(ends[0], EPOLLIN | EPOLLET);
    reported(set, 0);
    for (uint64_t offset = 0; offset < 50; offset += 10) {
        send_part(ends[1], offset, 10);
        CHECK_INT(reported(set, -1), EPOLLIN);
        /* Also if some is left. */
        receive_part(ends[0], offset, 5);
        CHECK_INT(reported(set, 10), 0);
        receive_part(ends[0], offset + 5, 5);
    }
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

static void epoll_once_reports_once(void)
{
    int ends[2], set;

    open_pair(ends);
    set = open_set(ends[0], EPOLLIN | EPOLLONESHOT);
    send_part(ends[1], 0, 10);
    CHECK_INT(reported(set, -1), EPOLLIN);
    send_part(ends[1], 10, 10);
    CHECK_INT(reported(set, 10), 0);
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_MOD, ends[0],
                           &(struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = DATA}), 0);
    CHECK_INT(reported(set, -1), EPOLLIN);
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

/* A set that has a descriptor before it is attached, and while its connection moves. */
static void a_set_follows_its_connection(void)
{
    int ends[2], set;

    open_plain(ends);
    set = open_set(ends[0], EPOLLIN);
    for (int i = 0; i < 2; i++)
        CHECK_INT(rs_attach(ends[i]), 0);
    for (uint64_t i = 0; i < 40; i++) {
        CHECK_INT(reported(set, 0), 0);
        send_part(ends[1], i, 1);
        CHECK_INT(reported(set, -1), EPOLLIN);
        receive_part(ends[0], i, 1);
        send_part(ends[0], i, 1);
        receive_part(ends[1], i, 1);
    }
    check_path(ends[0], 1, "shared memory");
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

/* ---- sleeping ------------------------------------------------------------------------------------------- */

static int by_recv(int fd)
{
    char byte;

    return (int)rs_recv(fd, &byte, 1, MSG_PEEK);
}

static int by_poll(int fd)
{
    return polled(fd, POLLIN, -1);
}

static int by_select(int fd)
{
    fd_set in;

    FD_ZERO(&in);
    FD_SET(fd, &in);
    return rs_select(fd + 1, &in, NULL, NULL, NULL);
}

static int by_epoll(int fd)
{
    int set = open_set(fd, EPOLLIN), found = (int)reported(set, -1);

    CHECK_INT(rs_close(set), 0);
    return found;
}

static int by_edge(int fd)
{
    sigset_t mask;
    struct epoll_event event;
    int set = open_set(fd, EPOLLIN | EPOLLET), found;

    sigemptyset(&mask);
    found = rs_epoll_pwait(set, &event, 1, -1, &mask);
    CHECK_INT(rs_close(set), 0);
    return found;
}

/* Sends a byte some time after it was asked to. */
static void answer_late(struct peer *self, int fd)
{
    char byte;

    (void)self;
    while (CHECK_SYS(rs_recv(fd, &byte, 1, 0)) == 1) {
        sleep_ms(20);
        CHECK_INT(rs_send(fd, &byte, 1, 0), 1);
    }
}

static void sleepers_wake(void)
{
    int (*const waits[])(int) = {by_recv, by_poll, by_select, by_epoll, by_edge};
    struct peer peer;
    int fd = start_peer(&peer, true, answer_late);

    for (uint64_t i = 0; i < 50; i++) {
        note("wait %d, exchange %d", (int)(i % 5), (int)i);
        send_part(fd, i, 1);
        CHECK_AT_LEAST(waits[i % 5](fd), 1);
        receive_part(fd, i, 1);
    }
    check_path(fd, 1, "shared memory");
    CHECK_INT(rs_close(fd), 0);
    peer_join(&peer);
}

/* A writer waits for room until its peer reads. */
static void read_late(struct peer *self, int fd)
{
    exchange(fd, 0, 1, 40);
    peer_hear(self);
    sleep_ms(50);
    receive_part(fd, 0, 3 << 20);
}

static void writers_wait_for_room(void)
{
    struct peer peer;
    int fd = start_peer(&peer, false, read_late);
    int64_t begin;

    for (uint64_t i = 0; i < 40; i++) {
        receive_part(fd, i, 1);
        send_part(fd, i, 1);
    }
    check_path(fd, 1, "shared memory");
    begin = now_ms();
    peer_tell(&peer, 1);
    send_part(fd, 0, 3 << 20);
    CHECK_AT_LEAST(now_ms() - begin, 40);
    CHECK_INT(rs_close(fd), 0);
    peer_join(&peer);
}

static const struct test tests[] = {
    TEST(poll_answers_by_level, "rs_poll says what can be done, as long as it can"),
    TEST(poll_takes_other_descriptors_too, "rs_poll and rs_ppoll take other descriptors too"),
    TEST(select_answers_by_level, "rs_select says what can be done, and what time is left"),
    TEST(epoll_by_level_reports_what_is_there, "epoll by level reports what is there, with the program's data"),
    TEST(epoll_by_edge_reports_what_is_new, "epoll by edge reports what is new"),
    TEST(epoll_once_reports_once, "EPOLLONESHOT reports once, until it is asked again"),
    TEST(a_set_follows_its_connection, "a set has a connection from before it is attached to after its move"),
    TEST(sleepers_wake, "calls that sleep wake when the peer sends"),
    TEST(writers_wait_for_room, "a call that sends more than fits sleeps until the peer reads"),
};

const struct section rs_waiting = SECTION("waiting", tests);
