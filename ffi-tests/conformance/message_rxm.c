/* Receives of `ofi_rxm` before libfabric 1.20, to which a function of its adds memory for the payload. */
#include "rxm.h"

#include <stdlib.h>

enum { MEMORY = 1 << 20, GAP = 16, EMPTY = 0xee };

/* ---- memory, and what it is to hold ------------------------------------------------------- */

static uint8_t got[MEMORY], wanted[MEMORY];
static size_t used;

static void forget_memory(void)
{
    used = GAP;
    memset(got, EMPTY, MEMORY);
    memset(wanted, EMPTY, MEMORY);
}

/* Memory that nothing else uses, with a gap on both sides. */
static struct iovec place(size_t length)
{
    struct iovec piece = {got + used, length};

    used += length + GAP;
    CHECK(used <= MEMORY);
    return piece;
}

/* Expects a message in these pieces, as much as there is room for. Returns the room. */
static size_t expect(const struct iovec *pieces, size_t count, const uint8_t *message, size_t length)
{
    size_t room = 0;

    for (size_t i = 0; i < count; room += pieces[i++].iov_len)
        if (pieces[i].iov_len > 0 && length > room)
            memcpy(wanted + ((uint8_t *)pieces[i].iov_base - got), message + room,
                   length - room < pieces[i].iov_len ? length - room : pieces[i].iov_len);
    return room;
}

/* A receive for a header has been posted there. */
static void expect_header(const struct iovec *header)
{
    uint8_t *at = wanted + ((uint8_t *)header->iov_base - got);

    memset(at, 0, RXM_HEADER);
    at[0] = 4;
    at[1] = 6;
    at[32] = 2;
}

/* ---- what the function gives -------------------------------------------------------------- */

struct shape {
    size_t count, rooms[RXM_PIECES];
};

/* Takes memory for a header, and for what the function is to give: of four pieces the last is not used. Returns how
 * many are used, with the header. */
static size_t give(const struct shape *shape, struct iovec all[1 + RXM_PIECES])
{
    all[0] = place(RXM_HEADER);
    for (size_t i = 0; i < shape->count; i++) {
        all[1 + i] = place(shape->rooms[i]);
        /* An empty piece may be nowhere. */
        if (shape->rooms[i] == 0 && i % 2)
            all[1 + i].iov_base = NULL;
        rxm.pieces[i] = all[1 + i];
    }
    rxm.count = shape->count;
    rxm.header = all[0].iov_base;
    if (rxm.answer < 0)
        return 1;
    return shape->count < RXM_PIECES ? 1 + shape->count : RXM_PIECES;
}

/* Posts a receive by each of the calls in turn, and checks that it is asked about once. */
static void post_asked(struct fid_ep *ep, const struct iovec *header, uintptr_t context)
{
    struct fi_msg message = {.msg_iov = header, .iov_count = 1, .context = CONTEXT(context)};
    unsigned asked = rxm.asked;

    rxm.header = header->iov_base;
    if (asked % 3 == 0)
        post_recv(ep, header->iov_base, header->iov_len, context);
    else if (asked % 3 == 1)
        CHECK_OK(fi_recvv(ep, header, NULL, 1, FI_ADDR_UNSPEC, CONTEXT(context)));
    else
        CHECK_OK(fi_recvmsg(ep, &message, FI_COMPLETION));
    CHECK_INT(rxm.asked, asked + 1);
    CHECK_INT(rxm.receive, context);
    rxm.header = NULL;
    expect_header(header);
    CHECK_BYTES(got, wanted, used);
}

