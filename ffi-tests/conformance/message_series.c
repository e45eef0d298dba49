/* Contract, section Message endpoints: requests that are posted one after the other leave together, if their poster
 * usually reads its queue soon. */
#include "offer.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>

/* What waits in a socket does not leave by itself within SOON_MS: the peer's host acknowledges after 40 ms. */
enum { FEW = 4, ROUNDS = 3000, SOON_MS = 20 };

/* The socket of a connected endpoint. */
static int socket_of(struct fid_ep *ep)
{
    unsigned port = fid_port(&ep->fid);

    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in own, peer;
        socklen_t own_length = sizeof own, peer_length = sizeof peer;

        if (getsockname(fd, (struct sockaddr *)&own, &own_length) == 0 &&
            getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0 && own.sin_family == AF_INET &&
            ntohs(own.sin_port) == port)
            return fd;
    }
    fail_at(__FILE__, __LINE__, "no socket has the port %u", port);
}

/* What the system has sent of a socket's output (tcpi_data_segs_out), and what it has not (tcpi_notsent_bytes). */
static struct tcp_info output(int fd)
{
    struct tcp_info info;
    socklen_t length = sizeof info;

    CHECK_SYS(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    return info;
}

/* Posts series and reads at once, until a series of the client leaves in fewer segments than messages. Returns its
 * socket. A pause of a millisecond, such as that of a busy machine, takes more than a thousand series to be forgotten. */
static int become_prompt(struct side *client, struct side *server)
{
    int fd = socket_of(client->ep);
    unsigned in_a_row = 0, most = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t before = output(fd).tcpi_data_segs_out;

        in_a_row = message_series(client, server) < 5 * SERIES ? in_a_row + 1 : 0;
        if (in_a_row > most)
            most = in_a_row;
        if (output(fd).tcpi_data_segs_out - before <= 2)
            return fd;
    }
    CHECK_BETWEEN(most, 0, ROUNDS * 5 / 6);
    skip("this machine is too slow, or too busy, for calls within 10 us");
}

/* Posts a series of which something waits. */
static void keep_some(struct pair *pair)
{
    for (unsigned round = 0; round < ROUNDS / 10; round++) {
        int fd = become_prompt(&pair->client, &pair->server);

        post_series(&pair->client, &pair->server, FEW);
        /* The system may space out what it sends (BBR). */
        sleep_ms(5);
        if (output(fd).tcpi_notsent_bytes > 0)
            return;
        read_series(pair->client.cq, FEW, SENT, PATIENCE_MS);
        read_series(pair->server.cq, FEW, RECEIVED, PATIENCE_MS);
    }
    skip("this machine is too busy");
}

/* What was posted has left when a read of the queue returns. */
static void leave_together(void)
{
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned round = 0; round < 20; round++) {
        (void)become_prompt(&pair.client, &pair.server);
        post_series(&pair.client, &pair.server, FEW);
        read_series(pair.client.cq, FEW, SENT, PATIENCE_MS);
        read_series(pair.server.cq, FEW, RECEIVED, SOON_MS);
    }
    messages_pass(&pair);
    pair_close(&pair);
}

/* A poster that makes no further call: its messages arrive all the same, and the next ones do not wait. */
static void leave_without_calls(void)
{
    struct pair pair;
    int64_t start;

    messages_open(&pair, NULL);
    keep_some(&pair);
    start = now_ms();
    read_series(pair.server.cq, FEW, RECEIVED, 400);
    printf("the last message came after %lld ms\n", (long long)(now_ms() - start));
    sleep_ms(100);
    read_series(pair.client.cq, FEW, SENT, PATIENCE_MS);
    for (unsigned round = 0; round < 20; round++) {
        post_series(&pair.client, &pair.server, FEW);
        read_series(pair.server.cq, FEW, RECEIVED, SOON_MS);
        read_series(pair.client.cq, FEW, SENT, PATIENCE_MS);
    }
    pair_close(&pair);
}

