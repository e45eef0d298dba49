/* A peer on the same host that takes part in sharing memory by hand, written from docs/shared-memory.md: it says and
 * hands over what a test wants. Its other end is an endpoint of this process. */
#ifndef RSTREAM_TESTS_SHARER_H
#define RSTREAM_TESTS_SHARER_H

#include "faults.h"

/* What it hands over as the segment. */
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
    /* The connection, and the socket that notifies both sides. */
    int tcp, notifier;
    /* The segment, mapped, if it is one. */
    uint8_t *segment;
    size_t size;
    /* Bytes of both rings. */
    uint32_t ring, victims_ring;
    /* Messages written to the own lane, and bytes of the stream. */
    uint64_t messages, bytes;
};

/* Connects an endpoint to it and shares memory; answers whether the endpoint joined. */
bool sharer_open(struct sharer *sharer, enum gift gift);
void sharer_close(struct sharer *sharer);

/* Writes a message of `length` bytes of the pattern; whether the other side slept and is to be notified; notifies
 * it, and answers whether there was room for that. */
void sharer_write(struct sharer *sharer, size_t length);
bool sharer_must_notify(struct sharer *sharer);
bool sharer_notify(struct sharer *sharer);
/* Says that this side sleeps, and that it has taken so many messages. */
void sharer_sleep(struct sharer *sharer);
void sharer_taken(struct sharer *sharer, uint64_t messages);

/* Connects to the meeting's listener, which accepts, with an invitation that names a ring of this size; answers
 * whether the other side says that it came. */
bool sharer_invite(struct meeting *meeting, uint32_t ring);

#endif
