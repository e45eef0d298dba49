/* The ends of connections: shutdown, close with and without unread bytes, resets, processes that end. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void set_linger(int fd, int seconds)
{
    struct linger linger = {1, seconds};

    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
}

static ssize_t receive_byte(int fd)
{
    char byte;

    return recv(fd, &byte, 1, 0);
}

static ssize_t send_byte(int fd)
{
    return send(fd, "x", 1, MSG_NOSIGNAL);
}

/* ---- shutdown ------------------------------------------------------------------------------------------ */

static const struct way sides[] = {{"by_connector", 0}, {"by_acceptor", 1}};

FAMILY(shutdown_of_output, sides)
{
    int ends[2], own, peer;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    send_part(own, 0, 1000);
    CHECK_INT(shutdown(own, SHUT_WR), 0);
    CHECK_ERROR(send_byte(own), EPIPE);
    await_events(peer, POLLIN | POLLRDHUP | POLLOUT);
    CHECK_INT(receive_to_end(peer, 0), 1000);
    /* The other direction goes on. */
    send_part(peer, 0, 100000);
    receive_part(own, 0, 100000);
    CHECK_INT(shutdown(peer, SHUT_WR), 0);
    CHECK_INT(receive_byte(own), 0);
    await_events(own, POLLIN | POLLRDHUP | POLLHUP);
    await_events(peer, POLLIN | POLLRDHUP | POLLHUP);
    CHECK_INT(receive_byte(peer), 0);
    CHECK_ERROR(send_byte(peer), EPIPE);
}

FAMILY(shutdown_twice, sides)
{
    int ends[2], own;

    open_pair(ends);
    own = ends[kind->number];
    CHECK_INT(shutdown(own, SHUT_WR), 0);
    CHECK_INT(shutdown(own, SHUT_WR), 0);
    CHECK_INT(shutdown(own, SHUT_RD), 0);
    CHECK_INT(shutdown(own, SHUT_RD), 0);
    CHECK_ERROR(shutdown(own, 3), EINVAL);
    CHECK_INT(receive_byte(own), 0);
    CHECK_INT(receive_byte(ends[1 - kind->number]), 0);
}

/* There is no connection any more. */
FAMILY(shutdown_after_both_have_ended, sides)
{
    int ends[2], own;

    open_pair(ends);
    own = ends[kind->number];
    send_part(ends[1 - kind->number], 0, 100);
    CHECK_INT(shutdown(own, SHUT_WR), 0);
    CHECK_INT(shutdown(ends[1 - kind->number], SHUT_WR), 0);
    await_events(own, POLLIN | POLLRDHUP | POLLHUP);
    await_events(ends[1 - kind->number], POLLIN | POLLRDHUP | POLLHUP);
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
        CHECK_ERROR(shutdown(own, how), ENOTCONN);
        CHECK_ERROR(shutdown(ends[1 - kind->number], how), ENOTCONN);
    }
    CHECK_ERROR(shutdown(own, 3), EINVAL);
    CHECK_INT(receive_to_end(own, 0), 100);
    close_pair(ends);
}

/* The peer, which has closed, waited for something before. Its end is answered by this side's, not by a reset. */
FAMILY(shutdown_after_a_close, sides)
{
    int ends[2], own, peer;
    char byte;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    send_part(peer, 0, 100);
    CHECK_ERROR(recv(peer, &byte, 1, MSG_DONTWAIT), EAGAIN);
    CHECK_INT(poll_one(peer, POLLIN, 1), 0);
    CHECK_INT(close(peer), 0);
    await_events(own, POLLIN | POLLRDHUP | POLLOUT);
    CHECK_INT(shutdown(own, SHUT_WR), 0);
    await_events(own, POLLIN | POLLRDHUP | POLLHUP);
    CHECK_INT(receive_to_end(own, 0), 100);
}

