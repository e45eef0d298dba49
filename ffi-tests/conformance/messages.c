/* Contract, section Message endpoints: sending and receiving messages, and their completions. */
#include "message.h"

#include <rdma/fi_tagged.h>
#include <stdlib.h>

#define UNKNOWN_FLAG (1ULL << 45)
/* FI_PRIORITY, which libfabric 2 no longer names. */
#define PRIORITY (1ULL << 22)

/* ---- what arrives ------------------------------------------------------------------------- */

static void every_length(void)
{
    const size_t lengths[] = {0, 1, 7, 4095, 4096, 4097, 16384, 65535, 65536, 65537, 1000000, PATTERN_MAX};
    struct pair pair;

    messages_open(&pair, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        message_transfer(&pair.client, &pair.server, lengths[i]);
    for (size_t length = 0; length < 200; length++)
        message_transfer(&pair.server, &pair.client, length);
    pair_close(&pair);
}

static void each_family(void)
{
    const char *hosts[] = {IPV4, IPV6};

    for (unsigned i = 0; i < 2; i++) {
        struct message_settings settings = {.host = hosts[i]};
        struct pair pair;

        messages_open(&pair, &settings);
        messages_pass(&pair);
        pair_close(&pair);
    }
}

/* Divides `length` bytes at `data` among `count` pieces, of which some are empty. */
static void divide(struct iovec *pieces, size_t count, uint8_t *data, size_t length, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        size_t part = i + 1 == count ? length : length * ((seed >> (2 * i)) % 4) / 4;

        pieces[i] = (struct iovec){part ? data : NULL, part};
        data += part;
        length -= part;
    }
}

static void scatter_and_gather(void)
{
    enum { LENGTH = 100000 };
    static uint8_t source[LENGTH], target[LENGTH];
    struct iovec out[MESSAGE_IOVS], in[MESSAGE_IOVS];
    struct pair pair;

    memcpy(source, pattern(0, LENGTH), LENGTH);
    messages_open(&pair, NULL);
    for (unsigned seed = 0; seed < 256; seed++) {
        size_t length = seed % 2 ? LENGTH : 1000, sources = 1 + seed % 4, targets = 1 + seed / 4 % 4;

        memset(target, 0, length);
        divide(out, sources, source, length, seed);
        divide(in, targets, target, length, seed * 7);
        CHECK_OK(fi_recvv(pair.server.ep, in, NULL, targets, FI_ADDR_UNSPEC, CONTEXT(1)));
        CHECK_OK(fi_sendv(pair.client.ep, out, NULL, sources, FI_ADDR_UNSPEC, CONTEXT(2)));
        CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, length);
        (void)await_done(pair.client.cq, 2, SENT);
        CHECK_BYTES(target, source, length);
    }
    pair_close(&pair);
}

static void in_order(void)
{
    enum { COUNT = 200 };
    static uint32_t values[COUNT], numbers[COUNT];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < COUNT; i++)
        post_recv(pair.server.ep, &values[i], sizeof values[i], i);
    for (unsigned i = 0; i < COUNT; i++) {
        numbers[i] = i * 3;
        post_send(pair.client.ep, &numbers[i], sizeof numbers[i], 1000 + i);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, sizeof values[i]);
        CHECK_INT(values[i], i * 3);
        (void)await_done(pair.client.cq, 1000 + i, SENT);
    }
    pair_close(&pair);
}

