/* Contract, section Message endpoints: completions of tagged messages, their share of the queues, flags and bad
 * arguments. */
#include "offer.h"
#include "tags.h"

#define NO_ADDRESS FI_ADDR_UNSPEC
/* FI_PRIORITY, which libfabric 2 no longer names. */
#define PRIORITY (1ULL << 22)
/* The first of the flags that are libfabric's own. */
#define OWN_FLAGS 60

/* ---- which completions -------------------------------------------------------------------- */

static void tagged_inject(void)
{
    uint8_t buffer[MESSAGE_INJECT + 1], got[MESSAGE_INJECT];
    struct iovec pieces[2] = {{buffer, 96}, {buffer + 96, MESSAGE_INJECT - 96}};
    struct fi_msg_tagged message = {.msg_iov = pieces, .iov_count = 2, .addr = NO_ADDRESS, .context = CONTEXT(6)};
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 20; i++) {
        memcpy(buffer, pattern(i, MESSAGE_INJECT), MESSAGE_INJECT);
        message.tag = i;
        if (i % 2)
            CHECK_OK(fi_tinject(pair.client.ep, buffer, MESSAGE_INJECT, NO_ADDRESS, i));
        else
            CHECK_OK(fi_tsendmsg(pair.client.ep, &message, FI_INJECT));
        memset(buffer, 0xee, sizeof buffer);
    }
    for (unsigned i = 20; i-- > 0;) {
        post_trecv(pair.server.ep, got, sizeof got, i, 0, i);
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, sizeof got, i);
        CHECK_BYTES(got, pattern(i, sizeof got), sizeof got);
    }
    for (unsigned i = 0; i < 10; i++)
        (void)await_tagged(pair.client.cq, 6, TAG_SENT, 0, 0);
    check_no_completion(pair.client.cq);
    pieces[1].iov_len++;
    CHECK_RET(fi_tinject(pair.client.ep, buffer, sizeof buffer, NO_ADDRESS, 1), -FI_EMSGSIZE);
    CHECK_RET(fi_tinjectdata(pair.client.ep, buffer, sizeof buffer, 1, NO_ADDRESS, 1), -FI_EMSGSIZE);
    CHECK_RET(fi_tsendmsg(pair.client.ep, &message, FI_INJECT), -FI_EMSGSIZE);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void tagged_selective(void)
{
    struct message_settings settings = tagged_settings;
    struct iovec piece = {(void *)(uintptr_t)"x", 1};
    struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS};
    uint8_t got[4] = {0};
    struct pair pair;

    settings.bind_flags = FI_SELECTIVE_COMPLETION;
    messages_open(&pair, &settings);
    for (unsigned i = 0; i < 4; i++)
        CHECK_OK(post_trecvmsg(pair.server.ep, &got[i], 1, i, 0, i % 2 ? FI_COMPLETION : 0, 10 + i));
    for (unsigned i = 0; i < 3; i++) {
        message.tag = i;
        message.context = CONTEXT(i);
        CHECK_OK(fi_tsendmsg(pair.client.ep, &message, i == 2 ? FI_COMPLETION : 0));
    }
    post_tsend(pair.client.ep, "y", 1, 3, 3);
    (void)await_tagged(pair.server.cq, 11, TAG_RECEIVED, 1, 1);
    (void)await_tagged(pair.server.cq, 13, TAG_RECEIVED, 1, 3);
    (void)await_tagged(pair.client.cq, 2, TAG_SENT, 0, 0);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    CHECK_BYTES(got, "xxxy", 4);
    /* A failure is reported nevertheless. */
    post_trecv(pair.server.ep, got, 1, 4, 0, 20);
    post_tsend(pair.client.ep, "long", 4, 4, 21);
    (void)await_failed(pair.server.cq, 20, TAG_RECEIVED, FI_ETRUNC);
    pair_close(&pair);
}

/* One for sends and one for receives, of either side. */
static struct fid_cntr *counters[4];
static unsigned counter_count;

static void count_messages(struct side *side)
{
    for (unsigned i = 0; i < 2; i++) {
        struct fid_cntr *counter = message_counter(side, FI_WAIT_UNSPEC);

        CHECK_OK(fi_ep_bind(side->ep, &counter->fid, i ? FI_RECV : FI_SEND));
        counters[counter_count++] = counter;
    }
}

