/* Contract, section Message endpoints: calls in generated orders, against a model of what each of them has to
 * report. RSTREAM_TEST_SEED in the environment repeats one order, RSTREAM_TEST_SEEDS is their number. */
#include "message.h"

#include <stdlib.h>

enum { OPERATIONS = 300, STEPS = 400, SEEDS = 60, LENGTH = 70000, MEMORY = 1 << 18 };

enum kind { RECEIVE, SEND, WRITE, READ };

/* An operation that was posted. It has to be reported once. */
struct operation {
    enum kind kind;
    uint8_t *buffer;
    size_t length;
    bool ended, cancelled;
};

/* One endpoint, and what it has to report. */
struct end {
    struct side *side;
    struct operation operations[OPERATIONS];
    unsigned count;
    /* The messages sent, in their order, and how many of them the peer has received. */
    size_t lengths[OPERATIONS];
    unsigned sent, received;
    /* The region that the peer accesses: it writes to its own half only. */
    uint8_t *memory;
    struct fid_mr *region;
    bool closed, shut;
};

static struct end ends[2];
static struct dice dice;

/* What all orders together have reported. */
static unsigned received, truncated, accessed, cancelled;

static uint64_t draw(uint64_t below)
{
    return throw_below(&dice, below);
}

static size_t draw_length(void)
{
    const size_t most[] = {1, 16, 5000, LENGTH};

    return draw(most[draw(4)] + 1);
}

static bool is_over(void)
{
    return ends[0].closed || ends[1].closed || ends[0].shut || ends[1].shut;
}

/* The operations of one direction end in the order of their calls, except receives that are cancelled. */
static void check_order(const struct end *end, const struct operation *operation)
{
    if (operation->cancelled)
        return;
    for (const struct operation *before = end->operations; before < operation; before++)
        CHECK(before->ended || (before->kind == RECEIVE) != (operation->kind == RECEIVE));
}

/* The entry has to be of an operation that was posted and is not reported. */
static struct operation *ending(struct end *end, void *context, uint64_t flags)
{
    const uint64_t known[] = {RECEIVED, SENT, WRITTEN, WAS_READ};
    struct operation *operation;

    CHECK_BETWEEN((uintptr_t)context, 0, end->count - 1);
    operation = &end->operations[(uintptr_t)context];
    CHECK(!operation->ended);
    CHECK_INT(flags & ~FI_REMOTE_CQ_DATA, known[operation->kind]);
    check_order(end, operation);
    operation->ended = true;
    return operation;
}

/* A receive took the oldest message that the peer sent. */
static void check_received(struct operation *operation, struct end *from, size_t got, size_t excess)
{
    size_t length;

    CHECK_BETWEEN(from->received, 0, from->sent - 1);
    length = from->lengths[from->received];
    CHECK_INT(got, length < operation->length ? length : operation->length);
    CHECK_INT(excess, length - got);
    CHECK_BYTES(operation->buffer, pattern(from->received, got), got);
    from->received++;
}

static void read_entries(unsigned which)
{
    struct end *end = &ends[which], *other = &ends[!which];

    for (;;) {
        struct fi_cq_err_entry error = {0};
        struct fi_cq_data_entry entry;
        struct operation *operation;
        ssize_t answer = fi_cq_read(end->side->cq, &entry, 1);

        if (answer == -FI_EAGAIN)
            return;
        if (answer == 1) {
            operation = ending(end, entry.op_context, entry.flags);
            CHECK(!operation->cancelled);
            received += operation->kind == RECEIVE;
            accessed += operation->kind == READ || operation->kind == WRITE;
            if (operation->kind == RECEIVE)
                check_received(operation, other, entry.len, 0);
            else if (operation->kind == READ)
                CHECK_BYTES(operation->buffer, other->memory + MEMORY / 2, operation->length);
            continue;
        }
        CHECK_RET(answer, -FI_EAVAIL);
        CHECK_RET(fi_cq_readerr(end->side->cq, &error, 0), 1);
        operation = ending(end, error.op_context, error.flags);
        if (error.err == FI_ETRUNC) {
            CHECK_INT(operation->kind, RECEIVE);
            truncated++;
            check_received(operation, other, error.len, error.olen);
        } else {
            if (error.err == FI_ECONNRESET)
                CHECK(operation->kind != RECEIVE && (other->closed || other->shut));
            else
                CHECK_INT(error.err, FI_ECANCELED);
            if (operation->kind != RECEIVE && !end->closed && !end->shut)
                CHECK_INT(error.err, FI_ECONNRESET);
            cancelled++;
            CHECK(operation->cancelled || is_over());
        }
    }
}

