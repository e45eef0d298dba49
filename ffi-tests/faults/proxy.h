/* A process between two ends of a TCP connection that passes their bytes on, or does worse. */
#ifndef RSTREAM_TESTS_PROXY_H
#define RSTREAM_TESTS_PROXY_H

#include "faults.h"

enum fault {
    FAULT_NONE,
    /* The byte at the offset is changed by `value`, or changes places with the next one. */
    FAULT_CORRUPT,
    FAULT_SWAP,
    /* From the offset on nothing goes through, and both connections are reset or ended in order. */
    FAULT_RESET,
    FAULT_END,
    /* From the offset on nothing goes through. */
    FAULT_STALL,
};

enum delivery {
    DELIVER_WHOLE,
    /* Each byte alone. */
    DELIVER_SINGLE,
    /* Pieces of any size, now and then late. */
    DELIVER_PIECES,
};

/* What happens to one connection. */
struct plan {
    unsigned port;
    enum delivery delivery;
    enum fault fault;
    /* Of which direction: 0 is from who connects. */
    unsigned direction;
    uint64_t offset;
    uint8_t value;
    uint64_t seed;
};

struct proxy {
    struct peer peer;
    unsigned port;
};

/* Starts it, before any libfabric call, and ends it. */
void proxy_start(struct proxy *proxy);
void proxy_end(struct proxy *proxy);
/* What happens to the next connection, which leads to `plan->port`. */
void proxy_expect(struct proxy *proxy, const struct plan *plan);
/* Bytes that came out of it in each direction, once both ends have closed. */
void proxy_passed(struct proxy *proxy, uint64_t passed[2]);

#endif
