/* Contract, section Message endpoints: calls for tagged and other messages in generated orders, against a model of
 * which receive takes which message. RSTREAM_TEST_SEED in the environment repeats one order, RSTREAM_TEST_SEEDS is
 * their number. */
#include "tags.h"

#include <stdlib.h>

enum { STEPS = 250, SEEDS = 400, OPERATIONS = 2 * STEPS, LONG = 60000, HUGE = 2 << 20, NONE = -1 };

/* A CLAIM receives what a PEEK has claimed, a DROP discards it. Both have the context of that PEEK, and its place. */
enum kind { SEND, RECEIVE, PEEK, CLAIM, DROP };

/* An operation that was posted. It has to be reported once. */
struct operation {
    enum kind kind;
    bool is_tagged, ended, cancelled, has_claimed;
    /* Of a peek: its message has arrived before for certain. */
    bool is_sure;
    /* Of a receive: its message has been there before. */
    bool was_held;
    uint64_t tag, ignore, flags;
    uint8_t *buffer;
    size_t room;
    /* The number of the message that it has, or will have. */
    int message;
};

/* A message that was sent. */
struct message {
    bool is_tagged, has_data, is_gone;
    uint64_t tag;
    size_t length;
    /* The operation of the other end that has it, or will have it. */
    int receive;
};

/*
 * One endpoint, what it has to report, and what it has sent.
 *
 * Messages arrive in their order, and nobody else sends. So it makes no difference for the model when one arrives: a
 * receive takes the oldest message that agrees and has none of the older receives, and it can be told at once. Only a
 * receive that is cancelled before its message has arrived gives it back.
 */
struct end {
    struct side *side;
    struct operation operations[OPERATIONS];
    struct message messages[STEPS];
    int count, sent;
    /* So many messages of this end have arrived for certain. */
    int arrived;
    bool is_closed;
};

static struct end ends[2];
static struct dice dice;
/* Whether some messages have up to HUGE bytes. One of more than UNEXPECTED_BYTES is held until it is taken, and so are
 * others when there are many. */
static bool is_heavy;

/* What all orders together have reported. */
struct sums {
    unsigned received, truncated, peeked, claimed, discarded, dropped, cancelled;
};

/* Of all messages, and of those that were held for certain. */
static struct sums sums, held_sums;
/* How many messages were held, as the endpoints count them. */
static uint64_t held;

static uint64_t draw(uint64_t below)
{
    return throw_below(&dice, below);
}

static size_t draw_length(void)
{
    if (is_heavy && draw(5) == 0)
        return draw(HUGE + 1);
    return draw(16) ? draw(3001) : LONG;
}

/* Counts what has become of a message, in this field of `struct sums`. `was_held`: whether nobody had asked for it. */
#define COUNT(what, message, was_held)                                                              \
    (sums.what++, held_sums.what += (was_held) && (message)->length > UNEXPECTED_BYTES)

/* The room of a receive: it often suffices. */
static size_t draw_room(uint64_t die)
{
    if (is_heavy && die % 2 == 1)
        return HUGE;
    return die ? LONG : draw_length();
}

static uint64_t draw_tag(void)
{
    const uint64_t tags[] = {0, 1, 2, 3, 1ULL << 63, 1ULL << 63 | 1};

    return tags[draw(6)];
}

static uint64_t draw_ignore(void)
{
    const uint64_t masks[] = {0, 0, 1, 3, 1ULL << 63, ANY_TAG};

    return masks[draw(6)];
}

/* What a message has. */
static const uint8_t *content(const struct end *from, int number, size_t length)
{
    return pattern((uint64_t)number * 2 + (uint64_t)(from - ends), length);
}

/* ---- the model ---------------------------------------------------------------------------- */

static bool agree(const struct operation *operation, const struct message *message)
{
    if (operation->is_tagged != message->is_tagged)
        return false;
    return !message->is_tagged || ((operation->tag ^ message->tag) & ~operation->ignore) == 0;
}

/* The oldest message that no receive has, and that agrees. */
static int waiting_for(const struct end *from, const struct operation *operation)
{
    for (int number = 0; number < from->sent; number++) {
        const struct message *message = &from->messages[number];

        if (message->receive == NONE && !message->is_gone && agree(operation, message))
            return number;
    }
    return NONE;
}

/* Gives a message to the oldest receive that agrees and has none. */
static void give(struct end *to, struct end *from, int number)
{
    struct message *message = &from->messages[number];

    message->receive = NONE;
    for (int at = 0; at < to->count; at++) {
        struct operation *operation = &to->operations[at];

        if (operation->kind == RECEIVE && !operation->cancelled && operation->message == NONE &&
            agree(operation, message)) {
            operation->message = number;
            message->receive = at;
            return;
        }
    }
}

