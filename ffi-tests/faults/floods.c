/* Peers of message endpoints that send without end: what the application keeps for them is bounded, and another
 * connection goes on. */
#include "beside.h"

#include <stdlib.h>

/* For how long a flood goes on, and how much the heap may grow meanwhile. */
#define FLOOD_MS 300
#define FLOOD_HEAP (1 << 20)
/* Frames that a peer composes at once, reads that it may have outstanding. */
#define BATCH 1000
#define READS 16

/* ---- floods --------------------------------------------------------------------------------- */

static void long_messages(struct raw *raw)
{
    put_message(raw, 60000);
}

static void short_messages(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++)
        put_message(raw, 1);
}

/* One message, whose segments have a byte each. */
static void tiny_segments(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++) {
        const struct untagged header = {DDP_UNTAGGED_PART, RDMAP | WIRE_SEND, 0, 0, raw->sequence, raw->written++};

        put_segment(raw, &header, "x", 1);
    }
}

static void tiny_writes(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++)
        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_OPEN, i, 1);
}

static void empty_writes(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++)
        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_NONE, 0, 0);
}

static void empty_frames(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++)
        put(raw, 0, 8);
}

/* Reads that this side may have outstanding. It takes no response. */
static void long_reads(struct raw *raw)
{
    while (raw->written < READS)
        put_read(raw, ++raw->written, KEY_OPEN, 0, OPEN);
}

/* Each is answered when it arrives, as long as TCP takes the answers. */
static void empty_reads(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++)
        put_read(raw, ++raw->written, KEY_NONE, 0, 0);
}

/* The memory that these are for. */
#define KEY_COUNTED 0x70
static uint8_t written[8];

static void writes_with_data(struct raw *raw)
{
    for (unsigned i = 0; i < BATCH; i++) {
        const struct untagged data = {DDP_UNTAGGED, RDMAP | WIRE_IMMEDIATE, WORD_OF_WRITE, 0, raw->sequence++, 0};

        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_COUNTED, 0, sizeof written);
        put_segment(raw, &data, "12345678", 8);
    }
}

struct flood {
    const char *name;
    void (*compose)(struct raw *raw);
    /* It takes a receive. The others that send messages find none. */
    bool takes_receive;
    /* The application has nothing to do until it posts a receive, or the peer reads. */
    bool is_blocked;
};

/* The peer: connects to the port that it is told, and sends until the connection ends or there is nothing more. */
static void flooder(struct peer *self, void *argument)
{
    const struct flood *flood = argument;
    static struct raw raw;

    raw_ask_messages(&raw, (unsigned)peer_hear(self));
    raw_accepted_messages(&raw);
    do {
        raw.length = 0;
        flood->compose(&raw);
    } while (raw.length > 0 && send(raw.fd, raw.out, raw.length, MSG_NOSIGNAL) > 0);
    (void)peer_hear(self);
}

static void flood_begin(struct beside *beside, struct peer *peer)
{
    peer_tell(peer, fid_port(&beside->listener.pep->fid));
    beside_accept(beside);
}

/* Closes the endpoint, while its peer goes on. */
static void flood_end(struct beside *beside)
{
    close_fid(&beside->attacked->fid);
    beside->attacked = NULL;
}

/* ---- without receives ----------------------------------------------------------------------- */

static const struct flood floods[] = {
    {"a message of tiny segments", tiny_segments, true, false},
    {"tiny writes", tiny_writes, false, false},
    {"empty writes", empty_writes, false, false},
    {"empty frames", empty_frames, false, false},
    {"empty reads", empty_reads, false, false},
    {"long reads, whose responses are not taken", long_reads, false, true},
    {"messages without receives", long_messages, false, true},
    {"short messages without receives", short_messages, false, true},
};
enum { FLOODS = sizeof floods / sizeof floods[0], RECEIVE = 1 };

static void flood_once(const struct flood *flood, struct peer *peer, bool shares)
{
    size_t heap, most = 0;
    struct beside beside;
    unsigned rounds = 0;
    uint8_t got = 0;

    note("%s%s", flood->name, shares ? ", shared receives" : "");
    beside_open(&beside, shares);
    beside_exchange(&beside);
    heap = heap_in_use();
    flood_begin(&beside, peer);
    if (flood->takes_receive) {
        post_recv(shares ? beside.shared : beside.attacked, &got, 1, RECEIVE);
        AWAIT(PATIENCE_MS, got == 'x');
    }
    for (int64_t until = now_ms() + FLOOD_MS; now_ms() < until; rounds++) {
        int64_t start = now_ms();

        beside_exchange(&beside);
        CHECK_BETWEEN(now_ms() - start, 0, SOON_MS);
        most = heap_in_use() > most ? heap_in_use() : most;
    }
    if (flood->is_blocked)
        beside_rest(&beside);
    printf("%s%s: %zu KiB, %u rounds of the bystander\n", flood->name, shares ? ", shared receives" : "",
           most > heap ? (most - heap) / 1024 : 0, rounds);
    CHECK_BETWEEN(most, 0, heap + FLOOD_HEAP);
    flood_end(&beside);
    if (flood->takes_receive && shares)
        CHECK_OK(fi_cancel(&beside.shared->fid, CONTEXT(RECEIVE)));
    else if (flood->takes_receive)
        (void)await_failed(beside.listener.cq, RECEIVE, RECEIVED, FI_ECANCELED);
    beside_exchange(&beside);
    beside_check_memory(&beside);
    beside_close(&beside);
}

