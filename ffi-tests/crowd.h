/*
 * Many connections of one listener with one event queue, which several threads read. Any thread can move
 * bytes on any connection.
 */
#ifndef RSTREAM_TESTS_CROWD_H
#define RSTREAM_TESTS_CROWD_H

#include <pthread.h>
#include <stdatomic.h>

#include "common.h"

/* ---- one direction -------------------------------------------------------------------------- */

/* One direction of one endpoint: `length` bytes of the pattern, in calls of at most `part`. Only one
 * thread at a time may use it. */
struct flow {
    struct fid_ep *ep;
    uint64_t length;
    size_t part;
    uint64_t done;
};

/* Makes one call, and checks received bytes. Returns whether bytes moved. */
bool flow_send(struct flow *flow);
bool flow_recv(struct flow *flow);
/* Moves all bytes of a flow, and repeats calls until they succeed. */
void flow_send_all(struct flow *flow);
void flow_recv_all(struct flow *flow);
/* Moves `length` bytes in both directions at once, with a thread for each direction of each endpoint. */
void flows_cross(struct fid_ep *one, struct fid_ep *other, uint64_t length);

/* ---- connections ---------------------------------------------------------------------------- */

struct end {
    struct fi_info *info;
    struct fid_domain *domain;
    _Atomic(struct fid_ep *) ep;
    /* How often the event queue reported these events. */
    atomic_uint connected, shut;
    /* The number of its close, or 0 while it is open. */
    atomic_uint closed;
    struct flow out, in;
};

/* The active end and the accepted one. */
struct link {
    struct end ends[2];
    /* Held by the thread that moves its bytes. */
    atomic_flag taken;
};

#define READERS_MAX 4

struct crowd {
    struct side listener;
    struct link *links;
    unsigned count, readers;
    pthread_t threads[READERS_MAX];
    atomic_bool stop;
    atomic_uint closes;
};

/* Listens, and reads the event queue in `readers` threads, which accept every request. They fail if an
 * event names an endpoint whose close had returned before the read began. */
void crowd_open(struct crowd *crowd, unsigned links, unsigned readers);
/* Connects one link, from any thread. Returns when the event queue has reported both ends connected. */
void crowd_connect(struct crowd *crowd, unsigned link);
/* Sets the bytes to move in both directions of a link, in calls of odd sizes of about `part`. */
void crowd_load(struct crowd *crowd, unsigned link, uint64_t length, size_t part);
/* Moves all bytes in `threads` threads, which pass the links to each other. */
void crowd_carry(struct crowd *crowd, unsigned threads);
/* Calls `body` for every link, in `threads` threads. */
void crowd_each(struct crowd *crowd, unsigned threads, void (*body)(struct crowd *, unsigned link));
/* Closes one end, from any thread. */
void crowd_close_end(struct crowd *crowd, struct end *end);
/* Closes all open objects and ends the readers. */
void crowd_close(struct crowd *crowd);

/* Waits until the event queue has reported something `count` times, without driving anything. Fails if it
 * is reported more often. */
void await_count(atomic_uint *counter, unsigned count);

/* Starts `count` threads with one body, each with its element of `arguments`, and waits until they end. */
void threads_run(unsigned count, void *(*body)(void *), void *arguments, size_t size);

#endif
