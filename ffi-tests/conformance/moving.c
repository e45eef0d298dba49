/* Contract, section Moving bytes, while a connection moves to shared memory, and after that. Nothing of it
 * changes. With FI_RSTREAM_SHM=0 the same calls show the same without shared memory. */
#include "conformance.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "../sleeper.h"
#include "moving.h"

/* Calls that move bytes, after which a side wants to share memory. */
#define CALLS 8
/* Time between two calls of a program that polls now and then, and the most calls until it notices an end. Of
 * sends, one in 16 looks for it. */
#define PAUSE_MS 20
#define RECEIVES 5
#define SENDS 20
/* Wake-ups after which an idle descriptor is quiet. */
#define RESTLESS 20

static bool shares(void)
{
    const char *setting = getenv("FI_RSTREAM_SHM");

    return setting == NULL || strcmp(setting, "0") != 0;
}

/* Like recv_wait, but drives nothing, so that only the receives move the connection. */
static ssize_t recv_soon(struct fid_ep *ep, void *data, size_t length)
{
    int64_t until = now_ms() + PATIENCE_MS;
    ssize_t got;

    while ((got = recv_once(ep, data, length)) == -FI_EAGAIN)
        CHECK(now_ms() < until);
    return got;
}

/* Sends single bytes, each of which is received at once. */
static void say(struct fid_ep *from, struct fid_ep *to, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint8_t byte = 0;

        CHECK_RET(send_once(from, pattern(i, 1), 1), 1);
        CHECK_RET(recv_soon(to, &byte, 1), 1);
        CHECK_INT(byte, *pattern(i, 1));
    }
}

static void check_shared(unsigned mappings)
{
    CHECK_INT(shared_mappings(), shares() ? mappings : 0);
}

/* A connection in the middle of the move: both sides have the memory, and the client's output went there. The
 * server's output goes there after its next call. */
static void pair_open_at_the_move(struct pair *pair, const struct settings *settings)
{
    uint8_t byte;

    needs_embedded_device();
    pair_open(pair, IPV4, settings);
    for (unsigned i = 0; i < CALLS; i++)
        CHECK_RET(send_once(pair->client.ep, "x", 1), 1);
    for (unsigned i = 0; i < CALLS; i++)
        CHECK_RET(recv_soon(pair->server.ep, &byte, 1), 1);
    for (unsigned i = 0; i < CALLS; i++)
        CHECK_RET(send_once(pair->client.ep, "x", 1), 1);
    check_shared(2);
}

/* A connection whose directions have both moved, and that has no bytes on the way. */
static void pair_open_moved(struct pair *pair, const struct settings *settings)
{
    needs_embedded_device();
    pair_open(pair, IPV4, settings);
    for (unsigned round = 0; round < 2; round++) {
        say(pair->client.ep, pair->server.ep, 2 * CALLS);
        say(pair->server.ep, pair->client.ep, 2 * CALLS);
    }
    check_shared(2);
}

/* ---- what a side does not take any more -------------------------------------------------------- */

static void receiving_shut_before(void)
{
    const size_t total = 1000000, part = 4096;
    int64_t until = now_ms() + PATIENCE_MS;
    uint8_t byte;
    struct pair pair;

    needs_embedded_device();
    pair_open(&pair, IPV4, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_RECV));
    say(pair.client.ep, pair.server.ep, 4 * CALLS);
    check_shared(2);
    for (size_t sent = 0; sent < total;) {
        ssize_t took = send_once(pair.server.ep, pattern(sent, part), part);

        CHECK(now_ms() < until);
        if (took == -FI_EAGAIN) {
            drive();
        } else {
            CHECK_BETWEEN(took, 1, part);
            sent += (size_t)took;
        }
        say(pair.client.ep, pair.server.ep, 1);
    }
    CHECK_RET(recv_once(pair.client.ep, &byte, 1), 0);
    pair_close(&pair);
}

/* Checks that what a side kept when it closed is the beginning of the pattern, and that nothing follows. */
static void check_prefix(struct fid_ep *ep, size_t sent)
{
    static uint8_t buffer[65536];
    size_t received = 0;
    ssize_t got;

    while ((got = recv_once(ep, buffer, sizeof buffer)) > 0) {
        CHECK_BYTES(buffer, pattern(received, (size_t)got), (size_t)got);
        received += (size_t)got;
        CHECK_BETWEEN(received, 1, sent);
    }
    for (unsigned i = 0; i < 20; i++) {
        CHECK_RET(got, 0);
        drive();
        got = recv_once(ep, buffer, sizeof buffer);
    }
}