/* Takes the next operation, with a buffer of its own for the bytes that come in. */
static struct operation *next_operation(struct end *end, enum kind kind, size_t length)
{
    struct operation *operation = &end->operations[end->count];

    *operation = (struct operation){.kind = kind, .length = length, .buffer = malloc(length + 1)};
    CHECK(operation->buffer != NULL);
    return operation;
}

/* Counts the operation if the call took it. */
static void taken(struct end *end, struct operation *operation, ssize_t answer)
{
    if (answer == 0) {
        end->count++;
        return;
    }
    free(operation->buffer);
    CHECK(answer == -FI_EAGAIN || (answer == -FI_ENOTCONN && is_over()));
}

static void sent(struct end *end, size_t length)
{
    end->lengths[end->sent++] = length;
}

static void step(unsigned which)
{
    struct end *end = &ends[which];
    size_t length = draw_length();
    struct operation *operation;
    struct fid_ep *ep = end->side->ep;
    ssize_t answer;

    if (end->closed || end->count == OPERATIONS || end->sent == OPERATIONS)
        return;
    switch (draw(12)) {
    case 0:
    case 1:
    case 2:
        operation = next_operation(end, RECEIVE, draw(8) ? LENGTH : length);
        answer = fi_recv(ep, operation->buffer, operation->length, NULL, FI_ADDR_UNSPEC, CONTEXT(end->count));
        taken(end, operation, answer);
        break;
    case 3:
    case 4:
        operation = next_operation(end, SEND, length);
        memcpy(operation->buffer, pattern(end->sent, length), length);
        answer = fi_send(ep, operation->buffer, length, NULL, FI_ADDR_UNSPEC, CONTEXT(end->count));
        taken(end, operation, answer);
        if (answer == 0)
            sent(end, length);
        break;
    case 5:
        length %= MESSAGE_INJECT + 1;
        answer = fi_inject(ep, pattern(end->sent, length), length, FI_ADDR_UNSPEC);
        if (answer == 0)
            sent(end, length);
        break;
    case 6:
        operation = next_operation(end, WRITE, length);
        memset(operation->buffer, (int)end->count, length);
        answer = fi_write(ep, operation->buffer, length, NULL, FI_ADDR_UNSPEC, draw(MEMORY / 2 - LENGTH), 1,
                          CONTEXT(end->count));
        taken(end, operation, answer);
        break;
    case 7:
        operation = next_operation(end, READ, length);
        answer = fi_read(ep, operation->buffer, length, NULL, FI_ADDR_UNSPEC, MEMORY / 2, 1, CONTEXT(end->count));
        taken(end, operation, answer);
        break;
    case 8:
        if (end->count > 0) {
            unsigned at = (unsigned)draw(end->count);

            answer = fi_cancel(&ep->fid, CONTEXT(at));
            CHECK(answer == 0 || answer == -FI_ENOENT);
            if (answer == 0) {
                CHECK(end->operations[at].kind == RECEIVE && !end->operations[at].ended);
                CHECK(!end->operations[at].cancelled);
                end->operations[at].cancelled = true;
            }
        }
        break;
    default:
        read_entries(which);
    }
}

static void close_end(unsigned which)
{
    struct end *end = &ends[which];

    end->closed = true;
    close_fid(&end->side->ep->fid);
    end->side->ep = NULL;
    /* Everything is reported, and the buffers are free. */
    read_entries(which);
    for (unsigned i = 0; i < end->count; i++) {
        CHECK(end->operations[i].ended);
        memset(end->operations[i].buffer, 0xee, end->operations[i].length);
    }
}

