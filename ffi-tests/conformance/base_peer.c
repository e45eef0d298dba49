/*
 * A stream with a peer of the base protocol: its connection data has no extension and an arbitrary
 * reserved byte; it sends at most 32 KiB in a call; it returns credits only when its application reads; it
 * sends nothing at two credits or fewer; it sends no word for the end of a stream. Implemented here from
 * docs/protocol.md.
 */
#include "base_peer.h"

#include <stdlib.h>

#include "../iwarp_wire.h"

#define CREDIT_SHIFT 20
#define BYTES_MASK 0xfffffu

static void offer(const struct base_peer *peer, uint8_t data[OFFER])
{
    data[0] = OFFER - 1;
    put_be(data + 1, peer->own_address, 8);
    put_be(data + 9, peer->own_key, 8);
    put_be(data + 17, RING, 4);
    put_be(data + 21, RECEIVES, 2);
    data[23] = 2;
    /* Reserved: may have any value. */
    data[24] = 0xa5;
}

/* Decodes the endpoint's connection data. Bytes after the first 25 are ignored. */
static void take_offer(struct base_peer *peer, const uint8_t *data, size_t length)
{
    CHECK_AT_LEAST(length, OFFER);
    CHECK_AT_LEAST(data[0], OFFER - 1);
    CHECK_INT(data[23], 2);
    peer->address = get_be(data + 1, 8);
    peer->key = get_be(data + 9, 8);
    peer->ring_size = peer->window = (uint32_t)get_be(data + 17, 4);
    peer->credits = (uint32_t)get_be(data + 21, 2);
}

static void take_receive(struct base_peer *peer)
{
    peer->completed++;
    CHECK(peer->completed <= RECEIVES);
}

void take_data(struct base_peer *peer, size_t length)
{
    take_receive(peer);
    CHECK(length > 0 && length <= BYTES_MASK);
    peer->unread += length;
    CHECK(peer->unread + peer->freed <= RING);
}

void take_control(struct base_peer *peer, uint32_t word)
{
    take_receive(peer);
    /* The word has no bit that the base protocol does not define. */
    CHECK_INT(word >> 29, 0);
    CHECK(word != 0);
    peer->window += word & BYTES_MASK;
    peer->credits += word >> CREDIT_SHIFT;
    CHECK(peer->window <= peer->ring_size);
}

static void spend_credit(struct base_peer *peer)
{
    CHECK(peer->credits > 0);
    peer->credits--;
}

/* The peer's fi_send: takes as many bytes as there is room for, possibly 0. */
static size_t base_send(struct base_peer *peer, const uint8_t *data, size_t length)
{
    peer->carrier->take_in(peer);
    if (peer->credits <= 2)
        return 0;
    if (length > CALL_MAX)
        length = CALL_MAX;
    if (length > peer->window)
        length = peer->window;
    if (length > peer->ring_size - peer->at)
        length = peer->ring_size - peer->at;
    if (length == 0)
        return 0;
    spend_credit(peer);
    peer->carrier->send_data(peer, data, length);
    peer->window -= (uint32_t)length;
    peer->at = (peer->at + (uint32_t)length) % peer->ring_size;
    return length;
}

/* The peer's fi_recv: returns the available bytes, and returns room and receives to the endpoint when half
 * of either is used. */
static size_t base_recv(struct base_peer *peer, uint8_t *data, size_t length)
{
    peer->carrier->take_in(peer);
    if (length > peer->unread)
        length = peer->unread;
    for (size_t i = 0; i < length; i++)
        data[i] = peer->ring[(peer->read_at + i) % RING];
    peer->read_at = (peer->read_at + length) % RING;
    peer->unread -= length;
    peer->freed += length;
    if ((peer->freed >= RING / 2 || peer->completed >= RECEIVES / 2) && peer->credits > 0) {
        spend_credit(peer);
        peer->carrier->send_control(peer, (uint32_t)peer->freed | peer->completed << CREDIT_SHIFT);
        peer->freed = 0;
        peer->completed = 0;
    }
    return length;
}

/* ---- connecting ------------------------------------------------------------------------------ */

struct connection {
    struct base_peer peer;
    struct side listener;
    struct side side;
};

static void choose_carrier(struct base_peer *peer)
{
    peer->carrier = on_rdma_device() ? &verbs_carrier : &socket_carrier;
}

/* The base peer sends a connection request to the listener. */
static struct event ask(struct base_peer *peer, struct side *listener, uint8_t revision)
{
    uint8_t data[OFFER];
    struct event event;

