/* A peer over a plain socket that makes a correct handshake, and then sends anything: its frames are built
 * field by field. To a stream it speaks the base protocol with iWARP words (docs/protocol.md). */
#ifndef RSTREAM_TESTS_RAW_H
#define RSTREAM_TESTS_RAW_H

#include "../iwarp_wire.h"
#include "faults.h"

/* DDP control: version 1, untagged or tagged, the last segment or another one. RDMAP control: version 1. Further RDMAP
 * operations. */
#define DDP_UNTAGGED 0x41
#define DDP_TAGGED 0xc1
#define DDP_UNTAGGED_PART 0x01
#define DDP_TAGGED_PART 0x81
#define RDMAP 0x40
#define WIRE_READ_REQUEST 1
#define WIRE_READ_RESPONSE 2
#define WIRE_SEND_INVALIDATE 4
#define WIRE_IMMEDIATE 8
/* Message endpoints, in the word of an untagged header: the Send begins with immediate data; the immediate data
 * belongs to the write before it. */
#define WORD_WITH_DATA 1
#define WORD_OF_WRITE 1

struct raw {
    int fd;
    /* From a stream's connection data, or where a message endpoint wants the response to its read. */
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
/* The same, to a listener of message endpoints; reads the reply, once it was accepted. */
void raw_ask_messages(struct raw *raw, unsigned port);
void raw_accepted_messages(struct raw *raw);
/* Accepts a connection of a message endpoint on a listening socket, and its request. */
void raw_accept_messages(struct raw *raw, int listener);
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
/* The same with every field of the header. */
struct untagged {
    uint8_t ddp, rdmap;
    uint32_t word, queue, sequence, offset;
};
void put_segment(struct raw *raw, const struct untagged *header, const void *bytes, size_t length);
/* Appends a read request with this number. */
void put_read(struct raw *raw, uint32_t number, uint32_t stag, uint64_t offset, uint32_t length);
/* Appends a message of the pattern, which is correct. */
void put_message(struct raw *raw, size_t length);
/* Append a word in a send, and a data message of the pattern, both correct. */
void put_word(struct raw *raw, uint32_t word);
void put_data(struct raw *raw, uint32_t length);

#endif
