/* The base peer over a plain socket, for the embedded device. */
#include "base_peer.h"

#include <unistd.h>

#include "../iwarp_wire.h"

#define STAG 0x4711
#define ADDRESS 0x7f0000001000

/* IRD and ORD of 1, and peer-to-peer mode with a write of no bytes from the active side (RFC 6581, section
 * 4). In revision 1 the active side must send first. */
#define RTR_WRITE 0x80018001u

static void name_ring(struct base_peer *peer)
{
    peer->own_address = ADDRESS;
    peer->own_key = STAG;
}

static void begin(struct base_peer *peer, unsigned port)
{
    name_ring(peer);
    peer->fd = stranger_connect(port);
}

static void write_frame(struct base_peer *peer, const char *key, const uint8_t *offer, uint8_t revision)
{
    uint8_t frame[64];
    size_t length = mpa_frame(frame, key, revision, RTR_WRITE, offer, OFFER);

    CHECK_INT(CHECK_SYS(write(peer->fd, frame, length)), length);
}

static size_t read_frame(struct base_peer *peer, const char *key, uint8_t revision, uint8_t *data)
{
    uint8_t frame[1024];
    const uint8_t *found;
    size_t length;

    mpa_read(peer->fd, frame, sizeof frame);
    CHECK_BYTES(frame, key, 16);
    CHECK_INT(frame[MPA_FLAGS] & MPA_REJECT, 0);
    CHECK_INT(frame[MPA_REVISION], revision);
    found = mpa_data(frame, &length);
    CHECK(length <= DATA_MAX);
    memcpy(data, found, length);
    return length;
}

static void request(struct base_peer *peer, const uint8_t *offer, uint8_t revision)
{
    write_frame(peer, MPA_REQUEST, offer, revision);
}

static size_t answer(struct base_peer *peer, uint8_t *data, uint8_t revision)
{
    size_t length = read_frame(peer, MPA_REPLY, revision, data);

    if (revision == 2)
        wire_write(peer->fd, 0, 0, NULL, 0);
    return length;
}

/* Until the connection is accepted, `fd` is the listening socket. */
static unsigned begin_listening(struct base_peer *peer)
{
    unsigned port;

    name_ring(peer);
    peer->fd = tcp_listen(&port);
    return port;
}

static size_t take_request(struct base_peer *peer, uint8_t *data, uint8_t revision)
{
    int listener = peer->fd;

    peer->fd = tcp_accept(listener);
    CHECK_SYS(close(listener));
    return read_frame(peer, MPA_REQUEST, revision, data);
}

static void accept_request_with(struct base_peer *peer, const uint8_t *offer, uint8_t revision)
{
    write_frame(peer, MPA_REPLY, offer, revision);
}

/* Copies a segment of a write to the ring, after the segments before it. */
static void place(struct base_peer *peer, const struct segment *segment)
{
    size_t at = (peer->read_at + peer->unread + peer->placed) % RING;

    CHECK_INT(segment->operation, WIRE_WRITE);
    if (segment->length == 0)
        return;
    CHECK_INT(segment->stag, STAG);
    CHECK_INT(segment->offset, ADDRESS + at);
    CHECK(at + segment->length <= RING);
    memcpy(peer->ring + at, segment->payload, segment->length);
    peer->placed += segment->length;
}

static void take_word(struct base_peer *peer, const uint8_t *bytes)
{
    uint32_t word = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;

    if (word & WORD_DATA) {
        CHECK_INT(word & ~WORD_DATA, peer->placed);
        peer->placed = 0;
        take_data(peer, word & ~WORD_DATA);
    } else {
        take_control(peer, word);
    }
}

static bool take_in(struct base_peer *peer)
{
    static uint8_t buffer[FPDU_MAX];
    struct segment segment;
    bool any = false;

    while (!peer->ended && wire_read(peer->fd, buffer, &segment, &peer->ended, 0)) {
        any = true;
        if (segment.tagged) {
            place(peer, &segment);
        } else {
            CHECK_INT(segment.operation, WIRE_SEND);
            CHECK_INT(segment.queue, 0);
            CHECK_INT(segment.number, ++peer->heard);
            CHECK_INT(segment.length, 4);
            take_word(peer, segment.payload);
        }
    }
    return any;
}

static void send_control(struct base_peer *peer, uint32_t word)
{
    uint8_t bytes[4] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16), (uint8_t)(word >> 24)};

    wire_send(peer->fd, ++peer->sent, bytes, sizeof bytes);
}

static void send_data(struct base_peer *peer, const uint8_t *data, size_t length)
{
    wire_write(peer->fd, (uint32_t)peer->key, peer->address + peer->at, data, length);
    send_control(peer, WORD_DATA | (uint32_t)length);
}

static void end(struct base_peer *peer)
{
    CHECK_SYS(close(peer->fd));
}

const struct carrier socket_carrier = {
    .begin = begin,
    .request = request,
    .answer = answer,
    .listen = begin_listening,
    .take_request = take_request,
    .accept = accept_request_with,
    .take_in = take_in,
    .send_data = send_data,
    .send_control = send_control,
    .end = end,
};
