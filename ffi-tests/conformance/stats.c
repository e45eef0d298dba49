/* Contract, section Statistics: the statistics of a connection, through fi_open_ops and in the log. */
#include "message.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "../iwarp_wire.h"

static struct rstream_endpoint_ops *open_ops(struct fid_ep *ep)
{
    struct rstream_endpoint_ops *ops = NULL;

    CHECK_OK(fi_open_ops(&ep->fid, RSTREAM_ENDPOINT_OPS, 0, (void **)&ops, NULL));
    CHECK(ops != NULL && ops->size >= sizeof *ops && ops->stats != NULL);
    return ops;
}

struct rstream_stats stats_of(struct fid_ep *ep)
{
    struct rstream_stats stats;

    memset(&stats, 0xee, sizeof stats);
    CHECK_OK(open_ops(ep)->stats(ep, &stats, sizeof stats));
    return stats;
}

static bool all_zero(const void *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (((const uint8_t *)data)[i])
            return false;
    return true;
}

static void zero_before_connected(void)
{
    struct fi_info *hints = stream_hints();
    struct rstream_stats stats;
    struct side side;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    stats = stats_of(side.ep);
    CHECK(all_zero(&stats, sizeof stats));
    side_close(&side);
    fi_freeinfo(hints);
}

static void calls_and_bytes(void)
{
    struct iovec iov = {(void *)(uintptr_t)pattern(300, 200), 200};
    struct fi_msg message = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct rstream_stats sender, receiver;
    uint8_t buffer[1000];
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(recv_once(pair.server.ep, buffer, sizeof buffer), -FI_EAGAIN);
    CHECK_RET(send_once(pair.client.ep, pattern(0, 300), 300), 300);
    CHECK_RET(fi_sendmsg(pair.client.ep, &message, 0), 200);
    CHECK_RET(fi_inject(pair.client.ep, pattern(500, 100), 100, FI_ADDR_UNSPEC), 100);
    CHECK(fi_sendmsg(pair.client.ep, &message, FI_PEEK) > 0);
    recv_pattern(pair.server.ep, 0, 600);

    sender = stats_of(pair.client.ep);
    receiver = stats_of(pair.server.ep);
    CHECK_INT(sender.bytes_sent, 600);
    CHECK_INT(sender.send_calls, 3);
    CHECK_INT(sender.send_waits, 0);
    CHECK_INT(sender.messages_sent, 3);
    CHECK_INT(sender.bytes_received + sender.receive_calls + sender.messages_received, 0);
    CHECK_INT(receiver.bytes_received, 600);
    CHECK_INT(receiver.messages_received, 3);
    CHECK(receiver.receive_waits >= 1 && receiver.receive_calls >= receiver.receive_waits + 1);
    CHECK_INT(receiver.bytes_sent + receiver.send_calls + receiver.messages_sent, 0);
    CHECK_INT(sender.refused + receiver.refused, 0);
    pair_close(&pair);
}

static void waits_and_updates(void)
{
    struct rstream_stats sender, receiver;
    struct pair pair;
    size_t filled;

    pair_open(&pair, IPV4, NULL);
    filled = fill(pair.client.ep, 0);
    sender = stats_of(pair.client.ep);
    CHECK(sender.send_waits >= 1);
    CHECK_INT(sender.bytes_sent, filled);
    CHECK_INT(sender.updates_received, 0);
    /* At least one update returns the room of the bytes that were read. */
    recv_pattern(pair.server.ep, 0, filled);
    AWAIT(2000, stats_of(pair.client.ep).updates_received > 0);
    sender = stats_of(pair.client.ep);
    receiver = stats_of(pair.server.ep);
    CHECK_INT(receiver.updates_sent, sender.updates_received);
    CHECK_INT(receiver.messages_received, sender.messages_sent);
    pair_close(&pair);
}

/* A raw peer that connects correctly, with a ring of 4096 bytes and 16 receives, and then sends what the
 * protocol does not allow. */
