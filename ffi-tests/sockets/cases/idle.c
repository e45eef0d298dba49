/* What is asleep uses no processor time; peers that are stopped; what the kernel says of a connection. */
#include "cases.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* While this process sleeps so long, it may use so much processor time. */
#define SLEEP_MS 400
#define MOST_BUSY_MS 20

static void wait_for_word(struct peer *self, int fd)
{
    hear(self);
    CHECK_INT(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    hear(self);
}

static ssize_t receive_one(void *fd)
{
    char byte;

    return recv(*(int *)fd, &byte, 1, 0);
}

static ssize_t poll_for_bytes(void *fd)
{
    return poll(&(struct pollfd){*(int *)fd, POLLIN, 0}, 1, -1);
}

static ssize_t select_for_bytes(void *fd)
{
    fd_set in;

    FD_ZERO(&in);
    FD_SET(*(int *)fd, &in);
    return select(*(int *)fd + 1, &in, NULL, NULL, NULL);
}

static ssize_t wait_on_set(void *fd, unsigned events)
{
    struct epoll_event event = {.events = events};
    int set = epoll_create1(0);

    CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &event), 0);
    return epoll_wait(set, &event, 1, -1);
}

static ssize_t wait_on_level_set(void *fd)
{
    return wait_on_set(fd, EPOLLIN);
}

static ssize_t wait_on_edge_set(void *fd)
{
    return wait_on_set(fd, EPOLLIN | EPOLLET);
}

static const struct {
    const char *name;
    ssize_t (*call)(void *fd);
} sleeps[] = {{"recv", receive_one}, {"poll", poll_for_bytes}, {"select", select_for_bytes},
              {"epoll", wait_on_level_set}, {"edge", wait_on_edge_set}};

FAMILY(a_sleeper_uses_no_processor_time, sleeps)
{
    struct peer peer;
    struct caller caller;
    int fd = start_peer(&peer, true, wait_for_word);
    int64_t busy;

    start_caller(&caller, kind->call, &fd);
    busy = busy_ms();
    sleep_ms(SLEEP_MS);
    CHECK_RANGE(busy_ms() - busy, 0, MOST_BUSY_MS);
    CHECK(!caller.done);
    tell(&peer);
    join_caller(&caller);
    CHECK_INT(caller.returned, 1);
    tell(&peer);
    join_peer(&peer);
}

#define MANY 50

static ssize_t wait_for_one_of_many(void *set)
{
    struct epoll_event event;

    return epoll_wait(*(int *)set, &event, 1, -1);
}

/* Also with connections that were used a moment ago, all of which it looks at. */
TEST(a_sleeper_with_many_connections_uses_no_processor_time)
{
    static int ends[MANY][2];
    struct caller caller;
    int set = epoll_create1(0);
    int64_t busy;

    for (int i = 0; i < MANY; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = ends[i][0]};

        open_pair(ends[i]);
        CHECK_INT(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][0], &event), 0);
        send_part(ends[i][1], 0, 10);
        CHECK_INT(epoll_wait(set, &event, 1, 5000), 1);
        receive_part(ends[i][0], 0, 10);
    }
    start_caller(&caller, wait_for_one_of_many, &set);
    busy = busy_ms();
    sleep_ms(SLEEP_MS);
    CHECK_RANGE(busy_ms() - busy, 0, MOST_BUSY_MS);
    CHECK_INT(send(ends[MANY / 2][1], "x", 1, MSG_NOSIGNAL), 1);
    join_caller(&caller);
    CHECK_INT(caller.returned, 1);
}

/* ---- a peer that is stopped ---------------------------------------------------------------------------- */

#define MUCH 30000000

