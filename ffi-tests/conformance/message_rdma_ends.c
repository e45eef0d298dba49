/* Contract, section Message endpoints: on RDMA devices, what the end of an endpoint finds outstanding, and how
 * operations are reported and ordered. */
#include "board.h"

#include <stdlib.h>

/* fi_close does not wait for the peer. */
#define CLOSE_MS 2000

/* ---- fi_close ------------------------------------------------------------------------------- */

/* Closes the client's endpoint, and reads the entries of its operations, which have contexts below `count`. Each has
 * one when the call returns: those before `complete` are a success, those from `cancelled` on are cancelled. */
static void close_and_check(struct board *board, unsigned count, unsigned complete, unsigned cancelled)
{
    struct fid_cq *cq = board->pair.client.cq;
    int64_t start = now_ms();

    close_endpoint(&board->pair.client);
    CHECK_BETWEEN(now_ms() - start, 0, CLOSE_MS);
    for (unsigned i = 0; i < count; i++) {
        struct fi_cq_err_entry error = {0};
        struct fi_cq_data_entry entry;
        ssize_t got = fi_cq_read(cq, &entry, 1);

        note("operation %u", i);
        if (got == -FI_EAVAIL) {
            CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
            CHECK_INT(error.err, FI_ECANCELED);
            CHECK(i >= complete && error.op_context == CONTEXT(i));
        } else {
            CHECK_RET(got, 1);
            CHECK(i < cancelled && entry.op_context == CONTEXT(i));
        }
    }
    check_no_completion(cq);
    CHECK(await_event(board->pair.server.eq, FI_SHUTDOWN).fid == &board->pair.server.ep->fid);
    check_no_completion(board->pair.server.cq);
}

/* The peer has posted no receive, and its device asks to try again. */
static void rdma_close_without_receive(void)
{
    enum { COUNT = 20 };
    struct board board;

    board_open(&board);
    for (unsigned i = 0; i < COUNT; i++)
        board_send(&board, i % 2 ? LONG : 8, i);
    for (int64_t until = now_ms() + 300; now_ms() < until;)
        check_no_completion(board.pair.client.cq);
    close_and_check(&board, COUNT, 0, 0);
    board_close(&board);
}

/* The peer closes without a receive for what is sent to it. */
static void rdma_peer_closes(void)
{
    enum { COUNT = 4, ALL = 2 * COUNT };
    uintptr_t sent = 0, received = COUNT;
    struct board board;

    board_open(&board);
    for (uintptr_t i = 0; i < COUNT; i++) {
        board_send(&board, LONG, i);
        CHECK_OK(fi_recv(board.pair.client.ep, board.here, LENGTH, fi_mr_desc(board.here_region), FI_ADDR_UNSPEC,
                         CONTEXT(COUNT + i)));
    }
    drive_for(100);
    close_endpoint(&board.pair.server);
    for (unsigned i = 0; i < ALL; i++) {
        struct ending ending;

        AWAIT(PATIENCE_MS, next_ending(board.pair.client.cq, &ending));
        CHECK_INT(ending.context, ending.flags == SENT ? sent++ : received++);
        CHECK_INT(ending.err, ending.flags == SENT ? FI_ECONNRESET : FI_ECANCELED);
    }
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    check_no_completion(board.pair.client.cq);
    board_close(&board);
}

static void post_read(struct board *board, uintptr_t context)
{
    CHECK_OK(fi_read(board->pair.client.ep, board->here, LENGTH, fi_mr_desc(board->here_region), FI_ADDR_UNSPEC,
                     (uintptr_t)board->there, fi_mr_key(board->there_region), CONTEXT(context)));
}

/* Reads behind a message that waits are outstanding for certain. Those before it are done. */
static void rdma_close_behind_message(void)
{
    enum { READS = 4, COUNT = 2 * READS + 1 };
    struct board board;

    board_open(&board);
    for (unsigned i = 0; i < READS; i++)
        post_read(&board, i);
    board_send(&board, LONG, READS);
    for (unsigned i = READS + 1; i < COUNT; i++)
        post_read(&board, i);
    for (int64_t until = now_ms() + 500; now_ms() < until;)
        (void)fi_cq_read(board.pair.client.cq, NULL, 0);
    close_and_check(&board, COUNT, READS, READS);
    board_close(&board);
}

