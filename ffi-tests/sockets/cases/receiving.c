/* Calls that receive: counts, flags and errors. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* From the first byte of a connection on, past the calls at which it is upgraded. */
FAMILY(receives_bytes_in_order, receive_kinds)
{
    static const size_t lengths[] = {1, 5, 100, 4096, 2, 9000, 20000, 1, 70000};
    uint8_t bytes[70000];
    uint64_t from = 0;
    int ends[2];

    open_fresh(ends);
    for (size_t i = 0; i < 5 * sizeof lengths / sizeof *lengths; i++) {
        size_t length = lengths[i % (sizeof lengths / sizeof *lengths)], done = 0;

        send_part(ends[i % 2], from, length);
        while (done < length) {
            ssize_t got = kind->call(ends[1 - i % 2], bytes, length - done, 0);

            CHECK_RANGE(got, 1, length - done);
            CHECK_BYTES(bytes, from + done, (size_t)got);
            done += (size_t)got;
        }
        from += length;
    }
    close_pair(ends);
}

/* Another process sends while this one reads, in calls of any size. */
static void send_much(struct peer *self, int fd)
{
    send_part(fd, 0, 3000000);
    hear(self);
}

FAMILY(receives_much, receive_kinds)
{
    static uint8_t bytes[100000];
    struct peer peer;
    int fd = start_peer(&peer, true, send_much);

    for (size_t done = 0, length = 1; done < 3000000; length = length * 3 % 99991 + 1) {
        ssize_t got = kind->call(fd, bytes, length, 0);

        CHECK_RANGE(got, 1, length);
        CHECK_BYTES(bytes, done, (size_t)got);
        done += (size_t)got;
    }
    tell(&peer);
    CHECK_INT(kind->call(fd, bytes, 10, 0), 0);
    join_peer(&peer);
}

FAMILY(leaves_what_does_not_fit, receive_kinds)
{
    uint8_t bytes[100];
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 100);
    await_events(ends[1], POLLIN);
    CHECK_INT(kind->call(ends[1], bytes, 30, 0), 30);
    CHECK_BYTES(bytes, 0, 30);
    CHECK_INT(poll_one(ends[1], POLLIN, 0), POLLIN);
    CHECK_INT(kind->call(ends[1], bytes, 100, 0), 70);
    CHECK_BYTES(bytes, 30, 70);
    CHECK_INT(poll_one(ends[1], POLLIN, 10), 0);
}

/* Also if there is something. */
FAMILY(receives_nothing_to_no_room, receive_kinds)
{
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    await_events(ends[1], POLLIN);
    CHECK_INT(kind->call(ends[1], (char[1]){0}, 0, 0), 0);
    receive_part(ends[1], 0, 10);
}

FAMILY(says_that_nothing_is_there, receive_kinds)
{
    uint8_t bytes[100];
    int ends[2];

    open_pair(ends);
    if (kind->takes_flags)
        CHECK_ERROR(kind->call(ends[1], bytes, 100, MSG_DONTWAIT), EAGAIN);
    set_nonblocking(ends[1], true);
    for (unsigned i = 0; i < 20; i++)
        CHECK_ERROR(kind->call(ends[1], bytes, 100, 0), EAGAIN);
    send_part(ends[0], 0, 100);
    await_events(ends[1], POLLIN);
    CHECK_INT(kind->call(ends[1], bytes, 100, 0), 100);
    CHECK_BYTES(bytes, 0, 100);
    CHECK_ERROR(kind->call(ends[1], bytes, 100, 0), EAGAIN);
}

FAMILY(receives_the_end, receive_kinds)
{
    uint8_t bytes[100];
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    await_events(ends[1], POLLIN | POLLRDHUP);
    CHECK_INT(kind->call(ends[1], bytes, 100, 0), 10);
    CHECK_BYTES(bytes, 0, 10);
    for (unsigned i = 0; i < 5; i++)
        CHECK_INT(kind->call(ends[1], bytes, 100, 0), 0);
    if (kind->takes_flags)
        CHECK_INT(kind->call(ends[1], bytes, 100, MSG_DONTWAIT), 0);
}

