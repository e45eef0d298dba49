/* What one thread or set does of a connection leaves others that sleep for it undisturbed; descriptors that are
 * used again. */
#include "cases.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Longer than any wake-up takes. */
#define SOON_MS 2000

static ssize_t wait_in_receive(void *fd)
{
    char byte;

    return recv(*(int *)fd, &byte, 1, 0);
}

static ssize_t wait_in_poll(void *fd)
{
    return poll_one(*(int *)fd, 1 /* POLLIN */, SOON_MS) == 1;
}

static ssize_t wait_in_select(void *fd)
{
    struct timeval limit = {SOON_MS / 1000, 0};
    fd_set set;

    FD_ZERO(&set);
    FD_SET(*(int *)fd, &set);
    return select(*(int *)fd + 1, &set, NULL, NULL, &limit);
}

static void add_to(int set, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {events, {.u64 = data}};

    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
}

static int wait_for(int set, uint64_t *data, int ms)
{
    struct epoll_event event;
    int count = epoll_wait(set, &event, 1, ms);

    *data = event.data.u64;
    return count;
}

static ssize_t wait_in_epoll(void *fd)
{
    int set = epoll_create1(0);
    uint64_t data;

    add_to(set, *(int *)fd, EPOLLIN, 1);
    return wait_for(set, &data, SOON_MS);
}

static const struct {
    const char *name;
    ssize_t (*call)(void *fd);
} sleeps[] = {
    {"recv", wait_in_receive}, {"poll", wait_in_poll}, {"select", wait_in_select}, {"epoll", wait_in_epoll},
};

/* A thread that polls by calls of its own does not need the peer's word. The one that sleeps does. */
FAMILY(a_sleeper_beside_calls_in_vain, sleeps)
{
    struct caller caller;
    char byte;
    int ends[2];

    open_pair(ends);
    start_caller(&caller, kind->call, &ends[1]);
    for (int times = 0; times < 10; times++)
        CHECK_ERROR(recv(ends[1], &byte, 1, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
    sleep_ms(50);
    int64_t sent = now_ms();
    CHECK_INT(send(ends[0], "x", 1, 0), 1);
    join_caller(&caller);
    CHECK_INT(caller.returned, 1);
    CHECK_RANGE(now_ms() - sent, 0, SOON_MS / 2);
}

static int set_of_loop, loop_pipe[2];

/* Sleeps in the set again and again. */
static void *loop(void *unused)
{
    uint64_t data;
    char byte;

    (void)unused;
    while (wait_for(set_of_loop, &data, -1) == 1 && read(loop_pipe[0], &byte, 1) == 1 && byte != 'e')
        ;
    return NULL;
}

static const struct way endings[] = {{"taken_out", true}, {"one_shot", false}};

/* As servers do that wait for requests in a set, and serve them by threads that wait in calls. */
FAMILY(a_sleeper_beside_a_set_that_wakes, endings)
{
    pthread_t thread;
    int ends[2];

    open_pair(ends);
    set_of_loop = epoll_create1(0);
    CHECK_INT(pipe(loop_pipe), 0);
    add_to(set_of_loop, loop_pipe[0], EPOLLIN, 0);
    CHECK_INT(pthread_create(&thread, NULL, loop, NULL), 0);
    for (int times = 0; times < 5; times++) {
        struct epoll_event event = {EPOLLIN, {.u64 = 1}};
        struct caller caller;

        add_to(set_of_loop, ends[1], EPOLLIN | EPOLLET, 1);
        sleep_ms(2);
        if (kind->number)
            CHECK_INT(epoll_ctl(set_of_loop, EPOLL_CTL_DEL, ends[1], &event), 0);
        else
            CHECK_INT(epoll_ctl(set_of_loop, EPOLL_CTL_MOD, ends[1], &(struct epoll_event){EPOLLONESHOT, {}}), 0);
        CHECK_INT(write(loop_pipe[1], "x", 1), 1);
        start_caller(&caller, wait_in_receive, &ends[1]);
        CHECK_INT(write(loop_pipe[1], "x", 1), 1);
        sleep_ms(10);
        CHECK_INT(send(ends[0], "x", 1, 0), 1);
        int64_t sent = now_ms();
        join_caller(&caller);
        CHECK_INT(caller.returned, 1);
        CHECK_RANGE(now_ms() - sent, 0, SOON_MS / 2);
        if (!kind->number)
            CHECK_INT(epoll_ctl(set_of_loop, EPOLL_CTL_DEL, ends[1], &event), 0);
    }
    CHECK_INT(write(loop_pipe[1], "e", 1), 1);
    CHECK_INT(pthread_join(thread, NULL), 0);
}

/* A number that a set knew well is another connection's, which has carried nothing. */
TEST(a_warm_descriptor_is_used_again)
{
    int set = epoll_create1(0), number = -1;

    for (int times = 0; times < 20; times++) {
        int ends[2];
        uint64_t data;

        open_fresh(ends);
        CHECK(times == 0 || ends[1] == number);
        number = ends[1];
        add_to(set, number, EPOLLIN, times);
        /* Before and after the upgrade, with sleeps in between. */
        for (int messages = 0; messages < 40; messages++) {
            char byte;

            CHECK_INT(send(ends[0], "x", 1, 0), 1);
            CHECK_INT(wait_for(set, &data, SOON_MS), 1);
            CHECK_INT(data, times);
            CHECK_INT(read(number, &byte, 1), 1);
            CHECK_INT(send(number, "y", 1, 0), 1);
            CHECK_INT(recv(ends[0], &byte, 1, 0), 1);
            if (messages % 10 == 9)
                CHECK_INT(wait_for(set, &data, 1), 0);
        }
        CHECK_INT(epoll_ctl(set, EPOLL_CTL_DEL, number, NULL), 0);
        close_pair(ends);
    }
}

/* As libuv closes. */
TEST(a_descriptor_that_was_closed_by_a_system_call)
{
    int set = epoll_create1(0), ends[2], others[2];
    uint64_t data;
    char byte;

    open_pair(ends);
    add_to(set, ends[1], EPOLLIN, 1);
    CHECK_INT(shutdown(ends[0], SHUT_WR), 0);
    CHECK_INT(wait_for(set, &data, SOON_MS), 1);
    CHECK_INT(read(ends[1], &byte, 1), 0);
    CHECK_INT(epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL), 0);
    CHECK_INT(syscall(SYS_close, ends[1]), 0);
    CHECK_INT(syscall(SYS_close, ends[0]), 0);
    open_fresh(others);
    CHECK(others[1] == ends[0] || others[1] == ends[1]);
    add_to(set, others[1], EPOLLIN, 2);
    CHECK_INT(wait_for(set, &data, 20), 0);
    CHECK_INT(send(others[0], "x", 1, 0), 1);
    CHECK_INT(wait_for(set, &data, SOON_MS), 1);
    CHECK_INT(data, 2);
    close_pair(others);
}

TEST(system_calls_by_number)
{
    CHECK_INT(syscall(SYS_getpid), getpid());
    CHECK_ERROR(syscall(SYS_close, -1), EBADF);
    int fd = syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY);
    CHECK(fd >= 0);
    char *bytes = (char *)syscall(SYS_mmap, NULL, 4096L, 1L /* PROT_READ */, 2L /* MAP_PRIVATE */, fd, 0L);
    CHECK(bytes != (char *)-1 && bytes[4095] == 0);
    CHECK_INT(syscall(SYS_close, fd), 0);
}

