/* Connections, listeners and epoll sets that several processes or threads use: fork, vfork and exec. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void exchange(int fd, uint64_t from)
{
    send_part(fd, from, 3000);
    receive_part(fd, from, 3000);
}

/* Waits for a child, whose checks all held. */
static void join_child(pid_t child)
{
    int status;

    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

static const struct way sides[] = {{"connector", true}, {"acceptor", false}};

/* ---- fork ---------------------------------------------------------------------------------------------- */

FAMILY(a_child_goes_on_alone, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);
    pid_t child;

    exchange(fd, 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (uint64_t from = 3000; from < 60000; from += 3000)
            exchange(fd, from);
        exit(0);
    }
    CHECK_INT(close(fd), 0);
    join_child(child);
    /* The last descriptor is closed. */
    join_peer(&peer);
}

/* Whichever part of the way to the rings the connection has gone, the parent's close takes no error. */
FAMILY(a_reset_is_left_to_the_child, sides)
{
    for (uint64_t calls = 0; calls < 40; calls++) {
        int ends[2], turn[2], own, peer;
        pid_t child;
        char byte;

        open_fresh(ends);
        own = ends[!kind->number];
        peer = ends[kind->number];
        for (uint64_t at = 0; at < calls; at++)
            at % 2 ? receive_part(peer, at / 2, 1) : send_part(own, at / 2, 1);
        send_part(own, (calls + 1) / 2, 100);
        for (int look = 0; look < 2; look++)
            CHECK_INT(poll_one(own, POLLIN, 0), 0);
        CHECK_INT(close(peer), 0);
        CHECK_INT(pipe(turn), 0);
        CHECK((child = fork()) >= 0);
        if (child == 0) {
            CHECK_INT(read(turn[0], &byte, 1), 1);
            CHECK_ERROR(recv(own, &byte, 1, 0), ECONNRESET);
            exit(0);
        }
        CHECK_INT(close(own), 0);
        CHECK_INT(write(turn[1], "x", 1), 1);
        join_child(child);
        CHECK_INT(close(turn[0]), 0);
        CHECK_INT(close(turn[1]), 0);
    }
}

FAMILY(a_child_that_ends_takes_nothing_along, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);
    uint64_t from = 0;

    for (int times = 0; times < 5; times++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            switch (times % 3) {
            case 0: close(fd); exit(0);
            case 1: exit(0);
            default: _exit(0);
            }
        }
        join_child(child);
        exchange(fd, from);
        from += 3000;
    }
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

FAMILY(processes_use_it_in_turn, sides)
{
    struct peer peer;
    int turns[2][2], fd = start_peer(&peer, kind->number, echo);
    char word;
    pid_t child;

    for (int i = 0; i < 2; i++)
        CHECK_INT(pipe(turns[i]), 0);
    child = fork();
    CHECK(child >= 0);
    for (uint64_t round = 0; round < 40; round++) {
        bool is_own = round % 2 == (child == 0);

        if (is_own)
            exchange(fd, round * 3000);
        if (is_own)
            CHECK_INT(write(turns[child == 0][1], "x", 1), 1);
        else
            CHECK_INT(read(turns[child != 0][0], &word, 1), 1);
    }
    if (child == 0)
        exit(0);
    join_child(child);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

/* One sends what the other receives. */
FAMILY(one_process_sends_and_one_receives, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        send_part(fd, 0, 2000000);
        exit(0);
    }
    receive_part(fd, 0, 2000000);
    join_child(child);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

static void send_single_bytes(struct peer *self, int fd)
{
    hear(self);
    for (unsigned i = 0; i < 200; i++) {
        CHECK_INT(send(fd, "x", 1, MSG_NOSIGNAL), 1);
        if (i % 16 == 0)
            sleep_ms(2);
    }
}

/* Each byte goes to one of the processes that wait for it. */
FAMILY(several_processes_wait_for_bytes, sides)
{
    struct peer peer;
    int counts[2], fd = start_peer(&peer, kind->number, send_single_bytes);
    unsigned all = 0;
    pid_t children[3];
    char byte;

    CHECK_INT(pipe(counts), 0);
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            while (recv(fd, &byte, 1, 0) == 1)
                CHECK_INT(write(counts[1], "x", 1), 1);
            exit(0);
        }
    }
    for (int i = 0; i < 3; i++)
        await_sleep(children[i]);
    CHECK_INT(close(fd), 0);
    tell(&peer);
    for (int i = 0; i < 3; i++)
        join_child(children[i]);
    CHECK_INT(close(counts[1]), 0);
    while (read(counts[0], &byte, 1) == 1)
        all++;
    CHECK_INT(all, 200);
    join_peer(&peer);
}

static ssize_t receive_one(void *fd)
{
    char byte;

    return recv(*(int *)fd, &byte, 1, 0);
}

static void send_late(struct peer *self, int fd)
{
    hear(self);
    CHECK_INT(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    hear(self);
}

FAMILY(a_fork_beside_a_sleeper, sides)
{
    struct peer peer;
    struct caller caller;
    int hold[2], fd = start_peer(&peer, kind->number, send_late);
    pid_t child;

    CHECK_INT(pipe(hold), 0);
    start_caller(&caller, receive_one, &fd);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char word;

        /* It has the connection, and leaves it alone. */
        close(hold[1]);
        CHECK_INT(read(hold[0], &word, 1), 0);
        exit(0);
    }
    tell(&peer);
    join_caller(&caller);
    CHECK_INT(caller.returned, 1);
    CHECK_INT(close(hold[1]), 0);
    join_child(child);
    tell(&peer);
    join_peer(&peer);
}

