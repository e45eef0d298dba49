/* Calls that send: counts, errors and signals. */
#include "cases.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* From the first byte of a connection on, past the calls at which it is upgraded. */
FAMILY(sends_bytes_in_order, send_kinds)
{
    static const size_t lengths[] = {1, 2, 100, 4095, 4096, 1, 9000, 3, 20000, 1, 60000, 7};
    uint8_t bytes[60000];
    uint64_t from = 0;
    int ends[2];

    open_fresh(ends);
    for (size_t i = 0; i < 4 * sizeof lengths / sizeof *lengths; i++) {
        size_t length = lengths[i % (sizeof lengths / sizeof *lengths)];

        fill(bytes, from, length);
        CHECK_INT(kind->call(ends[i % 2], bytes, length, 0), length);
        receive_part(ends[1 - i % 2], from, length);
        from += length;
    }
    close_pair(ends);
}

/* One call moves more than any buffer holds, while another process reads. */
static void read_all(struct peer *self, int fd)
{
    CHECK_INT(receive_to_end(fd, 0), 1 << 20);
    tell(self);
}

FAMILY(sends_much_by_one_call, send_kinds)
{
    uint8_t *bytes = malloc(1 << 20);
    struct peer peer;
    int fd = start_peer(&peer, true, read_all);
    size_t done = 0;

    fill(bytes, 0, 1 << 20);
    /* splice() moves what a pipe gives at once. */
    while (done < 1 << 20) {
        ssize_t sent = kind->call(fd, bytes + done, (1 << 20) - done, 0);

        CHECK(sent > 0 && (strcmp(kind->name, "splice") == 0 || sent == 1 << 20));
        done += (size_t)sent;
    }
    CHECK_INT(shutdown(fd, SHUT_WR), 0);
    hear(&peer);
    join_peer(&peer);
}

FAMILY(sends_nothing, send_kinds)
{
    int ends[2];

    open_pair(ends);
    if (strcmp(kind->name, "splice") != 0)
        CHECK_INT(kind->call(ends[0], "", 0, 0), 0);
    CHECK_INT(poll_one(ends[1], 1, 20), 0);
    send_part(ends[0], 0, 10);
    receive_part(ends[1], 0, 10);
}

FAMILY(fails_by_a_bad_descriptor, send_kinds)
{
    int ends[2];

    open_pair(ends);
    /* A number that the call itself does not use again. */
    CHECK_INT(dup2(ends[0], 200), 200);
    CHECK_INT(kind->call(200, "x", 1, 0), 1);
    CHECK_INT(close(200), 0);
    CHECK_ERROR(kind->call(200, "x", 1, 0), EBADF);
    CHECK_ERROR(kind->call(-1, "x", 1, 0), EBADF);
}

/* A full connection, without waiting: nothing is moved, then some, and no byte is lost. */
FAMILY(says_that_it_is_full, send_kinds)
{
    uint8_t bytes[5000];
    size_t sent;
    ssize_t more;
    int ends[2];

    open_pair(ends);
    set_nonblocking(ends[0], true);
    sent = fill_up(ends[0], 0);
    CHECK(sent >= 200000);
    fill(bytes, sent, sizeof bytes);
    CHECK_ERROR(kind->call(ends[0], bytes, sizeof bytes, 0), EAGAIN);
    receive_part(ends[1], 0, sent);
    await_events(ends[0], 4);
    CHECK_RANGE(more = kind->call(ends[0], bytes, sizeof bytes, 0), 1, sizeof bytes);
    receive_part(ends[1], sent, (size_t)more);
}

