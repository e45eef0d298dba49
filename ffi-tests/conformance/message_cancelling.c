/* Contract, section Message endpoints: threads that are cancelled (pthread_cancel). */
#include "board.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* A pair, and memory of each side. */
struct ends {
    struct pair pair;
    uint8_t *here, *there;
    struct fid_mr *here_region, *there_region;
    struct fid_cntr *counter;
};

static void ends_open(struct ends *ends, const struct message_settings *settings)
{
    messages_open(&ends->pair, settings);
    ends->here = region_memory(&ends->pair.client, &ends->here_region);
    ends->there = region_memory(&ends->pair.server, &ends->there_region);
    ends->counter = message_counter(&ends->pair.client, FI_WAIT_UNSPEC);
}

static void ends_close(struct ends *ends)
{
    struct fid *fids[] = {&ends->pair.client.ep->fid, &ends->pair.server.ep->fid, &ends->here_region->fid,
                          &ends->there_region->fid, &ends->counter->fid};

    for (size_t i = 0; i < sizeof fids / sizeof fids[0]; i++)
        CHECK_OK(PENDING(fi_close(fids[i])));
    ends->pair.client.ep = ends->pair.server.ep = NULL;
    pair_close(&ends->pair);
    free(ends->here);
    free(ends->there);
}

/* Waits for the success of the operation with this context, which must be the next in `cq`. Drives the other side. */
static void await_pending(struct fid_cq *cq, struct fid_cq *other, uintptr_t context)
{
    struct fi_cq_data_entry entry;
    int64_t until = now_ms() + PATIENCE_MS;

    while (PENDING(fi_cq_read(cq, &entry, 1)) != 1) {
        (void)PENDING(fi_cq_read(other, NULL, 0));
        CHECK(now_ms() < until);
    }
    CHECK(entry.op_context == CONTEXT(context));
}

static void move_each_kind(struct ends *ends, size_t length)
{
    struct side *client = &ends->pair.client, *server = &ends->pair.server;
    void *desc = fi_mr_desc(ends->here_region);
    const bool is_virtual = (client->info->domain_attr->mr_mode & (MR_BASIC | FI_MR_VIRT_ADDR)) != 0;
    const uint64_t at = is_virtual ? (uintptr_t)ends->there : 0, key = fi_mr_key(ends->there_region);

    for (unsigned i = 0; i < 3; i++)
        CHECK_OK(PENDING(fi_recv(server->ep, ends->there, LENGTH, fi_mr_desc(ends->there_region), FI_ADDR_UNSPEC,
                                 CONTEXT(10 + i))));
    CHECK_OK(PENDING(fi_inject(client->ep, ends->here, 64, FI_ADDR_UNSPEC)));
    CHECK_OK(PENDING(fi_send(client->ep, ends->here, length, desc, FI_ADDR_UNSPEC, CONTEXT(1))));
    CHECK_OK(PENDING(fi_senddata(client->ep, ends->here, length, desc, 0, FI_ADDR_UNSPEC, CONTEXT(2))));
    for (unsigned i = 0; i < 3; i++)
        await_pending(server->cq, client->cq, 10 + i);
    await_pending(client->cq, server->cq, 1);
    await_pending(client->cq, server->cq, 2);
    CHECK_OK(PENDING(fi_write(client->ep, ends->here, length, desc, 0, at, key, CONTEXT(3))));
    await_pending(client->cq, server->cq, 3);
    CHECK_OK(PENDING(fi_read(client->ep, ends->here, length, desc, 0, at, key, CONTEXT(4))));
    await_pending(client->cq, server->cq, 4);
}

static void live_pending(const struct message_settings *settings)
{
    struct fi_cq_data_entry entry;
    struct ends ends;
    bool is_rdma;

    ends_open(&ends, settings);
    is_rdma = is_of_rdma(ends.pair.client.info);
    move_each_kind(&ends, 64);
    move_each_kind(&ends, LENGTH);
    CHECK_INT(PENDING(fi_cntr_read(ends.counter)), 0);
    CHECK_RET(PENDING(fi_cntr_wait(ends.counter, 1, 1)), -FI_ETIMEDOUT);
    CHECK_RET(PENDING(fi_cq_sread(ends.pair.client.cq, &entry, 1, NULL, 1)), -FI_EAGAIN);
    CHECK_RET(PENDING(fi_trywait(ends.pair.client.fabric, &(struct fid *){&ends.pair.client.cq->fid}, 1)), 0);
    CHECK_OK(PENDING(fi_recv(ends.pair.client.ep, ends.here, 1, fi_mr_desc(ends.here_region), FI_ADDR_UNSPEC,
                             CONTEXT(5))));
    CHECK_RET(PENDING(fi_cancel(&ends.pair.client.ep->fid, CONTEXT(5))), is_rdma ? -FI_ENOENT : 0);
    CHECK_OK(PENDING(fi_shutdown(ends.pair.server.ep, 0)));
    AWAIT(PATIENCE_MS, PENDING(fi_cq_read(ends.pair.client.cq, &entry, 1)) == -FI_EAVAIL);
    ends_close(&ends);
}

