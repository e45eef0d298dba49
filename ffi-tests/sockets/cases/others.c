/* Sockets that are not of TCP, and what messages carry beside their bytes: all that is the kernel's. */
#include "cases.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* More than the calls after which a connection of TCP would be upgraded. */
#define TIMES 30

/* A new connection of this process with itself by a Unix socket. */
static void open_unix(int ends[2], int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address;
    int listener = socket(AF_UNIX, type, 0);

    /* The kernel chooses the name. */
    CHECK_INT(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
    CHECK_INT(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    CHECK_INT(listen(listener, 1), 0);
    CHECK((ends[0] = socket(AF_UNIX, type, 0)) >= 0);
    CHECK_INT(connect(ends[0], (struct sockaddr *)&address, length), 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    CHECK_INT(close(listener), 0);
}

/* Two sockets of UDP that are connected to each other. */
static void open_udp(int ends[2], struct sockaddr_in addresses[2])
{
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof addresses[i];

        addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        CHECK((ends[i] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
        CHECK_INT(bind(ends[i], (struct sockaddr *)&addresses[i], length), 0);
        CHECK_INT(getsockname(ends[i], (struct sockaddr *)&addresses[i], &length), 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK_INT(connect(ends[i], (struct sockaddr *)&addresses[1 - i], sizeof addresses[0]), 0);
}

struct received {
    struct msghdr header;
    struct iovec piece;
    char bytes[100], control[256];
    struct sockaddr_storage name;
};

/* A message, with what is beside it. Returns its length. */
static ssize_t receive_message(int fd, struct received *got)
{
    got->piece = (struct iovec){got->bytes, sizeof got->bytes};
    got->header = (struct msghdr){.msg_name = &got->name, .msg_namelen = sizeof got->name, .msg_iov = &got->piece,
                                  .msg_iovlen = 1, .msg_control = got->control, .msg_controllen = sizeof got->control};
    return recvmsg(fd, &got->header, 0);
}

/* The control data of this kind, or NULL. */
static void *beside(struct received *got, int level, int type)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&got->header); part; part = CMSG_NXTHDR(&got->header, part))
        if (part->cmsg_level == level && part->cmsg_type == type)
            return CMSG_DATA(part);
    return NULL;
}

static void send_descriptor(int fd, int handed)
{
    char control[CMSG_SPACE(sizeof handed)] = {0};
    struct iovec piece = {"x", 1};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);

    *part = (struct cmsghdr){CMSG_LEN(sizeof handed), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(part), &handed, sizeof handed);
    CHECK_INT(sendmsg(fd, &header, MSG_NOSIGNAL), 1);
}

TEST(descriptors_come_by_accepted_unix_sockets)
{
    struct received got;
    int ends[2], pipe_ends[2];

    open_unix(ends, SOCK_STREAM);
    for (int i = 0; i < TIMES; i++)
        for (int to = 0; to < 2; to++) {
            int *handed;
            char byte;

            CHECK_INT(pipe(pipe_ends), 0);
            send_descriptor(ends[1 - to], pipe_ends[1]);
            CHECK_INT(close(pipe_ends[1]), 0);
            CHECK_INT(receive_message(ends[to], &got), 1);
            CHECK((handed = beside(&got, SOL_SOCKET, SCM_RIGHTS)) != NULL);
            CHECK_INT(write(*handed, "y", 1), 1);
            CHECK_INT(read(pipe_ends[0], &byte, 1), 1);
            CHECK_INT(close(*handed), 0);
            CHECK_INT(close(pipe_ends[0]), 0);
        }
    close_pair(ends);
}

TEST(accepted_unix_sockets_tell_who_sends)
{
    struct received got;
    int ends[2];

    open_unix(ends, SOCK_STREAM);
    CHECK_INT(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)), 0);
    for (int i = 0; i < TIMES; i++) {
        struct ucred *sender;

        CHECK_INT(send(ends[0], "x", 1, 0), 1);
        CHECK_INT(receive_message(ends[1], &got), 1);
        CHECK((sender = beside(&got, SOL_SOCKET, SCM_CREDENTIALS)) != NULL);
        CHECK_INT(sender->pid, getpid());
    }
    close_pair(ends);
}

