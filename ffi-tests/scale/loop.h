/*
 * One thread and one epoll set that serve any number of stream endpoints, and a listener, by their
 * descriptors alone. For comparison, the thread can poll instead.
 *
 * Two processes with a loop each have a connection for every number below `plan.connections`, and move
 * bytes in both directions on each, in calls of random sizes. Content is checked when it arrives. If
 * nothing moves for some time, the loop prints the state of the streams and fails: this shows a lost
 * wake-up.
 */
#ifndef RSTREAM_SCALE_LOOP_H
#define RSTREAM_SCALE_LOOP_H

#include "../common.h"

#define LOOP_HOST "127.0.0.1"
/* Most concurrent connection attempts. */
#define CONNECTING_MOST 256

enum waiting {
    /* In epoll_wait on the descriptors, level-triggered or edge-triggered. */
    WAIT_SLEEP,
    WAIT_EDGE,
    /* Likewise, after fi_trywait, as in fi_poll(3). */
    WAIT_TRYWAIT,
    /* It does not sleep, but calls each endpoint in turn. */
    WAIT_POLL,
};

/* What both processes do. */
struct plan {
    unsigned connections;
    unsigned rounds;
    enum waiting waiting;
    /* Every endpoint has its own event queue. */
    bool own_queues;
    /* Bytes in each direction of a connection: this number, or a random number up to it. */
    uint64_t bytes;
    bool random_amount;
    /* The server sends back what it has received. */
    bool echo;
    unsigned idle_s;
    uint64_t seed;
    struct settings settings;
};

/* The object of a descriptor in the epoll set. */
struct source {
    enum { SOURCE_PEER, SOURCE_QUEUE, SOURCE_STREAM } kind;
    struct stream *stream;
};

struct stream {
    struct source endpoint, queue;
    unsigned number;
    struct fid_ep *ep;
    /* Its own event queue, or the loop's. */
    struct fid_eq *eq;
    enum { STREAM_NONE, STREAM_OPENING, STREAM_OPEN, STREAM_OVER } state;
    bool met_end;
    uint64_t total, sent, received, dice;
};

struct loop {
    const struct plan *plan;
    /* The listener, or the address to connect to. Its event queue serves the endpoints. */
    struct side side;
    struct peer *other;
    struct source peer_source, queue_source;
    int epoll;
    /* The number of phases that both processes have finished. */
    uint64_t phase;
    struct stream *streams;
    /* Streams that were started, are open, have moved all their bytes, and were closed. */
    unsigned begun, open, complete, closed;
    /* Bytes and events so far; returns of epoll_wait; calls for a stream that moved nothing. */
    uint64_t moved, wakeups, empty;
};

/* The number of descriptors that a process needs for its part of the plan. */
unsigned descriptors_of(const struct plan *plan);

void loop_init(struct loop *loop, const struct plan *plan, struct peer *other);
void loop_close(struct loop *loop);
bool loop_serves(const struct loop *loop);

/* Each function runs the loop until both processes are done. */
void loop_open(struct loop *loop);
void loop_use(struct loop *loop);
void loop_idle(struct loop *loop);
/* Waits until the other process has been idle, too: until then this one must not wake it. */
void loop_rested(struct loop *loop);
void loop_end(struct loop *loop);

#endif
