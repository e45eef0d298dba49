/* The kinds of calls that send and receive. */
#include "cases.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* The checked variants, which the C library calls for fortified programs. */
ssize_t __read_chk(int fd, void *bytes, size_t length, size_t room);
ssize_t __recv_chk(int fd, void *bytes, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *bytes, size_t length, size_t room, int flags, struct sockaddr *from,
                       socklen_t *from_room);

/* The bytes in three places, one of them empty. */
static void split(struct iovec places[3], const void *bytes, size_t length)
{
    char *first = (char *)(uintptr_t)bytes;

    places[0] = (struct iovec){first, length / 3};
    places[1] = (struct iovec){first + length / 3, 0};
    places[2] = (struct iovec){first + length / 3, length - length / 3};
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static ssize_t by_write(int fd, const void *bytes, size_t length, int flags)
{
    (void)flags;
    return write(fd, bytes, length);
}

static ssize_t by_writev(int fd, const void *bytes, size_t length, int flags)
{
    struct iovec places[3];

    (void)flags;
    split(places, bytes, length);
    return writev(fd, places, 3);
}

static ssize_t by_send(int fd, const void *bytes, size_t length, int flags)
{
    return send(fd, bytes, length, flags);
}

static ssize_t by_sendto(int fd, const void *bytes, size_t length, int flags)
{
    return sendto(fd, bytes, length, flags, NULL, 0);
}

static ssize_t by_sendmsg(int fd, const void *bytes, size_t length, int flags)
{
    struct iovec places[3];
    struct msghdr message = {.msg_iov = places, .msg_iovlen = 3};

    split(places, bytes, length);
    return sendmsg(fd, &message, flags);
}

/* One message, so that it returns as the others do. */
static ssize_t by_sendmmsg(int fd, const void *bytes, size_t length, int flags)
{
    struct iovec places[3];
    struct mmsghdr message = {.msg_hdr = {.msg_iov = places, .msg_iovlen = 3}};
    int sent;

    split(places, bytes, length);
    sent = sendmmsg(fd, &message, 1, flags);
    return sent == 1 ? (ssize_t)message.msg_len : sent;
}

static ssize_t by_pwritev2(int fd, const void *bytes, size_t length, int flags)
{
    struct iovec places[3];

    (void)flags;
    split(places, bytes, length);
    return pwritev2(fd, places, 3, -1, 0);
}

/* A file in memory with these bytes before its position, if they are not at its start. */
static int make_file(const void *bytes, size_t length)
{
    int file = memfd_create("case", MFD_CLOEXEC);

    CHECK(file >= 0);
    CHECK_INT(pwrite(file, bytes, length, 0), length);
    return file;
}

static ssize_t by_sendfile(int fd, const void *bytes, size_t length, int flags)
{
    int file = make_file(bytes, length);
    ssize_t sent = sendfile(fd, file, NULL, length);
    int error = errno;

    (void)flags;
    CHECK_INT(lseek(file, 0, SEEK_CUR), sent < 0 ? 0 : sent);
    close(file);
    errno = error;
    return sent;
}

static ssize_t by_sendfile64(int fd, const void *bytes, size_t length, int flags)
{
    int file = make_file(bytes, length);
    off64_t offset = 0;
    ssize_t sent = sendfile64(fd, file, &offset, length);
    int error = errno;

    (void)flags;
    CHECK_INT(offset, sent < 0 ? 0 : sent);
    CHECK_INT(lseek(file, 0, SEEK_CUR), 0);
    close(file);
    errno = error;
    return sent;
}

static ssize_t by_splice(int fd, const void *bytes, size_t length, int flags)
{
    ssize_t sent;
    int ends[2], error;

    (void)flags;
    CHECK_INT(pipe(ends), 0);
    CHECK(fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) >= (int)length);
    CHECK_INT(write(ends[1], bytes, length), length);
    sent = splice(ends[0], NULL, fd, NULL, length, 0);
    error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return sent;
}

static ssize_t by_writev_of_many(int fd, const void *bytes, size_t length, int flags)
{
    enum { MANY = 1000 };
    struct iovec places[MANY];

    (void)flags;
    for (size_t i = 0; i < MANY; i++) {
        size_t from = length * i / MANY, end = length * (i + 1) / MANY;

        places[i] = (struct iovec){(char *)(uintptr_t)bytes + from, end - from};
    }
    return writev(fd, places, MANY);
}

