/* Contract, section Message endpoints: what the entries of tagged messages say, which operations count, and receives of
 * endpoints that are not connected. */
#include "tags.h"

#define NO_ADDRESS FI_ADDR_UNSPEC

/* ---- attempts that fail ------------------------------------------------------------------- */

/* Receives, tagged or not, of an endpoint whose attempt to connect has failed. */
static void failed_attempts(void)
{
    for (unsigned is_rejected = 0; is_rejected < 2; is_rejected++) {
        struct side listener, client;
        struct event request;
        uint8_t got[2];

        note("%s", is_rejected ? "rejected" : "nobody listens");
        message_listen(&listener, &tagged_settings);
        message_client(&client, &listener, &tagged_settings);
        if (!is_rejected)
            side_close(&listener);
        message_endpoint(&client, &tagged_settings);
        CHECK_OK(fi_enable(client.ep));
        check_tagged_calls(client.ep, -FI_ENOTCONN);
        post_trecv(client.ep, &got[0], 1, 5, 0, 1);
        post_recv(client.ep, &got[1], 1, 2);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        if (is_rejected) {
            request = await_event(listener.eq, FI_CONNREQ);
            CHECK_OK(fi_reject(listener.pep, request.info->handle, NULL, 0));
            fi_freeinfo(request.info);
        }
        CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ECONNREFUSED);
        for (unsigned i = 0; i < 3; i++) {
            check_tagged_receives(client.ep, -FI_ENOTCONN);
            check_receives(client.ep, -FI_ENOTCONN);
            check_tagged_calls(client.ep, -FI_ENOTCONN);
            check_calls(client.ep, -FI_ENOTCONN);
            drive_for(5);
        }
        close_fid(&client.ep->fid);
        client.ep = NULL;
        CHECK_INT(await_failed(client.cq, 1, TAG_RECEIVED, FI_ECANCELED).tag, 5);
        (void)await_failed(client.cq, 2, RECEIVED, FI_ECANCELED);
        check_no_completion(client.cq);
        check_no_event(client.eq);
        side_close(&client);
        if (is_rejected)
            side_close(&listener);
    }
}

/* ---- what entries of errors say ----------------------------------------------------------- */

static void check_text(struct fid_cq *cq, const struct fi_cq_err_entry *error)
{
    const char *text = fi_cq_strerror(cq, error->prov_errno, error->err_data, NULL, 0);

    CHECK(text != NULL && strlen(text) > 0);
    if (strstr(text, "not an error of this provider"))
        fail_at(__FILE__, __LINE__, "error %d has no text: %s", error->prov_errno, text);
}

/* A message that is longer than its receive has its data all the same, with a tag or without. */
static void data_of_truncated(void)
{
    static const size_t lengths[] = {9, 5000, 100000};
    static const uint64_t data[] = {0, 1, UINT64_MAX};
    struct pair pair;
    uint8_t got[8];

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 24; i++) {
        const size_t length = lengths[i % 3];
        const uint64_t value = data[i % 3];
        const bool is_tagged = i / 3 % 2, is_unexpected = i / 6 % 2, has_data = i / 12;
        struct fi_cq_err_entry error;

        note("%zu bytes, %stagged, %sexpected", length, is_tagged ? "" : "un", is_unexpected ? "un" : "");
        for (unsigned late = 0; late < 2; late++) {
            if (late == is_unexpected && is_tagged)
                post_trecv(pair.server.ep, got, sizeof got, 0x70, 0xf, 1);
            else if (late == is_unexpected)
                post_recv(pair.server.ep, got, sizeof got, 1);
            if (late == 1)
                continue;
            if (is_tagged && has_data)
                CHECK_OK(fi_tsenddata(pair.client.ep, pattern(i, length), length, NULL, value, NO_ADDRESS, 0x73,
                                      CONTEXT(2)));
            else if (is_tagged)
                post_tsend(pair.client.ep, pattern(i, length), length, 0x73, 2);
            else if (has_data)
                CHECK_OK(fi_senddata(pair.client.ep, pattern(i, length), length, NULL, value, NO_ADDRESS, CONTEXT(2)));
            else
                post_send(pair.client.ep, pattern(i, length), length, 2);
            drive_for(is_unexpected ? 10 : 0);
        }
        error = await_failed(pair.server.cq, 1,
                             (is_tagged ? TAG_RECEIVED : RECEIVED) | (has_data ? FI_REMOTE_CQ_DATA : 0), FI_ETRUNC);
        CHECK_INT(error.len, sizeof got);
        CHECK_INT(error.olen, length - sizeof got);
        CHECK_INT(error.tag, is_tagged ? 0x73 : 0);
        CHECK_INT(error.data, has_data ? value : 0);
        CHECK_BYTES(got, pattern(i, sizeof got), sizeof got);
        check_text(pair.server.cq, &error);
        (void)await_tagged(pair.client.cq, 2, is_tagged ? TAG_SENT : SENT, 0, 0);
    }
    pair_close(&pair);
}

