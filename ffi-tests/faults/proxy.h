/* A process between the two ends of a TCP connection that forwards their bytes, and injects faults. */
#ifndef RSTREAM_TESTS_PROXY_H
#define RSTREAM_TESTS_PROXY_H

#include "faults.h"

enum fault {
    FAULT_NONE,
    /* The byte at the offset is changed by `value`, or swapped with the next one. */
    FAULT_CORRUPT,
    FAULT_SWAP,
    /* Nothing is forwarded from the offset on, and both connections are reset, or ended in an orderly way. */
    FAULT_RESET,
    FAULT_END,
    /* Nothing is forwarded from the offset on. */
    FAULT_STALL,
};

enum delivery {
    DELIVER_WHOLE,
    /* Every byte is forwarded alone. */
    DELIVER_SINGLE,
    /* Pieces of any size, some of them late. */
    DELIVER_PIECES,
};

/* The plan of one connection. */
struct plan {
    unsigned port;
    enum delivery delivery;
    enum fault fault;
    /* The direction of the fault. 0 is from the active side. */
    unsigned direction;
    uint64_t offset;
    uint8_t value;
    uint64_t seed;
};

struct proxy {
    struct peer peer;
    unsigned port;
};

/* Starts the proxy, before any libfabric call; ends it. */
void proxy_start(struct proxy *proxy);
void proxy_end(struct proxy *proxy);
/* Sets the plan of the next connection, which the proxy forwards to `plan->port`. */
void proxy_expect(struct proxy *proxy, const struct plan *plan);
/* The bytes that it forwarded in each direction, once both ends have closed. */
void proxy_passed(struct proxy *proxy, uint64_t passed[2]);

#endif
