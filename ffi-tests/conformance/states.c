/* Contract, section Moving bytes: the table of states. */
#include "conformance.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SEND_END(ep) AWAIT(PATIENCE_MS, recv_once(ep, &(uint8_t){0}, 1) == 0)

static void check_send(struct fid_ep *ep, ssize_t answer)
{
    CHECK_RET(send_once(ep, "x", 1), answer);
    CHECK_RET(fi_inject(ep, "x", 1, FI_ADDR_UNSPEC), answer);
}

/* Checks that a receive returns this, and returns it again. */
static void check_recv(struct fid_ep *ep, ssize_t answer)
{
    uint8_t byte;

    for (unsigned i = 0; i < 3; i++)
        CHECK_RET(recv_once(ep, &byte, 1), answer);
}

static void not_connected(void)
{
    struct side listener, client;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    check_send(client.ep, -FI_ENOTCONN);
    check_recv(client.ep, -FI_ENOTCONN);
    CHECK_OK(fi_enable(client.ep));
    check_send(client.ep, -FI_ENOTCONN);
    check_recv(client.ep, -FI_ENOTCONN);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    check_send(client.ep, -FI_ENOTCONN);
    check_recv(client.ep, -FI_ENOTCONN);
    fi_freeinfo(await_event(listener.eq, FI_CONNREQ).info);
    check_send(client.ep, -FI_ENOTCONN);
    side_close(&client);
    side_close(&listener);
}

static void connected(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    check_recv(pair.client.ep, -FI_EAGAIN);
    check_recv(pair.server.ep, -FI_EAGAIN);
    CHECK_RET(send_once(pair.client.ep, "x", 1), 1);
    fill(pair.client.ep, 0);
    check_send(pair.client.ep, -FI_EAGAIN);
    pair_close(&pair);
}

static void half_close(void)
{
    struct pair pair;

    /* Bytes that were accepted before the shutdown arrive, then receives return 0. The other direction
     * continues. */
    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 20000), 20000);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    check_send(pair.client.ep, -FI_EPIPE);
    check_recv(pair.client.ep, -FI_EAGAIN);
    recv_pattern(pair.server.ep, 0, 20000);
    SEND_END(pair.server.ep);
    check_recv(pair.server.ep, 0);
    transfer(pair.server.ep, pair.client.ep, 200000);
    check_send(pair.client.ep, -FI_EPIPE);
    check_recv(pair.server.ep, 0);
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

static void half_close_when_full(void)
{
    const struct settings settings = {.recv_ring = 5003};
    struct pair pair;
    size_t sent;

    /* The end follows the last byte, although the peer has no room when the sender shuts down. */
    pair_open(&pair, IPV4, &settings);
    sent = fill(pair.client.ep, 0);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    recv_pattern(pair.server.ep, 0, sent);
    SEND_END(pair.server.ep);
    pair_close(&pair);
}

static void both_shut(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 3000), 3000);
    send_all(pair.server.ep, pattern(7, 4000), 4000);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_OK(fi_shutdown(pair.server.ep, FI_SEND));
    recv_pattern(pair.server.ep, 0, 3000);
    recv_pattern(pair.client.ep, 7, 4000);
    SEND_END(pair.server.ep);
    SEND_END(pair.client.ep);
    check_send(pair.client.ep, -FI_EPIPE);
    check_send(pair.server.ep, -FI_EPIPE);
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
    check_recv(pair.client.ep, 0);
    check_recv(pair.server.ep, 0);
    pair_close(&pair);
}

static void peer_shut_both(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 3000), 3000);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    check_send(pair.client.ep, -FI_EPIPE);
    CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
    recv_pattern(pair.server.ep, 0, 3000);
    check_recv(pair.server.ep, 0);
    check_send(pair.server.ep, -FI_EPIPE);
    pair_close(&pair);
}

static void peer_closed(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 30000), 30000);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    recv_pattern(pair.server.ep, 0, 30000);
    SEND_END(pair.server.ep);
    check_recv(pair.server.ep, 0);
    await_event(pair.server.eq, FI_SHUTDOWN);
    check_send(pair.server.ep, -FI_EPIPE);
    pair_close(&pair);
}

static void receive_side_shut(void)
{
    struct pair pair;
    size_t sent = 0;
    int64_t until;

    /* Bytes that have arrived and bytes that still arrive are dropped, and the peer never stalls. */
    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 1000), 1000);
    sleep_ms(20);
    CHECK_OK(fi_shutdown(pair.server.ep, FI_RECV));
    check_recv(pair.server.ep, 0);
    until = now_ms() + PATIENCE_MS;
    while (sent < 20 * 32768) {
        ssize_t took = send_once(pair.client.ep, pattern(sent, 4096), 4096);

        CHECK(now_ms() < until);
        if (took == -FI_EAGAIN) {
            drive();
            continue;
        }
        CHECK_BETWEEN(took, 1, 4096);
        sent += (size_t)took;
        until = now_ms() + PATIENCE_MS;
    }
    check_recv(pair.server.ep, 0);
    /* The other direction works as before. */
    transfer(pair.server.ep, pair.client.ep, 100000);
    pair_close(&pair);
}

