/* Contract, section Message endpoints: tagged messages that wait for a receive. They are peeked at, discarded and
 * claimed, wait in the connection when there are many, and outlive it. */
#include "tags.h"

#include <stdlib.h>

#define NO_ADDRESS FI_ADDR_UNSPEC

/* ---- peeking ------------------------------------------------------------------------------ */

static void peeks_nothing(void)
{
    struct pair pair;
    uint8_t got = 0;

    messages_open(&pair, &tagged_settings);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    check_peeks_nothing(&pair.server, 5, 0);
    /* A message with another tag, and one without a tag. */
    CHECK_OK(fi_inject(pair.client.ep, "u", 1, NO_ADDRESS));
    CHECK_OK(fi_tinject(pair.client.ep, "t", 1, NO_ADDRESS, 5));
    CHECK_INT(await_peek(&pair.server, 5, 0, 0, 1).len, 1);
    check_peeks_nothing(&pair.server, 6, 0);
    check_peeks_nothing(&pair.server, 0x10, 0xf);
    post_trecv(pair.server.ep, &got, 1, 5, 0, 2);
    (void)await_tagged(pair.server.cq, 2, TAG_RECEIVED, 1, 5);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    post_recv(pair.server.ep, &got, 1, 3);
    (void)await_tagged(pair.server.cq, 3, RECEIVED, 1, 0);
    CHECK_INT(got, 'u');
    /* A receive is no message, and stays. */
    post_trecv(pair.server.ep, &got, 1, 9, 0, 4);
    check_peeks_nothing(&pair.server, 9, 0);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE - 1);
    CHECK_OK(fi_tinject(pair.client.ep, "9", 1, NO_ADDRESS, 9));
    (void)await_tagged(pair.server.cq, 4, TAG_RECEIVED, 1, 9);
    check_peeks_nothing(&pair.server, 9, 0);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    pair_close(&pair);
}

static void peeks(void)
{
    enum { LONGEST = 70000 };
    const size_t lengths[] = {100, LONGEST, 0};
    static uint8_t got[LONGEST];
    struct fi_cq_tagged_entry entry;
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    CHECK_OK(fi_tinjectdata(pair.client.ep, pattern(0, 100), 100, 0xabc, NO_ADDRESS, 0x80));
    post_tsend(pair.client.ep, pattern(1, LONGEST), LONGEST, 0x81, 1);
    CHECK_OK(fi_tinject(pair.client.ep, NULL, 0, NO_ADDRESS, 0x82));
    /* The messages stay: twice the same. */
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 3; i-- > 0;) {
            entry = await_peek(&pair.server, 0x80 + i, 0, 0, 10 + i);
            CHECK_INT(entry.flags, TAG_RECEIVED | (i == 0 ? FI_REMOTE_CQ_DATA : 0));
            CHECK_INT(entry.len, lengths[i]);
            CHECK_INT(entry.tag, 0x80 + i);
            CHECK_INT(entry.data, i == 0 ? 0xabc : 0);
        }
        /* The oldest that agrees. */
        CHECK_INT(await_peek(&pair.server, 0, ANY_TAG, 0, 20).tag, 0x80);
        CHECK_INT(await_peek(&pair.server, 1, ANY_TAG - 1, 0, 20).tag, 0x81);
        CHECK_INT(await_peek(&pair.server, 0x82, 1, FI_COMPLETION | FI_MORE, 20).tag, 0x82);
    }
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    check_no_completion(pair.server.cq);
    for (unsigned i = 3; i-- > 0;) {
        post_trecv(pair.server.ep, got, LONGEST, 0x80 + i, 0, i);
        entry = await_tagged(pair.server.cq, i, TAG_RECEIVED | (i == 0 ? FI_REMOTE_CQ_DATA : 0), lengths[i], 0x80 + i);
        CHECK_INT(entry.data, i == 0 ? 0xabc : 0);
        CHECK_BYTES(got, pattern(i, lengths[i]), lengths[i]);
        check_peeks_nothing(&pair.server, 0x80 + i, 0);
    }
    (void)await_tagged(pair.client.cq, 1, TAG_SENT, 0, 0);
    pair_close(&pair);
}

