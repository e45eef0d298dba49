/* Contract, section Message endpoints: tagged messages, and which receive takes which message. */
#include "tags.h"

#define NO_ADDRESS FI_ADDR_UNSPEC

/* ---- what is offered ---------------------------------------------------------------------- */

#define PRIMARY (FI_MSG | FI_RMA | FI_TAGGED)

static void tagged_infos(void)
{
    const uint64_t asked[] = {FI_TAGGED, FI_MSG | FI_TAGGED, FI_RMA | FI_TAGGED, PRIMARY,
                              0, FI_MSG, FI_RMA, FI_MSG | FI_RMA};

    for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct fi_info *hints = message_hints(NULL), *list;

        note("caps 0x%llx", (unsigned long long)asked[i]);
        hints->caps = asked[i];
        list = find(IPV4, "7471", 0, hints);
        for (struct fi_info *info = list; info; info = info->next) {
            /* Those that are asked for. Who asks for none has those of messages and of memory. */
            uint64_t wanted = asked[i] ? asked[i] : FI_MSG | FI_RMA;

            CHECK_INT(info->caps & PRIMARY, wanted);
            CHECK_INT(info->tx_attr->caps & PRIMARY, wanted);
            CHECK_INT(info->rx_attr->caps & PRIMARY, wanted);
            if (wanted & FI_TAGGED) {
                CHECK_INT(info->caps & (FI_SEND | FI_RECV), FI_SEND | FI_RECV);
                CHECK_INT(info->tx_attr->caps & FI_SEND, FI_SEND);
                CHECK_INT(info->rx_attr->caps & FI_RECV, FI_RECV);
            }
        }
        fi_freeinfo(list);
        fi_freeinfo(hints);
    }
}

static void tagged_info_answers_itself(void)
{
    struct fi_info *hints = message_hints(&tagged_settings), *list = find(NULL, NULL, 0, hints);

    for (struct fi_info *one = list; one; one = one->next) {
        struct fi_info *again = NULL;

        CHECK_OK(fi_getinfo(TEST_API, NULL, NULL, 0, one, &again));
        CHECK_INT(again->caps, one->caps);
        CHECK_INT(again->tx_attr->caps, one->tx_attr->caps);
        CHECK_INT(again->rx_attr->caps, one->rx_attr->caps);
        CHECK(strcmp(again->domain_attr->name, one->domain_attr->name) == 0);
        fi_freeinfo(again);
    }
    fi_freeinfo(list);
    fi_freeinfo(hints);
}

static void tag_format(void)
{
    const uint64_t every = 0xaaaaaaaaaaaaaaaa, formats[] = {0, every, UINT64_MAX, 0x1234, 1};
    const uint64_t caps[] = {FI_TAGGED, FI_MSG | FI_TAGGED, PRIMARY, FI_MSG, FI_RMA, 0};

    for (unsigned i = 0; i < 6; i++) {
        for (unsigned format = 0; format < 5; format++) {
            struct fi_info *hints = message_hints(NULL), *list;

            note("caps 0x%llx, format 0x%llx", (unsigned long long)caps[i], (unsigned long long)formats[format]);
            hints->caps = caps[i];
            hints->ep_attr->mem_tag_format = formats[format];
            list = find(IPV4, "7471", 0, hints);
            for (struct fi_info *info = list; info; info = info->next) {
                uint64_t wanted = formats[format] ? formats[format] : every;

                CHECK_INT(info->ep_attr->mem_tag_format, caps[i] & FI_TAGGED ? wanted : 0);
            }
            fi_freeinfo(list);
            fi_freeinfo(hints);
        }
    }
}

/* Hints of which one part alone asks for tags match nothing. */
static void tags_of_parts(void)
{
    const uint64_t caps[] = {FI_MSG, FI_RMA, FI_MSG | FI_RMA, 0, FI_TAGGED, FI_MSG | FI_TAGGED, PRIMARY};

    for (unsigned i = 0; i < 3 * sizeof caps / sizeof *caps; i++) {
        const unsigned part = 1 + i % 3;
        struct fi_info *hints = message_hints(NULL), *info = NULL;

        note("caps 0x%llx, part %u", (unsigned long long)caps[i / 3], part);
        hints->caps = caps[i / 3];
        if (part & 1)
            hints->tx_attr->caps = FI_TAGGED;
        if (part & 2)
            hints->rx_attr->caps = FI_TAGGED;
        CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &info), caps[i / 3] & FI_TAGGED ? 0 : -FI_ENODATA);
        fi_freeinfo(hints);
        if (info)
            fi_freeinfo(info);
    }
}

