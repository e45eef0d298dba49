/* Wrong arguments: the answers are the C library's, and nothing else happens. */
#include "sockets_c.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* A call by both, with a descriptor that is not attached. */
struct both {
    const char *name;
    long (*ours)(int fd);
    long (*theirs)(int fd);
};

static char room[16];
static int number;
static socklen_t size;
static struct iovec *piece(void)
{
    static struct iovec one;

    one = (struct iovec){room, sizeof room};
    return &one;
}

static struct msghdr *message(void)
{
    static struct msghdr one;

    one = (struct msghdr){.msg_iov = piece(), .msg_iovlen = 1};
    return &one;
}

static struct epoll_event *event(void)
{
    static struct epoll_event one;

    one = (struct epoll_event){.events = EPOLLIN};
    return &one;
}

static socklen_t *size_of_number(void)
{
    size = sizeof number;
    return &size;
}

static struct pollfd *one_of(int fd)
{
    static struct pollfd one;

    one = (struct pollfd){fd, POLLIN, 0};
    return &one;
}

/* Both functions of a name, with the same arguments. */
#define BOTH(name, arguments)                                                                       \
    static long ours_##name(int fd) { (void)fd; return rs_##name arguments; }                       \
    static long theirs_##name(int fd) { (void)fd; return name arguments; }

#define WAIT_NOT MSG_DONTWAIT
BOTH(recv, (fd, room, sizeof room, WAIT_NOT))
BOTH(recvmsg, (fd, message(), WAIT_NOT))
BOTH(send, (fd, room, 1, WAIT_NOT | MSG_NOSIGNAL))
BOTH(sendmsg, (fd, message(), WAIT_NOT | MSG_NOSIGNAL))
BOTH(read, (fd, room, sizeof room))
BOTH(readv, (fd, piece(), 1))
BOTH(write, (fd, room, 1))
BOTH(writev, (fd, piece(), 1))
BOTH(sendfile, (fd, -1, NULL, 1))
BOTH(shutdown, (fd, SHUT_RDWR + 1))
BOTH(setsockopt, (fd, SOL_SOCKET, SO_REUSEADDR, &number, sizeof number))
BOTH(getsockopt, (fd, SOL_SOCKET, SO_ERROR, &number, size_of_number()))
BOTH(ioctl, (fd, FIONREAD, &number))
BOTH(poll, (one_of(fd), 1, 0))
BOTH(ppoll, (one_of(fd), 1, &(struct timespec){0, 0}, NULL))
BOTH(epoll_ctl, (fd, EPOLL_CTL_ADD, 0, event()))
BOTH(epoll_wait, (fd, event(), 1, 0))
BOTH(epoll_pwait, (fd, event(), 1, 0, NULL))

#define PAIR(name) {#name, ours_##name, theirs_##name}

static const struct both calls[] = {
    PAIR(recv), PAIR(recvmsg), PAIR(send), PAIR(sendmsg), PAIR(read), PAIR(readv), PAIR(write), PAIR(writev),
    PAIR(sendfile), PAIR(shutdown), PAIR(setsockopt), PAIR(getsockopt), PAIR(ioctl), PAIR(poll), PAIR(ppoll),
    PAIR(epoll_ctl), PAIR(epoll_wait), PAIR(epoll_pwait),
};

/* The answers are the same for a descriptor that is none of an attached connection. */
static void check_same(const char *what, int fd)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        long got, wanted;
        int got_error, wanted_error;

        note("%s of %s", calls[i].name, what);
        errno = 0;
        wanted = calls[i].theirs(fd);
        wanted_error = errno;
        errno = 0;
        got = calls[i].ours(fd);
        got_error = errno;
        CHECK_INT(got, wanted);
        CHECK_INT(got_error, wanted_error);
    }
}

static int closed(void)
{
    /* A number that is not used again soon. */
    int fd = (int)CHECK_SYS(fcntl(0, F_DUPFD, 500));

    CHECK_INT(close(fd), 0);
    return fd;
}

