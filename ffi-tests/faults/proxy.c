/* The proxy: one connection at a time, with its plan. */
#include "proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

/* The bytes in flight in one direction. */
struct stream {
    int from, to;
    uint8_t held[65536];
    size_t start, length;
    /* Bytes that were received, and that were sent. */
    uint64_t taken, passed;
    /* The input has ended; the end was passed on. */
    bool ended, told;
};

struct passage {
    const struct plan *plan;
    struct dice dice;
    struct stream streams[2];
    /* One end is gone, or the plan has cut the connection. */
    bool over;
};

/* ---- faults -------------------------------------------------------------------------------- */

static void damage(const struct plan *plan, struct stream *stream, size_t fresh)
{
    uint64_t start = stream->taken - fresh;
    uint8_t *bytes = stream->held + stream->start + stream->length - fresh;

    if (plan->offset < start || plan->offset >= stream->taken)
        return;
    bytes += plan->offset - start;
    if (plan->fault == FAULT_CORRUPT) {
        *bytes ^= plan->value;
    } else if (plan->fault == FAULT_SWAP && plan->offset + 1 < stream->taken) {
        uint8_t first = bytes[0];

        bytes[0] = bytes[1];
        bytes[1] = first;
    }
}

static bool cuts(enum fault fault)
{
    return fault == FAULT_RESET || fault == FAULT_END || fault == FAULT_STALL;
}

/* The number of bytes that may be sent in the direction now. */
static size_t allowed(struct passage *passage, unsigned direction)
{
    const struct plan *plan = passage->plan;
    struct stream *stream = &passage->streams[direction];
    size_t count = stream->length;

    if (plan->delivery == DELIVER_SINGLE && count > 1)
        count = 1;
    else if (plan->delivery == DELIVER_PIECES && count > 1)
        count = 1 + throw_below(&passage->dice, count < 2000 ? count : 2000);
    if (cuts(plan->fault) && direction == plan->direction && stream->passed + count > plan->offset)
        count = plan->offset - stream->passed;
    return count;
}

static void reset(int fd)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    CHECK_SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
}

/* Ends both connections in an orderly way. Closing a socket with unread input would reset it. */
static void end_in_order(struct passage *passage)
{
    int64_t until = now_ms() + 2000;
    uint8_t rest[4096];

    for (unsigned i = 0; i < 2; i++)
        shutdown(passage->streams[i].to, SHUT_WR);
    for (unsigned i = 0; i < 2; i++) {
        struct pollfd poll_fd = {.fd = passage->streams[i].from, .events = POLLIN};

        do
            CHECK_SYS(poll(&poll_fd, 1, 100));
        while (now_ms() < until && (poll_fd.revents == 0 || recv(poll_fd.fd, rest, sizeof rest, 0) > 0));
    }
}

/* Cuts the connection, because the plan's offset has been reached. */
static void cut(struct passage *passage)
{
    struct pollfd ends[2];

    switch (passage->plan->fault) {
    case FAULT_RESET:
        for (unsigned i = 0; i < 2; i++)
            reset(passage->streams[i].from);
        break;
    case FAULT_END:
        end_in_order(passage);
        break;
    default:
        for (unsigned i = 0; i < 2; i++)
            ends[i] = (struct pollfd){.fd = passage->streams[i].from, .events = POLLRDHUP};
        CHECK_SYS(poll(ends, 2, -1));
    }
    passage->over = true;
}

/* ---- passing on ---------------------------------------------------------------------------- */

static void take(struct passage *passage, unsigned direction)
{
    struct stream *stream = &passage->streams[direction];
    size_t behind = stream->start + stream->length;
    ssize_t got = recv(stream->from, stream->held + behind, sizeof stream->held - behind, 0);

    if (got == 0) {
        stream->ended = true;
    } else if (got > 0) {
        stream->length += (size_t)got;
        stream->taken += (uint64_t)got;
        if (direction == passage->plan->direction)
            damage(passage->plan, stream, (size_t)got);
    } else if (errno != EAGAIN) {
        reset(stream->to);
        passage->over = true;
    }
}