static void check_cancelled(struct side *side, uintptr_t context, uint64_t flags, uint64_t tag)
{
    struct fi_cq_err_entry error = await_failed(side->cq, context, flags, FI_ECANCELED);

    CHECK_INT(error.tag, tag);
    CHECK_INT(error.len, 0);
    CHECK_INT(error.olen, 0);
    CHECK_INT(error.data, 0);
    check_text(side->cq, &error);
}

/* By fi_cancel, by the peer's end, and by fi_close. */
static void tags_of_cancelled(void)
{
    enum { FI_CANCEL, SHUTDOWN, CLOSE, WAYS };
    const uint64_t tags[] = {0, 1, UINT64_MAX, 1ULL << 63};
    uint8_t got[5];

    for (unsigned way = 0; way < WAYS; way++) {
        struct pair pair;

        note("way %u", way);
        messages_open(&pair, &tagged_settings);
        for (unsigned i = 0; i < 4; i++)
            post_trecv(pair.client.ep, &got[i], 1, tags[i], 0xf0 << i, i);
        post_recv(pair.client.ep, &got[4], 1, 4);
        if (way == SHUTDOWN)
            CHECK_OK(fi_shutdown(pair.server.ep, 0));
        if (way == CLOSE)
            close_client(&pair);
        for (unsigned i = 0; i < 5; i++) {
            if (way == FI_CANCEL)
                CHECK_OK(fi_cancel(&pair.client.ep->fid, CONTEXT(i)));
            check_cancelled(&pair.client, i, i < 4 ? TAG_RECEIVED : RECEIVED, i < 4 ? tags[i] : 0);
        }
        check_no_completion(pair.client.cq);
        pair_close(&pair);
    }
}

static void entry_of_nothing(void)
{
    const uint64_t searches[] = {FI_PEEK, FI_PEEK | FI_DISCARD, FI_PEEK | FI_CLAIM, FI_PEEK | FI_CLAIM | FI_DISCARD};
    const uint64_t tags[] = {0, 1, UINT64_MAX, 0xabc};
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 16; i++) {
        struct fi_cq_err_entry error;

        CHECK_OK(post_trecvmsg(pair.server.ep, NULL, 0, tags[i % 4], i % 3 ? 0 : 0xff00, searches[i / 4], i));
        error = await_failed(pair.server.cq, i, TAG_RECEIVED, FI_ENOMSG);
        CHECK_INT(error.tag, tags[i % 4]);
        CHECK_INT(error.len, 0);
        CHECK_INT(error.olen, 0);
        CHECK_INT(error.data, 0);
        CHECK(error.buf == NULL);
        check_text(pair.server.cq, &error);
    }
    pair_close(&pair);
}

/* ---- peeks, claims and discards ----------------------------------------------------------- */

/* Nobody looks at the buffers of a peek, or of a claim that discards. */
static void peeks_have_no_buffers(void)
{
    struct iovec pieces[9];
    const struct {
        const struct iovec *pieces;
        size_t count;
    } cases[] = {{NULL, 1}, {NULL, 9}, {pieces, 9}, {pieces, 1}, {NULL, SIZE_MAX}, {NULL, 0}};
    struct fi_msg_tagged message = {.addr = NO_ADDRESS, .tag = 6};
    struct pair pair;

    for (unsigned i = 0; i < 9; i++)
        pieces[i] = (struct iovec){NULL, SIZE_MAX};
    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        note("case %u", i);
        message.msg_iov = cases[i].pieces;
        message.iov_count = cases[i].count;
        message.context = CONTEXT(i);
        for (unsigned sent = 0; sent < 2; sent++)
            CHECK_OK(fi_tinject(pair.client.ep, "abc", 3, NO_ADDRESS, 6));
        (void)await_peek(&pair.server, 6, 0, 0, 100);
        CHECK_OK(fi_trecvmsg(pair.server.ep, &message, FI_PEEK));
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 3, 6);
        CHECK_OK(fi_trecvmsg(pair.server.ep, &message, FI_PEEK | FI_CLAIM));
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 3, 6);
        CHECK_OK(fi_trecvmsg(pair.server.ep, &message, FI_CLAIM | FI_DISCARD));
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 3, 6);
        (void)await_peek(&pair.server, 6, 0, 0, 100);
        CHECK_OK(fi_trecvmsg(pair.server.ep, &message, FI_PEEK | FI_DISCARD));
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 3, 6);
        CHECK_OK(fi_trecvmsg(pair.server.ep, &message, FI_PEEK));
        (void)await_failed(pair.server.cq, i, TAG_RECEIVED, FI_ENOMSG);
        /* A receive needs them, but may be null. */
        if (cases[i].count > 1 || (cases[i].count == 1 && !cases[i].pieces))
            CHECK_RET(fi_trecvmsg(pair.server.ep, &message, 0), -FI_EINVAL);
    }
    check_no_completion(pair.server.cq);
    CHECK_RET(fi_rx_size_left(pair.server.ep), MESSAGE_QUEUE);
    pair_close(&pair);
}