/* ---- a peer that dies ----------------------------------------------------------------------- */

struct dying_peer {
    /* Bytes of the pattern that it sends before it reports. */
    size_t sends;
    bool ends_stream;
};

/* The other process: connects to the port that it is sent, does what the plan says, and waits to be
 * killed. */
static void connect_and_linger(struct peer *self, void *argument)
{
    const struct dying_peer *plan = argument;
    struct side client;

    side_active(&client, IPV4, (unsigned)peer_hear(self), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    send_all(client.ep, pattern(0, plan->sends), plan->sends);
    if (plan->ends_stream)
        CHECK_OK(fi_shutdown(client.ep, FI_SEND));
    for (unsigned i = 0; i < 50; i++)
        drive();
    peer_tell(self, 1);
    for (;;)
        drive();
}

static void open_with_peer(struct side *listener, struct side *server, struct peer *peer,
                           struct dying_peer *plan)
{
    struct event request;

    peer_start(peer, connect_and_linger, plan);
    side_listen(listener, IPV4, NULL);
    peer_tell(peer, fid_port(&listener->pep->fid));
    request = await_event(listener->eq, FI_CONNREQ);
    accept_request(listener, server, &request, NULL, 0);
    await_event(server->eq, FI_CONNECTED);
}

static void killed_with(size_t sends, bool read_before)
{
    struct dying_peer plan = {.sends = sends};
    struct side listener, server;
    struct peer peer;
    ssize_t got;
    uint8_t byte;
    int64_t died;

    open_with_peer(&listener, &server, &peer, &plan);
    CHECK_INT(peer_hear(&peer), 1);
    if (read_before)
        recv_pattern(server.ep, 0, sends);
    peer_kill(&peer);
    died = now_ms();
    /* All bytes had reached this host. */
    if (!read_before)
        recv_pattern(server.ep, 0, sends);
    got = recv_wait(server.ep, &byte, 1);
    CHECK_RET(got, -FI_ECONNRESET);
    CHECK(now_ms() - died < 1000);
    check_recv(server.ep, -FI_ECONNRESET);
    check_send(server.ep, -FI_ECONNRESET);
    CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
    check_no_event(server.eq);
    side_close(&server);
    side_close(&listener);
}

static void peer_killed(void)
{
    killed_with(10000, true);
}

static void peer_killed_with_bytes_unread(void)
{
    killed_with(10000, false);
}

static void peer_killed_idle(void)
{
    killed_with(0, true);
}

static void peer_ended_then_killed(void)
{
    struct dying_peer plan = {.sends = 5000, .ends_stream = true};
    struct side listener, server;
    struct peer peer;
    ssize_t took = 1;

    open_with_peer(&listener, &server, &peer, &plan);
    CHECK_INT(peer_hear(&peer), 1);
    /* Whether or not the end was read before the kill, the peer's stream had ended properly. */
    recv_pattern(server.ep, 0, 2000);
    peer_kill(&peer);
    recv_pattern(server.ep, 2000, 3000);
    SEND_END(server.ep);
    check_recv(server.ep, 0);
    AWAIT(1000, (took = send_once(server.ep, "x", 1)) < 0 && took != -FI_EAGAIN);
    CHECK_RET(took, -FI_ECONNRESET);
    check_recv(server.ep, 0);
    await_event(server.eq, FI_SHUTDOWN);
    side_close(&server);
    side_close(&listener);
}

static void killed_while_sending(void)
{
    struct dying_peer plan = {.sends = 0};
    struct side listener, server;
    struct peer peer;
    ssize_t took = 1;

    /* An endpoint that waits for room gets the error too. */
    open_with_peer(&listener, &server, &peer, &plan);
    CHECK_INT(peer_hear(&peer), 1);
    fill(server.ep, 0);
    peer_kill(&peer);
    AWAIT(1000, (took = send_once(server.ep, "x", 1)) != -FI_EAGAIN);
    CHECK_RET(took, -FI_ECONNRESET);
    check_recv(server.ep, -FI_ECONNRESET);
    side_close(&server);
    side_close(&listener);
}

static void host_vanished(void)
{
    static const uint8_t byte = 1;
    struct pair idle, sending;
    int64_t lost;
    uint8_t got;

    partable_hosts();
    pair_open(&idle, IPV4, NULL);
    pair_open(&sending, IPV4, NULL);
    part_hosts();
    lost = now_ms();
    CHECK_RET(send_once(sending.client.ep, &byte, 1), 1);
    CHECK(await_event(idle.client.eq, FI_SHUTDOWN).fid == &idle.client.ep->fid);
    CHECK(await_event(sending.client.eq, FI_SHUTDOWN).fid == &sending.client.ep->fid);
    CHECK_BETWEEN(now_ms() - lost, 1, 2 * KEEPALIVE_MS + 500);
    CHECK_RET(recv_once(idle.client.ep, &got, 1), -FI_ECONNRESET);
    CHECK_RET(send_once(sending.client.ep, &byte, 1), -FI_ECONNRESET);
    pair_close(&idle);
    pair_close(&sending);
    join_hosts();
}

static void host_vanished_while_polling(void)
{
    static const uint8_t byte = 1;
    struct pair pair;
    int64_t lost;
    uint8_t got;

    partable_hosts();
    pair_open(&pair, IPV4, NULL);
    part_hosts();
    lost = now_ms();
    CHECK_RET(send_once(pair.client.ep, &byte, 1), 1);
    while (recv_once(pair.client.ep, &got, 1) == -FI_EAGAIN)
        CHECK(now_ms() - lost < 2 * KEEPALIVE_MS + 500);
    CHECK_RET(recv_once(pair.client.ep, &got, 1), -FI_ECONNRESET);
    pair_close(&pair);
    join_hosts();
}

/* A pair whose client learns only from a data call that the connection is established. */
static void pair_open_by_receiving(struct pair *pair)
{
    struct event request;
    int64_t started = now_ms();
    uint8_t got;

    memset(pair, 0, sizeof *pair);
    side_listen(&pair->listener, IPV4, NULL);
    side_active(&pair->client, IPV4, fid_port(&pair->listener.pep->fid), NULL);
    CHECK_OK(fi_connect(pair->client.ep, pair->client.info->dest_addr, NULL, 0));
    /* The first read of an event queue sets the timer to the end of the attempt. */
    request = await_event(pair->listener.eq, FI_CONNREQ);
    accept_request(&pair->listener, &pair->server, &request, NULL, 0);
    while (recv_once(pair->client.ep, &got, 1) != -FI_EAGAIN) {
        CHECK(!read_event(pair->server.eq, &request) || request.fid == &pair->server.ep->fid);
        CHECK(now_ms() - started < PATIENCE_MS);
    }
}

static void host_vanished_while_asleep(void)
{
    struct fi_eq_cm_entry entry;
    struct pair pair;
    uint32_t kind = 0;
    int64_t lost;

    partable_hosts();
    pair_open_by_receiving(&pair);
    CHECK_INT(fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, 0), sizeof entry);
    CHECK_INT(kind, FI_CONNECTED);
    part_hosts();
    lost = now_ms();
    while (fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, 0) == -FI_EAGAIN)
        CHECK(readable(wait_fd(&pair.client.eq->fid), 2 * KEEPALIVE_MS + 500));
    CHECK_INT(kind, FI_SHUTDOWN);
    CHECK_BETWEEN(now_ms() - lost, 1, 2 * KEEPALIVE_MS + 500);
    CHECK_RET(recv_once(pair.client.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    pair_close(&pair);
    join_hosts();
}

static const struct test tests[] = {
    TEST(not_connected, "not connected yet: -FI_ENOTCONN both ways"),
    TEST(connected, "connected: bytes or -FI_EAGAIN both ways"),
    TEST(half_close, "one side shut its sending: -FI_EPIPE there; what is left, then 0 for ever, here"),
    TEST(half_close_when_full, "shutting the sending side goes out after everything accepted"),
    TEST(both_shut, "both shut: -FI_EPIPE; what is left, then 0"),
    TEST(peer_shut_both, "the peer shut both: -FI_EPIPE; what is left, then 0"),
    TEST(peer_closed, "the peer closed gracefully: -FI_EPIPE; what is left, then 0"),
    TEST(receive_side_shut, "we shut our receiving side: 0; what comes is discarded, the peer never stalls"),
    TEST(peer_killed, "kill -9: -FI_ECONNRESET within a second, never 0"),
    TEST(peer_killed_with_bytes_unread, "kill -9: what arrived, then -FI_ECONNRESET"),
    TEST(peer_killed_idle, "kill -9 of a peer that never sent: -FI_ECONNRESET"),
    TEST(peer_ended_then_killed, "peer shut its sending side and later died: what is left, then 0; -FI_ECONNRESET"),
    FAULT_TEST(host_vanished, "a host that vanishes: -FI_ECONNRESET within twice FI_RSTREAM_KEEPALIVE_S"),
    FAULT_TEST(host_vanished_while_polling, "the same for a caller that only receives, again and again"),
    FAULT_TEST(host_vanished_while_asleep, "the same for one that sleeps on the event queue's descriptor"),
    TEST(killed_while_sending, "kill -9 while our sending side is full: -FI_ECONNRESET"),
};

const struct section states_section = SECTION("states", tests);