FAMILY(receives_nothing_by_a_bad_descriptor, receive_kinds)
{
    uint8_t bytes[10];
    int ends[2];

    open_pair(ends);
    close_pair(ends);
    CHECK_ERROR(kind->call(ends[0], bytes, 10, 0), EBADF);
    CHECK_ERROR(kind->call(-1, bytes, 10, 0), EBADF);
}

/* ---- flags --------------------------------------------------------------------------------------------- */

FAMILY(peeks, receive_kinds)
{
    uint8_t bytes[100];
    int ends[2];

    if (!kind->takes_flags)
        return;
    open_pair(ends);
    CHECK_ERROR(kind->call(ends[1], bytes, 100, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    send_part(ends[0], 0, 50);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_INT(kind->call(ends[1], bytes, 100, MSG_PEEK), 50);
        CHECK_BYTES(bytes, 0, 50);
        CHECK_INT(kind->call(ends[1], bytes, 20, MSG_PEEK), 20);
    }
    CHECK_INT(kind->call(ends[1], bytes, 20, 0), 20);
    CHECK_INT(kind->call(ends[1], bytes, 100, MSG_PEEK), 30);
    CHECK_BYTES(bytes, 20, 30);
    receive_part(ends[1], 20, 30);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_INT(kind->call(ends[1], bytes, 100, MSG_PEEK), 0);
}

/* A peek at a connection on which every call until its upgrade is one. */
TEST(peeks_from_the_beginning)
{
    uint8_t bytes[100];
    int ends[2];

    open_fresh(ends);
    for (uint64_t from = 0; from < 1000; from += 20) {
        send_part(ends[0], from, 20);
        CHECK_INT(recv(ends[1], bytes, sizeof bytes, MSG_PEEK), 20);
        CHECK_BYTES(bytes, from, 20);
        receive_part(ends[1], from, 20);
        send_part(ends[1], from, 1);
        receive_part(ends[0], from, 1);
    }
}

static void send_slowly(struct peer *self, int fd)
{
    for (uint64_t from = 0; from < 100; from += 10) {
        send_part(fd, from, 10);
        sleep_ms(3);
    }
    hear(self);
    send_part(fd, 100, 10);
}

FAMILY(waits_for_all, receive_kinds)
{
    uint8_t bytes[100];
    struct peer peer;
    int fd;

    if (!kind->takes_flags)
        return;
    fd = start_peer(&peer, false, send_slowly);
    CHECK_INT(kind->call(fd, bytes, 100, MSG_WAITALL), 100);
    CHECK_BYTES(bytes, 0, 100);
    tell(&peer);
    /* The end comes before all is there. */
    CHECK_INT(kind->call(fd, bytes, 100, MSG_WAITALL), 10);
    CHECK_BYTES(bytes, 100, 10);
    CHECK_INT(kind->call(fd, bytes, 100, MSG_WAITALL), 0);
    join_peer(&peer);
}

TEST(waits_for_more_than_a_buffer_holds)
{
    static uint8_t bytes[3000000];
    struct peer peer;
    int fd = start_peer(&peer, true, send_much);

    CHECK_INT(recv(fd, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
    CHECK_BYTES(bytes, 0, sizeof bytes);
    tell(&peer);
    join_peer(&peer);
}

TEST(waits_for_all_without_waiting)
{
    uint8_t bytes[100];
    int ends[2];

    open_pair(ends);
    CHECK_ERROR(recv(ends[1], bytes, 100, MSG_WAITALL | MSG_DONTWAIT), EAGAIN);
    send_part(ends[0], 0, 30);
    await_events(ends[1], POLLIN);
    CHECK_INT(recv(ends[1], bytes, 100, MSG_WAITALL | MSG_DONTWAIT), 30);
    set_nonblocking(ends[1], true);
    send_part(ends[0], 30, 30);
    await_events(ends[1], POLLIN);
    CHECK_INT(recv(ends[1], bytes, 100, MSG_WAITALL), 30);
    CHECK_BYTES(bytes, 30, 30);
}

TEST(bytes_that_are_only_counted)
{
    uint8_t bytes[100];
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 100);
    await_events(ends[1], POLLIN);
    CHECK_INT(recv(ends[1], NULL, 30, MSG_TRUNC), 30);
    CHECK_INT(recv(ends[1], bytes, 20, MSG_TRUNC), 20);
    receive_part(ends[1], 50, 50);
    CHECK_ERROR(recv(ends[1], bytes, 20, MSG_TRUNC | MSG_DONTWAIT), EAGAIN);
    CHECK_INT(close(ends[0]), 0);
    CHECK_INT(recv(ends[1], NULL, 30, MSG_TRUNC), 0);
}

/* There is none: the calls fail, and the stream goes on. */
TEST(no_urgent_byte)
{
    char byte;
    int ends[2];

    open_pair(ends);
    CHECK_ERROR(recv(ends[1], &byte, 1, MSG_OOB), EINVAL);
    CHECK_ERROR(recv(ends[1], &byte, 1, MSG_OOB | MSG_DONTWAIT), EINVAL);
    CHECK_INT(sockatmark(ends[1]), 0);
    send_part(ends[0], 0, 10);
    receive_part(ends[1], 0, 10);
}

/* One that is sent before anything else, on a connection that then is used as much as others. */
TEST(an_urgent_byte_early)
{
    char byte;
    int ends[2];

    open_fresh(ends);
    CHECK_INT(send(ends[0], "!", 1, MSG_OOB), 1);
    await_events(ends[1], POLLPRI);
    CHECK_INT(recv(ends[1], &byte, 1, MSG_OOB), 1);
    CHECK_INT(byte, '!');
    for (uint64_t from = 0; from < 3000; from += 100) {
        send_part(ends[0], from, 100);
        receive_part(ends[1], from, 100);
        send_part(ends[1], from, 100);
        receive_part(ends[0], from, 100);
    }
    CHECK_INT(send(ends[0], "?", 1, MSG_OOB), 1);
    await_events(ends[1], POLLPRI);
    CHECK_INT(recv(ends[1], &byte, 1, MSG_OOB), 1);
    CHECK_INT(byte, '?');
}

TEST(no_errors_in_the_queue)
{
    char bytes[100];
    struct iovec place = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1};
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    CHECK_ERROR(recvmsg(ends[1], &message, MSG_ERRQUEUE), EAGAIN);
    receive_part(ends[1], 0, 10);
}

/* Room for control messages that do not come. */
TEST(room_for_control_messages)
{
    char bytes[100], control[100];
    struct sockaddr_storage name;
    struct iovec place = {bytes, sizeof bytes};
    struct msghdr message = {&name, sizeof name, &place, 1, control, sizeof control, -1};
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    CHECK_INT(recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC), 10);
    CHECK_INT(message.msg_namelen, 0);
    CHECK_INT(message.msg_controllen, 0);
    CHECK_INT(message.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
    CHECK_BYTES(bytes, 0, 10);
}

TEST(null_buffers_are_refused)
{
    struct iovec place = {NULL, 10};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1};
    char *none = NULL;
    int ends[2];

    __asm__ volatile("" : "+r"(none));
    open_pair(ends);
    send_part(ends[0], 0, 10);
    await_events(ends[1], POLLIN);
    CHECK_ERROR(recv(ends[1], none, 10, 0), EFAULT);
    CHECK_ERROR(read(ends[1], none, 10), EFAULT);
    CHECK_ERROR(readv(ends[1], &place, 1), EFAULT);
    CHECK_ERROR(recvmsg(ends[1], &message, 0), EFAULT);
    CHECK_ERROR(recvmsg(ends[1], (struct msghdr *)none, 0), EFAULT);
    receive_part(ends[1], 0, 10);
}
