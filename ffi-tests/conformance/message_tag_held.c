/* Contract, section Message endpoints: tagged messages for which there is no room. They wait in the connection, are
 * held, with all that is behind them, until they are taken. */
#include "tags.h"

#define NO_ADDRESS FI_ADDR_UNSPEC

enum { LONGEST = 3 << 20, ROOM = LONGEST + 1, SHORT = 100 };

static uint8_t got[ROOM];

/* How a held message is taken. */
enum way { RECEIVE, CUT, DISCARD, CLAIM, CLAIM_CUT, CLAIM_DISCARD, WAYS };

static const char *const names[WAYS] = {"received", "received in part", "discarded", "claimed", "claimed in part",
                                        "claimed and discarded"};

/* Checks the entry of a receive of the message with this number. */
static void check_received(struct fid_cq *cq, uintptr_t context, size_t room, size_t length, uint64_t tag,
                           unsigned number)
{
    const uint64_t flags = TAG_RECEIVED | FI_REMOTE_CQ_DATA;

    if (room < length) {
        struct fi_cq_err_entry error = await_failed(cq, context, flags, FI_ETRUNC);

        CHECK_INT(error.len, room);
        CHECK_INT(error.olen, length - room);
        CHECK_INT(error.tag, tag);
        CHECK_INT(error.data, number);
        length = room;
    } else {
        CHECK_INT(await_tagged(cq, context, flags, length, tag).data, number);
    }
    CHECK_BYTES(got, pattern(number, length), length);
    CHECK_INT(got[length], 0xcc);
}

/* Takes the message with this tag and number, which the server holds. It stays so until the call that takes it. */
static void take_held(struct side *server, enum way way, size_t length, uint64_t tag, unsigned number)
{
    const size_t room = way == CUT || way == CLAIM_CUT ? length / 2 : length;
    const bool claims = way >= CLAIM;
    struct fi_cq_tagged_entry entry;

    memset(got, 0xcc, sizeof got);
    if (way == RECEIVE || way == CUT) {
        post_trecv(server->ep, got, room, tag, 0, 10);
        check_received(server->cq, 10, room, length, tag, number);
        return;
    }
    entry = await_peek(server, tag, 0, claims ? FI_CLAIM : FI_DISCARD, 11);
    CHECK_INT(entry.flags, TAG_RECEIVED | FI_REMOTE_CQ_DATA);
    CHECK_INT(entry.len, length);
    CHECK_INT(entry.data, number);
    check_finds_nothing(server, tag, 0, 0, 12);
    if (!claims)
        return;
    drive_for(20);
    check_peeks_nothing(server, 0, ANY_TAG);
    if (way == CLAIM_DISCARD) {
        CHECK_OK(post_trecvmsg(server->ep, NULL, 0, tag, 0, FI_CLAIM | FI_DISCARD, 11));
        CHECK_INT(await_tagged(server->cq, 11, TAG_RECEIVED | FI_REMOTE_CQ_DATA, length, tag).data, number);
    } else {
        CHECK_OK(post_trecvmsg(server->ep, got, room, tag, 0, FI_CLAIM, 11));
        check_received(server->cq, 11, room, length, tag, number);
    }
}

/* A message that is held, with a short one behind it, for each of the ways, and all of them in one connection. */
static void takes_held(void)
{
    enum { LONG_TAG = 1, SHORT_TAG = 2 };
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned way = 0; way < WAYS; way++) {
        const unsigned number = 2 * way;

        CHECK_OK(fi_tsenddata(pair.client.ep, pattern(number, LONGEST), LONGEST, NULL, number, NO_ADDRESS, LONG_TAG,
                              CONTEXT(number)));
        CHECK_OK(fi_tsenddata(pair.client.ep, pattern(number + 1, SHORT), SHORT, NULL, number + 1, NO_ADDRESS,
                              SHORT_TAG, CONTEXT(number + 1)));
    }
    for (unsigned way = 0; way < WAYS; way++) {
        const unsigned number = 2 * way;

        note("%s", names[way]);
        CHECK_INT(await_peek(&pair.server, LONG_TAG, 0, 0, 1).data, number);
        drive_for(20);
        check_finds_nothing(&pair.server, SHORT_TAG, 0, 0, 2);
        CHECK_INT(stats_of(pair.server.ep).stalls, way + 1);
        take_held(&pair.server, way, LONGEST, LONG_TAG, number);
        /* What is behind it follows. */
        memset(got, 0xcc, sizeof got);
        post_trecv(pair.server.ep, got, SHORT, SHORT_TAG, 0, 3);
        check_received(pair.server.cq, 3, SHORT, SHORT, SHORT_TAG, number + 1);
    }
    for (unsigned i = 0; i < 2 * WAYS; i++)
        (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    messages_pass(&pair);
    pair_close(&pair);
}