static void refused_input(void)
{
    uint8_t frame[128], offer[25] = {24, [19] = 0x10, [22] = 16, [23] = 2}, garbage[24];
    struct rstream_stats stats;
    struct side listener, server;
    struct event event;
    size_t length;
    uint8_t byte;
    int fd;

    side_listen(&listener, IPV4, NULL);
    fd = stranger_connect(fid_port(&listener.pep->fid));
    length = mpa_frame(frame, MPA_REQUEST, 1, 0, offer, sizeof offer);
    CHECK_INT(CHECK_SYS(write(fd, frame, length)), length);
    event = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &event, NULL, 0);
    await_event(listener.eq, FI_CONNECTED);
    CHECK_INT(stats_of(server.ep).refused, 0);
    memset(garbage, 0xff, sizeof garbage);
    put_be(garbage, 18, 2);
    CHECK_INT(CHECK_SYS(write(fd, garbage, sizeof garbage)), sizeof garbage);
    CHECK_RET(recv_wait(server.ep, &byte, 1), -FI_ECONNRESET);
    stats = stats_of(server.ep);
    CHECK_INT(stats.refused, 1);
    CHECK_INT(stats.bytes_received, 0);
    close(fd);
    side_close(&server);
    side_close(&listener);
}

/* ---- message endpoints -------------------------------------------------------------------- */

static void operations_and_bytes(void)
{
    struct iovec iov = {(void *)(uintptr_t)pattern(0, 200), 200};
    struct rstream_stats client, server;
    uint8_t got[4][500];
    struct fid_mr *region;
    struct pair pair;
    uint64_t key;

    messages_open(&pair, NULL);
    client = stats_of(pair.client.ep);
    CHECK(all_zero(&client, sizeof client));
    region = message_region(&pair.server, got[3], sizeof got[3], 0x77);
    key = fi_mr_key(region);
    post_recv(pair.server.ep, got[0], sizeof got[0], 1);
    post_recv(pair.server.ep, got[1], 50, 2);
    post_recv(pair.server.ep, got[2], sizeof got[2], 3);
    post_send(pair.client.ep, pattern(0, 300), 300, 4);
    CHECK_OK(fi_sendv(pair.client.ep, &iov, NULL, 1, FI_ADDR_UNSPEC, CONTEXT(5)));
    CHECK_OK(fi_inject(pair.client.ep, pattern(0, 10), 10, FI_ADDR_UNSPEC));
    (void)await_done(pair.server.cq, 1, RECEIVED);
    (void)await_failed(pair.server.cq, 2, RECEIVED, FI_ETRUNC);
    (void)await_done(pair.server.cq, 3, RECEIVED);
    CHECK_OK(fi_write(pair.client.ep, pattern(0, 400), 400, NULL, FI_ADDR_UNSPEC, 0, key, CONTEXT(6)));
    CHECK_OK(fi_inject_write(pair.client.ep, "x", 1, FI_ADDR_UNSPEC, 0, key));
    CHECK_OK(fi_read(pair.client.ep, got[3], 30, NULL, FI_ADDR_UNSPEC, 0, key, CONTEXT(7)));
    (void)await_done(pair.client.cq, 4, SENT);
    (void)await_done(pair.client.cq, 5, SENT);
    (void)await_done(pair.client.cq, 6, WRITTEN);
    (void)await_done(pair.client.cq, 7, WAS_READ);

    client = stats_of(pair.client.ep);
    CHECK_INT(client.messages_sent, 3);
    CHECK_INT(client.bytes_sent, 510);
    CHECK_INT(client.writes, 2);
    CHECK_INT(client.bytes_written, 401);
    CHECK_INT(client.reads, 1);
    CHECK_INT(client.bytes_read, 30);
    CHECK_INT(client.send_calls, 6);
    CHECK_INT(client.send_waits + client.messages_received + client.bytes_received + client.truncated, 0);
    server = stats_of(pair.server.ep);
    CHECK_INT(server.messages_received, 3);
    CHECK_INT(server.bytes_received, 360);
    CHECK_INT(server.truncated, 1);
    CHECK_INT(server.messages_sent + server.writes + server.reads + server.send_calls, 0);
    CHECK_INT(server.stalls + server.refused + client.stalls + client.refused, 0);
    close_fid(&region->fid);
    pair_close(&pair);
}