static void each_call(void)
{
    /* Descriptors are ignored. */
    void *ignored = CONTEXT(0xbad1);
    struct iovec piece = {(void *)(uintptr_t)pattern(0, 10), 10};
    struct fi_msg message = {
        .msg_iov = &piece, .desc = &ignored, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(3)};
    const uint64_t data[] = {0, 0, 77, 88, 99, 0, UINT64_MAX};
    uint8_t got[7][10] = {{0}};
    struct pair pair;
    struct fid_ep *ep;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 7; i++) {
        struct iovec target = {got[i], sizeof got[i]};
        struct fi_msg receive = {
            .msg_iov = &target, .desc = &ignored, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(i)};

        if (i % 3 == 0)
            CHECK_OK(fi_recv(pair.server.ep, got[i], sizeof got[i], ignored, FI_ADDR_UNSPEC, CONTEXT(i)));
        else if (i % 3 == 1)
            CHECK_OK(fi_recvv(pair.server.ep, &target, &ignored, 1, FI_ADDR_UNSPEC, CONTEXT(i)));
        else
            CHECK_OK(fi_recvmsg(pair.server.ep, &receive, FI_COMPLETION | (i == 2 ? FI_MORE : 0)));
    }
    ep = pair.client.ep;
    message.data = 77;
    CHECK_OK(fi_send(ep, pattern(0, 10), 10, ignored, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_sendv(ep, &piece, &ignored, 1, FI_ADDR_UNSPEC, CONTEXT(2)));
    CHECK_OK(fi_sendmsg(ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    CHECK_OK(fi_senddata(ep, pattern(0, 10), 10, ignored, 88, FI_ADDR_UNSPEC, CONTEXT(4)));
    CHECK_OK(fi_injectdata(ep, pattern(0, 10), 10, 99, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(ep, pattern(0, 10), 10, FI_ADDR_UNSPEC));
    CHECK_OK(fi_senddata(ep, pattern(0, 10), 10, NULL, UINT64_MAX, FI_ADDR_UNSPEC, CONTEXT(5)));
    for (unsigned i = 0; i < 7; i++) {
        bool with_data = i == 2 || i == 3 || i == 4 || i == 6;
        struct fi_cq_data_entry entry = await_done(pair.server.cq, i, RECEIVED | (with_data ? FI_REMOTE_CQ_DATA : 0));

        CHECK_INT(entry.len, 10);
        CHECK_INT(entry.data, data[i]);
        CHECK_BYTES(got[i], pattern(0, 10), 10);
    }
    for (unsigned i = 1; i <= 5; i++)
        CHECK_INT(await_done(pair.client.cq, i, SENT).len, 0);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void no_bytes(void)
{
    struct fi_msg nothing = {.addr = FI_ADDR_UNSPEC, .context = CONTEXT(5)};
    struct pair pair;

    messages_open(&pair, NULL);
    CHECK_OK(fi_recv(pair.server.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
    CHECK_OK(fi_recvmsg(pair.server.ep, &nothing, 0));
    /* Programs post such receives for messages without bytes. */
    CHECK_OK(fi_recv(pair.server.ep, NULL, 100, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
    CHECK_OK(fi_send(pair.client.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, CONTEXT(3)));
    CHECK_OK(fi_sendmsg(pair.client.ep, &nothing, 0));
    CHECK_OK(fi_injectdata(pair.client.ep, NULL, 0, 4, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, 0);
    CHECK_INT(await_done(pair.server.cq, 5, RECEIVED).len, 0);
    CHECK_INT(await_done(pair.server.cq, 2, RECEIVED | FI_REMOTE_CQ_DATA).data, 4);
    (void)await_done(pair.client.cq, 3, SENT);
    (void)await_done(pair.client.cq, 5, SENT);
    pair_close(&pair);
}

/* ---- inject ------------------------------------------------------------------------------- */

static void inject_copies(void)
{
    uint8_t buffer[MESSAGE_INJECT], got[MESSAGE_INJECT];
    struct iovec pieces[2] = {{buffer, 96}, {buffer + 96, sizeof buffer - 96}};
    struct fi_msg message = {.msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(6)};
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned round = 0; round < 20; round++) {
        memcpy(buffer, pattern(round, sizeof buffer), sizeof buffer);
        if (round % 2)
            CHECK_OK(fi_inject(pair.client.ep, buffer, sizeof buffer, FI_ADDR_UNSPEC));
        else
            CHECK_OK(fi_sendmsg(pair.client.ep, &message, FI_INJECT));
        memset(buffer, 0xee, sizeof buffer);
    }
    for (unsigned round = 0; round < 20; round++) {
        post_recv(pair.server.ep, got, sizeof got, round);
        CHECK_INT(await_done(pair.server.cq, round, RECEIVED).len, sizeof got);
        CHECK_BYTES(got, pattern(round, sizeof got), sizeof got);
        if (round % 2 == 0)
            (void)await_done(pair.client.cq, 6, SENT);
    }
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void message_inject_too_long(void)
{
    uint8_t *bytes = (uint8_t *)(uintptr_t)pattern(0, MESSAGE_INJECT + 1);
    struct iovec pieces[2] = {{bytes, MESSAGE_INJECT}, {bytes, 1}};
    struct fi_msg message = {.msg_iov = pieces, .iov_count = 2, .addr = FI_ADDR_UNSPEC};
    struct pair pair;

    messages_open(&pair, NULL);
    CHECK_INT(pair.client.info->tx_attr->inject_size, MESSAGE_INJECT);
    CHECK_RET(fi_inject(pair.client.ep, pattern(0, 4097), 4097, FI_ADDR_UNSPEC), -FI_EMSGSIZE);
    CHECK_RET(fi_injectdata(pair.client.ep, pattern(0, 4097), 4097, 1, FI_ADDR_UNSPEC), -FI_EMSGSIZE);
    CHECK_RET(fi_sendmsg(pair.client.ep, &message, FI_INJECT), -FI_EMSGSIZE);
    check_no_completion(pair.client.cq);
    messages_pass(&pair);
    pair_close(&pair);
}

static void inject_never_reports(void)
{
    struct pair pair;
    int answer;

    /* The connection ends with injected messages outstanding: none of them has an entry. */
    messages_open(&pair, NULL);
    do
        answer = (int)fi_inject(pair.client.ep, pattern(0, 4096), 4096, FI_ADDR_UNSPEC);
    while (answer == 0);
    CHECK_RET(answer, -FI_EAGAIN);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    check_no_completion(pair.client.cq);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

/* Copied bytes have a bound of their own, however long the queue is. */
static void inject_is_bounded(void)
{
    /* More than the sockets between take. */
    enum { LENGTH = 256 << 20, QUEUE = 8192 };
    struct message_settings settings = {.tx_size = QUEUE};
    uint8_t *memory = map_pages(LENGTH);
    unsigned injected = 0;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, &settings);
    post_send(pair.client.ep, memory, LENGTH, 1);
    while ((answer = fi_inject(pair.client.ep, pattern(0, 4096), 4096, FI_ADDR_UNSPEC)) == 0)
        injected++;
    CHECK_RET(answer, -FI_EAGAIN);
    printf("%u of 4096 bytes\n", injected);
    CHECK_BETWEEN(injected, 1, QUEUE / 4);
    /* What is not copied is still taken. */
    post_send(pair.client.ep, memory, 4096, 2);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    (void)await_failed(pair.client.cq, 1, SENT, FI_ECANCELED);
    (void)await_failed(pair.client.cq, 2, SENT, FI_ECANCELED);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
    unmap_pages(memory, LENGTH);
}

/* ---- which completions, and when ---------------------------------------------------------- */

static void selective(void)
{
    struct message_settings settings = {.bind_flags = FI_SELECTIVE_COMPLETION};
    struct iovec out = {(void *)(uintptr_t)"x", 1}, in[4];
    struct fi_msg message = {.msg_iov = &out, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct pair pair;
    uint8_t got[4] = {0};

    messages_open(&pair, &settings);
    for (unsigned i = 0; i < 4; i++) {
        in[i] = (struct iovec){&got[i], 1};
        message.msg_iov = &in[i];
        message.context = CONTEXT(10 + i);
        CHECK_OK(fi_recvmsg(pair.server.ep, &message, i % 2 ? FI_COMPLETION : 0));
    }
    message.msg_iov = &out;
    for (unsigned i = 0; i < 3; i++) {
        message.context = CONTEXT(i);
        CHECK_OK(fi_sendmsg(pair.client.ep, &message, i == 2 ? FI_COMPLETION : 0));
    }
    post_send(pair.client.ep, "y", 1, 3);
    (void)await_done(pair.server.cq, 11, RECEIVED);
    (void)await_done(pair.server.cq, 13, RECEIVED);
    (void)await_done(pair.client.cq, 2, SENT);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    CHECK_BYTES(got, "xxxy", 4);
    /* A failure is reported nevertheless. */
    message.msg_iov = &in[0];
    message.context = CONTEXT(20);
    CHECK_OK(fi_recvmsg(pair.server.ep, &message, 0));
    post_send(pair.client.ep, "long", 4, 21);
    (void)await_failed(pair.server.cq, 20, RECEIVED, FI_ETRUNC);
    pair_close(&pair);
}

static void flags_of_endpoint(void)
{
    struct message_settings settings = {
        .bind_flags = FI_SELECTIVE_COMPLETION, .tx_flags = FI_COMPLETION, .rx_flags = FI_COMPLETION};
    struct iovec piece = {&(uint8_t){0}, 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(9)};
    uint8_t got[2];
    struct pair pair;

    messages_open(&pair, &settings);
    CHECK_INT(pair.client.info->tx_attr->op_flags, FI_COMPLETION);
    post_recv(pair.server.ep, &got[0], 1, 1);
    CHECK_OK(fi_recvmsg(pair.server.ep, &message, 0));
    /* Calls with flags use these alone. */
    post_send(pair.client.ep, "x", 1, 2);
    CHECK_OK(fi_sendmsg(pair.client.ep, &message, 0));
    post_recv(pair.server.ep, &got[1], 1, 3);
    post_send(pair.client.ep, "z", 1, 4);
    (void)await_done(pair.server.cq, 1, RECEIVED);
    (void)await_done(pair.server.cq, 3, RECEIVED);
    (void)await_done(pair.client.cq, 2, SENT);
    (void)await_done(pair.client.cq, 4, SENT);
    check_no_completion(pair.server.cq);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void levels(void)
{
    const uint64_t levels[] = {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE};
    struct iovec piece = {(void *)(uintptr_t)pattern(0, 20000), 20000};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    static uint8_t got[20000];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 3; i++) {
        message.context = CONTEXT(i);
        post_recv(pair.server.ep, got, sizeof got, 100 + i);
        CHECK_OK(fi_sendmsg(pair.client.ep, &message, levels[i] | FI_COMPLETION));
        (void)await_done(pair.server.cq, 100 + i, RECEIVED);
        (void)await_done(pair.client.cq, i, SENT);
    }
    CHECK_RET(fi_sendmsg(pair.client.ep, &message, levels[3]), -FI_EBADFLAGS);
    pair_close(&pair);
}

static void ignored_flags(void)
{
    const uint64_t flags[] = {PRIORITY, 1ULL << 60, 1ULL << 61, 1ULL << 62, 1ULL << 63};
    uint8_t target[10] = {0}, got = 0;
    struct iovec out = {(void *)(uintptr_t)"x", 1}, in = {&got, 1};
    struct fi_rma_iov remote = {.len = 1, .key = 1};
    struct fi_msg send = {.msg_iov = &out, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(1)};
    struct fi_msg receive = {.msg_iov = &in, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(2)};
    struct fi_msg_rma write = {.msg_iov = &out, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &remote,
                               .rma_iov_count = 1, .context = CONTEXT(3)};
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 5; i++) {
        /* Calls other than those that send have no priority. */
        uint64_t own = flags[i] == PRIORITY ? 0 : flags[i];

        note("flag 0x%llx", (unsigned long long)flags[i]);
        memset(target, 0, sizeof target);
        CHECK_OK(fi_mr_reg(pair.server.domain, target, sizeof target, FI_REMOTE_WRITE, 0, 1, own, &region, NULL));
        CHECK_OK(fi_recvmsg(pair.server.ep, &receive, own));
        CHECK_OK(fi_writemsg(pair.client.ep, &write, flags[i]));
        CHECK_OK(fi_sendmsg(pair.client.ep, &send, flags[i]));
        CHECK_INT(await_done(pair.server.cq, 2, RECEIVED).len, 1);
        CHECK_INT(got, 'x');
        CHECK_INT(target[0], 'x');
        (void)await_done(pair.client.cq, 3, WRITTEN);
        (void)await_done(pair.client.cq, 1, SENT);
        close_fid(&region->fid);
        got = 0;
    }
    pair_close(&pair);
}

static void delivery_waits(void)
{
    struct message_settings settings = {.tx_flags = FI_DELIVERY_COMPLETE};
    static uint8_t got[100000];
    struct pair pair;

    /* Such a send completes after its message is in the receive, not before there is one. */
    messages_open(&pair, &settings);
    post_send(pair.client.ep, pattern(0, sizeof got), sizeof got, 1);
    drive_for(50);
    check_no_completion(pair.client.cq);
    post_recv(pair.server.ep, got, sizeof got, 2);
    (void)await_done(pair.client.cq, 1, SENT);
    CHECK_BYTES(got, pattern(0, sizeof got), sizeof got);
    (void)await_done(pair.server.cq, 2, RECEIVED);
    pair_close(&pair);
}

static void more_and_fence(void)
{
    uint8_t target[1000] = {0}, got[8], local[500];
    struct iovec piece = {(void *)(uintptr_t)"m", 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct fid_mr *region;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 8; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    for (unsigned i = 0; i < 4; i++) {
        message.context = CONTEXT(20 + i);
        CHECK_OK(fi_sendmsg(pair.client.ep, &message, i < 3 ? FI_MORE : 0));
    }
    for (unsigned i = 0; i < 4; i++) {
        (void)await_done(pair.server.cq, i, RECEIVED);
        (void)await_done(pair.client.cq, 20 + i, SENT);
    }
    /* A fenced send goes out when the reads before it are done. */
    region = message_region(&pair.server, target, sizeof target, 1);
    memset(target, 5, sizeof target);
    CHECK_OK(fi_read(pair.client.ep, local, sizeof local, NULL, FI_ADDR_UNSPEC, 0, 1, CONTEXT(30)));
    message.context = CONTEXT(31);
    AWAIT(PATIENCE_MS, (answer = fi_sendmsg(pair.client.ep, &message, FI_FENCE)) != -FI_EAGAIN);
    CHECK_RET(answer, 0);
    for (unsigned i = 0; i < sizeof local; i++)
        CHECK_INT(local[i], 5);
    (void)await_done(pair.client.cq, 30, WAS_READ);
    (void)await_done(pair.client.cq, 31, SENT);
    close_fid(&region->fid);
    pair_close(&pair);
}

/* FI_MORE on the last call delays, but does not lose: any later call sends it. */
static void more_at_the_end(void)
{
    struct iovec piece = {(void *)(uintptr_t)"m", 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(1)};
    struct pair pair;
    uint8_t got = 0;

    messages_open(&pair, NULL);
    post_recv(pair.server.ep, &got, 1, 2);
    CHECK_OK(fi_sendmsg(pair.client.ep, &message, FI_MORE));
    (void)await_done(pair.server.cq, 2, RECEIVED);
    (void)await_done(pair.client.cq, 1, SENT);
    pair_close(&pair);
}

/* ---- receives ----------------------------------------------------------------------------- */

static void truncation(void)
{
    const size_t lengths[] = {11, 5000, 200000}, rooms[] = {0, 1, 10};
    static uint8_t got[20];
    struct fi_cq_err_entry error;
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 9; i++) {
        size_t length = lengths[i / 3], room = rooms[i % 3];

        memset(got, 0xcc, sizeof got);
        post_recv(pair.server.ep, got, room, 1);
        post_recv(pair.server.ep, got + 10, 2, 2);
        post_send(pair.client.ep, pattern(0, length), length, 3);
        post_send(pair.client.ep, "ok", 2, 4);
        error = await_failed(pair.server.cq, 1, RECEIVED, FI_ETRUNC);
        CHECK_INT(error.len, room);
        CHECK_INT(error.olen, length - room);
        CHECK_BYTES(got, pattern(0, room), room);
        for (size_t at = room; at < 10; at++)
            CHECK_INT(got[at], 0xcc);
        CHECK_INT(await_done(pair.server.cq, 2, RECEIVED).len, 2);
        CHECK_BYTES(got + 10, "ok", 2);
        /* The sender does not notice. */
        (void)await_done(pair.client.cq, 3, SENT);
        (void)await_done(pair.client.cq, 4, SENT);
    }
    messages_pass(&pair);
    pair_close(&pair);
}

static void cancel(void)
{
    struct fi_cq_err_entry error;
    uint8_t got[5][10];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 5; i++)
        post_recv(pair.server.ep, got[i], sizeof got[i], i + 1);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(2)));
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(4)));
    CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(2)), -FI_ENOENT);
    CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(77)), -FI_ENOENT);
    error = await_failed(pair.server.cq, 2, RECEIVED, FI_ECANCELED);
    CHECK_INT(error.len, 0);
    CHECK_INT(error.olen, 0);
    (void)await_failed(pair.server.cq, 4, RECEIVED, FI_ECANCELED);
    for (unsigned i = 0; i < 3; i++)
        post_send(pair.client.ep, pattern(i, 10), 10, 10 + i);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_INT(await_done(pair.server.cq, 1 + 2 * i, RECEIVED).len, 10);
        CHECK_BYTES(got[2 * i], pattern(i, 10), 10);
        CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(1 + 2 * i)), -FI_ENOENT);
    }
    for (unsigned i = 0; i < 3; i++)
        (void)await_done(pair.client.cq, 10 + i, SENT);
    messages_pass(&pair);
    pair_close(&pair);
}