TEST(accepted_unix_sockets_keep_messages_apart)
{
    struct received got;
    char long_one[150] = {0};
    int ends[2];

    open_unix(ends, SOCK_SEQPACKET);
    for (int i = 0; i < TIMES; i++) {
        CHECK_INT(send(ends[0], "one", 3, 0), 3);
        CHECK_INT(send(ends[0], long_one, sizeof long_one, 0), sizeof long_one);
        CHECK_INT(receive_message(ends[1], &got), 3);
        CHECK_INT(got.header.msg_flags & MSG_TRUNC, 0);
        CHECK_INT(receive_message(ends[1], &got), sizeof got.bytes);
        CHECK_INT(got.header.msg_flags & MSG_TRUNC, MSG_TRUNC);
        CHECK_INT(send(ends[0], long_one, sizeof long_one, 0), sizeof long_one);
        CHECK_INT(recv(ends[1], got.bytes, 10, MSG_TRUNC), sizeof long_one);
    }
    close_pair(ends);
}

TEST(connected_datagrams_name_their_senders)
{
    struct sockaddr_in addresses[2], from;
    struct received got;
    int ends[2];

    open_udp(ends, addresses);
    for (int i = 0; i < TIMES; i++) {
        socklen_t length = sizeof from;

        /* An empty one is no end. */
        CHECK_INT(send(ends[0], "", 0, 0), 0);
        CHECK_INT(send(ends[0], "datagram", 8, 0), 8);
        CHECK_INT(recvfrom(ends[1], got.bytes, sizeof got.bytes, 0, (struct sockaddr *)&from, &length), 0);
        CHECK_INT(length, sizeof from);
        CHECK_INT(from.sin_port, addresses[0].sin_port);
        CHECK_INT(receive_message(ends[1], &got), 8);
        CHECK_INT(got.header.msg_namelen, sizeof from);
        CHECK_INT(((struct sockaddr_in *)&got.name)->sin_port, addresses[0].sin_port);
        CHECK_INT(send(ends[0], "datagram", 8, 0), 8);
        CHECK_INT(recv(ends[1], got.bytes, 3, MSG_TRUNC), 8);
    }
    close_pair(ends);
}

TEST(connected_datagrams_tell_where_they_arrived)
{
    struct sockaddr_in addresses[2];
    struct received got;
    int ends[2];

    open_udp(ends, addresses);
    CHECK_INT(setsockopt(ends[1], IPPROTO_IP, IP_PKTINFO, &(int){1}, sizeof(int)), 0);
    for (int i = 0; i < TIMES; i++) {
        struct in_pktinfo *arrival;

        CHECK_INT(send(ends[0], "x", 1, 0), 1);
        CHECK_INT(receive_message(ends[1], &got), 1);
        CHECK((arrival = beside(&got, IPPROTO_IP, IP_PKTINFO)) != NULL);
        CHECK_INT(arrival->ipi_addr.s_addr, htonl(INADDR_LOOPBACK));
    }
    close_pair(ends);
}

/* ---- TCP ----------------------------------------------------------------------------------------------- */

static const struct option {
    const char *name;
    int level, option, type;
} options[] = {{"timestamp", SOL_SOCKET, SO_TIMESTAMP, SO_TIMESTAMP},
               {"timestampns", SOL_SOCKET, SO_TIMESTAMPNS, SO_TIMESTAMPNS},
               {"inq", IPPROTO_TCP, TCP_INQ, TCP_CM_INQ}};

static void ask(const struct option *option, int fd)
{
    CHECK_INT(setsockopt(fd, option->level, option->option, &(int){1}, sizeof(int)), 0);
}

/* Round trips, of which each comes with what was asked for, from the first that does on: the kernel begins to take the
 * time of packets a moment after somebody wants it. */