static void stalls_and_waits(void)
{
    struct message_settings settings = {.tx_size = 5};
    static uint8_t got[PATTERN_MAX];
    struct pair pair;

    messages_open(&pair, &settings);
    post_send(pair.client.ep, pattern(0, 300), 300, 1);
    AWAIT(PATIENCE_MS, stats_of(pair.server.ep).stalls == 1);
    for (unsigned i = 0; i < 10; i++)
        drive();
    /* Looking again is no other stall. */
    CHECK_INT(stats_of(pair.server.ep).stalls, 1);
    CHECK_INT(stats_of(pair.server.ep).messages_received, 0);
    post_recv(pair.server.ep, got, sizeof got, 2);
    (void)await_done(pair.server.cq, 2, RECEIVED);
    (void)await_done(pair.client.cq, 1, SENT);
    message_transfer(&pair.client, &pair.server, 300);
    CHECK_INT(stats_of(pair.server.ep).stalls, 1);
    CHECK_INT(stats_of(pair.server.ep).messages_received, 2);

    for (unsigned i = 0; i < 5; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    CHECK_INT(stats_of(pair.client.ep).send_waits, 0);
    CHECK_RET(fi_send(pair.client.ep, "x", 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
    CHECK_RET(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC), -FI_EAGAIN);
    CHECK_RET(fi_inject(pair.client.ep, got, MESSAGE_INJECT + 1, FI_ADDR_UNSPEC), -FI_EMSGSIZE);
    CHECK_INT(stats_of(pair.client.ep).send_waits, 2);
    CHECK_INT(stats_of(pair.client.ep).messages_sent, 7);
    CHECK_INT(stats_of(pair.client.ep).send_calls, 9);
    pair_close(&pair);
}

/* Injected messages have no limit but the device's queue. What the device refuses is not counted as sent. */
static void refused_by_device(void)
{
    struct pair pair;
    struct rstream_stats stats;
    uint64_t sent = 0;
    ssize_t ret;

    messages_open(&pair, NULL);
    while ((ret = fi_inject(pair.client.ep, pattern(0, MESSAGE_INJECT), MESSAGE_INJECT, FI_ADDR_UNSPEC)) == 0)
        sent++;
    CHECK_RET(ret, -FI_EAGAIN);
    stats = stats_of(pair.client.ep);
    CHECK_INT(stats.messages_sent, sent);
    CHECK_INT(stats.bytes_sent, sent * MESSAGE_INJECT);
    CHECK_INT(stats.send_waits, 1);
    CHECK_INT(stats.send_calls, sent + 1);
    /* The other side's domain would wait for a peer that takes nothing. */
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    pair_close(&pair);
}

/* A raw peer that connects correctly as a message endpoint, and then sends what the protocol does not allow. */
static void refused_message(void)
{
    struct side listener, server;
    uint8_t garbage[24];
    int fd = message_stranger(&listener, &server, NULL);

    CHECK_INT(stats_of(server.ep).refused, 0);
    memset(garbage, 0xff, sizeof garbage);
    put_be(garbage, 18, 2);
    CHECK_INT(CHECK_SYS(write(fd, garbage, sizeof garbage)), sizeof garbage);
    (void)await_event(server.eq, FI_SHUTDOWN);
    CHECK_INT(stats_of(server.ep).refused, 1);
    close(fd);
    side_close(&server);
    side_close(&listener);
}

/* ---- the call ----------------------------------------------------------------------------- */

static void other_sizes(void)
{
    uint8_t longer[sizeof(struct rstream_stats) + 64];
    struct rstream_stats stats;
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    transfer(pair.client.ep, pair.server.ep, 1000);
    stats = stats_of(pair.client.ep);

    /* A program built with an earlier header gets the fields that it has. */
    memset(longer, 0xee, sizeof longer);
    CHECK_OK(open_ops(pair.client.ep)->stats(pair.client.ep, (struct rstream_stats *)longer, 8));
    CHECK_BYTES(longer, &stats, 8);
    CHECK_INT(longer[8], 0xee);

    /* A program built with a later header gets 0 in the fields that the provider does not have. */
    memset(longer, 0xee, sizeof longer);
    CHECK_OK(open_ops(pair.client.ep)->stats(pair.client.ep, (struct rstream_stats *)longer, sizeof longer));
    CHECK_BYTES(longer, &stats, offsetof(struct rstream_stats, refused));
    CHECK(all_zero(longer + sizeof stats, sizeof longer - sizeof stats));
    pair_close(&pair);
}

static void refused_names(void)
{
    struct pair pair;
    void *ops = NULL;
    struct fid *ep;

    pair_open(&pair, IPV4, NULL);
    ep = &pair.client.ep->fid;
    CHECK_RET(fi_open_ops(ep, "no such ops", 0, &ops, NULL), -FI_ENOSYS);
    CHECK_RET(fi_open_ops(ep, NULL, 0, &ops, NULL), -FI_EINVAL);
    CHECK_RET(fi_open_ops(ep, RSTREAM_ENDPOINT_OPS, 1, &ops, NULL), -FI_EBADFLAGS);
    CHECK_RET(fi_open_ops(ep, RSTREAM_ENDPOINT_OPS, 0, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_open_ops(&pair.listener.pep->fid, RSTREAM_ENDPOINT_OPS, 0, &ops, NULL), -FI_ENOSYS);
    CHECK_RET(fi_open_ops(&pair.client.domain->fid, RSTREAM_ENDPOINT_OPS, 0, &ops, NULL), -FI_ENOSYS);
    CHECK(ops == NULL);
    CHECK_RET(open_ops(pair.client.ep)->stats(NULL, NULL, 0), -FI_EINVAL);
    CHECK_RET(open_ops(pair.client.ep)->stats(pair.client.ep, NULL, 8), -FI_EINVAL);
    pair_close(&pair);
}

/* Closes the client, and reads the line that says what it sent. */
static void check_line(struct pair *pair)
{
    char text[65536], wanted[128];
    int errors;

    snprintf(wanted, sizeof wanted, "to %s:%u: sent 12345 bytes (", IPV4, fid_port(&pair->listener.pep->fid));
    errors = capture_errors();
    close_fid(&pair->client.ep->fid);
    pair->client.ep = NULL;
    end_capture(errors, text, sizeof text);
    if (!strstr(text, wanted) || !strstr(text, "refused 0"))
        fail_at(__FILE__, __LINE__, "no \"%s\" in: %s", wanted, text);
}

static void line_at_close(void)
{
    struct pair pair;

    setenv("FI_LOG_LEVEL", "info", 1);
    setenv("FI_LOG_PROV", "rstream", 1);
    pair_open(&pair, IPV4, NULL);
    transfer(pair.client.ep, pair.server.ep, 12345);
    check_line(&pair);
    pair_close(&pair);
}

static void line_of_messages(void)
{
    struct pair pair;

    setenv("FI_LOG_LEVEL", "info", 1);
    setenv("FI_LOG_PROV", "rstream", 1);
    messages_open(&pair, NULL);
    message_transfer(&pair.client, &pair.server, 12345);
    check_line(&pair);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(zero_before_connected, "statistics are 0 before the connection stands"),
    TEST(calls_and_bytes, "statistics: bytes and calls of both directions, peeks not counted"),
    TEST(waits_and_updates, "statistics: waits and updates"),
    TEST(refused_input, "each refusal of a peer's input is counted"),
    TEST(operations_and_bytes, "message endpoints: messages, remote accesses and their bytes, truncations"),
    TEST(stalls_and_waits, "message endpoints: messages that found no receive, calls that found a full queue"),
    TEST(refused_by_device, "message endpoints: injected messages that found the device's queue full"),
    TEST(refused_message, "message endpoints: a refusal of the peer's input is counted"),
    TEST(other_sizes, "statistics of a program built against an earlier or later header"),
    TEST(refused_names, "fi_open_ops: -FI_ENOSYS for what is not there, -FI_EINVAL, -FI_EBADFLAGS"),
    TEST(line_at_close, "one line with the statistics in the log at fi_close, at level info"),
    TEST(line_of_messages, "the same of a message endpoint"),
};

const struct section stats_section = SECTION("statistics", tests);
