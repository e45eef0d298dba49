/* Calls that wait: until bytes or room come, a time-out, a signal, or an end. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LENGTH = 1000 };

/* A call of a kind. */
struct call {
    const struct receive_kind *receive;
    const struct send_kind *send;
    int fd;
    size_t length;
    uint8_t bytes[16 << 20];
};

static ssize_t make(void *argument)
{
    struct call *call = argument;

    return call->receive ? call->receive->call(call->fd, call->bytes, call->length, 0)
                         : call->send->call(call->fd, call->bytes, call->length, 0);
}

static struct call call;
static struct caller caller;

/* A thread receives on a connection where nothing is. */
static void start_receiver(const struct receive_kind *kind, int fd)
{
    call.receive = kind;
    call.fd = fd;
    call.length = LENGTH;
    start_caller(&caller, make, &call);
}

/* A thread sends on a full connection. Returns how many bytes are in it. */
static size_t start_sender(const struct send_kind *kind, int fd)
{
    size_t sent = fill_up(fd, 0);

    call.send = kind;
    call.fd = fd;
    call.length = LENGTH;
    fill(call.bytes, sent, LENGTH);
    start_caller(&caller, make, &call);
    return sent;
}

/* ---- until bytes or room come -------------------------------------------------------------------------- */

FAMILY(waits_for_bytes, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    for (uint64_t from = 0; from < 500; from += 100) {
        start_receiver(kind, ends[from % 200 / 100]);
        send_part(ends[1 - from % 200 / 100], from, 100);
        join_caller(&caller);
        CHECK_INT(caller.returned, 100);
        CHECK_BYTES(call.bytes, from, 100);
    }
}

FAMILY(waits_for_room, send_kinds)
{
    size_t sent;
    int ends[2];

    open_pair(ends);
    sent = start_sender(kind, ends[0]);
    receive_part(ends[1], 0, sent);
    join_caller(&caller);
    CHECK_INT(caller.returned, LENGTH);
    receive_part(ends[1], sent, LENGTH);
}

/* On a connection that has carried nothing: it may be upgraded under the sleeper. */
FAMILY(waits_on_a_fresh_connection, receive_kinds)
{
    uint64_t from = 0;
    int ends[2];

    open_fresh(ends);
    for (unsigned i = 0; i < 30; i++) {
        start_receiver(kind, ends[1]);
        /* The other direction is used meanwhile. */
        send_part(ends[1], i * 10, 10);
        receive_part(ends[0], i * 10, 10);
        send_part(ends[0], from, 10);
        join_caller(&caller);
        CHECK_INT(caller.returned, 10);
        CHECK_BYTES(call.bytes, from, 10);
        from += 10;
    }
}

/* ---- time limits --------------------------------------------------------------------------------------- */

FAMILY(receives_with_a_time_limit, receive_kinds)
{
    int64_t start;
    int ends[2];

    open_pair(ends);
    set_limit(ends[0], SO_RCVTIMEO, 60);
    start = now_ms();
    CHECK_ERROR(kind->call(ends[0], call.bytes, LENGTH, 0), EAGAIN);
    CHECK_RANGE(now_ms() - start, 59, 1000);
    start = now_ms();
    send_part(ends[1], 0, 10);
    CHECK_INT(kind->call(ends[0], call.bytes, LENGTH, 0), 10);
    CHECK(now_ms() - start < 50);
    /* None again. */
    set_limit(ends[0], SO_RCVTIMEO, 0);
    start_receiver(kind, ends[0]);
    sleep_ms(80);
    CHECK(!caller.done);
    send_part(ends[1], 10, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
}

TEST(receives_a_part_within_its_time)
{
    int64_t start = now_ms();
    int ends[2];

    open_pair(ends);
    set_limit(ends[0], SO_RCVTIMEO, 60);
    send_part(ends[1], 0, 10);
    CHECK_INT(recv(ends[0], call.bytes, LENGTH, MSG_WAITALL), 10);
    CHECK_RANGE(now_ms() - start, 59, 1000);
}

FAMILY(sends_with_a_time_limit, send_kinds)
{
    int64_t start;
    size_t sent;
    int ends[2];

    open_pair(ends);
    sent = fill_up(ends[0], 0);
    set_limit(ends[0], SO_SNDTIMEO, 60);
    fill(call.bytes, sent, LENGTH);
    start = now_ms();
    CHECK_ERROR(kind->call(ends[0], call.bytes, LENGTH, 0), EAGAIN);
    CHECK_RANGE(now_ms() - start, 59, 1000);
    receive_part(ends[1], 0, sent);
    CHECK_INT(kind->call(ends[0], call.bytes, LENGTH, 0), LENGTH);
    receive_part(ends[1], sent, LENGTH);
}

TEST(sends_a_part_within_its_time)
{
    static uint8_t much[16 << 20];
    int64_t start;
    ssize_t sent;
    int ends[2];

    open_pair(ends);
    set_limit(ends[0], SO_SNDTIMEO, 60);
    fill(much, 0, sizeof much);
    start = now_ms();
    CHECK_RANGE(sent = send(ends[0], much, sizeof much, 0), 200000, sizeof much - 1);
    CHECK_RANGE(now_ms() - start, 59, 1500);
    close(ends[0]);
    CHECK_INT(receive_to_end(ends[1], 0), sent);
}

/* ---- signals ------------------------------------------------------------------------------------------- */

FAMILY(a_signal_ends_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    count_signals(SIGUSR1, 0);
    start_receiver(kind, ends[0]);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, EINTR);
    send_part(ends[1], 0, 10);
    receive_part(ends[0], 0, 10);
}