static void discards(void)
{
    enum { LONGEST = 70000 };
    const size_t lengths[] = {10, 20, LONGEST, 30};
    uint8_t got[30];
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 4; i++)
        post_tsend(pair.client.ep, pattern(i, lengths[i]), lengths[i], i % 2, i);
    (void)await_peek(&pair.server, 1, 0, 0, 1);
    /* 10 and 70000 bytes have the tag 0. */
    for (unsigned i = 0; i < 4; i += 2)
        CHECK_INT(await_peek(&pair.server, 0, 0, FI_DISCARD, 2).len, lengths[i]);
    check_peeks_nothing(&pair.server, 0, 0);
    check_finds_nothing(&pair.server, 0, 0, FI_DISCARD, 3);
    CHECK_INT(await_peek(&pair.server, 0, ANY_TAG, FI_DISCARD, 4).len, 20);
    check_no_completion(pair.server.cq);
    post_trecv(pair.server.ep, got, sizeof got, 0, ANY_TAG, 5);
    (void)await_tagged(pair.server.cq, 5, TAG_RECEIVED, 30, 1);
    CHECK_BYTES(got, pattern(3, 30), 30);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    /* The sender does not notice. */
    for (unsigned i = 0; i < 4; i++)
        (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    pair_close(&pair);
}

static void claims(void)
{
    enum { TAG = 3, BYTES = 50 };
    uint8_t got[BYTES], other[BYTES];
    struct fi_cq_tagged_entry dropped;
    struct fi_cq_err_entry error;
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 4; i++)
        CHECK_OK(fi_tinjectdata(pair.client.ep, pattern(i, BYTES - i), BYTES - i, 7 + i, NO_ADDRESS, TAG));
    /* Each claim takes the next one. */
    for (unsigned i = 0; i < 4; i++) {
        struct fi_cq_tagged_entry entry = await_peek(&pair.server, TAG, 0, FI_CLAIM, 100 + i);

        CHECK_INT(entry.flags, TAG_RECEIVED | FI_REMOTE_CQ_DATA);
        CHECK_INT(entry.len, BYTES - i);
        CHECK_INT(entry.data, 7 + i);
    }
    /* Nothing else sees them. */
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    post_trecv(pair.server.ep, other, BYTES, TAG, 0, 1);
    drive_for(20);
    check_no_completion(pair.server.cq);
    check_finds_nothing(&pair.server, TAG, 0, FI_CLAIM, 200);
    /* What has claimed nothing. */
    CHECK_RET(post_trecvmsg(pair.server.ep, got, BYTES, TAG, 0, FI_CLAIM, 200), -FI_EINVAL);
    CHECK_RET(post_trecvmsg(pair.server.ep, got, BYTES, TAG, 0, FI_CLAIM, 1), -FI_EINVAL);
    CHECK_RET(post_trecvmsg(pair.server.ep, NULL, 0, TAG, 0, FI_CLAIM | FI_DISCARD, 200), -FI_EINVAL);
    /* Received in another order; one receive is too short; one message is discarded. */
    for (unsigned i = 3; i-- > 1;) {
        CHECK_OK(post_trecvmsg(pair.server.ep, got, BYTES, TAG, 0, FI_CLAIM, 100 + i));
        CHECK_INT(await_tagged(pair.server.cq, 100 + i, TAG_RECEIVED | FI_REMOTE_CQ_DATA, BYTES - i, TAG).data, 7 + i);
        CHECK_BYTES(got, pattern(i, BYTES - i), BYTES - i);
    }
    CHECK_OK(post_trecvmsg(pair.server.ep, got, 10, TAG, 0, FI_CLAIM, 103));
    AWAIT(PATIENCE_MS, fi_cq_read(pair.server.cq, NULL, 0) != -FI_EAGAIN);
    memset(&error, 0, sizeof error);
    CHECK_RET(fi_cq_readerr(pair.server.cq, &error, 0), 1);
    CHECK_INT((uintptr_t)error.op_context, 103);
    CHECK_INT(error.err, FI_ETRUNC);
    CHECK_INT(error.len, 10);
    CHECK_INT(error.olen, BYTES - 3 - 10);
    CHECK_INT(error.tag, TAG);
    CHECK_BYTES(got, pattern(3, 10), 10);
    CHECK_OK(post_trecvmsg(pair.server.ep, NULL, 0, TAG, 0, FI_CLAIM | FI_DISCARD, 100));
    dropped = next_tagged(pair.server.cq);
    CHECK_INT((uintptr_t)dropped.op_context, 100);
    CHECK_INT(dropped.flags & ~FI_REMOTE_CQ_DATA, TAG_RECEIVED);
    CHECK_INT(dropped.len, BYTES);
    /* Each of them once. */
    for (unsigned i = 0; i < 4; i++)
        CHECK_RET(post_trecvmsg(pair.server.ep, got, BYTES, TAG, 0, FI_CLAIM, 100 + i), -FI_EINVAL);
    /* The posted receive gets the next message. */
    CHECK_OK(fi_tinject(pair.client.ep, pattern(9, 5), 5, NO_ADDRESS, TAG));
    (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 5, TAG);
    CHECK_BYTES(other, pattern(9, 5), 5);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    /* One that nobody takes. */
    CHECK_OK(fi_tinject(pair.client.ep, pattern(9, 5), 5, NO_ADDRESS, TAG));
    (void)await_peek(&pair.server, TAG, 0, FI_CLAIM, 300);
    pair_close(&pair);
}