FAMILY(shutdown_of_input_with_unread_bytes, sides)
{
    int ends[2], own, peer;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    send_part(peer, 0, 100);
    await_events(own, POLLIN);
    CHECK_INT(shutdown(own, SHUT_RD), 0);
    /* What is there is read. */
    receive_part(own, 0, 100);
    CHECK_INT(receive_byte(own), 0);
    await_events(own, POLLIN | POLLRDHUP | POLLOUT);
    /* The peer does not learn it; what it sends is still there to be read. */
    CHECK_INT(poll_one(peer, POLLIN | POLLRDHUP | POLLOUT, 10), POLLOUT);
    send_part(own, 0, 1000);
    receive_part(peer, 0, 1000);
}

FAMILY(shutdown_of_input_before_bytes, sides)
{
    int ends[2], own, peer;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    CHECK_INT(shutdown(own, SHUT_RD), 0);
    CHECK_INT(receive_byte(own), 0);
    send_part(peer, 0, 100);
    await_unread(own, 100);
    receive_part(own, 0, 100);
    CHECK_INT(receive_byte(own), 0);
}

FAMILY(shutdown_of_both, sides)
{
    int ends[2], own, peer;

    open_pair(ends);
    own = ends[kind->number];
    peer = ends[1 - kind->number];
    send_part(own, 0, 1000);
    CHECK_INT(shutdown(own, SHUT_RDWR), 0);
    CHECK_INT(receive_byte(own), 0);
    CHECK_ERROR(send_byte(own), EPIPE);
    CHECK_INT(receive_to_end(peer, 0), 1000);
    await_events(own, POLLIN | POLLRDHUP | POLLHUP | POLLOUT);
    CHECK_INT(close(peer), 0);
    CHECK_INT(receive_byte(own), 0);
}

/* Both have ended their output: everything sent before is read. */
FAMILY(both_end_with_bytes_under_way, sides)
{
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 50000);
    send_part(ends[1], 7, 60000);
    CHECK_INT(shutdown(ends[kind->number], SHUT_WR), 0);
    CHECK_INT(shutdown(ends[1 - kind->number], SHUT_WR), 0);
    CHECK_INT(receive_to_end(ends[0], 7), 60000);
    CHECK_INT(receive_to_end(ends[1], 0), 50000);
    close_pair(ends);
}

/* A side that has ended its output reads for long; both directions are full at times. */
static void read_slowly(struct peer *self, int fd)
{
    CHECK_INT(receive_byte(fd), 0);
    send_part(fd, 0, 5000000);
    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    hear(self);
}

FAMILY(half_closed_for_long, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, read_slowly);

    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    for (uint64_t from = 0; from < 5000000; from += 500000) {
        sleep_ms(5);
        receive_part(fd, from, 500000);
    }
    CHECK_INT(receive_byte(fd), 0);
    tell(&peer);
    join_peer(&peer);
}

/* ---- close --------------------------------------------------------------------------------------------- */

FAMILY(close_after_bytes, sides)
{
    int ends[2], peer;

    open_pair(ends);
    peer = ends[1 - kind->number];
    send_part(ends[kind->number], 0, 150000);
    CHECK_INT(close(ends[kind->number]), 0);
    CHECK_INT(receive_to_end(peer, 0), 150000);
    await_events(peer, POLLIN | POLLRDHUP | POLLOUT);
    CHECK_INT(receive_byte(peer), 0);
}

