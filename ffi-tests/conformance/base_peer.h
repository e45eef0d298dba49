/*
 * A peer that knows only the base protocol, as the provider in C that libfabric once had spoke it. What it says
 * and when is in base_peer.c; how that travels, in a carrier: frames over a plain socket for the embedded
 * device, rdma-core for RDMA devices.
 */
#ifndef RSTREAM_TESTS_BASE_PEER_H
#define RSTREAM_TESTS_BASE_PEER_H

#include "conformance.h"

/* Its connection data, ring, receives, and most bytes of one message. */
#define OFFER 25
#define RING ((1 << 20) - 1)
#define RECEIVES 384
#define CALL_MAX 32768

/* The format of messages where there is no immediate data. */
#define WORD_DATA 0x80000000u

struct carrier;
struct verbs_end;

/* One end. What it says of itself: the ring that the endpoint writes into, and its receives. */
struct base_peer {
    const struct carrier *carrier;
    /* What the carrier needs: a socket and the messages over it; a queue pair. */
    int fd;
    uint32_t sent, heard;
    struct verbs_end *verbs;
    uint8_t ring[RING];
    /* How the endpoint has to name the ring. */
    uint64_t own_address, own_key;
    /* Written and not read, where reading goes on, and what was read since the last update. */
    size_t unread, read_at, freed;
    /* Of the write in progress, where the carrier sees it. */
    size_t placed;
    unsigned completed;
    /* Of the endpoint: its ring, what of it is free, its receives. */
    uint64_t address, key;
    uint32_t ring_size, window, at, credits;
    bool ended;
};

/* Connection data is in buffers of this size. */
#define DATA_MAX 512

struct carrier {
    /* The active side: up to where the ring has an address, the request, and the answer's data. */
    void (*begin)(struct base_peer *peer, unsigned port);
    void (*request)(struct base_peer *peer, const uint8_t *offer, uint8_t revision);
    size_t (*answer)(struct base_peer *peer, uint8_t *data, uint8_t revision);
    /* The passive side: answers its port; the data of a request; the answer. */
    unsigned (*listen)(struct base_peer *peer);
    size_t (*take_request)(struct base_peer *peer, uint8_t *data, uint8_t revision);
    void (*accept)(struct base_peer *peer, const uint8_t *offer, uint8_t revision);
    /* Hands what has come to take_data and take_control; answers whether something had. */
    bool (*take_in)(struct base_peer *peer);
    /* A data message for `at` in the endpoint's ring, and a control message. */
    void (*send_data)(struct base_peer *peer, const uint8_t *data, size_t length);
    void (*send_control)(struct base_peer *peer, uint32_t word);
    /* The orderly end. */
    void (*end)(struct base_peer *peer);
};

extern const struct carrier socket_carrier, verbs_carrier;

/* A message from the endpoint, which took a receive: bytes in the ring, or an update. */
void take_data(struct base_peer *peer, size_t length);
void take_control(struct base_peer *peer, uint32_t word);

#endif
