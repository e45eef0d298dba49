/* Epoll sets: what is reported, when, how often, and to whom. */
#include <pthread.h>
#include <stdatomic.h>
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define DATA 0xfedcba9876543210ULL

static int change(int set, int operation, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};

    return epoll_ctl(set, operation, fd, &event);
}

static int make_set(int fd, unsigned events)
{
    int set = epoll_create1(0);

    CHECK(set >= 0);
    CHECK_INT(change(set, EPOLL_CTL_ADD, fd, events, DATA), 0);
    return set;
}

/* The events of the one connection of the set, within `ms`; 0: none. */
static unsigned next(int set, int ms)
{
    struct epoll_event events[4];
    int found = epoll_wait(set, events, 4, ms);

    CHECK_RANGE(found, 0, 1);
    if (found == 1)
        CHECK_INT(events[0].data.u64, DATA);
    return found ? events[0].events : 0;
}

/* Connections that are upgraded already, or become so while they are watched. */
static const struct way ages[] = {{"upgraded", 1}, {"fresh", 0}};

static void open_aged(int ends[2], int is_upgraded)
{
    is_upgraded ? open_pair(ends) : open_fresh(ends);
}

FAMILY(level_reports_again, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN);
    for (uint64_t from = 0; from < 2000; from += 100) {
        CHECK_INT(next(set, 0), 0);
        send_part(ends[1], from, 100);
        for (unsigned i = 0; i < 5; i++)
            CHECK_INT(next(set, 2000), EPOLLIN);
        receive_part(ends[0], from, 50);
        CHECK_INT(next(set, 0), EPOLLIN);
        receive_part(ends[0], from + 50, 50);
        send_part(ends[0], from, 1);
        receive_part(ends[1], from, 1);
    }
    CHECK_INT(next(set, 20), 0);
}

FAMILY(edge_reports_once, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLET);
    for (uint64_t from = 0; from < 4000; from += 200) {
        CHECK_INT(next(set, 0), 0);
        send_part(ends[1], from, 100);
        CHECK_INT(next(set, 2000), EPOLLIN);
        CHECK_INT(next(set, 0), 0);
        CHECK_INT(next(set, 1), 0);
        /* More of it is news, whether the first was read or not. */
        if (from % 400)
            receive_part(ends[0], from, 30);
        send_part(ends[1], from + 100, 100);
        CHECK_INT(next(set, 2000), EPOLLIN);
        CHECK_INT(next(set, 0), 0);
        receive_part(ends[0], from % 400 ? from + 30 : from, from % 400 ? 170 : 200);
        send_part(ends[0], from, 1);
        receive_part(ends[1], from, 1);
    }
}

FAMILY(edge_reports_room_once, ages)
{
    size_t sent;
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLOUT | EPOLLET);
    CHECK_INT(next(set, 100), EPOLLOUT);
    CHECK_INT(next(set, 0), 0);
    upgrade(ends);
    while (next(set, 0))
        continue;
    sent = fill_up(ends[0], 0);
    CHECK_INT(next(set, 10), 0);
    receive_part(ends[1], 0, sent);
    CHECK_INT(next(set, 2000), EPOLLOUT);
    CHECK_INT(next(set, 10), 0);
}

FAMILY(edge_reports_bytes_and_the_end, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLRDHUP | EPOLLET);
    upgrade(ends);
    while (next(set, 0))
        continue;
    send_part(ends[1], 0, 10);
    CHECK_INT(next(set, 2000), EPOLLIN);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    CHECK_INT(next(set, 2000), EPOLLIN | EPOLLRDHUP);
    CHECK_INT(next(set, 10), 0);
    receive_part(ends[0], 0, 10);
    CHECK_INT(recv(ends[0], &(char){0}, 1, 0), 0);
    CHECK_INT(next(set, 10), 0);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_INT(next(set, 2000), EPOLLIN | EPOLLRDHUP | EPOLLHUP);
}

FAMILY(one_event_only, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLONESHOT);
    for (uint64_t from = 0; from < 1000; from += 100) {
        send_part(ends[1], from, 50);
        CHECK_INT(next(set, 2000), EPOLLIN);
        CHECK_INT(next(set, 1), 0);
        send_part(ends[1], from + 50, 50);
        CHECK_INT(next(set, 5), 0);
        /* Asked for anew: it is there. */
        CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, DATA), 0);
        CHECK_INT(next(set, 2000), EPOLLIN);
        receive_part(ends[0], from, 100);
        CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLONESHOT, DATA), 0);
        CHECK_INT(next(set, 0), 0);
        send_part(ends[0], from, 1);
        receive_part(ends[1], from, 1);
    }
}

