/* Message endpoints on RDMA devices, and registered memory on both sides. */
#ifndef RSTREAM_TESTS_BOARD_H
#define RSTREAM_TESTS_BOARD_H

#include "message.h"

/* Bytes of the memory of a side, and of a message that is longer than what a device takes inline. */
#define LENGTH 100000
#define LONG 5000

extern const struct message_settings rdma_settings;

struct board {
    struct pair pair;
    uint8_t *here, *there;
    struct fid_mr *here_region, *there_region;
};

/* Skips the test if the device has no message endpoints. */
bool is_of_rdma(const struct fi_info *info);
void require_rdma(const struct fi_info *info);
/* Each allocates and registers LENGTH bytes. The second checks that they have a descriptor, as on RDMA devices. */
uint8_t *region_memory(struct side *side, struct fid_mr **region);
uint8_t *registered(struct side *side, struct fid_mr **region);

void board_open(struct board *board);
void board_open_with(struct board *board, const struct message_settings *settings);
void board_close(struct board *board);
/* Closes an endpoint before the memory that it may use. */
void close_endpoint(struct side *side);

/* The client sends from the beginning of its memory, the server receives at that of its own. */
void board_send(struct board *board, size_t length, uintptr_t context);
void board_recv(struct board *board, size_t length, uintptr_t context);
void board_transfer(struct board *board, size_t length);

#endif
