/* Sends with tags of `ofi_rxm` before libfabric 1.20, before which the endpoint puts the header of `ofi_rxm`. */
#include "rxm.h"

enum { MOST = 1 << 20, INJECT = MESSAGE_INJECT - RXM_HEADER, NO_ADDRESS = 0 };

#define DATA UINT64_C(0xfedcba9876543210)
#define TAG UINT64_C(0x0123456789abcdef)

static const struct message_settings tag_entries = {.cq = {.format = FI_CQ_FORMAT_TAGGED}};

/* struct rxm_pkt of a whole message: struct ofi_ctrl_hdr and struct ofi_op_hdr. */
static void make_header(uint8_t header[RXM_HEADER], int32_t number, uint64_t tag, const uint64_t *data, uint64_t length)
{
    const int64_t connection = number;
    const uint32_t flags = data ? (uint32_t)FI_REMOTE_CQ_DATA : 0;

    memset(header, 0, RXM_HEADER);
    header[0] = 4;
    memcpy(header + 8, &connection, 8);
    header[32] = 2;
    header[34] = 1;
    memcpy(header + 36, &flags, 4);
    memcpy(header + 40, &length, 8);
    if (data)
        memcpy(header + 48, data, 8);
    memcpy(header + 56, &tag, 8);
}

enum call { TSEND, TSENDV, TSENDMSG, TSENDMSG_DATA, TSENDDATA, TSENDMSG_INJECT, TINJECT, TINJECTDATA, CALLS };

static bool has_data(enum call call)
{
    return call == TSENDMSG_DATA || call == TSENDDATA || call == TINJECTDATA;
}

static bool is_reported(enum call call)
{
    return call != TINJECT && call != TINJECTDATA;
}

static ssize_t make_call(enum call call, struct fid_ep *ep, const struct iovec *pieces, size_t count, uint64_t tag,
                         uintptr_t context)
{
    const uint64_t flags = FI_COMPLETION | (call == TSENDMSG_DATA ? FI_REMOTE_CQ_DATA : 0) |
                           (call == TSENDMSG_INJECT ? FI_INJECT : 0);
    struct fi_msg_tagged message = {.msg_iov = pieces, .iov_count = count, .tag = tag, .context = CONTEXT(context),
                                    .data = DATA};

    switch (call) {
    case TSEND:
        return fi_tsend(ep, pieces->iov_base, pieces->iov_len, NULL, NO_ADDRESS, tag, CONTEXT(context));
    case TSENDV:
        return fi_tsendv(ep, pieces, NULL, count, NO_ADDRESS, tag, CONTEXT(context));
    case TSENDDATA:
        return fi_tsenddata(ep, pieces->iov_base, pieces->iov_len, NULL, DATA, NO_ADDRESS, tag, CONTEXT(context));
    case TINJECT:
        return fi_tinject(ep, pieces->iov_base, pieces->iov_len, NO_ADDRESS, tag);
    case TINJECTDATA:
        return fi_tinjectdata(ep, pieces->iov_base, pieces->iov_len, DATA, NO_ADDRESS, tag);
    default:
        return fi_tsendmsg(ep, &message, flags);
    }
}

static uint8_t head[RXM_HEADER], rest[MOST + 1], source[MOST];

/* Sends from one end to the other, and checks every byte. */
static void pass_one(struct side *from, struct side *to, int32_t number, enum call call, const struct iovec *pieces,
                     size_t count)
{
    uint8_t wanted[RXM_HEADER];
    size_t length = 0, at = 0;
    const uint64_t data = DATA;
    uint64_t tag = TAG + call;
    struct fi_cq_data_entry entry;

    for (size_t i = 0; i < count; i++)
        length += pieces[i].iov_len;
    note("call %u, %zu bytes in %zu pieces", call, length, count);
    memset(rest, 0xee, length + 1);
    rxm_gives(rest, length);
    post_recv(to->ep, head, RXM_HEADER, 1);
    CHECK_OK(make_call(call, from->ep, pieces, count, tag, 2));
    entry = await_done(to->cq, 1, RECEIVED);
    CHECK_INT(entry.len, RXM_HEADER + length);
    make_header(wanted, number, tag, has_data(call) ? &data : NULL, length);
    CHECK_BYTES(head, wanted, RXM_HEADER);
    for (size_t i = 0; i < count; at += pieces[i++].iov_len)
        if (pieces[i].iov_len > 0)
            CHECK_BYTES(rest + at, pieces[i].iov_base, pieces[i].iov_len);
    CHECK_INT(rest[length], 0xee);
    if (is_reported(call))
        (void)await_done(from->cq, 2, SENT);
    check_no_completion(from->cq);
}