/* There is always room: a reset is told with it. */
FAMILY(one_event_tells_of_a_reset, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLOUT | EPOLLONESHOT);
    CHECK_INT(next(set, 0), EPOLLOUT);
    CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLOUT | EPOLLONESHOT, DATA), 0);
    send_part(ends[0], 0, 100);
    CHECK_INT(close(ends[1]), 0);
    CHECK_INT(next(set, 5000), EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP);
}

FAMILY(room_comes_and_goes, ages)
{
    size_t sent;
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLOUT);
    CHECK_INT(next(set, 0), EPOLLOUT);
    upgrade(ends);
    CHECK_INT(next(set, 0), EPOLLOUT);
    for (uint64_t from = 0, round = 0; round < 3; round++, from += sent) {
        sent = fill_up(ends[0], from);
        CHECK_INT(next(set, 0), 0);
        CHECK_INT(next(set, 5), 0);
        receive_part(ends[1], from, sent);
        CHECK_INT(next(set, 2000), EPOLLOUT);
    }
}

FAMILY(a_hang_up_is_reported_unasked, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], 0);
    upgrade(ends);
    CHECK_INT(next(set, 1), 0);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    CHECK_INT(next(set, 20), 0);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_INT(next(set, 2000), EPOLLHUP);
    CHECK_INT(next(set, 0), EPOLLHUP);
}

FAMILY(a_reset_is_reported, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    upgrade(ends);
    CHECK_INT(next(set, 1), EPOLLOUT);
    CHECK_INT(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
    CHECK_INT(close(ends[1]), 0);
    for (int64_t end = now_ms() + 2000; next(set, 10) == EPOLLOUT;)
        CHECK(now_ms() < end);
    CHECK_INT(next(set, 2000), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
    CHECK_ERROR(recv(ends[0], &(char){0}, 1, 0), ECONNRESET);
    CHECK_INT(next(set, 2000), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
}

/* ---- changes ------------------------------------------------------------------------------------------- */

FAMILY(changes_take_effect, ages)
{
    int ends[2], set;
    struct epoll_event event;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN);
    upgrade(ends);
    CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLOUT, 5), 0);
    CHECK_INT(epoll_wait(set, &event, 1, 0), 1);
    CHECK_INT(event.events, EPOLLOUT);
    CHECK_INT(event.data.u64, 5);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(epoll_wait(set, &event, 1, 0), 1);
    CHECK_INT(event.events, EPOLLOUT);
    CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLOUT, DATA), 0);
    CHECK_INT(next(set, 0), EPOLLIN | EPOLLOUT);
    CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], 0, DATA), 0);
    CHECK_INT(next(set, 5), 0);
    CHECK_INT(change(set, EPOLL_CTL_DEL, ends[0], 0, 0), 0);
    CHECK_INT(next(set, 5), 0);
    CHECK_INT(change(set, EPOLL_CTL_ADD, ends[0], EPOLLIN, DATA), 0);
    CHECK_INT(next(set, 0), EPOLLIN);
    receive_part(ends[0], 0, 10);
    CHECK_INT(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL), 0);
    send_part(ends[1], 0, 10);
    CHECK_INT(next(set, 10), 0);
}

FAMILY(changes_that_fail, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN);
    upgrade(ends);
    CHECK_ERROR(change(set, EPOLL_CTL_ADD, ends[0], EPOLLIN, DATA), EEXIST);
    CHECK_ERROR(change(set, EPOLL_CTL_MOD, ends[1], EPOLLIN, DATA), ENOENT);
    CHECK_ERROR(change(set, EPOLL_CTL_DEL, ends[1], EPOLLIN, DATA), ENOENT);
    CHECK_ERROR(change(set, 17, ends[0], EPOLLIN, DATA), EINVAL);
    CHECK_ERROR(change(set, EPOLL_CTL_ADD, 900, EPOLLIN, DATA), EBADF);
    CHECK_ERROR(change(ends[0], EPOLL_CTL_ADD, ends[1], EPOLLIN, DATA), EINVAL);
    CHECK_ERROR(change(set, EPOLL_CTL_ADD, set, EPOLLIN, DATA), EINVAL);
    CHECK_ERROR(epoll_ctl(set, EPOLL_CTL_MOD, ends[0], NULL), EFAULT);
    CHECK_INT(change(set, EPOLL_CTL_DEL, ends[0], 0, 0), 0);
    CHECK_ERROR(change(set, EPOLL_CTL_DEL, ends[0], 0, 0), ENOENT);
    CHECK_ERROR(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN, DATA), ENOENT);
}

