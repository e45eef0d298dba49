/* Contract, section Options: fi_setopt and fi_getopt at FI_OPT_ENDPOINT. */
#include "conformance.h"

#define RING_OPTIONS FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE
#define QUEUE_OPTIONS FI_OPT_TX_SIZE, FI_OPT_RX_SIZE

static const int all_options[] = {RING_OPTIONS, QUEUE_OPTIONS};
#define OPTIONS (sizeof all_options / sizeof all_options[0])

static void open_endpoint(struct side *side)
{
    struct fi_info *hints = stream_hints();

    side_open(side, find(IPV4, "7471", 0, hints));
    side_endpoint(side, NULL);
    fi_freeinfo(hints);
}

static int set(struct fid *fid, int name, uint64_t value, size_t length)
{
    uint16_t two = (uint16_t)value;
    uint32_t four = (uint32_t)value;
    uint8_t other[64] = {1};

    if (length == 2)
        return fi_setopt(fid, FI_OPT_ENDPOINT, name, &two, length);
    if (length == 4)
        return fi_setopt(fid, FI_OPT_ENDPOINT, name, &four, length);
    if (length == 8)
        return fi_setopt(fid, FI_OPT_ENDPOINT, name, &value, length);
    return fi_setopt(fid, FI_OPT_ENDPOINT, name, other, length);
}

static uint64_t get(struct fid *fid, int name)
{
    uint64_t value = 0;
    size_t length = sizeof value;

    CHECK_OK(fi_getopt(fid, FI_OPT_ENDPOINT, name, &value, &length));
    CHECK_INT(length, sizeof value);
    return value;
}

static void defaults(void)
{
    struct side side;

    open_endpoint(&side);
    CHECK_INT(get(&side.ep->fid, FI_OPT_SEND_BUF_SIZE), 32768);
    CHECK_INT(get(&side.ep->fid, FI_OPT_RECV_BUF_SIZE), 32768);
    CHECK_INT(get(&side.ep->fid, FI_OPT_TX_SIZE), 384);
    CHECK_INT(get(&side.ep->fid, FI_OPT_RX_SIZE), 384);
    CHECK_INT(RSTREAM_BUF_SIZE_DEFAULT, 32768);
    CHECK_INT(RSTREAM_QUEUE_SIZE_DEFAULT, 384);
    side_close(&side);
}

static void ring_lengths(void)
{
    const int names[] = {RING_OPTIONS};
    struct side side;

    open_endpoint(&side);
    for (size_t i = 0; i < 2; i++) {
        uint32_t four = 0;
        size_t length = sizeof four;

        CHECK_OK(set(&side.ep->fid, names[i], 5003, 4));
        CHECK_INT(get(&side.ep->fid, names[i]), 5003);
        CHECK_OK(set(&side.ep->fid, names[i], 65537, 8));
        CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, names[i], &four, &length));
        CHECK_INT(length, 4);
        CHECK_INT(four, 65537);
    }
    side_close(&side);
}

static void queue_lengths(void)
{
    const int names[] = {QUEUE_OPTIONS};
    struct side side;

    open_endpoint(&side);
    for (size_t i = 0; i < 2; i++) {
        uint16_t two = 0;
        size_t length = sizeof two;

        CHECK_OK(set(&side.ep->fid, names[i], 17, 2));
        CHECK_INT(get(&side.ep->fid, names[i]), 17);
        CHECK_OK(set(&side.ep->fid, names[i], 511, 4));
        CHECK_INT(get(&side.ep->fid, names[i]), 511);
        CHECK_OK(set(&side.ep->fid, names[i], 1023, 8));
        CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, names[i], &two, &length));
        CHECK_INT(length, 2);
        CHECK_INT(two, 1023);
    }
    side_close(&side);
}

static void other_lengths(void)
{
    const size_t lengths[] = {0, 1, 3, 5, 7, 9, 16};
    struct side side;

    open_endpoint(&side);
    for (size_t o = 0; o < OPTIONS; o++) {
        uint64_t before = get(&side.ep->fid, all_options[o]);

        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            CHECK_RET(set(&side.ep->fid, all_options[o], 0, lengths[i]), -FI_EINVAL);
        CHECK_INT(get(&side.ep->fid, all_options[o]), before);
    }
    CHECK_RET(set(&side.ep->fid, FI_OPT_SEND_BUF_SIZE, 4096, 2), -FI_EINVAL);
    CHECK_RET(set(&side.ep->fid, FI_OPT_RECV_BUF_SIZE, 4096, 2), -FI_EINVAL);
    side_close(&side);
}

