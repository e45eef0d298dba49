/*
 * Many connections over one listener and one event queue, which several threads read, and bytes
 * that any thread can move on.
 */
#ifndef RSTREAM_TESTS_CROWD_H
#define RSTREAM_TESTS_CROWD_H

#include <pthread.h>
#include <stdatomic.h>

#include "common.h"

/* ---- bytes one way -------------------------------------------------------------------------- */

/* One direction of one endpoint: `length` bytes of the pattern, in calls of at most `part`. One
 * thread at a time may move it on. */
struct flow {
    struct fid_ep *ep;
    uint64_t length;
    size_t part;
    uint64_t done;
};

/* One call, which checks what it receives. Answers whether bytes moved. */
bool flow_send(struct flow *flow);
bool flow_recv(struct flow *flow);
/* The whole of a flow, by trying again and again. */
void flow_send_all(struct flow *flow);
void flow_recv_all(struct flow *flow);
/* `length` bytes in both directions at once, a thread for each direction of each endpoint. */
void flows_cross(struct fid_ep *one, struct fid_ep *other, uint64_t length);

/* ---- connections ---------------------------------------------------------------------------- */

struct end {
    struct fi_info *info;
    struct fid_domain *domain;
    _Atomic(struct fid_ep *) ep;
    /* How often the event queue told of it. */
    atomic_uint connected, shut;
    /* Which of the closes it was; 0: it is open. */
    atomic_uint closed;
    struct flow out, in;
};

/* The active end and the accepted one. */
struct link {
    struct end ends[2];
    /* Held by the thread that carries it. */
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

/* Listens, and reads the event queue in `readers` threads, which accept whoever asks. They fail if
 * an event tells of an endpoint whose close had returned before the read began. */
void crowd_open(struct crowd *crowd, unsigned links, unsigned readers);
/* Connects one link; any thread may. Both ends have told of it when this returns. */
void crowd_connect(struct crowd *crowd, unsigned link);
/* Gives both directions of a link this much to carry, in calls of odd sizes of about `part`. */
void crowd_load(struct crowd *crowd, unsigned link, uint64_t length, size_t part);
/* Carries everything in `threads` threads, each link handed from thread to thread. */
void crowd_carry(struct crowd *crowd, unsigned threads);
/* Does something with every link, in `threads` threads. */
void crowd_each(struct crowd *crowd, unsigned threads, void (*body)(struct crowd *, unsigned link));
/* Closes one end; any thread may. */
void crowd_close_end(struct crowd *crowd, struct end *end);
/* Closes what is open and ends the readers. */
void crowd_close(struct crowd *crowd);

/* Waits until the event queue has told `count` times of something, without driving anything; told
 * more often is a failure. */
void await_count(atomic_uint *counter, unsigned count);

/* Starts `count` threads with one body, each with its element of `arguments`; waits for their end. */
void threads_run(unsigned count, void *(*body)(void *), void *arguments, size_t size);

#endif