static void flags_of_tagged_receives(void)
{
    /* FI_DISCARD and FI_CLAIM are above them, and libfabric's own above these. */
    enum { OTHER_FLAGS = 58 };
    const uint64_t accepted = FI_COMPLETION | FI_MORE | FI_PEEK;
    struct fi_msg untagged = {.addr = NO_ADDRESS};
    struct pair pair;
    uint8_t got = 0;

    messages_open(&pair, &tagged_settings);
    for (unsigned bit = 0; bit < OTHER_FLAGS; bit++) {
        const uint64_t flag = 1ULL << bit;

        note("flag 0x%llx", (unsigned long long)flag);
        if (flag & accepted)
            continue;
        CHECK_RET(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, flag, 1), -FI_EBADFLAGS);
        CHECK_RET(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, flag | FI_PEEK, 1), -FI_EBADFLAGS);
    }
    CHECK_RET(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, FI_DISCARD, 1), -FI_EINVAL);
    CHECK_RET(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, FI_DISCARD | FI_COMPLETION | FI_MORE, 1), -FI_EINVAL);
    CHECK_RET(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, FI_CLAIM, 1), -FI_EINVAL);
    /* Other receives have none of them. */
    CHECK_RET(fi_recvmsg(pair.server.ep, &untagged, FI_PEEK), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(pair.server.ep, &untagged, FI_CLAIM), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(pair.server.ep, &untagged, FI_PEEK | FI_DISCARD), -FI_EBADFLAGS);
    check_no_completion(pair.server.cq);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    CHECK_OK(post_trecvmsg(pair.server.ep, &got, 1, 1, 0, FI_COMPLETION | FI_MORE, 1));
    CHECK_OK(fi_tinject(pair.client.ep, "x", 1, NO_ADDRESS, 1));
    (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 1, 1);
    CHECK_INT(got, 'x');
    pair_close(&pair);
}

/* ---- how much is kept --------------------------------------------------------------------- */

/* Messages from the client to the server, whose tags and contexts are their numbers. */
struct numbered {
    struct pair pair;
    size_t length;
    unsigned sent, complete;
};