/* Gives all messages again, because a receive has gone. */
static void give_again(struct end *to, struct end *from)
{
    for (int at = 0; at < to->count; at++)
        if (to->operations[at].kind == RECEIVE)
            to->operations[at].message = NONE;
    for (int number = 0; number < from->sent; number++)
        if (!from->messages[number].is_gone)
            give(to, from, number);
}

/* ---- what is reported --------------------------------------------------------------------- */

static void has_arrived(struct end *from, int number)
{
    if (from->arrived <= number)
        from->arrived = number + 1;
}

static void check_data(const struct fi_cq_err_entry *entry, const struct message *message, int number)
{
    CHECK_INT(entry->tag, message->is_tagged ? message->tag : 0);
    if (entry->err != 0)
        return;
    CHECK_INT((entry->flags & FI_REMOTE_CQ_DATA) != 0, message->has_data);
    CHECK_INT(entry->data, message->has_data ? number : 0);
}

static void check_received(const struct operation *operation, struct end *from, const struct fi_cq_err_entry *entry)
{
    const struct message *message;
    size_t length;

    CHECK(operation->message != NONE);
    message = &from->messages[operation->message];
    length = message->length < operation->room ? message->length : operation->room;
    CHECK_INT(entry->err, message->length > length ? FI_ETRUNC : 0);
    CHECK_INT(entry->len, length);
    if (entry->err)
        CHECK_INT(entry->olen, message->length - length);
    check_data(entry, message, operation->message);
    CHECK_BYTES(operation->buffer, content(from, operation->message, length), length);
    CHECK_INT(operation->buffer[operation->room], 0xcc);
    has_arrived(from, operation->message);
    if (entry->err)
        COUNT(truncated, message, operation->was_held);
    else
        COUNT(received, message, operation->was_held);
}

/* What is said of a message that is peeked at, or dropped. */
static struct message *check_found(const struct operation *operation, struct end *from,
                                   const struct fi_cq_err_entry *entry)
{
    struct message *message;

    CHECK_INT(entry->err, 0);
    CHECK(operation->message != NONE);
    message = &from->messages[operation->message];
    CHECK_INT(entry->len, message->length);
    check_data(entry, message, operation->message);
    return message;
}

static void check_peeked(struct operation *operation, struct end *from, const struct fi_cq_err_entry *entry)
{
    struct message *message;

    if (entry->err) {
        CHECK_INT(entry->err, FI_ENOMSG);
        CHECK(!operation->is_sure);
        return;
    }
    message = check_found(operation, from, entry);
    has_arrived(from, operation->message);
    operation->has_claimed = operation->flags & FI_CLAIM;
    message->is_gone = operation->flags & (FI_CLAIM | FI_DISCARD);
    COUNT(peeked, message, true);
    if (operation->flags & FI_CLAIM)
        COUNT(claimed, message, true);
    if (operation->flags & FI_DISCARD)
        COUNT(discarded, message, true);
}

static void check_entry(unsigned which, const struct fi_cq_err_entry *entry)
{
    struct end *end = &ends[which], *from = &ends[!which];
    struct operation *operation;

    CHECK_BETWEEN((uintptr_t)entry->op_context, 0, end->count - 1);
    operation = &end->operations[(uintptr_t)entry->op_context];
    CHECK(!operation->ended);
    CHECK_INT(entry->flags & ~FI_REMOTE_CQ_DATA,
              (operation->kind == SEND ? FI_SEND : FI_RECV) | (operation->is_tagged ? FI_TAGGED : FI_MSG));
    operation->ended = true;
    if (entry->err == FI_ECANCELED || entry->err == FI_ECONNRESET) {
        if (entry->err == FI_ECONNRESET)
            CHECK(operation->kind == SEND && from->is_closed);
        if (operation->kind == SEND && !end->is_closed)
            CHECK_INT(entry->err, FI_ECONNRESET);
        CHECK(operation->cancelled || ends[0].is_closed || ends[1].is_closed);
        sums.cancelled++;
        return;
    }
    CHECK(!operation->cancelled);
    switch (operation->kind) {
    case SEND:
        CHECK_INT(entry->err, 0);
        CHECK_INT(entry->len, 0);
        CHECK_INT(entry->tag, 0);
        /* In the order of their calls. */
        for (const struct operation *before = end->operations; before < operation; before++)
            CHECK(before->kind != SEND || before->ended);
        break;
    case PEEK:
        check_peeked(operation, from, entry);
        break;
    case DROP:
        COUNT(dropped, check_found(operation, from, entry), true);
        break;
    default:
        check_received(operation, from, entry);
    }
}