/* Before its connection, and while it connects. */
static void cancel_before_connected(void)
{
    struct side listener, client, server;
    struct event request;
    uint8_t got[4];

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_enable(client.ep));
    for (unsigned i = 0; i < 4; i++)
        post_recv(client.ep, &got[i], 1, i);
    for (unsigned connects = 0; connects < 2; connects++) {
        if (connects)
            CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        CHECK_OK(fi_cancel(&client.ep->fid, CONTEXT(1 + connects)));
        CHECK_RET(fi_cancel(&client.ep->fid, CONTEXT(1 + connects)), -FI_ENOENT);
        (void)await_failed(client.cq, 1 + connects, RECEIVED, FI_ECANCELED);
        CHECK_RET(fi_rx_size_left(client.ep), MESSAGE_QUEUE - 3 + connects);
    }
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, NULL);
    message_accept(&client, &server);
    for (unsigned i = 0; i < 4; i += 3) {
        CHECK_OK(fi_inject(server.ep, pattern(i, 1), 1, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(client.cq, i, RECEIVED).len, 1);
        CHECK_BYTES(&got[i], pattern(i, 1), 1);
    }
    check_no_completion(client.cq);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void cancel_only_receives(void)
{
    static uint8_t got[PATTERN_MAX];
    struct pair pair;

    messages_open(&pair, NULL);
    /* This send stays outstanding: there is no receive, and the message is longer than any buffer between. */
    for (unsigned i = 0; i < 4; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, 1);
    drive_for(20);
    CHECK_RET(fi_cancel(&pair.client.ep->fid, CONTEXT(1)), -FI_ENOENT);
    for (unsigned i = 0; i < 4; i++) {
        post_recv(pair.server.ep, got, PATTERN_MAX, 2);
        CHECK_INT(await_done(pair.server.cq, 2, RECEIVED).len, PATTERN_MAX);
        CHECK_BYTES(got, pattern(0, PATTERN_MAX), PATTERN_MAX);
        (void)await_done(pair.client.cq, 1, SENT);
    }
    pair_close(&pair);
}

/* One context for several receives: each call cancels one that no message has reached. */
static void cancel_same_context(void)
{
    /* More than arrives in a few calls. */
    enum { LENGTH = 64 << 20 };
    uint8_t *got = map_pages(LENGTH), *sent = map_pages(LENGTH);
    uint8_t others[2];
    struct pair pair;

    memset(sent, 1, LENGTH);
    messages_open(&pair, NULL);
    post_recv(pair.server.ep, got, LENGTH, 1);
    post_recv(pair.server.ep, &others[0], 1, 1);
    post_recv(pair.server.ep, &others[1], 1, 1);
    post_send(pair.client.ep, sent, LENGTH, 2);
    /* The beginning of the message has taken the first receive. */
    AWAIT(PATIENCE_MS, got[0] == 1);
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(1)));
    CHECK_OK(fi_cancel(&pair.server.ep->fid, CONTEXT(1)));
    CHECK_RET(fi_cancel(&pair.server.ep->fid, CONTEXT(1)), -FI_ENOENT);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, LENGTH);
    CHECK_BYTES(got, sent, LENGTH);
    (void)await_done(pair.client.cq, 2, SENT);
    pair_close(&pair);
    unmap_pages(got, LENGTH);
    unmap_pages(sent, LENGTH);
}

