/* Contract, section Statistics: the statistics of a connection, through fi_open_ops and in the log. */
#include "conformance.h"

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

static struct rstream_stats stats_of(struct fid_ep *ep)
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

static void line_at_close(void)
{
    char text[65536], wanted[128];
    struct pair pair;
    unsigned port;
    ssize_t length;
    int errors;

    setenv("FI_LOG_LEVEL", "info", 1);
    setenv("FI_LOG_PROV", "rstream", 1);
    pair_open(&pair, IPV4, NULL);
    transfer(pair.client.ep, pair.server.ep, 12345);
    port = fid_port(&pair.listener.pep->fid);
    errors = capture_errors();
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    length = CHECK_SYS(read(errors, text, sizeof text - 1));
    text[length] = '\0';
    snprintf(wanted, sizeof wanted, "to %s:%u: sent 12345 bytes (", IPV4, port);
    if (!strstr(text, wanted) || !strstr(text, "refused 0"))
        fail_at(__FILE__, __LINE__, "no \"%s\" in: %s", wanted, text);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(zero_before_connected, "statistics are 0 before the connection stands"),
    TEST(calls_and_bytes, "statistics: bytes and calls of both directions, peeks not counted"),
    TEST(waits_and_updates, "statistics: waits and updates"),
    TEST(refused_input, "each refusal of a peer's input is counted"),
    TEST(other_sizes, "statistics of a program built against an earlier or later header"),
    TEST(refused_names, "fi_open_ops: -FI_ENOSYS for what is not there, -FI_EINVAL, -FI_EBADFLAGS"),
    TEST(line_at_close, "one line with the statistics in the log at fi_close, at level info"),
};

const struct section stats_section = SECTION("statistics", tests);
