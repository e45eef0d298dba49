/* Contract, section Message endpoints: writes of peers with data, whose entries nobody reads. */
#include "message.h"

enum { AT_ONCE = 1000, BEYOND = 20 * AT_ONCE, KEY = 1, BATCH = 64 };

/* A connection whose client writes with data, and what has become of these writes. */
struct flow {
    struct pair pair;
    struct fid_mr *region;
    /* Counts the writes that have arrived. */
    struct fid_cntr *arrived;
    uint64_t sent, seen;
    unsigned messages;
};

static uint8_t target[100];

static void flow_open(struct flow *flow, const struct message_settings *settings)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};

    memset(flow, 0, sizeof *flow);
    messages_open(&flow->pair, settings);
    CHECK_OK(fi_cntr_open(flow->pair.server.domain, &attr, &flow->arrived, NULL));
    flow->region = message_region(&flow->pair.server, target, sizeof target, KEY);
    CHECK_OK(fi_mr_bind(flow->region, &flow->arrived->fid, FI_REMOTE_WRITE));
}

static void flow_close(struct flow *flow)
{
    close_fid(&flow->region->fid);
    close_fid(&flow->arrived->fid);
    pair_close(&flow->pair);
}

/* Drives both sides. Nothing takes entries of the target: reading the counter makes progress. Answers how many writes
 * have arrived. */
static uint64_t flow_drive(struct flow *flow)
{
    (void)fi_cq_read(flow->pair.client.cq, NULL, 0);
    return fi_cntr_read(flow->arrived);
}

/* Writes until so many are sent, and until this number has arrived. */
static void flow_write(struct flow *flow, uint64_t number, uint64_t arrive)
{
    while (flow_drive(flow) < arrive || flow->sent < number)
        while (flow->sent < number
               && fi_inject_writedata(flow->pair.client.ep, "data", 4, flow->sent, FI_ADDR_UNSPEC, 0, KEY) == 0)
            flow->sent++;
}

/* Checks that fewer than `limit` writes have arrived after a while. */
static void check_held(struct flow *flow, uint64_t limit)
{
    for (int64_t until = now_ms() + 100; now_ms() < until;)
        CHECK_BETWEEN(flow_drive(flow), 0, limit - 1);
}

/* Reads the entries of the target until it has seen so many writes, in order. Messages may be among them. */
static void flow_read(struct flow *flow, uint64_t number)
{
    struct fi_cq_data_entry entries[BATCH];

    while (flow->seen < number) {
        uint64_t left = number - flow->seen;
        ssize_t count;

        (void)fi_cq_read(flow->pair.client.cq, NULL, 0);
        count = fi_cq_read(flow->pair.server.cq, entries, left < BATCH ? left : BATCH);
        CHECK(count > 0 || count == -FI_EAGAIN);
        for (ssize_t at = 0; at < count; at++) {
            if (entries[at].flags == RECEIVED) {
                flow->messages++;
                continue;
            }
            CHECK_INT(entries[at].flags, REMOTE_WRITTEN);
            CHECK_INT(entries[at].data, flow->seen++);
        }
    }
}

/* The writes of a queue of this size stop when `most` of them are unread, and what follows on their connection. Another
 * one goes on. When half of the entries are read, the rest comes. */
static void unread_writes(size_t size, uint64_t most)
{
    struct message_settings settings = {.cq = {.size = size}};
    uint8_t behind = 0, beside = 0, back = 0;
    struct side other;
    struct fid_ep *server;
    struct flow flow;
    uint64_t held;

    note("size %zu", size);
    flow_open(&flow, &settings);
    server = message_beside(&flow.pair, &other, &settings);
    post_recv(flow.pair.server.ep, &behind, 1, 1);
    flow_write(&flow, most + BEYOND, most);
    AWAIT(PATIENCE_MS, fi_inject(flow.pair.client.ep, "x", 1, FI_ADDR_UNSPEC) == 0);
    check_held(&flow, most + AT_ONCE);
    CHECK_INT(behind, 0);
    post_recv(server, &beside, 1, 2);
    post_recv(other.ep, &back, 1, 3);
    CHECK_OK(fi_inject(other.ep, "y", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(server, "z", 1, FI_ADDR_UNSPEC));
    AWAIT(PATIENCE_MS, beside == 'y');
    (void)await_done(other.cq, 3, RECEIVED);
    CHECK_INT(back, 'z');
    held = flow_drive(&flow);
    CHECK_BETWEEN(held, most, most + AT_ONCE - 1);
    flow_read(&flow, held - most / 2 - AT_ONCE);
    check_held(&flow, held + 1);
    flow_read(&flow, held - most / 2 + AT_ONCE);
    flow_write(&flow, most + BEYOND, held + AT_ONCE);
    flow_read(&flow, most + BEYOND);
    CHECK_INT(flow_drive(&flow), most + BEYOND);
    CHECK_INT(flow.messages, 1);
    (void)await_done(flow.pair.server.cq, 1, RECEIVED);
    CHECK_INT(behind, 'x');
    check_no_completion(flow.pair.server.cq);
    messages_pass(&flow.pair);
    close_fid(&server->fid);
    side_close(&other);
    flow_close(&flow);
}

static void unread_writes_of_any_queue(void)
{
    unread_writes(0, 262144);
}

static void unread_writes_of_long_queue(void)
{
    unread_writes(300000, 300000);
}

static const struct test tests[] = {
    TEST(unread_writes_of_any_queue, "writes with data wait while 262144 are unread, until half are read; others go on"),
    TEST(unread_writes_of_long_queue, "the same for a queue of a larger size: so many"),
};

const struct section message_unread_section = SECTION("unread writes", tests);