/* Connects one more endpoint of the client's domain and queue. */
static void connect_beside(struct pair *pair, struct side *server, struct fid_ep **ep)
{
    struct fi_info *hints = message_hints(NULL), *info;
    struct event request;
    char service[16];

    snprintf(service, sizeof service, "%u", fid_port(&pair->listener.pep->fid));
    info = find(IPV4, service, 0, hints);
    CHECK_OK(fi_endpoint(pair->client.domain, info, ep, NULL));
    CHECK_OK(fi_ep_bind(*ep, &pair->client.eq->fid, 0));
    CHECK_OK(fi_ep_bind(*ep, &pair->client.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_connect(*ep, info->dest_addr, NULL, 0));
    request = await_event(pair->listener.eq, FI_CONNREQ);
    message_server(&pair->listener, server, &request, NULL);
    CHECK_OK(fi_accept(server->ep, NULL, 0));
    (void)await_event(pair->client.eq, FI_CONNECTED);
    (void)await_event(server->eq, FI_CONNECTED);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* A request to another endpoint leaves behind those that were posted before it. */
static void leave_in_order(void)
{
    struct side server = {0};
    struct fid_ep *beside;
    uint8_t byte = 0;
    struct pair pair;

    messages_open(&pair, NULL);
    connect_beside(&pair, &server, &beside);
    post_recv(server.ep, &byte, 1, 0);
    keep_some(&pair);
    CHECK_OK(fi_inject(beside, pattern(7, 1), 1, FI_ADDR_UNSPEC));
    read_series(pair.server.cq, FEW, RECEIVED, SOON_MS);
    CHECK_INT(next_completion(server.cq).len, 1);
    CHECK_BYTES(&byte, pattern(7, 1), 1);
    read_series(pair.client.cq, FEW, SENT, PATIENCE_MS);
    close_fid(&beside->fid);
    side_close(&server);
    pair_close(&pair);
}

static void *receive_one(void *queue)
{
    struct fi_cq_data_entry entry;

    CHECK_RET(fi_cq_sread(queue, &entry, 1, NULL, PATIENCE_MS), 1);
    return NULL;
}

/* While another thread waits for what these bring about, they do not wait. */
static void leave_beside_sleeper(void)
{
    struct separate open;
    pthread_t sleeper;
    uint8_t byte;

    separate_open(&open, NULL);
    (void)become_prompt(&open.client, &open.server);
    post_recv(open.client.ep, &byte, 1, 0);
    CHECK_INT(pthread_create(&sleeper, NULL, receive_one, open.receives), 0);
    sleep_ms(50);
    for (unsigned round = 0; round < 100; round++) {
        post_series(&open.client, &open.server, FEW);
        read_series(open.server.cq, FEW, RECEIVED, SOON_MS);
        read_series(open.client.cq, FEW, SENT, PATIENCE_MS);
    }
    CHECK_OK(fi_inject(open.server.ep, pattern(0, 1), 1, FI_ADDR_UNSPEC));
    CHECK_INT(pthread_join(sleeper, NULL), 0);
    separate_close(&open);
}

/* fi_close and fi_shutdown behind a series. */
static void leave_before_end(void)
{
    for (unsigned shuts = 0; shuts < 2; shuts++) {
        struct pair pair;
    
        messages_open(&pair, NULL);
        keep_some(&pair);
        if (shuts) {
            CHECK_OK(fi_shutdown(pair.client.ep, 0));
        } else {
            close_fid(&pair.client.ep->fid);
            pair.client.ep = NULL;
        }
        read_series(pair.server.cq, FEW, RECEIVED, SOON_MS);
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        pair_close(&pair);
    }
}

/* Reads beyond those that may be on the way take nothing along: what waits before them leaves when the queue is read. */
static void leave_before_reads(void)
{
    enum { READS = 32, SIZE = 8000, WINDOWS = 40 };
    struct offer offer;
    struct side *client = &offer.pair.client, *server = &offer.pair.server;
    unsigned late = 0;

    offer_open(&offer, NULL);
    memcpy(there, pattern(0, SIZE), SIZE);
    (void)become_prompt(client, server);
    for (unsigned window = 0; window < WINDOWS; window++) {
        int64_t start = now_ms();

        post_series(client, server, 1);
        for (unsigned i = 0; i < READS; i++)
            CHECK_OK(fi_read(client->ep, here, SIZE, NULL, LOCAL, offer.address, offer.key, CONTEXT(i)));
        read_series(client->cq, 1, SENT, PATIENCE_MS);
        for (unsigned i = 0; i < READS;) {
            struct fi_cq_data_entry entry;
            ssize_t got = fi_cq_read(client->cq, &entry, 1);

            CHECK_BETWEEN(now_ms(), start, start + PATIENCE_MS);
            if (got == -FI_EAGAIN) {
                /* Answers. */
                (void)fi_cq_read(server->cq, NULL, 0);
                continue;
            }
            CHECK_RET(got, 1);
            CHECK_INT((uintptr_t)entry.op_context, i);
            CHECK_INT(entry.flags, WAS_READ);
            i++;
        }
        late += now_ms() - start > SOON_MS;
        read_series(server->cq, 1, RECEIVED, PATIENCE_MS);
    }
    CHECK_BYTES(here, there, SIZE);
    CHECK_BETWEEN(late, 0, WINDOWS / 2);
    offer_close(&offer);
}

static const struct test tests[] = {
    TEST(leave_together, "short messages, one after the other, leave together for whoever then reads the queue"),
    TEST(leave_without_calls, "without a further call they leave within 400 ms, and later ones at once"),
    TEST(leave_in_order, "a message of another endpoint leaves behind them"),
    TEST(leave_beside_sleeper, "at once while another thread sleeps in fi_cq_sread"),
    TEST(leave_before_reads, "reads that wait for earlier ones keep nothing back"),
    TEST(leave_before_end, "fi_close and fi_shutdown send them first"),
};

const struct section message_series_section = SECTION("message series", tests);