static struct fid_cntr *counter;

/* Counts the receives of the server. */
static void bind_counter(struct side *side)
{
    if (side->info->handle == NULL)
        return;
    counter = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &counter->fid, FI_RECV));
}

static void check_counted(uint64_t count)
{
    CHECK_INT(fi_cntr_read(counter), count);
    CHECK_INT(fi_cntr_readerr(counter), 0);
}

/* All of them have entries although no operation asks for one, and none is counted, but receives. */
static void uncounted_peeks(void)
{
    struct message_settings settings = tagged_settings;
    uint8_t got[3] = {0};
    struct pair pair;
    struct fid_ep *ep;

    settings.bind_flags = FI_SELECTIVE_COMPLETION;
    settings.prepare = bind_counter;
    messages_open(&pair, &settings);
    ep = pair.server.ep;
    for (unsigned i = 0; i < 6; i++)
        CHECK_OK(fi_tinject(pair.client.ep, "abc", i % 4, NO_ADDRESS, i));
    CHECK_INT(await_peek(&pair.server, 5, 0, 0, 1).len, 1);
    check_finds_nothing(&pair.server, 6, 0, 0, 1);
    check_finds_nothing(&pair.server, 6, 0, FI_CLAIM, 1);
    check_finds_nothing(&pair.server, 6, 0, FI_DISCARD, 1);
    CHECK_INT(await_peek(&pair.server, 1, 0, FI_DISCARD, 2).len, 1);
    CHECK_INT(await_peek(&pair.server, 2, 0, FI_CLAIM, 2).len, 2);
    CHECK_OK(post_trecvmsg(ep, NULL, 0, 2, 0, FI_CLAIM | FI_DISCARD, 2));
    (void)await_tagged(pair.server.cq, 2, TAG_RECEIVED, 2, 2);
    CHECK_INT(await_peek(&pair.server, 5, 0, FI_CLAIM | FI_DISCARD, 2).len, 1);
    check_counted(0);
    /* What has been claimed is received without an entry, and counted. */
    CHECK_INT(await_peek(&pair.server, 3, 0, FI_CLAIM, 3).len, 3);
    check_counted(0);
    CHECK_OK(post_trecvmsg(ep, got, 3, 3, 0, FI_CLAIM, 3));
    check_counted(1);
    check_no_completion(pair.server.cq);
    CHECK_BYTES(got, "abc", 3);
    CHECK_INT(await_peek(&pair.server, 0, 0, FI_CLAIM, 3).len, 0);
    CHECK_OK(post_trecvmsg(ep, NULL, 0, 0, 0, FI_CLAIM | FI_COMPLETION, 3));
    (void)await_tagged(pair.server.cq, 3, TAG_RECEIVED, 0, 0);
    check_counted(2);
    CHECK_INT(await_peek(&pair.server, 0, ANY_TAG, FI_DISCARD, 4).tag, 4);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    check_counted(2);
    check_no_completion(pair.server.cq);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    close_fid(&counter->fid);
    pair_close(&pair);
}

