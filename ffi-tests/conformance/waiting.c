/* Contract, section Waiting: descriptors, fi_trywait, and plain poll, select and epoll. */
#include "conformance.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

/* A message arrives within this time, also in an emulated machine. If one is later, no test fails. */
#define ARRIVAL_MS 200

static int trywait(struct side *side, struct fid *fid)
{
    return fi_trywait(side->fabric, &fid, 1);
}

/* Calls fi_trywait until there is nothing to do. Then the descriptor is not readable. */
static void settle(struct side *side)
{
    AWAIT(PATIENCE_MS, trywait(side, &side->ep->fid) == 0 && !readable(wait_fd(&side->ep->fid), 5));
}

static void one_descriptor(void)
{
    struct side listener, client, server;
    struct event request;
    int eq_fd, ep_fd, server_fd;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    eq_fd = wait_fd(&client.eq->fid);
    ep_fd = wait_fd(&client.ep->fid);
    CHECK(eq_fd != ep_fd);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    server_fd = wait_fd(&server.ep->fid);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    CHECK_INT(wait_fd(&client.ep->fid), ep_fd);
    transfer(client.ep, server.ep, 100000);
    CHECK_OK(fi_shutdown(client.ep, 0));
    await_event(server.eq, FI_SHUTDOWN);
    CHECK_INT(wait_fd(&client.ep->fid), ep_fd);
    CHECK_INT(wait_fd(&server.ep->fid), server_fd);
    CHECK_INT(wait_fd(&client.eq->fid), eq_fd);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void wait_object(void)
{
    enum fi_wait_obj object;
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    object = FI_WAIT_NONE;
    CHECK_OK(fi_control(&pair.client.ep->fid, FI_GETWAITOBJ, &object));
    CHECK_INT(object, FI_WAIT_FD);
    object = FI_WAIT_NONE;
    CHECK_OK(fi_control(&pair.client.eq->fid, FI_GETWAITOBJ, &object));
    CHECK_INT(object, FI_WAIT_FD);
    pair_close(&pair);
}

static void trywait_bytes(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    settle(&pair.server);
    send_all(pair.client.ep, "x", 1);
    AWAIT(PATIENCE_MS, trywait(&pair.server, &pair.server.ep->fid) == -FI_EAGAIN);
    /* As long as the bytes are there, not only once. */
    CHECK_RET(trywait(&pair.server, &pair.server.ep->fid), -FI_EAGAIN);
    CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), 1);
    settle(&pair.server);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    AWAIT(PATIENCE_MS, trywait(&pair.server, &pair.server.ep->fid) == -FI_EAGAIN);
    CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), 0);
    pair_close(&pair);
}

static void trywait_events(void)
{
    struct side listener, client;

    side_listen(&listener, IPV4, NULL);
    CHECK_OK(trywait(&listener, &listener.eq->fid));
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    AWAIT(PATIENCE_MS, trywait(&listener, &listener.eq->fid) == -FI_EAGAIN);
    fi_freeinfo(await_event(listener.eq, FI_CONNREQ).info);
    CHECK_OK(trywait(&listener, &listener.eq->fid));
    side_close(&client);
    side_close(&listener);
}

static void trywait_room(void)
{
    struct pair pair;
    size_t sent;

    pair_open(&pair, IPV4, NULL);
    sent = fill(pair.client.ep, 0);
    CHECK_RET(send_once(pair.client.ep, "x", 1), -FI_EAGAIN);
    settle(&pair.client);
    recv_pattern(pair.server.ep, 0, sent);
    AWAIT(PATIENCE_MS, trywait(&pair.client, &pair.client.ep->fid) == -FI_EAGAIN);
    CHECK_RET(send_once(pair.client.ep, pattern(sent, 1), 1), 1);
    /* The last send succeeded, so room for another one makes the descriptor not readable. */
    recv_pattern(pair.server.ep, sent, 1);
    settle(&pair.client);
    pair_close(&pair);
}