/* A call that does not wait moves what there is room for. */
FAMILY(moves_a_part_without_waiting, send_kinds)
{
    const size_t much = 900 << 10;
    uint8_t *bytes = malloc(much);
    size_t all = 0;
    ssize_t sent;
    int ends[2];

    open_pair(ends);
    set_nonblocking(ends[0], true);
    fill(bytes, 0, much);
    for (unsigned idle = 0; idle < 5 && all < much; idle++) {
        while (all < much && (sent = kind->call(ends[0], bytes + all, much - all, 0)) > 0)
            all += (size_t)sent;
        CHECK(sent > 0 || errno == EAGAIN);
        sleep_ms(2);
    }
    CHECK_RANGE(all, 200000, much);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_INT(receive_to_end(ends[1], 0), all);
}

FAMILY(raises_a_signal_after_shutdown, send_kinds)
{
    int ends[2];

    open_pair(ends);
    count_signals(SIGPIPE, 0);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_ERROR(kind->call(ends[0], "x", 1, 0), EPIPE);
    CHECK_INT(signals, 1);
    if (kind->takes_flags) {
        CHECK_ERROR(kind->call(ends[0], "x", 1, MSG_NOSIGNAL), EPIPE);
        CHECK_INT(signals, 1);
    }
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
}

FAMILY(raises_a_signal_after_the_peer_closed, send_kinds)
{
    int ends[2];

    open_pair(ends);
    count_signals(SIGPIPE, 0);
    CHECK_INT(close(ends[1]), 0);
    await_events(ends[0], 0x2000 | 1 | 4);
    /* The first is taken, and answered by a reset. */
    CHECK_INT(kind->call(ends[0], "x", 1, 0), 1);
    await_events(ends[0], 0x2000 | 1 | 4 | 8 | 16);
    CHECK_ERROR(kind->call(ends[0], "x", 1, 0), EPIPE);
    CHECK_INT(signals, 1);
}

/* ---- pieces and pointers ------------------------------------------------------------------------------- */

TEST(writev_of_empty_pieces_only)
{
    struct iovec places[3] = {{"", 0}, {NULL, 0}, {"", 0}};
    int ends[2];

    open_pair(ends);
    CHECK_INT(writev(ends[0], places, 3), 0);
    CHECK_INT(writev(ends[0], NULL, 0), 0);
    CHECK_INT(readv(ends[1], places, 3), 0);
    CHECK_INT(poll_one(ends[1], 1, 10), 0);
}

TEST(too_many_pieces_are_refused)
{
    static struct iovec places[1025];
    struct msghdr message = {.msg_iov = places, .msg_iovlen = 1025};
    volatile int negative = -1;
    int ends[2];

    open_pair(ends);
    for (unsigned i = 0; i < 1025; i++)
        places[i] = (struct iovec){"x", 1};
    CHECK_ERROR(writev(ends[0], places, 1025), EINVAL);
    CHECK_ERROR(writev(ends[0], places, negative), EINVAL);
    CHECK_ERROR(readv(ends[0], places, 1025), EINVAL);
    CHECK_ERROR(readv(ends[0], places, negative), EINVAL);
    CHECK_ERROR(sendmsg(ends[0], &message, 0), EMSGSIZE);
    CHECK_ERROR(recvmsg(ends[0], &message, MSG_DONTWAIT), EMSGSIZE);
    CHECK_ERROR(pwritev2(ends[0], places, 1025, -1, 0), EINVAL);
    CHECK_ERROR(preadv2(ends[0], places, 1025, -1, 0), EINVAL);
    CHECK_INT(writev(ends[0], places, 1024), 1024);
    CHECK_INT(poll_one(ends[1], 1, 1000), 1);
}

TEST(offsets_are_refused)
{
    struct iovec place = {(char[1]){"x"}, 1};
    int ends[2];

    open_pair(ends);
    CHECK_ERROR(pwritev2(ends[0], &place, 1, 0, 0), ESPIPE);
    CHECK_ERROR(preadv2(ends[0], &place, 1, 0, 0), ESPIPE);
    CHECK_ERROR(pwrite(ends[0], "x", 1, 0), ESPIPE);
    CHECK_ERROR(pread(ends[0], place.iov_base, 1, 0), ESPIPE);
    CHECK_ERROR(lseek(ends[0], 0, SEEK_SET), ESPIPE);
    CHECK_ERROR(preadv2(ends[0], &place, 1, -1, RWF_NOWAIT), EAGAIN);
}