static void header_bytes(void)
{
    static const size_t lengths[] = {0, 1, 63, 100, INJECT - 1, INJECT, INJECT + 1, MESSAGE_INJECT, 5000, 66000, MOST};
    struct pair pair;

    memcpy(source, pattern(3, MOST), MOST);
    rxm_open(&pair, &tag_entries);
    for (unsigned way = 0; way < 2; way++) {
        struct side *from = way ? &pair.server : &pair.client, *to = way ? &pair.client : &pair.server;

        for (enum call call = 0; call < CALLS; call++) {
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                struct iovec piece = {source, lengths[i]};

                if (call >= TSENDMSG_INJECT && lengths[i] > INJECT) {
                    note("call %u, %zu bytes", call, lengths[i]);
                    CHECK_RET(make_call(call, from->ep, &piece, 1, TAG, 9), -FI_EMSGSIZE);
                    continue;
                }
                pass_one(from, to, way ? SERVER_NUMBER : CLIENT_NUMBER, call, &piece, 1);
            }
        }
    }
    pair_close(&pair);
}

/* Messages in up to four pieces, of which the first is copied behind the header. */
static void pieces(void)
{
    static const size_t lengths[][MESSAGE_IOVS] = {
        {1, 2, 3, 4},       {0, 0, 0, 0},       {10, 3000, 0, 70000}, {100000, 1, 1, 1},        {0, 1, 5000, 0},
        {INJECT, 0, 0, 1},  {4096, 4096, 4096, 4096}, {1, 0, 0, MOST - 1}, {MOST - 3, 1, 1, 1},
    };
    struct iovec most[MESSAGE_IOVS + 1];
    struct pair pair;

    memcpy(source, pattern(5, MOST), MOST);
    rxm_open(&pair, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t count = 0; count <= MESSAGE_IOVS; count++) {
            struct iovec list[MESSAGE_IOVS];
            size_t at = 0;

            for (size_t j = 0; j < count; at += list[j++].iov_len)
                list[j] = (struct iovec){source + at, lengths[i][j]};
            pass_one(&pair.client, &pair.server, CLIENT_NUMBER, TSENDV, list, count);
            pass_one(&pair.server, &pair.client, SERVER_NUMBER, TSENDMSG_DATA, list, count);
        }
    }
    for (size_t i = 0; i <= MESSAGE_IOVS; i++)
        most[i] = (struct iovec){source, 1};
    CHECK_RET(fi_tsendv(pair.client.ep, most, NULL, MESSAGE_IOVS + 1, NO_ADDRESS, TAG, NULL),
              fi_sendv(pair.client.ep, most, NULL, MESSAGE_IOVS + 1, NO_ADDRESS, NULL));
    CHECK_RET(make_call(TSENDMSG, pair.client.ep, most, MESSAGE_IOVS + 1, TAG, 1), -FI_EINVAL);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

/* What is injected may change when the call returns; calls with FI_MORE and those that follow keep their order. */
static void rxm_injected(void)
{
    enum { COUNT = 100 };
    static uint8_t heads[COUNT][RXM_HEADER], payloads[COUNT][INJECT];
    uint8_t bytes[INJECT];
    struct pair pair;

    rxm_open(&pair, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        rxm_gives(payloads[i], INJECT);
        post_recv(pair.server.ep, heads[i], RXM_HEADER, i);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        struct iovec piece = {bytes, sizeof bytes};
        struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .tag = i, .context = CONTEXT(i)};

        memcpy(bytes, pattern(i, sizeof bytes), sizeof bytes);
        if (i % 2)
            CHECK_OK(fi_tinject(pair.client.ep, bytes, sizeof bytes, NO_ADDRESS, i));
        else
            CHECK_OK(fi_tsendmsg(pair.client.ep, &message, FI_INJECT | FI_MORE | FI_COMPLETION));
        memset(bytes, 0, sizeof bytes);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        uint8_t wanted[RXM_HEADER];

        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, MESSAGE_INJECT);
        make_header(wanted, CLIENT_NUMBER, i, NULL, sizeof bytes);
        CHECK_BYTES(heads[i], wanted, RXM_HEADER);
        CHECK_BYTES(payloads[i], pattern(i, sizeof bytes), sizeof bytes);
        if (i % 2 == 0)
            (void)await_done(pair.client.cq, i, SENT);
    }
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