/* A change to what is asked already reports an edge anew. */
FAMILY(a_change_is_an_edge, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLET);
    upgrade(ends);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(next(set, 1000), EPOLLIN);
    CHECK_INT(next(set, 1), 0);
    CHECK_INT(change(set, EPOLL_CTL_MOD, ends[0], EPOLLIN | EPOLLET, DATA), 0);
    CHECK_INT(next(set, 1000), EPOLLIN);
    CHECK_INT(next(set, 1), 0);
}

FAMILY(a_closed_member_is_gone, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLOUT);
    upgrade(ends);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(next(set, 0), EPOLLIN | EPOLLOUT);
    CHECK_INT(close(ends[0]), 0);
    CHECK_INT(next(set, 10), 0);
    CHECK_ERROR(change(set, EPOLL_CTL_DEL, ends[0], 0, 0), EBADF);
}

/* Members are files by a number: a copy is another member. */
FAMILY(a_copy_is_another_member, ages)
{
    struct epoll_event events[4];
    int ends[2], set, copy;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN);
    upgrade(ends);
    copy = dup(ends[0]);
    CHECK_INT(change(set, EPOLL_CTL_ADD, copy, EPOLLIN, 7), 0);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(epoll_wait(set, events, 4, 0), 2);
    CHECK_INT(events[0].data.u64 == DATA, events[1].data.u64 != DATA);
    CHECK_INT(change(set, EPOLL_CTL_DEL, copy, 0, 0), 0);
    CHECK_INT(next(set, 0), EPOLLIN);
    receive_part(copy, 0, 10);
    CHECK_INT(next(set, 0), 0);
}

/* A connection in several sets, each asked for something else. */
FAMILY(a_member_of_several_sets, ages)
{
    int ends[2], level, edge, room;

    open_aged(ends, kind->number);
    level = make_set(ends[0], EPOLLIN);
    edge = make_set(ends[0], EPOLLIN | EPOLLET);
    room = make_set(ends[0], EPOLLOUT);
    upgrade(ends);
    for (uint64_t from = 0; from < 500; from += 50) {
        while (next(edge, 0))
            continue;
        send_part(ends[1], from, 50);
        CHECK_INT(next(level, 1000), EPOLLIN);
        CHECK_INT(next(edge, 1000), EPOLLIN);
        CHECK_INT(next(edge, 0), 0);
        CHECK_INT(next(level, 0), EPOLLIN);
        CHECK_INT(next(room, 0), EPOLLOUT);
        receive_part(ends[0], from, 50);
        CHECK_INT(next(level, 0), 0);
    }
}

/* Watched before it is connected. */
TEST(a_member_before_it_is_connected)
{
    struct epoll_event event;
    unsigned port;
    int listener = open_listener(&port), fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), ends[2];

    CHECK_INT(change(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, DATA), 0);
    CHECK_INT(epoll_wait(set, &event, 1, 0), 1);
    CHECK(event.events & EPOLLHUP);
    close(fd);
    ends[0] = connect_to(port);
    CHECK_INT(change(set, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLEXCLUSIVE, DATA), 0);
    CHECK_INT(next(set, 100), EPOLLIN);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    CHECK_INT(next(set, 0), 0);
    CHECK_INT(change(set, EPOLL_CTL_DEL, listener, 0, 0), 0);
    CHECK_INT(change(set, EPOLL_CTL_ADD, ends[1], EPOLLIN, DATA), 0);
    upgrade(ends);
    send_part(ends[0], 0, 10);
    CHECK_INT(next(set, 1000), EPOLLIN);
}

static ssize_t wait_for_own_event(void *set)
{
    struct epoll_event event;

    return epoll_wait(*(int *)set, &event, 1, 5000) == 1 && event.data.u64 == DATA ? event.events : 0;
}

static const struct way times[] = {{"before", 0}, {"after", 1}, {"before_and_unseen_by_the_kernel", 2}};

