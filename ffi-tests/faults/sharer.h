/* A peer on the same host that implements the shared-memory rendezvous, written from
 * docs/shared-memory.md. It sends what a test wants. Its other end is an endpoint of this process. */
#ifndef RSTREAM_TESTS_SHARER_H
#define RSTREAM_TESTS_SHARER_H

#include "faults.h"

/* The file that it passes as the segment. */
enum gift {
    SEGMENT,
    SHORT_SEGMENT,
    UNSEALED,
    HUGE_PAGES,
    PIPE,
    EVENTFD,
    PROC_FILE,
    SOCKET,
    NOTHING,
    MANY,
    GIFTS
};

struct sharer {
    /* The endpoint at the other end, which connected. */
    struct side victim;
    /* The connection, and the socket of the notifiers of both sides. */
    int tcp, notifier;
    /* The mapped segment, if it is valid. */
    uint8_t *segment;
    size_t size;
    /* Bytes of both rings. */
    uint32_t ring, victims_ring;
    /* Bytes written to the own ring. */
    uint64_t bytes;
    /* The victim's receive ring of the queue pair, and what was sent there: bytes and messages. */
    uint64_t address;
    uint32_t stag, sent, messages;
};

/* Connects an endpoint to it and shares memory. Returns whether the endpoint shares it. */
bool sharer_open(struct sharer *sharer, enum gift gift);
void sharer_close(struct sharer *sharer);

/* Writes `length` bytes of the pattern; returns whether the other side sleeps and must be
 * notified; notifies it, and returns whether there was room for that. */
void sharer_write(struct sharer *sharer, size_t length);
bool sharer_must_notify(struct sharer *sharer);
bool sharer_notify(struct sharer *sharer);
/* Says that this side sleeps; says how many bytes it has read. */
void sharer_sleep(struct sharer *sharer);
void sharer_read(struct sharer *sharer, uint64_t bytes);

/* Sends `length` bytes of the pattern on the queue pair; ends the stream there. */
void sharer_send(struct sharer *sharer, uint32_t length);
void sharer_end(struct sharer *sharer);
/* Says after how many bytes of the queue pair the ring begins, and how many bytes were written to it, true or
 * not. */
void sharer_set_base(struct sharer *sharer, uint64_t bytes);
void sharer_set_written(struct sharer *sharer, uint64_t bytes);

/* Connects to the meeting's listener, which accepts, names a rendezvous and a ring of this size, and has the
 * endpoint move data. Returns whether it hands over a segment. */
bool sharer_name(struct meeting *meeting, uint32_t ring);

#endif
