/*
 * Connections that are handed to what the library does not see: another process, another program, the C library's
 * streams, options and urgent bytes of TCP. What was on its way arrives, once and in order, and the connection goes
 * on. With a peer that receives in several ways.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
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

static char name[100];
static const char *self;
static int passed;

/* A message says which it is. */
struct message {
    uint32_t number;
    char rest[96];
};

/* Exchanges before the connection is handed over, messages that are then under way, exchanges afterwards. */
enum { BEFORE = 50, UNDER_WAY = 3, AFTER = 100 };

static struct message message(uint32_t number)
{
    struct message message = {.number = number};

    memset(message.rest, (int)(number * 7 + 1), sizeof message.rest);
    return message;
}

static void send_message(int fd, uint32_t number)
{
    struct message sent = message(number);

    CHECK(send(fd, &sent, sizeof sent, 0) == sizeof sent);
}

static void receive_message(int fd, uint32_t number)
{
    struct message got, expected = message(number);

    CHECK(recv(fd, &got, sizeof got, MSG_WAITALL) == sizeof got);
    CHECK(memcmp(&got, &expected, sizeof got) == 0);
}

/* What whoever has the connection in the end does with it. */
static void finish(int in, int out, uint32_t number)
{
    for (uint32_t answer = number; answer < number + UNDER_WAY; answer++)
        receive_message(in, answer);
    number += UNDER_WAY;
    for (int times = 0; times < AFTER; times++, number++) {
        send_message(out, number);
        receive_message(in, number);
    }
    CHECK(shutdown(out, SHUT_WR) == 0);
    CHECK(recv(in, &number, 1, 0) == 0);
}

/* ---- the peer: it sends back what it receives, until the end ---- */

static void wait_for(int fd, short what)
{
    struct pollfd polled = {fd, what, 0};

    CHECK(poll(&polled, 1, 10000) == 1);
}

static void send_back(int fd, const char *bytes, ssize_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, bytes, (size_t)length, MSG_NOSIGNAL);

        if (sent < 0 && errno == EAGAIN) {
            wait_for(fd, POLLOUT);
            continue;
        }
        CHECK(sent > 0);
        bytes += sent;
        length -= sent;
    }
}

/* Returns false at the end. */
static bool echo_some(int fd, int flags)
{
    char bytes[1000];
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof bytes, flags)) > 0) {
        send_back(fd, bytes, got);
        if (!(flags & MSG_DONTWAIT))
            return true;
    }
    CHECK(got == 0 || errno == EAGAIN);
    return got != 0;
}

static void echo_blocking(int fd)
{
    while (echo_some(fd, 0))
        continue;
}

static void echo_by_poll(int fd)
{
    do
        wait_for(fd, POLLIN);
    while (echo_some(fd, MSG_DONTWAIT));
}

static void echo_by_epoll(int fd, uint32_t events)
{
    struct epoll_event event = {.events = events};
    int set = epoll_create1(0);

    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    do {
        CHECK(epoll_wait(set, &event, 1, 10000) == 1);
        if (events & EPOLLONESHOT) {
            event.events = events;
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
        }
    } while (echo_some(fd, MSG_DONTWAIT));
}

static void echo_by_level(int fd)
{
    echo_by_epoll(fd, EPOLLIN);
}