/* Bytes come before the member, or after it. Whoever asks again and again needs no byte that wakes it. */
FAMILY(a_first_member_wakes_a_sleeper, times)
{
    struct caller sleeper;
    int ends[2], set = epoll_create1(0);

    open_pair(ends);
    start_caller(&sleeper, wait_for_own_event, &set);
    for (int call = 0; kind->number == 2 && call < 1000; call++)
        CHECK_ERROR(recv(ends[0], &(char){0}, 1, MSG_DONTWAIT), EAGAIN);
    if (kind->number != 1)
        send_part(ends[1], 0, 10);
    CHECK_INT(change(set, EPOLL_CTL_ADD, ends[0], EPOLLIN, DATA), 0);
    if (kind->number == 1) {
        CHECK(!sleeper.done);
        send_part(ends[1], 0, 10);
    }
    join_caller(&sleeper);
    CHECK_INT(sleeper.returned, EPOLLIN);
    receive_part(ends[0], 0, 10);
    close_pair(ends);
}

FAMILY(an_exclusive_member, ages)
{
    int ends[2], set;

    open_aged(ends, kind->number);
    set = make_set(ends[0], EPOLLIN | EPOLLEXCLUSIVE);
    upgrade(ends);
    CHECK_INT(next(set, 1), 0);
    send_part(ends[1], 0, 10);
    CHECK_INT(next(set, 1000), EPOLLIN);
    receive_part(ends[0], 0, 10);
    CHECK_INT(next(set, 1), 0);
}

/* ---- many ---------------------------------------------------------------------------------------------- */

TEST(three_hundred_members)
{
    enum { MANY = 300 };
    static int ends[MANY][2];
    struct epoll_event events[64];
    struct rlimit limit = {2000, 2000};
    int set = epoll_create1(0);
    bool is_seen[MANY] = {false};

    setrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned i = 0; i < MANY; i++) {
        open_pair(ends[i]);
        CHECK_INT(change(set, EPOLL_CTL_ADD, ends[i][0], i % 2 ? EPOLLIN : EPOLLIN | EPOLLET, i), 0);
    }
    CHECK_INT(epoll_wait(set, events, 64, 0), 0);
    for (unsigned round = 0; round < 3; round++) {
        unsigned left = MANY;

        memset(is_seen, 0, sizeof is_seen);
        for (unsigned i = 0; i < MANY; i++)
            send_part(ends[i][1], round, 1);
        while (left > 0) {
            int found = epoll_wait(set, events, 64, 5000);

            CHECK_RANGE(found, 1, 64);
            for (int i = 0; i < found; i++) {
                unsigned at = (unsigned)events[i].data.u64;

                CHECK(at < MANY && !is_seen[at] && events[i].events == EPOLLIN);
                is_seen[at] = true;
                receive_part(ends[at][0], round, 1);
                left--;
            }
        }
        CHECK_INT(epoll_wait(set, events, 64, 0), 0);
    }
}

/* Fewer places than events: all come in turn. */
TEST(members_are_reported_in_turn)
{
    enum { MANY = 8 };
    int ends[MANY][2], set = epoll_create1(0), seen[MANY] = {0};
    struct epoll_event event;

    for (unsigned i = 0; i < MANY; i++) {
        open_pair(ends[i]);
        CHECK_INT(change(set, EPOLL_CTL_ADD, ends[i][0], EPOLLIN, i), 0);
        send_part(ends[i][1], 0, 10);
        await_unread(ends[i][0], 10);
    }
    for (unsigned i = 0; i < 10 * MANY; i++) {
        CHECK_INT(epoll_wait(set, &event, 1, 1000), 1);
        seen[event.data.u64]++;
    }
    for (unsigned i = 0; i < MANY; i++)
        CHECK_RANGE(seen[i], 5, 15);
}

/* Others are not starved by a connection that always has something. */
/* What only the library makes of a call of the kernel takes no place of another file. */
TEST(a_file_beside_members_that_have_bytes)
{
    enum { PAIRS = 2, WAITS = 8 };
    int ends[PAIRS][2], pipe_ends[2], set = epoll_create1(0), found = 0;

    CHECK_INT(pipe(pipe_ends), 0);
    for (int i = 0; i < PAIRS; i++) {
        open_pair(ends[i]);
        CHECK_INT(change(set, EPOLL_CTL_ADD, ends[i][0], EPOLLIN, DATA), 0);
    }
    CHECK_INT(change(set, EPOLL_CTL_ADD, pipe_ends[0], EPOLLIN, 1), 0);
    CHECK_INT(next(set, 0), 0);
    /* Each peer rings, because this side has found nothing. */
    for (int i = 0; i < PAIRS; i++) {
        char byte;

        CHECK_ERROR(recv(ends[i][0], &byte, 1, MSG_DONTWAIT), EAGAIN);
        send_part(ends[i][1], 0, 100);
    }
    CHECK_INT(write(pipe_ends[1], "x", 1), 1);
    for (int wait = 0; wait < WAITS; wait++) {
        struct epoll_event events[PAIRS + 1];
        int count = epoll_wait(set, events, PAIRS + 1, 0);

        CHECK_RANGE(count, 1, PAIRS + 1);
        for (int i = 0; i < count; i++)
            found += events[i].data.u64 == 1;
    }
    CHECK_RANGE(found, 1, WAITS);
}

