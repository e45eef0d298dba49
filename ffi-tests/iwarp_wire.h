/*
 * iWARP on a plain socket: the frames of MPA (RFC 5044), and the DDP (RFC 5041) and RDMAP (RFC 5040)
 * messages that a stream needs. Written from the specifications, without code of the provider, so that an
 * error shows unless both have it. Without markers and CRC.
 */
#ifndef RSTREAM_TESTS_IWARP_WIRE_H
#define RSTREAM_TESTS_IWARP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- numbers in network order --------------------------------------------------------------- */

void put_be(uint8_t *at, uint64_t value, size_t bytes);
uint64_t get_be(const uint8_t *at, size_t bytes);

/* ---- the handshake: RFC 5044, section 7.1 ---------------------------------------------------- */

/* A key of 16 bytes, flags, revision, and the length of the private data. In revision 2 the private data
 * starts with 4 bytes of IRD and ORD (RFC 6581). */
#define MPA_HEADER 20
#define MPA_REQUEST "MPA ID Req Frame"
#define MPA_REPLY "MPA ID Rep Frame"
#define MPA_FLAGS 16
#define MPA_REVISION 17
#define MPA_REJECT 0x20
#define MPA_ENHANCED 0x10

/* Builds a frame with this private data, and returns its length. In revision 2, `ird_ord` precedes the
 * data. */
size_t mpa_frame(uint8_t *frame, const char *key, uint8_t revision, uint32_t ird_ord, const uint8_t *data,
                 size_t length);
/* Reads one frame of at most `size` bytes, and drives the endpoints of this thread meanwhile. */
size_t mpa_read(int fd, uint8_t *frame, size_t size);
/* The private data of a frame without IRD and ORD, and its length. */
const uint8_t *mpa_data(const uint8_t *frame, size_t *length);

/* ---- messages in FPDUs ----------------------------------------------------------------------- */

/* A received segment. */
struct segment {
    bool tagged;
    bool last;
    /* The RDMAP operation: WIRE_WRITE and so on. */
    unsigned operation;
    /* Tagged: its target. */
    uint32_t stag;
    uint64_t offset;
    /* Untagged: the queue, and the number of the message in it. */
    uint32_t queue, number;
    const uint8_t *payload;
    size_t length;
};

#define WIRE_WRITE 0
#define WIRE_READ_REQUEST 1
#define WIRE_SEND 3
#define WIRE_TERMINATE 7

/* Longest payload of a segment that these functions send. */
#define SEGMENT_MAX 1400
/* The longest FPDU, including length field, padding and CRC. */
#define FPDU_MAX 65552

/* Sends an RDMA Write in as many segments as necessary, at least one. */
void wire_write(int fd, uint32_t stag, uint64_t offset, const uint8_t *data, size_t length);
/* Sends a Send of at most SEGMENT_MAX bytes. */
void wire_send(int fd, uint32_t number, const uint8_t *data, size_t length);
/* The same with immediate data before it, as docs/protocol.md says; 8 bytes less. */
void wire_send_immediate(int fd, uint32_t number, uint64_t immediate, const uint8_t *data, size_t length);
/* Sends a Terminate with these numbers, which repeats this header of the segment that it is about (0 bytes: none). */
void wire_terminate(int fd, uint8_t layer, uint8_t type, uint8_t code, const uint8_t *header, size_t length);
/* The header of the segment in `buffer`, as wire_terminate takes it, and its length. */
const uint8_t *wire_header(const uint8_t *buffer, const struct segment *segment, size_t *length);
/* Reads one segment into `buffer` (FPDU_MAX bytes), if it starts within `ms`. Returns false otherwise, and
 * sets `*ended` if the connection has ended. */
bool wire_read(int fd, uint8_t *buffer, struct segment *segment, bool *ended, int ms);

#endif
