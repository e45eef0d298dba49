#include "iwarp_wire.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "common.h"

void put_be(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = bytes; i-- > 0; value >>= 8)
        at[i] = (uint8_t)value;
}

uint64_t get_be(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* Reads exactly this many bytes. Returns false if the connection ends before the first of them. */
static bool read_exactly(int fd, uint8_t *at, size_t length)
{
    int64_t until = now_ms() + PATIENCE_MS;
    size_t have = 0;

    while (have < length) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        ssize_t got;

        CHECK(now_ms() < until);
        drive();
        if (poll(&poll_fd, 1, 1) <= 0)
            continue;
        got = read(fd, at + have, length - have);
        if (have == 0 && (got == 0 || (got < 0 && errno == ECONNRESET)))
            return false;
        CHECK_AT_LEAST(got, 1);
        have += (size_t)got;
    }
    return true;
}

static void write_all(int fd, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t took = CHECK_SYS(write(fd, data, length));

        data += took;
        length -= (size_t)took;
    }
}

/* ---- the handshake --------------------------------------------------------------------------- */

/* Bytes that revision 2 adds before the private data. */
static size_t enhanced_length(const uint8_t *frame)
{
    return frame[MPA_REVISION] == 2 && frame[MPA_FLAGS] & MPA_ENHANCED ? 4 : 0;
}

size_t mpa_frame(uint8_t *frame, const char *key, uint8_t revision, uint32_t ird_ord, const uint8_t *data,
                 size_t length)
{
    size_t enhanced;

    memcpy(frame, key, 16);
    frame[MPA_FLAGS] = revision == 2 ? MPA_ENHANCED : 0;
    frame[MPA_REVISION] = revision;
    enhanced = enhanced_length(frame);
    put_be(frame + 18, enhanced + length, 2);
    put_be(frame + MPA_HEADER, ird_ord, enhanced);
    memcpy(frame + MPA_HEADER + enhanced, data, length);
    return MPA_HEADER + enhanced + length;
}

size_t mpa_read(int fd, uint8_t *frame, size_t size)
{
    size_t rest;

    CHECK(read_exactly(fd, frame, MPA_HEADER));
    rest = get_be(frame + 18, 2);
    CHECK(MPA_HEADER + rest <= size);
    CHECK(read_exactly(fd, frame + MPA_HEADER, rest));
    return MPA_HEADER + rest;
}

const uint8_t *mpa_data(const uint8_t *frame, size_t *length)
{
    size_t enhanced = enhanced_length(frame);

    *length = get_be(frame + 18, 2) - enhanced;
    return frame + MPA_HEADER + enhanced;
}

/* ---- messages in FPDUs ----------------------------------------------------------------------- */

/* Bits of the DDP control byte, and the versions of both protocols. */
#define DDP_TAGGED 0x80
#define DDP_LAST 0x40
#define DDP_VERSION 0x01
#define RDMAP_VERSION 0x40
#define RDMAP_OPERATION 0x0f
#define TAGGED_HEADER 14
#define UNTAGGED_HEADER 18
#define MPA_CRC 4
/* What a Terminate says in any case (RFC 5040, section 4.8), its queue, and the bits for a length field and a header. */
#define TERMINATE 4
#define TERMINATE_QUEUE 2
#define TERMINATE_HAS_HEADER 0xc0

/* Bytes after a length field: the ULPDU, padding so that ULPDU and field are a multiple of four, and the
 * CRC. */
static size_t after_length(size_t ulpdu)
{
    return (2 + ulpdu + 3) / 4 * 4 - 2 + MPA_CRC;
}

/* Fills in the length field, padding and CRC of an FPDU that contains its ULPDU, and sends it. */
static void send_fpdu(int fd, uint8_t *fpdu, size_t ulpdu)
{
    size_t rest = after_length(ulpdu);

    put_be(fpdu, ulpdu, 2);
    memset(fpdu + 2 + ulpdu, 0, rest - ulpdu);
    write_all(fd, fpdu, 2 + rest);
}

void wire_write(int fd, uint32_t stag, uint64_t offset, const uint8_t *data, size_t length)
{
    uint8_t fpdu[2 + TAGGED_HEADER + SEGMENT_MAX + 8];

    do {
        size_t now = length < SEGMENT_MAX ? length : SEGMENT_MAX;

        length -= now;
        fpdu[2] = DDP_TAGGED | (length == 0 ? DDP_LAST : 0) | DDP_VERSION;
        fpdu[3] = RDMAP_VERSION | WIRE_WRITE;
        put_be(fpdu + 4, stag, 4);
        put_be(fpdu + 8, offset, 8);
        if (now > 0) {
            memcpy(fpdu + 2 + TAGGED_HEADER, data, now);
            data += now;
        }
        send_fpdu(fd, fpdu, TAGGED_HEADER + now);
        offset += now;
    } while (length > 0);
}

