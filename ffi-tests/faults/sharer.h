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
    /* Messages written to the own message ring, and bytes of the stream. */
    uint64_t messages, bytes;
};

/* Connects an endpoint to it and shares memory. Returns whether the endpoint shares it. */
bool sharer_open(struct sharer *sharer, enum gift gift);
void sharer_close(struct sharer *sharer);

/* Writes a message of `length` bytes of the pattern; returns whether the other side sleeps and must be
 * notified; notifies it, and returns whether there was room for that. */
void sharer_write(struct sharer *sharer, size_t length);
bool sharer_must_notify(struct sharer *sharer);
bool sharer_notify(struct sharer *sharer);
/* Sets the flag that this side sleeps; sets the number of messages that it has taken. */
void sharer_sleep(struct sharer *sharer);
void sharer_taken(struct sharer *sharer, uint64_t messages);

/* Connects to the meeting's listener, which accepts, with an offer for a ring of this size. Returns
 * whether the other side reports that it shares memory. */
bool sharer_invite(struct meeting *meeting, uint32_t ring);

#endif