static void out_of_range(void)
{
    struct side side;

    open_endpoint(&side);
    for (size_t o = 0; o < OPTIONS; o++) {
        uint64_t before = get(&side.ep->fid, all_options[o]);

        CHECK_RET(set(&side.ep->fid, all_options[o], 0, 4), -FI_EINVAL);
        CHECK_RET(set(&side.ep->fid, all_options[o], 0, 8), -FI_EINVAL);
        CHECK_RET(set(&side.ep->fid, all_options[o], (uint64_t)1 << 40, 8), -FI_EINVAL);
        CHECK_RET(set(&side.ep->fid, all_options[o], UINT64_MAX, 8), -FI_EINVAL);
        CHECK_INT(get(&side.ep->fid, all_options[o]), before);
    }
    side_close(&side);
}

static void header_limits(void)
{
    struct side side;

    open_endpoint(&side);
    for (size_t o = 0; o < OPTIONS; o++) {
        bool ring = o < 2;
        uint64_t least = ring ? RSTREAM_BUF_SIZE_MIN : RSTREAM_QUEUE_SIZE_MIN;
        uint64_t most = ring ? RSTREAM_BUF_SIZE_MAX : RSTREAM_QUEUE_SIZE_MAX;

        CHECK_OK(set(&side.ep->fid, all_options[o], least, 8));
        CHECK_RET(set(&side.ep->fid, all_options[o], least - 1, 8), -FI_EINVAL);
        CHECK_INT(get(&side.ep->fid, all_options[o]), least);
        /* A device may have shorter queues. */
        if (ring)
            CHECK_OK(set(&side.ep->fid, all_options[o], most, 8));
        CHECK_RET(set(&side.ep->fid, all_options[o], most + 1, 8), -FI_EINVAL);
    }
    side_close(&side);
}

static void exact_sizes(void)
{
    const uint64_t rings[] = {1, 7, 100, 4096, 5003, 65537, 1048575, 1048576, 4194304, 4194301};
    const uint64_t queues[] = {4, 5, 16, 383, 511, 512, 1024};
    struct side side;

    open_endpoint(&side);
    for (size_t i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        CHECK_OK(set(&side.ep->fid, FI_OPT_SEND_BUF_SIZE, rings[i], 8));
        CHECK_OK(set(&side.ep->fid, FI_OPT_RECV_BUF_SIZE, rings[i], 8));
        CHECK_INT(get(&side.ep->fid, FI_OPT_SEND_BUF_SIZE), rings[i]);
        CHECK_INT(get(&side.ep->fid, FI_OPT_RECV_BUF_SIZE), rings[i]);
    }
    for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++) {
        CHECK_OK(set(&side.ep->fid, FI_OPT_TX_SIZE, queues[i], 4));
        CHECK_OK(set(&side.ep->fid, FI_OPT_RX_SIZE, queues[i], 4));
        CHECK_INT(get(&side.ep->fid, FI_OPT_TX_SIZE), queues[i]);
        CHECK_INT(get(&side.ep->fid, FI_OPT_RX_SIZE), queues[i]);
    }
    side_close(&side);
}

static void after_enable(void)
{
    struct side side;

    open_endpoint(&side);
    CHECK_OK(set(&side.ep->fid, FI_OPT_SEND_BUF_SIZE, 9973, 4));
    CHECK_OK(fi_enable(side.ep));
    for (size_t o = 0; o < OPTIONS; o++) {
        uint64_t before = get(&side.ep->fid, all_options[o]);

        CHECK_RET(set(&side.ep->fid, all_options[o], 4096, 4), -FI_EOPBADSTATE);
        CHECK_INT(get(&side.ep->fid, all_options[o]), before);
    }
    CHECK_INT(get(&side.ep->fid, FI_OPT_SEND_BUF_SIZE), 9973);
    side_close(&side);
}

static void short_buffer(void)
{
    struct side side;
    uint8_t buffer[8];

    open_endpoint(&side);
    for (size_t o = 0; o < OPTIONS; o++) {
        size_t length = 1;

        CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, all_options[o], buffer, &length), -FI_ETOOSMALL);
        CHECK_BETWEEN(length, 2, sizeof buffer);
        CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, all_options[o], buffer, &length));
    }
    /* Two bytes are too short for a ring's size. */
    for (size_t o = 0; o < 2; o++) {
        size_t length = 2;

        CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, all_options[o], buffer, &length), -FI_ETOOSMALL);
        CHECK_BETWEEN(length, 4, sizeof buffer);
    }
    side_close(&side);
}