/* A message for the receive 1, whose memory these pieces are. */
static void pass_one(struct fid_ep *from, struct fid_cq *sends, struct fid_cq *receives, size_t length,
                     const struct iovec *pieces, size_t count)
{
    const uint8_t *message = pattern(length, length);
    size_t room = expect(pieces, count, message, length);
    unsigned asked = rxm.asked;

    if (length % 2)
        CHECK_OK(fi_senddata(from, message, length, NULL, 1000 + length, FI_ADDR_UNSPEC, CONTEXT(2)));
    else
        post_send(from, message, length, 2);
    if (length > room) {
        struct fi_cq_err_entry error = await_failed(receives, 1, RECEIVED, FI_ETRUNC);

        CHECK_INT(error.len, room);
        CHECK_INT(error.olen, length - room);
    } else {
        struct fi_cq_data_entry entry = await_done(receives, 1, RECEIVED | (length % 2 ? FI_REMOTE_CQ_DATA : 0));

        CHECK_INT(entry.len, length);
        CHECK_INT(entry.data, length % 2 ? 1000 + length : 0);
    }
    CHECK_BYTES(got, wanted, used);
    (void)await_done(sends, 2, SENT);
    check_no_completion(receives);
    CHECK_INT(rxm.asked, asked);
    forget_memory();
}

