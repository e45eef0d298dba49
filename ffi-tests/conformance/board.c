#include "board.h"

#include <stdlib.h>

const struct message_settings rdma_settings = {.on_rdma = true};

bool is_of_rdma(const struct fi_info *info)
{
    static const char fabric[] = "ibv-";

    return strncmp(info->fabric_attr->name, fabric, strlen(fabric)) == 0;
}

void require_rdma(const struct fi_info *info)
{
    if (!is_of_rdma(info))
        skip("this device has no message endpoints");
}

uint8_t *region_memory(struct side *side, struct fid_mr **region)
{
    uint8_t *memory = calloc(1, LENGTH);

    CHECK(memory != NULL);
    *region = message_region(side, memory, LENGTH, 0);
    return memory;
}

uint8_t *registered(struct side *side, struct fid_mr **region)
{
    uint8_t *memory = region_memory(side, region);

    CHECK(fi_mr_desc(*region) != NULL);
    return memory;
}

void board_open_with(struct board *board, const struct message_settings *settings)
{
    messages_open(&board->pair, settings);
    require_rdma(board->pair.client.info);
    board->here = registered(&board->pair.client, &board->here_region);
    board->there = registered(&board->pair.server, &board->there_region);
}

void board_open(struct board *board)
{
    board_open_with(board, &rdma_settings);
}

void close_endpoint(struct side *side)
{
    if (side->ep != NULL)
        close_fid(&side->ep->fid);
    side->ep = NULL;
}

void board_close(struct board *board)
{
    close_endpoint(&board->pair.client);
    close_endpoint(&board->pair.server);
    close_fid(&board->here_region->fid);
    close_fid(&board->there_region->fid);
    pair_close(&board->pair);
    free(board->here);
    free(board->there);
}

void board_send(struct board *board, size_t length, uintptr_t context)
{
    CHECK_OK(fi_send(board->pair.client.ep, board->here, length, fi_mr_desc(board->here_region), FI_ADDR_UNSPEC,
                     CONTEXT(context)));
}

void board_recv(struct board *board, size_t length, uintptr_t context)
{
    CHECK_OK(fi_recv(board->pair.server.ep, board->there, length, fi_mr_desc(board->there_region), FI_ADDR_UNSPEC,
                     CONTEXT(context)));
}

void board_transfer(struct board *board, size_t length)
{
    memcpy(board->here, pattern(length, length), length);
    memset(board->there, 0, LENGTH);
    board_recv(board, LENGTH, 801);
    board_send(board, length, 802);
    CHECK_INT(await_done(board->pair.server.cq, 801, RECEIVED).len, length);
    (void)await_done(board->pair.client.cq, 802, SENT);
    CHECK_BYTES(board->there, pattern(length, length), length);
    CHECK_INT(board->there[length], 0);
}
