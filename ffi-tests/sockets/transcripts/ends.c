/* One end: its connections, the turn, and what it writes down. */
#include "transcripts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct self self;

void give_up(const char *what)
{
    remark("%s does not hold: %s", what, strerrorname_np(errno));
    _exit(1);
}

/* ---- the transcript -------------------------------------------------------------------------------------- */

static void write_line(const char *line, int length)
{
    if (write(self.transcript, line, (size_t)length) != length)
        _exit(1);
}

static int format_line(char *line, size_t room, int length, const char *format, va_list arguments)
{
    length += vsnprintf(line + length, room - (size_t)length, format, arguments);
    line[length] = '\n';
    return length + 1;
}

void note(const struct step *step, const char *format, ...)
{
    static const char *const names[] = {
        "send", "receive", "poll", "count", "error", "watch", "wait", "copy", "drop", "mode", "limit", "shut", "sleep",
        "talk", "fill", "home", "program", "fork", "return", "close", "drain",
    };
    char line[600];
    int length = snprintf(line, sizeof line, "step %u, end %u, connection %u, %s: ", step->number, self.end,
                          step->connection, names[step->kind]);
    va_list arguments;

    va_start(arguments, format);
    write_line(line, format_line(line, sizeof line - 1, length, format, arguments));
    va_end(arguments);
}

void remark(const char *format, ...)
{
    char line[600] = "# ";
    va_list arguments;

    va_start(arguments, format);
    write_line(line, format_line(line, sizeof line - 1, 2, format, arguments));
    va_end(arguments);
}

const char *returned(long result)
{
    static char texts[8][48];
    static unsigned next;
    char *text = texts[next++ % 8];

    if (result >= 0)
        snprintf(text, sizeof texts[0], "%ld", result);
    else
        snprintf(text, sizeof texts[0], "%s", strerrorname_np(errno));
    return text;
}

/* ---- the kernel's counts --------------------------------------------------------------------------------- */

/* By a system call that the library does not see. */
static struct tcp_info kernel_counts(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    REQUIRE(syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    return info;
}

static uint64_t kernel_sent(const struct tcp_info *info)
{
    return info->tcpi_bytes_sent - info->tcpi_bytes_retrans + info->tcpi_notsent_bytes;
}

static bool is_state_in(const struct tcp_info *info, unsigned states)
{
    return states >> info->tcpi_state & 1;
}

enum {
    CLOSED = 1 << BPF_TCP_CLOSE,
    /* This side has sent its end; it has received the other's. */
    SENT_END = 1 << BPF_TCP_FIN_WAIT1 | 1 << BPF_TCP_FIN_WAIT2 | 1 << BPF_TCP_LAST_ACK | 1 << BPF_TCP_CLOSING |
               1 << BPF_TCP_TIME_WAIT | CLOSED,
    RECEIVED_END = 1 << BPF_TCP_CLOSE_WAIT | 1 << BPF_TCP_LAST_ACK | 1 << BPF_TCP_CLOSING | 1 << BPF_TCP_TIME_WAIT |
                   CLOSED,
};

static void pause_until(const struct timespec *limit, const char *what)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > limit->tv_sec)
        give_up(what);
    usleep(20);
}

static struct timespec in_seconds(int seconds)
{
    struct timespec limit;

    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += seconds;
    return limit;
}

void await_reset(unsigned connection)
{
    struct timespec limit = in_seconds(3);
    struct tcp_info info;

    while (info = kernel_counts(self.fds[connection][0]), !is_state_in(&info, CLOSED))
        pause_until(&limit, "the reset arrives");
}

void remark_on_upgrades(const struct plan *plan)
{
    for (unsigned at = 0; at < plan->connections; at++) {
        const struct side *side = &plan->sides[at][self.end];

        if (self.fds[at][0] >= 0) {
            struct tcp_info info = kernel_counts(self.fds[at][0]);
            if (kernel_sent(&info) < side->sent)
                remark("upgraded");
        }
    }
}

/* ---- the turn -------------------------------------------------------------------------------------------- */

/* With it goes what the kernel has sent on each connection. */
static struct turn {
    uint64_t number;
    uint64_t sent[CONNECTIONS];
    bool has_ended[CONNECTIONS];
} given;

static void note_sent(unsigned connection, bool closes)
{
    if (self.fds[connection][0] >= 0) {
        struct tcp_info info = kernel_counts(self.fds[connection][0]);
        given.sent[connection] = kernel_sent(&info);
        given.has_ended[connection] = closes || is_state_in(&info, SENT_END);
    }
}

void note_close(unsigned connection)
{
    note_sent(connection, true);
    memset(self.fds[connection], -1, sizeof self.fds[connection]);
}

void give_turn(uint64_t number)
{
    for (unsigned at = 0; at < CONNECTIONS; at++)
        note_sent(at, false);
    given.number = number;
    REQUIRE(write(self.channel, &given, sizeof given) == sizeof given);
}

static bool has_arrived(int fd, uint64_t sent, bool has_ended)
{
    struct tcp_info info = kernel_counts(fd);

    return is_state_in(&info, CLOSED) ||
           (info.tcpi_bytes_received >= sent && (!has_ended || is_state_in(&info, RECEIVED_END)));
}

static struct turn take(void)
{
    struct turn turn;

    REQUIRE(read(self.channel, &turn, sizeof turn) == sizeof turn);
    return turn;
}

uint64_t take_number(void)
{
    return take().number;
}

uint64_t take_turn(void)
{
    struct turn turn = take();
    struct timespec limit = in_seconds(3);

    for (unsigned at = 0; at < CONNECTIONS; at++)
        while (self.fds[at][0] >= 0 && !has_arrived(self.fds[at][0], turn.sent[at], turn.has_ended[at]))
            pause_until(&limit, "what was sent arrives");
    return turn.number;
}

void take_turn_busily(void)
{
    while (poll(&(struct pollfd){self.channel, POLLIN, 0}, 1, 0) == 0) {
        for (unsigned at = 0; at < CONNECTIONS; at++)
            (void)poll(&(struct pollfd){self.fds[at][0], POLLIN, 0}, 1, 0);
        usleep(100);
    }
    (void)take_turn();
}

/* ---- connections ----------------------------------------------------------------------------------------- */

/* With a buffer in which the longest segment has room beside what may be unread: else none would be taken. */
static int new_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    REQUIRE(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){1 << 20}, sizeof(int)) == 0);
    return fd;
}

static int connect_one(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = new_socket();

    address.sin_port = htons((uint16_t)take_turn());
    REQUIRE(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    give_turn(0);
    return fd;
}

static int accept_one(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd, listener = new_socket();

    REQUIRE(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    give_turn(ntohs(address.sin_port));
    REQUIRE((fd = accept(listener, NULL, NULL)) >= 0);
    close(listener);
    (void)take_turn();
    return fd;
}

void open_connections(const struct plan *plan)
{
    for (unsigned at = 0; at < plan->connections; at++) {
        int fd = connecting_end(plan, at) == self.end ? connect_one() : accept_one();
        /* Else what is sent waits until what was sent before is acknowledged. */
        REQUIRE(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
        self.fds[at][0] = fd;
    }
}

int any_fd(const struct step *step)
{
    const int *fds = self.fds[step->connection];
    unsigned copies = 0;

    while (copies < COPIES && fds[copies] >= 0)
        copies++;
    return fds[step->number % copies];
}