/* The queue of receives is full. */
static void peeks_take_no_place(void)
{
    enum { RECEIVES = 4 };
    struct message_settings settings = tagged_settings;
    uint8_t got[3], other[RECEIVES];
    struct pair pair;
    struct fid_ep *ep;

    settings.rx_size = RECEIVES;
    messages_open(&pair, &settings);
    ep = pair.server.ep;
    for (unsigned i = 0; i < RECEIVES; i++)
        post_trecv(ep, &other[i], 1, 100 + i, 0, 100 + i);
    check_tagged_receives(ep, -FI_EAGAIN);
    CHECK_RET(fi_rx_size_left(ep), 0);
    for (unsigned i = 0; i < 5; i++)
        CHECK_OK(fi_tinject(pair.client.ep, pattern(i, 3), 3, NO_ADDRESS, i));
    (void)await_peek(&pair.server, 4, 0, 0, 1);
    (void)await_peek(&pair.server, 0, 0, FI_DISCARD, 1);
    (void)await_peek(&pair.server, 1, 0, FI_CLAIM, 1);
    CHECK_OK(post_trecvmsg(ep, NULL, 0, 1, 0, FI_CLAIM | FI_DISCARD, 1));
    (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 3, 1);
    (void)await_peek(&pair.server, 2, 0, FI_CLAIM | FI_DISCARD, 1);
    check_finds_nothing(&pair.server, 2, 0, 0, 1);
    check_finds_nothing(&pair.server, 9, 0, FI_CLAIM, 1);
    CHECK_RET(fi_rx_size_left(ep), 0);
    /* A claim that receives takes one. It can be repeated until there is one. */
    (void)await_peek(&pair.server, 3, 0, FI_CLAIM, 2);
    (void)await_peek(&pair.server, 4, 0, FI_CLAIM, 3);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_RET(post_trecvmsg(ep, got, sizeof got, 3, 0, FI_CLAIM, 2), -FI_EAGAIN);
        CHECK_RET(post_trecvmsg(ep, got, sizeof got, 4, 0, FI_CLAIM, 3), -FI_EAGAIN);
        check_no_completion(pair.server.cq);
    }
    CHECK_OK(fi_cancel(&ep->fid, CONTEXT(102)));
    (void)await_failed(pair.server.cq, 102, TAG_RECEIVED, FI_ECANCELED);
    CHECK_OK(post_trecvmsg(ep, got, sizeof got, 3, 0, FI_CLAIM, 2));
    (void)await_tagged(pair.server.cq, 2, TAG_RECEIVED, 3, 3);
    CHECK_BYTES(got, pattern(3, 3), 3);
    CHECK_OK(post_trecvmsg(ep, got, sizeof got, 4, 0, FI_CLAIM, 3));
    (void)await_tagged(pair.server.cq, 3, TAG_RECEIVED, 3, 4);
    CHECK_BYTES(got, pattern(4, 3), 3);
    CHECK_RET(post_trecvmsg(ep, got, sizeof got, 4, 0, FI_CLAIM, 3), -FI_EINVAL);
    CHECK_RET(fi_rx_size_left(ep), 1);
    pair_close(&pair);
}

/* All three flags: the message is discarded, and nothing is claimed. */
static void claims_and_discards_at_once(void)
{
    struct fi_cq_tagged_entry entry;
    struct pair pair;
    uint8_t got[3];

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 2; i++)
        CHECK_OK(fi_tinjectdata(pair.client.ep, pattern(i, 3), 3, 10 + i, NO_ADDRESS, 5));
    entry = await_peek(&pair.server, 5, 0, FI_CLAIM | FI_DISCARD, 1);
    CHECK_INT(entry.flags, TAG_RECEIVED | FI_REMOTE_CQ_DATA);
    CHECK_INT(entry.len, 3);
    CHECK_INT(entry.data, 10);
    CHECK_RET(post_trecvmsg(pair.server.ep, got, sizeof got, 5, 0, FI_CLAIM, 1), -FI_EINVAL);
    CHECK_RET(post_trecvmsg(pair.server.ep, NULL, 0, 5, 0, FI_CLAIM | FI_DISCARD, 1), -FI_EINVAL);
    CHECK_INT(await_peek(&pair.server, 5, 0, 0, 2).data, 11);
    post_trecv(pair.server.ep, got, sizeof got, 5, 0, 3);
    CHECK_INT(await_tagged(pair.server.cq, 3, TAG_RECEIVED | FI_REMOTE_CQ_DATA, 3, 5).data, 11);
    CHECK_BYTES(got, pattern(1, 3), 3);
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    pair_close(&pair);
}