TEST(a_fork_of_a_fork)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo), status = 1;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        pid_t inner = fork();

        CHECK(inner >= 0);
        if (inner == 0) {
            close_range(0, 1, 0);
            exchange(fd, 0);
            exit(0);
        }
        CHECK(waitpid(inner, &status, 0) == inner && status == 0);
        exchange(fd, 3000);
        exit(0);
    }
    join_child(child);
    exchange(fd, 6000);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

#define CLIENTS 12
#define WORKERS 3

/* A server of processes that all accept on one listening socket. */
TEST(a_server_of_several_processes)
{
    unsigned port;
    int listener = open_listener(&port), clients[CLIENTS];
    pid_t workers[WORKERS];

    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        CHECK(workers[i] >= 0);
        if (workers[i] == 0)
            for (;;) {
                int fd = accept(listener, NULL, NULL);
                pid_t handler;

                CHECK(fd >= 0);
                handler = fork();
                CHECK(handler >= 0);
                if (handler == 0) {
                    echo(NULL, fd);
                    exit(0);
                }
                CHECK_INT(close(fd), 0);
            }
    }
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = connect_to(port);
    for (uint64_t round = 0; round < 20; round++)
        for (int i = 0; i < CLIENTS; i++)
            exchange(clients[i], round * 3000);
    for (int i = 0; i < CLIENTS; i++) {
        CHECK_INT(shutdown(clients[i], SHUT_WR), 0);
        CHECK_INT(recv(clients[i], &(char){0}, 1, 0), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        CHECK_INT(kill(workers[i], SIGKILL), 0);
        CHECK_INT(waitpid(workers[i], NULL, 0), workers[i]);
    }
}

/* ---- other programs ------------------------------------------------------------------------------------ */

extern char **environ;

static void by_vfork(void)
{
    pid_t child = vfork();

    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    join_child(child);
}

static void by_spawn(void)
{
    char *arguments[] = {(char[]){"true"}, NULL};
    pid_t child;

    CHECK_INT(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ), 0);
    join_child(child);
}

static void by_system(void)
{
    CHECK_INT(system("true"), 0);
}

static void by_popen(void)
{
    FILE *output = popen("echo said", "r");
    char line[16];

    CHECK(output && fgets(line, sizeof line, output));
    CHECK_INT(strcmp(line, "said\n"), 0);
    CHECK_INT(pclose(output), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} starts[] = {{"vfork", by_vfork}, {"posix_spawn", by_spawn}, {"system", by_system}, {"popen", by_popen}};

/* Programs that are started beside it and do not get it leave it as it is. */
FAMILY(another_program_starts, starts)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo);

    CHECK_INT(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
    for (uint64_t round = 0; round < 4; round++) {
        exchange(fd, round * 3000);
        kind->run();
    }
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

/* ---- epoll sets ---------------------------------------------------------------------------------------- */

#define MEMBERS 6
#define THREADS 4
#define MESSAGES 300

static struct {
    int set, ends[MEMBERS][2];
    unsigned events, handled;
} shared;

static void *handle(void *unused)
{
    (void)unused;
    for (;;) {
        struct epoll_event event;
        uint8_t bytes[64];
        ssize_t got;
        int fd;

        if (epoll_wait(shared.set, &event, 1, -1) != 1)
            continue;
        fd = shared.ends[event.data.u32][0];
        while ((got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            __atomic_fetch_add(&shared.handled, (unsigned)got, __ATOMIC_ACQ_REL);
        if (got == 0)
            return NULL;
        CHECK_INT(errno, EAGAIN);
        if (shared.events & EPOLLONESHOT) {
            event.events = shared.events;
            CHECK_INT(epoll_ctl(shared.set, EPOLL_CTL_MOD, fd, &event), 0);
        }
    }
}

static const struct way modes[] = {
    {"level", EPOLLIN}, {"edge", EPOLLIN | EPOLLET}, {"one_shot", EPOLLIN | EPOLLONESHOT},
    {"edge_and_one_shot", EPOLLIN | EPOLLET | EPOLLONESHOT}};

/* Every byte is found by one of the threads, with pauses in which all sleep. */
FAMILY(several_threads_wait_on_a_set, modes)
{
    pthread_t threads[THREADS];

    shared.set = epoll_create1(EPOLL_CLOEXEC);
    shared.events = (unsigned)kind->number;
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct epoll_event event = {.events = shared.events, .data.u32 = i};

        open_pair(shared.ends[i]);
        CHECK_INT(epoll_ctl(shared.set, EPOLL_CTL_ADD, shared.ends[i][0], &event), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, handle, NULL), 0);
    for (unsigned i = 0; i < MESSAGES; i++) {
        CHECK_INT(send(shared.ends[i * 7 % MEMBERS][1], "x", 1, MSG_NOSIGNAL), 1);
        if (i % 32 == 31)
            await_value((int *)&shared.handled, (int)i + 1);
        if (i % 64 == 63)
            sleep_ms(5);
    }
    await_value((int *)&shared.handled, MESSAGES);
    CHECK_INT(shared.handled, MESSAGES);
}

/* A process that becomes a daemon takes its set along. */
FAMILY(a_set_goes_on_in_a_child, modes)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo), set = epoll_create1(0);
    struct epoll_event event = {.events = (unsigned)kind->number, .data.fd = fd};
    pid_t child;

    exchange(fd, 0);
    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        CHECK_INT(close(fd), 0);
        CHECK_INT(close(set), 0);
        join_child(child);
        join_peer(&peer);
        return;
    }
    for (uint64_t from = 3000; from < 60000; from += 3000) {
        send_part(fd, from, 3000);
        CHECK_INT(epoll_wait(set, &event, 1, 5000), 1);
        CHECK_INT(event.data.fd, fd);
        receive_part(fd, from, 3000);
        event.events = (unsigned)kind->number;
        CHECK_INT(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), 0);
    }
    exit(0);
}