/* ---- no receive posted, full queues ------------------------------------------------------- */

static void pauses(void)
{
    const size_t lengths[] = {0, 1, 100, 5000, 60000, 300000};
    static uint8_t got[300000];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 200; i++)
        post_send(pair.client.ep, pattern(i, lengths[i % 6]), lengths[i % 6], i);
    drive_for(100);
    check_no_event(pair.client.eq);
    check_no_event(pair.listener.eq);
    check_no_completion(pair.server.cq);
    for (unsigned i = 0; i < 200; i++) {
        post_recv(pair.server.ep, got, sizeof got, 1000 + i);
        CHECK_INT(await_done(pair.server.cq, 1000 + i, RECEIVED).len, lengths[i % 6]);
        CHECK_BYTES(got, pattern(i, lengths[i % 6]), lengths[i % 6]);
        (void)await_done(pair.client.cq, i, SENT);
    }
    pair_close(&pair);
}

/* Takes the next completion of either side, and counts it by its kind. */
static void count_completion(struct side *side, unsigned *sends, unsigned *receives, unsigned *reads)
{
    struct fi_cq_data_entry entry;
    ssize_t answer = fi_cq_read(side->cq, &entry, 1);

    if (answer == -FI_EAGAIN) {
        drive();
        return;
    }
    CHECK_RET(answer, 1);
    *sends += entry.flags == SENT;
    *receives += entry.flags == RECEIVED;
    *reads += entry.flags == WAS_READ;
}