static void cm_data_size(void)
{
    struct side side;
    size_t size = 0, length = sizeof size;

    open_endpoint(&side);
    CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length));
    CHECK_INT(length, sizeof size);
    CHECK_BETWEEN(size, 1, 512);
    length = 4;
    CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length), -FI_ETOOSMALL);
    CHECK_INT(length, sizeof size);
    CHECK_RET(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, sizeof size),
              -FI_ENOPROTOOPT);
    side_close(&side);
}

static void unknown_options(void)
{
    const int unknown[] = {FI_OPT_MIN_MULTI_RECV, FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT, 12345, -1};
    struct side side;
    uint64_t value = 4096;
    size_t length = sizeof value;

    open_endpoint(&side);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        CHECK_RET(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, unknown[i], &value, sizeof value), -FI_ENOPROTOOPT);
        CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, unknown[i], &value, &length), -FI_ENOPROTOOPT);
    }
    CHECK_RET(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT + 1, FI_OPT_TX_SIZE, &value, sizeof value), -FI_ENOPROTOOPT);
    CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT + 1, FI_OPT_TX_SIZE, &value, &length), -FI_ENOPROTOOPT);
    side_close(&side);
}

static void inherited_from_passive(void)
{
    struct settings settings = {.send_ring = 9973, .recv_ring = 10007, .tx_size = 31, .rx_size = 37};
    struct pair pair;

    pair_open_with(&pair, IPV4, NULL, &settings);
    CHECK_INT(get(&pair.listener.pep->fid, FI_OPT_SEND_BUF_SIZE), 9973);
    CHECK_INT(get(&pair.server.ep->fid, FI_OPT_SEND_BUF_SIZE), 9973);
    CHECK_INT(get(&pair.server.ep->fid, FI_OPT_RECV_BUF_SIZE), 10007);
    CHECK_INT(get(&pair.server.ep->fid, FI_OPT_TX_SIZE), 31);
    CHECK_INT(get(&pair.server.ep->fid, FI_OPT_RX_SIZE), 37);
    CHECK_INT(get(&pair.client.ep->fid, FI_OPT_RECV_BUF_SIZE), 32768);
    /* The option takes effect: the accepted endpoint's ring holds no more than this. */
    CHECK_INT(fill(pair.client.ep, 0), 10007);
    recv_pattern(pair.server.ep, 0, 10007);
    pair_close(&pair);
}

static void carried_by_request(void)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    request.info->tx_attr->size = 41;
    request.info->rx_attr->size = 43;
    side_for_request(&listener, &server, &request);
    CHECK_INT(get(&server.ep->fid, FI_OPT_TX_SIZE), 41);
    CHECK_INT(get(&server.ep->fid, FI_OPT_RX_SIZE), 43);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void accepted_can_be_changed(void)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    CHECK_OK(set(&server.ep->fid, FI_OPT_RECV_BUF_SIZE, 5003, 4));
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    await_event(listener.eq, FI_CONNECTED);
    CHECK_INT(fill(client.ep, 0), 5003);
    recv_pattern(server.ep, 0, 5003);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(defaults, "defaults: rings 32 KiB, queues 384"),
    TEST(ring_lengths, "FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE: 4 or 8 bytes"),
    TEST(queue_lengths, "FI_OPT_TX_SIZE, FI_OPT_RX_SIZE: 2, 4 or 8 bytes"),
    TEST(other_lengths, "any other length answers -FI_EINVAL, with the value unchanged"),
    TEST(out_of_range, "out of range: -FI_EINVAL, with the value unchanged"),
    TEST(header_limits, "the limits are those of rstream.h"),
    TEST(exact_sizes, "sizes are used exactly as asked, not rounded"),
    TEST(after_enable, "after fi_enable: -FI_EOPBADSTATE; getopt reads back what is in force"),
    TEST(short_buffer, "a buffer too short answers -FI_ETOOSMALL and the needed length"),
    TEST(cm_data_size, "FI_OPT_CM_DATA_SIZE: read only, size_t"),
    TEST(unknown_options, "anything else, any other level: -FI_ENOPROTOOPT"),
    TEST(inherited_from_passive, "options set on a passive endpoint apply to accepted endpoints"),
    TEST(carried_by_request, "options carried by the info of a request apply to accepted endpoints"),
    TEST(accepted_can_be_changed, "an accepted endpoint's options can be set before fi_accept"),
};

const struct section options_section = SECTION("options", tests);