static void read_much(struct peer *self, int fd)
{
    hear(self);
    receive_part(fd, 0, MUCH);
    CHECK_INT(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    hear(self);
}

static ssize_t send_much(void *fd)
{
    send_part(*(int *)fd, 0, MUCH);
    return MUCH;
}

static const struct way sides[] = {{"connector", true}, {"acceptor", false}};

/* The writer sleeps while its peer is stopped, and goes on with it. */
FAMILY(a_stopped_reader_holds_a_writer, sides)
{
    struct peer peer;
    struct caller caller;
    int status, fd = start_peer(&peer, kind->number, read_much);
    int64_t busy;

    CHECK_INT(kill(peer.pid, SIGSTOP), 0);
    CHECK_INT(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    CHECK(WIFSTOPPED(status));
    start_caller(&caller, send_much, &fd);
    busy = busy_ms();
    sleep_ms(SLEEP_MS);
    CHECK_RANGE(busy_ms() - busy, 0, MOST_BUSY_MS);
    CHECK(!caller.done);
    CHECK_INT(kill(peer.pid, SIGCONT), 0);
    tell(&peer);
    join_caller(&caller);
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 1);
    tell(&peer);
    join_peer(&peer);
}

/* One that does not wait is told that there is no room, and poll says when there is. */
FAMILY(a_stopped_reader_is_full, sides)
{
    struct peer peer;
    uint8_t bytes[16384];
    uint64_t sent;
    int status, fd = start_peer(&peer, kind->number, read_much);

    CHECK_INT(kill(peer.pid, SIGSTOP), 0);
    CHECK_INT(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    sent = fill_up(fd, 0);
    CHECK_RANGE(sent, 200000, MUCH - 1);
    CHECK_INT(poll_one(fd, POLLOUT, 50), 0);
    CHECK_INT(kill(peer.pid, SIGCONT), 0);
    tell(&peer);
    while (sent < MUCH) {
        size_t length = MUCH - sent < sizeof bytes ? MUCH - sent : sizeof bytes;
        ssize_t now;

        CHECK_INT(poll_one(fd, POLLOUT, 5000), POLLOUT);
        fill(bytes, sent, length);
        now = send(fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(now > 0 || errno == EAGAIN);
        sent += now > 0 ? (uint64_t)now : 0;
    }
    CHECK_INT(recv(fd, &(char){0}, 1, 0), 1);
    tell(&peer);
    join_peer(&peer);
}

/* A peer that is stopped in mid-stream is killed. */
FAMILY(a_stopped_reader_dies, sides)
{
    struct peer peer;
    struct caller caller;
    int status, fd = start_peer(&peer, kind->number, read_much);

    CHECK_INT(kill(peer.pid, SIGSTOP), 0);
    CHECK_INT(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
    start_caller(&caller, receive_one, &fd);
    CHECK(fill_up(fd, 0) > 0);
    kill_peer(&peer);
    join_caller(&caller);
    CHECK_INT(caller.returned, -1);
    CHECK_INT(caller.error, ECONNRESET);
}

/* ---- what is told of a connection ---------------------------------------------------------------------- */

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;

    CHECK_INT(getsockopt(fd, level, name, &value, &length), 0);
    CHECK_INT(length, sizeof value);
    return value;
}

static void set_option(int fd, int level, int name, int value)
{
    CHECK_INT(setsockopt(fd, level, name, &value, sizeof value), 0);
}

/* The program's own wishes, of before the upgrade and after it. */
FAMILY(what_delays_is_told, sides)
{
    int ends[2], own;

    open_fresh(ends);
    own = ends[kind->number];
    set_option(own, IPPROTO_TCP, TCP_CORK, 1);
    set_option(own, IPPROTO_TCP, TCP_CORK, 0);
    set_option(own, IPPROTO_TCP, TCP_NODELAY, 0);
    upgrade(ends);
    CHECK_INT(option(own, IPPROTO_TCP, TCP_NODELAY), 0);
    CHECK_INT(option(ends[1 - kind->number], IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK_INT(option(own, IPPROTO_TCP, TCP_CORK), 0);
    set_option(own, IPPROTO_TCP, TCP_CORK, 1);
    CHECK_INT(option(own, IPPROTO_TCP, TCP_CORK), 1);
    send_part(own, 0, 1);
    receive_part(ends[1 - kind->number], 0, 1);
    set_option(own, IPPROTO_TCP, TCP_CORK, 0);
    set_option(own, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK_INT(option(own, IPPROTO_TCP, TCP_CORK), 0);
    CHECK_INT(option(own, IPPROTO_TCP, TCP_NODELAY), 1);
    close_pair(ends);
}

/* The kernel gets them when it serves the connection again. */
FAMILY(what_delays_counts_after_the_way_back, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);

    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 0);
    set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    CHECK_INT(option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    send_part(fd, 0, 1);
    receive_part(fd, 0, 1);
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}

FAMILY(options_are_told, sides)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    struct stat status;
    int ends[2], fd, unread;

    open_pair(ends);
    fd = ends[kind->number];
    CHECK_INT(fstat(fd, &status), 0);
    CHECK(S_ISSOCK(status.st_mode));
    CHECK_INT(option(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    CHECK_INT(option(fd, SOL_SOCKET, SO_DOMAIN), AF_INET);
    CHECK_INT(option(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    CHECK_INT(option(fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_INT(option(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    CHECK_INT(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    CHECK_INT(info.tcpi_state, TCP_ESTABLISHED);
    CHECK_INT(ioctl(fd, FIONREAD, &unread), 0);
    CHECK_INT(unread, 0);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    CHECK_INT(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    CHECK_INT(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 77);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK_INT(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, 100000);
    CHECK_INT(option(fd, SOL_SOCKET, SO_SNDBUF), 200000);
    set_option(fd, IPPROTO_TCP, TCP_QUICKACK, 1);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
    CHECK_INT(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
    send_part(fd, 0, 5000);
    receive_part(ends[1 - kind->number], 0, 5000);
}

TEST(addresses_are_told)
{
    struct sockaddr_in address[4];
    int ends[2];

    open_pair(ends);
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof *address;

        CHECK_INT(getsockname(ends[i], (struct sockaddr *)&address[2 * i], &length), 0);
        CHECK_INT(getpeername(ends[i], (struct sockaddr *)&address[2 * i + 1], &length), 0);
    }
    CHECK_INT(address[0].sin_port, address[3].sin_port);
    CHECK_INT(address[1].sin_port, address[2].sin_port);
    CHECK_INT(address[0].sin_addr.s_addr, htonl(INADDR_LOOPBACK));
}

/* Small segments that are held back go out when that ends. */
FAMILY(a_cork_delays_no_byte_for_ever, sides)
{
    int ends[2], fd;

    open_pair(ends);
    fd = ends[kind->number];
    set_option(fd, IPPROTO_TCP, TCP_CORK, 1);
    send_part(fd, 0, 100);
    send_part(fd, 100, 100);
    set_option(fd, IPPROTO_TCP, TCP_CORK, 0);
    receive_part(ends[1 - kind->number], 0, 200);
}

/* ---- the C library's streams --------------------------------------------------------------------------- */

/* A stream over a connection that carried bytes before. */
FAMILY(lines_by_a_stream, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);
    FILE *stream = fdopen(fd, "r+");
    char line[64], wanted[64];

    CHECK(stream);
    for (int i = 0; i < 50; i++) {
        snprintf(wanted, sizeof wanted, "line %d\n", i);
        CHECK(fputs(wanted, stream) >= 0);
        CHECK_INT(fflush(stream), 0);
        CHECK(fgets(line, sizeof line, stream));
        CHECK_INT(strcmp(line, wanted), 0);
        /* Changes from input to output. */
        CHECK(fseek(stream, 0, SEEK_CUR) != 0 && errno == ESPIPE);
    }
    CHECK_INT(fclose(stream), 0);
    join_peer(&peer);
}

FAMILY(lines_by_dprintf, sides)
{
    struct peer peer;
    int fd = start_peer(&peer, kind->number, echo);
    char line[64];

    for (int i = 0; i < 50; i++) {
        CHECK_INT(dprintf(fd, "line %02d\n", i), 8);
        CHECK_INT(recv(fd, line, 8, MSG_WAITALL), 8);
        line[8] = '\0';
        CHECK_INT(atoi(line + 5), i);
    }
    CHECK_INT(close(fd), 0);
    join_peer(&peer);
}
