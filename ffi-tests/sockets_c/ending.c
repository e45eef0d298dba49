/* How connections end: half-closed, closed, reset, and by the end of a process. */
#include "sockets_c.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void half_closed_connections_go_on(void)
{
    char byte;
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 5000);
    CHECK_INT(rs_shutdown(ends[0], SHUT_WR), 0);
    CHECK_ERRNO(rs_send(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    receive_part(ends[1], 0, 5000);
    CHECK_INT(rs_recv(ends[1], &byte, 1, 0), 0);
    CHECK_INT(polled(ends[1], POLLIN | POLLRDHUP, -1), POLLIN | POLLRDHUP);
    send_part(ends[1], 0, 5000);
    receive_part(ends[0], 0, 5000);
    CHECK_INT(rs_shutdown(ends[1], SHUT_WR), 0);
    CHECK_INT(rs_recv(ends[0], &byte, 1, 0), 0);
    close_pair(ends);
}

static void what_was_sent_is_read_after_a_close(void)
{
    char byte;
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 5000);
    CHECK_INT(rs_close(ends[0]), 0);
    CHECK_ERRNO(rs_close(ends[0]), EBADF);
    receive_part(ends[1], 0, 5000);
    CHECK_INT(rs_recv(ends[1], &byte, 1, 0), 0);
    /* The first is answered with a reset. */
    rs_send(ends[1], "x", 1, MSG_NOSIGNAL);
    AWAIT(PATIENCE_MS, rs_send(ends[1], "x", 1, MSG_NOSIGNAL) < 0);
    CHECK_ERRNO(rs_send(ends[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_INT(rs_close(ends[1]), 0);
}

static void unread_bytes_reset(void)
{
    char byte;
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    await_polled(ends[1], POLLIN);
    CHECK_INT(rs_close(ends[1]), 0);
    AWAIT(PATIENCE_MS, rs_recv(ends[0], &byte, 1, MSG_DONTWAIT) < 0 && errno != EAGAIN);
    CHECK_INT(rs_close(ends[0]), 0);
}

/* ---- processes ------------------------------------------------------------------------------------------ */

static void echo_until_told(struct peer *self, int fd)
{
    for (uint64_t i = 0; i < 40; i++) {
        receive_part(fd, i, 1);
        send_part(fd, i, 1);
    }
    send_part(fd, 0, 1000);
    peer_tell(self, 1);
    if (peer_hear(self) == 0)
        exit(0);
    for (;;)
        pause();
}

/* A connection through shared memory with a process that has sent 1000 bytes. */
static int start_echo(struct peer *peer)
{
    int fd = start_peer(peer, true, echo_until_told);

    exchange(fd, 0, 1, 40);
    check_path(fd, 1, "shared memory");
    peer_hear(peer);
    return fd;
}

/* The end of the stream, or of the connection. */
static void check_end(int fd)
{
    char byte;
    ssize_t got = rs_recv(fd, &byte, 1, 0);

    if (got != 0)
        CHECK_ERRNO(got, ECONNRESET);
}

static void a_killed_peer_ends_the_stream(void)
{
    struct peer peer;
    struct epoll_event event = {.events = EPOLLIN};
    int fd = start_echo(&peer), set = (int)CHECK_SYS(rs_epoll_create1(0));

    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    receive_part(fd, 0, 1000);
    CHECK_INT(rs_epoll_wait(set, &event, 1, 0), 0);
    peer_kill(&peer);
    CHECK_INT(rs_epoll_wait(set, &event, 1, -1), 1);
    CHECK_AT_LEAST(polled(fd, POLLIN, -1), POLLIN);
    check_end(fd);
    CHECK_INT(rs_close(set), 0);
    CHECK_INT(rs_close(fd), 0);
}

static void what_a_killed_peer_sent_is_read(void)
{
    struct peer peer;
    int fd = start_echo(&peer);

    peer_kill(&peer);
    receive_part(fd, 0, 1000);
    check_end(fd);
    CHECK_INT(rs_close(fd), 0);
}

static void exit_closes(void)
{
    struct peer peer;
    char byte;
    int fd = start_echo(&peer);

    peer_tell(&peer, 0);
    peer_join(&peer);
    receive_part(fd, 0, 1000);
    CHECK_INT(rs_recv(fd, &byte, 1, 0), 0);
    CHECK_INT(rs_close(fd), 0);
}

static void exit_resets_for_unread_bytes(void)
{
    struct peer peer;
    char byte;
    int fd = start_echo(&peer);

    receive_part(fd, 0, 1000);
    send_part(fd, 0, 5);
    peer_tell(&peer, 0);
    peer_join(&peer);
    CHECK_ERRNO(rs_recv(fd, &byte, 1, 0), ECONNRESET);
    CHECK_INT(rs_close(fd), 0);
}

static void count_to(struct peer *self, void *argument)
{
    int ends[2];

    (void)self;
    CHECK_INT(dup2(*(int *)argument, STDERR_FILENO), STDERR_FILENO);
    CHECK_INT(setenv("RSTREAM_SOCKETS_STATISTICS", "1", 1), 0);
    open_pair(ends);
}

static void exit_says_what_was_counted(void)
{
    char text[4096] = {0};
    struct peer peer;
    int way[2];

    CHECK_SYS(pipe(way));
    peer_start(&peer, count_to, &way[1]);
    CHECK_INT(close(way[1]), 0);
    peer_join(&peer);
    CHECK_SYS(read(way[0], text, sizeof text - 1));
    if (strstr(text, "shared memory") == NULL)
        fail_at(__FILE__, __LINE__, "the text is \"%s\"", text);
}

/* The C library closes a descriptor with unread bytes, whose number another connection gets. */
static void close_past(struct peer *self, void *argument)
{
    int ends[2];

    open_pair(ends);
    send_part(ends[1], 0, 10);
    CHECK_INT(close(ends[0]), 0);
    CHECK_INT(dup2(tcp_connect(*(unsigned *)argument), ends[0]), ends[0]);
    if (peer_hear(self) == 0)
        CHECK_INT(rs_close(ends[0]), 0);
}

/* What is not attached ends as any connection: by rs_close, and by exit. */
static void a_number_that_was_closed_past_is_left_alone(void)
{
    struct peer peer;
    unsigned port;
    char bytes[10];
    int listener = tcp_listen(&port), fd;

    for (uint64_t way = 0; way < 2; way++) {
        peer_start(&peer, close_past, &port);
        peer_tell(&peer, way);
        fd = (int)CHECK_SYS(accept(listener, NULL, NULL));
        peer_join(&peer);
        CHECK_INT(CHECK_SYS(recv(fd, bytes, sizeof bytes, 0)), 0);
        CHECK_INT(close(fd), 0);
    }
}

static void a_number_is_attached_anew(void)
{
    int first[2], ends[2];

    open_pair(first);
    CHECK_INT(close(first[0]), 0);
    CHECK_INT(close(first[1]), 0);
    open_plain(ends);
    for (int i = 0; i < 2; i++) {
        CHECK_ERRNO(rs_path(ends[i], NULL, 0), EINVAL);
        CHECK_ERRNO(rs_detach(ends[i]), EINVAL);
        CHECK_INT(rs_attach(ends[i]), 0);
        check_path(ends[i], 0, "not yet");
    }
    upgrade(ends);
    close_pair(ends);
}

static const struct test tests[] = {
    TEST(half_closed_connections_go_on, "the other direction of a half-closed connection goes on"),
    TEST(what_was_sent_is_read_after_a_close, "what was sent before a close is read, and then nothing is taken"),
    TEST(unread_bytes_reset, "a close that leaves bytes unread resets the connection"),
    TEST(a_killed_peer_ends_the_stream, "the end of a killed peer wakes who waits for it"),
    TEST(what_a_killed_peer_sent_is_read, "what a killed peer has sent is read before the end"),
    TEST(exit_closes, "exit closes what is attached, in order"),
    TEST(exit_says_what_was_counted, "exit writes what was counted, if that is wanted"),
    TEST(exit_resets_for_unread_bytes, "exit resets what has bytes unread"),
    TEST(a_number_that_was_closed_past_is_left_alone, "rs_close and exit leave a number alone that is another connection's"),
    TEST(a_number_is_attached_anew, "a number that was closed by the C library can be attached anew"),
};

const struct section rs_ending = SECTION("ending", tests);
