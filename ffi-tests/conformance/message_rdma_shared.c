/* Contract, section Message endpoints: shared receive contexts on RDMA devices. */
#include "board.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* A listener whose two connections take their receives from one shared receive context. */
struct shared_board {
    struct side listener, clients[2];
    struct fid_ep *shared, *eps[2];
    uint8_t *memory;
    struct fid_mr *region;
};

static void shared_open(struct shared_board *board)
{
    message_listen(&board->listener, &rdma_settings);
    require_rdma(board->listener.info);
    message_queue(&board->listener, &rdma_settings);
    CHECK_OK(fi_srx_context(board->listener.domain, NULL, &board->shared, NULL));
    board->memory = registered(&board->listener, &board->region);
    for (int i = 0; i < 2; i++)
        board->eps[i] = message_shared(&board->listener, &board->clients[i], board->shared, &rdma_settings);
}

/* Closes one end of a connection. */
static void shared_close_endpoint(struct shared_board *board, int i)
{
    close_fid(&board->eps[i]->fid);
    board->eps[i] = NULL;
}

static void shared_close(struct shared_board *board)
{
    for (int i = 0; i < 2; i++)
        if (board->eps[i] != NULL)
            shared_close_endpoint(board, i);
    /* The context closes while clients and memory are still there. */
    close_fid(&board->shared->fid);
    for (int i = 0; i < 2; i++)
        side_close(&board->clients[i]);
    close_fid(&board->region->fid);
    side_close(&board->listener);
    free(board->memory);
}

/* Posts a shared receive of 8 bytes to a place in the memory. */
static void shared_recv(struct shared_board *board, int place, struct fid_mr *region, uintptr_t context)
{
    CHECK_OK(fi_recv(board->shared, board->memory + 8 * place, 8, fi_mr_desc(region), FI_ADDR_UNSPEC,
                     CONTEXT(context)));
}