static const struct shape shapes[] = {
    {0, {0}},          {1, {5000}},          {1, {16320}},         {2, {70000, 230000}},  {3, {1, 4000, 12000}},
    {3, {100, 1, 63}}, {4, {64, 128, 1, 9}}, {3, {0, 500, 0}},     {4, {10, 0, 20, 300}}, {2, {0, 0}},
    {3, {0, 0, 7000}}, {4, {0, 0, 0, 7000}},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Messages of all lengths around the edges of each shape. */
static void place_all(struct fid_ep *from, struct fid_cq *sends, struct fid_ep *to, struct fid_cq *receives)
{
    static const size_t lengths[] = {0, 1, 63, 64, 65, 200, 5000, 9000};

    forget_memory();
    for (size_t i = 0; i < SHAPES; i++) {
        for (size_t j = 0; j < 8 + 4; j++) {
            struct iovec all[1 + RXM_PIECES];
            size_t count = give(&shapes[i], all), room = expect(all, count, NULL, 0);
            /* The room, one less, one more, and much more. */
            size_t length = j < 8 ? lengths[j] : j < 11 ? room + j - 9 : room + 100000;

            note("shape %zu, %zu bytes of %zu", i, length, room);
            post_asked(to, all, 1);
            pass_one(from, sends, receives, length, all, count);
        }
    }
}

static void lengths_at(const char *crc)
{
    struct pair pair;

    CHECK_SYS(setenv("FI_RSTREAM_IWARP_CRC", crc, 1));
    rxm_open(&pair, NULL);
    place_all(pair.client.ep, pair.client.cq, pair.server.ep, pair.server.cq);
    place_all(pair.server.ep, pair.server.cq, pair.client.ep, pair.client.cq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

static void rxm_lengths(void)
{
    lengths_at("0");
}

static void rxm_lengths_with_crc(void)
{
    lengths_at("1");
}

/* A function that fails gives no places, whatever it has stored. */
static void function_fails(void)
{
    struct pair pair;

    rxm_open(&pair, NULL);
    rxm.answer = -FI_ENOMEM;
    place_all(pair.client.ep, pair.client.cq, pair.server.ep, pair.server.cq);
    pair_close(&pair);
}

/* A listener whose connections share receives, and two clients. */
static struct side listener, clients[2];
static struct fid_ep *shared, *eps[2];

/* The function is given before the context is opened, or between the endpoints. */
static void open_shared(bool is_late)
{
    message_listen(&listener, NULL);
    if (!is_late)
        rxm_domain(&listener);
    CHECK_OK(fi_srx_context(listener.domain, NULL, &shared, NULL));
    message_queue(&listener, NULL);
    eps[0] = message_shared(&listener, &clients[0], shared, NULL);
    if (is_late)
        rxm_domain(&listener);
    eps[1] = message_shared(&listener, &clients[1], shared, NULL);
}

static void close_shared(void)
{
    for (unsigned i = 0; i < 2; i++) {
        close_fid(&eps[i]->fid);
        side_close(&clients[i]);
    }
    close_fid(&shared->fid);
    side_close(&listener);
}

static void rxm_shared(void)
{
    open_shared(false);
    for (unsigned i = 0; i < 2; i++)
        place_all(clients[i].ep, clients[i].cq, shared, listener.cq);
    /* Both take the next receive in turn, and each message finds its own memory. */
    for (unsigned i = 0; i < 100; i++) {
        struct iovec all[2][1 + RXM_PIECES];
        size_t counts[2];

        note("turn %u", i);
        for (unsigned j = 0; j < 2; j++) {
            counts[j] = give(&shapes[(i + j) % SHAPES], all[j]);
            post_asked(shared, all[j], 1 + j);
        }
        for (unsigned j = 0; j < 2; j++) {
            size_t room = expect(all[j], counts[j], NULL, 0);

            post_send(clients[(i + j) % 2].ep, pattern(i, room), room, 3 + j);
            CHECK_INT(await_done(listener.cq, 1 + j, RECEIVED).len, room);
            (void)expect(all[j], counts[j], pattern(i, room), room);
            CHECK_BYTES(got, wanted, used);
        }
        (void)await_done(clients[i % 2].cq, 3, SENT);
        (void)await_done(clients[!(i % 2)].cq, 4, SENT);
        forget_memory();
    }
    close_shared();
}

/* Many receives at once, and many messages. What a full queue refuses is not asked about. */
static void many_at_once(void)
{
    enum { COUNT = 50, ROUNDS = 20 };
    const struct message_settings settings = {.rx_size = COUNT};
    struct pair pair;

    rxm_open(&pair, &settings);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct iovec all[COUNT][1 + RXM_PIECES];
        size_t counts[COUNT], lengths[COUNT];
        unsigned asked;

        note("round %u", round);
        forget_memory();
        for (unsigned i = 0; i < COUNT; i++) {
            counts[i] = give(&(struct shape){3, {i, round * 50, 1 + i * 7}}, all[i]);
            lengths[i] = i % 3 ? expect(all[i], counts[i], NULL, 0) : i;
            post_asked(pair.server.ep, all[i], i);
        }
        asked = rxm.asked;
        CHECK_RET(fi_recv(pair.server.ep, place(RXM_HEADER).iov_base, RXM_HEADER, NULL, 0, NULL), -FI_EAGAIN);
        CHECK_INT(rxm.asked, asked);
        for (unsigned i = 0; i < COUNT; i++)
            post_send(pair.client.ep, pattern(i, lengths[i]), lengths[i], i);
        for (unsigned i = 0; i < COUNT; i++) {
            CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, lengths[i]);
            (void)await_done(pair.client.cq, i, SENT);
            (void)expect(all[i], counts[i], pattern(i, lengths[i]), lengths[i]);
        }
        CHECK_BYTES(got, wanted, used);
        CHECK_INT(rxm.asked, asked);
    }
    pair_close(&pair);
}

/* ---- what is not asked about -------------------------------------------------------------- */

/* Posts a receive of two pieces, and checks that the message fills these only. */
static void pass_unasked(struct fid_ep *from, struct fid_cq *sends, struct fid_ep *to, struct fid_cq *receives,
                         size_t first, size_t second, size_t count)
{
    struct iovec list[2];
    unsigned asked = rxm.asked;

    note("%zu pieces of %zu and %zu bytes", count, first, second);
    forget_memory();
    list[0] = place(first);
    list[1] = place(second);
    if (count == 1)
        post_recv(to, list[0].iov_base, first, 1);
    else
        CHECK_OK(fi_recvv(to, list, NULL, count, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_INT(rxm.asked, asked);
    CHECK_BYTES(got, wanted, used);
    pass_one(from, sends, receives, (count > 0 ? first : 0) + (count > 1 ? second : 0) + 1, list, count);
    CHECK_INT(rxm.asked, asked);
}

static const size_t others[][3] = {
    {63, 0, 1}, {65, 0, 1}, {128, 0, 1}, {0, 0, 1}, {32, 32, 2}, {64, 64, 2}, {0, 0, 0},
};

enum { OTHERS = sizeof others / sizeof *others };

static void other_shapes(void)
{
    struct pair pair;

    rxm_gives(got + MEMORY / 2, 1000);
    rxm_open(&pair, NULL);
    for (size_t i = 0; i < OTHERS; i++)
        pass_unasked(pair.client.ep, pair.client.cq, pair.server.ep, pair.server.cq, others[i][0], others[i][1],
                     others[i][2]);
    pair_close(&pair);
    open_shared(false);
    for (size_t i = 0; i < OTHERS; i++)
        pass_unasked(clients[0].ep, clients[0].cq, shared, listener.cq, others[i][0], others[i][1], others[i][2]);
    close_shared();
}

/* Endpoints and shared receive contexts that are opened before, and endpoints with tags. */
static void others_unchanged(void)
{
    struct pair pair;

    rxm_gives(got + MEMORY / 2, 1000);
    messages_open(&pair, NULL);
    rxm_domain(&pair.client);
    rxm_domain(&pair.server);
    pass_unasked(pair.client.ep, pair.client.cq, pair.server.ep, pair.server.cq, 64, 0, 1);
    pass_unasked(pair.server.ep, pair.server.cq, pair.client.ep, pair.client.cq, 64, 0, 1);
    check_tagged_calls(pair.client.ep, -FI_ENOSYS);
    check_tagged_calls(pair.server.ep, -FI_ENOSYS);
    check_tagged_receives(pair.server.ep, -FI_ENOSYS);
    pair_close(&pair);
    note("a context opened before, with endpoints opened before and after");
    open_shared(true);
    for (unsigned i = 0; i < 2; i++)
        pass_unasked(clients[i].ep, clients[i].cq, shared, listener.cq, 64, 0, 1);
    close_shared();
    note("endpoints with tags");
    rxm_connect(&pair, &tagged_settings, NULL, 0, NULL, 0);
    for (unsigned i = 0; i < 4; i++) {
        forget_memory();
        post_trecv(pair.server.ep, place(64).iov_base, 64, 7, 0, 1);
        post_recv(pair.server.ep, place(64).iov_base, 64, 2);
        CHECK_BYTES(got, wanted, used);
        post_tsend(pair.client.ep, pattern(1, 64), 64, 7, 3);
        post_send(pair.client.ep, pattern(2, 64), 64, 4);
        (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 64, 7);
        CHECK_INT(await_done(pair.server.cq, 2, RECEIVED).len, 64);
        CHECK_BYTES(got + GAP, pattern(1, 64), 64);
        (void)await_tagged(pair.client.cq, 3, TAG_SENT, 0, 0);
        (void)await_done(pair.client.cq, 4, SENT);
    }
    CHECK_INT(rxm.asked, 0);
    pair_close(&pair);
}

/* ---- the end of receives ------------------------------------------------------------------ */

static void rxm_cancelled(void)
{
    struct iovec all[3][1 + RXM_PIECES];
    struct pair pair;
    size_t counts[3];
    unsigned asked;

    rxm_open(&pair, NULL);
    for (unsigned round = 0; round < 3; round++) {
        note("the receive %u", round);
        forget_memory();
        for (unsigned i = 0; i < 3; i++) {
            counts[i] = give(&(struct shape){2, {1000, 500}}, all[i]);
            post_asked(pair.server.ep, all[i], i);
        }
        asked = rxm.asked;
        CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(round)));
        (void)await_failed(pair.server.cq, round, RECEIVED, FI_ECANCELED);
        CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(round)), -FI_ENOENT);
        for (unsigned i = 0; i < 3; i++) {
            if (i == round)
                continue;
            post_send(pair.client.ep, pattern(i, 1500), 1500, 5);
            CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, 1500);
            (void)await_done(pair.client.cq, 5, SENT);
            (void)expect(all[i], counts[i], pattern(i, 1500), 1500);
        }
        check_no_completion(pair.server.cq);
        CHECK_BYTES(got, wanted, used);
        CHECK_INT(rxm.asked, asked);
    }
    pair_close(&pair);
}