static const struct message_settings waits = {.cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD}};

static void live(void)
{
    live_pending(&waits);
}

static void live_on_rdma(void)
{
    struct message_settings settings = rdma_settings;

    settings.cq = waits.cq;
    live_pending(&settings);
}

/* The read that finds all output of a closed endpoint gone closes its socket. */
static void lingers(void)
{
    struct pair pair;
    size_t sent = 0, open;
    uint8_t got[MESSAGE_INJECT];

    messages_open(&pair, NULL);
    while (fi_inject(pair.client.ep, pattern(0, sizeof got), sizeof got, FI_ADDR_UNSPEC) == 0)
        sent++;
    open = open_descriptors();
    CHECK_OK(PENDING(fi_close(&pair.client.ep->fid)));
    pair.client.ep = NULL;
    CHECK_INT(open_descriptors(), open);
    for (size_t i = 0; i < sent; i++) {
        CHECK_OK(PENDING(fi_recv(pair.server.ep, got, sizeof got, NULL, FI_ADDR_UNSPEC, CONTEXT(i))));
        await_pending(pair.server.cq, pair.client.cq, i);
    }
    AWAIT(PATIENCE_MS, PENDING(fi_cq_read(pair.client.cq, NULL, 0)) == -FI_EAGAIN && open_descriptors() < open);
    pair_close(&pair);
}

/* A peer that violates the protocol, found by a read or by a call that sends; and one that resets the connection. */
static void violation(void)
{
    for (unsigned round = 0; round < 4; round++) {
        struct fi_cq_data_entry entry;
        struct side listener, server;
        int fd = message_stranger(&listener, &server, NULL);
        uint8_t got;

        note("round %u", round);
        CHECK_OK(PENDING(fi_recv(server.ep, &got, 1, NULL, FI_ADDR_UNSPEC, CONTEXT(1))));
        if (round < 2)
            CHECK_INT(CHECK_SYS(write(fd, "not an FPDU, but longer than its header", 39)), 39);
        else
            CHECK_SYS(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)));
        if (round >= 2)
            close(fd);
        if (round % 2 == 1)
            AWAIT(PATIENCE_MS, PENDING(fi_inject(server.ep, "x", 1, FI_ADDR_UNSPEC)) != 0);
        AWAIT(PATIENCE_MS, PENDING(fi_cq_read(server.cq, &entry, 1)) == -FI_EAVAIL);
        (void)await_failed(server.cq, 1, RECEIVED, FI_ECANCELED);
        if (round < 2)
            close(fd);
        side_close(&server);
        side_close(&listener);
    }
}

/* A thread whose cancellation is pending during `body`. */
struct pending {
    void (*body)(void);
    bool is_whole;
};

static void *run_pending(void *argument)
{
    struct pending *pending = argument;

    CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL), 0);
    CHECK_INT(pthread_cancel(pthread_self()), 0);
    pending->body();
    pending->is_whole = true;
    CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL), 0);
    pthread_testcancel();
    return NULL;
}

static void with_pending(void (*body)(void))
{
    struct pending pending = {.body = body};
    pthread_t thread;
    void *result;

    CHECK_INT(pthread_create(&thread, NULL, run_pending, &pending), 0);
    CHECK_INT(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(pending.is_whole);
}

static void acts_in_no_call(void)
{
    with_pending(live);
}

static void acts_in_no_rdma_call(void)
{
    with_pending(live_on_rdma);
}

static void acts_not_where_output_ends(void)
{
    with_pending(lingers);
}

static void acts_not_where_a_connection_breaks(void)
{
    with_pending(violation);
}

static const struct test tests[] = {
    TEST(acts_in_no_call, "a pending cancellation acts in no call, and after it"),
    TEST(acts_in_no_rdma_call, "the same on RDMA devices"),
    TEST(acts_not_where_output_ends, "nor in a call that finds the output of a closed endpoint gone"),
    TEST(acts_not_where_a_connection_breaks, "nor in one that finds a connection broken"),
};

const struct section message_cancelling_section = SECTION("cancelled threads of messages", tests);