TEST(standard_input_in_a_set)
{
    int set = epoll_create1(0), ends[2];
    uint64_t data;

    open_pair(ends);
    close(0);
    CHECK_INT(fcntl(ends[1], F_DUPFD, 0), 0);
    add_to(set, 0, EPOLLIN, 7);
    CHECK_INT(send(ends[0], "x", 1, 0), 1);
    CHECK_INT(wait_for(set, &data, SOON_MS), 1);
    CHECK_INT(data, 7);
}

/* As many connections as a wait has places are always ready. */
TEST(ready_connections_let_others_be_reported)
{
    for (int places = 1; places <= 3; places++) {
        int set = epoll_create1(0), ends[3][2], ready[2], waits = 0;
        struct epoll_event events[3];
        bool found = false;

        CHECK_INT(pipe(ready), 0);
        add_to(set, ready[0], EPOLLIN, 1000);
        for (int i = 0; i < places; i++) {
            open_pair(ends[i]);
            add_to(set, ends[i][1], EPOLLIN | EPOLLOUT, i);
        }
        CHECK_INT(write(ready[1], "x", 1), 1);
        for (; !found && waits < 1000; waits++) {
            int count = epoll_wait(set, events, places, SOON_MS);

            CHECK_RANGE(count, 1, places);
            for (int i = 0; i < count; i++)
                found |= events[i].data.u64 == 1000;
        }
        CHECK(found);
        for (int i = 0; i < places; i++)
            close_pair(ends[i]);
        close(ready[0]);
        close(ready[1]);
        close(set);
    }
}

/* ---- what bypasses the library ------------------------------------------------------------------------- */

/* The C library's streams write there by calls of their own. */
TEST(printf_to_a_connection_as_standard_output)
{
    struct peer peer;
    int fd = start_peer(&peer, false, echo), old = dup(1);
    char bytes[6];

    CHECK_INT(dup2(fd, 1), 1);
    printf("hello\n");
    fflush(stdout);
    CHECK_INT(dup2(old, 1), 1);
    CHECK_INT(recv(fd, bytes, sizeof bytes, MSG_WAITALL), 6);
    CHECK(memcmp(bytes, "hello\n", 6) == 0);
    close(fd);
    join_peer(&peer);
}

TEST(sendfile_takes_nothing_of_a_pipe)
{
    int ends[2], ready[2];
    char bytes[4];

    open_pair(ends);
    CHECK_INT(pipe(ready), 0);
    CHECK_INT(write(ready[1], "abcd", 4), 4);
    CHECK_ERROR(sendfile(ends[0], ready[0], NULL, 4), EINVAL);
    CHECK_INT(read(ready[0], bytes, 4), 4);
    CHECK(memcmp(bytes, "abcd", 4) == 0);
    close_pair(ends);
}

TEST(a_piece_that_is_not_there_ends_what_is_written)
{
    static char bytes[100000];
    struct iovec pieces[] = {{bytes, sizeof bytes}, {NULL, 3}, {"world", 5}};
    int ends[2];

    open_pair(ends);
    fill(bytes, 0, sizeof bytes);
    ssize_t sent = writev(ends[0], pieces, 3);
    /* The kernel forgets the beginning of a page of its own. */
    CHECK_RANGE(sent, sizeof bytes / 2, sizeof bytes);
    CHECK_ERROR(writev(ends[0], pieces + 1, 2), EFAULT);
    receive_part(ends[1], 0, sent);
    CHECK_ERROR(recv(ends[1], bytes, 1, MSG_DONTWAIT), EAGAIN);
    close_pair(ends);
}