/* Reads that are on their way: some are done, and nothing is placed when the call has returned. */
static void rdma_close_under_reads(void)
{
    enum { COUNT = 60 };
    struct board board;

    for (unsigned round = 0; round < 5; round++) {
        board_open(&board);
        memset(board.there, 1, LENGTH);
        for (unsigned i = 0; i < COUNT; i++)
            post_read(&board, i);
        close_and_check(&board, COUNT, 0, COUNT);
        memset(board.here, 0, LENGTH);
        sleep_ms(50);
        for (unsigned i = 0; i < LENGTH; i++)
            CHECK_INT(board.here[i], 0);
        board_close(&board);
        still_moving();
    }
}

/* ---- counters and queues -------------------------------------------------------------------- */

enum { SENDS, RECEIVES, WRITES, READS, COUNTERS };
static struct fid_cntr *counters[2][COUNTERS];
static unsigned counted_sides;

static void bind_counters(struct side *side)
{
    const uint64_t flags[] = {FI_SEND, FI_RECV, FI_WRITE, FI_READ};
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr **mine = counters[counted_sides++];

    for (unsigned i = 0; i < COUNTERS; i++) {
        CHECK_OK(fi_cntr_open(side->domain, &attr, &mine[i], NULL));
        CHECK_OK(fi_ep_bind(side->ep, &mine[i]->fid, flags[i]));
    }
}

static void check_counters(unsigned side, const uint64_t *wanted, const uint64_t *errors)
{
    for (unsigned i = 0; i < COUNTERS; i++) {
        note("counter %u of side %u", i, side);
        AWAIT(PATIENCE_MS, fi_cntr_read(counters[side][i]) >= wanted[i]);
        CHECK_INT(fi_cntr_read(counters[side][i]), wanted[i]);
        CHECK_INT(fi_cntr_readerr(counters[side][i]), errors[i]);
    }
}