static void check_untouched(const struct end *end)
{
    for (unsigned i = 0; i < end->count; i++)
        for (size_t at = 0; at < end->operations[i].length; at += 97)
            CHECK_INT(end->operations[i].buffer[at], 0xee);
}

/* Lets both sides finish: every message finds a receive, and every operation ends. */
static void finish(void)
{
    for (unsigned which = 0; which < 2; which++) {
        struct end *end = &ends[which];
        int64_t until = now_ms() + PATIENCE_MS;

        while (ends[!which].received < ends[!which].sent) {
            if (end->count < OPERATIONS) {
                struct operation *operation = next_operation(end, RECEIVE, LENGTH);

                taken(end, operation,
                      fi_recv(end->side->ep, operation->buffer, LENGTH, NULL, FI_ADDR_UNSPEC, CONTEXT(end->count)));
            }
            drive();
            read_entries(0);
            read_entries(1);
            CHECK(now_ms() < until);
            if (end->count == OPERATIONS)
                break;
        }
    }
}

static void live(uint64_t seed)
{
    unsigned last = STEPS / 2 + (unsigned)(seed * 7919 % (STEPS / 2));
    struct pair pair;

    note("RSTREAM_TEST_SEED=%llu", (unsigned long long)seed);
    still_moving();
    dice.state = seed;
    memset(ends, 0, sizeof ends);
    messages_open(&pair, NULL);
    /* Half of the orders begin with sides whose short messages leave together. */
    for (unsigned i = 0; i < 20 * (seed / 3 % 2); i++) {
        (void)message_series(&pair.client, &pair.server);
        (void)message_series(&pair.server, &pair.client);
    }
    for (unsigned which = 0; which < 2; which++) {
        ends[which].side = which ? &pair.server : &pair.client;
        ends[which].memory = calloc(1, MEMORY);
        CHECK(ends[which].memory != NULL);
        memcpy(ends[which].memory + MEMORY / 2, pattern(which, MEMORY / 2), MEMORY / 2);
        ends[which].region = message_region(ends[which].side, ends[which].memory, MEMORY, 1);
    }
    for (unsigned i = 0; i < last; i++)
        step((unsigned)draw(2));
    if (seed % 3 == 0) {
        ends[seed % 2].shut = true;
        CHECK_OK(fi_shutdown(ends[seed % 2].side->ep, 0));
        for (unsigned i = 0; i < 50; i++)
            step((unsigned)draw(2));
    } else if (seed % 3 == 1) {
        finish();
    }
    close_end(seed % 2);
    for (unsigned i = 0; i < 50; i++)
        step(!(seed % 2));
    close_end(!(seed % 2));
    for (unsigned i = 0; i < 5; i++)
        drive();
    for (unsigned which = 0; which < 2; which++) {
        struct end *end = &ends[which];

        check_untouched(end);
        check_no_completion(end->side->cq);
        CHECK(memcmp(end->memory + MEMORY / 2, pattern(which, MEMORY / 2), MEMORY / 2) == 0);
        close_fid(&end->region->fid);
        for (unsigned i = 0; i < end->count; i++)
            free(end->operations[i].buffer);
        free(end->memory);
    }
    pair_close(&pair);
}

static void generated_orders(void)
{
    const char *only = getenv("RSTREAM_TEST_SEED"), *seeds = getenv("RSTREAM_TEST_SEEDS");
    uint64_t count = seeds ? strtoull(seeds, NULL, 10) : SEEDS;

    if (only) {
        live(strtoull(only, NULL, 10));
        return;
    }
    for (uint64_t seed = 0; seed < count; seed++)
        live(seed);
    printf("%u received, %u truncated, %u read or written, %u cancelled\n", received, truncated, accessed, cancelled);
    /* The orders reach all of these. */
    CHECK_AT_LEAST(received, 10 * count);
    CHECK_AT_LEAST(truncated, count);
    CHECK_AT_LEAST(accessed, 10 * count);
    CHECK_AT_LEAST(cancelled, 10 * count);
}

static const struct test tests[] = {
    TEST(generated_orders, "calls in generated orders: each operation ends once, in order, with the right bytes or error"),
};

const struct section message_orders_section = SECTION("message orders", tests);
