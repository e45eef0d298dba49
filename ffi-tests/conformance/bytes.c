/* Contract, section Moving bytes: the seven calls, their flags and their limits. */
#include "conformance.h"

#include <stdlib.h>

/* A flag that no call of a stream endpoint supports. */
#define UNKNOWN_FLAG (1ULL << 61)

static ssize_t send_message(struct fid_ep *ep, const void *data, size_t length, uint64_t flags)
{
    struct iovec iov = {(void *)(uintptr_t)data, length};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC};

    return fi_sendmsg(ep, &message, flags);
}

static ssize_t recv_message(struct fid_ep *ep, void *data, size_t length, uint64_t flags)
{
    struct iovec iov = {data, length};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC};

    return fi_recvmsg(ep, &message, flags);
}

/* FI_PEEK without an iovec: the number of bytes that can be received, or sent. */
static ssize_t peek_send(struct fid_ep *ep)
{
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};

    return fi_sendmsg(ep, &message, FI_PEEK);
}

static ssize_t peek_recv(struct fid_ep *ep)
{
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};

    return fi_recvmsg(ep, &message, FI_PEEK);
}

/* Waits until `length` bytes can be received. */
static void await_bytes(struct fid_ep *ep, size_t length)
{
    AWAIT(PATIENCE_MS, peek_recv(ep) == (ssize_t)length);
}

static void send_and_recv(void)
{
    uint8_t buffer[100];
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(send_once(pair.client.ep, pattern(0, 100), 100), 100);
    await_bytes(pair.server.ep, 100);
    CHECK_RET(recv_once(pair.server.ep, buffer, 30), 30);
    CHECK_RET(recv_once(pair.server.ep, buffer + 30, 100), 70);
    CHECK_BYTES(buffer, pattern(0, 100), 100);
    CHECK_RET(recv_once(pair.server.ep, buffer, 1), -FI_EAGAIN);
    transfer(pair.client.ep, pair.server.ep, 300000);
    transfer(pair.server.ep, pair.client.ep, 300000);
    pair_close(&pair);
}

static void buffer_is_the_callers(void)
{
    struct pair pair;
    uint8_t buffer[5000];

    /* Overwriting the buffer after the call must not change what is sent. */
    pair_open(&pair, IPV4, NULL);
    for (unsigned i = 0; i < 5; i++) {
        memcpy(buffer, pattern(i * sizeof buffer, sizeof buffer), sizeof buffer);
        CHECK_RET(send_once(pair.client.ep, buffer, sizeof buffer), sizeof buffer);
        memset(buffer, 0xee, sizeof buffer);
    }
    recv_pattern(pair.server.ep, 0, 5 * sizeof buffer);
    pair_close(&pair);
}

static void sendv_gathers(void)
{
    struct pair pair;
    struct fi_info *info;
    size_t limit;

    pair_open(&pair, IPV4, NULL);
    info = pair.client.info;
    limit = info->tx_attr->iov_limit;
    CHECK_AT_LEAST(limit, 1);
    for (size_t count = 1; count <= limit; count++) {
        struct iovec iov[64];
        size_t length = 0;

        CHECK(count <= 64);
        for (size_t i = 0; i < count; i++) {
            /* The buffers have different lengths, and one is empty. */
            iov[i].iov_len = i == 1 ? 0 : 10 + 7 * i;
            iov[i].iov_base = (void *)(uintptr_t)pattern(length, iov[i].iov_len);
            length += iov[i].iov_len;
        }
        CHECK_RET(fi_sendv(pair.client.ep, iov, NULL, count, FI_ADDR_UNSPEC, NULL), length);
        recv_pattern(pair.server.ep, 0, length);
    }
    pair_close(&pair);
}

