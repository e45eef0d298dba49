/* A thread receives since before the connection is upgraded, and goes on to while others use it. */
#include "cases.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MUCH = 16000000, SLEEP_MS = 1000, MOST_BUSY_MS = 20, ROUNDS = 300 };

static struct caller reader, writer;

static ssize_t receive_one(void *fd)
{
    return recv(*(int *)fd, &(char){0}, 1, 0);
}

static ssize_t send_much(void *fd)
{
    send_part(*(int *)fd, ROUNDS, MUCH);
    return MUCH;
}

static ssize_t await_room(void *fd)
{
    return poll_one(*(int *)fd, POLLOUT, -1);
}

/* A new connection, whose end at `ends[0]` is used by a reader that sleeps. Bytes to the other end upgrade it. */
static void open_with_reader(int ends[2], bool connects)
{
    int fresh[2];
    uint64_t before;

    open_fresh(fresh);
    ends[0] = fresh[!connects];
    ends[1] = fresh[connects];
    start_caller(&reader, receive_one, &ends[0]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        before = kernel_received(ends[1]);
        send_part(ends[0], round, 1);
        receive_part(ends[1], round, 1);
    }
    CHECK((kernel_received(ends[1]) == before) == is_loaded());
}

static void end_reader(int ends[2])
{
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    join_caller(&reader);
    CHECK_INT(reader.returned, 1);
}

static const struct way sides[] = {{"connector", true}, {"acceptor", false}};

FAMILY(a_reader_from_before_comes_out_first, sides)
{
    int ends[2];

    open_with_reader(ends, kind->number);
    start_caller(&writer, send_much, &ends[0]);
    end_reader(ends);
    receive_part(ends[1], ROUNDS, MUCH);
    join_caller(&writer);
    close_pair(ends);
}

FAMILY(a_reader_from_before_comes_out_last, sides)
{
    int ends[2];

    open_with_reader(ends, kind->number);
    start_caller(&writer, send_much, &ends[0]);
    receive_part(ends[1], ROUNDS, MUCH);
    join_caller(&writer);
    end_reader(ends);
    close_pair(ends);
}

FAMILY(a_reader_from_before_is_cancelled, sides)
{
    int ends[2];

    open_with_reader(ends, kind->number);
    start_caller(&writer, send_much, &ends[0]);
    CHECK_INT(pthread_cancel(reader.pthread), 0);
    join_caller(&reader);
    receive_part(ends[1], ROUNDS, MUCH);
    join_caller(&writer);
    /* It can be received by others. */
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    CHECK_INT(receive_one(&ends[0]), 1);
    close_pair(ends);
}

static const struct sleeper {
    const char *name;
    ssize_t (*call)(void *);
} sleepers[] = {{"sends", send_much}, {"polls", await_room}};

FAMILY(a_reader_from_before_sleeps_with_another, sleepers)
{
    size_t full;
    int64_t busy;
    int ends[2];

    open_with_reader(ends, true);
    full = kind->call == await_room ? fill_up(ends[0], ROUNDS) : MUCH;
    start_caller(&writer, kind->call, &ends[0]);
    busy = busy_ms();
    sleep_ms(SLEEP_MS);
    CHECK_RANGE(busy_ms() - busy, 0, MOST_BUSY_MS);
    receive_part(ends[1], ROUNDS, full);
    join_caller(&writer);
    end_reader(ends);
    close_pair(ends);
}
