/* Attaching, and each call that moves bytes or asks for something: by TCP and through shared memory. */
#include "sockets_c.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <netinet/tcp.h>
#include <unistd.h>

static void a_connection_moves(void)
{
    uint64_t before;
    int ends[2];

    open_fresh(ends);
    for (int i = 0; i < 2; i++)
        check_path(ends[i], 0, "not yet");
    upgrade(ends);
    for (int i = 0; i < 2; i++)
        check_path(ends[i], 1, "shared memory");
    before = kernel_received(ends[1]);
    for (uint64_t offset = 0; offset < 1000000; offset += 10000) {
        send_part(ends[0], offset, 10000);
        receive_part(ends[1], offset, 10000);
    }
    /* At most a byte for each part. */
    CHECK_BETWEEN(kernel_received(ends[1]) - before, 0, 100);
    close_pair(ends);
}

static void attaching_again_changes_nothing(void)
{
    int ends[2];

    open_pair(ends);
    CHECK_INT(rs_attach(ends[0]), 0);
    check_path(ends[0], 1, "shared memory");
    send_part(ends[0], 0, 5000);
    CHECK_INT(rs_attach(ends[1]), 0);
    receive_part(ends[1], 0, 5000);
    close_pair(ends);
}

static void a_used_connection_stays_on_tcp(void)
{
    int ends[2];

    open_plain(ends);
    CHECK_INT(send(ends[0], pattern(0, 10), 10, 0), 10);
    CHECK_INT(rs_attach(ends[0]), 0);
    CHECK_INT(rs_attach(ends[1]), 0);
    check_path(ends[0], 0, "it was used before");
    receive_part(ends[1], 0, 10);
    for (uint64_t i = 0; i < 400; i++) {
        send_part(ends[1], i, 1);
        receive_part(ends[0], i, 1);
    }
    check_path(ends[0], 0, "it was used before");
    check_path(ends[1], 0, "the peer does not use rstream");
    CHECK_INT(rs_detach(ends[0]), 0);
    CHECK_ERRNO(rs_path(ends[0], NULL, 0), EINVAL);
    close_pair(ends);
}

static void rules_forbid(void)
{
    int ends[2];

    CHECK_INT(setenv("RSTREAM_SOCKETS", "off", 1), 0);
    open_fresh(ends);
    check_path(ends[0], 0, "the rules keep it on TCP");
    for (uint64_t i = 0; i < 50; i++) {
        send_part(ends[1], i, 1);
        receive_part(ends[0], i, 1);
    }
    check_path(ends[1], 0, "the rules keep it on TCP");
    close_pair(ends);
}

static void a_connect_under_way_is_attached(void)
{
    unsigned port;
    int ends[2], listener = tcp_listen(&port), first;
    struct sockaddr_in address = ipv4_address(port);

    /* The kernel tries again once there is a place for it, a second later. */
    CHECK_SYS(listen(listener, 0));
    first = tcp_connect(port);
    ends[0] = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    CHECK_ERRNO(connect(ends[0], (struct sockaddr *)&address, sizeof address), EINPROGRESS);
    CHECK_INT(polled(ends[0], POLLOUT, 10), 0);
    CHECK_INT(rs_attach(ends[0]), 0);
    CHECK_INT(close((int)CHECK_SYS(accept(listener, NULL, NULL))), 0);
    CHECK_INT(close(first), 0);
    await_polled(ends[0], POLLOUT);
    ends[1] = (int)CHECK_SYS(accept(listener, NULL, NULL));
    CHECK_INT(rs_attach(ends[1]), 0);
    CHECK_INT(fcntl(ends[0], F_SETFL, 0), 0);
    upgrade(ends);
    close_pair(ends);
}

static void a_text_is_cut_to_its_room(void)
{
    char text[8] = "xxxxxxx";
    int ends[2];

    open_pair(ends);
    CHECK_INT(rs_path(ends[0], text, 7), 1);
    CHECK_BYTES(text, "shared\0", 8);
    CHECK_INT(rs_path(ends[0], text, 1), 1);
    CHECK_BYTES(text, "\0hared\0", 8);
    CHECK_ERRNO(rs_path(ends[0], NULL, 1), EFAULT);
    close_pair(ends);
}

/* ---- bytes ---------------------------------------------------------------------------------------------- */

static ssize_t by_send(int fd, const void *bytes, size_t length)
{
    return rs_send(fd, bytes, length, MSG_NOSIGNAL);
}

/* In two pieces. */
static void halve(void *bytes, size_t length, struct iovec pieces[2])
{
    pieces[0] = (struct iovec){bytes, length / 2};
    pieces[1] = (struct iovec){(char *)bytes + length / 2, length - length / 2};
}

static ssize_t by_writev(int fd, const void *bytes, size_t length)
{
    struct iovec pieces[2];

    halve((void *)(uintptr_t)bytes, length, pieces);
    return rs_writev(fd, pieces, 2);
}

static ssize_t by_sendmsg(int fd, const void *bytes, size_t length)
{
    struct iovec pieces[2];
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};

    halve((void *)(uintptr_t)bytes, length, pieces);
    return rs_sendmsg(fd, &message, 0);
}