static void rdma_counters(void)
{
    const struct message_settings settings = {
        .on_rdma = true, .bind_flags = FI_SELECTIVE_COMPLETION, .prepare = bind_counters};
    static const uint64_t none[COUNTERS];
    struct board board;
    uint64_t there, key;
    struct fid_ep *ep;
    void *desc;

    counted_sides = 0;
    board_open_with(&board, &settings);
    ep = board.pair.client.ep;
    desc = fi_mr_desc(board.here_region);
    there = (uintptr_t)board.there;
    key = fi_mr_key(board.there_region);
    for (unsigned i = 0; i < 4; i++)
        board_recv(&board, LENGTH, i);
    board_send(&board, LONG, 1);
    CHECK_OK(fi_inject(ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_write(ep, board.here, LONG, desc, FI_ADDR_UNSPEC, there, key, NULL));
    CHECK_OK(fi_inject_write(ep, "x", 1, FI_ADDR_UNSPEC, there, key));
    post_read(&board, 1);
    CHECK_OK(fi_cntr_wait(counters[0][READS], 1, PATIENCE_MS));
    check_counters(0, (const uint64_t[]){2, 0, 2, 1}, none);
    check_counters(1, (const uint64_t[]){0, 2, 0, 0}, none);
    CHECK_RET(fi_cntr_wait(counters[0][SENDS], 3, 50), -FI_ETIMEDOUT);
    /* What is cancelled counts as an error. */
    close_endpoint(&board.pair.server);
    check_counters(1, (const uint64_t[]){0, 2, 0, 0}, (const uint64_t[]){0, 2, 0, 0});
    close_endpoint(&board.pair.client);
    for (unsigned i = 0; i < 2 * COUNTERS; i++)
        close_fid(&counters[i / COUNTERS][i % COUNTERS]->fid);
    board_close(&board);
}

/* The client reports its receives to a queue of their own. */
static void rdma_separate_queues(void)
{
    struct fid_mr *here_region, *there_region;
    struct separate open;
    uint8_t *here, *there;

    separate_open(&open, &rdma_settings);
    require_rdma(open.client.info);
    here = registered(&open.client, &here_region);
    there = registered(&open.server, &there_region);
    for (unsigned i = 0; i < 100; i++) {
        CHECK_OK(fi_recv(open.client.ep, here, LONG, fi_mr_desc(here_region), FI_ADDR_UNSPEC, CONTEXT(1)));
        CHECK_OK(fi_recv(open.server.ep, there, LONG, fi_mr_desc(there_region), FI_ADDR_UNSPEC, CONTEXT(2)));
        CHECK_OK(fi_send(open.client.ep, here + LONG, i, fi_mr_desc(here_region), FI_ADDR_UNSPEC, CONTEXT(3)));
        CHECK_OK(fi_send(open.server.ep, there + LONG, i, fi_mr_desc(there_region), FI_ADDR_UNSPEC, CONTEXT(4)));
        CHECK_INT(await_done(open.receives, 1, RECEIVED).len, i);
        (void)await_done(open.client.cq, 3, SENT);
        check_no_completion(open.receives);
        check_no_completion(open.client.cq);
        /* Both directions of the server are in one queue. */
        for (unsigned both = 0; both < 2; both++) {
            struct fi_cq_data_entry entry = next_completion(open.server.cq);

            CHECK_INT(entry.flags, entry.op_context == CONTEXT(2) ? RECEIVED : SENT);
        }
    }
    /* Each queue has what is cancelled of its direction. */
    CHECK_OK(fi_recv(open.client.ep, here, LONG, fi_mr_desc(here_region), FI_ADDR_UNSPEC, CONTEXT(5)));
    CHECK_OK(fi_send(open.client.ep, here, LONG, fi_mr_desc(here_region), FI_ADDR_UNSPEC, CONTEXT(6)));
    close_endpoint(&open.client);
    (void)await_failed(open.receives, 5, RECEIVED, FI_ECANCELED);
    (void)await_failed(open.client.cq, 6, SENT, FI_ECANCELED);
    close_endpoint(&open.server);
    close_fid(&here_region->fid);
    close_fid(&there_region->fid);
    separate_close(&open);
    free(here);
    free(there);
}

/* ---- order and registration ----------------------------------------------------------------- */

/* A message behind a fence has the bytes that the read before it has fetched. */
static void rdma_fence(void)
{
    struct board board;
    struct iovec iov;
    void *desc;
    struct fi_msg message = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .context = CONTEXT(3)};
    unsigned held = 0;

    board_open(&board);
    iov = (struct iovec){board.here, LENGTH};
    desc = fi_mr_desc(board.here_region);
    for (unsigned i = 0; i < 10; i++) {
        uint8_t *got = board.there;
        ssize_t sent;

        memset(board.here, 0, LENGTH);
        memcpy(board.there, pattern(i, LENGTH), LENGTH);
        post_read(&board, 1);
        do
            sent = fi_sendmsg(board.pair.client.ep, &message, FI_FENCE | FI_COMPLETION);
        while (sent == -FI_EAGAIN && (held++, drive(), true));
        CHECK_OK(sent);
        memset(got, 0, LENGTH);
        board_recv(&board, LENGTH, 2);
        (void)await_done(board.pair.client.cq, 1, WAS_READ);
        CHECK_INT(await_done(board.pair.server.cq, 2, RECEIVED).len, LENGTH);
        (void)await_done(board.pair.client.cq, 3, SENT);
        CHECK_BYTES(got, pattern(i, LENGTH), LENGTH);
    }
    printf("the fence held %u calls back\n", held);
    CHECK_AT_LEAST(held, 1);
    board_close(&board);
}