static void trywait_mix(void)
{
    struct pair pair;
    struct fid *fids[3];

    pair_open(&pair, IPV4, NULL);
    settle(&pair.client);
    settle(&pair.server);
    fids[0] = &pair.server.ep->fid;
    fids[1] = &pair.listener.eq->fid;
    fids[2] = &pair.server.ep->fid;
    CHECK_OK(fi_trywait(pair.listener.fabric, fids, 3));
    CHECK_OK(fi_trywait(pair.listener.fabric, fids, 0));
    send_all(pair.client.ep, "x", 1);
    AWAIT(PATIENCE_MS, fi_trywait(pair.listener.fabric, fids, 3) == -FI_EAGAIN);
    CHECK_OK(fi_trywait(pair.listener.fabric, fids + 1, 1));
    recv_all(pair.server.ep, &(uint8_t){0}, 1);
    AWAIT(PATIENCE_MS, fi_trywait(pair.listener.fabric, fids, 3) == 0);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    AWAIT(PATIENCE_MS, fi_trywait(pair.listener.fabric, fids + 1, 1) == -FI_EAGAIN);
    pair_close(&pair);
}

static void writable_is_quiet(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    settle(&pair.client);
    settle(&pair.server);
    CHECK(!readable(wait_fd(&pair.client.ep->fid), 200));
    CHECK(!readable(wait_fd(&pair.server.ep->fid), 0));
    transfer(pair.client.ep, pair.server.ep, 50000);
    settle(&pair.client);
    settle(&pair.server);
    CHECK(!readable(wait_fd(&pair.client.ep->fid), 200));
    CHECK(!readable(wait_fd(&pair.server.ep->fid), 0));
    pair_close(&pair);
}

/* ---- without fi_trywait ---------------------------------------------------------------------- */

/* Receives by sleeping only on the descriptor: each -FI_EAGAIN is followed by a wait, and nothing else
 * drives the endpoint. A lost wake-up shows as a time-out. */
static ssize_t recv_sleeping(struct fid_ep *ep, void *data, size_t length)
{
    int fd = wait_fd(&ep->fid);

    for (;;) {
        ssize_t got = recv_once(ep, data, length);

        if (got != -FI_EAGAIN)
            return got;
        CHECK(readable(fd, PATIENCE_MS));
    }
}

static ssize_t send_sleeping(struct fid_ep *ep, const void *data, size_t length)
{
    int fd = wait_fd(&ep->fid);

    for (;;) {
        ssize_t took = send_once(ep, data, length);

        if (took != -FI_EAGAIN)
            return took;
        CHECK(readable(fd, PATIENCE_MS));
    }
}

static void wakes_for_bytes(void)
{
    struct pair pair;
    uint8_t byte;

    pair_open(&pair, IPV4, NULL);
    for (unsigned i = 0; i < 200; i++) {
        CHECK_RET(recv_once(pair.server.ep, &byte, 1), -FI_EAGAIN);
        CHECK_RET(send_once(pair.client.ep, pattern(i, 1), 1), 1);
        CHECK_RET(recv_sleeping(pair.server.ep, &byte, 1), 1);
        CHECK_INT(byte, *pattern(i, 1));
    }
    CHECK_RET(recv_once(pair.server.ep, &byte, 1), -FI_EAGAIN);
    CHECK_OK(fi_shutdown(pair.client.ep, FI_SEND));
    CHECK_RET(recv_sleeping(pair.server.ep, &byte, 1), 0);
    pair_close(&pair);
}

/* No timer of the provider wakes a sleeping thread by chance. */
static void no_keepalive(void)
{
    setenv("FI_RSTREAM_KEEPALIVE_S", "3600", 1);
}

/* A message that arrives between an -FI_EAGAIN and the first FI_GETWAIT. Nothing drives the endpoint in
 * between. */