static void tagged_counters(void)
{
    struct message_settings settings = tagged_settings;
    uint8_t got[6];
    struct pair pair;

    settings.prepare = count_messages;
    settings.bind_flags = FI_SELECTIVE_COMPLETION;
    messages_open(&pair, &settings);
    for (unsigned i = 0; i < 4; i++)
        post_trecv(pair.server.ep, &got[i], 1, i, 0, i);
    post_recv(pair.server.ep, &got[4], 1, 4);
    post_tsend(pair.client.ep, "a", 1, 0, 1);
    CHECK_OK(fi_tinject(pair.client.ep, "b", 1, NO_ADDRESS, 1));
    post_tsend(pair.client.ep, "cc", 2, 2, 1);
    post_send(pair.client.ep, "d", 1, 1);
    /* One that is unexpected at first. */
    CHECK_OK(fi_tinjectdata(pair.client.ep, "e", 1, 7, NO_ADDRESS, 9));
    AWAIT(PATIENCE_MS, fi_cntr_read(counters[0]) >= 5);
    AWAIT(PATIENCE_MS, fi_cntr_read(counters[3]) >= 3);
    drive_for(20);
    CHECK_INT(fi_cntr_read(counters[3]), 3);
    post_trecv(pair.server.ep, &got[5], 1, 9, 0, 5);
    AWAIT(PATIENCE_MS, fi_cntr_read(counters[3]) >= 4);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(3)));
    CHECK_INT(fi_cntr_read(counters[0]), 5);
    CHECK_INT(fi_cntr_read(counters[1]), 0);
    CHECK_INT(fi_cntr_read(counters[2]), 0);
    CHECK_INT(fi_cntr_read(counters[3]), 4);
    CHECK_INT(fi_cntr_readerr(counters[3]), 2);
    close_fid(&pair.client.ep->fid);
    close_fid(&pair.server.ep->fid);
    pair.client.ep = pair.server.ep = NULL;
    for (unsigned i = 0; i < 4; i++)
        close_fid(&counters[i]->fid);
    pair_close(&pair);
}

static void tagged_truncation(void)
{
    const size_t lengths[] = {11, 5000, 200000}, rooms[] = {0, 1, 10};
    static uint8_t got[20];
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 18; i++) {
        const size_t length = lengths[i / 3 % 3], room = rooms[i % 3];
        const bool is_unexpected = i >= 9;
        struct fi_cq_err_entry error;

        note("%zu bytes for %zu, %sexpected", length, room, is_unexpected ? "un" : "");
        memset(got, 0xcc, sizeof got);
        for (unsigned late = 0; late < 2; late++) {
            if (late == is_unexpected) {
                post_trecv(pair.server.ep, got, room, 0x70, 0xf, 1);
                post_trecv(pair.server.ep, got + 10, 2, 0x80, 0, 2);
            }
            if (late == 0) {
                post_tsend(pair.client.ep, pattern(0, length), length, 0x73, 3);
                post_tsend(pair.client.ep, "ok", 2, 0x80, 4);
            }
            if (late == 0 && is_unexpected)
                (void)await_peek(&pair.server, 0x80, 0, 0, 5);
        }
        error = await_failed(pair.server.cq, 1, TAG_RECEIVED, FI_ETRUNC);
        CHECK_INT(error.len, room);
        CHECK_INT(error.olen, length - room);
        CHECK_INT(error.tag, 0x73);
        CHECK_BYTES(got, pattern(0, room), room);
        for (size_t at = room; at < 10; at++)
            CHECK_INT(got[at], 0xcc);
        (void)await_tagged(pair.server.cq, 2, TAG_RECEIVED, 2, 0x80);
        CHECK_BYTES(got + 10, "ok", 2);
        /* The sender does not notice. */
        (void)await_tagged(pair.client.cq, 3, TAG_SENT, 0, 0);
        (void)await_tagged(pair.client.cq, 4, TAG_SENT, 0, 0);
    }
    pair_close(&pair);
}

static void tagged_cancel(void)
{
    enum { TAG = 7 };
    uint8_t got[6][10];
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 6; i++)
        post_trecv(pair.server.ep, got[i], sizeof got[i], i == 5 ? 8 : TAG, i % 2 ? 0x100 : 0, i);
    for (unsigned i = 0; i < 4; i += 3) {
        struct fi_cq_err_entry error;

        CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(i)));
        CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(i)), -FI_ENOENT);
        error = await_failed(pair.server.cq, i, TAG_RECEIVED, FI_ECANCELED);
        CHECK_INT(error.len, 0);
        CHECK_INT(error.olen, 0);
    }
    CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(77)), -FI_ENOENT);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE - 4);
    /* What they would have taken goes to later ones. */
    for (unsigned i = 1; i < 5; i++) {
        if (i == 3)
            continue;
        CHECK_OK(fi_tinject(pair.client.ep, pattern(i, 10), 10, NO_ADDRESS, TAG));
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 10, TAG);
        CHECK_BYTES(got[i], pattern(i, 10), 10);
        CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(i)), -FI_ENOENT);
    }
    /* None is left for this one, until a receive is posted. */
    CHECK_OK(fi_tinject(pair.client.ep, pattern(6, 10), 10, NO_ADDRESS, TAG));
    drive_for(20);
    check_no_completion(pair.server.cq);
    post_trecv(pair.server.ep, got[0], sizeof got[0], TAG, 0, 6);
    (void)await_tagged(pair.server.cq, 6, TAG_RECEIVED, 10, TAG);
    CHECK_BYTES(got[0], pattern(6, 10), 10);
    pair_close(&pair);
}