/* Both sides pause with messages and reads outstanding. */
static void both_pause(void)
{
    enum { LENGTH = 200000, COUNT = 30 };
    static uint8_t got[2][COUNT][LENGTH], read[2][LENGTH];
    struct fid_mr *regions[2];
    struct pair pair;
    struct side *sides[2] = {&pair.client, &pair.server};
    unsigned sends = 0, receives = 0, reads = 0;

    messages_open(&pair, NULL);
    for (unsigned s = 0; s < 2; s++)
        regions[s] = message_region(sides[s], (void *)(uintptr_t)pattern(s, LENGTH), LENGTH, 7);
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned i = 0; i < COUNT; i++)
            post_send(sides[s]->ep, pattern(i, LENGTH), LENGTH, i);
        CHECK_OK(fi_read(sides[s]->ep, read[s], LENGTH, NULL, FI_ADDR_UNSPEC, 0, 7, CONTEXT(500)));
    }
    drive_for(100);
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        post_recv(sides[i % 2]->ep, got[i % 2][i / 2], LENGTH, i);
        AWAIT(PATIENCE_MS, (count_completion(&pair.client, &sends, &receives, &reads),
                            count_completion(&pair.server, &sends, &receives, &reads), receives > i));
        CHECK_BYTES(got[i % 2][i / 2], pattern(i / 2, LENGTH), LENGTH);
    }
    AWAIT(PATIENCE_MS, (count_completion(&pair.client, &sends, &receives, &reads),
                        count_completion(&pair.server, &sends, &receives, &reads), sends == 2 * COUNT && reads == 2));
    for (unsigned s = 0; s < 2; s++) {
        CHECK_BYTES(read[s], pattern(!s, LENGTH), LENGTH);
        close_fid(&regions[s]->fid);
    }
    pair_close(&pair);
}