static void foreign_descriptors_are_the_c_librarys(void)
{
    int way[2], ends[2], fresh = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM, 0));

    CHECK_SYS(pipe2(way, O_NONBLOCK));
    open_plain(ends);
    CHECK_INT(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    check_same("-1", -1);
    check_same("the greatest number", INT32_MAX);
    check_same("the least number", INT32_MIN);
    check_same("a closed descriptor", closed());
    check_same("a pipe", way[0]);
    check_same("the other end of a pipe", way[1]);
    check_same("a socket that is not connected", fresh);
    check_same("a socket of UDP", (int)CHECK_SYS(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)));
    check_same("a connection that is not attached", ends[0]);
}

static void closed_descriptors_are_refused(void)
{
    int ends[2];

    open_pair(ends);
    close_pair(ends);
    check_same("a descriptor that rs_close has closed", ends[0]);
}

static void other_descriptors_are_not_attached(void)
{
    unsigned port;
    int way[2];
    const int udp = (int)CHECK_SYS(socket(AF_INET, SOCK_DGRAM, 0));
    const int fresh = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM, 0));
    const int listener = tcp_listen(&port), none = closed();
    const struct {
        int fd, attach_error, other_error;
    } cases[] = {
        {-1, EBADF, EBADF}, {INT32_MIN, EBADF, EBADF}, {INT32_MAX, EBADF, EBADF}, {none, EBADF, EBADF},
        {0, ENOTSOCK, ENOTSOCK}, {(int)CHECK_SYS(rs_epoll_create1(0)), ENOTSOCK, ENOTSOCK},
        {udp, EPROTONOSUPPORT, EINVAL}, {fresh, ENOTCONN, EINVAL}, {listener, ENOTCONN, EINVAL},
    };

    CHECK_SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
    CHECK_ERRNO(rs_attach(way[0]), EPROTONOSUPPORT);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        note("descriptor %d", cases[i].fd);
        CHECK_ERRNO(rs_attach(cases[i].fd), cases[i].attach_error);
        CHECK_ERRNO(rs_detach(cases[i].fd), cases[i].other_error);
        CHECK_ERRNO(rs_path(cases[i].fd, room, sizeof room), cases[i].other_error);
    }
    CHECK_ERRNO(rs_close(-1), EBADF);
    CHECK_ERRNO(rs_close(none), EBADF);
    CHECK_ERRNO(rs_dup(-1), EBADF);
    CHECK_ERRNO(rs_epoll_create1(~0), EINVAL);
}

static void null_pointers_are_refused(void)
{
    void *volatile nothing = NULL;
    fd_set in;
    int ends[2], way[2], set = (int)CHECK_SYS(rs_epoll_create1(0));

    open_pair(ends);
    for (int i = 0; i < 2; i++) {
        const int fd = ends[i];

        send_part(ends[1 - i], 0, 10);
        await_polled(fd, POLLIN);
        CHECK_ERRNO(rs_recv(fd, nothing, 10, 0), EFAULT);
        CHECK_ERRNO(rs_read(fd, nothing, 10), EFAULT);
        CHECK_ERRNO(rs_readv(fd, nothing, 1), EFAULT);
        CHECK_ERRNO(rs_recvmsg(fd, nothing, 0), EFAULT);
        CHECK_ERRNO(rs_recvmsg(fd, &(struct msghdr){.msg_iovlen = 1}, 0), EFAULT);
        CHECK_ERRNO(rs_send(fd, nothing, 10, 0), EFAULT);
        CHECK_ERRNO(rs_write(fd, nothing, 10), EFAULT);
        CHECK_ERRNO(rs_writev(fd, nothing, 1), EFAULT);
        CHECK_ERRNO(rs_sendmsg(fd, nothing, 0), EFAULT);
        CHECK_ERRNO(rs_sendmsg(fd, &(struct msghdr){.msg_iovlen = 1}, 0), EFAULT);
        CHECK_ERRNO(rs_ioctl(fd, FIONREAD, nothing), EFAULT);
        CHECK_ERRNO(rs_getsockopt(fd, SOL_SOCKET, SO_ERROR, nothing, nothing), EFAULT);
        CHECK_ERRNO(rs_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, nothing, sizeof(int)), EFAULT);
        CHECK_ERRNO(rs_epoll_ctl(set, EPOLL_CTL_ADD, fd, nothing), EFAULT);
        /* Nothing was lost. */
        receive_part(fd, 0, 10);
    }
    CHECK_ERRNO(rs_poll(nothing, 1, 0), EFAULT);
    /* The kernel looks at the place once there is something for it. */
    CHECK_SYS(pipe(way));
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, way[0], event()), 0);
    CHECK_INT(write(way[1], "x", 1), 1);
    CHECK_ERRNO(rs_epoll_wait(set, nothing, 1, 0), EFAULT);
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    CHECK_INT(rs_select(0, nothing, nothing, nothing, &(struct timeval){0, 0}), 0);
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