/* One of a shared context is not reported, and the next one takes the message. One connection ends, the other lives. */
static void rxm_shared_cancelled(void)
{
    struct iovec all[3][1 + RXM_PIECES];
    size_t count = 0;

    open_shared(false);
    forget_memory();
    for (unsigned i = 0; i < 3; i++) {
        count = give(&(struct shape){2, {1000, 500}}, all[i]);
        post_asked(shared, all[i], i);
    }
    CHECK_OK(fi_cancel(&shared->fid, CONTEXT(0)));
    CHECK_RET(fi_cancel(&shared->fid, CONTEXT(0)), -FI_ENOENT);
    for (unsigned i = 0; i < 2; i++) {
        post_send(clients[i].ep, pattern(i, 1500), 1500, 5);
        CHECK_INT(await_done(listener.cq, 1 + i, RECEIVED).len, 1500);
        (void)await_done(clients[i].cq, 5, SENT);
        (void)expect(all[1 + i], count, pattern(i, 1500), 1500);
        if (i == 0) {
            close_fid(&clients[0].ep->fid);
            clients[0].ep = NULL;
            (void)await_event(listener.eq, FI_SHUTDOWN);
        }
    }
    check_no_completion(listener.cq);
    CHECK_BYTES(got, wanted, used);
    CHECK_INT(rxm.asked, 3);
    close_shared();
}