const struct send_kind send_kinds[11] = {
    {"write", by_write, false, false},
    {"writev", by_writev, false, false},
    {"send", by_send, true, false},
    {"sendto", by_sendto, true, false},
    {"sendmsg", by_sendmsg, true, false},
    {"sendmmsg", by_sendmmsg, true, false},
    {"pwritev2", by_pwritev2, false, false},
    {"sendfile", by_sendfile, false, true},
    {"sendfile64", by_sendfile64, false, true},
    {"splice", by_splice, false, true},
    {"writev_of_many", by_writev_of_many, false, false},
};

/* ---- receiving ----------------------------------------------------------------------------------------- */

static ssize_t by_read(int fd, void *bytes, size_t length, int flags)
{
    (void)flags;
    return read(fd, bytes, length);
}

static ssize_t by_readv(int fd, void *bytes, size_t length, int flags)
{
    struct iovec places[3];

    (void)flags;
    split(places, bytes, length);
    return readv(fd, places, 3);
}

static ssize_t by_recv(int fd, void *bytes, size_t length, int flags)
{
    return recv(fd, bytes, length, flags);
}

static ssize_t by_recvfrom(int fd, void *bytes, size_t length, int flags)
{
    struct sockaddr_storage from;
    socklen_t room = sizeof from;
    ssize_t got = recvfrom(fd, bytes, length, flags, (struct sockaddr *)&from, &room);

    /* A connected stream names no sender. */
    if (got > 0)
        CHECK_INT(room, 0);
    return got;
}

static ssize_t by_recvmsg(int fd, void *bytes, size_t length, int flags)
{
    struct iovec places[3];
    struct msghdr message = {.msg_iov = places, .msg_iovlen = 3, .msg_flags = 99};
    ssize_t got;

    split(places, bytes, length);
    got = recvmsg(fd, &message, flags);
    if (got >= 0)
        CHECK_INT(message.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
    return got;
}

static ssize_t by_recvmmsg(int fd, void *bytes, size_t length, int flags)
{
    struct iovec places[3];
    struct mmsghdr message = {.msg_hdr = {.msg_iov = places, .msg_iovlen = 3}};
    int got;

    split(places, bytes, length);
    got = recvmmsg(fd, &message, 1, flags, NULL);
    return got == 1 ? (ssize_t)message.msg_len : got;
}

static ssize_t by_preadv2(int fd, void *bytes, size_t length, int flags)
{
    struct iovec places[3];

    (void)flags;
    split(places, bytes, length);
    return preadv2(fd, places, 3, -1, 0);
}

static ssize_t by_read_chk(int fd, void *bytes, size_t length, int flags)
{
    (void)flags;
    return __read_chk(fd, bytes, length, length);
}

static ssize_t by_recv_chk(int fd, void *bytes, size_t length, int flags)
{
    return __recv_chk(fd, bytes, length, length, flags);
}

static ssize_t by_recvfrom_chk(int fd, void *bytes, size_t length, int flags)
{
    return __recvfrom_chk(fd, bytes, length, length, flags, NULL, NULL);
}

static ssize_t by_readv_of_many(int fd, void *bytes, size_t length, int flags)
{
    enum { MANY = 1000 };
    struct iovec places[MANY];

    (void)flags;
    for (size_t i = 0; i < MANY; i++) {
        size_t from = length * i / MANY, end = length * (i + 1) / MANY;

        places[i] = (struct iovec){(char *)bytes + from, end - from};
    }
    return readv(fd, places, MANY);
}

const struct receive_kind receive_kinds[11] = {
    {"read", by_read, false},
    {"readv", by_readv, false},
    {"recv", by_recv, true},
    {"recvfrom", by_recvfrom, true},
    {"recvmsg", by_recvmsg, true},
    {"recvmmsg", by_recvmmsg, true},
    {"preadv2", by_preadv2, false},
    {"read_chk", by_read_chk, false},
    {"recv_chk", by_recv_chk, true},
    {"recvfrom_chk", by_recvfrom_chk, true},
    {"readv_of_many", by_readv_of_many, false},
};
