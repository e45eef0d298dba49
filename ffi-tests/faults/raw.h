/* A peer over a plain socket that does the handshake as it should and then anything: frames are put together
 * field by field. It is one of the base protocol, with iWARP words (docs/protocol.md). */
#ifndef RSTREAM_TESTS_RAW_H
#define RSTREAM_TESTS_RAW_H

#include "../iwarp_wire.h"
#include "faults.h"

/* DDP control: version 1, last, perhaps tagged. RDMAP control: version 1; operations beside the usual. */
#define DDP_UNTAGGED 0x41
#define DDP_TAGGED 0xc1
#define RDMAP 0x40
#define WIRE_READ_REQUEST 1
#define WIRE_IMMEDIATE 8

struct raw {
    int fd;
    /* Of the other side's connection data. */
    uint64_t address;
    uint32_t stag, ring;
    /* Sequence number of the next send, and bytes of the stream that were written. */
    uint32_t sequence, written;
    /* What goes out next. */
    uint8_t out[1 << 17];
    size_t length;
};

/* What this side grants. */
struct grant {
    uint32_t ring;
    uint16_t receives;
    /* It says ends in words, and understands them. */
    bool endings;
};

/* A control word that says CLOSE and nothing else. */
#define WORD_CLOSE (1u << 30)

/* Connects to a listener on this port and asks for a stream. Nobody has answered then. */
void raw_ask(struct raw *raw, unsigned port, const struct grant *grant);
/* Asks the meeting's listener, which accepts. */
void raw_connect(struct raw *raw, struct meeting *meeting, const struct grant *grant);
/* The same, from a listener that it opens, as a peer that grants as much as these settings can send and never
 * reads. The active side speaks first: 100 bytes, which the server has read. */
void raw_connect_greedy(struct raw *raw, struct meeting *meeting, const struct settings *settings);
/* Sends what was put. */
void raw_flush(struct raw *raw);

/* Puts a number in network order, bytes, and whole frames with the trailer behind them. */
void put(struct raw *raw, uint64_t value, unsigned bytes);
void put_bytes(struct raw *raw, const void *bytes, size_t count);
void put_trailer(struct raw *raw, size_t ulpdu);
void put_tagged(struct raw *raw, uint8_t ddp, uint8_t rdmap, uint32_t stag, uint64_t offset, size_t length);
void put_untagged(struct raw *raw, uint8_t rdmap, uint32_t queue, uint32_t sequence, const void *bytes, size_t length);
/* A word in a send, and a data message of the pattern, both as they should be. */
void put_word(struct raw *raw, uint32_t word);
void put_data(struct raw *raw, uint32_t length);

#endif
