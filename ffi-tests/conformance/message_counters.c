/* Contract, section Message endpoints: counters. */
#include "message.h"

enum { SENDS, RECEIVES, WRITES, READS, REMOTE_WRITES, ALL, COUNTERS };
static struct fid_cntr *counters[2][COUNTERS];
static unsigned counted_sides;

static void bind_counters(struct side *side)
{
    const uint64_t flags[] = {FI_SEND, FI_RECV, FI_WRITE, FI_READ, FI_REMOTE_WRITE,
                              FI_SEND | FI_RECV | FI_WRITE | FI_READ};
    struct fid_cntr **mine = counters[counted_sides++];

    for (unsigned i = 0; i < COUNTERS; i++) {
        mine[i] = message_counter(side, FI_WAIT_UNSPEC);
        CHECK_OK(fi_ep_bind(side->ep, &mine[i]->fid, flags[i]));
    }
}

static void close_counters(void)
{
    for (unsigned s = 0; s < 2; s++)
        for (unsigned i = 0; i < COUNTERS; i++)
            close_fid(&counters[s][i]->fid);
}

/* Closes the endpoints, then the counters, then the rest. */
static void close_counted(struct pair *pair)
{
    CHECK_RET(fi_close(&counters[1][0]->fid), -FI_EBUSY);
    if (pair->client.ep)
        close_fid(&pair->client.ep->fid);
    close_fid(&pair->server.ep->fid);
    pair->client.ep = pair->server.ep = NULL;
    close_counters();
    pair_close(pair);
}

static void check_counters(unsigned side, const uint64_t *wanted)
{
    for (unsigned i = 0; i < COUNTERS; i++) {
        note("counter %u of side %u", i, side);
        AWAIT(PATIENCE_MS, fi_cntr_read(counters[side][i]) >= wanted[i]);
        CHECK_INT(fi_cntr_read(counters[side][i]), wanted[i]);
    }
}

static void counting(void)
{
    struct message_settings settings = {.prepare = bind_counters, .bind_flags = FI_SELECTIVE_COMPLETION};
    static uint8_t memory[100], local[100];
    struct fid_mr *region;
    struct pair pair;
    uint8_t got[10];

    counted_sides = 0;
    messages_open(&pair, &settings);
    region = message_region(&pair.server, memory, sizeof memory, 1);
    for (unsigned i = 0; i < 4; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    post_send(pair.client.ep, "a", 1, 1);
    CHECK_OK(fi_inject(pair.client.ep, "b", 1, FI_ADDR_UNSPEC));
    post_send(pair.client.ep, "cc", 2, 1);
    CHECK_OK(fi_write(pair.client.ep, local, 10, NULL, FI_ADDR_UNSPEC, 0, 1, NULL));
    CHECK_OK(fi_writedata(pair.client.ep, local, 10, NULL, 7, FI_ADDR_UNSPEC, 0, 1, NULL));
    CHECK_OK(fi_inject_write(pair.client.ep, local, 10, FI_ADDR_UNSPEC, 0, 1));
    CHECK_OK(fi_read(pair.client.ep, local, 10, NULL, FI_ADDR_UNSPEC, 0, 1, NULL));
    check_counters(0, (const uint64_t[]){3, 0, 3, 1, 0, 7});
    /* One receive was too short, and one waits. */
    check_counters(1, (const uint64_t[]){0, 2, 0, 0, 3, 2});
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 1);
    CHECK_INT(fi_cntr_readerr(counters[1][SENDS]), 0);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(3)));
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 2);
    post_recv(pair.server.ep, got, 1, 1);
    close_fid(&region->fid);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK_INT(fi_cntr_readerr(counters[1][RECEIVES]), 3);
    CHECK_INT(fi_cntr_read(counters[1][RECEIVES]), 2);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    close_counters();
    pair_close(&pair);
}

static void send_one(void *argument)
{
    CHECK_OK(fi_inject(((struct pair *)argument)->client.ep, "x", 1, FI_ADDR_UNSPEC));
}

static void add_error(void *argument)
{
    (void)argument;
    CHECK_OK(fi_cntr_adderr(counters[1][RECEIVES], 1));
}