/* What has arrived is found, claimed and discarded after the end, before its event is read and after that. */
static void peeks_after_end(void)
{
    enum { LENGTH = 70000 };
    static uint8_t got[LENGTH];

    for (unsigned round = 0; round < 4; round++) {
        const bool is_closed = round % 2, is_read = round / 2;
        struct fi_eq_cm_entry event;
        struct pair pair;
        struct fid_ep *ep;
        uint32_t kind;

        note("%s, the event %s", is_closed ? "fi_close" : "fi_shutdown", is_read ? "is read" : "is not read");
        messages_open(&pair, &tagged_settings);
        ep = pair.client.ep;
        for (unsigned i = 0; i < 5; i++) {
            CHECK_OK(fi_tsenddata(pair.server.ep, pattern(i, LENGTH), LENGTH, NULL, i, NO_ADDRESS, i, CONTEXT(i)));
            (void)await_peek(&pair.client, i, 0, 0, 1);
            (void)await_tagged(pair.server.cq, i, TAG_SENT, 0, 0);
        }
        (void)await_peek(&pair.client, 0, 0, FI_CLAIM, 2);
        if (is_closed) {
            close_fid(&pair.server.ep->fid);
            pair.server.ep = NULL;
        } else {
            CHECK_OK(fi_shutdown(pair.server.ep, 0));
        }
        AWAIT(PATIENCE_MS, fi_eq_read(pair.client.eq, &kind, &event, sizeof event, FI_PEEK) != -FI_EAGAIN);
        if (is_read)
            (void)await_event(pair.client.eq, FI_SHUTDOWN);
        /* What was claimed before, and what is now. */
        CHECK_OK(post_trecvmsg(ep, got, LENGTH, 0, 0, FI_CLAIM, 2));
        CHECK_INT(await_tagged(pair.client.cq, 2, TAG_RECEIVED | FI_REMOTE_CQ_DATA, LENGTH, 0).data, 0);
        CHECK_BYTES(got, pattern(0, LENGTH), LENGTH);
        CHECK_INT(await_peek(&pair.client, 1, 0, 0, 3).data, 1);
        CHECK_INT(await_peek(&pair.client, 1, 0, FI_DISCARD, 3).len, LENGTH);
        check_finds_nothing(&pair.client, 1, 0, 0, 3);
        CHECK_INT(await_peek(&pair.client, 2, 0, FI_CLAIM, 4).data, 2);
        CHECK_OK(post_trecvmsg(ep, got, LENGTH, 2, 0, FI_CLAIM, 4));
        CHECK_INT(await_tagged(pair.client.cq, 4, TAG_RECEIVED | FI_REMOTE_CQ_DATA, LENGTH, 2).data, 2);
        CHECK_BYTES(got, pattern(2, LENGTH), LENGTH);
        CHECK_INT(await_peek(&pair.client, 3, 0, FI_CLAIM, 5).data, 3);
        CHECK_OK(post_trecvmsg(ep, NULL, 0, 3, 0, FI_CLAIM | FI_DISCARD, 5));
        (void)await_tagged(pair.client.cq, 5, TAG_RECEIVED | FI_REMOTE_CQ_DATA, LENGTH, 3);
        /* One is left to the end of the endpoint. */
        CHECK_INT(await_peek(&pair.client, 0, ANY_TAG, 0, 6).tag, 4);
        if (is_read)
            check_tagged_receives(ep, -FI_ENOTCONN);
        check_no_completion(pair.client.cq);
        pair_close(&pair);
    }
}

static const struct test tests[] = {
    TEST(failed_attempts, "receives, tagged or not, after an attempt that was rejected or failed: -FI_ENOTCONN"),
    TEST(data_of_truncated, "FI_ETRUNC has the message's data and FI_REMOTE_CQ_DATA"),
    TEST(tags_of_cancelled, "a receive that is cancelled, by a call or an end, has its own tag"),
    TEST(entry_of_nothing, "FI_ENOMSG has the tag that was asked for, and a text"),
    TEST(peeks_have_no_buffers, "a peek, and a claim that discards, ignores buffers"),
    TEST(uncounted_peeks, "they are not counted, and have entries without FI_COMPLETION"),
    TEST(peeks_take_no_place, "they take no place in a full queue; FI_CLAIM alone: -FI_EAGAIN, and it can be repeated"),
    TEST(claims_and_discards_at_once, "FI_PEEK, FI_CLAIM and FI_DISCARD together discard"),
    TEST(peeks_after_end, "what has arrived is peeked at, claimed and discarded after the end of the connection"),
};

const struct section message_tag_entries_section = SECTION("entries of tagged messages", tests);