    choose_carrier(peer);
    peer->carrier->begin(peer, fid_port(&listener->pep->fid));
    offer(peer, data);
    peer->carrier->request(peer, data, revision);
    event = await_event(listener->eq, FI_CONNREQ);
    CHECK_INT(event.data_length, 0);
    return event;
}

/* Decodes the reply, which has no extension, and finishes connecting. */
static void hear(struct base_peer *peer, struct side *listener, uint8_t revision)
{
    uint8_t data[DATA_MAX];
    size_t length = peer->carrier->answer(peer, data, revision);

    take_offer(peer, data, length);
    CHECK_INT(data[0], OFFER - 1);
    await_event(listener->eq, FI_CONNECTED);
}

/* The base peer connects to a stream endpoint. */
static void open_active(struct connection *connection, uint8_t revision)
{
    struct event event;

    memset(connection, 0, sizeof *connection);
    side_listen(&connection->listener, IPV4, NULL);
    event = ask(&connection->peer, &connection->listener, revision);
    side_for_request(&connection->listener, &connection->side, &event);
    /* The base protocol has no room for the user's data. */
    CHECK_RET(fi_accept(connection->side.ep, "x", 1), -FI_EINVAL);
    CHECK_OK(fi_accept(connection->side.ep, NULL, 0));
    hear(&connection->peer, &connection->listener, revision);
}

/* A stream endpoint connects to the base peer. */
static void open_passive(struct connection *connection, uint8_t revision)
{
    struct base_peer *peer = &connection->peer;
    uint8_t data[DATA_MAX];
    struct event event;
    size_t length;
    unsigned port;

    memset(connection, 0, sizeof *connection);
    choose_carrier(peer);
    port = peer->carrier->listen(peer);
    setenv("FI_RSTREAM_IWARP_MPA_REVISION", revision == 1 ? "1" : "2", 1);
    side_active(&connection->side, IPV4, port, NULL);
    CHECK_OK(fi_connect(connection->side.ep, connection->side.info->dest_addr, "data", 4));
    length = peer->carrier->take_request(peer, data, revision);
    take_offer(peer, data, length);
    offer(peer, data);
    peer->carrier->accept(peer, data, revision);
    event = await_event(connection->side.eq, FI_CONNECTED);
    CHECK_INT(event.data_length, 0);
}

static void end_peer(struct base_peer *peer)
{
    peer->carrier->end(peer);
    peer->carrier = NULL;
}

