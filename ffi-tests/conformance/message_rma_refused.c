/* Contract, section Message endpoints: access to memory of the peer that is refused. */
#include "offer.h"

enum fault { WRONG_KEY, BEYOND, FAR_BEYOND, WRAPS, NO_RIGHT, CLOSED, FAULTS };
enum access { READ, WRITE, DELIVERED_WRITE };

/* Posts an access to 10 bytes. */
static void post_access(struct fid_ep *ep, enum access access, uint64_t address, uint64_t key, uintptr_t context)
{
    struct iovec piece = {here, 10};
    struct fi_rma_iov target = {.addr = address, .len = 10, .key = key};
    struct fi_msg_rma message = {.msg_iov = &piece, .iov_count = 1, .addr = LOCAL, .rma_iov = &target,
                                 .rma_iov_count = 1, .context = CONTEXT(context)};

    if (access == READ)
        CHECK_OK(fi_read(ep, here, 10, NULL, LOCAL, address, key, CONTEXT(context)));
    else if (access == WRITE)
        CHECK_OK(fi_write(ep, here, 10, NULL, LOCAL, address, key, CONTEXT(context)));
    else
        CHECK_OK(fi_writemsg(ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION));
}

/* Takes the entries of a refused write with context 1, and of what waits for an answer behind it with context 2. */
static void take_write_and_read(struct fid_cq *cq)
{
    struct fi_cq_err_entry error = {0};
    struct fi_cq_data_entry entry;
    ssize_t answer = -FI_EAGAIN;

    /* The write itself was complete when TCP had taken it, or fails with the connection. */
    AWAIT(PATIENCE_MS, (answer = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN);
    if (answer == -FI_EAVAIL)
        (void)await_failed(cq, 1, WRITTEN, FI_EACCES);
    else
        CHECK(entry.op_context == CONTEXT(1) && entry.flags == WRITTEN);
    AWAIT(PATIENCE_MS, fi_cq_readerr(cq, &error, 0) == 1 || fi_cq_read(cq, NULL, 0) == -FI_EINVAL);
    CHECK(error.op_context == CONTEXT(2));
    CHECK_INT(error.err, FI_ECANCELED);
}

/* Another client, whose connection shares the server's domain and completion queue. */
struct bystander {
    struct side client;
    struct fid_ep *server;
};

/* Its connection goes on. Closes it. */
static void bystander_close(struct bystander *bystander, struct offer *offer)
{
    struct side *client = &bystander->client;
    uint8_t got[2];

    memset(here, 0, 10);
    CHECK_OK(fi_read(client->ep, here, 10, NULL, LOCAL, offer->address, offer->key, CONTEXT(1)));
    (void)await_done(client->cq, 1, WAS_READ);
    CHECK_BYTES(here, there, 10);
    post_recv(client->ep, &got[0], 1, 2);
    post_recv(bystander->server, &got[1], 1, 3);
    post_send(client->ep, "x", 1, 4);
    (void)await_done(client->cq, 4, SENT);
    (void)await_done(offer->pair.server.cq, 3, RECEIVED);
    post_send(bystander->server, "y", 1, 5);
    (void)await_done(offer->pair.server.cq, 5, SENT);
    (void)await_done(client->cq, 2, RECEIVED);
    CHECK_BYTES(got, "yx", 2);
    close_fid(&bystander->server->fid);
    side_close(client);
}

/* One access that the peer refuses, with others behind it: the first fails with the reason, the others are
 * cancelled, both sides see the end, nothing is written, and another connection goes on. */
static void refused_access(enum fault fault, enum access access, int mr_mode)
{
    struct message_settings settings = {.mr_mode = mr_mode};
    const uint64_t right = access == READ ? FI_REMOTE_WRITE : FI_REMOTE_READ;
    struct fid_mr *other = NULL;
    struct bystander bystander;
    uint64_t key, address;
    struct offer offer;
    struct fid_ep *ep;
    uint8_t got;

    note("fault %d, access %d, mr_mode %d", fault, access, mr_mode);
    offer_open(&offer, &settings);
    bystander.server = message_beside(&offer.pair, &bystander.client, &settings);
    ep = offer.pair.client.ep;
    key = offer.key;
    address = offer.address;
    memset(there, 1, LENGTH);
    memset(here, 2, LENGTH);
    CHECK_OK(fi_mr_reg(offer.pair.server.domain, there, 100, right, 0, 0x9999, 0, &other, NULL));
    switch (fault) {
    case WRONG_KEY:
        key ^= 0x5500;
        break;
    case BEYOND:
        address += LENGTH - 9;
        break;
    case FAR_BEYOND:
        address += 1ULL << 40;
        break;
    case WRAPS:
        address = UINT64_MAX - 4;
        break;
    case NO_RIGHT:
        key = fi_mr_key(other);
        break;
    default:
        key = fi_mr_key(other);
        close_fid(&other->fid);
        other = NULL;
    }
    post_recv(offer.pair.server.ep, &got, 1, 9);
    post_access(ep, access, address, key, 1);
    /* It waits for an answer, which does not come. */
    CHECK_OK(fi_read(ep, here + 50, 10, NULL, LOCAL, offer.address, offer.key, CONTEXT(2)));
    post_send(ep, "x", 1, 3);
    if (access == WRITE) {
        take_write_and_read(offer.pair.client.cq);
    } else {
        (void)await_failed(offer.pair.client.cq, 1, access == READ ? WAS_READ : WRITTEN, FI_EACCES);
        (void)await_failed(offer.pair.client.cq, 2, WAS_READ, FI_ECANCELED);
    }
    (void)await_failed(offer.pair.client.cq, 3, SENT, FI_ECANCELED);
    (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
    (void)await_event(offer.pair.server.eq, FI_SHUTDOWN);
    (void)await_failed(offer.pair.server.cq, 9, RECEIVED, FI_ECANCELED);
    check_no_completion(offer.pair.client.cq);
    check_no_completion(offer.pair.server.cq);
    for (unsigned i = 0; i < LENGTH; i++) {
        CHECK_INT(there[i], 1);
        CHECK_INT(here[i], 2);
    }
    bystander_close(&bystander, &offer);
    if (other)
        close_fid(&other->fid);
    offer_close(&offer);
}

static void refused_reads(void)
{
    for (enum fault fault = 0; fault < FAULTS; fault++) {
        refused_access(fault, READ, 0);
        refused_access(fault, READ, MR_BASIC);
    }
}

static void refused_writes(void)
{
    for (enum fault fault = 0; fault < FAULTS; fault++) {
        refused_access(fault, WRITE, 0);
        refused_access(fault, WRITE, MR_BASIC);
    }
}

static void refused_delivered_writes(void)
{
    for (enum fault fault = 0; fault < FAULTS; fault++) {
        refused_access(fault, DELIVERED_WRITE, 0);
        refused_access(fault, DELIVERED_WRITE, MR_BASIC);
    }
}

/* A write that is still being sent when the peer refuses it fails with the reason. */
static void refused_long_writes(void)
{
    enum { LONG = 64 << 20 };
    uint8_t *memory = map_pages(LONG);

    for (unsigned delivered = 0; delivered < 2; delivered++) {
        struct iovec local = {.iov_base = memory, .iov_len = LONG};
        struct fi_rma_iov remote = {.len = LONG, .key = 0x5555};
        struct fi_msg_rma message = {.msg_iov = &local, .iov_count = 1, .rma_iov = &remote, .rma_iov_count = 1};
        struct offer offer;

        offer_open(&offer, NULL);
        message.context = CONTEXT(1);
        CHECK_OK(fi_writemsg(offer.pair.client.ep, &message, FI_COMPLETION | (delivered ? FI_DELIVERY_COMPLETE : 0)));
        CHECK_OK(fi_read(offer.pair.client.ep, here, 10, NULL, LOCAL, 0, offer.key, CONTEXT(2)));
        (void)await_failed(offer.pair.client.cq, 1, WRITTEN, FI_EACCES);
        (void)await_failed(offer.pair.client.cq, 2, WAS_READ, FI_ECANCELED);
        (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
        offer_close(&offer);
    }
    unmap_pages(memory, LONG);
}

/* What confirms another operation is not to blame for a write that is refused. */
static void refused_before_delivered(void)
{
    for (unsigned reads = 0; reads < 2; reads++) {
        struct offer offer;

        offer_open(&offer, NULL);
        post_access(offer.pair.client.ep, WRITE, 0, 0x5555, 1);
        if (reads)
            CHECK_OK(fi_read(offer.pair.client.ep, NULL, 0, NULL, LOCAL, 0, offer.key, CONTEXT(2)));
        else
            post_access(offer.pair.client.ep, DELIVERED_WRITE, 0, offer.key, 2);
        take_write_and_read(offer.pair.client.cq);
        (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
        offer_close(&offer);
    }
}

/* A refused write among more than the device confirms at a time has the reason, and those before it succeed. */
static void refused_behind_many(void)
{
    enum { WRITES = 40 };
    struct offer offer;

    offer_open(&offer, NULL);
    for (unsigned i = 0; i <= WRITES; i++)
        post_access(offer.pair.client.ep, DELIVERED_WRITE, 0, i < WRITES ? offer.key : 0x5555, i);
    for (unsigned i = 0; i < WRITES; i++)
        (void)await_done(offer.pair.client.cq, i, WRITTEN);
    (void)await_failed(offer.pair.client.cq, WRITES, WRITTEN, FI_EACCES);
    (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
    offer_close(&offer);
}

/* One of several reads under way is refused: it fails with the reason, wherever it stands. Those before it have
 * their answer, those behind it are cancelled. */
static void refused_among_many(void)
{
    for (unsigned round = 0; round < 60; round++) {
        unsigned reads = round % 20 + 1, refused = round * 7 % reads, done = 0;
        struct fi_cq_data_entry entry;
        struct fi_cq_err_entry error = {0};
        struct offer offer;

        note("read %u of %u", refused, reads);
        offer_open(&offer, NULL);
        for (unsigned i = 0; i < reads; i++)
            CHECK_OK(fi_read(offer.pair.client.ep, here, 1 + i * 50 % LENGTH, NULL, LOCAL, 0,
                             i == refused ? 0x5555 : offer.key, CONTEXT(i)));
        while (done < reads) {
            ssize_t got = fi_cq_read(offer.pair.client.cq, &entry, 1);

            if (got == 1) {
                CHECK(error.err == 0 && done < refused);
                CHECK_INT((uintptr_t)entry.op_context, done++);
            } else if (got == -FI_EAVAIL) {
                CHECK_RET(fi_cq_readerr(offer.pair.client.cq, &error, 0), 1);
                CHECK_BETWEEN(done, refused, reads - 1);
                CHECK_INT(error.err, done == refused ? FI_EACCES : FI_ECANCELED);
                CHECK_INT((uintptr_t)error.op_context, done++);
            } else {
                CHECK_RET(got, -FI_EAGAIN);
                (void)fi_cq_read(offer.pair.server.cq, NULL, 0);
            }
        }
        (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
        offer_close(&offer);
    }
}

/* Counters of the client's operations by their kind. */
enum { OF_SENDS, OF_READS, OF_WRITES, KINDS };
static struct fid_cntr *counters[KINDS];

/* Binds them to the client's endpoint. The server borrows from its listener. */
static void bind_counters(struct side *side)
{
    const uint64_t kinds[] = {FI_SEND, FI_READ, FI_WRITE};
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};

    for (unsigned i = 0; i < KINDS && !side->borrows; i++) {
        CHECK_OK(fi_cntr_open(side->domain, &attr, &counters[i], NULL));
        CHECK_OK(fi_ep_bind(side->ep, &counters[i]->fid, kinds[i]));
    }
}

/* Checks that of each kind one operation has succeeded, and this number failed. */
static void check_counters(uint64_t failures)
{
    for (unsigned i = 0; i < KINDS; i++) {
        note("counter %u", i);
        CHECK_INT(fi_cntr_read(counters[i]), 1);
        CHECK_INT(fi_cntr_readerr(counters[i]), failures);
    }
}

/* Opens an offer whose client has done one operation of each kind. */
static void counted_open(struct offer *offer)
{
    struct message_settings settings = {.prepare = bind_counters};
    struct fid_ep *ep;

    offer_open(offer, &settings);
    ep = offer->pair.client.ep;
    message_transfer(&offer->pair.client, &offer->pair.server, 10);
    CHECK_OK(fi_write(ep, here, 10, NULL, LOCAL, 0, offer->key, CONTEXT(1)));
    (void)await_done(offer->pair.client.cq, 1, WRITTEN);
    CHECK_OK(fi_read(ep, here, 10, NULL, LOCAL, 0, offer->key, CONTEXT(2)));
    (void)await_done(offer->pair.client.cq, 2, WAS_READ);
    check_counters(0);
}

/* Closes the client's endpoint, the counters and the rest. */
static void counted_close(struct offer *offer)
{
    if (offer->pair.client.ep)
        close_fid(&offer->pair.client.ep->fid);
    offer->pair.client.ep = NULL;
    for (unsigned i = 0; i < KINDS; i++)
        close_fid(&counters[i]->fid);
    offer_close(offer);
}

/* Failures are counted by their kind: of a refused access and what is behind it, and of what a close cancels. */
static void counted_failures(void)
{
    enum { LONG = 64 << 20 };
    uint8_t *memory = map_pages(LONG);
    struct offer offer;
    struct fid_ep *ep;

    counted_open(&offer);
    ep = offer.pair.client.ep;
    post_access(ep, READ, 0, ~offer.key, 1);
    post_access(ep, DELIVERED_WRITE, 0, offer.key, 2);
    post_send(ep, "x", 1, 3);
    (void)await_failed(offer.pair.client.cq, 1, WAS_READ, FI_EACCES);
    (void)await_failed(offer.pair.client.cq, 2, WRITTEN, FI_ECANCELED);
    (void)await_failed(offer.pair.client.cq, 3, SENT, FI_ECANCELED);
    check_counters(1);
    counted_close(&offer);

    counted_open(&offer);
    ep = offer.pair.client.ep;
    post_send(ep, memory, LONG, 1);
    CHECK_OK(fi_write(ep, memory, LONG, NULL, LOCAL, 0, offer.key, CONTEXT(2)));
    CHECK_OK(fi_read(ep, here, 10, NULL, LOCAL, 0, offer.key, CONTEXT(3)));
    close_fid(&ep->fid);
    offer.pair.client.ep = NULL;
    check_counters(1);
    (void)await_failed(offer.pair.client.cq, 1, SENT, FI_ECANCELED);
    (void)await_failed(offer.pair.client.cq, 2, WRITTEN, FI_ECANCELED);
    (void)await_failed(offer.pair.client.cq, 3, WAS_READ, FI_ECANCELED);
    counted_close(&offer);
    unmap_pages(memory, LONG);
}

/* The side that refuses says so in its log at once, also if nobody reads its event queue. */
static void refusal_is_logged(void)
{
    struct offer offer;
    int errors;

    log_connections();
    offer_open(&offer, NULL);
    errors = capture_errors();
    CHECK_OK(fi_write(offer.pair.client.ep, here, 10, NULL, LOCAL, 0, 0xbad, CONTEXT(1)));
    for (int64_t start = now_ms(); now_ms() < start + PATIENCE_MS && !readable(errors, 1);)
        (void)fi_cq_read(offer.pair.server.cq, NULL, 0);
    check_logged(errors, "Write with STag 0x00000bad");
    offer_close(&offer);
}

/* The regions of one domain are not those of another. */
static void other_domain(void)
{
    struct fid_mr *region;
    struct offer offer;

    offer_open(&offer, NULL);
    region = message_region(&offer.pair.client, here, LENGTH, 0x4321);
    CHECK_OK(fi_read(offer.pair.client.ep, here, 10, NULL, LOCAL, 0, 0x4321, CONTEXT(1)));
    (void)await_failed(offer.pair.client.cq, 1, WAS_READ, FI_EACCES);
    close_fid(&region->fid);
    offer_close(&offer);
}

/* A region that is closed while a peer reads from it, or writes to it: the memory can be given back at once. An
 * access is either complete by then, or fails. */
static void closed_in_use(void)
{
    enum { SIZE = 8 << 20 };
    static uint8_t local[SIZE];
    unsigned refused = 0;

    for (unsigned round = 0; round < 12; round++) {
        uint8_t *memory = map_pages(SIZE);
        struct fi_cq_data_entry entry;
        struct fid_mr *region;
        struct offer offer;
        ssize_t answer;

        note("round %u", round);
        offer_open(&offer, NULL);
        region = message_region(&offer.pair.server, memory, SIZE, 5);
        if (round % 2)
            CHECK_OK(fi_read(offer.pair.client.ep, local, SIZE, NULL, LOCAL, 0, 5, CONTEXT(1)));
        else
            CHECK_OK(fi_write(offer.pair.client.ep, local, SIZE, NULL, LOCAL, 0, 5, CONTEXT(1)));
        for (unsigned i = 0; i < round / 2; i++)
            drive();
        close_fid(&region->fid);
        unmap_pages(memory, SIZE);
        AWAIT(PATIENCE_MS, (answer = fi_cq_read(offer.pair.client.cq, &entry, 1)) != -FI_EAGAIN);
        if (answer == 1) {
            /* TCP had taken the whole write, or the read was complete. */
            if (round % 2)
                access_works(&offer);
        } else {
            refused++;
            (void)await_event(offer.pair.client.eq, FI_SHUTDOWN);
            (void)await_event(offer.pair.server.eq, FI_SHUTDOWN);
        }
        offer_close(&offer);
    }
    CHECK_AT_LEAST(refused, 2);
}

static const struct test tests[] = {
    TEST(refused_reads, "wrong key, bounds or right of a read: FI_EACCES, then the end; nothing is read"),
    TEST(refused_writes, "wrong key, bounds or right of a write: the end; nothing is written"),
    TEST(refused_delivered_writes, "the same with FI_DELIVERY_COMPLETE: FI_EACCES, then the end"),
    TEST(refused_long_writes, "a refused write that is being sent: FI_EACCES"),
    TEST(refused_before_delivered, "a refused write before a delivered one, or a read of no bytes: these are cancelled"),
    TEST(refused_behind_many, "a refused write with FI_DELIVERY_COMPLETE behind many that are not confirmed yet: FI_EACCES"),
    TEST(refused_among_many, "one refused read among several: those before it succeed, FI_EACCES for that one"),
    TEST(counted_failures, "counters of sends, reads and writes count what is refused, cancelled or closed as errors"),
    TEST(refusal_is_logged, "the side that refuses an access says so in its log, at level info"),
    TEST(other_domain, "a key opens nothing in another domain"),
    TEST(closed_in_use, "after the close of a region nothing touches its memory"),
};

const struct section message_rma_refused_section = SECTION("refused access to remote memory", tests);
