/* Contract, section Message endpoints: who sleeps while tagged messages come, in fi_cq_sread, in fi_cntr_wait, or on
 * the descriptor of a queue. */
#include "tags.h"

#include <stdatomic.h>

#define NO_ADDRESS FI_ADDR_UNSPEC

enum way { SREAD, DESCRIPTOR, COUNTER, WAYS };

static const char *const way_names[WAYS] = {"fi_cq_sread", "the descriptor", "fi_cntr_wait"};

/* Nobody may wait longer for what is there; and how long sleepers are looked at. */
enum { LATE_MS = 1000, IDLE_MS = 500 };

/* One side, and how it waits. */
struct waiter {
    struct side *side;
    enum way way;
    struct fid_cntr *counter;
    /* Receives that were waited for. */
    uint64_t counted;
};

/* Counts the receives of each side, of which the server is the second. */
static struct fid_cntr *counters[2];
static unsigned counted_sides;

static void bind_counter(struct side *side)
{
    counters[counted_sides] = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &counters[counted_sides++]->fid, FI_RECV));
}

/* Opens a pair whose receives alone have entries, and are counted, with a waiter for each side. */
static void open_waiters(struct pair *pair, struct waiter waiters[2], enum way client, enum way server)
{
    const struct message_settings settings = {
        .caps = FI_MSG | FI_TAGGED,
        .cq = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD},
        .bind_flags = FI_SELECTIVE_COMPLETION,
        .rx_flags = FI_COMPLETION,
        .prepare = bind_counter,
    };

    counted_sides = 0;
    messages_open(pair, &settings);
    for (unsigned i = 0; i < 2; i++)
        waiters[i] = (struct waiter){i ? &pair->server : &pair->client, i ? server : client, counters[i], 0};
}

static void close_waiters(struct pair *pair)
{
    close_fid(&pair->client.ep->fid);
    close_fid(&pair->server.ep->fid);
    pair->client.ep = pair->server.ep = NULL;
    for (unsigned i = 0; i < 2; i++)
        close_fid(&counters[i]->fid);
    pair_close(pair);
}

/* Reads the next entry, which is one of a receive if this waits for a counter. */
static ssize_t wait_for_entry(struct waiter *waiter, struct fi_cq_tagged_entry *entry, int ms)
{
    struct fid_cq *cq = waiter->side->cq;
    struct fid *fids[1] = {&cq->fid};
    const int64_t until = now_ms() + ms;
    ssize_t answer;

    switch (waiter->way) {
    case SREAD:
        return fi_cq_sread(cq, entry, 1, NULL, ms);
    case DESCRIPTOR:
        while ((answer = fi_cq_read(cq, entry, 1)) == -FI_EAGAIN) {
            int64_t left = until - now_ms();

            if (left <= 0)
                break;
            if (fi_trywait(waiter->side->fabric, fids, 1) == 0 && !readable(wait_fd(fids[0]), (int)left))
                break;
        }
        return answer;
    default:
        answer = fi_cntr_wait(waiter->counter, waiter->counted + 1, ms);
        if (answer == -FI_ETIMEDOUT)
            return -FI_EAGAIN;
        CHECK_OK(answer);
        waiter->counted++;
        return fi_cq_read(cq, entry, 1);
    }
}

/* ---- traffic both ways -------------------------------------------------------------------- */

enum { ROUNDS = 40, SHORTEST = 100, LONGEST = 60000 };

/* One of the two threads, which has a side of its own. */
struct party {
    struct waiter waiter;
    unsigned number;
    struct dice dice;
    pthread_barrier_t *barrier;
};

/* Message `which` that a party sends in a round. */
static size_t length_of(unsigned number, unsigned round, unsigned which)
{
    struct dice dice = {.state = number + 2 * which + 4 * round};

    return SHORTEST + throw_below(&dice, LONGEST - SHORTEST + 1);
}

static const uint8_t *content_of(unsigned number, unsigned round, unsigned which)
{
    return pattern(number + 2 * which + 4 * round, length_of(number, round, which));
}

