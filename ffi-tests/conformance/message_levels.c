/* Contract, section Message endpoints: when operations are complete, as the flags of a call or of the endpoint ask. */
#include "message.h"

enum { LENGTH = 10000, SHORT = 1000, KEY = 1 };

static uint8_t here[LENGTH], got[LENGTH], target[LENGTH];

static ssize_t send_with(struct fid_ep *ep, const void *data, size_t length, uint64_t flags, uintptr_t context)
{
    struct iovec piece = {(void *)(uintptr_t)data, length};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(context)};

    return fi_sendmsg(ep, &message, flags);
}

/* A call with flags uses these alone: its message is complete before there is a receive for it unless they ask for
 * FI_DELIVERY_COMPLETE. */
static void delivery_of_call(void)
{
    for (unsigned asks = 0; asks < 2; asks++) {
        struct message_settings settings = {.tx_flags = asks ? 0 : FI_DELIVERY_COMPLETE};
        uint64_t flags = FI_COMPLETION | (asks ? FI_DELIVERY_COMPLETE : 0);
        struct pair pair;

        note("asks %u", asks);
        memset(got, 0, LENGTH);
        messages_open(&pair, &settings);
        CHECK_OK(send_with(pair.client.ep, pattern(asks, LENGTH), LENGTH, flags, 1));
        if (asks) {
            drive_for(50);
            check_no_completion(pair.client.cq);
        } else {
            (void)await_done(pair.client.cq, 1, SENT);
        }
        post_recv(pair.server.ep, got, LENGTH, 2);
        if (asks) {
            (void)await_done(pair.client.cq, 1, SENT);
            CHECK_BYTES(got, pattern(asks, LENGTH), LENGTH);
        }
        CHECK_INT(await_done(pair.server.cq, 2, RECEIVED).len, LENGTH);
        check_no_completion(pair.client.cq);
        pair_close(&pair);
    }
}

/* Fills the memory of a call, and so overwrites that of the call before. */
static void *bytes_of(unsigned call)
{
    return memcpy(here, pattern(call, SHORT), SHORT);
}

/* FI_INJECT in op_flags: calls without flags copy, behind a message that nothing passes, and take no more than
 * inject_size. */
static void inject_of_endpoint(void)
{
    /* More than the sockets hold, and a queue with much room for copied bytes. */
    enum { LONG = 32 << 20, QUEUE = 8192, BEYOND = MESSAGE_INJECT + 1, MESSAGES = 3 };
    struct message_settings settings = {.tx_size = QUEUE, .tx_flags = FI_INJECT};
    struct iovec piece = {here, SHORT}, beyond = {here, BEYOND};
    uint8_t *sent = map_pages(LONG), *long_one = map_pages(LONG);
    struct fid_mr *region;
    struct pair pair;
    struct fid_ep *ep;

    messages_open(&pair, &settings);
    ep = pair.client.ep;
    CHECK_INT(pair.client.info->tx_attr->op_flags, FI_INJECT);
    region = message_region(&pair.server, target, sizeof target, KEY);
    CHECK_OK(send_with(ep, sent, LONG, 0, 0));
    CHECK_OK(fi_send(ep, bytes_of(1), SHORT, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
    (void)bytes_of(2);
    CHECK_OK(fi_sendv(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, CONTEXT(2)));
    CHECK_OK(fi_senddata(ep, bytes_of(3), SHORT, NULL, 33, FI_ADDR_UNSPEC, CONTEXT(3)));
    CHECK_OK(fi_write(ep, bytes_of(4), SHORT, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(4)));
    (void)bytes_of(5);
    CHECK_OK(fi_writev(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, SHORT, KEY, CONTEXT(5)));
    CHECK_OK(fi_writedata(ep, bytes_of(6), SHORT, NULL, 66, FI_ADDR_UNSPEC, 2 * SHORT, KEY, CONTEXT(6)));
    memset(here, 0xee, sizeof here);
    CHECK_RET(fi_send(ep, here, BEYOND, NULL, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_sendv(ep, &beyond, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_senddata(ep, here, BEYOND, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_write(ep, here, BEYOND, NULL, FI_ADDR_UNSPEC, 0, KEY, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_writev(ep, &beyond, NULL, 1, FI_ADDR_UNSPEC, 0, KEY, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_writedata(ep, here, BEYOND, NULL, 1, FI_ADDR_UNSPEC, 0, KEY, NULL), -FI_EMSGSIZE);
    CHECK_RET(fi_tx_size_left(ep), QUEUE - 1 - 2 * MESSAGES);
    check_no_completion(pair.client.cq);
    post_recv(pair.server.ep, long_one, LONG, 0);
    CHECK_INT(await_done(pair.server.cq, 0, RECEIVED).len, LONG);
    for (unsigned i = 1; i <= MESSAGES; i++) {
        post_recv(pair.server.ep, got, SHORT, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED | (i == 3 ? FI_REMOTE_CQ_DATA : 0)).len, SHORT);
        CHECK_BYTES(got, pattern(i, SHORT), SHORT);
    }
    CHECK_INT(await_done(pair.server.cq, 0, REMOTE_WRITTEN).data, 66);
    for (unsigned i = 0; i < 3; i++)
        CHECK_BYTES(target + i * SHORT, pattern(MESSAGES + 1 + i, SHORT), SHORT);
    for (unsigned i = 0; i <= 2 * MESSAGES; i++)
        (void)await_done(pair.client.cq, i, i <= MESSAGES ? SENT : WRITTEN);
    /* It asks for nothing in a read. */
    CHECK_OK(fi_read(ep, here, BEYOND, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(7)));
    (void)await_done(pair.client.cq, 7, WAS_READ);
    CHECK_BYTES(here, target, BEYOND);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    close_fid(&region->fid);
    pair_close(&pair);
    unmap_pages(sent, LONG);
    unmap_pages(long_one, LONG);
}

static const struct test tests[] = {
    TEST(delivery_of_call, "FI_DELIVERY_COMPLETE in the flags of fi_sendmsg counts, and that of op_flags does not"),
    TEST(inject_of_endpoint, "FI_INJECT in op_flags: calls without flags copy; more than inject_size: -FI_EMSGSIZE"),
};

const struct section message_levels_section = SECTION("completion levels of message endpoints", tests);