/* ---- queues, flags, arguments, memory ----------------------------------------------------- */

static void tagged_queues(void)
{
    enum { SENDS = 5, RECEIVES = 9 };
    struct message_settings settings = tagged_settings;
    static uint8_t got[RECEIVES], big[PATTERN_MAX];
    struct pair pair;
    ssize_t answer;

    settings.tx_size = SENDS;
    settings.rx_size = RECEIVES;
    messages_open(&pair, &settings);
    for (unsigned i = 0; i < RECEIVES; i++) {
        CHECK_RET(fi_rx_size_left(pair.server.ep), RECEIVES - i);
        if (i % 2)
            post_recv(pair.server.ep, &got[i], 1, i);
        else
            post_trecv(pair.server.ep, &got[i], 1, i, 0, i);
    }
    CHECK_RET(fi_rx_size_left(pair.server.ep), 0);
    check_tagged_receives(pair.server.ep, -FI_EAGAIN);
    check_receives(pair.server.ep, -FI_EAGAIN);
    for (unsigned i = 0; i < RECEIVES; i++) {
        if (i % 2)
            AWAIT(PATIENCE_MS, (answer = fi_inject(pair.client.ep, "x", 1, NO_ADDRESS)) != -FI_EAGAIN);
        else
            AWAIT(PATIENCE_MS, (answer = fi_tinject(pair.client.ep, "x", 1, NO_ADDRESS, i)) != -FI_EAGAIN);
        CHECK_RET(answer, 0);
    }
    for (unsigned i = 0; i < RECEIVES; i++)
        (void)await_tagged(pair.server.cq, i, i % 2 ? RECEIVED : TAG_RECEIVED, 1, i % 2 ? 0 : i);
    CHECK_RET(fi_rx_size_left(pair.server.ep), RECEIVES);
    AWAIT(PATIENCE_MS, fi_tx_size_left(pair.client.ep) == SENDS);
    for (unsigned i = 0; i < SENDS; i++)
        post_tsend(pair.client.ep, pattern(i, PATTERN_MAX), PATTERN_MAX, i, i);
    check_tagged_calls(pair.client.ep, -FI_EAGAIN);
    check_calls(pair.client.ep, -FI_EAGAIN);
    CHECK_RET(fi_tx_size_left(pair.client.ep), 0);
    for (unsigned i = 0; i < SENDS; i++) {
        post_trecv(pair.server.ep, big, sizeof big, i, 0, i);
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, PATTERN_MAX, i);
        CHECK_BYTES(big, pattern(i, PATTERN_MAX), PATTERN_MAX);
        (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    }
    CHECK_RET(fi_tx_size_left(pair.client.ep), SENDS);
    pair_close(&pair);
}

/* They are those of fi_sendmsg. */
static void flags_of_tagged_sends(void)
{
    const uint64_t accepted = FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                              FI_DELIVERY_COMPLETE | FI_MORE | FI_REMOTE_CQ_DATA | FI_FENCE | PRIORITY;
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned bit = 0; bit < OWN_FLAGS; bit++) {
        const uint64_t flag = 1ULL << bit;
        const bool with_data = flag == FI_REMOTE_CQ_DATA;
        uint8_t byte = 'x', got = 0;
        struct iovec piece = {&byte, 1};
        struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .addr = NO_ADDRESS, .tag = bit, .data = 5,
                                        .context = CONTEXT(1)};

        note("flag 0x%llx", (unsigned long long)flag);
        if (!(flag & accepted)) {
            CHECK_RET(fi_tsendmsg(pair.client.ep, &message, flag), -FI_EBADFLAGS);
            continue;
        }
        post_trecv(pair.server.ep, &got, 1, 0, ANY_TAG, 2);
        CHECK_OK(fi_tsendmsg(pair.client.ep, &message, flag));
        if (flag == FI_INJECT)
            byte = 0;
        CHECK_INT(await_tagged(pair.server.cq, 2, TAG_RECEIVED | (with_data ? FI_REMOTE_CQ_DATA : 0), 1, bit).data,
                  with_data ? 5 : 0);
        CHECK_INT(got, 'x');
        (void)await_tagged(pair.client.cq, 1, TAG_SENT, 0, 0);
    }
    /* What was refused has not been sent. */
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    pair_close(&pair);
}

