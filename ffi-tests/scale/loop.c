#include "traffic.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Longer than any step takes here, and shorter than any timer that would hide a lost wake-up. */
#define STALL_MS 10000
#define BATCH 64
/* Descriptors of the program and of libfabric itself. */
#define BESIDES 64

bool loop_serves(const struct loop *loop)
{
    return loop->side.pep != NULL;
}

/* ---- streams ------------------------------------------------------------------------------ */

static void watch(struct loop *loop, int fd, struct source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

    if (loop->plan->waiting == WAIT_EDGE)
        event.events |= EPOLLET;
    if (loop->plan->waiting != WAIT_POLL)
        CHECK_SYS(epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event));
}

static struct stream *begin(struct loop *loop, struct fi_info *info, unsigned number)
{
    struct stream *stream = &loop->streams[number];
    uint64_t dice = (loop->plan->seed + number + 1) * 0x9e3779b97f4a7c15;

    CHECK_INT(stream->state, STREAM_NONE);
    *stream = (struct stream){
        .endpoint = {SOURCE_STREAM, stream},
        .queue = {SOURCE_QUEUE, stream},
        .number = number,
        .state = STREAM_OPENING,
        .dice = dice,
        .eq = loop->side.eq,
        .total = loop->plan->bytes,
    };
    if (loop->plan->random_amount)
        stream->total = 1 + roll(stream) % loop->plan->bytes;
    /* From here on the two sides may use different random numbers. */
    stream->dice += loop_serves(loop);
    loop->begun++;
    CHECK_OK(fi_endpoint(loop->side.domain, info, &stream->ep, stream));
    if (loop->plan->own_queues) {
        stream->eq = open_eq(loop->side.fabric);
        watch(loop, wait_fd(&stream->eq->fid), &stream->queue);
    }
    CHECK_OK(fi_ep_bind(stream->ep, &stream->eq->fid, 0));
    return stream;
}

static void connect_next(struct loop *loop)
{
    uint32_t number = loop->begun;
    struct stream *stream = begin(loop, loop->side.info, number);

    apply_settings(&stream->ep->fid, &loop->plan->settings);
    CHECK_OK(fi_connect(stream->ep, loop->side.info->dest_addr, &number, sizeof number));
}

static void accept_one(struct loop *loop, const struct event *request)
{
    uint32_t number;

    CHECK_INT(request->data_length, sizeof number);
    memcpy(&number, request->data, sizeof number);
    CHECK_BETWEEN(number, 0, loop->plan->connections - 1);
    CHECK_OK(fi_accept(begin(loop, request->info, number)->ep, NULL, 0));
    fi_freeinfo(request->info);
}

static void close_stream(struct loop *loop, struct stream *stream)
{
    close_fid(&stream->ep->fid);
    if (loop->plan->own_queues)
        close_fid(&stream->eq->fid);
    stream->ep = NULL;
    loop->closed++;
}

/* The server closes a stream that the client has closed, after it has read the end and the event. */
static void close_if_over(struct loop *loop, struct stream *stream)
{
    if (stream->met_end && stream->state == STREAM_OVER)
        close_stream(loop, stream);
}

/* ---- moving bytes ------------------------------------------------------------------------- */

/* Calls in both directions until neither moves bytes, because only then a wake-up is guaranteed. A
 * level-triggered set also reports unread bytes. */
static void serve_stream(struct loop *loop, struct stream *stream)
{
    bool was_complete = is_complete(stream);
    uint64_t before = loop->moved;
    size_t sent, received;

    if (stream->state == STREAM_OPENING || !stream->ep || stream->met_end)
        return;
    do {
        received = receive_some(loop, stream);
        sent = stream->met_end ? 0 : send_some(loop, stream);
        loop->moved += sent + received;
        if (received && !sent && loop->plan->waiting == WAIT_SLEEP && roll(stream) % 2)
            break;
    } while (sent || received);
    loop->empty += loop->moved == before && !stream->met_end;
    loop->complete += !was_complete && is_complete(stream);
    if (stream->met_end) {
        loop->moved++;
        /* The end of the stream can be read again and again. */
        if (loop->plan->waiting != WAIT_POLL)
            CHECK_SYS(epoll_ctl(loop->epoll, EPOLL_CTL_DEL, wait_fd(&stream->ep->fid), NULL));
        close_if_over(loop, stream);
    }
}