/* Sends messages until there are so many, or until nothing has moved for so long that a busy machine is no reason. */
static void send_numbered(struct numbered *numbered, unsigned most)
{
    enum { STALL_MS = 1500 };
    struct side *client = &numbered->pair.client;
    int64_t moved = now_ms();

    while (numbered->sent < most && now_ms() - moved < STALL_MS) {
        struct fi_cq_tagged_entry entry;
        ssize_t answer = fi_tsend(client->ep, pattern(numbered->sent, numbered->length), numbered->length, NULL,
                                  NO_ADDRESS, numbered->sent, CONTEXT(numbered->sent));

        if (answer == 0) {
            numbered->sent++;
            moved = now_ms();
        } else {
            CHECK_RET(answer, -FI_EAGAIN);
            drive();
        }
        while (fi_cq_read(client->cq, &entry, 1) == 1) {
            CHECK_INT((uintptr_t)entry.op_context, numbered->complete++);
            moved = now_ms();
        }
    }
    printf("%u messages of %zu bytes sent, %u complete\n", numbered->sent, numbered->length, numbered->complete);
}

/* Receives all of them in order, and has the sends complete. */
static void receive_numbered(struct numbered *numbered)
{
    struct side *client = &numbered->pair.client, *server = &numbered->pair.server;
    uint8_t *got = malloc(numbered->length);

    CHECK(got != NULL);
    for (unsigned i = 0; i < numbered->sent; i++) {
        post_trecv(server->ep, got, numbered->length, 0, ANY_TAG, i);
        (void)await_tagged(server->cq, i, TAG_RECEIVED, numbered->length, i);
        CHECK_BYTES(got, pattern(i, numbered->length), numbered->length);
        if (i % 1000 == 0)
            still_moving();
    }
    while (numbered->complete < numbered->sent)
        (void)await_tagged(client->cq, numbered->complete++, TAG_SENT, 0, 0);
    check_peeks_nothing(server, 0, ANY_TAG);
    free(got);
}

/* A peek finds what is kept, and nothing far behind it. */
static void kept_up_to_limit(void)
{
    const size_t lengths[] = {1, 16000};

    for (unsigned i = 0; i < 2; i++) {
        const unsigned kept = UNEXPECTED_BYTES / (lengths[i] + UNEXPECTED_EACH), margin = kept / 16 + 2;
        struct numbered numbered = {.length = lengths[i]};

        messages_open(&numbered.pair, &tagged_settings);
        send_numbered(&numbered, 2 * kept);
        CHECK_AT_LEAST(numbered.sent, kept + margin + 1);
        (void)await_peek(&numbered.pair.server, kept - margin, 0, 0, 1);
        drive_for(50);
        check_peeks_nothing(&numbered.pair.server, kept + margin, 0);
        receive_numbered(&numbered);
        pair_close(&numbered.pair);
    }
}

/* A sender has to wait long before it has sent this much, and the receiver's memory does not grow. */
static void waits_when_full(void)
{
    enum { BYTES = 16000, MOST = (256 << 20) / BYTES };
    struct numbered numbered = {.length = BYTES};
    long long before;

    messages_open(&numbered.pair, &tagged_settings);
    (void)pattern(0, 1);
    before = (long long)heap_in_use();
    send_numbered(&numbered, MOST);
    CHECK_BETWEEN(numbered.sent, UNEXPECTED_BYTES / BYTES, MOST - 1);
    CHECK_BETWEEN(numbered.complete, 1, numbered.sent - 1);
    /* Under AddressSanitizer both are 0. */
    CHECK_BETWEEN((long long)heap_in_use() - before, -UNEXPECTED_BYTES, 3 * UNEXPECTED_BYTES);
    check_no_event(numbered.pair.client.eq);
    check_no_event(numbered.pair.listener.eq);
    receive_numbered(&numbered);
    pair_close(&numbered.pair);
}