FAMILY(a_signal_restarts_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    count_signals(SIGUSR1, SA_RESTART);
    start_receiver(kind, ends[0]);
    for (int i = 1; i <= 3; i++) {
        CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
        await_value((int *)(uintptr_t)&signals, i);
        await_sleep(caller.thread);
    }
    CHECK(!caller.done);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
    CHECK_BYTES(call.bytes, 0, 10);
}

/* With a time limit no call is restarted. */
FAMILY(a_signal_ends_a_receive_with_a_limit, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    set_limit(ends[0], SO_RCVTIMEO, 5000);
    count_signals(SIGUSR1, SA_RESTART);
    start_receiver(kind, ends[0]);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, EINTR);
}

FAMILY(a_signal_ends_a_send, send_kinds)
{
    size_t sent;
    int ends[2];

    open_pair(ends);
    count_signals(SIGUSR1, 0);
    sent = start_sender(kind, ends[0]);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, EINTR);
    close(ends[0]);
    CHECK_INT(receive_to_end(ends[1], 0), sent);
}

FAMILY(a_signal_restarts_a_send, send_kinds)
{
    size_t sent;
    int ends[2];

    open_pair(ends);
    count_signals(SIGUSR1, SA_RESTART);
    sent = start_sender(kind, ends[0]);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    await_value((int *)(uintptr_t)&signals, 1);
    await_sleep(caller.thread);
    CHECK(!caller.done);
    receive_part(ends[1], 0, sent);
    join_caller(&caller);
    CHECK_INT(caller.returned, LENGTH);
    receive_part(ends[1], sent, LENGTH);
}

/* What was sent before the signal is the result. */
FAMILY(a_signal_leaves_a_part_sent, send_kinds)
{
    const size_t length = sizeof call.bytes;
    size_t sent;
    int ends[2];

    if (kind->is_file)
        return;
    open_pair(ends);
    count_signals(SIGUSR1, 0);
    sent = fill_up(ends[0], 0);
    call.send = kind;
    call.fd = ends[0];
    call.length = length;
    fill(call.bytes, sent, length);
    start_caller(&caller, make, &call);
    /* Some of it goes. */
    receive_part(ends[1], 0, sent);
    CHECK_INT(poll_one(ends[1], POLLIN, 1000), POLLIN);
    await_sleep(caller.thread);
    CHECK(!caller.done);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_RANGE(caller.returned, 1, length);
    close(ends[0]);
    CHECK_INT(receive_to_end(ends[1], sent), caller.returned);
}

static ssize_t wait_for_all(int fd, void *bytes, size_t length, int flags)
{
    return recv(fd, bytes, length, flags | MSG_WAITALL);
}

TEST(a_signal_leaves_a_part_received)
{
    static const struct receive_kind all = {"recv", wait_for_all, true};
    int ends[2];

    open_pair(ends);
    count_signals(SIGUSR1, SA_RESTART);
    send_part(ends[1], 0, 300);
    await_events(ends[0], POLLIN);
    start_receiver(&all, ends[0]);
    CHECK_INT(pthread_kill(caller.pthread, SIGUSR1), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, 300);
    CHECK_BYTES(call.bytes, 0, 300);
}

/* ---- cancellation -------------------------------------------------------------------------------------- */

FAMILY(cancels_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(pthread_cancel(caller.pthread), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -2);
    /* The connection can be used on, by calls that wait too. */
    start_receiver(kind, ends[0]);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
    CHECK_BYTES(call.bytes, 0, 10);
}