/* A client sends a byte, which a receive with this context takes. */
static void shared_transfer(struct shared_board *board, int client, uintptr_t context)
{
    CHECK_OK(fi_inject(board->clients[client].ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(board->listener.cq, context, RECEIVED).len, 1);
}

static void rdma_shared_receives(void)
{
    struct shared_board board;

    shared_open(&board);
    CHECK_RET(fi_recv(board.eps[0], board.memory, 10, fi_mr_desc(board.region), FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    for (int i = 0; i < 6; i++) {
        uint32_t number = 0, sent = 70 + (uint32_t)i;

        shared_recv(&board, i, board.region, (uintptr_t)i);
        CHECK_OK(fi_inject(board.clients[i % 2].ep, &sent, sizeof sent, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(board.listener.cq, (uintptr_t)i, RECEIVED).len, sizeof sent);
        memcpy(&number, board.memory + 8 * i, sizeof number);
        CHECK_INT(number, sent);
    }
    /* A receive that outlives one connection serves the other, and cannot be cancelled. */
    shared_recv(&board, 0, board.region, 9);
    CHECK_RET(fi_cancel(&board.shared->fid, CONTEXT(9)), -FI_ENOENT);
    CHECK_RET(fi_close(&board.shared->fid), -FI_EBUSY);
    shared_close_endpoint(&board, 0);
    (void)await_event(board.clients[0].eq, FI_SHUTDOWN);
    shared_transfer(&board, 1, 9);
    shared_close(&board);
}

/* Messages of both connections wait for the context, which is empty, and take what it gets then. */
static void rdma_shared_empty(void)
{
    struct shared_board board;

    shared_open(&board);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(fi_inject(board.clients[i].ep, i ? "bb" : "a", 1 + (size_t)i, FI_ADDR_UNSPEC));
        for (int64_t until = now_ms() + 200; now_ms() < until; usleep(1000)) {
            check_no_completion(board.listener.cq);
            check_no_event(board.listener.eq);
        }
        shared_recv(&board, 0, board.region, 1);
        shared_recv(&board, 1, board.region, 2);
        /* Either of them is first. */
        CHECK_INT(await_done(board.listener.cq, 1, RECEIVED).len + await_done(board.listener.cq, 2, RECEIVED).len, 3);
        CHECK_INT(board.memory[0] + board.memory[8], 'a' + 'b');
    }
    shared_close(&board);
}

/* A receive that the device cannot fill is reported, and not given to the next connection. */
static void rdma_bad_shared_receive(void)
{
    struct shared_board board;
    struct fid_mr *read_only = NULL;
    struct fi_cq_err_entry error = {0};
    struct fi_cq_data_entry entry;
    ssize_t got = 0;

    shared_open(&board);
    CHECK_OK(fi_mr_reg(board.listener.domain, board.memory, LENGTH, FI_SEND, 0, 0, 0, &read_only, NULL));
    shared_recv(&board, 0, read_only, 1);
    CHECK_OK(fi_inject(board.clients[0].ep, "x", 1, FI_ADDR_UNSPEC));
    AWAIT(PATIENCE_MS, (got = fi_cq_read(board.listener.cq, &entry, 1)) != -FI_EAGAIN);
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_cq_readerr(board.listener.cq, &error, 0), 1);
    CHECK(error.op_context == CONTEXT(1));
    CHECK(await_event(board.listener.eq, FI_SHUTDOWN).fid == &board.eps[0]->fid);
    shared_recv(&board, 0, board.region, 2);
    shared_transfer(&board, 1, 2);
    close_fid(&read_only->fid);
    shared_close(&board);
}

/* A closed endpoint that still has output takes no receives, and keeps no context open. */
static void rdma_shared_after_close(void)
{
    struct shared_board board;

    shared_open(&board);
    shared_recv(&board, 0, board.region, 1);
    /* The client has posted no receive. */
    CHECK_OK(fi_inject(board.eps[0], "x", 1, FI_ADDR_UNSPEC));
    shared_close_endpoint(&board, 0);
    (void)fi_inject(board.clients[0].ep, "y", 1, FI_ADDR_UNSPEC);
    usleep(300000);
    check_no_completion(board.listener.cq);
    shared_transfer(&board, 1, 1);
    shared_close(&board);
}

/* The context of a send. */
#define A_SEND 1000

/* Reads what reaches shared receives in so many ms, and posts these again. */
static void repost_for(struct shared_board *board, int64_t ms)
{
    int64_t until = now_ms() + ms;
    struct ending ending;

    while (now_ms() < until)
        while (next_ending(board->listener.cq, &ending))
            if (ending.context != A_SEND)
                shared_recv(board, (int)ending.context, board->region, ending.context);
}

static atomic_bool has_ended;

/* Sends messages until the connection has ended. */
static void *inject_until_end(void *client)
{
    struct side *side = client;
    ssize_t sent;

    do {
        sent = fi_inject(side->ep, "x", 1, FI_ADDR_UNSPEC);
        (void)fi_cq_read(side->cq, NULL, 0);
    } while (sent == 0 || sent == -FI_EAGAIN);
    has_ended = true;
    return NULL;
}

/* Closes a connection while messages for the context arrive, and while so many messages are outstanding that the client
 * does not receive. Returns when the client's side has ended. */
static void close_under_traffic(struct shared_board *board, unsigned sends, unsigned injects)
{
    pthread_t traffic;

    has_ended = false;
    CHECK_INT(pthread_create(&traffic, NULL, inject_until_end, &board->clients[0]), 0);
    repost_for(board, 5);
    for (unsigned i = 0; i < sends; i++)
        CHECK_OK(fi_send(board->eps[0], board->memory + LONG, LONG, fi_mr_desc(board->region), FI_ADDR_UNSPEC,
                         CONTEXT(A_SEND)));
    for (unsigned i = 0; i < injects; i++)
        CHECK_OK(fi_inject(board->eps[0], "z", 1, FI_ADDR_UNSPEC));
    shared_close_endpoint(board, 0);
    do
        repost_for(board, 5);
    while (!has_ended);
    CHECK_INT(pthread_join(traffic, NULL), 0);
}

/* Connections are closed so: the context keeps every receive, and nobody spins afterwards. */
static void reconnect_under_traffic(unsigned rounds, unsigned sends, unsigned injects)
{
    enum { RECEIVES = 8, MS = 500 };
    struct shared_board board;
    struct fi_eq_cm_entry event;
    uint32_t kind;
    int64_t cpu;

    shared_open(&board);
    for (int i = 0; i < RECEIVES; i++)
        shared_recv(&board, i, board.region, (uintptr_t)i);
    for (unsigned round = 0; round < rounds; round++) {
        close_under_traffic(&board, sends, injects);
        side_close(&board.clients[0]);
        board.eps[0] = message_shared(&board.listener, &board.clients[0], board.shared, &rdma_settings);
    }
    /* Whatever the device still reports of them. */
    repost_for(&board, 300);
    cpu = cpu_ms();
    CHECK_RET(fi_eq_sread(board.listener.eq, &kind, &event, sizeof event, MS, 0), -FI_EAGAIN);
    check_idle("a reader of events beside closed connections", cpu, MS);
    for (int i = 0; i < RECEIVES; i++)
        CHECK_OK(fi_inject(board.clients[1].ep, "y", 1, FI_ADDR_UNSPEC));
    for (int i = 0; i < RECEIVES; i++)
        CHECK_INT(next_completion(board.listener.cq).len, 1);
    shared_close(&board);
}

static void rdma_shared_reconnects(void)
{
    reconnect_under_traffic(30, 0, 0);
}

static void rdma_shared_dropped(void)
{
    *(bool *)other_driver("drop_completions") = true;
    reconnect_under_traffic(30, 0, 0);
}

static void rdma_shared_dropped_sending(void)
{
    *(bool *)other_driver("drop_completions") = true;
    reconnect_under_traffic(30, 4, 0);
}

/* The queue pair of an endpoint that has only injected messages outlives it for five seconds. */
static void rdma_shared_dropped_injecting(void)
{
    *(bool *)other_driver("drop_completions") = true;
    reconnect_under_traffic(3, 0, 4);
}

static const struct test tests[] = {
    TEST(rdma_shared_receives, "endpoints share the receives of a shared receive context"),
    TEST(rdma_shared_empty, "messages wait for a shared receive context that is empty, and take what it gets"),
    TEST(rdma_bad_shared_receive, "a shared receive that cannot be filled is reported once"),
    TEST(rdma_shared_after_close, "a closed endpoint takes no shared receive, and its context can be closed"),
    TEST(rdma_shared_reconnects, "connections that are closed while messages arrive leave the context every receive"),
    TEST(rdma_shared_dropped, "the same with a driver that drops the completions of what it destroys"),
    TEST(rdma_shared_dropped_sending, "the same while sends of the closed endpoint are outstanding"),
    TEST(rdma_shared_dropped_injecting, "the same while injected messages of the closed endpoint are outstanding"),
};

const struct section message_rdma_shared_section = SECTION("shared receives on RDMA devices", tests);
