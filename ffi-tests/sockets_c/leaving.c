/* Back to TCP in the middle of a stream: detaching, and what only TCP does. */
#include "sockets_c.h"

#include <unistd.h>

/* Both ways by the C library's calls. */
static void exchange_plainly(int fd, uint64_t offset, int times)
{
    uint8_t bytes[1000];

    for (int i = 0; i < times; i++, offset += sizeof bytes) {
        CHECK_INT(CHECK_SYS(send(fd, pattern(offset, sizeof bytes), sizeof bytes, 0)), sizeof bytes);
        CHECK_INT(CHECK_SYS(recv(fd, bytes, sizeof bytes, MSG_WAITALL)), sizeof bytes);
        CHECK_BYTES(bytes, pattern(offset, sizeof bytes), sizeof bytes);
    }
}

static void a_detached_connection_goes_on(void)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo);

    exchange(fd, 0, 1000, 40);
    check_path(fd, 1, "shared memory");
    /* Some bytes are on their way. */
    send_part(fd, 40000, 1000);
    CHECK_INT(rs_detach(fd), 0);
    CHECK_ERRNO(rs_path(fd, NULL, 0), EINVAL);
    CHECK_ERRNO(rs_detach(fd), EINVAL);
    receive_part(fd, 40000, 1000);
    exchange_plainly(fd, 41000, 20);
    CHECK_INT(close(fd), 0);
    peer_join(&peer);
}

static void the_peer_of_a_detached_connection_is_told(void)
{
    struct peer peer;
    int fd = start_peer(&peer, false, echo);

    exchange(fd, 0, 1, 40);
    CHECK_INT(rs_setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)), 0);
    check_path(fd, 0, "back on TCP");
    exchange(fd, 40, 1000, 20);
    CHECK_INT(rs_close(fd), 0);
    peer_join(&peer);
}

static void a_new_connection_is_detached_at_once(void)
{
    int ends[2];

    open_fresh(ends);
    send_part(ends[0], 0, 1000);
    CHECK_INT(rs_detach(ends[1]), 0);
    receive_part(ends[1], 0, 1000);
    for (uint64_t i = 0; i < 40; i++) {
        send_part(ends[1], i, 1);
        receive_part(ends[0], i, 1);
        send_part(ends[0], i, 1);
        receive_part(ends[1], i, 1);
    }
    CHECK_INT(rs_path(ends[0], NULL, 0), 0);
    /* It has carried bytes. */
    CHECK_INT(rs_attach(ends[1]), 0);
    check_path(ends[1], 0, "it was used before");
    close_pair(ends);
}

static void a_peer_that_makes_no_call_refuses(void)
{
    int64_t begin = now_ms();
    int ends[2];

    open_pair(ends);
    CHECK_ERRNO(rs_detach(ends[0]), EOPNOTSUPP);
    CHECK_BETWEEN(now_ms() - begin, 950, PATIENCE_MS);
    check_path(ends[0], 1, "shared memory");
    send_part(ends[0], 0, 5000);
    receive_part(ends[1], 0, 5000);
    close_pair(ends);
}

static void sets_keep_a_detached_descriptor(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    struct peer peer;
    int fd = start_peer(&peer, true, echo), set = (int)CHECK_SYS(rs_epoll_create1(0));
    uint8_t byte;

    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    exchange(fd, 0, 1, 40);
    check_path(fd, 1, "shared memory");
    CHECK_INT(rs_epoll_wait(set, &event, 1, 10), 0);
    CHECK_INT(rs_detach(fd), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_INT(rs_epoll_wait(set, &event, 1, 0), 0);
        CHECK_INT(CHECK_SYS(send(fd, "x", 1, 0)), 1);
        event.data.u64 = 0;
        CHECK_INT(rs_epoll_wait(set, &event, 1, -1), 1);
        CHECK_INT(event.data.u64, 77);
        CHECK_INT(event.events, EPOLLIN);
        CHECK_INT(CHECK_SYS(recv(fd, &byte, 1, 0)), 1);
    }
    /* The kernel's set has it as any other. */
    CHECK_INT(CHECK_SYS(send(fd, "x", 1, 0)), 1);
    CHECK_INT(epoll_wait(set, &event, 1, -1), 1);
    CHECK_INT(event.data.u64, 77);
    CHECK_INT(CHECK_SYS(recv(fd, &byte, 1, 0)), 1);
    event = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 78};
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), 0);
    CHECK_INT(rs_epoll_wait(set, &event, 1, -1), 1);
    CHECK_INT(event.data.u64, 78);
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), 0);
    CHECK_INT(rs_epoll_wait(set, &event, 1, 0), 0);
    CHECK_INT(rs_close(set), 0);
    CHECK_INT(close(fd), 0);
    peer_join(&peer);
}

/* A descriptor that goes to another process, here to this one. */
static void a_descriptor_that_is_sent_goes_back(void)
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec piece = {"x", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    struct peer peer;
    int fd = start_peer(&peer, false, echo), way[2], handed;

    exchange(fd, 0, 1, 40);
    CHECK_SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    CHECK_INT(CHECK_SYS(rs_sendmsg(way[0], &message, 0)), 1);
    piece.iov_base = &byte;
    CHECK_INT(CHECK_SYS(recvmsg(way[1], &message, 0)), 1);
    memcpy(&handed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof handed);
    CHECK_INT(rs_close(fd), 0);
    exchange_plainly(handed, 40, 20);
    CHECK_INT(close(handed), 0);
    peer_join(&peer);
}

static const struct test tests[] = {
    TEST(a_detached_connection_goes_on, "a detached connection goes on by the C library's calls, and loses no byte"),
    TEST(the_peer_of_a_detached_connection_is_told, "an option that needs TCP takes both ends back to it"),
    TEST(a_new_connection_is_detached_at_once, "a connection that is not upgraded is detached at once"),
    TEST(a_peer_that_makes_no_call_refuses, "a connection whose peer makes no call stays attached, and goes on"),
    TEST(sets_keep_a_detached_descriptor, "sets report a detached descriptor with the program's data"),
    TEST(a_descriptor_that_is_sent_goes_back, "a descriptor that is sent to another process goes back to TCP"),
};

const struct section rs_leaving = SECTION("leaving", tests);