static void full_queues(void)
{
    struct message_settings settings = {.tx_size = 5, .rx_size = 9};
    static uint8_t got[9], big[PATTERN_MAX];
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, &settings);
    CHECK_INT(pair.client.info->tx_attr->size, 5);
    CHECK_INT(pair.client.info->rx_attr->size, 9);
    CHECK_RET(fi_rx_size_left(pair.server.ep), 9);
    for (unsigned i = 0; i < 9; i++)
        post_recv(pair.server.ep, &got[i], 1, i);
    CHECK_RET(fi_rx_size_left(pair.server.ep), 0);
    check_receives(pair.server.ep, -FI_EAGAIN);
    CHECK_RET(fi_tx_size_left(pair.client.ep), 5);
    for (unsigned i = 0; i < 9; i++) {
        AWAIT(PATIENCE_MS, (answer = fi_send(pair.client.ep, "x", 1, NULL, FI_ADDR_UNSPEC, NULL)) != -FI_EAGAIN);
        CHECK_RET(answer, 0);
    }
    for (unsigned i = 0; i < 9; i++)
        (void)await_done(pair.server.cq, i, RECEIVED);
    CHECK_RET(fi_rx_size_left(pair.server.ep), 9);
    for (unsigned i = 0; i < 9; i++)
        (void)await_done(pair.client.cq, 0, SENT);
    for (unsigned i = 0; i < 5; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    check_calls(pair.client.ep, -FI_EAGAIN);
    CHECK_RET(fi_tx_size_left(pair.client.ep), 0);
    for (unsigned i = 0; i < 5; i++) {
        post_recv(pair.server.ep, big, sizeof big, i);
        (void)await_done(pair.server.cq, i, RECEIVED);
        (void)await_done(pair.client.cq, i, SENT);
    }
    CHECK_RET(fi_tx_size_left(pair.client.ep), 5);
    messages_pass(&pair);
    pair_close(&pair);
}

