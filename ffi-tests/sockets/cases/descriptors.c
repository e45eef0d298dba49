/* Copies of descriptors, and how they are closed. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void check_works(int own, int peer)
{
    for (uint64_t from = 0; from < 300; from += 100) {
        send_part(own, from, 100);
        receive_part(peer, from, 100);
        send_part(peer, from, 100);
        receive_part(own, from, 100);
    }
}

static const struct way copies[] = {{"dup", 0}, {"dup2", 1}, {"dup3", 2}, {"F_DUPFD", 3}, {"F_DUPFD_CLOEXEC", 4}};

static int copy(int fd, int how)
{
    switch (how) {
    case 0: return dup(fd);
    case 1: return dup2(fd, 300);
    case 2: return dup3(fd, 301, O_CLOEXEC);
    case 3: return fcntl(fd, F_DUPFD, 302);
    default: return fcntl(fd, F_DUPFD_CLOEXEC, 303);
    }
}

FAMILY(a_copy_works, copies)
{
    int ends[2], other;

    open_pair(ends);
    CHECK((other = copy(ends[0], kind->number)) >= 0);
    check_works(other, ends[1]);
    check_works(ends[0], ends[1]);
    send_part(other, 0, 100);
    send_part(ends[0], 100, 100);
    receive_part(ends[1], 0, 200);
    send_part(ends[1], 0, 200);
    receive_part(other, 0, 100);
    receive_part(ends[0], 100, 100);
    CHECK_INT(fcntl(other, F_GETFD) & FD_CLOEXEC, kind->number == 2 || kind->number == 4 ? FD_CLOEXEC : 0);
}

FAMILY(a_copy_outlives_the_original, copies)
{
    int ends[2], other;

    open_pair(ends);
    CHECK((other = copy(ends[0], kind->number)) >= 0);
    CHECK_INT(close(ends[0]), 0);
    CHECK_INT(poll_one(ends[1], POLLIN | POLLRDHUP, 20), 0);
    check_works(other, ends[1]);
    CHECK_ERROR(send(ends[0], "x", 1, 0), EBADF);
    CHECK_INT(close(other), 0);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
}

FAMILY(the_original_outlives_a_copy, copies)
{
    int ends[2], other;

    open_pair(ends);
    CHECK((other = copy(ends[0], kind->number)) >= 0);
    CHECK_INT(close(other), 0);
    check_works(ends[0], ends[1]);
    CHECK_ERROR(recv(other, &(char){0}, 1, 0), EBADF);
    close_pair(ends);
}

/* Before the upgrade. */
FAMILY(a_copy_of_a_fresh_connection, copies)
{
    int ends[2], other;

    open_fresh(ends);
    CHECK((other = copy(ends[0], kind->number)) >= 0);
    upgrade(ends);
    check_works(other, ends[1]);
    CHECK_INT(close(ends[0]), 0);
    check_works(other, ends[1]);
}

static const struct way overs[] = {{"dup2", 1}, {"dup3", 2}};

/* What was there is closed. */
FAMILY(a_copy_over_another_connection, overs)
{
    int ends[2], others[2];

    open_pair(ends);
    open_pair(others);
    send_part(others[0], 0, 100);
    CHECK_INT(kind->number == 1 ? dup2(ends[0], others[0]) : dup3(ends[0], others[0], 0), others[0]);
    CHECK_INT(receive_to_end(others[1], 0), 100);
    check_works(others[0], ends[1]);
    CHECK_INT(close(ends[0]), 0);
    check_works(others[0], ends[1]);
}

FAMILY(a_file_over_a_connection, overs)
{
    int ends[2], file = open("/dev/null", O_RDWR);

    open_pair(ends);
    CHECK_INT(kind->number == 1 ? dup2(file, ends[0]) : dup3(file, ends[0], 0), ends[0]);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
    CHECK_INT(write(ends[0], "x", 1), 1);
    CHECK_INT(read(ends[0], &(char){0}, 1), 0);
}

TEST(a_copy_over_itself)
{
    int ends[2];

    open_pair(ends);
    CHECK_INT(dup2(ends[0], ends[0]), ends[0]);
    check_works(ends[0], ends[1]);
    CHECK_ERROR(dup3(ends[0], ends[0], 0), EINVAL);
    check_works(ends[0], ends[1]);
}

