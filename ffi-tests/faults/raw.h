/* A peer over a plain socket that makes a correct handshake, and then sends anything: its frames are built
 * field by field. It speaks the base protocol with iWARP words (docs/protocol.md). */
#ifndef RSTREAM_TESTS_RAW_H
#define RSTREAM_TESTS_RAW_H

#include "../iwarp_wire.h"
#include "faults.h"

/* DDP control: version 1, last, untagged or tagged. RDMAP control: version 1. Further RDMAP operations. */
#define DDP_UNTAGGED 0x41
#define DDP_TAGGED 0xc1
#define RDMAP 0x40
#define WIRE_READ_REQUEST 1
#define WIRE_IMMEDIATE 8

struct raw {
    int fd;
    /* From the other side's connection data. */
    uint64_t address;
    uint32_t stag, ring;
    /* The sequence number of the next send, and the bytes of the stream that were written. */
    uint32_t sequence, written;
    /* The bytes to send next. */
    uint8_t out[1 << 17];
    size_t length;
};

/* The room and receives that this side grants. */
struct grant {
    uint32_t ring;
    uint16_t receives;
    /* It sends the words for ends, and understands them. */
    bool endings;
};

/* A control word with only the CLOSE bit. */
#define WORD_CLOSE (1u << 30)

/* Connects to a listener on this port and sends a connection request. Does not wait for the reply. */
void raw_ask(struct raw *raw, unsigned port, const struct grant *grant);
/* Sends a request to the meeting's listener, which accepts it. */
void raw_connect(struct raw *raw, struct meeting *meeting, const struct grant *grant);
/* Like raw_connect, with a listener that it opens, as a peer that never reads and that grants as much as
 * these settings can send. The active side sends first: 100 bytes, which the server has read. */
void raw_connect_greedy(struct raw *raw, struct meeting *meeting, const struct settings *settings);
/* Sends the bytes in `out`. */
void raw_flush(struct raw *raw);

/* Append to `out`: a number in network order, bytes, and complete frames with their trailer. */
void put(struct raw *raw, uint64_t value, unsigned bytes);
void put_bytes(struct raw *raw, const void *bytes, size_t count);
void put_trailer(struct raw *raw, size_t ulpdu);
void put_tagged(struct raw *raw, uint8_t ddp, uint8_t rdmap, uint32_t stag, uint64_t offset, size_t length);
void put_untagged(struct raw *raw, uint8_t rdmap, uint32_t queue, uint32_t sequence, const void *bytes, size_t length);
/* Append a word in a send, and a data message of the pattern, both correct. */
void put_word(struct raw *raw, uint32_t word);
void put_data(struct raw *raw, uint32_t length);

#endif