/* The end of a new connection, by its number, whose peer was closed with bytes unread. */
static int open_reset(int number)
{
    int ends[2];

    open_pair(ends);
    send_part(ends[number], 0, 100);
    await_events(ends[1 - number], POLLIN);
    CHECK_INT(close(ends[1 - number]), 0);
    await_events(ends[number], POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    return ends[number];
}

FAMILY(close_with_unread_bytes, sides)
{
    int peer = open_reset(1 - kind->number);

    CHECK_ERROR(receive_byte(peer), ECONNRESET);
    CHECK_INT(receive_byte(peer), 0);
    CHECK_ERROR(send_byte(peer), EPIPE);
}

/* The error is told once, and the sender is told first if it asks first. */
FAMILY(close_with_unread_bytes_and_a_sender, sides)
{
    int peer = open_reset(1 - kind->number);

    CHECK_ERROR(send_byte(peer), ECONNRESET);
    CHECK_ERROR(send_byte(peer), EPIPE);
    CHECK_INT(receive_byte(peer), 0);
}

FAMILY(close_with_unread_bytes_and_an_option, sides)
{
    int peer = open_reset(1 - kind->number), error = 0;
    socklen_t length = sizeof error;

    CHECK_INT(getsockopt(peer, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    CHECK_INT(error, ECONNRESET);
    CHECK_INT(getsockopt(peer, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    CHECK_INT(error, 0);
    CHECK_INT(receive_byte(peer), 0);
    CHECK_ERROR(send_byte(peer), EPIPE);
}

/* It sends to a peer that is gone. */
FAMILY(bytes_after_a_close, sides)
{
    int ends[2], peer;

    open_pair(ends);
    peer = ends[1 - kind->number];
    CHECK_INT(close(ends[kind->number]), 0);
    CHECK_INT(receive_byte(peer), 0);
    CHECK_INT(send_byte(peer), 1);
    await_events(peer, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERROR(send_byte(peer), EPIPE);
    CHECK_INT(receive_byte(peer), 0);
}

/* A call that sends after this side's end takes the error that is pending. */
FAMILY(bytes_after_a_close_and_an_end, sides)
{
    char byte;
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1}};
    int ends[2], peer;

    open_pair(ends);
    peer = ends[1 - kind->number];
    CHECK_INT(close(ends[kind->number]), 0);
    CHECK_INT(receive_byte(peer), 0);
    CHECK_INT(send_byte(peer), 1);
    await_events(peer, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERROR(shutdown(peer, SHUT_WR), ENOTCONN);
    CHECK_ERROR(send_byte(peer), EPIPE);
    /* Other than recv(), it looks for an error first. */
    CHECK_INT(recvmmsg(peer, &message, 1, 0, NULL), 1);
    CHECK_INT(message.msg_len, 0);
}

FAMILY(bytes_after_a_reset_and_an_end, sides)
{
    int peer = open_reset(1 - kind->number);

    CHECK_ERROR(shutdown(peer, SHUT_WR), ENOTCONN);
    CHECK_ERROR(send_byte(peer), ECONNRESET);
    CHECK_ERROR(send_byte(peer), EPIPE);
    CHECK_INT(receive_byte(peer), 0);
}

/* With bytes of the peer that are still to be read. */
FAMILY(bytes_after_a_close_with_bytes, sides)
{
    int ends[2], peer;
    char bytes[100];

    open_pair(ends);
    peer = ends[1 - kind->number];
    send_part(ends[kind->number], 0, 50);
    CHECK_INT(close(ends[kind->number]), 0);
    await_events(peer, POLLIN | POLLRDHUP | POLLOUT);
    CHECK_INT(recv(peer, bytes, sizeof bytes, MSG_PEEK), 50);
    receive_part(peer, 0, 50);
    CHECK_INT(receive_byte(peer), 0);
}

FAMILY(reset_by_linger, sides)
{
    int ends[2], peer;

    open_pair(ends);
    peer = ends[1 - kind->number];
    set_linger(ends[kind->number], 0);
    CHECK_INT(close(ends[kind->number]), 0);
    await_events(peer, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERROR(receive_byte(peer), ECONNRESET);
    CHECK_ERROR(send_byte(peer), EPIPE);
}

FAMILY(close_that_lingers, sides)
{
    int ends[2], peer;

    open_pair(ends);
    peer = ends[1 - kind->number];
    set_linger(ends[kind->number], 5);
    send_part(ends[kind->number], 0, 10000);
    CHECK_INT(close(ends[kind->number]), 0);
    CHECK_INT(receive_to_end(peer, 0), 10000);
}

/* It makes no call between the way back to TCP, which the other side takes for an option, and its close. */
static void close_with_unread(struct peer *self, int fd)
{
    while (poll_one(self->from, POLLIN, 1) == 0)
        (void)poll_one(fd, POLLIN, 0);
    hear(self);
    CHECK_INT(close(fd), 0);
}

FAMILY(close_with_unread_bytes_after_the_way_back, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, close_with_unread);

    CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int)), 0);
    send_part(fd, 0, 100);
    tell(&peer);
    join_peer(&peer);
    CHECK_ERROR(receive_byte(fd), ECONNRESET);
}

/* ---- processes that end -------------------------------------------------------------------------------- */

static void send_some(struct peer *self, int fd)
{
    send_part(fd, 0, 100000);
    tell(self);
    hear(self);
}

static void send_and_exit(struct peer *self, int fd)
{
    (void)self;
    send_part(fd, 0, 100000);
    exit(0);
}

static void send_and_exit_at_once(struct peer *self, int fd)
{
    (void)self;
    send_part(fd, 0, 100000);
    _exit(0);
}

static void send_and_return(struct peer *self, int fd)
{
    (void)self;
    send_part(fd, 0, 100000);
    quick_exit(0);
}

static void send_and_replace(struct peer *self, int fd)
{
    (void)self;
    send_part(fd, 0, 100000);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    execl("/bin/true", "true", NULL);
    _exit(1);
}

static const struct {
    const char *name;
    void (*body)(struct peer *, int);
} exits[] = {{"exit", send_and_exit}, {"_exit", send_and_exit_at_once}, {"quick_exit", send_and_return},
             {"exec", send_and_replace}};

FAMILY(bytes_of_a_process_that_ends_by, exits)
{
    struct peer peer;
    int fd = start_peer(&peer, true, kind->body);

    join_peer(&peer);
    CHECK_INT(receive_to_end(fd, 0), 100000);
}

FAMILY(bytes_of_a_killed_process, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, send_some);

    hear(&peer);
    kill_peer(&peer);
    CHECK_INT(receive_to_end(fd, 0), 100000);
}

/* The bytes that it had not read are lost: TCP resets. */
static void hold_unread(struct peer *self, int fd)
{
    hear(self);
    await_events(fd, POLLIN);
    tell(self);
    hear(self);
}

FAMILY(a_killed_process_with_unread_bytes, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, hold_unread);

    send_part(fd, 0, 1000);
    tell(&peer);
    hear(&peer);
    kill_peer(&peer);
    CHECK_ERROR(receive_byte(fd), ECONNRESET);
    CHECK_INT(receive_byte(fd), 0);
    CHECK_ERROR(send_byte(fd), EPIPE);
}

static void exit_with_unread(struct peer *self, int fd)
{
    hear(self);
    await_events(fd, POLLIN);
    exit(0);
}

FAMILY(a_process_that_exits_with_unread_bytes, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, exit_with_unread);

    send_part(fd, 0, 1000);
    tell(&peer);
    join_peer(&peer);
    CHECK_ERROR(receive_byte(fd), ECONNRESET);
    CHECK_INT(receive_byte(fd), 0);
    CHECK_ERROR(send_byte(fd), EPIPE);
}

static void wait_to_die(struct peer *self, int fd)
{
    (void)fd;
    hear(self);
}

FAMILY(a_killed_process_without_unread_bytes, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, wait_to_die);

    kill_peer(&peer);
    await_events(fd, POLLIN | POLLRDHUP | POLLOUT);
    CHECK_INT(receive_byte(fd), 0);
    CHECK_INT(send_byte(fd), 1);
    await_events(fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERROR(send_byte(fd), EPIPE);
}