/* ---- events ------------------------------------------------------------------------------- */

static void connected(struct loop *loop, struct stream *stream)
{
    CHECK_INT(stream->state, STREAM_OPENING);
    stream->state = STREAM_OPEN;
    loop->open++;
    if (loop->plan->waiting != WAIT_POLL)
        watch(loop, wait_fd(&stream->ep->fid), &stream->endpoint);
}

static void serve_queue(struct loop *loop, struct fid_eq *eq)
{
    struct event event;

    while (read_event(eq, &event)) {
        struct stream *stream = event.fid->context;

        loop->moved++;
        switch (event.kind) {
        case FI_CONNREQ:
            accept_one(loop, &event);
            break;
        case FI_CONNECTED:
            connected(loop, stream);
            break;
        case FI_SHUTDOWN:
            CHECK_INT(stream->state, STREAM_OPEN);
            stream->state = STREAM_OVER;
            close_if_over(loop, stream);
            if (loop->plan->own_queues && !stream->ep)
                return;
            break;
        default:
            fail_at(__FILE__, __LINE__, "event %u", event.kind);
        }
    }
}

/* ---- waiting ------------------------------------------------------------------------------ */

static void serve(struct loop *loop, const struct source *source)
{
    struct stream *stream = source->stream;
    bool trywait = loop->plan->waiting == WAIT_TRYWAIT;
    struct fid *fid;

    if (stream && !stream->ep)
        return;
    do {
        switch (source->kind) {
        case SOURCE_PEER:
            return;
        case SOURCE_QUEUE:
            fid = stream ? &stream->eq->fid : &loop->side.eq->fid;
            serve_queue(loop, stream ? stream->eq : loop->side.eq);
            break;
        case SOURCE_STREAM:
            fid = &stream->ep->fid;
            serve_stream(loop, stream);
            break;
        }
    } while (trywait && !(stream && (!stream->ep || stream->met_end)) &&
             fi_trywait(loop->side.fabric, &fid, 1) == -FI_EAGAIN);
}

static void sleep_and_serve(struct loop *loop, int ms)
{
    struct epoll_event events[BATCH];
    int count = (int)CHECK_SYS(epoll_wait(loop->epoll, events, BATCH, ms));

    loop->wakeups++;
    for (int i = 0; i < count; i++)
        serve(loop, events[i].data.ptr);
}

static void poll_all(struct loop *loop)
{
    serve(loop, &loop->queue_source);
    for (unsigned i = 0; i < loop->plan->connections; i++) {
        struct stream *stream = &loop->streams[i];

        if (loop->plan->own_queues && stream->ep)
            serve(loop, &stream->queue);
        if (stream->ep)
            serve(loop, &stream->endpoint);
    }
}

static _Noreturn void stalled(struct loop *loop, const char *phase)
{
    unsigned told = 0;

    fprintf(stderr, "%s: seed %llu, begun %u, open %u, complete %u, closed %u of %u\n",
            loop_serves(loop) ? "server" : "client", (unsigned long long)loop->plan->seed, loop->begun,
            loop->open, loop->complete, loop->closed, loop->plan->connections);
    for (unsigned i = 0; i < loop->begun && told < 10; i++) {
        struct stream *stream = &loop->streams[i];

        if (!stream->ep || (stream->state == STREAM_OPEN && is_complete(stream)))
            continue;
        told++;
        fprintf(stderr, "  stream %u, state %d: sent %llu, received %llu of %llu; its descriptor is %s", i,
                stream->state, (unsigned long long)stream->sent, (unsigned long long)stream->received,
                (unsigned long long)stream->total, readable(wait_fd(&stream->ep->fid), 0) ? "readable" : "quiet");
        fprintf(stderr, "; a send would answer %zd, a receive %zd\n",
                fi_sendmsg(stream->ep, &(struct fi_msg){0}, FI_PEEK),
                fi_recvmsg(stream->ep, &(struct fi_msg){0}, FI_PEEK));
    }
    fail_at(__FILE__, __LINE__, "nothing moved for %d ms while %s", STALL_MS, phase);
}

