/*
 * A peer that speaks only the base protocol, like the C provider that libfabric once had. base_peer.c
 * determines what it sends; a carrier determines how: frames over a plain socket for the embedded device,
 * rdma-core for RDMA devices.
 */
#ifndef RSTREAM_TESTS_BASE_PEER_H
#define RSTREAM_TESTS_BASE_PEER_H

#include "conformance.h"

/* Length of its connection data, bytes of its ring, its receives, and most bytes of one message. */
#define OFFER 25
#define RING ((1 << 20) - 1)
#define RECEIVES 384
#define CALL_MAX 32768

/* The word format for devices without immediate data. */
#define WORD_DATA 0x80000000u

struct carrier;
struct verbs_end;

/* One end. First its own ring, which the endpoint writes to, and its receives. */
struct base_peer {
    const struct carrier *carrier;
    /* The carrier's state: a socket and the messages on it, or a queue pair. */
    int fd;
    uint32_t sent, heard;
    struct verbs_end *verbs;
    uint8_t ring[RING];
    /* The address and key of the own ring, for the endpoint. */
    uint64_t own_address, own_key;
    /* Bytes that were written and not read, the read position, and the bytes read since the last update. */
    size_t unread, read_at, freed;
    /* Bytes of the current write that have arrived, if the carrier receives it in segments. */
    size_t placed;
    unsigned completed;
    /* The endpoint's ring, its free bytes, and the endpoint's receives. */
    uint64_t address, key;
    uint32_t ring_size, window, at, credits;
    bool ended;
};

/* Size of the buffers for connection data. */
#define DATA_MAX 512

struct carrier {
    /* The active side: starts until the ring has an address; sends the request; receives the reply and
     * returns the length of its data. */
    void (*begin)(struct base_peer *peer, unsigned port);
    void (*request)(struct base_peer *peer, const uint8_t *offer, uint8_t revision);
    size_t (*answer)(struct base_peer *peer, uint8_t *data, uint8_t revision);
    /* The passive side: listens and returns the port; receives a request and returns the length of its
     * data; sends the reply. */
    unsigned (*listen)(struct base_peer *peer);
    size_t (*take_request)(struct base_peer *peer, uint8_t *data, uint8_t revision);
    void (*accept)(struct base_peer *peer, const uint8_t *offer, uint8_t revision);
    /* Passes arrived messages to take_data and take_control. Returns whether there were any. */
    bool (*take_in)(struct base_peer *peer);
    /* Sends a data message to `at` in the endpoint's ring; sends a control message. */
    void (*send_data)(struct base_peer *peer, const uint8_t *data, size_t length);
    void (*send_control)(struct base_peer *peer, uint32_t word);
    /* Ends the connection in an orderly way. */
    void (*end)(struct base_peer *peer);
};

extern const struct carrier socket_carrier, verbs_carrier;

/* A message of the endpoint, which used a receive: bytes in the ring, or an update. */
void take_data(struct base_peer *peer, size_t length);
void take_control(struct base_peer *peer, uint32_t word);

#endif