FAMILY(cancels_a_send, send_kinds)
{
    size_t sent;
    int ends[2];

    /* sendfile() is no cancellation point. */
    if (strncmp(kind->name, "sendfile", 8) == 0)
        return;
    open_pair(ends);
    sent = start_sender(kind, ends[0]);
    CHECK_INT(pthread_cancel(caller.pthread), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -2);
    close(ends[0]);
    CHECK_INT(receive_to_end(ends[1], 0), sent);
}

static ssize_t without_cancellation(int fd, void *bytes, size_t length, int flags)
{
    CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL), 0);
    return recv(fd, bytes, length, flags);
}

TEST(cancellation_can_be_off)
{
    static const struct receive_kind off = {"recv", without_cancellation, true};
    int ends[2];

    open_pair(ends);
    start_receiver(&off, ends[0]);
    CHECK_INT(pthread_cancel(caller.pthread), 0);
    sleep_ms(20);
    CHECK(!caller.done);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
}

/* ---- ends under a call --------------------------------------------------------------------------------- */

FAMILY(own_shutdown_ends_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(shutdown(ends[0], SHUT_RD), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, 0);
}

FAMILY(own_shutdown_of_both_ends_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(shutdown(ends[0], SHUT_RDWR), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, 0);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
}

FAMILY(peers_end_ends_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, 0);
    CHECK_INT(close(ends[1]), 0);
    CHECK_INT(kind->call(ends[0], call.bytes, LENGTH, 0), 0);
}

FAMILY(a_reset_ends_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
    CHECK_INT(close(ends[1]), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, ECONNRESET);
    CHECK_INT(kind->call(ends[0], call.bytes, LENGTH, 0), 0);
}

FAMILY(own_shutdown_ends_a_send, send_kinds)
{
    int ends[2];

    open_pair(ends);
    signal(SIGPIPE, SIG_IGN);
    start_sender(kind, ends[0]);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, EPIPE);
}

FAMILY(a_reset_ends_a_send, send_kinds)
{
    int ends[2];

    open_pair(ends);
    signal(SIGPIPE, SIG_IGN);
    start_sender(kind, ends[0]);
    /* With bytes unread. */
    CHECK_INT(close(ends[1]), 0);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK(caller.error == ECONNRESET || caller.error == EPIPE);
}

/* The number is free at once; the call goes on with the connection that it was made for. */
FAMILY(closing_a_descriptor_leaves_a_receive, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    start_receiver(kind, ends[0]);
    CHECK_INT(close(ends[0]), 0);
    sleep_ms(20);
    CHECK(!caller.done);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
    CHECK_BYTES(call.bytes, 0, 10);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
}

/* ---- modes --------------------------------------------------------------------------------------------- */

static const struct way modes[] = {{"fcntl", 0}, {"ioctl", 1}, {"accept4", 2}, {"copy", 3}, {"before", 4}};