/* Without the number there is no header. Nor is there a receive with a tag. */
static void without_numbers(void)
{
    /* Which byte of the request is changed, how long it is, and how long the reply is. */
    static const struct {
        int at;
        size_t request, reply;
        bool client_sends, server_sends;
    } cases[] = {
        {-1, 0, 0, false, false}, {-1, 23, 7, false, false}, {-1, 24, 8, true, true},   {0, 24, 8, true, false},
        {2, 24, 8, true, false},  {3, 24, 0, false, false},  {1, 24, 100, true, true},  {4, 24, 8, true, true},
        {15, 24, 8, true, true},  {-1, 100, 8, true, true},  {-1, 24, 0, false, true},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t data[MESSAGE_CM_DATA] = {0}, reply[MESSAGE_CM_DATA] = {5};
        struct pair pair;

        note("case %zu", i);
        rxm_request(data, SERVER_NUMBER);
        if (cases[i].at >= 0)
            data[cases[i].at] ^= 0x40;
        rxm_connect(&pair, NULL, data, cases[i].request, reply, cases[i].reply);
        for (unsigned which = 0; which < 2; which++) {
            struct side *from = which ? &pair.server : &pair.client, *to = which ? &pair.client : &pair.server;

            if (which ? cases[i].server_sends : cases[i].client_sends)
                pass_one(from, to, which ? SERVER_NUMBER : 5, TSEND, &(struct iovec){source, 100}, 1);
            else
                check_tagged_calls(from->ep, -FI_ENOSYS);
            check_tagged_receives(from->ep, -FI_ENOSYS);
            CHECK_RET(post_trecvmsg(from->ep, NULL, 0, 1, 0, FI_PEEK, 1), -FI_ENOSYS);
        }
        check_no_completion(pair.client.cq);
        check_no_completion(pair.server.cq);
        pair_close(&pair);
    }
}

/* The answers of these calls are those of calls without tags. */
static void refused(void)
{
    struct iovec piece = {source, 10};
    struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .tag = TAG};
    struct pair pair;
    struct fid_ep *ep;

    rxm_open(&pair, NULL);
    CHECK_RET(fi_tsendmsg(pair.client.ep, &message, 1ULL << 45), -FI_EBADFLAGS);
    CHECK_RET(fi_tsendmsg(pair.client.ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_tsend(pair.client.ep, NULL, 10, NULL, NO_ADDRESS, TAG, NULL),
              fi_send(pair.client.ep, NULL, 10, NULL, NO_ADDRESS, NULL));
    CHECK_OK(fi_endpoint(pair.client.domain, pair.client.info, &ep, NULL));
    CHECK_RET(fi_tsend(ep, source, 1, NULL, NO_ADDRESS, TAG, NULL), fi_send(ep, source, 1, NULL, NO_ADDRESS, NULL));
    CHECK_OK(fi_ep_bind(ep, &pair.client.eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &pair.client.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_enable(ep));
    CHECK_RET(fi_tsend(ep, source, 1, NULL, NO_ADDRESS, TAG, NULL), fi_send(ep, source, 1, NULL, NO_ADDRESS, NULL));
    close_fid(&ep->fid);
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    check_calls(pair.client.ep, -FI_ENOTCONN);
    check_tagged_calls(pair.client.ep, -FI_ENOTCONN);
    pair_close(&pair);
}

/* A queue that is full answers -FI_EAGAIN; all that it took arrives in its order. */
static void full_queue(void)
{
    enum { SIZE = 8, LENGTH = 10000, MESSAGES = 200 };
    const struct message_settings settings = {.tx_size = SIZE};
    uint8_t heads[MESSAGE_QUEUE][RXM_HEADER];
    unsigned sent = 0, done = 0, received = 0, refusals = 0;
    struct pair pair;

    memcpy(source, pattern(8, LENGTH), LENGTH);
    rxm_open(&pair, &settings);
    rxm_gives(rest, LENGTH);
    while (received < MESSAGES || done < MESSAGES) {
        struct fi_cq_data_entry entry;
        ssize_t answer = -FI_EAGAIN;

        while (sent < MESSAGES && (answer = fi_tsend(pair.client.ep, source, LENGTH - sent, NULL, NO_ADDRESS, sent,
                                                     CONTEXT(sent))) == 0) {
            post_recv(pair.server.ep, heads[sent % MESSAGE_QUEUE], RXM_HEADER, sent);
            sent++;
        }
        CHECK(sent == MESSAGES || answer == -FI_EAGAIN);
        refusals += answer == -FI_EAGAIN;
        CHECK_BETWEEN(sent - done, 0, SIZE);
        if (received < sent) {
            uint8_t wanted[RXM_HEADER];

            CHECK_INT(await_done(pair.server.cq, received, RECEIVED).len, RXM_HEADER + LENGTH - received);
            make_header(wanted, CLIENT_NUMBER, received, NULL, LENGTH - received);
            CHECK_BYTES(heads[received % MESSAGE_QUEUE], wanted, RXM_HEADER);
            received++;
        }
        while (fi_cq_read(pair.client.cq, &entry, 1) == 1)
            CHECK_INT((uintptr_t)entry.op_context, done++);
    }
    CHECK_AT_LEAST(refusals, 5);
    pair_close(&pair);
}

/* Headers, and what is copied behind them, are kept until they have left, and no longer. */
static void queued_headers(void)
{
    enum { COUNT = 20 };
    struct pair pair;
    size_t heap;

    memcpy(source, pattern(9, MOST), MOST);
    rxm_open(&pair, NULL);
    rxm_gives(rest, MOST);
    heap = heap_in_use();
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            const struct iovec list[MESSAGE_IOVS] = {{source, MOST - 30}, {source + MOST - 30, 10},
                                                     {source + MOST - 20, 10}, {source + MOST - 10, 10}};

            /* The first one is long, so that the others wait. */
            if (i % 2)
                CHECK_OK(make_call(TSENDV, pair.client.ep, list, MESSAGE_IOVS, i, i));
            else
                CHECK_OK(make_call(TSEND, pair.client.ep, &(struct iovec){source, MOST}, 1, i, i));
        }
        for (unsigned i = 0; i < COUNT; i++) {
            uint8_t wanted[RXM_HEADER];

            memset(rest, 0, MOST);
            post_recv(pair.server.ep, head, RXM_HEADER, i);
            CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, RXM_HEADER + MOST);
            make_header(wanted, CLIENT_NUMBER, i, NULL, MOST);
            CHECK_BYTES(head, wanted, RXM_HEADER);
            CHECK_BYTES(rest, source, MOST);
            (void)await_done(pair.client.cq, i, SENT);
        }
        /* Each odd one had a copy of MOST bytes. */
        CHECK_BETWEEN(heap_in_use(), 0, heap + 2 * MOST);
    }
    pair_close(&pair);
}