static void read_entries(unsigned which)
{
    for (;;) {
        struct fi_cq_err_entry error = {0};
        struct fi_cq_tagged_entry entry;
        ssize_t answer = fi_cq_read(ends[which].side->cq, &entry, 1);

        if (answer == -FI_EAGAIN)
            return;
        if (answer == 1) {
            error.op_context = entry.op_context;
            error.flags = entry.flags;
            error.len = entry.len;
            error.data = entry.data;
            error.tag = entry.tag;
        } else {
            CHECK_RET(answer, -FI_EAVAIL);
            CHECK_RET(fi_cq_readerr(ends[which].side->cq, &error, 0), 1);
            CHECK(error.err != 0);
        }
        check_entry(which, &error);
    }
}

/* ---- calls -------------------------------------------------------------------------------- */

/* Takes the next operation, with a buffer of its own for the bytes that come in. It counts when a call has taken it. */
static struct operation *next_operation(struct end *end, enum kind kind, bool is_tagged, size_t room)
{
    struct operation *operation = &end->operations[end->count];

    CHECK(end->count < OPERATIONS);
    *operation = (struct operation){.kind = kind, .is_tagged = is_tagged, .room = room, .message = NONE,
                                    .buffer = malloc(room + 1)};
    CHECK(operation->buffer != NULL);
    operation->buffer[room] = 0xcc;
    return operation;
}

static void taken(struct end *end, struct operation *operation, ssize_t answer)
{
    if (answer == 0) {
        end->count++;
        return;
    }
    free(operation->buffer);
    CHECK_RET(answer, -FI_EAGAIN);
}

static void receive(unsigned which, bool is_tagged, uint64_t tag, uint64_t ignore, size_t room)
{
    struct end *end = &ends[which], *from = &ends[!which];
    struct operation *operation = next_operation(end, RECEIVE, is_tagged, room);
    struct fid_ep *ep = end->side->ep;
    void *context = CONTEXT(end->count);
    ssize_t answer;

    operation->tag = tag;
    operation->ignore = ignore;
    if (is_tagged)
        answer = fi_trecv(ep, operation->buffer, room, NULL, FI_ADDR_UNSPEC, tag, ignore, context);
    else
        answer = fi_recv(ep, operation->buffer, room, NULL, FI_ADDR_UNSPEC, context);
    if (answer == 0) {
        operation->message = waiting_for(from, operation);
        if (operation->message != NONE)
            from->messages[operation->message].receive = end->count;
        operation->was_held = operation->message != NONE && operation->message < from->arrived;
    }
    taken(end, operation, answer);
}

static void send_message(unsigned which, bool is_tagged, uint64_t tag, bool has_data, bool is_injected)
{
    struct end *end = &ends[which];
    struct message *message = &end->messages[end->sent];
    const size_t length = is_injected ? draw(3001) : draw_length();
    const uint64_t data = (uint64_t)end->sent;
    const uint8_t *bytes = content(end, end->sent, length);
    const fi_addr_t none = FI_ADDR_UNSPEC;
    struct fid_ep *ep = end->side->ep;
    void *context = CONTEXT(end->count);
    ssize_t answer;

    *message = (struct message){.is_tagged = is_tagged, .has_data = has_data, .tag = tag, .length = length};
    if (is_injected && is_tagged)
        answer = has_data ? fi_tinjectdata(ep, bytes, length, data, none, tag)
                          : fi_tinject(ep, bytes, length, none, tag);
    else if (is_injected)
        answer = has_data ? fi_injectdata(ep, bytes, length, data, none) : fi_inject(ep, bytes, length, none);
    else if (is_tagged)
        answer = has_data ? fi_tsenddata(ep, bytes, length, NULL, data, none, tag, context)
                          : fi_tsend(ep, bytes, length, NULL, none, tag, context);
    else
        answer = has_data ? fi_senddata(ep, bytes, length, NULL, data, none, context)
                          : fi_send(ep, bytes, length, NULL, none, context);
    if (!is_injected)
        taken(end, next_operation(end, SEND, is_tagged, 0), answer);
    else if (answer != 0)
        CHECK_RET(answer, -FI_EAGAIN);
    if (answer == 0)
        give(&ends[!which], end, end->sent++);
}