TEST(copies_that_fail)
{
    int ends[2], others[2];

    open_pair(ends);
    open_pair(others);
    CHECK_ERROR(dup2(900, ends[0]), EBADF);
    CHECK_ERROR(dup2(ends[0], -1), EBADF);
    CHECK_ERROR(dup2(ends[0], 1 << 29), EBADF);
    CHECK_ERROR(dup3(ends[0], others[0], 12345), EINVAL);
    CHECK_ERROR(fcntl(ends[0], F_DUPFD, -1), EINVAL);
    check_works(ends[0], ends[1]);
    check_works(others[0], others[1]);
}

static const struct way closings[] = {{"close", 0}, {"close_range", 1}, {"closefrom", 2}, {"unshare", 3}};

FAMILY(many_are_closed, closings)
{
    int first[2], ends[4][2];

    open_pair(first);
    for (unsigned i = 0; i < 4; i++)
        open_pair(ends[i]);
    for (unsigned i = 0; i < 4; i++) {
        int high = fcntl(ends[i][0], F_DUPFD, 400);

        CHECK_INT(high, 400 + i);
        CHECK_INT(close(ends[i][0]), 0);
        send_part(high, 0, 100 * i);
    }
    switch (kind->number) {
    case 0:
        for (int fd = 400; fd < 404; fd++)
            CHECK_INT(close(fd), 0);
        break;
    case 1: CHECK_INT(close_range(400, 403, 0), 0); break;
    case 2: closefrom(400); break;
    default: CHECK_INT(close_range(400, ~0U, 1 << 1), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(receive_to_end(ends[i][1], 0), 100 * i);
    check_works(first[0], first[1]);
}

TEST(close_range_for_exec_closes_nothing_now)
{
    int ends[2];

    open_pair(ends);
    CHECK_INT(close_range((unsigned)ends[0], (unsigned)ends[1], 1 << 2), 0);
    CHECK_INT(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
    check_works(ends[0], ends[1]);
}

/* A number that meant a connection means something else next. */
TEST(a_number_is_used_again)
{
    char bytes[10];
    int ends[2], pipes[2], others[2];

    open_pair(ends);
    close_pair(ends);
    CHECK_INT(pipe(pipes), 0);
    CHECK_INT(pipes[0] < 10 && pipes[1] < 10, 1);
    CHECK_INT(write(pipes[1], "hello", 5), 5);
    CHECK_INT(read(pipes[0], bytes, 10), 5);
    CHECK_ERROR(send(pipes[1], "x", 1, 0), ENOTSOCK);
    close_pair(pipes);
    open_pair(others);
    CHECK_INT(others[0], ends[0]);
    check_works(others[0], others[1]);
}

TEST(closing_twice)
{
    int ends[2];

    open_pair(ends);
    CHECK_INT(close(ends[0]), 0);
    CHECK_ERROR(close(ends[0]), EBADF);
    CHECK_INT(recv(ends[1], &(char){0}, 1, 0), 0);
}

TEST(many_connections)
{
    enum { MANY = 100 };
    static int ends[MANY][2];

    for (unsigned i = 0; i < MANY; i++)
        open_pair(ends[i]);
    for (unsigned i = 0; i < MANY; i++)
        send_part(ends[i][0], i, 1000 + i);
    for (unsigned i = 0; i < MANY; i++)
        receive_part(ends[i][1], i, 1000 + i);
    for (unsigned i = 0; i < MANY; i += 2)
        close_pair(ends[i]);
    for (unsigned i = 1; i < MANY; i += 2)
        check_works(ends[i][0], ends[i][1]);
}

/* The library takes no low numbers, which programs and select() rely on. */
TEST(the_lowest_number_is_free)
{
    int ends[2], lowest = dup(0);

    CHECK_INT(close(lowest), 0);
    open_pair(ends);
    CHECK_RANGE(ends[0], lowest, lowest + 1);
    CHECK_RANGE(ends[1], lowest, lowest + 2);
    close_pair(ends);
    CHECK_INT(dup(0), lowest);
}
