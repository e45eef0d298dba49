/* Contract, section Moving bytes: fi_shutdown, its event, and fi_close. */
#include <stdlib.h>

#include "conformance.h"

static void unknown_flags(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(fi_shutdown(pair.client.ep, FI_MORE), -FI_EBADFLAGS);
    CHECK_RET(fi_shutdown(pair.client.ep, FI_SEND | 1ULL << 61), -FI_EBADFLAGS);
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static void not_connected(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_RET(fi_shutdown(side.ep, 0), -FI_ENOTCONN);
    CHECK_RET(fi_shutdown(side.ep, FI_SEND), -FI_ENOTCONN);
    side_close(&side);
    fi_freeinfo(hints);
}

static void event_once_with(uint64_t first, uint64_t second)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, first));
    if (second)
        CHECK_OK(fi_shutdown(pair.server.ep, second));
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
    /* A second shutdown, reads and waits cause no second event. */
    (void)fi_shutdown(pair.client.ep, 0);
    (void)fi_shutdown(pair.server.ep, 0);
    CHECK_RET(recv_wait(pair.client.ep, &(uint8_t){0}, 1), 0);
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    for (unsigned i = 0; i < 100; i++)
        drive();
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

static void event_once(void)
{
    event_once_with(0, 0);
    event_once_with(FI_SEND, FI_SEND);
    event_once_with(0, FI_SEND);
    event_once_with(FI_SEND | FI_RECV, 0);
}

static void no_event_for_half(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    for (unsigned i = 0; i < 100; i++)
        drive();
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

static void bytes_after_event(void)
{
    struct pair pair;

    /* The event may come before the last bytes are read, which stay readable. */
    pair_open(&pair, IPV4, NULL);
    send_all(pair.client.ep, pattern(0, 25000), 25000);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    await_event(pair.server.eq, FI_SHUTDOWN);
    recv_pattern(pair.server.ep, 0, 25000);
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    pair_close(&pair);
}

static void shut_twice(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_OK(fi_shutdown(pair.client.ep, FI_RECV));
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    pair_close(&pair);
}

static void shut_after_accept(void)
{
    struct side listener, client, server;
    struct event request;
    struct fi_eq_cm_entry entry;
    uint32_t kind = 0;
    ssize_t got = -FI_EAGAIN;
    int64_t until;

    /* The accepting side ends the connection before the other side has established it, and afterwards
     * reads only its event queue. The other side gets the end. */
    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    until = now_ms() + PATIENCE_MS;
    for (bool connected = false; got == -FI_EAGAIN;) {
        CHECK(now_ms() < until);
        if (fi_eq_read(server.eq, &kind, &entry, sizeof entry, 0) > 0 && kind == FI_CONNECTED)
            CHECK_OK(fi_shutdown(server.ep, 0));
        if (!connected && fi_eq_read(client.eq, &kind, &entry, sizeof entry, 0) > 0)
            connected = true;
        if (connected)
            got = recv_once(client.ep, &(uint8_t){0}, 1);
    }
    CHECK_RET(got, 0);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* ---- fi_close delivers ---------------------------------------------------------------------- */

/* The other process reads slowly, and reports how many bytes it got before the end. */
static void read_slowly(struct peer *self, void *argument)
{
    const struct settings *settings = argument;
    struct side listener, server;
    struct event request;
    static uint8_t buffer[PATTERN_MAX];
    size_t received = 0;

    side_listen(&listener, IPV4, settings);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    CHECK_INT(peer_hear(self), 1);
    sleep_ms(300);
    for (;;) {
        ssize_t got = recv_wait(server.ep, buffer, 4999);

        if (got == 0)
            break;
        CHECK_AT_LEAST(got, 1);
        CHECK_BYTES(buffer, pattern(received, (size_t)got), (size_t)got);
        received += (size_t)got;
    }
    peer_tell(self, received);
    side_close(&server);
    side_close(&listener);
}

/* The reader needs more time on a slow machine. */
#define LINGER_MS 60000

static void close_delivers(void)
{
    const size_t rings[] = {5003, 32768, 1 << 20, 4 << 20};

    for (size_t i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        struct settings settings = {.send_ring = rings[i], .recv_ring = rings[i]};
        struct side client;
        struct peer peer;
        size_t sent;
        int64_t start;

        still_moving();
        CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "60000", 1));
        /* More bytes than the sockets hold, to a reader that sleeps while the endpoint is closed. */
        peer_start(&peer, read_slowly, &settings);
        side_active(&client, IPV4, (unsigned)peer_hear(&peer), &settings);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        await_event(client.eq, FI_CONNECTED);
        /* The reader begins afterwards: one that keeps up is never full. */
        sent = fill(client.ep, 0);
        CHECK_AT_LEAST(sent, 1);
        peer_tell(&peer, 1);
        start = now_ms();
        side_close(&client);
        CHECK(now_ms() - start < LINGER_MS + 500);
        CHECK_INT(peer_hear(&peer), sent);
        peer_join(&peer);
    }
}

static void close_at_once(void)
{
    struct side client;
    struct peer peer;
    struct settings settings = {0};

    /* Connects, sends once and closes: the bytes and the end arrive. */
    peer_start(&peer, read_slowly, &settings);
    side_active(&client, IPV4, (unsigned)peer_hear(&peer), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    peer_tell(&peer, 1);
    send_all(client.ep, pattern(0, 13), 13);
    side_close(&client);
    CHECK_INT(peer_hear(&peer), 13);
    peer_join(&peer);
}

static void close_order(void)
{
    struct pair pair;

    /* An object that others use cannot be closed. */
    pair_open(&pair, IPV4, NULL);
    CHECK_RET(fi_close(&pair.client.fabric->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&pair.client.domain->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&pair.client.eq->fid), -FI_EBUSY);
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(unknown_flags, "fi_shutdown: unknown flags: -FI_EBADFLAGS"),
    TEST(not_connected, "fi_shutdown on an endpoint that is not connected: -FI_ENOTCONN"),
    TEST(event_once, "FI_SHUTDOWN is queued once per endpoint, at both ends"),
    TEST(no_event_for_half, "no FI_SHUTDOWN while one direction is open"),
    TEST(bytes_after_event, "bytes that arrived before FI_SHUTDOWN stay readable after it"),
    TEST(shut_twice, "shutting what is shut is no error"),
    TEST(shut_after_accept, "an end said right after FI_CONNECTED goes out although only the event queue is read"),
    TEST(close_delivers, "fi_close lets what was accepted go out; the peer reads every byte and then 0"),
    TEST(close_at_once, "fi_close right after a send"),
    TEST(close_order, "an object in use does not close: -FI_EBUSY"),
};

const struct section ending_section = SECTION("ending", tests);
