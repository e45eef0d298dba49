#include "setup.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cost.h"

#define ROUNDS_MOST 99
#define BATCH 64

/* The results of one candidate in one round. The memory is that of the process that uses more. */
struct results {
    double open_ms, busy_us, idle_kib, used_kib, close_ms;
};

/* ---- plain TCP ---------------------------------------------------------------------------- */

static void watch(int set, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};

    CHECK_SYS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

static void stands(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    CHECK_SYS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    CHECK_SYS(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}

static void accept_all(int listener, int set, int *sockets, unsigned count)
{
    struct epoll_event events[BATCH];

    for (unsigned open = 0; open < count;) {
        int fd;

        CHECK_SYS(epoll_wait(set, events, BATCH, PATIENCE_MS));
        while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            watch(set, fd, EPOLLIN);
            CHECK_SYS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
            sockets[open++] = fd;
        }
        CHECK_INT(errno, EAGAIN);
    }
}

static void connect_all(unsigned port, int set, int *sockets, unsigned count)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    struct epoll_event events[BATCH];

    for (unsigned begun = 0, open = 0; open < count;) {
        for (; begun < count && begun - open < CONNECTING_MOST; begun++) {
            int fd = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

            if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
                CHECK_INT(errno, EINPROGRESS);
            watch(set, fd, EPOLLOUT);
            sockets[begun] = fd;
        }
        int ready = (int)CHECK_SYS(epoll_wait(set, events, BATCH, PATIENCE_MS));
        for (int i = 0; i < ready; i++) {
            int error;
            socklen_t length = sizeof error;

            CHECK_SYS(getsockopt(events[i].data.fd, SOL_SOCKET, SO_ERROR, &error, &length));
            CHECK_INT(error, 0);
            stands(set, events[i].data.fd);
        }
        open += (unsigned)ready;
    }
}

static void meet(struct peer *other)
{
    peer_tell(other, 1);
    CHECK_INT(peer_hear(other), 1);
}

/* One side of plain TCP. `port` is 0 on the side that listens. */
static struct results tcp_side(struct peer *other, unsigned port, unsigned count)
{
    int *sockets = calloc(count, sizeof *sockets), set = (int)CHECK_SYS(epoll_create1(EPOLL_CLOEXEC)), listener = -1;
    struct cost before, open, closed;
    struct results results = {0};

    CHECK(sockets != NULL);
    if (port == 0) {
        listener = tcp_listen(&port);
        CHECK_SYS(listen(listener, CONNECTING_MOST));
        CHECK_SYS(fcntl(listener, F_SETFL, O_NONBLOCK));
        watch(set, listener, EPOLLIN);
        peer_tell(other, port);
    }
    meet(other);
    before = cost_now();
    if (listener >= 0)
        accept_all(listener, set, sockets, count);
    else
        connect_all(port, set, sockets, count);
    meet(other);
    open = cost_now();
    for (unsigned i = 0; i < count; i++)
        close(sockets[i]);
    closed = cost_now();
    free(sockets);
    results.open_ms = (double)(open.at - before.at) / 1000;
    results.busy_us = (double)(open.busy - before.busy) / count;
    results.idle_kib = results.used_kib = (double)(open.resident - before.resident) / 1024 / count;
    results.close_ms = (double)(closed.at - open.at) / 1000;
    return results;
}

/* ---- stream endpoints --------------------------------------------------------------------- */

/* One side of stream endpoints. `port` is 0 on the side that listens. */
static struct results stream_side(struct peer *other, unsigned port, const struct plan *plan)
{
    unsigned count = plan->connections;
    struct cost before, open, used, closed;
    struct loop loop;

    if (port == 0) {
        side_listen(&loop.side, LOOP_HOST, &plan->settings);
        peer_tell(other, fid_port(&loop.side.pep->fid));
    } else {
        side_open(&loop.side, find_peer(LOOP_HOST, port, &plan->settings));
    }
    loop_init(&loop, plan, other);
    pattern(0, 1);
    meet(other);
    before = cost_now();
    loop_open(&loop);
    open = cost_now();
    loop_use(&loop);
    used = cost_now();
    loop_end(&loop);
    closed = cost_now();
    loop_close(&loop);
    side_close(&loop.side);
    return (struct results){
        .open_ms = (double)(open.at - before.at) / 1000,
        .busy_us = (double)(open.busy - before.busy) / count,
        .idle_kib = (double)(open.resident - before.resident) / 1024 / count,
        .used_kib = (double)(used.resident - before.resident) / 1024 / count,
        .close_ms = (double)(closed.at - used.at) / 1000,
    };
}

/* ---- both in turn ------------------------------------------------------------------------- */

struct turn {
    bool tcp;
    const struct plan *plan;
};

static struct results side_of(const struct turn *turn, struct peer *other, unsigned port)
{
    return turn->tcp ? tcp_side(other, port, turn->plan->connections) : stream_side(other, port, turn->plan);
}

static void server(struct peer *self, void *argument)
{
    side_of(argument, self, 0);
}

/* The client of a turn is also a new process, so that no turn inherits memory of another. */
static void client(struct peer *self, void *argument)
{
    struct turn *turn = argument;
    struct peer other;
    struct results results;

    peer_start(&other, server, turn);
    results = side_of(turn, &other, (unsigned)peer_hear(&other));
    peer_join(&other);
    CHECK_INT(write(self->to_peer, &results, sizeof results), sizeof results);
}

static struct results take_turn(const struct plan *plan, bool tcp)
{
    struct turn turn = {.tcp = tcp, .plan = plan};
    struct results results;
    struct peer peer;

    peer_start(&peer, client, &turn);
    CHECK_INT(read(peer.from_peer, &results, sizeof results), sizeof results);
    peer_join(&peer);
    return results;
}

static int ascending(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;

    return (one > other) - (one < other);
}

/* Summarizes the field at `offset` in the results of all rounds: median, least, greatest. */
static double summarize(const struct results *of, unsigned rounds, size_t offset, const char *name, const char *unit)
{
    double values[ROUNDS_MOST];

    for (unsigned i = 0; i < rounds; i++)
        memcpy(&values[i], (const char *)&of[i] + offset, sizeof values[i]);
    qsort(values, rounds, sizeof values[0], ascending);
    printf("%s %.1f (%.1f, %.1f) %s", name, values[rounds / 2], values[0], values[rounds - 1], unit);
    return values[rounds / 2];
}

void compare_setup(struct plan *plan)
{
    static const struct {
        const char *name, *unit;
        size_t offset;
    } rows[] = {
        {"opened in", "ms", offsetof(struct results, open_ms)},
        {"busy", "us a connection", offsetof(struct results, busy_us)},
        {"closed in", "ms", offsetof(struct results, close_ms)},
        {"resident, idle", "KiB a connection", offsetof(struct results, idle_kib)},
        {"resident, used", "KiB a connection", offsetof(struct results, used_kib)},
    };
    struct results results[2][ROUNDS_MOST];

    CHECK_BETWEEN(plan->rounds, 1, ROUNDS_MOST);
    need_descriptors(descriptors_of(plan));
    for (unsigned i = 0; i < plan->rounds; i++)
        for (unsigned tcp = 0; tcp < 2; tcp++)
            results[tcp][i] = take_turn(plan, tcp);
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        double tcp = summarize(results[1], plan->rounds, rows[row].offset, rows[row].name, rows[row].unit), ours;

        ours = summarize(results[0], plan->rounds, rows[row].offset, "; rstream", rows[row].unit);
        printf("; ratio %.2f\n", ours / tcp);
    }
}