static void use_option(const struct option *option, int fd, int other, bool answers)
{
    struct received got;
    char byte;

    for (int seen = 0, tries = 0; seen < TIMES; tries++) {
        CHECK_INT(send(other, "x", 1, 0), 1);
        CHECK_INT(receive_message(fd, &got), 1);
        CHECK_INT(got.header.msg_namelen, 0);
        if (beside(&got, option->level, option->type)) {
            seen++;
        } else {
            CHECK(seen == 0 && tries < 500);
            sleep_ms(1);
        }
        if (answers) {
            CHECK_INT(send(fd, "y", 1, 0), 1);
            CHECK_INT(recv(other, &byte, 1, 0), 1);
        }
    }
}

FAMILY(bytes_come_with_what_an_option_asks_for, options)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo);

    ask(kind, fd);
    use_option(kind, fd, fd, false);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

FAMILY(bytes_come_with_what_an_option_asked_for_before, options)
{
    int ends[2];

    open_fresh(ends);
    ask(kind, ends[1]);
    use_option(kind, ends[1], ends[0], true);
    close_pair(ends);
}

/* An accepted connection has the options of the socket that listened. */
FAMILY(bytes_come_with_what_a_listener_asks_for, options)
{
    unsigned port;
    int ends[2], listener = open_listener(&port);

    ask(kind, listener);
    ends[0] = connect_to(port);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    CHECK_INT(close(listener), 0);
    use_option(kind, ends[1], ends[0], true);
    close_pair(ends);
}

/* What TCP_INQ says: how many bytes are unread, and 1 at the end. */
static int receive_and_count(int fd, size_t length)
{
    struct received got;
    int *unread;

    got.piece = (struct iovec){got.bytes, length};
    got.header = (struct msghdr){.msg_iov = &got.piece, .msg_iovlen = 1, .msg_control = got.control,
                                 .msg_controllen = CMSG_SPACE(sizeof(int))};
    CHECK(recvmsg(fd, &got.header, 0) >= 0);
    CHECK_INT(got.header.msg_flags, 0);
    CHECK_INT(got.header.msg_controllen, CMSG_SPACE(sizeof(int)));
    CHECK((unread = beside(&got, IPPROTO_TCP, TCP_CM_INQ)) != NULL);
    return *unread;
}

TEST(messages_tell_how_many_bytes_are_unread)
{
    struct received got;
    int ends[2];

    open_pair(ends);
    CHECK_INT(setsockopt(ends[1], IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int)), 0);
    for (int i = 0; i < TIMES; i++) {
        send_part(ends[0], 0, 90);
        await_unread(ends[1], 90);
        CHECK_INT(receive_and_count(ends[1], 50), 40);
        CHECK_INT(receive_and_count(ends[1], 30), 10);
        CHECK_INT(receive_and_count(ends[1], 30), 0);
        send_part(ends[1], 0, 1);
        receive_part(ends[0], 0, 1);
    }
    /* No room for it, or none that is enough. */
    send_part(ends[0], 0, 2);
    got.piece = (struct iovec){got.bytes, 1};
    got.header = (struct msghdr){.msg_iov = &got.piece, .msg_iovlen = 1};
    CHECK_INT(recvmsg(ends[1], &got.header, 0), 1);
    CHECK_INT(got.header.msg_flags & ~MSG_CTRUNC, 0);
    got.header.msg_control = got.control;
    got.header.msg_controllen = 5;
    CHECK_INT(recvmsg(ends[1], &got.header, 0), 1);
    CHECK_INT(got.header.msg_flags, MSG_CTRUNC);
    /* Nobody asks any more. */
    CHECK_INT(setsockopt(ends[1], IPPROTO_TCP, TCP_INQ, &(int){0}, sizeof(int)), 0);
    send_part(ends[0], 0, 1);
    CHECK_INT(receive_message(ends[1], &got), 1);
    CHECK_INT(got.header.msg_controllen, 0);
    CHECK_INT(setsockopt(ends[1], IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int)), 0);
    send_part(ends[0], 0, 10);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    await_events(ends[1], POLLRDHUP);
    CHECK_INT(receive_and_count(ends[1], 10), 1);
    CHECK_INT(receive_and_count(ends[1], 10), 1);
    close_pair(ends);
}