static void echo_by_edge(int fd)
{
    echo_by_epoll(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

static void echo_once(int fd)
{
    echo_by_epoll(fd, EPOLLIN | EPOLLONESHOT);
}

/* Many bytes that nobody reads for a while. */
static void flood(int fd)
{
    static char much[300000];

    CHECK(recv(fd, much, 1, 0) == 1);
    send_back(fd, much, sizeof much);
    echo_blocking(fd);
}

enum { NUMBERS = 200 };

/* Bytes now and then, from a peer that neither receives nor waits for its socket until they are sent. */
static void count_only(int fd)
{
    for (int number = 0; number < NUMBERS; number++) {
        char byte = (char)number;

        send_back(fd, &byte, 1);
        usleep(5000);
    }
    CHECK(!echo_some(fd, 0));
}

static pid_t open_peer(int *fd, void (*serve)(int))
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

        close(listener);
        for (int times = 0; times < BEFORE; times++)
            CHECK(echo_some(peer, 0));
        serve(peer);
        close(peer);
        exit(0);
    }
    close(listener);
    CHECK((*fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(connect(*fd, (struct sockaddr *)&address, length) == 0);
    for (uint32_t number = 0; number < BEFORE; number++) {
        send_message(*fd, number);
        receive_message(*fd, number);
    }
    return child;
}

static void expect_end(pid_t child)
{
    int status;

    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Whether TCP has carried fewer bytes than the program has sent. */
static bool is_upgraded(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    return info.tcpi_bytes_acked < BEFORE * sizeof(struct message);
}

/* ---- who gets the connection ---- */

static void run_plain(int fd, bool preloaded)
{
    char *const arguments[] = {(char *)(uintptr_t)self, "finish", NULL};
    char *const environment[] = {NULL};
    extern char **environ;

    if (fd != 0)
        CHECK(dup2(fd, 0) == 0);
    execve(self, arguments, preloaded ? environ : environment);
    CHECK(!"the program runs");
}

static void by_program(int fd, bool preloaded)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0)
        run_plain(fd, preloaded);
    close(fd);
    expect_end(child);
}

static void by_plain_program(int fd)
{
    by_program(fd, false);
}

static void by_preloaded_program(int fd)
{
    by_program(fd, true);
}

static void by_list(int fd)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(fd, 0) == 0);
        execl(self, self, "finish", NULL);
        CHECK(!"the program runs");
    }
    close(fd);
    expect_end(child);
}