static const struct way null_ways[] = {{"write", 0}, {"send", 1}, {"writev", 2}, {"sendmsg", 3}};

FAMILY(null_pointers_are_refused, null_ways)
{
    struct iovec places[2] = {{NULL, 10}, {NULL, 5}};
    struct msghdr message = {.msg_iov = places, .msg_iovlen = 2};
    char *none = NULL;
    int ends[2];

    __asm__ volatile("" : "+r"(none));
    open_pair(ends);
    switch (kind->number) {
    case 0: CHECK_ERROR(write(ends[0], none, 10), EFAULT); break;
    case 1: CHECK_ERROR(send(ends[0], none, 10, 0), EFAULT); break;
    case 2:
        CHECK_ERROR(writev(ends[0], places, 2), EFAULT);
        CHECK_ERROR(writev(ends[0], (struct iovec *)none, 2), EFAULT);
        break;
    default:
        CHECK_ERROR(sendmsg(ends[0], &message, 0), EFAULT);
        CHECK_ERROR(sendmsg(ends[0], (struct msghdr *)none, 0), EFAULT);
    }
    send_part(ends[0], 0, 10);
    receive_part(ends[1], 0, 10);
}

/* So many bytes, behind which no memory may be used. */
static char *bytes_before_nothing(size_t length)
{
    char *memory = mmap(NULL, length + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED && mprotect(memory + length, 4096, PROT_NONE) == 0);
    return memory;
}

TEST(memory_that_cannot_be_read)
{
    char *memory = bytes_before_nothing(4096);
    int ends[2];

    open_pair(ends);
    CHECK_ERROR(send(ends[0], memory + 4096, 10, 0), EFAULT);
    send_part(ends[0], 0, 10);
    receive_part(ends[1], 0, 10);
}

TEST(memory_that_cannot_be_written)
{
    char *memory = bytes_before_nothing(4096);
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 10);
    CHECK_INT(poll_one(ends[1], 1, 1000), 1);
    CHECK_ERROR(recv(ends[1], memory + 4096, 10, 0), EFAULT);
    receive_part(ends[1], 0, 10);
}

TEST(pieces_of_which_the_second_cannot_be_read)
{
    char *memory = bytes_before_nothing(4096);
    struct iovec places[2] = {{memory, 10}, {memory + 4096, 10}};
    int ends[2];

    open_pair(ends);
    fill(memory, 0, 10);
    CHECK_ERROR(writev(ends[0], places, 2), EFAULT);
    CHECK_INT(poll_one(ends[1], 1, 20), 0);
    send_part(ends[0], 0, 10);
    receive_part(ends[1], 0, 10);
}

