/* The raw peer's frames and handshake. */
#include "raw.h"

#include <errno.h>

void put(struct raw *raw, uint64_t value, unsigned bytes)
{
    CHECK(raw->length + bytes <= sizeof raw->out);
    put_be(raw->out + raw->length, value, bytes);
    raw->length += bytes;
}

void put_bytes(struct raw *raw, const void *bytes, size_t count)
{
    CHECK(raw->length + count <= sizeof raw->out);
    memcpy(raw->out + raw->length, bytes, count);
    raw->length += count;
}

/* Appends padding and an unused CRC. */
void put_trailer(struct raw *raw, size_t ulpdu)
{
    put(raw, 0, (unsigned)(-(2 + ulpdu) & 3));
    put(raw, 0, 4);
}

void put_tagged(struct raw *raw, uint8_t ddp, uint8_t rdmap, uint32_t stag, uint64_t offset, size_t length)
{
    put(raw, 14 + length, 2);
    put(raw, ddp, 1);
    put(raw, rdmap, 1);
    put(raw, stag, 4);
    put(raw, offset, 8);
    put_bytes(raw, pattern(raw->written, length), length);
    put_trailer(raw, 14 + length);
}

void put_segment(struct raw *raw, const struct untagged *header, const void *bytes, size_t length)
{
    put(raw, 18 + length, 2);
    put(raw, header->ddp, 1);
    put(raw, header->rdmap, 1);
    put(raw, header->word, 4);
    put(raw, header->queue, 4);
    put(raw, header->sequence, 4);
    put(raw, header->offset, 4);
    put_bytes(raw, bytes, length);
    put_trailer(raw, 18 + length);
}

void put_untagged(struct raw *raw, uint8_t rdmap, uint32_t queue, uint32_t sequence, const void *bytes,
                         size_t length)
{
    const struct untagged header = {DDP_UNTAGGED, rdmap, 0, queue, sequence, 0};

    put_segment(raw, &header, bytes, length);
}

void put_read(struct raw *raw, uint32_t number, uint32_t stag, uint64_t offset, uint32_t length)
{
    uint8_t request[28] = {0};

    /* Sink STag and offset, length, source STag and offset. */
    put_be(request + 12, length, 4);
    put_be(request + 16, stag, 4);
    put_be(request + 20, offset, 8);
    put_untagged(raw, RDMAP | WIRE_READ_REQUEST, 1, number, request, sizeof request);
}

void put_message(struct raw *raw, size_t length)
{
    put_untagged(raw, RDMAP | WIRE_SEND, 0, raw->sequence, pattern(raw->sequence, length), length);
    raw->sequence++;
}

void put_word(struct raw *raw, uint32_t word)
{
    uint8_t bytes[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16), (uint8_t)(word >> 24)};

    put_untagged(raw, RDMAP | WIRE_SEND, 0, raw->sequence++, bytes, sizeof bytes);
}

void put_data(struct raw *raw, uint32_t length)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag, raw->address + raw->written, length);
    raw->written += length;
    put_word(raw, 0x80000000 | length);
}

void raw_flush(struct raw *raw)
{
    /* The other side may have ended the connection meanwhile. */
    if (send(raw->fd, raw->out, raw->length, MSG_NOSIGNAL) < 0)
        CHECK(errno == ECONNRESET || errno == EPIPE);
    raw->length = 0;
}

/* Connection data: the offsets of its fields, and its length without and with the extension. */
#define ADDRESS 1
#define KEY 9
#define RING 17
#define RECEIVES 21
#define VERSION 23
#define EXTENSION 25
#define FEATURES 26
#define BASE_DATA 25
#define EXTENDED_DATA 31
#define END_OF_STREAM 1

static size_t data_length(const struct grant *grant)
{
    return grant->endings ? EXTENDED_DATA : BASE_DATA;
}

static void ask(struct raw *raw, unsigned port, const uint8_t *data, size_t length)
{
    memset(raw, 0, sizeof *raw);
    raw->fd = tcp_connect(port);
    raw->sequence = 1;
    raw->length = mpa_frame(raw->out, MPA_REQUEST, 1, 0, data, length);
    raw_flush(raw);
}

void raw_ask(struct raw *raw, unsigned port, const struct grant *grant)
{
    uint8_t data[EXTENDED_DATA] = {0};

    data[0] = (uint8_t)(data_length(grant) - 1);
    put_be(data + KEY, 0x1234, 8);
    put_be(data + RING, grant->ring, 4);
    put_be(data + RECEIVES, grant->receives, 2);
    data[VERSION] = 2;
    data[EXTENSION] = 1;
    put_be(data + FEATURES, END_OF_STREAM, 4);
    ask(raw, port, data, data_length(grant));
}

/* The connection data of message endpoints, without data of the application. */
static const uint8_t message_data[] = {5, 'r', 'm', 1, 0};

void raw_ask_messages(struct raw *raw, unsigned port)
{
    ask(raw, port, message_data, sizeof message_data);
}

/* Reads a reply that accepts. Returns its data, which has this length. */
static const uint8_t *accepted(struct raw *raw, uint8_t *reply, size_t size, size_t length)
{
    CHECK_INT(mpa_read(raw->fd, reply, size), MPA_HEADER + length);
    CHECK_BYTES(reply, MPA_REPLY, 16);
    CHECK_INT(reply[MPA_FLAGS] & MPA_REJECT, 0);
    return mpa_data(reply, &length);
}

void raw_accepted_messages(struct raw *raw)
{
    uint8_t reply[MPA_HEADER + 512];

    CHECK_BYTES(accepted(raw, reply, sizeof reply, sizeof message_data), message_data, sizeof message_data);
}

/* IRD and ORD of 1, and peer-to-peer mode with a write of no bytes from the active side (RFC 6581, section 4). */
#define RTR_WRITE 0x80018001u

void raw_accept_messages(struct raw *raw, int listener)
{
    uint8_t request[MPA_HEADER + 512];
    const uint8_t *theirs;
    size_t length;

    memset(raw, 0, sizeof *raw);
    raw->fd = tcp_accept(listener);
    raw->sequence = 1;
    (void)mpa_read(raw->fd, request, sizeof request);
    CHECK_BYTES(request, MPA_REQUEST, 16);
    theirs = mpa_data(request, &length);
    CHECK_INT(length, sizeof message_data);
    CHECK_BYTES(theirs, message_data, sizeof message_data);
    raw->length = mpa_frame(raw->out, MPA_REPLY, request[MPA_REVISION], RTR_WRITE, message_data, sizeof message_data);
    raw_flush(raw);
}

void raw_connect(struct raw *raw, struct meeting *meeting, const struct grant *grant)
{
    uint8_t reply[MPA_HEADER + 512];
    const uint8_t *theirs;

    raw_ask(raw, fid_port(&meeting->listener.pep->fid), grant);
    AWAIT(PATIENCE_MS, (meeting_events(meeting), meeting->server_up));
    theirs = accepted(raw, reply, sizeof reply, data_length(grant));
    raw->address = get_be(theirs + ADDRESS, 8);
    raw->stag = (uint32_t)get_be(theirs + KEY, 8);
    raw->ring = (uint32_t)get_be(theirs + RING, 4);
}

void raw_connect_greedy(struct raw *raw, struct meeting *meeting, const struct settings *settings)
{
    struct grant grant = {.ring = (uint32_t)settings->send_ring, .receives = 60000};

    meeting_listen(meeting, settings);
    raw_connect(raw, meeting, &grant);
    put_data(raw, 100);
    raw_flush(raw);
    recv_pattern(meeting->server.ep, 0, 100);
}