/* What is discarded or claimed has to be known before any further call. */
static void peek(unsigned which, uint64_t tag, uint64_t ignore, uint64_t flags)
{
    struct end *end = &ends[which], *from = &ends[!which];
    struct operation *operation = next_operation(end, PEEK, true, 0);

    operation->tag = tag;
    operation->ignore = ignore;
    operation->flags = flags;
    operation->message = waiting_for(from, operation);
    operation->is_sure = operation->message != NONE && operation->message < from->arrived;
    CHECK_OK(post_trecvmsg(end->side->ep, NULL, 0, tag, ignore, FI_PEEK | flags, (uintptr_t)end->count++));
    AWAIT(PATIENCE_MS, (read_entries(which), operation->ended));
}

/* Receives or discards what a peek has claimed. */
static void take_claimed(unsigned which, int at)
{
    struct end *end = &ends[which];
    struct operation *operation = &end->operations[at];
    bool drops = draw(4) == 0;
    ssize_t answer;

    operation->kind = drops ? DROP : CLAIM;
    operation->has_claimed = operation->ended = false;
    free(operation->buffer);
    operation->room = drops ? 0 : draw_room(draw(8));
    operation->was_held = true;
    operation->buffer = malloc(operation->room + 1);
    CHECK(operation->buffer != NULL);
    operation->buffer[operation->room] = 0xcc;
    answer = post_trecvmsg(end->side->ep, operation->buffer, operation->room, operation->tag, operation->ignore,
                           FI_CLAIM | (drops ? FI_DISCARD : 0), (uintptr_t)at);
    /* It may be lost with its connection. */
    if (answer == -FI_EINVAL && ends[!which].is_closed)
        operation->ended = true;
    else
        CHECK_OK(answer);
}

/* A receive can be cancelled until its message arrives. */
static void cancel(unsigned which, int at)
{
    struct end *end = &ends[which], *from = &ends[!which];
    struct operation *operation = &end->operations[at];
    int answer;

    if (operation->kind != RECEIVE && operation->kind != SEND)
        return;
    answer = fi_cancel(&end->side->ep->fid, CONTEXT(at));
    if (answer == 0) {
        CHECK(operation->kind == RECEIVE && !operation->ended && !operation->cancelled);
        CHECK(operation->message == NONE || operation->message >= from->arrived);
        operation->cancelled = true;
        if (operation->message != NONE)
            give_again(end, from);
    } else {
        CHECK_RET(answer, -FI_ENOENT);
        CHECK(operation->kind == SEND || operation->ended || operation->cancelled || operation->message != NONE);
    }
}

static void step(unsigned which)
{
    const uint64_t what = draw(18), tag = draw_tag(), ignore = draw_ignore(), coin = draw(2), die = draw(8);
    struct end *end = &ends[which];

    switch (what) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        receive(which, what > 0, tag, ignore, draw_room(die));
        break;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
        send_message(which, what > 5, tag, coin, die < 3);
        break;
    case 10:
        peek(which, tag, ignore, 0);
        break;
    case 11:
        peek(which, tag, ignore, FI_DISCARD);
        break;
    case 12:
        peek(which, tag, ignore, FI_CLAIM);
        break;
    case 13:
        for (int at = 0; at < end->count; at++) {
            if (end->operations[at].has_claimed) {
                take_claimed(which, at);
                break;
            }
        }
        break;
    case 14:
        if (end->count > 0)
            cancel(which, (int)draw((uint64_t)end->count));
        break;
    default:
        read_entries(which);
    }
}

/* ---- one order ---------------------------------------------------------------------------- */

/* Whether each operation has ended, except receives that no message will come to. */
static bool all_ended(const struct end *end, bool even_receives)
{
    for (const struct operation *one = end->operations; one < end->operations + end->count; one++)
        if (!one->ended && (even_receives || one->kind != RECEIVE || one->cancelled || one->message != NONE))
            return false;
    return true;
}

/* Takes what has been claimed, and receives all other messages. */
static void take_all(unsigned which)
{
    struct end *end = &ends[which], *from = &ends[!which];

    for (int at = 0; at < end->count; at++)
        if (end->operations[at].has_claimed)
            take_claimed(which, at);
    for (int number = 0; number < from->sent; number++)
        if (from->messages[number].receive == NONE && !from->messages[number].is_gone)
            receive(which, from->messages[number].is_tagged, 0, ANY_TAG, LONG);
}