static void message_floods(void)
{
    struct peer peers[2][FLOODS];
    struct bystander bystander;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "200", 1));
    for (unsigned i = 0; i < FLOODS; i++)
        for (unsigned shares = 0; shares < 2; shares++)
            peer_start(&peers[shares][i], flooder, (void *)(uintptr_t)&floods[i]);
    for (unsigned i = 0; i < FLOODS; i++) {
        flood_once(&floods[i], &peers[0][i], false);
        if (i == 0)
            bystander_open(&bystander);
        /* Receives that are shared go to the flood's messages, too. */
        if (floods[i].compose != long_messages && floods[i].compose != short_messages)
            flood_once(&floods[i], &peers[1][i], true);
        bystander_held(&bystander);
    }
    for (unsigned i = 0; i < 2 * FLOODS; i++)
        peer_kill(&peers[i / FLOODS][i % FLOODS]);
    bystander_close(&bystander);
}

/* ---- shared receives ------------------------------------------------------------------------ */

/* The bystander's message gets a receive after a few of the flood's. */
static void take_turns(struct beside *beside)
{
    enum { MOST = 10 };
    uint8_t got[16] = {0};
    unsigned taken = 0;

    CHECK_OK(fi_inject(beside->client.ep, "bystander", 9, FI_ADDR_UNSPEC));
    for (unsigned i = 0; i < 3; i++)
        drive();
    do {
        CHECK(++taken <= MOST);
        post_recv(beside->shared, got, sizeof got, RECEIVE);
    } while (await_done(beside->listener.cq, RECEIVE, RECEIVED).len == 1);
    CHECK_BYTES(got, "bystander", 9);
}

static void floods_take_turns(void)
{
    static const struct flood flood = {.compose = short_messages};
    struct beside beside;
    struct peer peer;
    size_t heap;

    peer_start(&peer, flooder, (void *)(uintptr_t)&flood);
    beside_open(&beside, true);
    beside_exchange(&beside);
    heap = heap_in_use();
    flood_begin(&beside, &peer);
    for (int64_t until = now_ms() + FLOOD_MS; now_ms() < until;)
        take_turns(&beside);
    beside_rest(&beside);
    CHECK_BETWEEN(heap_in_use(), 0, heap + FLOOD_HEAP);
    flood_end(&beside);
    peer_kill(&peer);
    beside_exchange(&beside);
    beside_close(&beside);
}

/* ---- entries that nobody reads -------------------------------------------------------------- */

/* How many of them a queue holds, how many more may come before that is noticed, and what one may take. */
#define UNREAD 262144
#define NOTICED 1000
#define ENTRY 128

/* The region for that memory, and the counter of the writes to it. */
static struct fid_mr *region;
static struct fid_cntr *writes;

static void count_writes(struct side *side)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};

    CHECK_OK(fi_cntr_open(side->domain, &attr, &writes, NULL));
    region = message_region(side, written, sizeof written, KEY_COUNTED);
    CHECK_OK(fi_mr_bind(region, &writes->fid, FI_REMOTE_WRITE));
}

static void unread_data(void)
{
    static const struct flood flood = {.compose = writes_with_data};
    struct fi_cq_data_entry entry;
    struct beside beside;
    size_t heap, entries = 0;
    struct peer peer;
    uint8_t got[8] = {0};

    peer_start(&peer, flooder, (void *)(uintptr_t)&flood);
    beside_open(&beside, false);
    beside_exchange(&beside);
    count_writes(&beside.listener);
    heap = heap_in_use();
    flood_begin(&beside, &peer);
    AWAIT(PATIENCE_MS, fi_cntr_read(writes) >= UNREAD);
    for (int64_t until = now_ms() + 100; now_ms() < until;)
        drive();
    CHECK_BETWEEN(fi_cntr_read(writes), UNREAD, UNREAD + NOTICED);
    CHECK_BETWEEN(heap_in_use(), 0, heap + UNREAD * ENTRY);
    printf("%zu KiB for %llu entries\n", (heap_in_use() - heap) / 1024, (unsigned long long)fi_cntr_read(writes));
    beside_sleep(&beside);
    /* The bystander's message is behind them, and does not wait as further ones do. */
    post_recv(beside.kept, got, sizeof got, RECEIVE);
    CHECK_OK(fi_inject(beside.client.ep, "next", 4, FI_ADDR_UNSPEC));
    AWAIT(PATIENCE_MS, memcmp(got, "next", 4) == 0);
    while ((entry = next_completion(beside.listener.cq)).op_context != CONTEXT(RECEIVE)) {
        CHECK_INT(entry.flags, REMOTE_WRITTEN);
        CHECK_INT(entry.len, sizeof written);
        CHECK(++entries <= UNREAD + NOTICED);
    }
    CHECK_AT_LEAST(entries, UNREAD);
    flood_end(&beside);
    peer_kill(&peer);
    while (fi_cq_read(beside.listener.cq, &entry, 1) == 1)
        CHECK_INT(entry.flags, REMOTE_WRITTEN);
    beside_exchange(&beside);
    beside_check_memory(&beside);
    close_fid(&region->fid);
    close_fid(&writes->fid);
    beside_close(&beside);
}

static const struct test tests[] = {
    TEST(message_floods, "messages: a peer that sends without end: memory is bounded, and a bystander goes on"),
    TEST(floods_take_turns, "messages: the same on a shared receive context, whose receives both take in turns"),
    TEST(unread_data, "messages: writes with data whose entries nobody reads wait, and a bystander's message does not"),
};

const struct section floods_section = SECTION("message floods", tests);