static void descriptor_later(void)
{
    static uint8_t buffer[4096];
    struct pair pair;
    size_t sent;
    ssize_t got;

    no_keepalive();
    pair_open(&pair, IPV4, NULL);
    CHECK_RET(recv_once(pair.server.ep, buffer, 1), -FI_EAGAIN);
    CHECK_RET(send_once(pair.client.ep, pattern(0, 1), 1), 1);
    sleep_ms(ARRIVAL_MS);
    CHECK(readable(wait_fd(&pair.server.ep->fid), PATIENCE_MS));
    recv_pattern(pair.server.ep, 0, 1);
    sent = 1 + fill(pair.client.ep, 1);
    sleep_ms(ARRIVAL_MS);
    for (size_t at = 1; at < sent; at += (size_t)got) {
        got = recv_once(pair.server.ep, buffer, sizeof buffer);
        CHECK_BETWEEN(got, 1, sent - at);
        CHECK_BYTES(buffer, pattern(at, (size_t)got), (size_t)got);
    }
    sleep_ms(ARRIVAL_MS);
    CHECK(readable(wait_fd(&pair.client.ep->fid), PATIENCE_MS));
    CHECK_RET(send_once(pair.client.ep, pattern(sent, 1), 1), 1);
    recv_pattern(pair.server.ep, sent, 1);
    pair_close(&pair);
}

static void wakes_for_room(void)
{
    const struct settings settings = {.recv_ring = 5003};
    struct pair pair;
    uint64_t sent = 0;

    pair_open(&pair, IPV4, &settings);
    for (unsigned i = 0; i < 100; i++) {
        size_t filled = fill(pair.client.ep, sent);

        CHECK_RET(send_once(pair.client.ep, pattern(sent + filled, 1), 1), -FI_EAGAIN);
        recv_pattern(pair.server.ep, sent, filled);
        sent += filled;
        CHECK_RET(send_sleeping(pair.client.ep, pattern(sent, 1), 1), 1);
        recv_pattern(pair.server.ep, sent, 1);
        sent++;
    }
    pair_close(&pair);
}

static void wakes_for_enough_room(void)
{
    const struct settings settings = {.recv_ring = 1500};
    struct pair pair;
    int fd;

    /* An inject waits for room for all its bytes, so less room does not wake its sender. */
    pair_open(&pair, IPV4, &settings);
    fd = wait_fd(&pair.client.ep->fid);
    CHECK_RET(fi_inject(pair.client.ep, pattern(0, 1000), 1000, FI_ADDR_UNSPEC), 1000);
    CHECK_RET(fi_inject(pair.client.ep, pattern(1000, 1000), 1000, FI_ADDR_UNSPEC), -FI_EAGAIN);
    CHECK(!readable(fd, 20));
    recv_pattern(pair.server.ep, 0, 1000);
    AWAIT(PATIENCE_MS, readable(fd, 0));
    CHECK_RET(fi_inject(pair.client.ep, pattern(1000, 1000), 1000, FI_ADDR_UNSPEC), 1000);
    recv_pattern(pair.server.ep, 1000, 1000);
    pair_close(&pair);
}

