/*
 * A peer that is killed, or stopped, in the middle of a connection: whoever waits for it learns what TCP says,
 * and nobody spins.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s, line %d: %s does not hold (%s)\n", name, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static const char *name = "";

static void exchange(int fd, int times, bool first)
{
    char bytes[100] = {0};

    while (times-- > 0) {
        if (first)
            CHECK(send(fd, bytes, sizeof bytes, 0) == sizeof bytes);
        CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        if (!first)
            CHECK(send(fd, bytes, sizeof bytes, 0) == sizeof bytes);
    }
}

/* A connection to a child, which exchanges messages as this side does, and then waits to be killed. */
static pid_t open_child(int *fd, bool sends_first, bool ends)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t child;

    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        int peer = accept(listener, NULL, NULL);
        exchange(peer, 50, !sends_first);
        if (ends)
            shutdown(peer, SHUT_WR);
        for (;;)
            pause();
    }
    close(listener);
    CHECK((*fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(connect(*fd, (struct sockaddr *)&address, length) == 0);
    exchange(*fd, 50, sends_first);
    return child;
}

static double now(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Kills after a while, from another process. */
static void kill_later(pid_t child)
{
    pid_t killer = fork();

    CHECK(killer >= 0);
    if (killer == 0) {
        usleep(300000);
        kill(child, SIGKILL);
        _exit(0);
    }
}

static ssize_t receive(int fd)
{
    char byte;
    return recv(fd, &byte, 1, 0);
}

static ssize_t by_poll(int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};
    CHECK(poll(&polled, 1, 5000) == 1);
    return receive(fd);
}

static ssize_t by_epoll(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);

    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 5000) == 1);
    close(set);
    return receive(fd);
}

/* Fills what holds bytes under way, until the call waits, and then fails. */
static ssize_t by_sending(int fd)
{
    static char much[1 << 20];
    ssize_t sent;

    while ((sent = send(fd, much, sizeof much, MSG_NOSIGNAL)) > 0)
        continue;
    CHECK(errno == EPIPE || errno == ECONNRESET);
    return sent;
}

static void is_told(const char *kind, ssize_t (*wait_for)(int), bool sends_first, bool ends)
{
    int fd;
    pid_t child = open_child(&fd, sends_first, ends);
    double busy;
    ssize_t got;

    name = kind;
    kill_later(child);
    busy = now(CLOCK_PROCESS_CPUTIME_ID);
    got = wait_for(fd);
    CHECK(got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE)));
    CHECK(now(CLOCK_PROCESS_CPUTIME_ID) - busy < 0.15);
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) <= 1);
    usleep(10000);
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && (errno == EPIPE || errno == ECONNRESET));
    close(fd);
    while (wait(NULL) > 0)
        continue;
    printf("ok %s\n", kind);
}

/* Bytes that were sent before the sender died are still read. */
static void keeps_bytes(void)
{
    int fd, ends[2];
    pid_t child;
    char bytes[64];

    name = "bytes of the dead";
    CHECK(pipe(ends) == 0);
    child = open_child(&fd, true, false);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(recv(fd, bytes, sizeof bytes, 0) <= 0);
    close(fd);
    printf("ok %s\n", name);
}

int main(void)
{
    alarm(60);
    for (int first = 0; first < 2; first++) {
        is_told("a receiver", receive, first, false);
        is_told("a receiver that polls", by_poll, first, false);
        is_told("a receiver with an epoll set", by_epoll, first, false);
        is_told("a sender", by_sending, first, false);
        is_told("a sender whose peer had ended its output", by_sending, first, true);
    }
    keeps_bytes();
    printf("11 passed, 0 failed\n");
    return 0;
}