static ssize_t by_sendfile(int fd, const void *bytes, size_t length)
{
    FILE *file = tmpfile();
    off_t offset = 3;
    ssize_t sent;

    CHECK(file != NULL && fwrite("abc", 1, 3, file) == 3 && fwrite(bytes, 1, length, file) == length);
    CHECK_INT(fflush(file), 0);
    sent = rs_sendfile(fd, fileno(file), &offset, length);
    CHECK_INT(offset, 3 + sent);
    fclose(file);
    return sent;
}

static ssize_t by_recv(int fd, void *bytes, size_t length)
{
    return rs_recv(fd, bytes, length, 0);
}

static ssize_t by_readv(int fd, void *bytes, size_t length)
{
    struct iovec pieces[2];

    halve(bytes, length, pieces);
    return rs_readv(fd, pieces, 2);
}

static ssize_t by_recvmsg(int fd, void *bytes, size_t length)
{
    struct iovec pieces[2];
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};

    halve(bytes, length, pieces);
    return rs_recvmsg(fd, &message, 0);
}

static void each_call_moves_bytes(void)
{
    ssize_t (*const senders[])(int, const void *, size_t) = {by_send, rs_write, by_writev, by_sendmsg, by_sendfile};
    ssize_t (*const receivers[])(int, void *, size_t) = {by_recv, rs_read, by_readv, by_recvmsg};
    uint8_t bytes[3000];
    uint64_t offset = 0;
    int ends[2];

    /* From the first byte on, past the upgrade. */
    open_fresh(ends);
    for (int i = 0; i < 100; i++, offset += sizeof bytes) {
        const int from = i % 2;

        note("call %d and %d, exchange %d", i % 5, i % 4, i);
        CHECK_INT(CHECK_SYS(senders[i % 5](ends[from], pattern(offset, sizeof bytes), sizeof bytes)), sizeof bytes);
        for (size_t done = 0; done < sizeof bytes;)
            done += (size_t)CHECK_SYS(receivers[i % 4](ends[1 - from], bytes + done, sizeof bytes - done));
        CHECK_BYTES(bytes, pattern(offset, sizeof bytes), sizeof bytes);
    }
    check_path(ends[0], 1, "shared memory");
    check_path(ends[1], 1, "shared memory");
    close_pair(ends);
}

static void flags_mean_the_same(void)
{
    uint8_t bytes[100];
    int ends[2], unread;

    open_pair(ends);
    CHECK_ERRNO(rs_recv(ends[1], bytes, 100, MSG_DONTWAIT), EAGAIN);
    send_part(ends[0], 0, 50);
    await_polled(ends[1], POLLIN);
    CHECK_INT(rs_ioctl(ends[1], FIONREAD, &unread), 0);
    CHECK_INT(unread, 50);
    CHECK_INT(rs_recv(ends[1], bytes, 20, MSG_PEEK), 20);
    CHECK_BYTES(bytes, pattern(0, 20), 20);
    CHECK_INT(rs_recv(ends[1], NULL, 10, MSG_TRUNC), 10);
    CHECK_INT(rs_recv(ends[1], bytes, 100, 0), 40);
    CHECK_BYTES(bytes, pattern(10, 40), 40);
    CHECK_ERRNO(rs_recv(ends[1], bytes, 1, MSG_OOB), EINVAL);
    CHECK_ERRNO(rs_recv(ends[1], bytes, 0, MSG_DONTWAIT), EAGAIN);
    close_pair(ends);
}

static void options_mean_the_same(void)
{
    const struct timeval limit = {0, 50000};
    int ends[2], value = 1;
    socklen_t length = sizeof value;
    int64_t begin;
    char byte;

    open_pair(ends);
    CHECK_INT(rs_setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &(int){0}, sizeof(int)), 0);
    CHECK_INT(rs_getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &length), 0);
    CHECK_INT(value, 0);
    CHECK_INT(rs_setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    begin = now_ms();
    CHECK_ERRNO(rs_recv(ends[0], &byte, 1, 0), EAGAIN);
    CHECK_BETWEEN(now_ms() - begin, 45, PATIENCE_MS);
    close_pair(ends);
}

static const struct test tests[] = {
    TEST(a_connection_moves, "an attached connection moves to shared memory, and says so"),
    TEST(attaching_again_changes_nothing, "a connection is attached once"),
    TEST(a_used_connection_stays_on_tcp, "a connection that has carried bytes stays on TCP, and says why"),
    TEST(rules_forbid, "a connection that the rules forbid stays on TCP, and says so"),
    TEST(a_connect_under_way_is_attached, "a socket that connects is attached before it is connected"),
    TEST(a_text_is_cut_to_its_room, "the text of the path is cut to its room"),
    TEST(each_call_moves_bytes, "each call that moves bytes works before, during and after the move"),
    TEST(flags_mean_the_same, "flags and counts mean what they mean on TCP"),
    TEST(options_mean_the_same, "options mean what they mean on TCP"),
};

const struct section rs_calls = SECTION("calls", tests);