static void close_all(struct connection *connection)
{
    if (connection->peer.carrier)
        end_peer(&connection->peer);
    side_close(&connection->side);
    if (connection->listener.eq)
        side_close(&connection->listener);
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define MUCH ((size_t)3 << 20)

/* Both directions at once, with more bytes than any ring holds. */
static void exchange(struct connection *connection)
{
    size_t out = 0, back = 0, got = 0, received = 0, before = 0;
    static uint8_t buffer[CALL_MAX];
    int64_t until = now_ms() + PATIENCE_MS;

    while (received < MUCH || got < MUCH) {
        ssize_t count;
        size_t length;

        CHECK(now_ms() < until);
        if (received + got > before) {
            before = received + got;
            until = now_ms() + PATIENCE_MS;
        }
        if (out < MUCH) {
            count = send_once(connection->side.ep, pattern(out, 50000), MUCH - out < 50000 ? MUCH - out : 50000);
            if (count != -FI_EAGAIN)
                out += (size_t)CHECK_SYS(count);
        }
        length = base_recv(&connection->peer, buffer, sizeof buffer);
        CHECK_BYTES(buffer, pattern(received, length), length);
        received += length;

        if (back < MUCH)
            back += base_send(&connection->peer, pattern(back, CALL_MAX), MUCH - back);
        count = recv_once(connection->side.ep, buffer, sizeof buffer);
        if (count == -FI_EAGAIN)
            continue;
        length = (size_t)CHECK_SYS(count);
        CHECK_BYTES(buffer, pattern(got, length), length);
        got += length;
    }
}

static void both_ways(void)
{
    static struct connection connection;

    /* An RDMA device chooses the MPA revision itself. */
    for (uint8_t revision = on_rdma_device() ? 2 : 1; revision <= 2; revision++) {
        open_active(&connection, revision);
        exchange(&connection);
        close_all(&connection);
    }
}

static void connected_to(uint8_t revision)
{
    static struct connection connection;

    open_passive(&connection, revision);
    exchange(&connection);
    close_all(&connection);
}

static void connected_to_revision_1(void)
{
    needs_embedded_device();
    connected_to(1);
}

static void connected_to_revision_2(void)
{
    connected_to(2);
}

/* The peer ends the connection after its last byte, which is the end of the stream. */
static void its_end(void)
{
    static struct connection connection;
    uint8_t byte;

    open_active(&connection, 2);
    CHECK_INT(base_send(&connection.peer, pattern(0, 100), 100), 100);
    end_peer(&connection.peer);
    recv_pattern(connection.side.ep, 0, 100);
    CHECK_RET(recv_wait(connection.side.ep, &byte, 1), 0);
    await_event(connection.side.eq, FI_SHUTDOWN);
    CHECK_RET(recv_once(connection.side.ep, &byte, 1), 0);
    CHECK_RET(send_once(connection.side.ep, &byte, 1), -FI_EPIPE);
    close_all(&connection);
}

/* A half-close affects only this side: it sends the peer nothing that the base protocol does not define,
 * and the peer may continue to send. */
static void half_close(void)
{
    static struct connection connection;
    uint8_t byte = 1;

    open_active(&connection, 2);
    CHECK_RET(send_once(connection.side.ep, &byte, 1), 1);
    CHECK_OK(fi_shutdown(connection.side.ep, FI_SEND));
    CHECK_RET(send_once(connection.side.ep, &byte, 1), -FI_EPIPE);
    AWAIT(PATIENCE_MS, base_recv(&connection.peer, &byte, 1) == 1);
    for (size_t sent = 0; sent < MUCH / 8;) {
        size_t now = base_send(&connection.peer, pattern(sent, CALL_MAX), CALL_MAX);

        recv_pattern(connection.side.ep, sent, now);
        sent += now;
    }
    CHECK(!connection.peer.ended);
    close_all(&connection);
}

/* fi_close sends all bytes and then ends the connection. */
static void our_end(void)
{
    static struct connection connection;
    static uint8_t buffer[CALL_MAX];
    size_t received = 0;

    open_active(&connection, 2);
    CHECK_RET(send_once(connection.side.ep, pattern(0, 20000), 20000), 20000);
    close_fid(&connection.side.ep->fid);
    connection.side.ep = NULL;
    AWAIT(PATIENCE_MS, (received += base_recv(&connection.peer, buffer + received, sizeof buffer - received),
                        connection.peer.ended));
    CHECK_INT(received, 20000);
    CHECK_BYTES(buffer, pattern(0, 20000), 20000);
    close_all(&connection);
}

/* A peer that uses the address of another peer's ring breaks only its own connection. */
static void key_of_another(void)
{
    static struct connection first;
    static struct base_peer second;
    struct event event;
    struct fid_ep *ep;
    uint8_t byte;

    needs_embedded_device();
    open_active(&first, 2);
    event = ask(&second, &first.listener, 2);
    /* Opened in the first connection's domain. */
    CHECK_OK(fi_endpoint(first.side.domain, event.info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &first.listener.eq->fid, 0));
    CHECK_OK(fi_accept(ep, NULL, 0));
    hear(&second, &first.listener, 2);
    CHECK_INT(base_send(&first.peer, pattern(0, 100), 100), 100);

    wire_write(second.fd, (uint32_t)first.peer.key, first.peer.address, pattern(5000, 100), 100);
    CHECK_RET(recv_wait(ep, &byte, 1), -FI_ECONNRESET);
    CHECK(await_event(first.listener.eq, FI_SHUTDOWN).fid == &ep->fid);
    recv_pattern(first.side.ep, 0, 100);
    CHECK_RET(send_once(first.side.ep, &byte, 1), 1);
    close_fid(&ep->fid);
    fi_freeinfo(event.info);
    end_peer(&second);
    close_all(&first);
}

static const struct test tests[] = {
    TEST(both_ways, "a base peer connects, on iWARP with either MPA revision: bytes in both directions"),
    TEST(connected_to_revision_1, "connecting to a base peer with MPA revision 1: bytes in both directions"),
    TEST(connected_to_revision_2, "connecting to a base peer with MPA revision 2: bytes in both directions"),
    TEST(its_end, "a base peer's orderly disconnect after the last byte is the end of the stream"),
    TEST(half_close, "half-close with a base peer acts locally only"),
    TEST(our_end, "fi_close with a base peer: every byte, then the end of the connection"),
    TEST(key_of_another, "a hostile peer ends its own connection and nothing more: keys of others open nothing"),
};

const struct section base_peer_section = SECTION("base peer", tests);