/* Receives that are posted when either side closes, the first one half filled, end once. Their memory is free then: an
 * access crashes. */
static void rxm_closed(void)
{
    enum { COUNT = 10, LENGTH = 32 << 20 };

    for (unsigned how = 0; how < 4; how++) {
        const bool peer_closes = how % 2, is_filling = how / 2;
        uint8_t *memory = map_pages(COUNT * RXM_HEADER), *payload = map_pages(LENGTH), *message = map_pages(LENGTH);
        struct ending ending;
        struct pair pair;

        note("by the peer %d, half filled %d", peer_closes, is_filling);
        rxm.header = NULL;
        rxm_open(&pair, NULL);
        for (unsigned i = 0; i < COUNT; i++) {
            rxm_gives(payload, LENGTH - RXM_HEADER);
            post_recv(pair.server.ep, memory + i * RXM_HEADER, RXM_HEADER, i);
        }
        memset(message, 1, LENGTH);
        if (is_filling) {
            post_send(pair.client.ep, message, LENGTH, 20);
            AWAIT(PATIENCE_MS, payload[0] == 1);
        }
        if (peer_closes) {
            close_fid(&pair.client.ep->fid);
            pair.client.ep = NULL;
        } else {
            close_fid(&pair.server.ep->fid);
            pair.server.ep = NULL;
            unmap_pages(payload, LENGTH);
            unmap_pages(memory, COUNT * RXM_HEADER);
            (void)await_event(pair.client.eq, FI_SHUTDOWN);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            AWAIT(PATIENCE_MS, next_ending(pair.server.cq, &ending));
            CHECK_INT(ending.context, i);
            CHECK_INT(ending.flags, RECEIVED);
            CHECK_INT(ending.err, FI_ECANCELED);
        }
        if (peer_closes) {
            (void)await_event(pair.server.eq, FI_SHUTDOWN);
            unmap_pages(payload, LENGTH);
            unmap_pages(memory, COUNT * RXM_HEADER);
        }
        drive_for(20);
        check_no_completion(pair.server.cq);
        CHECK_INT(rxm.asked, (how + 1) * COUNT);
        pair_close(&pair);
        unmap_pages(message, LENGTH);
    }
}

/* ---- fi_set_ops --------------------------------------------------------------------------- */

static ssize_t no_places(struct rxm_entry *entry, struct iovec *pieces, size_t *count)
{
    (void)pieces;
    (void)count;
    fail_at(__FILE__, __LINE__, "asked for receive %p", entry->op_context);
}