static void run(struct loop *loop, const char *phase, bool (*done)(struct loop *loop))
{
    uint64_t moved = loop->moved;
    int64_t until = now_ms() + STALL_MS;

    while (!done(loop)) {
        if (loop->plan->waiting == WAIT_POLL)
            poll_all(loop);
        else
            sleep_and_serve(loop, STALL_MS);
        if (loop->moved != moved) {
            moved = loop->moved;
            until = now_ms() + STALL_MS;
        } else if (now_ms() >= until) {
            stalled(loop, phase);
        }
    }
}

/* An endpoint has a socket. To sleep it has an epoll set, and shares an eventfd with seven others. An
 * event queue has an epoll set, an eventfd and a timer. */
unsigned descriptors_of(const struct plan *plan)
{
    unsigned of_endpoint = plan->waiting == WAIT_POLL ? 8 : 17, of_queue = plan->own_queues ? 17 : 0;

    return BESIDES + plan->connections * (of_endpoint + of_queue) / 8;
}

/* ---- phases ------------------------------------------------------------------------------- */

static bool other_is_here(struct loop *loop)
{
    return readable(loop->other->from_peer, 0);
}

/* Serves until the other process has reached the same phase. */
static void meet(struct loop *loop, const char *phase)
{
    loop->phase++;
    peer_tell(loop->other, loop->phase);
    run(loop, phase, other_is_here);
    CHECK_INT(peer_hear(loop->other), loop->phase);
}

static bool all_open(struct loop *loop)
{
    if (!loop_serves(loop))
        while (loop->begun < loop->plan->connections && loop->begun - loop->open < CONNECTING_MOST)
            connect_next(loop);
    return loop->open == loop->plan->connections;
}

static bool all_complete(struct loop *loop)
{
    return loop->complete == loop->plan->connections;
}

static bool all_closed(struct loop *loop)
{
    return loop->closed == loop->plan->connections;
}

void loop_open(struct loop *loop)
{
    meet(loop, "starting");
    run(loop, "connecting", all_open);
    meet(loop, "connecting");
}

void loop_use(struct loop *loop)
{
    /* The descriptor does not report that a new stream can be written. */
    for (unsigned i = 0; i < loop->plan->connections; i++)
        serve(loop, &loop->streams[i].endpoint);
    run(loop, "moving bytes", all_complete);
    meet(loop, "moving bytes");
}

void loop_idle(struct loop *loop)
{
    int64_t until = now_ms() + loop->plan->idle_s * 1000;
    int64_t left;

    /* The other process may have been idle long enough before this one, and says so. */
    CHECK_SYS(epoll_ctl(loop->epoll, EPOLL_CTL_DEL, loop->other->from_peer, NULL));
    while ((left = until - now_ms()) > 0)
        sleep_and_serve(loop, (int)left);
    watch(loop, loop->other->from_peer, &loop->peer_source);
}

void loop_rested(struct loop *loop)
{
    meet(loop, "resting");
}

void loop_end(struct loop *loop)
{
    if (!loop_serves(loop)) {
        /* fi_close waits until the peer's host has everything. A peer that polls thousands of streams
         * takes long for that. If all streams are shut down first, their peers have had this time. */
        for (unsigned i = 0; i < loop->plan->connections && loop->plan->waiting == WAIT_POLL; i++)
            CHECK_OK(fi_shutdown(loop->streams[i].ep, 0));
        for (unsigned i = 0; i < loop->plan->connections; i++)
            close_stream(loop, &loop->streams[i]);
    }
    run(loop, "closing", all_closed);
    loop->begun = loop->open = loop->complete = loop->closed = 0;
    memset(loop->streams, 0, loop->plan->connections * sizeof *loop->streams);
    meet(loop, "closing");
}

void loop_init(struct loop *loop, const struct plan *plan, struct peer *other)
{
    *loop = (struct loop){
        .plan = plan,
        .side = loop->side,
        .other = other,
        .peer_source = {SOURCE_PEER, NULL},
        .queue_source = {SOURCE_QUEUE, NULL},
        .epoll = (int)CHECK_SYS(epoll_create1(EPOLL_CLOEXEC)),
        .streams = calloc(plan->connections, sizeof *loop->streams),
    };
    CHECK(loop->streams != NULL);
    watch(loop, other->from_peer, &loop->peer_source);
    watch(loop, wait_fd(&loop->side.eq->fid), &loop->queue_source);
}

void loop_close(struct loop *loop)
{
    free(loop->streams);
    close(loop->epoll);
}