static void longer_than_limit(void)
{
    enum { LONGEST = 3 << 20 };
    const size_t lengths[] = {100, LONGEST, 200, LONGEST};
    const unsigned order[] = {1, 2, 0, 3};
    static uint8_t got[LONGEST];
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 4; i++)
        CHECK_OK(fi_tsenddata(pair.client.ep, pattern(i, lengths[i]), lengths[i], NULL, 50 + i, NO_ADDRESS, i,
                              CONTEXT(i)));
    for (unsigned round = 0; round < 2; round++) {
        struct fi_cq_tagged_entry entry = await_peek(&pair.server, 1, 0, 0, 10);

        CHECK_INT(entry.flags, TAG_RECEIVED | FI_REMOTE_CQ_DATA);
        CHECK_INT(entry.len, LONGEST);
        CHECK_INT(entry.data, 51);
    }
    drive_for(20);
    for (unsigned n = 0; n < 4; n++) {
        const unsigned i = order[n];

        post_trecv(pair.server.ep, got, LONGEST, i, 0, 20 + i);
        CHECK_INT(await_tagged(pair.server.cq, 20 + i, TAG_RECEIVED | FI_REMOTE_CQ_DATA, lengths[i], i).data, 50 + i);
        CHECK_BYTES(got, pattern(i, lengths[i]), lengths[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    /* The same into a receive that is posted before. */
    memset(got, 0, sizeof got);
    post_trecv(pair.server.ep, got, LONGEST, 9, 0, 1);
    post_tsend(pair.client.ep, pattern(9, LONGEST), LONGEST, 9, 2);
    (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, LONGEST, 9);
    CHECK_BYTES(got, pattern(9, LONGEST), LONGEST);
    (void)await_tagged(pair.client.cq, 2, TAG_SENT, 0, 0);
    pair_close(&pair);
}

/* ---- ends --------------------------------------------------------------------------------- */

/* Posted receives end once when the peer shuts down, and when their endpoint is closed, before that returns. */
static void receives_end(void)
{
    enum { RECEIVES = 7, UNTAGGED = 6, MATCHED = 3 };

    for (unsigned is_closed = 0; is_closed < 2; is_closed++) {
        unsigned ended[RECEIVES] = {0};
        uint8_t got[RECEIVES];
        struct pair pair;

        note("%s", is_closed ? "fi_close" : "fi_shutdown");
        messages_open(&pair, &tagged_settings);
        for (unsigned i = 0; i < UNTAGGED; i++)
            post_trecv(pair.client.ep, &got[i], 1, i, i == 5 ? 0xf0 : 0, i);
        post_recv(pair.client.ep, &got[UNTAGGED], 1, UNTAGGED);
        CHECK_OK(fi_tinject(pair.server.ep, "x", 1, NO_ADDRESS, MATCHED));
        /* One that none takes. */
        CHECK_OK(fi_tinject(pair.server.ep, "y", 1, NO_ADDRESS, 99));
        AWAIT(PATIENCE_MS, (drive(), fi_rx_size_left(pair.client.ep) == MESSAGE_QUEUE - RECEIVES + 1));
        if (is_closed)
            close_client(&pair);
        else
            CHECK_OK(fi_shutdown(pair.server.ep, 0));
        for (unsigned i = 0; i < RECEIVES; i++) {
            struct ending ending;

            if (is_closed)
                CHECK(next_ending(pair.client.cq, &ending));
            else
                AWAIT(PATIENCE_MS, next_ending(pair.client.cq, &ending));
            CHECK_BETWEEN(ending.context, 0, RECEIVES - 1);
            CHECK_INT(++ended[ending.context], 1);
            CHECK_INT(ending.flags, ending.context == UNTAGGED ? RECEIVED : TAG_RECEIVED);
            CHECK_INT(ending.err, ending.context == MATCHED ? 0 : FI_ECANCELED);
        }
        CHECK_INT(got[MATCHED], 'x');
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        if (!is_closed)
            (void)await_event(pair.client.eq, FI_SHUTDOWN);
        drive_for(20);
        check_no_completion(pair.client.cq);
        check_no_event(pair.client.eq);
        pair_close(&pair);
    }
}

static void received_after_end(void)
{
    enum { MESSAGES = 4, LONGEST = 70000 };
    const size_t lengths[] = {100, LONGEST, 0, 5000};
    static uint8_t got[LONGEST];

    for (unsigned is_closed = 0; is_closed < 2; is_closed++) {
        struct fi_eq_cm_entry event;
        struct pair pair;
        uint32_t kind;

        note("%s", is_closed ? "fi_close" : "fi_shutdown");
        messages_open(&pair, &tagged_settings);
        for (unsigned i = 0; i < MESSAGES; i++)
            post_tsend(pair.server.ep, pattern(i, lengths[i]), lengths[i], i, i);
        (void)await_peek(&pair.client, MESSAGES - 1, 0, 0, 1);
        for (unsigned i = 0; i < MESSAGES; i++)
            (void)await_tagged(pair.server.cq, i, TAG_SENT, 0, 0);
        if (is_closed) {
            close_fid(&pair.server.ep->fid);
            pair.server.ep = NULL;
        } else {
            CHECK_OK(fi_shutdown(pair.server.ep, 0));
        }
        /* Before the event is read, and after that. */
        AWAIT(PATIENCE_MS, fi_eq_read(pair.client.eq, &kind, &event, sizeof event, FI_PEEK) != -FI_EAGAIN);
        check_tagged_receives(pair.client.ep, -FI_EAGAIN);
        for (unsigned i = MESSAGES; i-- > 0;) {
            post_trecv(pair.client.ep, got, LONGEST, i == 0 ? 0x77 : i, i == 0 ? ANY_TAG : 0, 10 + i);
            (void)await_tagged(pair.client.cq, 10 + i, TAG_RECEIVED, lengths[i], i);
            CHECK_BYTES(got, pattern(i, lengths[i]), lengths[i]);
            if (i != 2)
                continue;
            CHECK_RET(fi_eq_read(pair.client.eq, &kind, &event, sizeof event, 0), sizeof event);
            CHECK_INT(kind, FI_SHUTDOWN);
            CHECK(event.fid == &pair.client.ep->fid);
            check_tagged_receives(pair.client.ep, -FI_ENOTCONN);
        }
        /* None is left. */
        CHECK_RET(fi_trecv(pair.client.ep, got, LONGEST, NULL, NO_ADDRESS, 0, ANY_TAG, NULL), -FI_ENOTCONN);
        check_tagged_receives(pair.client.ep, -FI_ENOTCONN);
        check_tagged_calls(pair.client.ep, -FI_ENOTCONN);
        check_receives(pair.client.ep, -FI_ENOTCONN);
        check_no_completion(pair.client.cq);
        pair_close(&pair);
    }
}

static const struct test tests[] = {
    TEST(peeks_nothing, "FI_PEEK that no message agrees with: an entry with FI_ENOMSG"),
    TEST(peeks, "FI_PEEK: the length, tag and data of the oldest message that agrees, which stays"),
    TEST(discards, "FI_PEEK and FI_DISCARD: the same, and the message is gone"),
    TEST(claims, "FI_PEEK and FI_CLAIM: only FI_CLAIM with the same context receives or discards it; else -FI_EINVAL"),
    TEST(flags_of_tagged_receives, "fi_trecvmsg with other flags: -FI_EBADFLAGS; with FI_DISCARD alone: -FI_EINVAL"),
    TEST(kept_up_to_limit, "1 MiB of unexpected messages is kept, of which each counts 256 bytes more than it has"),
    TEST(waits_when_full, "more of them wait in the connection: memory does not grow, nothing is lost"),
    TEST(longer_than_limit, "a message longer than that waits in the connection, is peeked at and received"),
    TEST(receives_end, "fi_shutdown by the peer, or fi_close: posted tagged receives have FI_ECANCELED once"),
    TEST(received_after_end, "unexpected messages are received after the end; others: -FI_EAGAIN, then -FI_ENOTCONN"),
};

const struct section message_unexpected_section = SECTION("unexpected messages", tests);