static void set_ops_answers(void)
{
    struct rxm_table table = {sizeof table, no_places};
    struct fid *domain;
    struct pair pair;

    messages_open(&pair, NULL);
    domain = &pair.client.domain->fid;
    CHECK_RET(fi_set_ops(domain, RXM_NAME, 0, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_set_ops(domain, NULL, 0, &table, NULL), -FI_EINVAL);
    CHECK_RET(fi_set_ops(domain, "ofix_dynamic_rbuf_v1", 0, &table, NULL), -FI_ENOSYS);
    CHECK_RET(fi_set_ops(domain, "ofix_dynamic_rbuf_v22", 0, &table, NULL), -FI_ENOSYS);
    CHECK_RET(fi_set_ops(domain, "", 0, &table, NULL), -FI_ENOSYS);
    CHECK_RET(fi_set_ops(&pair.client.ep->fid, RXM_NAME, 0, &table, NULL), -FI_ENOSYS);
    CHECK_RET(fi_set_ops(&pair.client.cq->fid, RXM_NAME, 0, &table, NULL), -FI_ENOSYS);
    for (size_t size = 0; size < 4 * sizeof table; size += sizeof(size_t)) {
        table.size = size;
        if (size != sizeof table)
            CHECK_RET(fi_set_ops(domain, RXM_NAME, 0, &table, NULL), -FI_ENOSYS);
    }
    table = (struct rxm_table){sizeof table, NULL};
    CHECK_RET(fi_set_ops(domain, RXM_NAME, 0, &table, NULL), -FI_EINVAL);
    /* Nothing of that has changed the domain. */
    close_fid(&pair.client.ep->fid);
    message_endpoint(&pair.client, NULL);
    CHECK_OK(fi_enable(pair.client.ep));
    post_recv(pair.client.ep, got, RXM_HEADER, 1);
    check_tagged_calls(pair.client.ep, -FI_ENOSYS);
    CHECK_INT(got[0], 0);
    /* The function that is given last is asked. */
    table.places = no_places;
    CHECK_OK(fi_set_ops(domain, RXM_NAME, 0, &table, NULL));
    rxm_domain(&pair.client);
    close_fid(&pair.client.ep->fid);
    message_endpoint(&pair.client, NULL);
    CHECK_OK(fi_enable(pair.client.ep));
    post_recv(pair.client.ep, got, RXM_HEADER, 1);
    CHECK_INT(rxm.asked, 1);
    pair_close(&pair);
}

/* With this parameter `ofi_rxm` sends what has no room. */
static void eager_limit(void)
{
    struct rxm_table table = {sizeof table, no_places};
    struct side listener;

    CHECK_SYS(setenv("FI_OFI_RXM_EAGER_LIMIT", "1024", 1));
    message_listen(&listener, NULL);
    CHECK_RET(fi_set_ops(&listener.domain->fid, RXM_NAME, 0, &table, NULL), -FI_ENOSYS);
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(set_ops_answers, "fi_set_ops on a domain: the answers for this name and table, and others"),
    TEST(eager_limit, "with FI_OFI_RXM_EAGER_LIMIT set, -FI_ENOSYS"),
    TEST(rxm_lengths, "each receive for a header is asked about once, and messages of all lengths fill its pieces"),
    TEST(rxm_lengths_with_crc, "the same with CRCs"),
    TEST(function_fails, "a function that fails gives no places"),
    TEST(rxm_shared, "the same with the receives of a shared context of two connections"),
    TEST(many_at_once, "many receives and messages at once; a full queue does not ask"),
    TEST(other_shapes, "receives of other lengths or pieces are posted as they are"),
    TEST(others_unchanged, "what is opened before, and endpoints with tags, are unchanged"),
    TEST(rxm_cancelled, "fi_cancel of such a receive: it ends once, and nothing is written there"),
    TEST(rxm_shared_cancelled, "fi_cancel of one of a shared context; the others live while a connection ends"),
    TEST(rxm_closed, "such receives end once when either side closes, also half filled, and nothing is written there"),
};

const struct section message_rxm_section = SECTION("ofi_rxm", tests);