/* The same with one message that uses all that is kept, and behind it one without bytes. */
static void takes_held_empty(void)
{
    enum { FULL = UNEXPECTED_BYTES - UNEXPECTED_EACH, FULL_TAG = 1, EMPTY_TAG = 2, NEXT_TAG = 3 };
    const enum way ways[] = {RECEIVE, DISCARD, CLAIM, CLAIM_DISCARD};

    for (unsigned i = 0; i < 4; i++) {
        struct pair pair;

        note("%s", names[ways[i]]);
        messages_open(&pair, &tagged_settings);
        post_tsend(pair.client.ep, pattern(0, FULL), FULL, FULL_TAG, 0);
        CHECK_OK(fi_tsenddata(pair.client.ep, NULL, 0, NULL, 5, NO_ADDRESS, EMPTY_TAG, CONTEXT(1)));
        CHECK_OK(fi_tsenddata(pair.client.ep, pattern(9, 9), 9, NULL, 9, NO_ADDRESS, NEXT_TAG, CONTEXT(2)));
        CHECK_INT(await_peek(&pair.server, EMPTY_TAG, 0, 0, 1).len, 0);
        drive_for(20);
        check_finds_nothing(&pair.server, NEXT_TAG, 0, 0, 2);
        CHECK_INT(stats_of(pair.server.ep).stalls, 1);
        /* It is not alone. */
        CHECK_INT(await_peek(&pair.server, FULL_TAG, 0, FI_CLAIM, 3).len, FULL);
        take_held(&pair.server, ways[i], 0, EMPTY_TAG, 5);
        memset(got, 0xcc, sizeof got);
        post_trecv(pair.server.ep, got, 9, NEXT_TAG, 0, 4);
        check_received(pair.server.cq, 4, 9, 9, NEXT_TAG, 9);
        memset(got, 0xcc, sizeof got);
        CHECK_OK(post_trecvmsg(pair.server.ep, got, FULL, FULL_TAG, 0, FI_CLAIM, 3));
        (void)await_tagged(pair.server.cq, 3, TAG_RECEIVED, FULL, FULL_TAG);
        CHECK_BYTES(got, pattern(0, FULL), FULL);
        for (unsigned sent = 0; sent < 3; sent++)
            (void)await_tagged(pair.client.cq, sent, TAG_SENT, 0, 0);
        pair_close(&pair);
    }
}

/* One that fits when an older one is taken, in each of the ways, is not held any longer. */
static void held_until_room(void)
{
    enum { FULL = UNEXPECTED_BYTES - UNEXPECTED_EACH, FULL_TAG = 1, HELD_TAG = 2, NEXT_TAG = 3 };

    for (unsigned way = 0; way < WAYS; way++) {
        struct pair pair;

        note("the one before it is %s", names[way]);
        messages_open(&pair, &tagged_settings);
        CHECK_OK(fi_tsenddata(pair.client.ep, pattern(7, FULL), FULL, NULL, 7, NO_ADDRESS, FULL_TAG, CONTEXT(0)));
        for (uint64_t n = 8; n < 10; n++)
            AWAIT(PATIENCE_MS, fi_tinjectdata(pair.client.ep, pattern(n, SHORT), SHORT, n, NO_ADDRESS,
                                              n == 8 ? HELD_TAG : NEXT_TAG) == 0);
        CHECK_INT(await_peek(&pair.server, HELD_TAG, 0, 0, 1).len, SHORT);
        drive_for(20);
        check_finds_nothing(&pair.server, NEXT_TAG, 0, 0, 2);
        CHECK_INT(await_peek(&pair.server, HELD_TAG, 0, FI_CLAIM, 3).len, SHORT);
        take_held(&pair.server, way, FULL, FULL_TAG, 7);
        CHECK_INT(await_peek(&pair.server, NEXT_TAG, 0, 0, 2).len, SHORT);
        memset(got, 0xcc, sizeof got);
        CHECK_OK(post_trecvmsg(pair.server.ep, got, SHORT, HELD_TAG, 0, FI_CLAIM, 3));
        check_received(pair.server.cq, 3, SHORT, SHORT, HELD_TAG, 8);
        memset(got, 0xcc, sizeof got);
        post_trecv(pair.server.ep, got, SHORT, NEXT_TAG, 0, 4);
        check_received(pair.server.cq, 4, SHORT, SHORT, NEXT_TAG, 9);
        (void)await_tagged(pair.client.cq, 0, TAG_SENT, 0, 0);
        check_peeks_nothing(&pair.server, 0, ANY_TAG);
        pair_close(&pair);
    }
}

static const struct test tests[] = {
    TEST(takes_held, "a held message of 3 MiB is received, discarded, claimed, claimed and discarded; others follow"),
    TEST(takes_held_empty, "so is one without bytes"),
    TEST(held_until_room, "one that was held arrives when an older one is received, discarded or claimed"),
};

const struct section message_tag_held_section = SECTION("held messages", tests);