FAMILY(becomes_nonblocking, modes)
{
    int ends[2], listener;
    unsigned port;

    if (kind->number == 2) {
        listener = open_listener(&port);
        ends[1] = connect_to(port);
        CHECK((ends[0] = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
        set_nonblocking(ends[0], false);
        upgrade(ends);
        set_nonblocking(ends[0], true);
    } else {
        open_fresh(ends);
        if (kind->number != 4)
            upgrade(ends);
    }
    switch (kind->number) {
    case 0: case 4: set_nonblocking(ends[0], true); break;
    case 1: CHECK_INT(ioctl(ends[0], FIONBIO, &(int){1}), 0); break;
    /* It is one file. */
    case 3: set_nonblocking(dup(ends[0]), true); break;
    }
    for (uint64_t from = 0; from < 300; from += 10) {
        CHECK_ERROR(recv(ends[0], call.bytes, LENGTH, 0), EAGAIN);
        send_part(ends[1], from, 10);
        await_events(ends[0], POLLIN);
        receive_part(ends[0], from, 10);
        send_part(ends[0], from, 10);
        receive_part(ends[1], from, 10);
    }
    CHECK(fcntl(ends[0], F_GETFL) & O_NONBLOCK);
    CHECK_INT(ioctl(ends[0], FIONBIO, &(int){0}), 0);
    start_receiver(&receive_kinds[0], ends[0]);
    send_part(ends[1], 0, 10);
    join_caller(&caller);
    CHECK_INT(caller.returned, 10);
}

/* ---- several threads ----------------------------------------------------------------------------------- */

static ssize_t receive_ten(void *argument)
{
    char bytes[10];

    return recv(*(int *)argument, bytes, sizeof bytes, 0);
}

TEST(several_threads_receive_in_turn)
{
    static struct caller callers[5];
    int ends[2];

    open_pair(ends);
    for (unsigned i = 0; i < 5; i++)
        start_caller(&callers[i], receive_ten, &ends[0]);
    for (unsigned i = 0; i < 5; i++) {
        send_part(ends[1], 0, 10);
        sleep_ms(2);
    }
    for (unsigned i = 0; i < 5; i++) {
        join_caller(&callers[i]);
        CHECK_INT(callers[i].returned, 10);
    }
}

TEST(an_end_wakes_all_threads)
{
    static struct caller callers[5];
    int ends[2];

    open_pair(ends);
    for (unsigned i = 0; i < 5; i++)
        start_caller(&callers[i], receive_ten, &ends[0]);
    CHECK_INT(shutdown(ends[1], SHUT_WR), 0);
    for (unsigned i = 0; i < 5; i++) {
        join_caller(&callers[i]);
        CHECK_INT(callers[i].returned, 0);
    }
}

static ssize_t send_long(void *argument)
{
    static char bytes[400 << 10];

    return send(*(int *)argument, bytes, sizeof bytes, 0);
}

TEST(several_threads_send)
{
    static struct caller callers[4];
    static char bytes[100000];
    size_t all = 4 * (400 << 10), sent;
    ssize_t got;
    int ends[2];

    open_pair(ends);
    sent = fill_up(ends[0], 0);
    for (unsigned i = 0; i < 4; i++)
        start_caller(&callers[i], send_long, &ends[0]);
    receive_part(ends[1], 0, sent);
    for (size_t done = 0; done < all; done += (size_t)got)
        CHECK((got = recv(ends[1], bytes, sizeof bytes, 0)) > 0);
    for (unsigned i = 0; i < 4; i++) {
        join_caller(&callers[i]);
        CHECK_INT(callers[i].returned, 400 << 10);
    }
    CHECK_INT(poll_one(ends[1], POLLIN, 10), 0);
}

/* ---- past the C library -------------------------------------------------------------------------------- */

static const struct way sides[] = {{"connector", 0}, {"acceptor", 1}};

/* By the system call itself. */
static int poll_unseen(int fd, int ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return (int)syscall(SYS_poll, &one, 1, ms);
}

static void find_nothing(int fd)
{
    char byte;

    CHECK_ERROR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

static void receive_nothing(int nonblocking)
{
    char byte;

    CHECK_ERROR(recv(nonblocking, &byte, 1, 0), EAGAIN);
}

static ssize_t poll_for_byte(void *fd)
{
    return poll_unseen(*(int *)fd, 5000);
}

/* A byte ends a wait of that kind. */
static void check_unseen_wait(int own, int peer)
{
    start_caller(&caller, poll_for_byte, &own);
    send_part(peer, 0, 1);
    join_caller(&caller);
    CHECK_INT(caller.returned, 1);
    receive_part(own, 0, 1);
}

FAMILY(an_unseen_wait_after_room_came, sides)
{
    int ends[2], own, peer;
    uint64_t sent, taken = 0;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    sent = fill_up(own, 0);
    /* What tells of room looks like input to whoever waits unseen. */
    for (int round = 0; round < 40; round++) {
        receive_part(peer, taken, sent - taken);
        taken = sent;
        poll_unseen(own, 5);
        find_nothing(own);
        sent += fill_up(own, sent);
    }
    check_unseen_wait(own, peer);
    close_pair(ends);
}

FAMILY(an_unseen_wait_after_calls_in_vain, sides)
{
    int ends[2], own;

    open_pair(ends);
    own = ends[kind->number];
    for (int round = 0; round < 40; round++) {
        find_nothing(own);
        CHECK_INT(poll_unseen(own, 1), 0);
    }
    check_unseen_wait(own, ends[1 - kind->number]);
    close_pair(ends);
}

/* It would gain nothing from rings, and a wait for room would end at once, again and again. */
FAMILY(a_connection_that_is_waited_for_unseen_stays_on_tcp, sides)
{
    const char *turns = getenv("RSTREAM_SOCKETS_AFTER");
    int ends[2], own, peer;

    open_fresh(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    set_nonblocking(own, true);
    for (int round = 0; round < 50; round++) {
        uint64_t before = kernel_received(own), from = (uint64_t)round * 100;

        receive_nothing(own);
        send_part(peer, from, 100);
        CHECK_INT(poll_unseen(own, 5000), 1);
        receive_part(own, from, 100);
        send_part(own, from, 100);
        receive_part(peer, from, 100);
        /* At once is before there is anything to see. */
        if (!turns || strcmp(turns, "0"))
            CHECK_INT(kernel_received(own), before + 100);
    }
    close_pair(ends);
}
