/* Contract, section Message endpoints: on RDMA devices with other drivers than the software devices have. */
#include "board.h"

#include <stdlib.h>

/* ---- what the driver has room for ----------------------------------------------------------- */

static void rdma_fixed_queue(void)
{
    enum { ENDPOINTS = 20 };
    bool *refuses = other_driver("refuse_resizing");
    struct fid_ep *eps[ENDPOINTS];
    struct side side = {0};
    struct fi_info *hints;

    *refuses = true;
    hints = message_hints(&rdma_settings);
    side_open(&side, find(IPV4, "0", FI_SOURCE, hints));
    fi_freeinfo(hints);
    require_rdma(side.info);
    message_queue(&side, &rdma_settings);
    CHECK_AT_LEAST(side.info->domain_attr->ep_cnt, ENDPOINTS);
    for (int i = 0; i < ENDPOINTS; i++)
        eps[i] = message_endpoint_of(&side, side.info);
    for (int i = 0; i < ENDPOINTS; i++)
        close_fid(&eps[i]->fid);
    side_close(&side);
}

/* The longest send queue that fi_getinfo offers has room for messages of inject_size bytes within its entries. */
static void rdma_short_send_queue(void)
{
    struct message_settings settings = {.on_rdma = true, .tx_size = 8000};
    size_t *size = other_driver("send_queue_size");
    struct fi_info *hints, *info = NULL;
    struct board board;

    *size = 2 << 20;
    hints = message_hints(&settings);
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup("ibv");
    CHECK_RET(fi_getinfo(TEST_API, IPV4, "0", FI_SOURCE, hints, &info), -FI_ENODATA);
    fi_freeinfo(hints);
    settings.tx_size = 4000;
    board_open_with(&board, &settings);
    CHECK_AT_LEAST(board.pair.client.info->tx_attr->size, 4000);
    for (size_t length = board.pair.client.info->tx_attr->inject_size; length > 0; length /= 2) {
        uint8_t message[MESSAGE_INJECT];

        board_recv(&board, LENGTH, 1);
        memcpy(message, pattern(length, length), length);
        CHECK_OK(fi_inject(board.pair.client.ep, message, length, FI_ADDR_UNSPEC));
        memset(message, 0, length);
        CHECK_INT(await_done(board.pair.server.cq, 1, RECEIVED).len, length);
        CHECK_BYTES(board.there, pattern(length, length), length);
    }
    board_close(&board);
}

/* ---- a device that is out of the machine ------------------------------------------------------ */

enum { OPERATIONS = 3, MS = 500 };

/* Takes the server's device out of the machine while operations of the server's are outstanding. */
static void remove_under_operations(struct board *board, const struct message_settings *settings)
{
    void (*remove_device)(const char *name) = (void (*)(const char *))other_driver("remove_device");

    *(bool *)other_driver("removable") = true;
    setenv("FI_RSTREAM_KEEPALIVE_S", "1", 1);
    board_open_with(board, settings);
    for (uintptr_t i = 0; i < OPERATIONS; i++) {
        board_recv(board, LENGTH, i);
        CHECK_OK(fi_send(board->pair.server.ep, board->there, LONG, fi_mr_desc(board->there_region), FI_ADDR_UNSPEC,
                         CONTEXT(OPERATIONS + i)));
    }
    drive_for(100);
    remove_device(board->pair.server.info->domain_attr->name);
}

/* Checks that each operation is cancelled within `ms`, and that the connection has ended. The queue is read by `wait`. */
static void check_removed(struct board *board, int64_t ms, void (*wait)(struct side *side))
{
    int64_t until = now_ms() + ms;
    unsigned seen = 0;

    for (unsigned i = 0; i < 2 * OPERATIONS; i++) {
        struct ending ending;

        while (!next_ending(board->pair.server.cq, &ending)) {
            CHECK(now_ms() < until);
            wait(&board->pair.server);
        }
        CHECK(ending.err == FI_ECANCELED && ending.context < 2 * OPERATIONS && (seen >> ending.context & 1) == 0);
        CHECK_INT(ending.flags, ending.context < OPERATIONS ? RECEIVED : SENT);
        seen |= 1U << ending.context;
    }
    CHECK(await_event(board->pair.server.eq, FI_SHUTDOWN).fid == &board->pair.server.ep->fid);
    CHECK_RET(fi_recv(board->pair.server.ep, board->there, LENGTH, fi_mr_desc(board->there_region), FI_ADDR_UNSPEC,
                      NULL),
              -FI_ENOTCONN);
}

static void keep_polling(struct side *side)
{
    (void)side;
    drive();
}

static void rdma_removed(void)
{
    struct board board;

    remove_under_operations(&board, &rdma_settings);
    check_removed(&board, 3000, keep_polling);
    board_close(&board);
}

static void sleep_in_read(struct side *side)
{
    struct fi_cq_data_entry entry;

    (void)fi_cq_sread(side->cq, &entry, 0, NULL, MS);
}

/* The device's descriptors wake nobody without end. */
static void rdma_removed_asleep(void)
{
    const struct message_settings settings = {.on_rdma = true, .cq.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_data_entry entry;
    struct board board;
    int64_t cpu;

    remove_under_operations(&board, &settings);
    check_removed(&board, 3000, sleep_in_read);
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(board.pair.server.cq, &entry, 1, NULL, MS), -FI_EAGAIN);
    check_idle("a reader of completions beside a device that is gone", cpu, MS);
    board_close(&board);
}

static void wait_for_descriptor(struct side *side)
{
    struct fid *fid = &side->cq->fid;

    if (fi_trywait(side->fabric, &fid, 1) == FI_SUCCESS)
        (void)readable(wait_fd(fid), MS);
}

static void rdma_removed_descriptor(void)
{
    const struct message_settings settings = {.on_rdma = true, .cq.wait_obj = FI_WAIT_FD};
    struct board board;
    int64_t cpu;

    remove_under_operations(&board, &settings);
    check_removed(&board, 3000, wait_for_descriptor);
    cpu = cpu_ms();
    /* The keep-alive timer may wake it a few times. */
    for (int64_t until = now_ms() + MS; now_ms() < until;) {
        wait_for_descriptor(&board.pair.server);
        check_no_completion(board.pair.server.cq);
    }
    check_idle("a waiter for a descriptor beside a device that is gone", cpu, MS);
    board_close(&board);
}

static const struct test tests[] = {
    TEST(rdma_fixed_queue, "a driver that cannot resize completion queues has room for many endpoints"),
    TEST(rdma_short_send_queue, "tx_attr.size is at most what has room for inject_size bytes in each entry"),
    TEST(rdma_removed, "a device out of the machine: what is outstanding is cancelled, and FI_SHUTDOWN"),
    TEST(rdma_removed_asleep, "the same for a reader that sleeps in fi_cq_sread, which no descriptor wakes without end"),
    TEST(rdma_removed_descriptor, "the same for one that waits for the queue's descriptor"),
};

const struct section message_rdma_drivers_section = SECTION("drivers of RDMA devices", tests);