/* FI_DELIVERY_COMPLETE waits until the message is in its places. Without it that need not be. */
static void rxm_delivery_complete(void)
{
    static const size_t lengths[] = {0, 10, INJECT, INJECT + 1, 5000, 100000};
    struct pair pair;

    memcpy(source, pattern(4, 100000), 100000);
    rxm_open(&pair, NULL);
    rxm_gives(rest, MOST);
    for (unsigned i = 0; i < 2 * 6; i++) {
        struct iovec piece = {source, lengths[i / 2]};
        struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .tag = TAG, .context = CONTEXT(2)};
        const bool waits = i % 2;

        note("%zu bytes, waits %d", piece.iov_len, waits);
        CHECK_OK(fi_tsendmsg(pair.client.ep, &message, (waits ? FI_DELIVERY_COMPLETE : 0) | FI_COMPLETION));
        if (waits) {
            drive_for(10);
            check_no_completion(pair.client.cq);
        } else {
            (void)await_done(pair.client.cq, 2, SENT);
        }
        post_recv(pair.server.ep, head, RXM_HEADER, 1);
        CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, RXM_HEADER + piece.iov_len);
        if (waits)
            (void)await_done(pair.client.cq, 2, SENT);
        CHECK_BYTES(rest, source, piece.iov_len);
        check_no_completion(pair.client.cq);
    }
    pair_close(&pair);
}

static struct fid_cntr *counters[2];
static unsigned counted;

static void bind_counter(struct side *side)
{
    counters[counted] = message_counter(side, FI_WAIT_NONE);
    CHECK_OK(fi_ep_bind(side->ep, &counters[counted++]->fid, FI_SEND | FI_RECV));
}

/* Counters count each call once; statistics count the header as bytes of the message. */
static void counts(void)
{
    const struct message_settings settings = {.prepare = bind_counter};
    struct pair pair;

    rxm_open(&pair, &settings);
    for (enum call call = 0; call < CALLS; call++) {
        pass_one(&pair.client, &pair.server, CLIENT_NUMBER, call, &(struct iovec){source, 4000}, 1);
        AWAIT(PATIENCE_MS, fi_cntr_read(counters[0]) == call + 1);
        CHECK_INT(fi_cntr_read(counters[1]), call + 1);
    }
    pass_one(&pair.client, &pair.server, CLIENT_NUMBER, TSEND, &(struct iovec){source, 50000}, 1);
    CHECK_INT(fi_cntr_read(counters[0]), CALLS + 1);
    CHECK_INT(stats_of(pair.client.ep).bytes_sent, CALLS * 4064 + 50064);
    CHECK_INT(stats_of(pair.server.ep).bytes_received, CALLS * 4064 + 50064);
    close_fid(&pair.client.ep->fid);
    close_fid(&pair.server.ep->fid);
    pair.client.ep = pair.server.ep = NULL;
    close_fid(&counters[0]->fid);
    close_fid(&counters[1]->fid);
    pair_close(&pair);
}

