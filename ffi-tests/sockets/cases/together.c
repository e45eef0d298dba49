/* Several threads that wait in one connection's calls: what ends the call of one ends it at once, whoever else
 * waits. */
#include "cases.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Less than any sleep that ends by itself. */
#define AT_ONCE_MS 500

static ssize_t receive_one(void *fd)
{
    char byte;

    return recv(*(int *)fd, &byte, 1, 0);
}

static ssize_t send_one(void *fd)
{
    return send(*(int *)fd, "x", 1, 0);
}

static void join_at_once(struct caller *caller)
{
    int64_t start = now_ms();

    join_caller(caller);
    CHECK_RANGE(now_ms() - start, 0, AT_ONCE_MS);
}

TEST(own_shutdown_ends_a_send_beside_a_receive)
{
    struct caller receiver, sender;
    int ends[2];

    open_pair(ends);
    signal(SIGPIPE, SIG_IGN);
    fill_up(ends[0], 0);
    start_caller(&receiver, receive_one, &ends[0]);
    start_caller(&sender, send_one, &ends[0]);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    join_at_once(&sender);
    CHECK_INT(sender.returned, -1);
    CHECK_INT(sender.error, EPIPE);
    /* The other direction goes on. */
    CHECK(!receiver.done);
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    join_at_once(&receiver);
    CHECK_INT(receiver.returned, 1);
}

/* In whatever order. */
static const struct way orders[] = {{"first_to_last", 0}, {"last_to_first", 2}};

FAMILY(cancels_each_of_several_receives, orders)
{
    struct caller callers[3], last;
    int ends[2];

    open_pair(ends);
    for (int i = 0; i < 3; i++)
        start_caller(&callers[i], receive_one, &ends[0]);
    for (int i = 0; i < 3; i++) {
        struct caller *caller = &callers[kind->number == 0 ? i : kind->number - i];

        CHECK_INT(pthread_cancel(caller->pthread), 0);
        join_at_once(caller);
        CHECK_INT(caller->returned, -2);
    }
    /* The connection can be used on. */
    start_caller(&last, receive_one, &ends[0]);
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    join_at_once(&last);
    CHECK_INT(last.returned, 1);
}

TEST(cancels_a_send_beside_a_receive)
{
    struct caller receiver, sender;
    int ends[2];

    open_pair(ends);
    fill_up(ends[0], 0);
    start_caller(&receiver, receive_one, &ends[0]);
    start_caller(&sender, send_one, &ends[0]);
    CHECK_INT(pthread_cancel(sender.pthread), 0);
    join_at_once(&sender);
    CHECK_INT(sender.returned, -2);
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    join_at_once(&receiver);
    CHECK_INT(receiver.returned, 1);
}

static ssize_t wait_in_poll(void *fd)
{
    return poll(&(struct pollfd){*(int *)fd, POLLIN, 0}, 1, -1);
}

static ssize_t wait_in_select(void *fd)
{
    fd_set set;

    FD_ZERO(&set);
    FD_SET(*(int *)fd, &set);
    return select(*(int *)fd + 1, &set, NULL, NULL, NULL);
}

static const struct {
    const char *name;
    ssize_t (*call)(void *fd);
} looks[] = {{"poll", wait_in_poll}, {"select", wait_in_select}};

FAMILY(a_cancelled_look_leaves_a_receive, looks)
{
    struct caller looking, receiver;
    int ends[2];

    open_pair(ends);
    start_caller(&looking, kind->call, &ends[0]);
    start_caller(&receiver, receive_one, &ends[0]);
    CHECK_INT(pthread_cancel(looking.pthread), 0);
    join_at_once(&looking);
    CHECK_INT(looking.returned, -2);
    CHECK_INT(send(ends[1], "x", 1, 0), 1);
    join_at_once(&receiver);
    CHECK_INT(receiver.returned, 1);
}

/* ---- a process of several threads ---------------------------------------------------------------------- */

/* Milliseconds that the kernel and the library may take for a first connection, not all of a busy machine. */
#define FIRST_MS 3
#define CHILDREN 20

static ssize_t wait_for_signal(void *unused)
{
    (void)unused;
    return pause();
}

/* The kernel makes a table of descriptors that threads share longer only when none of them looks at it. */
TEST(a_first_connection_does_not_wait_for_other_threads)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < CHILDREN; i++) {
        int64_t one;
        int took[2], status;
        pid_t child;

        CHECK_INT(pipe(took), 0);
        CHECK((child = fork()) >= 0);
        if (child == 0) {
            struct caller other;
            unsigned port;
            int listener = open_listener(&port);
            int64_t start;

            start_caller(&other, wait_for_signal, NULL);
            start = now_ms();
            connect_to(port);
            start = now_ms() - start;
            CHECK_INT(write(took[1], &start, sizeof start), sizeof start);
            close(listener);
            _exit(0);
        }
        CHECK_INT(read(took[0], &one, sizeof one), sizeof one);
        CHECK_INT(waitpid(child, &status, 0), child);
        close(took[0]);
        close(took[1]);
        least = one < least ? one : least;
    }
    CHECK_RANGE(least, 0, FIRST_MS);
}