static void sleeping_reader(struct peer *self, void *argument)
{
    const struct settings *settings = argument;
    static uint8_t buffer[8192];
    struct side listener, server;
    struct event request;
    uint64_t received = 0;

    side_listen(&listener, IPV4, settings);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    for (;;) {
        ssize_t got = recv_sleeping(server.ep, buffer, 1 + received % 7919);

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

/* Both processes sleep only on their descriptors, with a ring that is always full or empty. */
static void sleeping_stream(size_t ring, uint32_t protocol, uint64_t length)
{
    struct settings settings = {.send_ring = ring, .recv_ring = ring, .protocol = protocol};
    struct side client;
    struct peer peer;
    uint64_t sent = 0;

    peer_start(&peer, sleeping_reader, &settings);
    side_active(&client, IPV4, (unsigned)peer_hear(&peer), &settings);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    while (sent < length) {
        size_t part = (size_t)(1 + sent % 6101);
        ssize_t took = send_sleeping(client.ep, pattern(sent, part), part);

        CHECK_BETWEEN(took, 1, part);
        sent += (uint64_t)took;
        still_moving();
    }
    CHECK_OK(fi_shutdown(client.ep, FI_SEND));
    CHECK_INT(peer_hear(&peer), sent);
    side_close(&client);
    peer_join(&peer);
}

static void no_lost_wake_up(void)
{
    no_keepalive();
    sleeping_stream(4096, FI_PROTO_RSTREAM, share_of(20 << 20));
    sleeping_stream(32768, FI_PROTO_IWARP, share_of(20 << 20));
    sleeping_stream(97, FI_PROTO_RSTREAM, share_of(1 << 20));
}

static void plain_epoll_loop(void)
{
    enum { COUNT = 8 };
    struct pair pairs[COUNT];
    size_t received[COUNT] = {0};
    unsigned done = 0;
    int epoll_fd = (int)CHECK_SYS(epoll_create1(EPOLL_CLOEXEC));

    for (unsigned i = 0; i < COUNT; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        pair_open(&pairs[i], IPV4, NULL);
        CHECK_RET(recv_once(pairs[i].server.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
        CHECK_SYS(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wait_fd(&pairs[i].server.ep->fid), &event));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        send_all(pairs[i].client.ep, pattern(i, 5000), 5000);
        CHECK_OK(fi_shutdown(pairs[i].client.ep, FI_SEND));
    }
    while (done < COUNT) {
        struct epoll_event events[COUNT];
        int count = (int)CHECK_SYS(epoll_wait(epoll_fd, events, COUNT, PATIENCE_MS));

        CHECK_AT_LEAST(count, 1);
        for (int e = 0; e < count; e++) {
            unsigned i = events[e].data.u32;
            uint8_t buffer[777];
            ssize_t got;

            while ((got = recv_once(pairs[i].server.ep, buffer, sizeof buffer)) > 0) {
                CHECK_BYTES(buffer, pattern(i + received[i], (size_t)got), (size_t)got);
                received[i] += (size_t)got;
            }
            if (got == 0) {
                CHECK_INT(received[i], 5000);
                CHECK_SYS(epoll_ctl(epoll_fd, EPOLL_CTL_DEL, wait_fd(&pairs[i].server.ep->fid), NULL));
                done++;
            } else {
                CHECK_RET(got, -FI_EAGAIN);
            }
        }
    }
    CHECK_SYS(close(epoll_fd));
    for (unsigned i = 0; i < COUNT; i++)
        pair_close(&pairs[i]);
}

static void plain_select(void)
{
    struct pair pair;
    struct timeval limit = {PATIENCE_MS / 1000, 0};
    fd_set set;
    int fd;

    pair_open(&pair, IPV4, NULL);
    fd = wait_fd(&pair.server.ep->fid);
    CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
    send_all(pair.client.ep, "x", 1);
    FD_ZERO(&set);
    FD_SET(fd, &set);
    CHECK_INT(CHECK_SYS(select(fd + 1, &set, NULL, NULL, &limit)), 1);
    CHECK_RET(recv_sleeping(pair.server.ep, &(uint8_t){0}, 1), 1);
    pair_close(&pair);
}

/* ---- two threads, one descriptor -------------------------------------------------------------- */

struct stream_job {
    struct fid_ep *ep;
    uint64_t length;
    size_t part;
};

static void *send_job(void *argument)
{
    struct stream_job *job = argument;
    uint64_t sent = 0;

    while (sent < job->length) {
        size_t part = job->length - sent < job->part ? (size_t)(job->length - sent) : job->part;
        ssize_t took = send_sleeping(job->ep, pattern(sent, part), part);

        CHECK_BETWEEN(took, 1, part);
        sent += (uint64_t)took;
    }
    return NULL;
}

static void *recv_job(void *argument)
{
    static _Thread_local uint8_t buffer[65536];
    struct stream_job *job = argument;
    uint64_t received = 0;

    while (received < job->length) {
        ssize_t got = recv_sleeping(job->ep, buffer, job->part);

        CHECK_BETWEEN(got, 1, job->length - received);
        CHECK_BYTES(buffer, pattern(received, (size_t)got), (size_t)got);
        received += (uint64_t)got;
    }
    return NULL;
}

static void shared_descriptor(void)
{
    const struct settings settings = {.send_ring = 5003, .recv_ring = 5003};
    struct pair pair;
    pthread_t threads[4];
    struct stream_job jobs[4];

    /* Four threads, two on each endpoint's descriptor, which sleep after each -FI_EAGAIN. */
    pair_open(&pair, IPV4, &settings);
    jobs[0] = (struct stream_job){pair.client.ep, 4 << 20, 3001};
    jobs[1] = (struct stream_job){pair.client.ep, 4 << 20, 2003};
    jobs[2] = (struct stream_job){pair.server.ep, 4 << 20, 4999};
    jobs[3] = (struct stream_job){pair.server.ep, 4 << 20, 1009};
    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, i % 2 ? recv_job : send_job, &jobs[i]), 0);
    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    pair_close(&pair);
}

/* ---- event queues ---------------------------------------------------------------------------- */

static void queue_descriptor(void)
{
    struct side listener, client, server;
    struct event request = {0};
    struct fi_eq_cm_entry entry;

    /* Only poll on the descriptor and reads of the queue. */
    side_listen(&listener, IPV4, NULL);
    check_no_event(listener.eq);
    CHECK(!readable(wait_fd(&listener.eq->fid), 50));
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    for (int64_t until = now_ms() + PATIENCE_MS;;) {
        ssize_t got = fi_eq_read(listener.eq, &request.kind, &entry, sizeof entry, 0);

        if (got == sizeof entry)
            break;
        CHECK_RET(got, -FI_EAGAIN);
        CHECK(now_ms() < until);
        (void)fi_eq_read(client.eq, &(uint32_t){0}, &(struct fi_eq_cm_entry){0}, sizeof entry, FI_PEEK);
        (void)readable(wait_fd(&listener.eq->fid), 100);
    }
    CHECK_INT(request.kind, FI_CONNREQ);
    request.info = entry.info;
    check_no_event(client.eq);
    accept_request(&listener, &server, &request, NULL, 0);
    for (int64_t until = now_ms() + PATIENCE_MS;;) {
        ssize_t got = fi_eq_read(client.eq, &request.kind, &entry, sizeof entry, 0);

        if (got == sizeof entry)
            break;
        CHECK_RET(got, -FI_EAGAIN);
        CHECK(now_ms() < until);
        CHECK(readable(wait_fd(&client.eq->fid), PATIENCE_MS));
    }
    CHECK_INT(request.kind, FI_CONNECTED);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void connect_and_idle(struct peer *self, void *argument)
{
    struct side client;

    (void)argument;
    side_active(&client, IPV4, (unsigned)peer_hear(self), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    peer_tell(self, 1);
    for (;;)
        pause();
}

static void queue_tells_of_loss(void)
{
    struct side listener, server;
    struct event request, lost = {0};
    struct fi_eq_cm_entry entry;
    struct peer peer;
    int64_t died;

    peer_start(&peer, connect_and_idle, NULL);
    side_listen(&listener, IPV4, NULL);
    peer_tell(&peer, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    CHECK_INT(peer_hear(&peer), 1);
    check_no_event(server.eq);
    peer_kill(&peer);
    died = now_ms();
    /* The test reads only the event queue, and waits only for its descriptor. */
    for (;;) {
        ssize_t got = fi_eq_read(server.eq, &lost.kind, &entry, sizeof entry, 0);

        if (got == sizeof entry)
            break;
        CHECK_RET(got, -FI_EAGAIN);
        CHECK(readable(wait_fd(&server.eq->fid), 1000));
    }
    CHECK_INT(lost.kind, FI_SHUTDOWN);
    CHECK(entry.fid == &server.ep->fid);
    CHECK(now_ms() - died < 1000);
    CHECK_RET(recv_once(server.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    side_close(&server);
    side_close(&listener);
}

static void endpoint_tells_of_loss(void)
{
    struct side listener, server;
    struct event request;
    struct peer peer;

    peer_start(&peer, connect_and_idle, NULL);
    side_listen(&listener, IPV4, NULL);
    peer_tell(&peer, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    CHECK_INT(peer_hear(&peer), 1);
    CHECK_RET(recv_once(server.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
    peer_kill(&peer);
    CHECK_RET(recv_sleeping(server.ep, &(uint8_t){0}, 1), -FI_ECONNRESET);
    side_close(&server);
    side_close(&listener);
}

static void queue_is_quiet(void)
{
    struct side client;
    unsigned port;
    int fd = tcp_listen(&port);
    struct fi_eq_err_entry error;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", "200", 1));
    side_active(&client, IPV4, port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    error = await_error(client.eq, NULL, 0);
    CHECK_INT(error.err, FI_ETIMEDOUT);
    /* After the time-out there is nothing to wait for. */
    CHECK(!readable(wait_fd(&client.eq->fid), 100));
    side_close(&client);
    CHECK_SYS(close(fd));
}

/* ---- edge-triggered waiting ----------------------------------------------------------------- */

/* A thread that makes no progress for this long has lost a wake-up. Soft RoCE sends a lost packet again after two
 * seconds, and may lose it once more on a busy machine. */
#define STALL_MS 20000

/* A thread that waits edge-triggered for one endpoint, and moves bytes in both directions with it. */
struct edge {
    struct fid_ep *ep;
    /* Bytes to send and to receive, the length of the longest receive, and the time that the thread takes
     * before it handles a wake-up. */
    uint64_t output, input;
    size_t longest;
    int busy_ms;
    uint64_t sent, received;
    atomic_bool over;
    struct edge *peer;
};

/* Calls in both directions until both return -FI_EAGAIN, or there is no more to do. */
static void edge_calls(struct edge *edge, uint8_t *buffer)
{
    bool blocked[2] = {false, false};

    while (!blocked[0] || !blocked[1]) {
        uint64_t left = edge->output - edge->sent;
        ssize_t moved;

        moved = recv_once(edge->ep, buffer, edge->longest);
        blocked[0] = moved == -FI_EAGAIN;
        if (!blocked[0]) {
            CHECK_BETWEEN(moved, 1, edge->longest);
            CHECK_BYTES(buffer, pattern(edge->received, (size_t)moved), (size_t)moved);
            edge->received += (uint64_t)moved;
        }
        if (left > PATTERN_MAX)
            left = PATTERN_MAX;
        moved = left == 0 ? -FI_EAGAIN : send_once(edge->ep, pattern(edge->sent, left), left);
        blocked[1] = moved == -FI_EAGAIN;
        if (!blocked[1]) {
            CHECK_BETWEEN(moved, 1, left);
            edge->sent += (uint64_t)moved;
        }
    }
}

static void *edge_loop(void *argument)
{
    struct edge *edge = argument;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    uint8_t *buffer = malloc(edge->longest);
    int set = CHECK_SYS(epoll_create1(0));
    int64_t woken = now_ms();

    CHECK(buffer != NULL);
    CHECK_SYS(epoll_ctl(set, EPOLL_CTL_ADD, wait_fd(&edge->ep->fid), &event));
    edge_calls(edge, buffer);
    /* The socket may not have taken all bytes of a send, so wake-ups are handled until the peer has all
     * bytes. */
    while (!edge->over || !edge->peer->over) {
        if (epoll_wait(set, &event, 1, 100) == 1) {
            sleep_ms(edge->busy_ms);
            edge_calls(edge, buffer);
            woken = now_ms();
        }
        if (edge->received == edge->input && edge->sent == edge->output)
            edge->over = true;
        else if (now_ms() - woken > STALL_MS)
            fail_at(__FILE__, __LINE__, "no wake-up: %llu of %llu bytes sent, %llu of %llu received",
                    (unsigned long long)edge->sent, (unsigned long long)edge->output,
                    (unsigned long long)edge->received, (unsigned long long)edge->input);
    }
    close(set);
    free(buffer);
    return NULL;
}

/* `back`: the busy side sends as well. */
static void edges_meet(size_t ring, int busy_ms, bool back)
{
    const struct settings settings = {.send_ring = ring, .recv_ring = ring};
    const uint64_t total = 3 * ring + 12345;
    struct edge ends[2] = {0};
    struct pair pair;
    pthread_t threads[2];

    note("rings of %zu bytes, %d ms from each wake-up to the calls, %s", ring, busy_ms, back ? "both ways" : "one way");
    still_moving();
    pair_open(&pair, IPV4, &settings);
    ends[0] = (struct edge){.ep = pair.client.ep, .output = total, .input = back ? total : 0,
                            .longest = 65537, .peer = &ends[1]};
    ends[1] = (struct edge){.ep = pair.server.ep, .output = ends[0].input, .input = total,
                            .longest = PATTERN_MAX, .busy_ms = busy_ms, .peer = &ends[0]};
    for (unsigned i = 0; i < 2; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, edge_loop, &ends[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    pair_close(&pair);
}

static void edge_triggered(void)
{
    static const size_t rings[] = {32768, 4 << 20, 16 << 20, 64 << 20};
    const size_t longest = share_of(64 << 20);

    /* Without a spin, which could find bytes that no wake-up reports. */
    CHECK_SYS(setenv("FI_RSTREAM_SPIN_US", "0", 1));
    for (unsigned i = 0; i < sizeof rings / sizeof rings[0] && rings[i] <= longest; i++)
        for (unsigned way = 0; way < 2; way++) {
            edges_meet(rings[i], 0, way == 1);
            edges_meet(rings[i], 20, way == 1);
        }
}

/* ---- after the end of the stream ------------------------------------------------------------ */

/* A pair whose client has shut down its sending direction, and whose server has noticed that. */
static void pair_open_half(struct pair *pair, const struct settings *client)
{
    pair_open_with(pair, IPV4, client, NULL);
    CHECK_OK(fi_shutdown(pair->client.ep, FI_SEND));
    CHECK_RET(recv_wait(pair->server.ep, &(uint8_t){0}, 1), 0);
}

static void half_closed_sleeps(void)
{
    struct pair pair;
    struct fid *fid;
    int fd;

    pair_open_half(&pair, NULL);
    fid = &pair.server.ep->fid;
    fd = wait_fd(fid);
    CHECK_AT_LEAST(fill(pair.server.ep, 0), 1);
    AWAIT(PATIENCE_MS, fi_trywait(pair.server.fabric, &fid, 1) == 0 && !readable(fd, 50));
    /* Room wakes the sender. */
    while (recv_once(pair.client.ep, &(uint8_t){0}, 1) == 1)
        ;
    CHECK(readable(fd, PATIENCE_MS));
    CHECK_AT_LEAST(send_once(pair.server.ep, "x", 1), 1);
    /* The end of both directions wakes it too, and the descriptor stays readable. */
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    AWAIT(PATIENCE_MS, send_once(pair.server.ep, "x", 1) == -FI_EPIPE);
    CHECK(readable(fd, PATIENCE_MS));
    CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), 0);
    CHECK(readable(fd, PATIENCE_MS));
    pair_close(&pair);
}

/* Sends until the endpoint takes no more bytes, with or without FI_MORE, and sleeps edge-triggered. A peer
 * in another thread reads. */
static size_t edges_bytes(void)
{
    return share_of(600 << 10);
}

static void *read_all(void *argument)
{
    struct side *side = argument;
    const size_t length = edges_bytes();
    static uint8_t buffer[4096];
    size_t got = 0;

    while (got < length) {
        ssize_t more = recv_once(side->ep, buffer, sizeof buffer);

        if (more == -FI_EAGAIN)
            (void)readable(wait_fd(&side->ep->fid), 50);
        else
            got += (size_t)more;
    }
    return NULL;
}

static void edges_after_the_end(void)
{
    const size_t rings[] = {64, 4096, 32 << 10, 64 << 10}, length = edges_bytes();

    for (size_t i = 0; i < 2 * sizeof rings / sizeof rings[0]; i++) {
        const struct settings client = {.recv_ring = rings[i / 2], .rx_size = i % 2 ? 4 : 0};
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        int set = CHECK_SYS(epoll_create1(0));
        struct pair pair;
        pthread_t thread;
        size_t sent = 0;

        note("ring of %zu bytes, %zu receives, or the default", rings[i / 2], client.rx_size);
        pair_open_half(&pair, &client);
        CHECK_SYS(epoll_ctl(set, EPOLL_CTL_ADD, wait_fd(&pair.server.ep->fid), &event));
        CHECK_INT(pthread_create(&thread, NULL, read_all, &pair.client), 0);
        while (sent < length) {
            struct iovec part = {(void *)pattern(sent, 1000), length - sent < 1000 ? length - sent : 1000};
            struct fi_msg message = {.msg_iov = &part, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
            ssize_t taken = fi_sendmsg(pair.server.ep, &message, sent % 3 ? FI_MORE : 0);

            if (taken == -FI_EAGAIN) {
                CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), 0);
                CHECK_INT(CHECK_SYS(epoll_wait(set, &event, 1, PATIENCE_MS)), 1);
            } else {
                CHECK_AT_LEAST(taken, 1);
                sent += (size_t)taken;
            }
        }
        /* Any call sends what FI_MORE held back. */
        CHECK_RET(recv_once(pair.server.ep, &(uint8_t){0}, 1), 0);
        CHECK_INT(pthread_join(thread, NULL), 0);
        close(set);
        pair_close(&pair);
    }
}

static const struct test tests[] = {
    TEST(half_closed_sleeps, "the end of the stream wakes until a receive has answered it: a sender can sleep after it; the end of both directions stays"),
    TEST(edges_after_the_end, "edge-triggered, room wakes a sender also after the end of what it receives, and with FI_MORE"),
    TEST(one_descriptor, "fi_control(FI_GETWAIT): one descriptor that does not change over the object's life"),
    TEST(wait_object, "FI_GETWAITOBJ answers FI_WAIT_FD"),
    TEST(trywait_bytes, "fi_trywait: -FI_EAGAIN for readable bytes or end of stream"),
    TEST(trywait_events, "fi_trywait: -FI_EAGAIN for an event"),
    TEST(trywait_room, "fi_trywait: -FI_EAGAIN for room to send, if the last send answered -FI_EAGAIN"),
    TEST(trywait_mix, "fi_trywait takes any mix and number of endpoints and event queues"),
    TEST(writable_is_quiet, "an endpoint that is merely writable is quiet"),
    TEST(wakes_for_bytes, "after -FI_EAGAIN from a receive the descriptor wakes without fi_trywait"),
    TEST(descriptor_later, "a descriptor asked for after -FI_EAGAIN is readable for what came in between"),
    TEST(wakes_for_room, "after -FI_EAGAIN from a send the descriptor wakes without fi_trywait"),
    TEST(wakes_for_enough_room, "after -FI_EAGAIN from an inject the descriptor wakes when all of it fits"),
    TEST(no_lost_wake_up, "a lost wake-up is not allowed: two processes that only sleep in poll"),
    TEST(plain_epoll_loop, "endpoints work in a plain epoll loop"),
    TEST(plain_select, "the descriptor works in select"),
    TEST(shared_descriptor, "sender and receiver on one descriptor: neither swallows the other's wake-up"),
    TEST(queue_descriptor, "an event queue's descriptor wakes for its events"),
    TEST(queue_is_quiet, "an event queue's descriptor is quiet when the last time-out has passed and was read"),
    TEST(queue_tells_of_loss, "reading an event queue drives the loss of a peer"),
    TEST(endpoint_tells_of_loss, "an endpoint's descriptor wakes for the loss of its peer"),
    TEST(edge_triggered, "edge-triggered: after -FI_EAGAIN in both directions each change wakes, whatever the rings"),
};

const struct section waiting_section = SECTION("waiting", tests);