/* ---- bad input ---------------------------------------------------------------------------- */

static void bad_arguments(void)
{
    struct iovec null = {NULL, 5}, five[5] = {{0}}, huge = {(void *)(uintptr_t)"x", (size_t)UINT32_MAX + 1};
    _Alignas(16) uint8_t bytes[sizeof(struct iovec) + 16] = {0};
    const struct iovec *misaligned = (const void *)(bytes + 1);
    struct fi_msg message = {.msg_iov = &null, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct pair pair;
    struct fid_ep *ep;

    messages_open(&pair, NULL);
    ep = pair.client.ep;
    CHECK_RET(fi_send(ep, NULL, 5, NULL, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_inject(ep, NULL, 5, FI_ADDR_UNSPEC), -FI_EINVAL);
    CHECK_RET(fi_injectdata(ep, NULL, 5, 1, FI_ADDR_UNSPEC), -FI_EINVAL);
    CHECK_RET(fi_senddata(ep, NULL, 5, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, &null, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, five, NULL, 5, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, five, NULL, 5, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, five, NULL, SIZE_MAX, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, misaligned, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, misaligned, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_sendmsg(ep, &message, 0), -FI_EINVAL);
    message = (struct fi_msg){.msg_iov = five, .iov_count = 5, .addr = FI_ADDR_UNSPEC};
    CHECK_RET(fi_sendmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(ep, &message, 0), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, &huge, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_recvv(ep, &huge, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    huge.iov_len = SIZE_MAX;
    CHECK_RET(fi_sendv(ep, &huge, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    /* Each piece has a length that is allowed, and the message has not. */
    for (unsigned i = 0; i < 4; i++)
        five[i] = (struct iovec){(void *)(uintptr_t)"x", UINT32_MAX};
    CHECK_RET(fi_sendv(ep, five, NULL, 4, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_recvv(ep, five, NULL, 4, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    /* The data goes with the message, and takes 8 bytes of its length. */
    CHECK_RET(fi_senddata(ep, "x", (size_t)UINT32_MAX - 7, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    message = (struct fi_msg){.addr = FI_ADDR_UNSPEC};
    CHECK_RET(fi_sendmsg(ep, &message, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(fi_sendmsg(ep, &message, FI_PEEK), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(ep, &message, UNKNOWN_FLAG), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(ep, &message, FI_MULTI_RECV), -FI_EBADFLAGS);
    CHECK_RET(fi_recvmsg(ep, &message, FI_PEEK), -FI_EBADFLAGS);
    check_no_completion(pair.client.cq);
    CHECK_RET(fi_tx_size_left(ep), MESSAGE_QUEUE);
    CHECK_RET(fi_rx_size_left(ep), MESSAGE_QUEUE);
    messages_pass(&pair);
    pair_close(&pair);
}

static void other_calls(void)
{
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_poll_attr poll_attr = {0};
    struct fid_av *av = NULL;
    struct fid_wait *wait = NULL;
    struct fid_poll *poll = NULL;
    struct fid_stx *stx = NULL;
    struct fid_ep *other = NULL;
    uint64_t value = 0;
    struct pair pair;
    struct fid_ep *ep;
    struct fid *domain;
    void *ops;

    messages_open(&pair, NULL);
    ep = pair.client.ep;
    domain = &pair.client.domain->fid;
    CHECK_RET(fi_av_open(pair.client.domain, &av_attr, &av, NULL), -FI_ENOSYS);
    CHECK_RET(fi_wait_open(pair.client.fabric, &wait_attr, &wait), -FI_ENOSYS);
    CHECK_RET(fi_poll_open(pair.client.domain, &poll_attr, &poll), -FI_ENOSYS);
    CHECK_RET(fi_stx_context(pair.client.domain, pair.client.info->tx_attr, &stx, NULL), -FI_ENOSYS);
    CHECK_RET(fi_scalable_ep(pair.client.domain, pair.client.info, &other, NULL), -FI_ENOSYS);
    CHECK_RET(fi_tx_context(ep, 0, pair.client.info->tx_attr, &other, NULL), -FI_ENOSYS);
    CHECK_RET(fi_rx_context(ep, 0, pair.client.info->rx_attr, &other, NULL), -FI_ENOSYS);
    CHECK_RET(fi_ep_alias(ep, &other, 0), -FI_ENOSYS);
    /* ofi_rxm lets a provider live without its flow control only with this error. */
    CHECK_RET(fi_open_ops(domain, "ofix_flow_ctrl_v1", 0, &ops, NULL), -FI_ENOSYS);
    CHECK_RET(fi_open_ops(domain, "ofix_dynamic_rbuf_v2", 0, &ops, NULL), -FI_ENOSYS);
    CHECK_RET(fi_set_ops(domain, "ofix_dynamic_rbuf_v2", 0, &value, NULL), -FI_ENOSYS);
    CHECK_RET(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, sizeof value), -FI_ENOPROTOOPT);
    CHECK(av == NULL && wait == NULL && poll == NULL && stx == NULL && other == NULL);
    messages_pass(&pair);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(every_length, "messages of 0 bytes to 4 MiB arrive as they were sent"),
    TEST(each_family, "over IPv4 and IPv6"),
    TEST(scatter_and_gather, "up to 4 pieces on either side, empty ones too"),
    TEST(in_order, "messages and their completions keep the order of the calls"),
    TEST(each_call, "every call that sends or receives, with any descriptor; remote CQ data of 64 bits"),
    TEST(no_bytes, "messages and receives without bytes; a null receive of any length"),
    TEST(inject_copies, "fi_inject and FI_INJECT: the buffer is free when the call returns"),
    TEST(message_inject_too_long, "more than inject_size: -FI_EMSGSIZE"),
    TEST(inject_never_reports, "fi_inject has no completion, not even of a failure"),
    TEST(inject_is_bounded, "copied bytes that find no room give -FI_EAGAIN, long before the queue is full"),
    TEST(selective, "FI_SELECTIVE_COMPLETION: only successes that ask for it, and every failure"),
    TEST(flags_of_endpoint, "op_flags hold for calls without flags"),
    TEST(levels, "FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE; no FI_MATCH_COMPLETE"),
    TEST(ignored_flags, "FI_PRIORITY and the bits from 60 on, which are libfabric's own, ask for nothing"),
    TEST(delivery_waits, "FI_DELIVERY_COMPLETE: after the message is in its receive"),
    TEST(more_and_fence, "FI_MORE announces another call; FI_FENCE waits for earlier reads"),
    TEST(more_at_the_end, "a message with FI_MORE goes out when the queue is read"),
    TEST(truncation, "a message longer than its receive: FI_ETRUNC, and the connection lives"),
    TEST(cancel, "fi_cancel of a posted receive: FI_ECANCELED once; else -FI_ENOENT"),
    TEST(cancel_before_connected, "the same before the connection, and while it is being made"),
    TEST(cancel_only_receives, "sends cannot be cancelled"),
    TEST(cancel_same_context, "receives with one context: each call cancels one of them"),
    TEST(pauses, "no receive posted: the message waits, nothing is lost"),
    TEST(both_pause, "two sides that wait for receives do not hang each other"),
    TEST(full_queues, "queues take exactly their sizes, then -FI_EAGAIN"),
    TEST(bad_arguments, "null, misaligned, too many, too long, unknown flags: errors, and nothing changes"),
    TEST(other_calls, "address vectors, wait and poll sets, scalable endpoints, operations of domains: -FI_ENOSYS"),
};

const struct section messages_section = SECTION("messages", tests);