/* What was moved before counts. */
TEST(memory_that_cannot_be_read_further_on)
{
    const size_t length = 204800;
    char *memory = bytes_before_nothing(length);
    ssize_t sent;
    int ends[2];

    open_pair(ends);
    fill(memory, 0, length);
    CHECK_RANGE(sent = send(ends[0], memory, length + 100, 0), 1, length);
    receive_part(ends[1], 0, (size_t)sent);
    CHECK_INT(poll_one(ends[1], 1, 20), 0);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

TEST(several_messages_by_one_call)
{
    char bytes[100], got[100];
    struct iovec out[3] = {{bytes, 10}, {bytes + 10, 20}, {bytes + 30, 70}}, in[2] = {{got, 40}, {got + 40, 60}};
    struct mmsghdr sent[3] = {0}, received[2] = {0};
    int ends[2];

    open_pair(ends);
    fill(bytes, 0, sizeof bytes);
    for (unsigned i = 0; i < 3; i++)
        sent[i].msg_hdr = (struct msghdr){.msg_iov = &out[i], .msg_iovlen = 1};
    for (unsigned i = 0; i < 2; i++)
        received[i].msg_hdr = (struct msghdr){.msg_iov = &in[i], .msg_iovlen = 1};
    CHECK_INT(sendmmsg(ends[0], sent, 3, 0), 3);
    CHECK_INT(sent[0].msg_len, 10);
    CHECK_INT(sent[1].msg_len, 20);
    CHECK_INT(sent[2].msg_len, 70);
    while (recv(ends[1], got, sizeof got, MSG_PEEK) < 100)
        sleep_ms(1);
    CHECK_INT(recvmmsg(ends[1], received, 2, 0, NULL), 2);
    CHECK_INT(received[0].msg_len, 40);
    CHECK_INT(received[1].msg_len, 60);
    CHECK_BYTES(got, 0, 100);
}

TEST(a_message_that_waits_for_one)
{
    char got[100];
    struct iovec in[2] = {{got, 40}, {got + 40, 60}};
    struct mmsghdr received[2] = {{.msg_hdr = {.msg_iov = &in[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &in[1], .msg_iovlen = 1}}};
    int ends[2];

    open_pair(ends);
    send_part(ends[0], 0, 40);
    CHECK_INT(recvmmsg(ends[1], received, 2, MSG_WAITFORONE, NULL), 1);
    CHECK_ERROR(recvmmsg(ends[1], received, 2, MSG_DONTWAIT, NULL), EAGAIN);
    CHECK_INT(sendmmsg(ends[0], received, 0, 0), 0);
}

/* More to come holds nothing back for ever, and changes no byte. */
TEST(more_to_come)
{
    char bytes[30];
    int ends[2];

    open_pair(ends);
    fill(bytes, 0, sizeof bytes);
    CHECK_INT(send(ends[0], bytes, 10, MSG_MORE), 10);
    CHECK_INT(send(ends[0], bytes + 10, 10, MSG_MORE), 10);
    CHECK_INT(send(ends[0], bytes + 20, 10, 0), 10);
    receive_part(ends[1], 0, 30);
    CHECK_INT(send(ends[0], bytes, 10, MSG_MORE), 10);
    receive_part(ends[1], 0, 10);
}

TEST(an_address_beside_the_connection)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int ends[2];

    open_pair(ends);
    CHECK_INT(getpeername(ends[0], (struct sockaddr *)&address, &length), 0);
    /* A connected stream does not look at it. */
    CHECK_INT(sendto(ends[0], "x", 1, 0, (struct sockaddr *)&address, length), 1);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 1);
}

TEST(a_part_of_a_file)
{
    char bytes[5000];
    int ends[2], file = memfd_create("case", 0);
    off_t offset = 1000;

    open_pair(ends);
    fill(bytes, 0, sizeof bytes);
    CHECK_INT(write(file, bytes, sizeof bytes), sizeof bytes);
    CHECK_INT(sendfile(ends[0], file, &offset, 2000), 2000);
    CHECK_INT(offset, 3000);
    receive_part(ends[1], 1000, 2000);
    /* Behind the end there is nothing. */
    CHECK_INT(sendfile(ends[0], file, &offset, 100000), 2000);
    CHECK_INT(offset, 5000);
    receive_part(ends[1], 3000, 2000);
    CHECK_INT(sendfile(ends[0], file, &offset, 10), 0);
    CHECK_INT(sendfile(ends[0], file, NULL, 10), 0);
    CHECK_INT(lseek(file, 0, SEEK_CUR), 5000);
    CHECK_ERROR(sendfile(ends[0], -1, NULL, 10), EBADF);
    CHECK_ERROR(sendfile(ends[0], ends[1], NULL, 10), EINVAL);
    offset = -1;
    CHECK_ERROR(sendfile(ends[0], file, &offset, 10), EINVAL);
}