/* The server sends `before` bytes on the queue pair and `after` bytes to memory, then the client closes. */
static void close_between(size_t ring, size_t before, size_t after)
{
    const struct settings settings = {.send_ring = ring, .recv_ring = ring};
    struct pair pair;

    note("%zu bytes, then %zu", before, after);
    pair_open_at_the_move(&pair, &settings);
    /* The first call moves the output. */
    CHECK_RET(send_once(pair.server.ep, pattern(0, before), before), before);
    CHECK_RET(send_once(pair.server.ep, pattern(before, after), after), after);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    check_prefix(pair.client.ep, before + after);
    pair_close(&pair);
}

static void closed_in_the_move(void)
{
    close_between(0, 4, 4);
    /* More than the socket takes, so that some of it arrives after the bytes in memory. */
    close_between(64 << 20, PATTERN_MAX, 4);
}

/* ---- sleeping at the move ---------------------------------------------------------------------- */

/* Like pair_open_at_the_move, with descriptors. The server's output has moved, and the client has nothing to
 * receive. */
static void pair_open_asleep(struct pair *pair)
{
    uint8_t bytes[64];

    CHECK_SYS(setenv("FI_RSTREAM_SPIN_US", "0", 1));
    pair_open_at_the_move(pair, NULL);
    (void)wait_fd(&pair->client.ep->fid);
    (void)wait_fd(&pair->server.ep->fid);
    CHECK_AT_LEAST(recv_soon(pair->server.ep, bytes, sizeof bytes), 1);
    CHECK_RET(recv_once(pair->client.ep, bytes, sizeof bytes), -FI_EAGAIN);
}

/* Checks that the client may not sleep, or does not sleep long, and then receives four bytes. */
static void check_wakes(struct pair *pair)
{
    uint8_t bytes[64];

    CHECK(must_not_wait(&pair->client) || readable(wait_fd(&pair->client.ep->fid), PATIENCE_MS));
    CHECK_RET(recv_once(pair->client.ep, bytes, sizeof bytes), 4);
    CHECK_BYTES(bytes, "5678", 4);
    CHECK_RET(recv_once(pair->client.ep, bytes, sizeof bytes), -FI_EAGAIN);
}

static void first_bytes_wake(void)
{
    struct pair pair;

    pair_open_asleep(&pair);
    CHECK_RET(send_once(pair.server.ep, "5678", 4), 4);
    check_wakes(&pair);
    pair_close(&pair);
}

/* The last bytes of the queue pair are received while there are bytes in memory already. */
static void bytes_behind_the_queue_pair(void)
{
    struct pair pair;
    uint8_t bytes[4];

    pair_open_at_the_move(&pair, NULL);
    (void)wait_fd(&pair.client.ep->fid);
    CHECK_RET(send_once(pair.server.ep, "1234", 4), 4);
    CHECK_RET(send_once(pair.server.ep, "5678", 4), 4);
    CHECK_RET(recv_soon(pair.client.ep, bytes, sizeof bytes), 4);
    CHECK_BYTES(bytes, "1234", 4);
    check_wakes(&pair);
    pair_close(&pair);
}

static void *receive_nothing(void *ep)
{
    uint8_t byte;

    CHECK_RET(recv_once(ep, &byte, 1), -FI_EAGAIN);
    return NULL;
}