/* On a queue that is bound selectively only calls that ask are reported. */
static void rxm_selective(void)
{
    const struct message_settings settings = {.bind_flags = FI_SELECTIVE_COMPLETION};
    struct pair pair;

    rxm_open(&pair, &settings);
    rxm_gives(rest, 100000);
    for (unsigned i = 0; i < 20; i++) {
        struct iovec piece = {source, i % 4 < 2 ? 10 : 100000};
        struct fi_msg_tagged message = {.msg_iov = &piece, .iov_count = 1, .tag = TAG, .context = CONTEXT(i)};
        struct fi_msg receive = {.msg_iov = &(struct iovec){head, RXM_HEADER}, .iov_count = 1, .context = CONTEXT(1)};

        CHECK_OK(fi_recvmsg(pair.server.ep, &receive, FI_COMPLETION));
        CHECK_OK(fi_tsendmsg(pair.client.ep, &message, i % 2 ? FI_COMPLETION : 0));
        CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, RXM_HEADER + piece.iov_len);
        if (i % 2)
            (void)await_done(pair.client.cq, i, SENT);
        drive_for(2);
        check_no_completion(pair.client.cq);
    }
    pair_close(&pair);
}

/* Sends that are on the way when the endpoint is closed, or the peer, end once; their memory is free. None fits into the
 * sockets' buffers. */
static void closed_with_sends(void)
{
    enum { COUNT = 10 };
    const size_t length = 16 * PATTERN_MAX;

    for (unsigned peer_closes = 0; peer_closes < 2; peer_closes++) {
        uint8_t *sent = map_pages(length);
        struct pair pair;
        unsigned done = 0;

        note("by the peer: %u", peer_closes);
        rxm_open(&pair, NULL);
        for (unsigned i = 0; i < COUNT; i++) {
            struct iovec list[MESSAGE_IOVS] = {{sent, 100}, {sent, length}, {sent, 0}, {sent, i}};

            CHECK_OK(fi_tsendv(pair.client.ep, list, NULL, i % 2 ? MESSAGE_IOVS : 2, NO_ADDRESS, TAG, CONTEXT(i)));
        }
        drive_for(5);
        if (peer_closes) {
            close_fid(&pair.server.ep->fid);
            pair.server.ep = NULL;
            (void)await_event(pair.client.eq, FI_SHUTDOWN);
        } else {
            close_fid(&pair.client.ep->fid);
            pair.client.ep = NULL;
            unmap_pages(sent, length);
        }
        while (done < COUNT) {
            struct ending ending;

            AWAIT(PATIENCE_MS, next_ending(pair.client.cq, &ending));
            CHECK_INT(ending.context, done++);
            CHECK_INT(ending.flags, SENT);
            CHECK_INT(ending.err, peer_closes ? FI_ECONNRESET : FI_ECANCELED);
        }
        drive_for(10);
        check_no_completion(pair.client.cq);
        pair_close(&pair);
        if (peer_closes)
            unmap_pages(sent, length);
    }
}

static const struct test tests[] = {
    TEST(header_bytes, "each call that sends with a tag, both ways: the header of ofi_rxm, and the message"),
    TEST(pieces, "messages in up to four pieces, also empty ones"),
    TEST(rxm_injected, "what is injected may change at once"),
    TEST(without_numbers, "without the number from the connection data, and for receives with tags: -FI_ENOSYS"),
    TEST(refused, "bad calls and bad times are answered as those without tags"),
    TEST(full_queue, "a full queue answers -FI_EAGAIN, and everything arrives in order"),
    TEST(queued_headers, "headers of messages that wait are kept until they have left, and no longer"),
    TEST(rxm_delivery_complete, "FI_DELIVERY_COMPLETE waits until the message is in its places"),
    TEST(counts, "counters and statistics of sends with tags"),
    TEST(rxm_selective, "only calls that ask are reported on a queue that is bound selectively"),
    TEST(closed_with_sends, "sends on the way when either side closes end once"),
};

const struct section message_rxm_tags_section = SECTION("tags of ofi_rxm", tests);