/* Each call that registers gives a region that messages and accesses may use; none has several pieces. */
static void rdma_registrations(void)
{
    const uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fid_mr *region = NULL;
    struct board board;

    board_open(&board);
    for (unsigned by_attributes = 0; by_attributes < 2; by_attributes++) {
        struct fid_domain *domain = board.pair.client.domain;
        struct iovec pieces[2] = {{board.here, LONG}, {board.here + LENGTH / 2, LONG}};
        struct fi_mr_attr attr = {.mr_iov = pieces, .iov_count = 2, .access = all, .context = CONTEXT(7)};

        if (by_attributes)
            CHECK_RET(fi_mr_regattr(domain, &attr, 0, &region), -FI_EINVAL);
        else
            CHECK_RET(fi_mr_regv(domain, pieces, 2, all, 0, 0, 0, &region, CONTEXT(7)), -FI_EINVAL);
        attr.iov_count = 1;
        if (by_attributes)
            CHECK_OK(fi_mr_regattr(domain, &attr, 0, &region));
        else
            CHECK_OK(fi_mr_regv(domain, pieces, 1, all, 0, 0, 0, &region, CONTEXT(7)));
        CHECK(region->fid.context == CONTEXT(7));
        memcpy(board.here, pattern(by_attributes, LONG), LONG);
        board_recv(&board, LENGTH, 1);
        CHECK_OK(fi_send(board.pair.client.ep, board.here, LONG, fi_mr_desc(region), FI_ADDR_UNSPEC, CONTEXT(2)));
        (void)await_done(board.pair.client.cq, 2, SENT);
        (void)await_done(board.pair.server.cq, 1, RECEIVED);
        CHECK_BYTES(board.there, pattern(by_attributes, LONG), LONG);
        /* The server reads it by its key. */
        memset(board.there, 0, LONG);
        CHECK_OK(fi_read(board.pair.server.ep, board.there, LONG, fi_mr_desc(board.there_region), FI_ADDR_UNSPEC,
                         (uintptr_t)board.here, fi_mr_key(region), CONTEXT(3)));
        (void)await_done(board.pair.server.cq, 3, WAS_READ);
        CHECK_BYTES(board.there, pattern(by_attributes, LONG), LONG);
        close_fid(&region->fid);
    }
    board_close(&board);
}

/* The device finds that a message is not in the region that it names, and ends the connection. */
static void rdma_beyond_region(void)
{
    struct fid_mr *region = NULL;
    struct board board;

    board_open(&board);
    CHECK_OK(fi_mr_reg(board.pair.client.domain, board.here, LONG, FI_SEND, 0, 0, 0, &region, NULL));
    board_recv(&board, LENGTH, 1);
    CHECK_OK(fi_send(board.pair.client.ep, board.here, LONG + 1, fi_mr_desc(region), FI_ADDR_UNSPEC, CONTEXT(2)));
    (void)await_failed(board.pair.client.cq, 2, SENT, FI_EFAULT);
    (void)await_failed(board.pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    CHECK(await_event(board.pair.client.eq, FI_SHUTDOWN).fid == &board.pair.client.ep->fid);
    CHECK(await_event(board.pair.server.eq, FI_SHUTDOWN).fid == &board.pair.server.ep->fid);
    close_endpoint(&board.pair.client);
    close_fid(&region->fid);
    board_close(&board);
}

static const struct test tests[] = {
    TEST(rdma_close_without_receive, "fi_close while the peer has no receive: sends are cancelled before it returns"),
    TEST(rdma_peer_closes, "a peer that closes: FI_ECONNRESET for what is sent, FI_ECANCELED for receives"),
    TEST(rdma_close_behind_message, "the same with reads behind such a message; those before it are complete"),
    TEST(rdma_close_under_reads, "fi_close among reads: each has one entry, in order; nothing is placed afterwards"),
    TEST(rdma_counters, "counters of each kind; what is cancelled counts as an error"),
    TEST(rdma_separate_queues, "separate queues for the two directions, also for what is cancelled"),
    TEST(rdma_fence, "FI_FENCE: a message has what the read before it has fetched"),
    TEST(rdma_registrations, "fi_mr_regv and fi_mr_regattr of one piece; several: -FI_EINVAL"),
    TEST(rdma_beyond_region, "a message that is not in the region that it names fails, and ends the connection"),
};

const struct section message_rdma_ends_section = SECTION("ends on RDMA devices", tests);