/* This thread sends on the client, and another one receives. */
static void two_threads(void)
{
    pthread_t receiver;
    struct pair pair;

    pair_open_asleep(&pair);
    CHECK_INT(pthread_create(&receiver, NULL, receive_nothing, pair.client.ep), 0);
    CHECK_INT(pthread_join(receiver, NULL), 0);
    CHECK_RET(send_once(pair.server.ep, "5678", 4), 4);
    while (send_once(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX) != -FI_EAGAIN)
        ;
    /* The receiver sleeps without another call. */
    CHECK(readable(wait_fd(&pair.client.ep->fid), PATIENCE_MS));
    check_wakes(&pair);
    pair_close(&pair);
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* Receives now and then, which has to return `end` soon. */
static void check_receives_end(struct fid_ep *ep, ssize_t end)
{
    uint8_t byte;

    for (unsigned calls = 0; recv_once(ep, &byte, 1) != end; calls++) {
        CHECK_BETWEEN(calls, 0, RECEIVES);
        sleep_ms(PAUSE_MS);
    }
}

static void end_is_noticed(void)
{
    struct pair pair;

    pair_open_moved(&pair, NULL);
    CHECK_OK(fi_shutdown(pair.server.ep, FI_SEND));
    check_receives_end(pair.client.ep, 0);
    pair_close(&pair);
}

/* Sends back what comes. */
static void echo(struct peer *self, void *argument)
{
    struct side listener, server;
    struct event request;
    uint8_t bytes[64];

    (void)argument;
    side_listen(&listener, IPV4, NULL);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(listener.eq, FI_CONNECTED);
    for (;;)
        send_all(server.ep, bytes, (size_t)recv_soon(server.ep, bytes, sizeof bytes));
}

/* A client that shares memory with another process, which is killed. */
static void open_orphan(struct side *client)
{
    struct peer peer;
    uint8_t byte;

    needs_embedded_device();
    peer_start(&peer, echo, NULL);
    side_active(client, IPV4, (unsigned)peer_hear(&peer), NULL);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    await_event(client->eq, FI_CONNECTED);
    for (unsigned i = 0; i < 8 * CALLS; i++) {
        CHECK_RET(send_once(client->ep, "x", 1), 1);
        CHECK_RET(recv_soon(client->ep, &byte, 1), 1);
    }
    check_shared(1);
    peer_kill(&peer);
}

static void kill_is_received(void)
{
    struct side client;

    open_orphan(&client);
    check_receives_end(client.ep, -FI_ECONNRESET);
    side_close(&client);
}

static void kill_is_noticed_by_sends(void)
{
    struct side client;
    ssize_t sent;

    if (!shares())
        skip("sends on a queue pair look for the end less often");
    open_orphan(&client);
    for (unsigned calls = 0; (sent = send_once(client.ep, "x", 1)) == 1; calls++) {
        CHECK_BETWEEN(calls, 0, SENDS);
        sleep_ms(PAUSE_MS);
    }
    CHECK_RET(sent, -FI_ECONNRESET);
    side_close(&client);
}

/* ---- room ------------------------------------------------------------------------------------ */

static ssize_t peek(struct fid_ep *ep, size_t length)
{
    uint8_t bytes[64];
    struct iovec part = {bytes, length};
    struct fi_msg message = {.msg_iov = &part, .iov_count = length > 0};

    return fi_recvmsg(ep, &message, FI_PEEK);
}

static void injects_fit_after_peeks(void)
{
    enum { RING = 1000, PART = 200 };
    const struct settings settings = {.send_ring = RING, .recv_ring = RING};
    uint8_t bytes[RING];
    struct pair pair;

    pair_open_moved(&pair, &settings);
    /* Peeks that ask for the number of bytes, and peeks that copy. */
    for (size_t length = 0; length <= sizeof(uint64_t); length += sizeof(uint64_t)) {
        int64_t until = now_ms() + PATIENCE_MS;

        CHECK_RET(fi_inject(pair.client.ep, pattern(0, PART), PART, FI_ADDR_UNSPEC), PART);
        CHECK_RET(recv_soon(pair.server.ep, bytes, RING), PART);
        do {
            CHECK(now_ms() < until);
            CHECK_RET(peek(pair.server.ep, length), -FI_EAGAIN);
        } while (fi_inject(pair.client.ep, pattern(0, RING), RING, FI_ADDR_UNSPEC) != RING);
        for (size_t received = 0; received < RING;)
            received += (size_t)recv_soon(pair.server.ep, bytes, RING);
        CHECK_RET(recv_once(pair.server.ep, bytes, RING), -FI_EAGAIN);
    }
    pair_close(&pair);
}

static void blocked_send_shut(void)
{
    struct pair pair;
    uint8_t byte;
    int fd;

    pair_open_moved(&pair, NULL);
    fd = wait_fd(&pair.client.ep->fid);
    fill(pair.client.ep, 0);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_RET(recv_once(pair.client.ep, &byte, 1), -FI_EAGAIN);
    AWAIT(PATIENCE_MS, !must_not_wait(&pair.client) && !readable(fd, 50));
    pair_close(&pair);
}

/* Room wakes a sender after the end of what it receives. Later it has nothing to send. */
static void sleeps_after_the_end(void)
{
    struct pair pair;
    uint8_t byte;
    size_t sent;
    int fd;

    CHECK_SYS(setenv("FI_RSTREAM_SPIN_US", "0", 1));
    pair_open_moved(&pair, NULL);
    fd = wait_fd(&pair.server.ep->fid);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_RET(recv_soon(pair.server.ep, &byte, 1), 0);
    sent = fill(pair.server.ep, 0);
    CHECK_RET(send_once(pair.server.ep, "x", 1), -FI_EAGAIN);
    recv_pattern(pair.client.ep, 0, sent);
    CHECK(readable(fd, PATIENCE_MS));
    CHECK_RET(send_once(pair.server.ep, "x", 1), 1);
    for (unsigned i = 0; readable(fd, PAUSE_MS); i++) {
        CHECK_BETWEEN(i, 0, RESTLESS);
        CHECK_RET(recv_once(pair.server.ep, &byte, 1), 0);
    }
    pair_close(&pair);
}

/* Sends until nothing more fits, while the receiver looks but takes nothing. Then it takes all. Returns the
 * number of bytes. */
static size_t fill_and_empty(struct fid_ep *from, struct fid_ep *to)
{
    const size_t part = 100;
    size_t sent = 0;

    for (unsigned refused = 0; refused < 50; refused++) {
        ssize_t took = send_once(from, pattern(sent, part), part);

        (void)peek(to, 0);
        if (took != -FI_EAGAIN) {
            CHECK_BETWEEN(took, 1, part);
            sent += (size_t)took;
            refused = 0;
        }
    }
    recv_pattern(to, 0, sent);
    return sent;
}

/* Moves some bytes in both directions, and leaves some unread. */
static void mix(struct pair *pair, unsigned calls)
{
    uint8_t bytes[64];

    for (unsigned i = 0; i < calls; i++) {
        CHECK_RET(send_once(pair->client.ep, "x", 1), 1);
        if (i % 3 > 0)
            (void)recv_once(pair->server.ep, bytes, sizeof bytes);
        if (i % 2 > 0)
            CHECK_RET(send_once(pair->server.ep, "x", 1), 1);
        if (i % 5 == 0)
            (void)recv_once(pair->client.ep, bytes, sizeof bytes);
    }
}

static void receive_all(struct fid_ep *ep)
{
    uint8_t bytes[64];

    while (recv_once(ep, bytes, sizeof bytes) > 0)
        ;
}

static void capacities(void)
{
    enum { RING = 4096, STATES = 40 };
    const struct settings settings = {.send_ring = RING, .recv_ring = RING};

    needs_embedded_device();
    for (unsigned calls = 0; calls < STATES; calls++) {
        struct pair pair;

        note("after %u calls", calls);
        pair_open(&pair, IPV4, &settings);
        mix(&pair, calls);
        receive_all(pair.client.ep);
        receive_all(pair.server.ep);
        for (unsigned round = 0; round < 4; round++) {
            /* The last round is after the move. */
            size_t least = shares() && round == 3 ? RING : RING / 2;

            CHECK_BETWEEN(fill_and_empty(pair.client.ep, pair.server.ep), least, RING);
            CHECK_BETWEEN(fill_and_empty(pair.server.ep, pair.client.ep), least, RING);
        }
        check_shared(2);
        pair_close(&pair);
    }
}

static void nothing_stays_open(void)
{
    enum { STATES = 40 };
    struct pair pair;
    size_t descriptors;

    needs_embedded_device();
    pair_open(&pair, IPV4, NULL);
    pair_close(&pair);
    descriptors = open_descriptors();
    for (unsigned calls = 0; calls < STATES; calls++) {
        pair_open(&pair, IPV4, NULL);
        if (calls & 1)
            (void)wait_fd(&pair.client.ep->fid);
        if (calls & 2)
            (void)wait_fd(&pair.server.ep->fid);
        mix(&pair, calls);
        pair_close(&pair);
        CHECK_INT(open_descriptors(), descriptors);
        CHECK_INT(shared_mappings(), 0);
    }
}

static const struct test tests[] = {
    TEST(receiving_shut_before, "after fi_shutdown(FI_RECV) the peer's bytes are dropped wherever they go"),
    TEST(closed_in_the_move, "fi_shutdown of both keeps a prefix of what was sent"),
    TEST(first_bytes_wake, "the first bytes in memory wake"),
    TEST(bytes_behind_the_queue_pair, "fi_trywait: -FI_EAGAIN for bytes in memory, after those before"),
    TEST(two_threads, "sender and receiver in two threads: neither swallows the other's wake-up"),
    TEST(end_is_noticed, "the end of the stream is noticed by the next receives"),
    TEST(kill_is_received, "the death of the peer is noticed by the next receives"),
    TEST(kill_is_noticed_by_sends, "the death of the peer is noticed by the next sends"),
    TEST(injects_fit_after_peeks, "an inject fits once all was received, even if the peer then only peeks"),
    TEST(blocked_send_shut, "a blocked send that fi_shutdown ends leaves the descriptor quiet"),
    TEST(sleeps_after_the_end, "after the end, room wakes a sender that waits for it, and no other"),
    TEST(capacities, "at most one receive ring is taken and not received; after the move exactly one"),
    TEST(nothing_stays_open, "closing gives everything back, wherever the connection is"),
    TEST(orders_in_memory, "calls in generated orders: bytes, room, ends and wake-ups are those of a model"),
    TEST(orders_on_iwarp, "the same without shared memory"),
};

const struct section moving_section = SECTION("moving to shared memory", tests);