/* Waits for the entry of the receive of this message. */
static void await_message(struct party *party, const uint8_t *got, unsigned round, unsigned which)
{
    const unsigned from = !party->number;
    const int64_t start = now_ms();
    struct fi_cq_tagged_entry entry;

    CHECK_RET(wait_for_entry(&party->waiter, &entry, 2 * LATE_MS), 1);
    CHECK_BETWEEN(now_ms() - start, 0, LATE_MS);
    CHECK_INT((uintptr_t)entry.op_context, which);
    CHECK_INT(entry.flags, TAG_RECEIVED);
    CHECK_INT(entry.tag, 2 * round + which);
    CHECK_INT(entry.len, length_of(from, round, which));
    CHECK_BYTES(got, content_of(from, round, which), entry.len);
}

/* Sends two messages in each round, and receives the second one first: the other is unexpected, and is there by then.
 * The receive of the second one is posted before or after its arrival. */
static void *exchange(void *argument)
{
    struct party *party = argument;
    struct fid_ep *ep = party->waiter.side->ep;
    struct fi_cq_tagged_entry entry;
    static uint8_t memory[2][LONGEST];
    uint8_t *got = memory[party->number];
    int64_t cpu;

    for (unsigned round = 0; round < ROUNDS; round++) {
        bool is_early = throw_below(&party->dice, 2);

        if (is_early)
            post_trecv(ep, got, LONGEST, 2 * round + 1, 0, 1);
        /* The other party may have to sleep. */
        if (throw_below(&party->dice, 2))
            sleep_ms((int)throw_below(&party->dice, 4));
        for (unsigned which = 0; which < 2; which++)
            post_tsend(ep, content_of(party->number, round, which), length_of(party->number, round, which),
                       2 * round + which, 7);
        if (!is_early)
            post_trecv(ep, got, LONGEST, 2 * round + 1, 0, 1);
        await_message(party, got, round, 1);
        post_trecv(ep, got, LONGEST, 2 * round, 0, 0);
        await_message(party, got, round, 0);
    }
    /* What this party has sent arrives meanwhile. */
    CHECK_RET(wait_for_entry(&party->waiter, &entry, 50), -FI_EAGAIN);
    (void)pthread_barrier_wait(party->barrier);
    cpu = cpu_ms();
    CHECK_RET(wait_for_entry(&party->waiter, &entry, IDLE_MS), -FI_EAGAIN);
    check_idle(way_names[party->waiter.way], cpu, IDLE_MS);
    return NULL;
}

static void wakes_for_each(enum way client, enum way server)
{
    struct party parties[2];
    pthread_barrier_t barrier;
    struct waiter waiters[2];
    struct pair pair;
    pthread_t thread;

    note("%s, and %s", way_names[client], way_names[server]);
    CHECK_OK(pthread_barrier_init(&barrier, NULL, 2));
    open_waiters(&pair, waiters, client, server);
    /* Before there are threads. */
    (void)pattern(0, 1);
    for (unsigned i = 0; i < 2; i++)
        parties[i] = (struct party){waiters[i], i, {100 * client + 10 * server + i}, &barrier};
    CHECK_OK(pthread_create(&thread, NULL, exchange, &parties[1]));
    (void)exchange(&parties[0]);
    CHECK_OK(pthread_join(thread, NULL));
    CHECK_OK(pthread_barrier_destroy(&barrier));
    close_waiters(&pair);
}

static void reader_wakes_for_each(void)
{
    for (unsigned server = 0; server < WAYS; server++)
        wakes_for_each(SREAD, server);
}

static void descriptor_wakes_for_each(void)
{
    for (unsigned server = 0; server < WAYS; server++)
        wakes_for_each(DESCRIPTOR, server);
}

static void counter_wakes_for_each(void)
{
    for (unsigned server = 0; server < WAYS; server++)
        wakes_for_each(COUNTER, server);
}

/* ---- messages that wait ------------------------------------------------------------------- */

enum { FULL = UNEXPECTED_BYTES - UNEXPECTED_EACH, MANY = 3 << 20, LONG_TAG = 1, NEXT_TAG = 2, LAST = 99 };

static uint8_t much[MANY], next[8];