static void by_spawn(int fd)
{
    char *const arguments[] = {(char *)(uintptr_t)self, "finish", NULL};
    posix_spawn_file_actions_t actions;
    extern char **environ;
    pid_t child;

    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
    CHECK(posix_spawn(&child, self, &actions, NULL, arguments, environ) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    close(fd);
    expect_end(child);
}

/* What is started as a child gets the standard descriptors. */
static void by_shell(int fd)
{
    pid_t child = fork();
    char line[200];

    CHECK(child >= 0);
    if (child == 0) {
        snprintf(line, sizeof line, "exec %s finish", self);
        CHECK(dup2(fd, 0) == 0);
        CHECK(system(line) == 0);
        exit(0);
    }
    close(fd);
    expect_end(child);
}

static int send_descriptor(int to, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return (int)sendmsg(to, &message, 0);
}

static int receive_descriptor(int from)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;

    CHECK(recvmsg(from, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void close_all(int fd, const int ends[2])
{
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

static void by_process(int fd)
{
    int ends[2];
    pid_t child;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        close(fd);
        close(ends[0]);
        run_plain(receive_descriptor(ends[1]), false);
    }
    CHECK(send_descriptor(ends[0], fd) == 1);
    close_all(fd, ends);
    expect_end(child);
}

static void by_stream(int fd)
{
    FILE *file = fdopen(fd, "r+");
    struct message got, expected, sent = message(BEFORE + UNDER_WAY);

    CHECK(file != NULL);
    for (uint32_t number = BEFORE; number < BEFORE + UNDER_WAY; number++) {
        expected = message(number);
        CHECK(fread(&got, sizeof got, 1, file) == 1 && memcmp(&got, &expected, sizeof got) == 0);
    }
    /* Between reads and writes a stream is positioned, which a socket refuses. */
    CHECK(fseek(file, 0, SEEK_CUR) < 0 && errno == ESPIPE);
    clearerr(file);
    CHECK(fwrite(&sent, sizeof sent, 1, file) == 1 && fflush(file) == 0);
    CHECK(fread(&got, sizeof got, 1, file) == 1 && memcmp(&got, &sent, sizeof got) == 0);
    fclose(file);
}

static void by_format(int fd)
{
    CHECK(dprintf(fd, "%s", "") == 0);
    finish(fd, fd, BEFORE);
    close(fd);
}

static void by_option(int fd)
{
    int least = 1;

    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
    finish(fd, fd, BEFORE);
    close(fd);
}

static void by_urgent_byte(int fd)
{
    CHECK(send(fd, "!", 1, MSG_OOB) == 1);
    finish(fd, fd, BEFORE);
    close(fd);
}

static void pass(void)
{
    printf("ok %s\n", name);
    passed++;
}

/* The connection, with its answers unread. */
static void is_handed(const char *how, void (*hand)(int), const char *who, void (*serve)(int))
{
    const bool is_preloaded = getenv("LD_PRELOAD") != NULL;
    pid_t peer;
    int fd;

    snprintf(name, sizeof name, "%s, from a peer %s", how, who);
    peer = open_peer(&fd, serve);
    CHECK(is_upgraded(fd) == is_preloaded);
    for (uint32_t number = BEFORE; number < BEFORE + UNDER_WAY; number++)
        send_message(fd, number);
    hand(fd);
    expect_end(peer);
    pass();
}

/* The peer's calls only send. */
static void is_handed_by_a_receiver(void)
{
    int fd, ends[2];
    pid_t peer;

    snprintf(name, sizeof name, "a connection whose peer only sends");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    peer = open_peer(&fd, count_only);
    for (int number = 0; number < NUMBERS; number++) {
        char byte;

        CHECK(recv(fd, &byte, 1, 0) == 1 && byte == (char)number);
        if (number == NUMBERS / 4) {
            CHECK(send_descriptor(ends[0], fd) == 1);
            close(fd);
            fd = receive_descriptor(ends[1]);
        }
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    expect_end(peer);
    close_all(fd, ends);
    pass();
}

/* Where it cannot be, the call says so and the connection is used on. */
static void is_refused(void)
{
    const bool is_preloaded = getenv("LD_PRELOAD") != NULL;
    static char much[300000];
    pid_t peer;
    int fd, ends[2];

    snprintf(name, sizeof name, "a connection with many unread bytes");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    peer = open_peer(&fd, flood);
    CHECK(send(fd, "x", 1, 0) == 1);
    wait_for(fd, POLLIN);
    usleep(100000);
    CHECK(send_descriptor(ends[0], fd) == (is_preloaded ? -1 : 1));
    CHECK(!is_preloaded || errno == EOPNOTSUPP);
    CHECK(recv(fd, much, sizeof much, MSG_WAITALL) == sizeof much);
    send_message(fd, 0);
    receive_message(fd, 0);
    /* Without unread bytes it can. */
    CHECK(send_descriptor(ends[0], fd) == 1);
    send_message(fd, 1);
    receive_message(fd, 1);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    expect_end(peer);
    close_all(fd, ends);
    pass();

    snprintf(name, sizeof name, "a connection whose peer is stopped");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    peer = open_peer(&fd, echo_blocking);
    CHECK(kill(peer, SIGSTOP) == 0);
    CHECK(waitpid(peer, NULL, WUNTRACED) == peer);
    CHECK(send_descriptor(ends[0], fd) == (is_preloaded ? -1 : 1));
    CHECK(kill(peer, SIGCONT) == 0);
    for (uint32_t number = 0; number < UNDER_WAY; number++)
        send_message(fd, BEFORE + number);
    finish(fd, fd, BEFORE);
    close_all(fd, ends);
    expect_end(peer);
    pass();
}

int main(int count, char **arguments)
{
    static const struct {
        const char *who;
        void (*serve)(int);
    } peers[] = {
        {"that blocks", echo_blocking}, {"that polls", echo_by_poll}, {"with a set", echo_by_level},
        {"with a set, by edge", echo_by_edge}, {"with a set, once", echo_once},
    };
    static const struct {
        const char *how;
        void (*hand)(int);
    } ways[] = {
        {"to a plain program", by_plain_program}, {"to a preloaded program", by_preloaded_program},
        {"to a program by execl", by_list}, {"to a program by posix_spawn", by_spawn},
        {"to a program by system", by_shell}, {"to a plain process", by_process}, {"to a stream", by_stream},
        {"to dprintf", by_format}, {"to an option", by_option}, {"to an urgent byte", by_urgent_byte},
    };

    alarm(60);
    if (count == 2 && strcmp(arguments[1], "finish") == 0) {
        snprintf(name, sizeof name, "the program that was handed a connection");
        finish(0, 0, BEFORE);
        return 0;
    }
    self = arguments[0];
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++)
        for (size_t peer = 0; peer < sizeof peers / sizeof peers[0]; peer++)
            is_handed(ways[way].how, ways[way].hand, peers[peer].who, peers[peer].serve);
    is_handed_by_a_receiver();
    is_refused();
    printf("%d passed, 0 failed\n", passed);
    return 0;
}