static void counter_waits(void)
{
    struct message_settings settings = {.prepare = bind_counters};
    struct fid_cntr *counter;
    struct pair pair;
    pthread_t thread;
    uint8_t got[4];
    int64_t start;

    counted_sides = 0;
    messages_open(&pair, &settings);
    counter = counters[1][RECEIVES];
    post_recv(pair.server.ep, got, 1, 1);
    for (int ms = 0; ms <= 100; ms += 50) {
        start = now_us();
        CHECK_RET(fi_cntr_wait(counter, 1, ms), -FI_ETIMEDOUT);
        CHECK_BETWEEN(now_us() - start, ms * 1000, ms * 1000 + 60000);
    }
    start = now_ms();
    thread = call_later(send_one, &pair);
    CHECK_OK(fi_cntr_wait(counter, 1, -1));
    CHECK_BETWEEN(now_ms() - start, 40, 500);
    CHECK_OK(pthread_join(thread, NULL));
    thread = call_later(add_error, NULL);
    CHECK_RET(fi_cntr_wait(counter, 2, 5000), -FI_EAVAIL);
    CHECK_BETWEEN(now_ms() - start, 90, 1500);
    CHECK_OK(pthread_join(thread, NULL));
    CHECK_OK(fi_cntr_set(counter, 100));
    CHECK_OK(fi_cntr_add(counter, 11));
    CHECK_OK(fi_cntr_wait(counter, 111, 0));
    CHECK_INT(fi_cntr_read(counter), 111);
    CHECK_OK(fi_cntr_seterr(counter, 9));
    CHECK_OK(fi_cntr_adderr(counter, 2));
    CHECK_INT(fi_cntr_readerr(counter), 11);
    CHECK_INT(fi_cntr_read(counter), 111);
    close_counted(&pair);
}

/* Drives the server for a while, in another thread. */
static void drive_server(void *argument)
{
    for (int64_t until = now_ms() + 200; now_ms() < until;)
        (void)fi_cq_read(((struct pair *)argument)->server.cq, NULL, 0);
}

/* A wait ends with -FI_EAVAIL when an operation fails: a read that is refused, a receive that the end cancels. */
static void counter_wait_fails(void)
{
    struct message_settings settings = {.prepare = bind_counters};

    for (unsigned refused = 0; refused < 2; refused++) {
        struct fid_cntr *counter;
        struct pair pair;
        pthread_t thread;
        uint8_t got;

        counted_sides = 0;
        messages_open(&pair, &settings);
        counter = refused ? counters[0][READS] : counters[1][RECEIVES];
        if (refused)
            CHECK_OK(fi_read(pair.client.ep, &got, 1, NULL, FI_ADDR_UNSPEC, 0, 77, CONTEXT(1)));
        else
            post_recv(pair.server.ep, &got, 1, 1);
        thread = call_later(refused ? drive_server : close_client, &pair);
        CHECK_RET(fi_cntr_wait(counter, 1, 5000), -FI_EAVAIL);
        CHECK_OK(pthread_join(thread, NULL));
        CHECK_INT(fi_cntr_read(counter), 0);
        CHECK_INT(fi_cntr_readerr(counter), 1);
        if (refused)
            (void)await_failed(pair.client.cq, 1, WAS_READ, FI_EACCES);
        else
            (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
        close_counted(&pair);
    }
}

static void counter_attributes(void)
{
    const enum fi_wait_obj granted[] = {FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND};
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    struct pair pair;
    struct fid *fid;

    messages_open(&pair, NULL);
    attr.events = 99;
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_ENOSYS);
    attr = (struct fi_cntr_attr){.flags = 1};
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_EBADFLAGS);
    attr = (struct fi_cntr_attr){.wait_obj = FI_WAIT_SET};
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, &counter, NULL), -FI_ENOSYS);
    CHECK_RET(fi_cntr_open(pair.client.domain, &attr, NULL, NULL), -FI_EINVAL);
    CHECK(counter == NULL);
    for (unsigned i = 0; i < 4; i++) {
        counter = message_counter(&pair.client, granted[i]);
        CHECK_RET(fi_cntr_wait(counter, 0, 0), 0);
        CHECK_RET(fi_cntr_wait(counter, 1, 5), -FI_ETIMEDOUT);
        fid = &counter->fid;
        AWAIT(PATIENCE_MS, fi_trywait(pair.client.fabric, &fid, 1) == 0);
        if (granted[i] == FI_WAIT_FD)
            CHECK_AT_LEAST(wait_fd(fid), 0);
        /* It is in use by endpoints that are bound to it only. */
        close_fid(&counter->fid);
    }
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(counting, "counters count successes and failures, injected operations too"),
    TEST(counter_waits, "fi_cntr_wait, set, add, seterr, adderr"),
    TEST(counter_wait_fails, "fi_cntr_wait ends with -FI_EAVAIL when an operation fails"),
    TEST(counter_attributes, "wait objects, events and flags of fi_cntr_open"),
};

const struct section message_counters_section = SECTION("counters", tests);