static void give(struct passage *passage, unsigned direction)
{
    struct stream *stream = &passage->streams[direction];
    size_t count = allowed(passage, direction);
    ssize_t sent;

    if (count > 0) {
        sent = send(stream->to, stream->held + stream->start, count, MSG_NOSIGNAL);
        if (sent > 0) {
            stream->length -= (size_t)sent;
            stream->start = stream->length > 0 ? stream->start + (size_t)sent : 0;
            stream->passed += (uint64_t)sent;
        } else if (sent < 0 && errno != EAGAIN) {
            /* The receiver is gone, so further bytes of the sender are useless. */
            reset(stream->from);
            passage->over = true;
        }
        if (passage->plan->delivery == DELIVER_PIECES && throw_below(&passage->dice, 8) == 0)
            usleep((useconds_t)throw_below(&passage->dice, 1500));
    }
    if (cuts(passage->plan->fault) && direction == passage->plan->direction &&
        stream->passed == passage->plan->offset)
        cut(passage);
}

static bool has_room(const struct stream *stream)
{
    return !stream->ended && stream->start + stream->length < sizeof stream->held;
}

static void run(struct passage *passage)
{
    struct stream *streams = passage->streams;

    for (unsigned i = 0; i < 2; i++)
        if (cuts(passage->plan->fault) && i == passage->plan->direction && passage->plan->offset == 0)
            cut(passage);
    while (!passage->over && !(streams[0].told && streams[1].told)) {
        struct pollfd fds[2] = {{.fd = streams[0].from}, {.fd = streams[1].from}};

        for (unsigned i = 0; i < 2; i++) {
            if (has_room(&streams[i]))
                fds[i].events |= POLLIN;
            if (streams[i].length > 0)
                fds[1 - i].events |= POLLOUT;
        }
        CHECK_SYS(poll(fds, 2, -1));
        for (unsigned i = 0; i < 2 && !passage->over; i++) {
            if (fds[i].revents && has_room(&streams[i]))
                take(passage, i);
            if (streams[i].length > 0 && !passage->over)
                give(passage, i);
            if (streams[i].ended && streams[i].length == 0 && !streams[i].told && !passage->over) {
                shutdown(streams[i].to, SHUT_WR);
                streams[i].told = true;
            }
        }
    }
}

static void prepare(int fd)
{
    int on = 1;

    CHECK_SYS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    CHECK_SYS(fcntl(fd, F_SETFL, O_NONBLOCK));
}

static void serve(struct peer *self, void *argument)
{
    static struct passage passage;
    struct plan plan;
    unsigned port;
    int listening = tcp_listen(&port);

    (void)argument;
    peer_tell(self, port);
    while (read(self->from_peer, &plan, sizeof plan) == sizeof plan) {
        int from = (int)CHECK_SYS(accept(listening, NULL, NULL)), to = tcp_connect(plan.port);

        prepare(from);
        prepare(to);
        memset(&passage, 0, sizeof passage);
        passage.plan = &plan;
        passage.dice.state = plan.seed;
        passage.streams[0].from = passage.streams[1].to = from;
        passage.streams[0].to = passage.streams[1].from = to;
        run(&passage);
        close(from);
        close(to);
        peer_tell(self, passage.streams[0].passed);
        peer_tell(self, passage.streams[1].passed);
    }
}

void proxy_start(struct proxy *proxy)
{
    peer_start(&proxy->peer, serve, NULL);
    proxy->port = (unsigned)peer_hear(&proxy->peer);
}

void proxy_end(struct proxy *proxy)
{
    peer_join(&proxy->peer);
}

void proxy_expect(struct proxy *proxy, const struct plan *plan)
{
    CHECK_INT(CHECK_SYS(write(proxy->peer.to_peer, plan, sizeof *plan)), sizeof *plan);
}

void proxy_passed(struct proxy *proxy, uint64_t passed[2])
{
    passed[0] = peer_hear(&proxy->peer);
    passed[1] = peer_hear(&proxy->peer);
}
