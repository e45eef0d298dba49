/* A raw peer that attacks a message endpoint which has operations of each kind under way, beside a bystander. */
#ifndef RSTREAM_TESTS_ATTACK_H
#define RSTREAM_TESTS_ATTACK_H

#include "beside.h"

/* The read that the endpoint has requested is of so many bytes. */
#define READ_LENGTH 20

/* The header of a segment of a Send, the last one and another one, at an offset of its message. */
#define LAST_OF(raw, offset) (&(struct untagged){DDP_UNTAGGED, RDMAP | WIRE_SEND, 0, 0, (raw)->sequence, offset})
#define PART_OF(raw, offset)                                                                        \
    (&(struct untagged){DDP_UNTAGGED_PART, RDMAP | WIRE_SEND, 0, 0, (raw)->sequence, offset})

struct attack {
    struct beside beside;
    struct raw raw;
    /* The application connects to the peer; otherwise it is the listener. */
    bool connects;
};

/* Runs attacks on an endpoint with receives of its own, and on one of a shared receive context. Checks that all that
 * they took is released. */
void attack_each_way(bool connects, void (*attacks)(struct attack *attack));

/* Connects the peer, which sends a correct message and, to a shared receive context, the beginning of another one. */
void attack_begin(struct attack *attack);
/* How much of that other one it has sent. */
size_t attack_begun(const struct attack *attack);
/* For attack_ended: the peer's bytes decide whether it breaks the protocol or ends the connection in a frame. */
#define ANY_END (-1)
/* Waits until the connection has ended by what the peer did, and each of its operations with it. `read_end` is the
 * error of the read, or 0: FI_ECONNRESET is that of the sends too, which else are cancelled. */
void attack_ended(struct attack *attack, int read_end);
/* The application closes the endpoint instead. */
void attack_closed(struct attack *attack);
/* Closes everything of the connection, and checks that nothing else was affected. */
void attack_over(struct attack *attack);

#endif