/* The server holds a message, and what it waits for is behind that. Then it keeps one that it does not wait for. */
static void rests_beside_messages(void)
{
    for (unsigned n = 0; n < 2 * WAYS; n++) {
        const enum way way = n % WAYS;
        const bool is_held = n < WAYS;
        struct fi_cq_tagged_entry entry;
        struct waiter waiters[2];
        struct pair pair;

        note("%s, %s", way_names[way], is_held ? "held" : "kept");
        open_waiters(&pair, waiters, way, way);
        for (unsigned i = 0; i < 3; i++)
            post_tsend(pair.client.ep, pattern(i, PATTERN_MAX), is_held ? PATTERN_MAX : LONGEST, LONG_TAG, i);
        /* What is copied may find no room behind the others. */
        if (is_held)
            post_tsend(pair.client.ep, "next", 4, NEXT_TAG, 3);
        (void)await_peek(&pair.server, LONG_TAG, 0, 0, 1);
        post_trecv(pair.server.ep, next, sizeof next, NEXT_TAG, 0, 2);
        drive_for(50);
        for (unsigned side = 0; side < 2; side++) {
            const int64_t cpu = cpu_ms();

            CHECK_RET(wait_for_entry(&waiters[side], &entry, IDLE_MS), -FI_EAGAIN);
            check_idle(side ? "the receiver" : "the sender", cpu, IDLE_MS);
        }
        CHECK_INT(stats_of(pair.server.ep).stalls, is_held);
        for (unsigned i = 0; i < 3; i++)
            (void)await_peek(&pair.server, LONG_TAG, 0, FI_DISCARD, 3);
        if (!is_held)
            CHECK_OK(fi_tinject(pair.client.ep, "next", 4, NO_ADDRESS, NEXT_TAG));
        (void)await_tagged(pair.server.cq, 2, TAG_RECEIVED, 4, NEXT_TAG);
        CHECK_BYTES(next, "next", 4);
        close_waiters(&pair);
    }
}

/* What another thread does while the server's side sleeps. Before that a message is kept or held. */
enum call { RECEIVE_KEPT, PEEK, PEEK_NOTHING, RECEIVE_HELD, CLAIM_HELD, DISCARD_HELD, DROP_HELD, MAKE_ROOM, CALLS };

static const char *const call_names[CALLS] = {
    "receives a kept message", "peeks", "peeks and finds nothing", "receives a held message",
    "receives a claimed one that is held", "discards a held message", "drops a claimed one that is held",
    "receives a kept message, behind which another one is held",
};

struct sleeper {
    struct waiter waiter;
    atomic_bool is_ready, is_awake;
};

/* Sleeps until the entry with the context LAST, which is that of the next receive. */
static void *sleep_until_last(void *argument)
{
    struct sleeper *sleeper = argument;
    struct fid_cq *cq = sleeper->waiter.side->cq;
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;
    uintptr_t context;
    ssize_t answer;

    atomic_store(&sleeper->is_ready, true);
    answer = wait_for_entry(&sleeper->waiter, &entry, PATIENCE_MS);
    for (;;) {
        if (answer == -FI_EAVAIL) {
            memset(&error, 0, sizeof error);
            CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
            CHECK_INT(error.err, FI_ENOMSG);
            context = (uintptr_t)error.op_context;
        } else {
            CHECK_RET(answer, 1);
            context = (uintptr_t)entry.op_context;
        }
        if (context == LAST)
            break;
        answer = sleeper->waiter.way == COUNTER ? fi_cq_read(cq, &entry, 1)
                                                : wait_for_entry(&sleeper->waiter, &entry, PATIENCE_MS);
    }
    atomic_store(&sleeper->is_awake, true);
    return NULL;
}