/* Every message finds a receive, every claimed one is taken, and receives that are left are cancelled. */
static void finish(void)
{
    for (unsigned which = 0; which < 2; which++) {
        const struct end *from = &ends[!which];

        take_all(which);
        for (int number = 0; number < from->sent; number++)
            CHECK(from->messages[number].receive != NONE || from->messages[number].is_gone);
    }
    AWAIT(PATIENCE_MS, (read_entries(0), read_entries(1), all_ended(&ends[0], false) && all_ended(&ends[1], false)));
    for (unsigned which = 0; which < 2; which++) {
        struct end *end = &ends[which];

        for (int at = 0; at < end->count; at++) {
            if (!end->operations[at].ended) {
                CHECK_OK(fi_cancel(&end->side->ep->fid, CONTEXT(at)));
                end->operations[at].cancelled = true;
            }
        }
        AWAIT(PATIENCE_MS, (read_entries(which), all_ended(end, true)));
        CHECK_RET(fi_rx_size_left(end->side->ep), MESSAGE_QUEUE);
        check_peeks_nothing(end->side, 0, ANY_TAG);
    }
}

static void close_end(unsigned which)
{
    struct end *end = &ends[which];

    end->is_closed = true;
    close_fid(&end->side->ep->fid);
    end->side->ep = NULL;
    read_entries(which);
    CHECK(all_ended(end, true));
}

static void live(uint64_t seed)
{
    const unsigned last = STEPS / 2 + (unsigned)(seed * 7919 % (STEPS / 2));
    struct pair pair;

    note("RSTREAM_TEST_SEED=%llu", (unsigned long long)seed);
    still_moving();
    dice.state = seed;
    is_heavy = seed % 4 > 1;
    memset(ends, 0, sizeof ends);
    messages_open(&pair, &tagged_settings);
    for (unsigned which = 0; which < 2; which++)
        ends[which].side = which ? &pair.server : &pair.client;
    for (unsigned i = 0; i < last; i++)
        step((unsigned)draw(2));
    if (seed % 3)
        finish();
    for (unsigned which = 0; which < 2; which++)
        held += stats_of(ends[which].side->ep).stalls;
    close_end(seed % 2);
    /* The other end is told, without a call; if it may hold a message, behind that. */
    if (is_heavy && seed % 3 == 0)
        take_all(!(seed % 2));
    AWAIT(PATIENCE_MS, (read_entries(!(seed % 2)), all_ended(&ends[!(seed % 2)], true)));
    close_end(!(seed % 2));
    for (unsigned which = 0; which < 2; which++) {
        check_no_completion(ends[which].side->cq);
        for (int at = 0; at < ends[which].count; at++)
            free(ends[which].operations[at].buffer);
    }
    pair_close(&pair);
}

static void print_sums(const char *what, const struct sums *of)
{
    printf("%s: %u received, %u truncated, %u cancelled, %u peeked at, %u of these claimed, %u of those dropped, "
           "%u discarded\n", what, of->received, of->truncated, of->cancelled, of->peeked, of->claimed, of->dropped,
           of->discarded);
}

static void generated_tags(void)
{
    const char *only = getenv("RSTREAM_TEST_SEED"), *seeds = getenv("RSTREAM_TEST_SEEDS");
    uint64_t count = seeds ? strtoull(seeds, NULL, 10) : SEEDS;

    /* Closing does not wait long for what the other end, of the same thread, does not take. */
    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "300", 1));
    if (only) {
        live(strtoull(only, NULL, 10));
        return;
    }
    for (uint64_t seed = 0; seed < count; seed++)
        live(seed);
    print_sums("all", &sums);
    print_sums("held, and longer than the limit", &held_sums);
    printf("%llu held\n", (unsigned long long)held);
    /* The orders reach all of these. */
    CHECK_AT_LEAST(sums.received, 10 * count);
    CHECK_AT_LEAST(sums.truncated, count / 2);
    CHECK_AT_LEAST(sums.cancelled, count);
    CHECK_AT_LEAST(sums.peeked, count);
    CHECK_AT_LEAST(sums.claimed, count / 2);
    CHECK_AT_LEAST(sums.discarded, count / 2);
    CHECK_AT_LEAST(sums.dropped, count / 8);
    CHECK_AT_LEAST(held, count / 8);
    CHECK_AT_LEAST(held_sums.received, count / 200);
    CHECK_AT_LEAST(held_sums.truncated, count / 100);
    CHECK_AT_LEAST(held_sums.peeked, count / 100);
    CHECK_AT_LEAST(held_sums.claimed, count / 100);
    CHECK_AT_LEAST(held_sums.discarded, count / 100);
    CHECK_AT_LEAST(held_sums.dropped, count / 200);
}

static const struct test tests[] = {
    TEST(generated_tags, "calls in generated orders: each receive takes its message, each operation ends once"),
};

const struct section message_tag_orders_section = SECTION("message tag orders", tests);