/* The other side goes back to TCP for an option, and sends there. */
static void go_back_and_send(struct peer *self, int fd)
{
    hear(self);
    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int)), 0);
    send_part(fd, 0, 100);
    tell(self);
    hear(self);
}

TEST(a_member_goes_back_beside_another_that_has_bytes)
{
    enum { WAITS = 9 };
    struct peer peer;
    int ends[2], fd = start_peer(&peer, true, go_back_and_send), set = make_set(fd, EPOLLIN), found = 0;

    open_pair(ends);
    CHECK_INT(change(set, EPOLL_CTL_ADD, ends[0], EPOLLIN, 1), 0);
    CHECK_INT(next(set, 0), 0);
    send_part(ends[1], 0, 100);
    tell(&peer);
    while (poll_one(peer.from, POLLIN, 1) == 0)
        (void)poll_one(fd, POLLIN, 0);
    hear(&peer);
    for (int wait = 0; wait < WAITS; wait++) {
        struct epoll_event events[3];
        int count = epoll_wait(set, events, 3, 0);

        CHECK_RANGE(count, 1, 2);
        for (int i = 0; i < count; i++)
            found += events[i].data.u64 == DATA;
    }
    CHECK_RANGE(found, 1, WAITS);
    receive_part(fd, 0, 100);
    tell(&peer);
    join_peer(&peer);
}

TEST(other_files_in_the_set)
{
    struct epoll_event events[4];
    int ends[2], pipes[2], set, timer = eventfd(0, 0), found = 0;
    bool is_seen = false;

    open_pair(ends);
    CHECK_INT(pipe(pipes), 0);
    set = make_set(ends[0], EPOLLIN);
    CHECK_INT(change(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1), 0);
    CHECK_INT(change(set, EPOLL_CTL_ADD, timer, EPOLLIN, 2), 0);
    CHECK_INT(epoll_wait(set, events, 4, 0), 0);
    send_part(ends[1], 0, 10);
    await_unread(ends[0], 10);
    CHECK_INT(write(pipes[1], "x", 1), 1);
    for (unsigned i = 0; i < 50 && !is_seen; i++) {
        CHECK_RANGE(found = epoll_wait(set, events, 4, 1000), 1, 2);
        while (found-- > 0)
            is_seen |= events[found].data.u64 == 1;
    }
    CHECK(is_seen);
    receive_part(ends[0], 0, 10);
    CHECK_INT(epoll_wait(set, events, 4, 1000), 1);
    CHECK_INT(events[0].data.u64, 1);
}

/* ---- a sleeper in poll, and another thread that uses a member ---- */

static int watched;
static atomic_uint reports;
static atomic_bool is_over;

static void *poll_the_set(void *unused)
{
    struct pollfd polled = {watched, POLLIN, 0};

    (void)unused;
    while (!is_over) {
        if (poll(&polled, 1, 10000) == 1)
            reports++;
        sleep_ms(1);
    }
    return NULL;
}

/* What the other thread took may have been the sleeper's wake-up: it needs one for what comes then. */
FAMILY(a_sleeper_beside_a_reader, ages)
{
    pthread_t sleeper;
    int ends[2];

    open_aged(ends, kind->number);
    watched = make_set(ends[0], EPOLLIN);
    upgrade(ends);
    CHECK_INT(pthread_create(&sleeper, NULL, poll_the_set, NULL), 0);
    for (unsigned round = 0; round < 200; round++) {
        int64_t end = now_ms() + 5000;
        unsigned before;

        usleep(round % 4 * 700);
        send_part(ends[1], 0, 10);
        receive_part(ends[0], 0, 10);
        before = reports;
        send_part(ends[1], 10, 10);
        while (reports == before) {
            CHECK(now_ms() < end);
            usleep(50);
        }
        receive_part(ends[0], 10, 10);
    }
    is_over = true;
    send_part(ends[1], 0, 10);
    CHECK_INT(pthread_join(sleeper, NULL), 0);
}

