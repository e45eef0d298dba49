/* Steps that move bytes. */
#include "transcripts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static uint8_t bytes[2 * ROOM];

uint8_t value(uint64_t position)
{
    return (uint8_t)(position * 0x9e3779b9u >> 11);
}

static void fill_in(uint8_t *place, uint64_t position, size_t length)
{
    for (size_t i = 0; i < length; i++)
        place[i] = value(position + i);
}

/* FNV-1a, which can go on with a sum. */
static uint32_t add_to_sum(uint32_t sum, const uint8_t *place, size_t length)
{
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ place[i]) * 16777619u;
    return sum;
}

enum { NO_BYTES = 0x811c9dc5 };

uint32_t checksum(const uint8_t *place, size_t length)
{
    return add_to_sum(NO_BYTES, place, length);
}

/* ---- sending --------------------------------------------------------------------------------------------- */

static ssize_t by_write(int fd, size_t length, int flags)
{
    (void)flags;
    return write(fd, bytes, length);
}

static ssize_t by_writev(int fd, size_t length, int flags)
{
    (void)flags;
    return writev(fd, (struct iovec[]){{bytes, length / 3}, {NULL, 0}, {bytes + length / 3, length - length / 3}}, 3);
}

static ssize_t by_send(int fd, size_t length, int flags)
{
    return send(fd, bytes, length, flags);
}

static ssize_t by_sendto(int fd, size_t length, int flags)
{
    return sendto(fd, bytes, length, flags, NULL, 0);
}

static ssize_t by_sendmsg(int fd, size_t length, int flags)
{
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};

    return sendmsg(fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, flags);
}

static ssize_t by_sendmmsg(int fd, size_t length, int flags)
{
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    struct mmsghdr messages[2] = {{{.msg_iov = &parts[0], .msg_iovlen = 1}, 0}, {{.msg_iov = &parts[1], .msg_iovlen = 1}, 0}};
    int count = sendmmsg(fd, messages, 2, flags);

    return count < 0 ? count : (ssize_t)messages[0].msg_len + (count > 1 ? (ssize_t)messages[1].msg_len : 0);
}

/* The last byte of it goes by itself, so that nothing is held back. */
static ssize_t by_more(int fd, size_t length, int flags)
{
    ssize_t first = send(fd, bytes, length - 1, flags | MSG_MORE), last = send(fd, bytes + length - 1, 1, flags);

    return first < 0 ? first : last < 0 ? last : first + last;
}

static ssize_t by_sendfile(int fd, size_t length, int flags)
{
    int file = memfd_create("bytes", MFD_CLOEXEC);
    off_t offset = 0;
    ssize_t sent;

    (void)flags;
    REQUIRE(pwrite(file, bytes, length, 0) == (ssize_t)length);
    sent = sendfile(fd, file, &offset, length);
    REQUIRE(offset == (sent > 0 ? sent : 0));
    close(file);
    return sent;
}

static ssize_t by_splice(int fd, size_t length, int flags)
{
    int ends[2], error;
    ssize_t sent;

    (void)flags;
    REQUIRE(pipe(ends) == 0 && write(ends[1], bytes, length) == (ssize_t)length);
    sent = splice(ends[0], NULL, fd, NULL, length, 0);
    error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return sent;
}

void do_send(const struct step *step)
{
    static ssize_t (*const ways[])(int fd, size_t length, int flags) = {
        by_write, by_writev, by_send, by_sendto, by_sendmsg, by_sendmmsg, by_more, by_sendfile, by_splice,
    };
    uint64_t variant = step->variant;
    /* Of two calls the answer to the first, a reset, may come before the second. */
    unsigned way = step->is_alone ? 2 : choose(&variant, sizeof ways / sizeof ways[0]);
    int flags = (choose(&variant, 2) ? MSG_NOSIGNAL : 0) | (choose(&variant, 2) ? MSG_DONTWAIT : 0);
    ssize_t sent;

    fill_in(bytes, step->position, step->length);
    sent = ways[way](any_fd(step), step->length, flags);
    note(step, "way %u, %zu bytes, flags %#x: %s", way, step->length, (unsigned)flags, returned(sent));
    if (sent > 0 && step->is_alone)
        await_reset(step->connection);
}

void send_all(const struct step *step, uint64_t position, size_t length, size_t longest)
{
    uint8_t *all = malloc(length);

    fill_in(all, position, length);
    for (size_t done = 0; done < length;) {
        size_t part = length - done < longest ? length - done : longest;
        ssize_t sent = send(any_fd(step), all + done, part, MSG_NOSIGNAL);

        if (sent < 0 && errno == EAGAIN)
            REQUIRE(poll(&(struct pollfd){self.fds[step->connection][0], POLLOUT, 0}, 1, 5000) == 1);
        else
            REQUIRE(sent > 0);
        done += sent > 0 ? (size_t)sent : 0;
    }
    free(all);
}

/* ---- receiving ------------------------------------------------------------------------------------------- */

static ssize_t by_read(int fd, size_t length, int flags)
{
    return flags == 0 ? read(fd, bytes, length) : recv(fd, bytes, length, flags);
}

static ssize_t by_readv(int fd, size_t length, int flags)
{
    struct iovec parts[3] = {{bytes, length / 4}, {NULL, 0}, {bytes + length / 4, length - length / 4}};

    return flags == 0 ? readv(fd, parts, 3) : recvmsg(fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 3}, flags);
}

static ssize_t by_recv(int fd, size_t length, int flags)
{
    return recv(fd, bytes, length, flags);
}