/* Entries of tagged receives are in the order of the messages, but those who ask for FI_ORDER_STRICT get it. */
static void strict_order_of_tags(void)
{
    /* Later headers call it deprecated. */
    const uint64_t strict = 0x1ff;
    struct fi_info *hints = message_hints(&tagged_settings), *info = NULL;

    hints->tx_attr->comp_order = strict;
    hints->rx_attr->comp_order = strict;
    CHECK_OK(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &info));
    CHECK_INT(info->caps & FI_TAGGED, FI_TAGGED);
    CHECK_INT(info->tx_attr->comp_order, strict);
    CHECK_INT(info->rx_attr->comp_order, strict);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* The number of infos of RDMA devices for message endpoints with these capabilities. */
static unsigned device_infos(uint64_t caps)
{
    struct fi_info *hints = stream_hints(), *list = NULL;
    unsigned count = 0;
    int answer;

    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = caps;
    hints->mode = ~0ULL;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    answer = fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &list);
    CHECK(answer == 0 || (answer == -FI_ENODATA && on_rdma_device()));
    for (struct fi_info *info = list; info; info = info->next)
        count += strncmp(info->fabric_attr->name, "iwarp", 5) != 0;
    if (list)
        fi_freeinfo(list);
    fi_freeinfo(hints);
    return count;
}

/* This test does not ask for the embedded device, and runs on RDMA devices alone. */
static void no_tags_on_devices(void)
{
    if (device_infos(FI_MSG) == 0)
        skip("no RDMA device with message endpoints has this address");
    CHECK_INT(device_infos(FI_MSG | FI_TAGGED), 0);
    CHECK_INT(device_infos(FI_TAGGED), 0);
}

static void no_shared_tags(void)
{
    struct fi_info *hints = message_hints(&tagged_settings), *info = NULL;
    struct side listener, client;
    struct fid_ep *shared, *ep = NULL;

    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &info), -FI_ENODATA);
    fi_freeinfo(hints);
    message_listen(&listener, &tagged_settings);
    message_client(&client, &listener, &tagged_settings);
    message_endpoint(&client, &tagged_settings);
    CHECK_OK(fi_srx_context(client.domain, NULL, &shared, NULL));
    CHECK_RET(fi_ep_bind(client.ep, &shared->fid, 0), -FI_EINVAL);
    client.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    CHECK_RET(fi_endpoint(client.domain, client.info, &ep, NULL), -FI_ENODATA);
    CHECK(ep == NULL);
    /* It is in use by nobody. */
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* Ends of which one has tags. Those that are alike connect to the same listener. */
static void unlike_ends(void)
{
    for (unsigned is_tagged = 0; is_tagged < 2; is_tagged++) {
        const struct message_settings *own = is_tagged ? &tagged_settings : NULL;
        const struct message_settings *other = is_tagged ? NULL : &tagged_settings;
        struct side listener, refused, client, server;
        struct fi_eq_err_entry error;
        struct event request;

        note("a listener with%s tags", is_tagged ? "" : "out");
        message_listen(&listener, own);
        message_client(&refused, &listener, other);
        message_endpoint(&refused, other);
        CHECK_OK(fi_connect(refused.ep, refused.info->dest_addr, NULL, 0));
        error = await_error(refused.eq, NULL, 0);
        CHECK(error.fid == &refused.ep->fid);
        CHECK_INT(error.err, FI_ECONNREFUSED);
        check_no_event(listener.eq);
        check_no_event(refused.eq);
        message_client(&client, &listener, own);
        message_endpoint(&client, own);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        request = await_event(listener.eq, FI_CONNREQ);
        message_server(&listener, &server, &request, own);
        message_accept(&client, &server);
        message_transfer(&client, &server, 100);
        side_close(&server);
        side_close(&client);
        side_close(&refused);
        side_close(&listener);
    }
}

/* ---- what arrives, and where -------------------------------------------------------------- */