static void bad_tagged_arguments(void)
{
    struct iovec null = {NULL, 5}, five[5] = {{0}}, huge = {(void *)(uintptr_t)"x", (size_t)UINT32_MAX + 1};
    struct fi_msg_tagged message = {.msg_iov = &null, .iov_count = 1, .addr = NO_ADDRESS};
    struct pair pair;
    struct fid_ep *ep;

    messages_open(&pair, &tagged_settings);
    ep = pair.client.ep;
    CHECK_RET(fi_tsend(ep, NULL, 5, NULL, NO_ADDRESS, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_tsenddata(ep, NULL, 5, NULL, 1, NO_ADDRESS, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_tinject(ep, NULL, 5, NO_ADDRESS, 1), -FI_EINVAL);
    CHECK_RET(fi_tinjectdata(ep, NULL, 5, 1, NO_ADDRESS, 1), -FI_EINVAL);
    CHECK_RET(fi_tsendv(ep, NULL, NULL, 1, NO_ADDRESS, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_tsendv(ep, &null, NULL, 1, NO_ADDRESS, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_tsendv(ep, five, NULL, MESSAGE_IOVS + 1, NO_ADDRESS, 1, NULL), -FI_EINVAL);
    CHECK_RET(fi_trecvv(ep, NULL, NULL, 1, NO_ADDRESS, 1, 0, NULL), -FI_EINVAL);
    CHECK_RET(fi_trecvv(ep, five, NULL, MESSAGE_IOVS + 1, NO_ADDRESS, 1, 0, NULL), -FI_EINVAL);
    CHECK_RET(fi_tsendmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_trecvmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_tsendmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_tsendv(ep, &huge, NULL, 1, NO_ADDRESS, 1, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_trecvv(ep, &huge, NULL, 1, NO_ADDRESS, 1, 0, NULL), -FI_EMSGSIZE);
    check_no_completion(pair.client.cq);
    CHECK_RET(fi_tx_size_left(ep), MESSAGE_QUEUE);
    CHECK_RET(fi_rx_size_left(ep), MESSAGE_QUEUE);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    messages_pass(&pair);
    pair_close(&pair);
}

/* Accesses to memory go past messages that wait for receives. The queue has no tags, unlike that of other tests. */
static void tags_beside_memory(void)
{
    const struct message_settings settings = {.caps = FI_MSG | FI_RMA | FI_TAGGED};
    enum { BYTES = 3000 };
    static uint8_t got[BYTES];
    struct offer offer;
    struct side *client = &offer.pair.client, *server = &offer.pair.server;

    offer_open(&offer, &settings);
    for (unsigned round = 0; round < 10; round++) {
        memcpy(here, pattern(round, BYTES), BYTES);
        memset(there, 0, BYTES);
        post_tsend(client->ep, pattern(1, BYTES), BYTES, 1, 1);
        CHECK_OK(fi_writedata(client->ep, here, BYTES, NULL, round, LOCAL, offer.address, offer.key, CONTEXT(2)));
        post_tsend(client->ep, pattern(2, BYTES), BYTES, 2, 3);
        CHECK_INT(await_done(server->cq, 0, REMOTE_WRITTEN).data, round);
        CHECK_BYTES(there, pattern(round, BYTES), BYTES);
        for (unsigned tag = 2; tag > 0; tag--) {
            CHECK_OK(fi_trecv(server->ep, got, BYTES, NULL, LOCAL, tag, 0, CONTEXT(4)));
            CHECK_INT(await_done(server->cq, 4, TAG_RECEIVED).len, BYTES);
            CHECK_BYTES(got, pattern(tag, BYTES), BYTES);
        }
        (void)await_done(client->cq, 1, TAG_SENT);
        (void)await_done(client->cq, 2, WRITTEN);
        (void)await_done(client->cq, 3, TAG_SENT);
        access_works(&offer);
    }
    messages_pass(&offer.pair);
    offer_close(&offer);
}

static const struct test tests[] = {
    TEST(tagged_inject, "fi_tinject, FI_INJECT: the buffer is free, the former has no entry; too long: -FI_EMSGSIZE"),
    TEST(tagged_selective, "FI_SELECTIVE_COMPLETION: as for other messages"),
    TEST(tagged_counters, "counters count tagged messages as they do others"),
    TEST(tagged_truncation, "a message longer than its receive, posted before or after it: FI_ETRUNC with its tag"),
    TEST(tagged_cancel, "fi_cancel of a tagged receive: FI_ECANCELED, a later one takes its message; else -FI_ENOENT"),
    TEST(tagged_queues, "tagged operations have their share of the queues, then -FI_EAGAIN"),
    TEST(flags_of_tagged_sends, "fi_tsendmsg with each flag: its effect, or -FI_EBADFLAGS and nothing is sent"),
    TEST(bad_tagged_arguments, "null, too many, too long: errors, and nothing changes"),
    TEST(tags_beside_memory, "remote memory access on the same endpoint, past unexpected messages"),
};

const struct section message_tag_queues_section = SECTION("completions of tagged messages", tests);