static ssize_t by_recvfrom(int fd, size_t length, int flags)
{
    struct sockaddr_storage from;
    socklen_t room = sizeof from;

    return recvfrom(fd, bytes, length, flags, (struct sockaddr *)&from, &room);
}

static ssize_t by_recvmsg(int fd, size_t length, int flags)
{
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};

    return recvmsg(fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 2}, flags);
}

static ssize_t by_recvmmsg(int fd, size_t length, int flags)
{
    struct iovec parts[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    struct mmsghdr messages[2] = {{{.msg_iov = &parts[0], .msg_iovlen = 1}, 0}, {{.msg_iov = &parts[1], .msg_iovlen = 1}, 0}};
    int count = recvmmsg(fd, messages, 2, (flags & ~MSG_WAITALL) | MSG_WAITFORONE, NULL);

    return count < 0 ? count : (ssize_t)messages[0].msg_len + (count > 1 ? (ssize_t)messages[1].msg_len : 0);
}

/* With the library, calls that found nothing again and again look seldom at the kernel, which knows of a reset. */
enum { OFTEN = 600 };

void do_receive(const struct step *step)
{
    static ssize_t (*const ways[])(int fd, size_t length, int flags) = {
        by_read, by_readv, by_recv, by_recvfrom, by_recvmsg, by_recvmmsg,
    };
    uint64_t variant = step->variant;
    int flags = choose(&variant, 3) == 0 ? MSG_PEEK : 0;
    unsigned way = choose(&variant, sizeof ways / sizeof ways[0]), calls = 0;
    ssize_t got;

    if (choose(&variant, 2) || !step->may_wait)
        flags |= MSG_DONTWAIT;
    if (choose(&variant, 4) == 0 && step->there >= step->length)
        flags |= MSG_WAITALL;
    do
        got = ways[way](any_fd(step), step->length, flags);
    while (got < 0 && errno == EAGAIN && step->is_alone && calls++ < OFTEN);
    note(step, "way %u, %zu bytes, flags %#x: %s, sum %08x", way, step->length, (unsigned)flags, returned(got),
         checksum(bytes, got > 0 ? (size_t)got : 0));
}

static uint32_t receive_all(const struct step *step, size_t length, size_t longest)
{
    uint8_t *part = malloc(longest);
    uint32_t sum = NO_BYTES;

    while (length > 0) {
        int fd = self.fds[step->connection][0];
        ssize_t got = recv(fd, part, length < longest ? length : longest, longest % 2 ? MSG_WAITALL : 0);

        if (got < 0 && errno == EAGAIN)
            REQUIRE(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000) == 1);
        else
            REQUIRE(got > 0);
        if (got > 0) {
            sum = add_to_sum(sum, part, (size_t)got);
            length -= (size_t)got;
        }
    }
    free(part);
    return sum;
}

void do_drain(const struct step *step)
{
    uint32_t sum = NO_BYTES;
    size_t length = 0;
    unsigned calls = 0;
    ssize_t got;

    do {
        got = recv(self.fds[step->connection][0], bytes, sizeof bytes, 0);
        sum = add_to_sum(sum, bytes, got > 0 ? (size_t)got : 0);
        length += got > 0 ? (size_t)got : 0;
    } while (got > 0 || (got < 0 && errno == EAGAIN && calls++ < OFTEN));
    note(step, "%zu bytes, sum %08x, then %s", length, sum, returned(got));
    do_close(step);
}

/* ---- both at once ---------------------------------------------------------------------------------------- */

struct reading {
    const struct step *step;
    size_t length, longest;
    uint32_t sum;
};

static void *read_in_thread(void *argument)
{
    struct reading *reading = argument;

    reading->sum = receive_all(reading->step, reading->length, reading->longest);
    return NULL;
}

/* Each end sends, while a thread of it receives. */
void do_talk(const struct step *step)
{
    static const size_t pieces[] = {64, 1001, 5000, 65537};
    bool is_first = step->end == self.end;
    uint64_t variant = is_first ? step->variant : step->variant >> 32;
    size_t sends = is_first ? step->length : step->other;
    struct reading reading = {step, is_first ? step->there + step->other : step->others_there + step->length, 0, 0};
    pthread_t thread;

    reading.longest = pieces[choose(&variant, 4)];
    REQUIRE(pthread_create(&thread, NULL, read_in_thread, &reading) == 0);
    if (choose(&variant, 2))
        usleep(choose(&variant, 3) * 100);
    /* Small pieces take long. */
    send_all(step, is_first ? step->position : step->others_position, sends, pieces[choose(&variant, 4)] + sends / 100);
    REQUIRE(pthread_join(thread, NULL) == 0);
    note(step, "sent %zu, received %zu, sum %08x", sends, reading.length, reading.sum);
}

/* As much as goes without waiting, which the other end reads; then there is room again. */
void do_fill(const struct step *step)
{
    static uint8_t piece[5000];
    int fd = any_fd(step);
    uint64_t sent = 0;
    ssize_t length;

    if (step->end != self.end) {
        sent = take_number();
        for (uint64_t position = 0; position < sent; position += (uint64_t)length) {
            length = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
            REQUIRE(length > 0 || errno == EAGAIN);
            length = length > 0 ? length : 0;
            for (ssize_t i = 0; i < length; i++)
                REQUIRE(piece[i] == value(position + (uint64_t)i));
        }
        note(step, "as it was sent");
        return;
    }
    do {
        fill_in(piece, sent, sizeof piece);
        length = send(fd, piece, sizeof piece, MSG_DONTWAIT);
        sent += length > 0 ? (uint64_t)length : 0;
    } while (length > 0);
    note(step, "until %s", returned(length));
    give_turn(sent);
    note(step, "room: %d", poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 5000));
}