static void recvv_scatters(void)
{
    struct pair pair;
    size_t limit;

    pair_open(&pair, IPV4, NULL);
    limit = pair.client.info->rx_attr->iov_limit;
    CHECK_AT_LEAST(limit, 1);
    for (size_t count = 1; count <= limit; count++) {
        uint8_t buffer[8192];
        struct iovec iov[64];
        size_t length = 0;

        CHECK(count <= 64);
        for (size_t i = 0; i < count; i++) {
            iov[i].iov_len = i == 1 ? 0 : 10 + 7 * i;
            iov[i].iov_base = buffer + length;
            length += iov[i].iov_len;
        }
        CHECK(length + 5 <= sizeof buffer);
        send_all(pair.client.ep, pattern(0, length + 5), length + 5);
        await_bytes(pair.server.ep, length + 5);
        CHECK_RET(fi_recvv(pair.server.ep, iov, NULL, count, FI_ADDR_UNSPEC, NULL), length);
        CHECK_BYTES(buffer, pattern(0, length), length);
        recv_pattern(pair.server.ep, length, 5);
    }
    pair_close(&pair);
}

static void iov_limit(void)
{
    struct iovec iov[65];
    uint8_t byte = 1;
    struct fi_msg message = {.msg_iov = iov, .addr = FI_ADDR_UNSPEC};
    struct pair pair;
    size_t send_count, recv_count;

    pair_open(&pair, IPV4, NULL);
    send_count = pair.client.info->tx_attr->iov_limit + 1;
    recv_count = pair.client.info->rx_attr->iov_limit + 1;
    CHECK(send_count <= 65 && recv_count <= 65);
    for (size_t i = 0; i < 65; i++)
        iov[i] = (struct iovec){&byte, 1};
    CHECK_RET(fi_sendv(pair.client.ep, iov, NULL, send_count, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(pair.client.ep, iov, NULL, recv_count, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    message.iov_count = send_count;
    CHECK_RET(fi_sendmsg(pair.client.ep, &message, 0), -FI_EINVAL);
    message.iov_count = recv_count;
    CHECK_RET(fi_recvmsg(pair.client.ep, &message, 0), -FI_EINVAL);
    /* Nothing was sent. */
    sleep_ms(20);
    CHECK_RET(recv_once(pair.server.ep, &byte, 1), -FI_EAGAIN);
    pair_close(&pair);
}

static void message_calls(void)
{
    struct pair pair;
    uint8_t buffer[64];
    struct iovec out[2] = {{(void *)(uintptr_t)"hello ", 6}, {(void *)(uintptr_t)"stream", 6}};
    struct iovec in[2] = {{buffer, 4}, {buffer + 4, 60}};
    struct fi_msg message = {.msg_iov = out, .iov_count = 2, .addr = FI_ADDR_UNSPEC};

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(fi_sendmsg(pair.client.ep, &message, 0), 12);
    await_bytes(pair.server.ep, 12);
    message.msg_iov = in;
    CHECK_RET(fi_recvmsg(pair.server.ep, &message, 0), 12);
    CHECK_BYTES(buffer, "hello stream", 12);
    pair_close(&pair);
}

static void inject_all_or_nothing(void)
{
    const struct settings server = {.recv_ring = 1000};
    struct pair pair;
    size_t length, total = 0;
    unsigned refused = 0;

    pair_open_with(&pair, IPV4, NULL, &server);
    length = pair.client.info->tx_attr->inject_size;
    CHECK_AT_LEAST(length, 1);
    if (length > 300)
        length = 300;
    while (refused < 50) {
        ssize_t ret = fi_inject(pair.client.ep, pattern(total, length), length, FI_ADDR_UNSPEC);

        if (ret == -FI_EAGAIN) {
            refused++;
            drive();
        } else {
            CHECK_RET(ret, length);
            total += length;
            refused = 0;
        }
    }
    CHECK_INT(total, 1000 / length * length);
    recv_pattern(pair.server.ep, 0, total);
    AWAIT(PATIENCE_MS, fi_inject(pair.client.ep, pattern(total, length), length, FI_ADDR_UNSPEC) == (ssize_t)length);
    recv_pattern(pair.server.ep, total, length);
    pair_close(&pair);
}

static void inject_too_long(void)
{
    struct pair pair;
    size_t limit;
    uint8_t *data;

    pair_open(&pair, IPV4, NULL);
    limit = pair.client.info->tx_attr->inject_size;
    data = calloc(1, limit + 1);
    CHECK(data != NULL);
    CHECK_RET(fi_inject(pair.client.ep, data, limit + 1, FI_ADDR_UNSPEC), -FI_EMSGSIZE);
    sleep_ms(20);
    CHECK_RET(recv_once(pair.server.ep, data, 1), -FI_EAGAIN);
    pair_close(&pair);
    free(data);
}

static void inject_beyond_ring(void)
{
    const struct settings server = {.recv_ring = 10};
    struct pair pair;

    pair_open_with(&pair, IPV4, NULL, &server);
    CHECK_AT_LEAST(pair.client.info->tx_attr->inject_size, 11);
    CHECK_RET(fi_inject(pair.client.ep, pattern(0, 11), 11, FI_ADDR_UNSPEC), -FI_EMSGSIZE);
    CHECK_RET(fi_inject(pair.client.ep, pattern(0, 10), 10, FI_ADDR_UNSPEC), 10);
    recv_pattern(pair.server.ep, 0, 10);
    pair_close(&pair);
}

static void peek_before_send(void)
{
    struct pair pair;
    ssize_t room, took;

    pair_open(&pair, IPV4, NULL);
    room = peek_send(pair.client.ep);
    CHECK_AT_LEAST(room, 1);
    took = send_once(pair.client.ep, pattern(0, 65536), 65536);
    CHECK_INT(took, room);
    fill(pair.client.ep, (uint64_t)took);
    CHECK_RET(peek_send(pair.client.ep), -FI_EAGAIN);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_RET(peek_send(pair.client.ep), -FI_EPIPE);
    pair_close(&pair);
}

static void peek_before_recv(void)
{
    struct pair pair;
    uint8_t buffer[50];

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(peek_recv(pair.server.ep), -FI_EAGAIN);
    CHECK_RET(recv_message(pair.server.ep, buffer, 10, FI_PEEK), -FI_EAGAIN);
    CHECK_RET(send_once(pair.client.ep, pattern(0, 40), 40), 40);
    await_bytes(pair.server.ep, 40);
    for (unsigned i = 0; i < 3; i++) {
        memset(buffer, 0, sizeof buffer);
        CHECK_RET(recv_message(pair.server.ep, buffer, 25, FI_PEEK), 25);
        CHECK_BYTES(buffer, pattern(0, 25), 25);
        CHECK_INT(buffer[25], 0);
        CHECK_RET(recv_message(pair.server.ep, buffer, 50, FI_PEEK), 40);
        CHECK_BYTES(buffer, pattern(0, 40), 40);
        CHECK_RET(peek_recv(pair.server.ep), 40);
    }
    recv_pattern(pair.server.ep, 0, 40);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    AWAIT(PATIENCE_MS, peek_recv(pair.server.ep) == 0);
    CHECK_RET(recv_message(pair.server.ep, buffer, 10, FI_PEEK), 0);
    pair_close(&pair);
}

static void peek_across_the_wrap(void)
{
    const struct settings server = {.recv_ring = 1000};
    struct pair pair;
    uint8_t buffer[800];

    /* The second message is at the end and at the beginning of the ring. */
    pair_open_with(&pair, IPV4, NULL, &server);
    send_all(pair.client.ep, pattern(0, 700), 700);
    recv_pattern(pair.server.ep, 0, 700);
    send_all(pair.client.ep, pattern(700, 800), 800);
    await_bytes(pair.server.ep, 800);
    CHECK_RET(recv_message(pair.server.ep, buffer, 800, FI_PEEK), 800);
    CHECK_BYTES(buffer, pattern(700, 800), 800);
    recv_pattern(pair.server.ep, 700, 800);
    pair_close(&pair);
}

static void more_is_held_then_sent(void)
{
    struct pair pair;
    uint8_t byte;
    struct fid *fid;

    pair_open(&pair, IPV4, NULL);
    /* Any later call sends what FI_MORE held back: a send, a receive, a peek. */
    CHECK_RET(send_message(pair.client.ep, pattern(0, 10), 10, FI_MORE), 10);
    CHECK_RET(send_message(pair.client.ep, pattern(10, 10), 10, 0), 10);
    await_bytes(pair.server.ep, 20);
    recv_pattern(pair.server.ep, 0, 20);

    CHECK_RET(send_message(pair.client.ep, pattern(20, 10), 10, FI_MORE), 10);
    CHECK_RET(recv_once(pair.client.ep, &byte, 1), -FI_EAGAIN);
    sleep_ms(50);
    AWAIT(PATIENCE_MS, peek_recv(pair.server.ep) == 10);
    recv_pattern(pair.server.ep, 20, 10);

    CHECK_RET(send_message(pair.client.ep, pattern(30, 10), 10, FI_MORE), 10);
    fid = &pair.client.ep->fid;
    (void)fi_trywait(pair.client.fabric, &fid, 1);
    await_bytes(pair.server.ep, 10);
    recv_pattern(pair.server.ep, 30, 10);
    pair_close(&pair);
}

static void flags_without_effect(void)
{
    const uint64_t flags[] = {0, FI_COMPLETION, FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE,
                              FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE};
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        CHECK_RET(send_message(pair.client.ep, pattern(i, 20), 20, flags[i]), 20);
        recv_pattern(pair.server.ep, i, 20);
    }
    pair_close(&pair);
}

static void unknown_flags(void)
{
    struct pair pair;
    uint8_t byte = 0;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(send_message(pair.client.ep, "x", 1, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(send_message(pair.client.ep, "x", 1, FI_PEEK | UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(send_message(pair.client.ep, "x", 1, FI_REMOTE_CQ_DATA), -FI_EBADFLAGS);
    CHECK_RET(recv_message(pair.client.ep, &byte, 1, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(recv_message(pair.client.ep, &byte, 1, FI_MULTI_RECV), -FI_EBADFLAGS);
    /* These calls sent nothing. */
    CHECK_RET(send_once(pair.client.ep, "y", 1), 1);
    recv_all(pair.server.ep, &byte, 1);
    CHECK_INT(byte, 'y');
    pair_close(&pair);
}

static void check_empty(struct fid_ep *ep, ssize_t send_answer, ssize_t recv_answer)
{
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
    uint8_t byte;

    CHECK_RET(send_once(ep, NULL, 0), send_answer);
    CHECK_RET(send_once(ep, "x", 0), send_answer);
    CHECK_RET(fi_sendv(ep, NULL, NULL, 0, FI_ADDR_UNSPEC, NULL), send_answer);
    CHECK_RET(fi_sendmsg(ep, &message, 0), send_answer);
    CHECK_RET(fi_inject(ep, "x", 0, FI_ADDR_UNSPEC), send_answer);
    CHECK_RET(recv_once(ep, NULL, 0), recv_answer);
    CHECK_RET(recv_once(ep, &byte, 0), recv_answer);
    CHECK_RET(fi_recvv(ep, NULL, NULL, 0, FI_ADDR_UNSPEC, NULL), recv_answer);
    CHECK_RET(fi_recvmsg(ep, &message, 0), recv_answer);
}

static void empty_requests(void)
{
    struct side side;
    struct fi_info *hints = stream_hints();
    struct pair pair;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    check_empty(side.ep, -FI_ENOTCONN, -FI_ENOTCONN);
    side_close(&side);
    fi_freeinfo(hints);

    pair_open(&pair, IPV4, NULL);
    check_empty(pair.client.ep, 0, 0);
    /* The stream is full. A request of no bytes still returns 0. */
    fill(pair.client.ep, 0);
    check_empty(pair.client.ep, 0, 0);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    check_empty(pair.client.ep, -FI_EPIPE, 0);
    pair_close(&pair);
}

static void room_is_granted(void)
{
    const size_t rings[] = {1, 2, 63, 4096, 5003, 32768, 262144, 1048577};

    for (size_t i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        struct settings settings = {.send_ring = rings[i], .recv_ring = rings[i]};
        struct pair pair;
        size_t took;

        /* If the peer does not read, the endpoint takes as many bytes as the peer's ring holds, and all of
         * them arrive. */
        pair_open(&pair, IPV4, &settings);
        took = fill(pair.client.ep, 0);
        CHECK_BETWEEN(took, 1, rings[i]);
        CHECK_RET(send_once(pair.client.ep, "x", 1), -FI_EAGAIN);
        recv_pattern(pair.server.ep, 0, took);
        CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
        /* The room becomes free again. */
        AWAIT(PATIENCE_MS, send_once(pair.client.ep, pattern(took, 1), 1) == 1);
        recv_pattern(pair.server.ep, took, 1);
        pair_close(&pair);
    }
}

static void small_queues(void)
{
    const size_t depths[] = {4, 5, 16, 1024};

    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        for (unsigned wire = 0; wire < 2; wire++) {
            struct settings settings = {.tx_size = depths[i], .rx_size = depths[i]};
            struct pair pair;

            settings.protocol = wire ? FI_PROTO_IWARP : FI_PROTO_RSTREAM;
            pair_open(&pair, IPV4, &settings);
            for (unsigned n = 0; n < 3000; n++) {
                send_all(pair.client.ep, pattern(n, 1), 1);
                recv_pattern(pair.server.ep, n, 1);
            }
            transfer(pair.client.ep, pair.server.ep, 200000);
            transfer(pair.server.ep, pair.client.ep, 200000);
            pair_close(&pair);
        }
    }
}

static void peek_is_kept(void)
{
    const struct settings few = {.rx_size = 3}, more = {.rx_size = 4};
    static uint8_t data[64];
    uint64_t state = 88172645463325252;
    struct pair pair;

    pair_open_with(&pair, IPV4, &few, &more);
    for (unsigned i = 0; i < (on_rdma_device() ? 2000 : 100000); i++) {
        struct fid_ep *ep;
        struct fi_msg peek = {.addr = FI_ADDR_UNSPEC};
        ssize_t room, length;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ep = state >> 20 & 1 ? pair.client.ep : pair.server.ep;
        if (state >> 30 & 1) {
            (void)recv_once(ep, data, 1 + (state >> 40) % sizeof data);
            continue;
        }
        room = fi_sendmsg(ep, &peek, FI_PEEK);
        if (room == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(room, 1);
        length = 1 + (ssize_t)((state >> 40) % sizeof data);
        length = length < room ? length : room;
        CHECK_RET(send_once(ep, data, (size_t)length), length);
    }
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(peek_is_kept, "FI_PEEK on a send: the next send takes what it said, with few receives, too"),
    TEST(send_and_recv, "fi_send, fi_recv: bytes taken or given, possibly fewer, or -FI_EAGAIN"),
    TEST(buffer_is_the_callers, "buffers belong to the caller again when the call returns"),
    TEST(sendv_gathers, "fi_sendv gathers"),
    TEST(recvv_scatters, "fi_recvv scatters"),
    TEST(iov_limit, "more iovecs than iov_limit is -FI_EINVAL"),
    TEST(message_calls, "fi_sendmsg, fi_recvmsg"),
    TEST(inject_all_or_nothing, "fi_inject: all or nothing: the length, or -FI_EAGAIN"),
    TEST(inject_too_long, "fi_inject longer than inject_size: -FI_EMSGSIZE"),
    TEST(inject_beyond_ring, "fi_inject longer than the peer's whole ring: -FI_EMSGSIZE"),
    TEST(peek_before_send, "fi_sendmsg(FI_PEEK): bytes that a send would take now, or its error"),
    TEST(peek_before_recv, "fi_recvmsg(FI_PEEK): counts without iovec, copies without consuming with one"),
    TEST(peek_across_the_wrap, "fi_recvmsg(FI_PEEK) sees all there is, wherever it lies"),
    TEST(more_is_held_then_sent, "FI_MORE: what was held goes out with the next call of any kind"),
    TEST(flags_without_effect, "completion and inject flags are accepted and change nothing"),
    TEST(unknown_flags, "an unknown flag is -FI_EBADFLAGS"),
    TEST(empty_requests, "an empty request answers 0 when connected and the state's error otherwise"),
    TEST(room_is_granted, "fi_send takes only what the peer has granted room for, and all of it arrives"),
    TEST(small_queues, "small queues never stall, with either protocol"),
};

const struct section bytes_section = SECTION("bytes", tests);
