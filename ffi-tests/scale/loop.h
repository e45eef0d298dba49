/*
 * One thread and one epoll set that serve any number of stream endpoints, and a listener, by their
 * descriptors alone; or, to compare, a thread that polls.
 *
 * Two processes with a loop each have a connection for every number below `plan.connections`, and
 * on each of them move bytes both ways in calls of random sizes. Content is checked as it arrives.
 * When nothing at all moves for a while the loop says what state the streams are in and fails: so
 * a wake-up that was lost is seen.
 */
#ifndef RSTREAM_SCALE_LOOP_H
#define RSTREAM_SCALE_LOOP_H

#include "../common.h"

#define LOOP_HOST "127.0.0.1"
/* Connection attempts under way at once. */
#define CONNECTING_MOST 256

enum waiting {
    /* In epoll_wait, for nothing but the descriptors; level-triggered, or edge-triggered. */
    WAIT_SLEEP,
    WAIT_EDGE,
    /* The same with fi_trywait first, as fi_poll(3) has it. */
    WAIT_TRYWAIT,
    /* Nowhere: calls in a circle. */
    WAIT_POLL,
};

/* What both processes do. */
struct plan {
    unsigned connections;
    unsigned rounds;
    enum waiting waiting;
    /* Every endpoint has an event queue of its own. */
    bool own_queues;
    /* Bytes each way on a connection: so many, or a random number up to it. */
    uint64_t bytes;
    bool random_amount;
    /* The server sends only what it has received. */
    bool echo;
    unsigned idle_s;
    uint64_t seed;
    struct settings settings;
};

/* What a descriptor in the epoll set stands for. */
struct source {
    enum { SOURCE_PEER, SOURCE_QUEUE, SOURCE_STREAM } kind;
    struct stream *stream;
};

struct stream {
    struct source endpoint, queue;
    unsigned number;
    struct fid_ep *ep;
    /* Its own or the loop's. */
    struct fid_eq *eq;
    enum { STREAM_NONE, STREAM_OPENING, STREAM_OPEN, STREAM_OVER } state;
    bool met_end;
    uint64_t total, sent, received, dice;
};

struct loop {
    const struct plan *plan;
    /* What listens, or knows whom to connect to; its event queue serves the endpoints. */
    struct side side;
    struct peer *other;
    struct source peer_source, queue_source;
    int epoll;
    /* Phases that both processes have ended. */
    uint64_t phase;
    struct stream *streams;
    /* Streams that were begun, stand, have moved all their bytes, and were closed. */
    unsigned begun, open, complete, closed;
    /* Bytes and events so far; returns of epoll_wait; visits of a stream that moved nothing. */
    uint64_t moved, wakeups, empty;
};

/* What a process needs for its part of the plan. */
unsigned descriptors_of(const struct plan *plan);

void loop_init(struct loop *loop, const struct plan *plan, struct peer *other);
void loop_close(struct loop *loop);
bool loop_serves(const struct loop *loop);

/* Each runs the loop until the work is done in both processes. */
void loop_open(struct loop *loop);
void loop_use(struct loop *loop);
void loop_idle(struct loop *loop);
void loop_end(struct loop *loop);

#endif