static void each_tagged_call(void)
{
    enum { CALLS = 8, BYTES = 10 };
    const uint64_t base = 0x8000000000000010, ignored = 0xff0000000000ff00;
    const uint64_t data[CALLS] = {0, 0, 77, 88, 99, 0, UINT64_MAX, 0};
    const uint8_t *bytes = pattern(0, BYTES);
    /* Descriptors are ignored. */
    void *no_desc = CONTEXT(0xbad1);
    struct iovec piece = {(void *)(uintptr_t)bytes, BYTES};
    struct fi_msg_tagged message = {.msg_iov = &piece, .desc = &no_desc, .iov_count = 1, .addr = NO_ADDRESS};
    uint8_t got[CALLS][BYTES] = {{0}};
    struct pair pair;
    struct fid_ep *ep;

    messages_open(&pair, &tagged_settings);
    ep = pair.server.ep;
    for (unsigned i = CALLS; i-- > 0;) {
        struct iovec target = {got[i], BYTES};
        /* Some of them ignore bits that they have otherwise. */
        const uint64_t ignore = i % 2 ? ignored : 0, tag = (base + i) ^ ignore;
        struct fi_msg_tagged receive = {.msg_iov = &target, .desc = &no_desc, .iov_count = 1, .addr = NO_ADDRESS,
                                        .tag = tag, .ignore = ignore, .context = CONTEXT(i)};

        if (i % 3 == 0)
            CHECK_OK(fi_trecv(ep, got[i], BYTES, no_desc, NO_ADDRESS, tag, ignore, CONTEXT(i)));
        else if (i % 3 == 1)
            CHECK_OK(fi_trecvv(ep, &target, &no_desc, 1, NO_ADDRESS, tag, ignore, CONTEXT(i)));
        else
            CHECK_OK(fi_trecvmsg(ep, &receive, FI_COMPLETION | (i == 2 ? FI_MORE : 0)));
    }
    CHECK_RET(fi_rx_size_left(ep), MESSAGE_QUEUE - CALLS);
    ep = pair.client.ep;
    CHECK_OK(fi_tsend(ep, bytes, BYTES, no_desc, NO_ADDRESS, base, CONTEXT(1)));
    CHECK_OK(fi_tsendv(ep, &piece, &no_desc, 1, NO_ADDRESS, base + 1, CONTEXT(2)));
    message.tag = base + 2;
    message.context = CONTEXT(3);
    message.data = 77;
    CHECK_OK(fi_tsendmsg(ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    CHECK_OK(fi_tsenddata(ep, bytes, BYTES, no_desc, 88, NO_ADDRESS, base + 3, CONTEXT(4)));
    CHECK_OK(fi_tinjectdata(ep, bytes, BYTES, 99, NO_ADDRESS, base + 4));
    CHECK_OK(fi_tinject(ep, bytes, BYTES, NO_ADDRESS, base + 5));
    CHECK_OK(fi_tsenddata(ep, bytes, BYTES, NULL, UINT64_MAX, NO_ADDRESS, base + 6, CONTEXT(5)));
    message.tag = base + 7;
    message.context = CONTEXT(6);
    CHECK_OK(fi_tsendmsg(ep, &message, 0));
    for (unsigned i = 0; i < CALLS; i++) {
        uint64_t with_data = data[i] ? FI_REMOTE_CQ_DATA : 0;
        struct fi_cq_tagged_entry entry = await_tagged(pair.server.cq, i, TAG_RECEIVED | with_data, BYTES, base + i);

        CHECK_INT(entry.data, data[i]);
        CHECK_BYTES(got[i], bytes, BYTES);
    }
    for (unsigned i = 1; i <= 6; i++)
        (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    /* Those without tags. */
    message_transfer(&pair.client, &pair.server, 1000);
    post_recv(pair.client.ep, got, BYTES, 7);
    CHECK_OK(fi_inject(pair.server.ep, bytes, BYTES, NO_ADDRESS));
    (void)await_tagged(pair.client.cq, 7, RECEIVED, BYTES, 0);
    pair_close(&pair);
}

/* Each bit decides by itself, if it is not ignored. */
static void every_bit_of_tags(void)
{
    struct pair pair;
    uint8_t got[2];

    messages_open(&pair, &tagged_settings);
    for (unsigned bit = 0; bit < 64; bit++) {
        const uint64_t one = 1ULL << bit;

        note("bit %u", bit);
        post_trecv(pair.server.ep, &got[0], 1, one, ~one, 0);
        post_trecv(pair.server.ep, &got[1], 1, bit % 2 ? 0 : ~one, ~one, 1);
        CHECK_OK(fi_tinject(pair.client.ep, "0", 1, NO_ADDRESS, bit % 3 ? ~one : 0));
        (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 1, bit % 3 ? ~one : 0);
        CHECK_OK(fi_tinject(pair.client.ep, "1", 1, NO_ADDRESS, bit % 3 ? ~0ULL : one));
        (void)await_tagged(pair.server.cq, 0, TAG_RECEIVED, 1, bit % 3 ? ~0ULL : one);
        CHECK_BYTES(got, "10", 2);
    }
    pair_close(&pair);
}

/* Posted receives: a message goes to the oldest that agrees. */
static void oldest_receive(void)
{
    const struct {
        uint64_t tag, ignore;
    } receives[] = {{0x10, 0}, {0, ANY_TAG}, {0x10, 0xf}, {0x20, 0}, {0x10, 0}};
    const uint64_t tags[] = {0x20, 0x20, 0x1f, 0x10, 0x10};
    const unsigned takers[] = {1, 3, 2, 0, 4};
    uint8_t got[5] = {0};
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 5; i++)
        post_trecv(pair.server.ep, &got[i], 1, receives[i].tag, receives[i].ignore, i);
    for (unsigned i = 0; i < 5; i++) {
        CHECK_OK(fi_tinject(pair.client.ep, pattern(i, 1), 1, NO_ADDRESS, tags[i]));
        (void)await_tagged(pair.server.cq, takers[i], TAG_RECEIVED, 1, tags[i]);
        CHECK_BYTES(&got[takers[i]], pattern(i, 1), 1);
    }
    check_no_completion(pair.server.cq);
    pair_close(&pair);
}

/* Unexpected messages: a receive takes the oldest that agrees. */
static void oldest_message(void)
{
    const uint64_t tags[] = {0x11, 0x12, 0x11, 0x23, 0x12, 0x11};
    const struct {
        uint64_t tag, ignore;
        unsigned message;
    } receives[] = {{0x12, 0, 1}, {0, ANY_TAG, 0}, {0x20, 0xf, 3}, {0x12, 0x3, 2}, {0x11, 0, 5}, {0, ANY_TAG, 4}};
    uint8_t got;
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned i = 0; i < 6; i++)
        CHECK_OK(fi_tinject(pair.client.ep, pattern(i, 1), 1, NO_ADDRESS, tags[i]));
    CHECK_OK(fi_tinject(pair.client.ep, "", 0, NO_ADDRESS, 0x99));
    (void)await_peek(&pair.server, 0x99, 0, 0, 1);
    for (unsigned i = 0; i < 6; i++) {
        post_trecv(pair.server.ep, &got, 1, receives[i].tag, receives[i].ignore, i);
        (void)await_tagged(pair.server.cq, i, TAG_RECEIVED, 1, tags[receives[i].message]);
        CHECK_BYTES(&got, pattern(receives[i].message, 1), 1);
    }
    pair_close(&pair);
}

/* Divides `length` bytes at `data` among `count` pieces. */
static void divide(struct iovec *pieces, size_t count, const uint8_t *data, size_t length)
{
    for (size_t i = 0; i < count; i++) {
        size_t from = length * i / count, to = length * (i + 1) / count;

        pieces[i] = (struct iovec){(void *)(uintptr_t)(data + from), to - from};
    }
}

static void any_order_of_tags(void)
{
    enum { MESSAGES = 20, LONGEST = 70000 };
    const size_t lengths[] = {0, 1, 100, 5000, LONGEST};
    /* As they were sent, in reverse, and mixed. */
    const unsigned starts[] = {0, MESSAGES - 1, 3}, steps[] = {1, MESSAGES - 1, 7};
    static uint8_t got[LONGEST + 1];
    struct iovec pieces[MESSAGE_IOVS];
    struct pair pair;

    messages_open(&pair, &tagged_settings);
    for (unsigned round = 0; round < 3; round++) {
        note("in steps of %u", steps[round]);
        for (unsigned i = 0; i < MESSAGES; i++) {
            divide(pieces, 1 + i / 5, pattern(i, lengths[i % 5]), lengths[i % 5]);
            CHECK_OK(fi_tsendv(pair.client.ep, pieces, NULL, 1 + i / 5, NO_ADDRESS, i, CONTEXT(i)));
        }
        (void)await_peek(&pair.server, MESSAGES - 1, 0, 0, 1);
        for (unsigned n = 0; n < MESSAGES; n++) {
            const unsigned i = (starts[round] + n * steps[round]) % MESSAGES;
            const size_t length = lengths[i % 5];

            memset(got, 0xcc, sizeof got);
            divide(pieces, 1 + i % 4, got, length);
            CHECK_OK(fi_trecvv(pair.server.ep, pieces, NULL, 1 + i % 4, NO_ADDRESS, i, 0, CONTEXT(100 + i)));
            (void)await_tagged(pair.server.cq, 100 + i, TAG_RECEIVED, length, i);
            CHECK_BYTES(got, pattern(i, length), length);
            CHECK_INT(got[length], 0xcc);
        }
        for (unsigned i = 0; i < MESSAGES; i++)
            (void)await_tagged(pair.client.cq, i, TAG_SENT, 0, 0);
    }
    check_peeks_nothing(&pair.server, 0, ANY_TAG);
    pair_close(&pair);
}

/* Tagged messages and others pass each other, whether a receive of the other kind is posted or not. */
static void kinds_do_not_meet(void)
{
    struct pair pair;
    uint8_t got = 0;

    messages_open(&pair, &tagged_settings);
    post_trecv(pair.server.ep, &got, 1, 0, ANY_TAG, 1);
    CHECK_OK(fi_inject(pair.client.ep, "u", 1, NO_ADDRESS));
    drive_for(20);
    check_no_completion(pair.server.cq);
    CHECK_OK(fi_tinject(pair.client.ep, "t", 1, NO_ADDRESS, 0));
    (void)await_tagged(pair.server.cq, 1, TAG_RECEIVED, 1, 0);
    CHECK_INT(got, 't');
    post_recv(pair.server.ep, &got, 1, 2);
    (void)await_tagged(pair.server.cq, 2, RECEIVED, 1, 0);
    CHECK_INT(got, 'u');
    post_recv(pair.server.ep, &got, 1, 3);
    CHECK_OK(fi_tinject(pair.client.ep, "T", 1, NO_ADDRESS, 0));
    drive_for(20);
    check_no_completion(pair.server.cq);
    CHECK_OK(fi_inject(pair.client.ep, "U", 1, NO_ADDRESS));
    (void)await_tagged(pair.server.cq, 3, RECEIVED, 1, 0);
    CHECK_INT(got, 'U');
    post_trecv(pair.server.ep, &got, 1, 0, ANY_TAG, 4);
    (void)await_tagged(pair.server.cq, 4, TAG_RECEIVED, 1, 0);
    CHECK_INT(got, 'T');
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(tagged_infos, "FI_TAGGED is answered if the hints ask for it, and only then"),
    TEST(tagged_info_answers_itself, "an info with FI_TAGGED given as hints is answered by itself"),
    TEST(tag_format, "mem_tag_format with FI_TAGGED: that of the hints, or 0xaaaaaaaaaaaaaaaa; without: 0"),
    TEST(tags_of_parts, "tx_attr or rx_attr alone with FI_TAGGED: -FI_ENODATA"),
    TEST(strict_order_of_tags, "comp_order FI_ORDER_STRICT with FI_TAGGED is answered"),
    TEST(no_tags_on_devices, "only the embedded device has FI_TAGGED"),
    TEST(no_shared_tags, "FI_TAGGED with FI_SHARED_CONTEXT: -FI_ENODATA; binding a shared receive context: -FI_EINVAL"),
    TEST(unlike_ends, "ends of which one has tags do not connect: FI_ECONNREFUSED, and the listener has no event"),
    TEST(each_tagged_call, "every call that sends or receives tagged messages, with its entries; and other messages"),
    TEST(every_bit_of_tags, "each of the 64 bits of a tag decides, unless it is ignored"),
    TEST(oldest_receive, "a message goes to the oldest posted receive that agrees"),
    TEST(oldest_message, "a receive takes the oldest unexpected message that agrees"),
    TEST(any_order_of_tags, "unexpected messages of 0 to 70 000 bytes, in up to 4 pieces, in any order of their tags"),
    TEST(kinds_do_not_meet, "tagged receives take no other messages, other receives no tagged ones"),
};

const struct section message_tags_section = SECTION("tagged messages", tests);