static void numbers_out_of_range_are_refused(void)
{
    struct epoll_event events[1];
    int ends[2], set = (int)CHECK_SYS(rs_epoll_create1(0));
    fd_set in;

    open_pair(ends);
    for (int i = 0; i < 2; i++) {
        CHECK_ERRNO(rs_readv(ends[i], piece(), -1), EINVAL);
        CHECK_ERRNO(rs_writev(ends[i], piece(), -1), EINVAL);
        CHECK_ERRNO(rs_writev(ends[i], piece(), 1025), EINVAL);
        CHECK_ERRNO(rs_sendmsg(ends[i], &(struct msghdr){.msg_iov = piece(), .msg_iovlen = 1025}, 0), EMSGSIZE);
        CHECK_ERRNO(rs_shutdown(ends[i], 3), EINVAL);
    }
    CHECK_ERRNO(rs_ppoll(one_of(ends[0]), 1, &(struct timespec){0, 1000000000}, NULL), EINVAL);
    CHECK_ERRNO(rs_epoll_wait(set, events, 0, 0), EINVAL);
    CHECK_ERRNO(rs_epoll_wait(set, events, -1, 0), EINVAL);
    CHECK_ERRNO(rs_epoll_ctl(set, 77, ends[0], events), EINVAL);
    CHECK_ERRNO(rs_epoll_ctl(set, EPOLL_CTL_MOD, ends[0], event()), ENOENT);
    CHECK_ERRNO(rs_epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL), ENOENT);
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, ends[0], event()), 0);
    CHECK_ERRNO(rs_epoll_ctl(set, EPOLL_CTL_ADD, ends[0], event()), EEXIST);
    CHECK_ERRNO(rs_epoll_ctl(set, EPOLL_CTL_ADD, set, event()), EINVAL);
    CHECK_ERRNO(rs_epoll_ctl(ends[1], EPOLL_CTL_ADD, ends[0], event()), EINVAL);
    FD_ZERO(&in);
    CHECK_ERRNO(rs_select(-1, &in, NULL, NULL, NULL), EINVAL);
    CHECK_INT(rs_close(set), 0);
    close_pair(ends);
}

static const struct test tests[] = {
    TEST(foreign_descriptors_are_the_c_librarys, "what is not attached gets the C library's answers"),
    TEST(closed_descriptors_are_refused, "a descriptor that was closed is none"),
    TEST(other_descriptors_are_not_attached, "only a connection of TCP can be attached"),
    TEST(null_pointers_are_refused, "null pointers are refused, and nothing is lost"),
    TEST(numbers_out_of_range_are_refused, "numbers out of range are refused"),
};

const struct section rs_misuse = SECTION("misuse", tests);