/* ---- edges of who takes less than was wanted for all there was, as nginx does --------------------------- */

#define FLOOD (8 << 20)
#define PIECES 9

static const struct way pauses[] = {{"at_once", 0}, {"late", 20}};

static void await_edge(int set, unsigned wanted)
{
    struct epoll_event event;

    do
        CHECK_INT(epoll_wait(set, &event, 1, 5000), 1);
    while (!(event.events & wanted));
}

static void send_flood(struct peer *self, int fd)
{
    static char bytes[100000];
    size_t sent = 0;
    ssize_t part;

    hear(self);
    /* As much as TCP takes, or half of all, is on its way before the connection is upgraded. */
    do {
        fill(bytes, sent, sizeof bytes);
        part = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += part > 0 ? (size_t)part : 0;
    } while (part > 0 && sent < FLOOD / 2);
    send_part(fd, sent, FLOOD - sent);
    tell(self);
    hear(self);
}

FAMILY(edges_follow_short_reads, pauses)
{
    static char bytes[PIECES][4096];
    struct iovec pieces[PIECES];
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    struct peer peer;
    int fd = start_fresh_peer(&peer, true, send_flood), set = epoll_create1(0);

    for (int i = 0; i < PIECES; i++)
        pieces[i] = (struct iovec){bytes[i], sizeof bytes[i]};
    set_nonblocking(fd, true);
    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    tell(&peer);
    sleep_ms(kind->number);
    for (size_t got = 0; got < FLOOD;) {
        ssize_t part = readv(fd, pieces, PIECES);

        if (part < 0)
            CHECK_INT(errno, EAGAIN);
        for (ssize_t at = 0; at < part; at += (ssize_t)sizeof bytes[0]) {
            size_t length = part - at < (ssize_t)sizeof bytes[0] ? (size_t)(part - at) : sizeof bytes[0];

            CHECK_BYTES(bytes[at / (ssize_t)sizeof bytes[0]], got + (size_t)at, length);
        }
        got += part > 0 ? (size_t)part : 0;
        if (part < (ssize_t)sizeof bytes && got < FLOOD)
            await_edge(set, EPOLLIN);
    }
    hear(&peer);
    tell(&peer);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

static void receive_flood(struct peer *self, int fd)
{
    hear(self);
    receive_part(fd, 0, FLOOD);
    tell(self);
    hear(self);
}

FAMILY(edges_follow_short_writes, pauses)
{
    static char bytes[100000];
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    struct peer peer;
    int fd = start_fresh_peer(&peer, true, receive_flood), set = epoll_create1(0);
    size_t sent = 0;
    bool told = false;

    set_nonblocking(fd, true);
    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    await_edge(set, EPOLLOUT);
    while (sent < FLOOD) {
        size_t wanted = FLOOD - sent < sizeof bytes ? FLOOD - sent : sizeof bytes;
        ssize_t part;

        fill(bytes, sent, wanted);
        part = send(fd, bytes, wanted, MSG_NOSIGNAL);
        if (part < 0)
            CHECK_INT(errno, EAGAIN);
        sent += part > 0 ? (size_t)part : 0;
        if (part == (ssize_t)wanted)
            continue;
        if (!told) {
            sleep_ms(kind->number);
            tell(&peer);
            told = true;
        }
        await_edge(set, EPOLLOUT);
    }
    if (!told)
        tell(&peer);
    hear(&peer);
    tell(&peer);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

static const struct way levels[] = {{"level", 0}, {"edge", (int)EPOLLET}};

/* ---- readiness that is none ----------------------------------------------------------------------------- */

#define CONNECTIONS 60
#define ROUNDS 60

/* A program that takes "would block" behind an event for an error, as wrk does, while connections are upgraded. */
FAMILY(an_event_is_followed_by_bytes, levels)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN | (unsigned)kind->number};
        struct peer peer;
        int fd = start_fresh_peer(&peer, i % 2, echo), set = epoll_create1(0);
        char byte;

        set_nonblocking(fd, true);
        CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
        for (int round = 0; round < ROUNDS; round++) {
            CHECK_INT(send(fd, "x", 1, MSG_NOSIGNAL), 1);
            CHECK_INT(epoll_wait(set, &event, 1, 5000), 1);
            CHECK_INT(recv(fd, &byte, 1, 0), 1);
        }
        CHECK_INT(close(fd), 0);
        CHECK_INT(close(set), 0);
        join_peer(&peer);
    }
}