/* A Send with this mark in the 32 bits that are reserved. */
static void send_marked(int fd, uint32_t number, uint32_t mark, const uint8_t *data, size_t length)
{
    uint8_t fpdu[2 + UNTAGGED_HEADER + SEGMENT_MAX + 8] = {0};

    CHECK(length <= SEGMENT_MAX);
    fpdu[2] = DDP_LAST | DDP_VERSION;
    fpdu[3] = RDMAP_VERSION | WIRE_SEND;
    put_be(fpdu + 4, mark, 4);
    put_be(fpdu + 12, number, 4);
    memcpy(fpdu + 2 + UNTAGGED_HEADER, data, length);
    send_fpdu(fd, fpdu, UNTAGGED_HEADER + length);
}

void wire_send(int fd, uint32_t number, const uint8_t *data, size_t length)
{
    send_marked(fd, number, 0, data, length);
}

void wire_send_immediate(int fd, uint32_t number, uint64_t immediate, const uint8_t *data, size_t length)
{
    uint8_t bytes[SEGMENT_MAX];

    CHECK(length <= SEGMENT_MAX - 8);
    put_be(bytes, immediate & UINT32_MAX, 4);
    put_be(bytes + 4, immediate >> 32, 4);
    memcpy(bytes + 8, data, length);
    send_marked(fd, number, 1, bytes, 8 + length);
}

void wire_terminate(int fd, uint8_t layer, uint8_t type, uint8_t code, const uint8_t *header, size_t length)
{
    uint8_t fpdu[2 + UNTAGGED_HEADER + TERMINATE + 2 + UNTAGGED_HEADER + 8] = {0}, *says = fpdu + 2 + UNTAGGED_HEADER;

    CHECK(length <= 2 + UNTAGGED_HEADER);
    fpdu[2] = DDP_LAST | DDP_VERSION;
    fpdu[3] = RDMAP_VERSION | WIRE_TERMINATE;
    put_be(fpdu + 8, TERMINATE_QUEUE, 4);
    put_be(fpdu + 12, 1, 4);
    says[0] = (uint8_t)(layer << 4 | type);
    says[1] = code;
    says[2] = length > 0 ? TERMINATE_HAS_HEADER : 0;
    if (length > 0)
        memcpy(says + TERMINATE, header, length);
    send_fpdu(fd, fpdu, UNTAGGED_HEADER + TERMINATE + length);
}

const uint8_t *wire_header(const uint8_t *buffer, const struct segment *segment, size_t *length)
{
    *length = 2 + (segment->tagged ? TAGGED_HEADER : UNTAGGED_HEADER);
    return buffer;
}

bool wire_read(int fd, uint8_t *buffer, struct segment *segment, bool *ended, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    const uint8_t *ulpdu = buffer + 2;
    size_t length, header;

    *ended = false;
    if (poll(&poll_fd, 1, ms) <= 0)
        return false;
    if (!read_exactly(fd, buffer, 2)) {
        *ended = true;
        return false;
    }
    length = get_be(buffer, 2);
    CHECK(read_exactly(fd, buffer + 2, after_length(length)));

    segment->tagged = ulpdu[0] & DDP_TAGGED;
    segment->last = ulpdu[0] & DDP_LAST;
    segment->operation = ulpdu[1] & RDMAP_OPERATION;
    CHECK_INT(ulpdu[0] & ~(DDP_TAGGED | DDP_LAST), DDP_VERSION);
    CHECK_INT(ulpdu[1] & ~RDMAP_OPERATION, RDMAP_VERSION);
    header = segment->tagged ? TAGGED_HEADER : UNTAGGED_HEADER;
    CHECK(length >= header);
    if (segment->tagged) {
        segment->stag = (uint32_t)get_be(ulpdu + 2, 4);
        segment->offset = get_be(ulpdu + 6, 8);
    } else {
        segment->queue = (uint32_t)get_be(ulpdu + 6, 4);
        segment->number = (uint32_t)get_be(ulpdu + 10, 4);
    }
    segment->payload = ulpdu + header;
    segment->length = length - header;
    return true;
}
