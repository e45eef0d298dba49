/* Connections that have several descriptors, threads or processes. */
#include "sockets_c.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void copies_are_attached(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int ends[2], copy, set;

    open_pair(ends);
    copy = (int)CHECK_SYS(rs_dup(ends[0]));
    set = (int)CHECK_SYS(rs_epoll_create1(0));
    CHECK_INT(rs_epoll_ctl(set, EPOLL_CTL_ADD, copy, &event), 0);
    check_path(copy, 1, "shared memory");
    send_part(copy, 0, 1000);
    CHECK_INT(rs_close(ends[0]), 0);
    receive_part(ends[1], 0, 1000);
    send_part(ends[1], 0, 1000);
    CHECK_INT(rs_epoll_wait(set, &event, 1, -1), 1);
    receive_part(copy, 0, 1000);
    ends[0] = copy;
    close_pair(ends);
}

/* ---- threads -------------------------------------------------------------------------------------------- */

#define MUCH (20 << 20)
#define PIECE 50000

/* Pieces that may be under way: they fit, so that only input is waited for. */
static sem_t places;

static void *send_much(void *argument)
{
    for (uint64_t done = 0; done < MUCH; done += PIECE) {
        CHECK_INT(sem_wait(&places), 0);
        send_part(*(int *)argument, done, PIECE);
    }
    return NULL;
}

static void threads_use_both_directions(void)
{
    pthread_t thread;
    struct peer peer;
    int fd = start_peer(&peer, true, echo);

    exchange(fd, 0, 1, 40);
    check_path(fd, 1, "shared memory");
    CHECK_SYS(sem_init(&places, 0, 4));
    CHECK_INT(pthread_create(&thread, NULL, send_much, &fd), 0);
    for (uint64_t done = 0; done < MUCH; done += PIECE) {
        receive_part(fd, done, PIECE);
        CHECK_INT(sem_post(&places), 0);
    }
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_INT(rs_close(fd), 0);
    peer_join(&peer);
}

static void ignore(int signal)
{
    (void)signal;
}

static void a_signal_interrupts_a_wait(void)
{
    struct sigaction action = {.sa_handler = ignore};
    char byte;
    int ends[2];

    open_pair(ends);
    CHECK_SYS(sigaction(SIGUSR1, &action, NULL));
    struct peer peer;
    /* Another process, because the whole of this one sleeps. */
    peer.pid = (pid_t)CHECK_SYS(fork());
    if (peer.pid == 0) {
        sleep_ms(50);
        kill(getppid(), SIGUSR1);
        _exit(0);
    }
    CHECK_ERRNO(rs_recv(ends[0], &byte, 1, 0), EINTR);
    CHECK_INT(CHECK_SYS(waitpid(peer.pid, NULL, 0)), peer.pid);
    close_pair(ends);
}

/* ---- processes ------------------------------------------------------------------------------------------ */

static void a_child_goes_on(void)
{
    struct peer peer;
    int fd = start_peer(&peer, true, echo), status;
    pid_t child;

    exchange(fd, 0, 1000, 40);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        check_path(fd, 1, "shared memory");
        exchange(fd, 0, 1000, 20);
        CHECK_INT(rs_close(fd), 0);
        exit(0);
    }
    CHECK_INT(CHECK_SYS(waitpid(child, &status, 0)), child);
    CHECK_INT(status, 0);
    exchange(fd, 0, 1000, 20);
    CHECK_INT(rs_close(fd), 0);
    peer_join(&peer);
}

static const struct test tests[] = {
    TEST(copies_are_attached, "a copy is attached too, and goes on alone"),
    TEST(threads_use_both_directions, "two threads use the two directions of a connection"),
    TEST(a_signal_interrupts_a_wait, "a signal ends a call that waits"),
    TEST(a_child_goes_on, "a child and then its parent go on with a connection"),
};

const struct section rs_sharing = SECTION("sharing", tests);