/* The contexts of others are 1. */
static void make_call(struct fid_ep *ep, enum call call)
{
    switch (call) {
    case RECEIVE_KEPT:
    case RECEIVE_HELD:
        post_trecv(ep, much, MANY, LONG_TAG, 0, LAST);
        break;
    case PEEK:
    case PEEK_NOTHING:
        CHECK_OK(post_trecvmsg(ep, NULL, 0, call == PEEK ? LONG_TAG : NEXT_TAG, 0, FI_PEEK, LAST));
        break;
    case CLAIM_HELD:
        CHECK_OK(post_trecvmsg(ep, much, MANY, LONG_TAG, 0, FI_CLAIM | FI_COMPLETION, LAST));
        break;
    case DISCARD_HELD:
        CHECK_OK(post_trecvmsg(ep, NULL, 0, LONG_TAG, 0, FI_PEEK | FI_DISCARD, 1));
        break;
    case DROP_HELD:
        CHECK_OK(post_trecvmsg(ep, NULL, 0, LONG_TAG, 0, FI_CLAIM | FI_DISCARD, 1));
        break;
    default:
        post_trecv(ep, much, MANY, LONG_TAG, 0, 1);
    }
}

static void woken_by_call(enum way way, enum call call)
{
    const bool is_long = call >= RECEIVE_HELD && call != MAKE_ROOM, follows = call >= DISCARD_HELD;
    const size_t length = is_long ? MANY : call == MAKE_ROOM ? FULL : LONGEST;
    struct sleeper sleeper = {0};
    struct waiter waiters[2];
    struct pair pair;
    pthread_t thread;
    int64_t start;

    note("%s: another thread %s", way_names[way], call_names[call]);
    open_waiters(&pair, waiters, SREAD, way);
    post_tsend(pair.client.ep, pattern(call, length), length, LONG_TAG, 1);
    /* It is held if the other one fills what is kept, but the one behind it never is. */
    post_tsend(pair.client.ep, "held", 4, LONG_TAG + 10, 2);
    if (follows)
        post_tsend(pair.client.ep, "next", 4, NEXT_TAG, 3);
    (void)await_peek(&pair.server, is_long ? LONG_TAG : LONG_TAG + 10, 0, 0, 1);
    if (call == CLAIM_HELD || call == DROP_HELD)
        (void)await_peek(&pair.server, LONG_TAG, 0, FI_CLAIM, call == CLAIM_HELD ? LAST : 1);
    if (follows)
        post_trecv(pair.server.ep, next, sizeof next, NEXT_TAG, 0, LAST);
    drive_for(20);
    check_no_completion(pair.server.cq);
    CHECK_INT(stats_of(pair.server.ep).stalls, is_long || call == MAKE_ROOM);
    sleeper.waiter = waiters[1];
    /* One more receive, for the message before it. */
    sleeper.waiter.counted += call == MAKE_ROOM;
    CHECK_OK(pthread_create(&thread, NULL, sleep_until_last, &sleeper));
    while (!atomic_load(&sleeper.is_ready))
        sleep_ms(1);
    sleep_ms(30);
    CHECK(!atomic_load(&sleeper.is_awake));
    start = now_ms();
    make_call(pair.server.ep, call);
    /* The sleeper alone has the server make progress from now on. */
    while (!atomic_load(&sleeper.is_awake)) {
        if (now_ms() - start > LATE_MS)
            fail_at(__FILE__, __LINE__, "the sleeper is not woken");
        (void)fi_cq_read(pair.client.cq, NULL, 0);
        sleep_ms(1);
    }
    CHECK_OK(pthread_join(thread, NULL));
    if (follows)
        CHECK_BYTES(next, "next", 4);
    else if (call != PEEK && call != PEEK_NOTHING)
        CHECK_BYTES(much, pattern(call, length), length);
    close_waiters(&pair);
}

/* Peeks are not counted. */
static void woken_by_calls(void)
{
    for (unsigned way = 0; way < WAYS; way++)
        for (unsigned call = 0; call < CALLS; call++)
            if (way != COUNTER || (call != PEEK && call != PEEK_NOTHING))
                woken_by_call(way, call);
}

static const struct test tests[] = {
    TEST(reader_wakes_for_each, "fi_cq_sread wakes for each tagged message, expected or not, and rests between them"),
    TEST(descriptor_wakes_for_each, "so does a sleeper on the descriptor, after fi_trywait"),
    TEST(counter_wakes_for_each, "so does fi_cntr_wait"),
    TEST(rests_beside_messages, "sleepers rest while messages are kept or held that they do not wait for"),
    TEST(woken_by_calls, "another thread's receive, peek or discard wakes each kind of sleeper"),
};

const struct section message_tag_waits_section = SECTION("sleepers with tags", tests);
