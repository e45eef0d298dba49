/* Contract, section Threads: a thread that is cancelled (pthread_cancel) while it is inside a call. */
#include "conformance.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- a blocking call ----------------------------------------------------------------------- */

/* A thread that makes a blocking call and is cancelled during it. */
struct waiter {
    pthread_t thread;
    long long (*call)(struct fid *fid);
    struct fid *fid;
    bool returned;
    long long answer;
};

static void *wait_in_call(void *argument)
{
    struct waiter *waiter = argument;

    waiter->answer = waiter->call(waiter->fid);
    waiter->returned = true;
    pthread_testcancel();
    return NULL;
}

static void waiter_start(struct waiter *waiter, long long (*call)(struct fid *fid), struct fid *fid)
{
    *waiter = (struct waiter){.call = call, .fid = fid};
    CHECK_INT(pthread_create(&waiter->thread, NULL, wait_in_call, waiter), 0);
    sleep_ms(100);
    CHECK_INT(pthread_cancel(waiter->thread), 0);
    sleep_ms(100);
}

/* The call must have finished, and the thread must have been cancelled after it. */
static void waiter_end(struct waiter *waiter, long long answer)
{
    void *result;

    CHECK_INT(pthread_join(waiter->thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(waiter->returned);
    CHECK_RET(waiter->answer, answer);
}

static long long close_it(struct fid *fid)
{
    return fi_close(fid);
}

static void in_close(void)
{
    /* With these rings the socket does not take all bytes, so the close waits until the peer is driven. */
    const struct settings settings = {.send_ring = 16 << 20, .recv_ring = 16 << 20};
    const size_t part = 1 << 20;
    struct waiter waiter;
    struct pair pair;
    size_t sent = 0;
    ssize_t took;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "0", 1));
    pair_open(&pair, IPV4, &settings);
    while ((took = send_once(pair.client.ep, pattern(sent, part), part)) > 0)
        sent += (size_t)took;
    CHECK_RET(took, -FI_EAGAIN);
    waiter_start(&waiter, close_it, &pair.client.ep->fid);
    pair.client.ep = NULL;
    recv_pattern(pair.server.ep, 0, sent);
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    waiter_end(&waiter, 0);
    CHECK_INT(await_event(pair.server.eq, FI_SHUTDOWN).kind, FI_SHUTDOWN);
    pair_close(&pair);
}

static long long wait_for_event(struct fid *fid)
{
    struct fi_eq_cm_entry entry;
    uint32_t kind;

    return fi_eq_sread((struct fid_eq *)fid, &kind, &entry, sizeof entry, -1, 0);
}

static void in_sread(void)
{
    struct waiter waiter;
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    waiter_start(&waiter, wait_for_event, &pair.client.eq->fid);
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    waiter_end(&waiter, sizeof(struct fi_eq_cm_entry));
    CHECK_RET(send_once(pair.client.ep, "x", 1), -FI_EPIPE);
    pair_close(&pair);
}

/* ---- every other call ----------------------------------------------------------------------- */

struct ends {
    struct side listener, client, server;
};

/* The code of libfabric itself in fi_getinfo and fi_fabric may be cancelled, so these calls are not
 * tested. Every other call runs only the provider's code. */
static void open_pending(struct side *side, struct fi_info *info)
{
    struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_FD};

    *side = (struct side){.info = info};
    CHECK_OK(fi_fabric(info->fabric_attr, &side->fabric, NULL));
    CHECK_OK(PENDING(fi_eq_open(side->fabric, &attributes, &side->eq, NULL)));
    CHECK_OK(PENDING(fi_domain(side->fabric, info, &side->domain, NULL)));
}

static void endpoint_pending(struct side *side, struct side *owner)
{
    int fd;

    CHECK_OK(PENDING(fi_endpoint(owner->domain, side->info, &side->ep, NULL)));
    CHECK_OK(PENDING(fi_ep_bind(side->ep, &owner->eq->fid, 0)));
    CHECK_OK(PENDING(fi_enable(side->ep)));
    CHECK_OK(PENDING(fi_control(&side->ep->fid, FI_GETWAIT, &fd)));
}

/* Waits for the next event of `kind`, with both calls in turn. The client's queue is driven as well,
 * because an RDMA device continues to connect only when it is driven. */
static struct fi_info *event_pending(struct ends *ends, struct fid_eq *eq, uint32_t kind)
{
    struct fi_eq_cm_entry entry, peeked;
    int64_t until = now_ms() + PATIENCE_MS;
    uint32_t got;

    for (;;) {
        if (PENDING(fi_eq_read(eq, &got, &entry, sizeof entry, 0)) > 0
            || PENDING(fi_eq_sread(eq, &got, &entry, sizeof entry, 1, 0)) > 0)
            break;
        (void)PENDING(fi_eq_read(ends->client.eq, &got, &peeked, sizeof peeked, FI_PEEK));
        CHECK(now_ms() < until);
    }
    CHECK_INT(got, kind);
    return kind == FI_CONNREQ ? entry.info : NULL;
}

static void move_pending(struct fid_ep *from, struct fid_ep *to, size_t length)
{
    uint8_t buffer[4096];
    size_t sent = 0, received = 0;

    while (received < length) {
        size_t left = length - sent < sizeof buffer ? length - sent : sizeof buffer;
        ssize_t moved;

        if (left > 0) {
            moved = (ssize_t)PENDING(fi_send(from, pattern(sent, left), left, NULL, 0, NULL));
            if (moved != -FI_EAGAIN) {
                CHECK_BETWEEN(moved, 1, left);
                sent += (size_t)moved;
            }
        }
        moved = (ssize_t)PENDING(fi_recv(to, buffer, sizeof buffer, NULL, 0, NULL));
        if (moved != -FI_EAGAIN) {
            CHECK_BETWEEN(moved, 1, sizeof buffer);
            CHECK_BYTES(buffer, pattern(received, (size_t)moved), (size_t)moved);
            received += (size_t)moved;
        }
    }
}

static void connect_pending(struct ends *ends, struct fi_info *listens, struct fi_info *connects)
{
    struct sockaddr_storage address;
    size_t length = sizeof address;

    open_pending(&ends->listener, listens);
    CHECK_OK(PENDING(fi_passive_ep(ends->listener.fabric, listens, &ends->listener.pep, NULL)));
    CHECK_OK(PENDING(fi_pep_bind(ends->listener.pep, &ends->listener.eq->fid, 0)));
    CHECK_OK(PENDING(fi_listen(ends->listener.pep)));
    CHECK_OK(PENDING(fi_getname(&ends->listener.pep->fid, &address, &length)));

    open_pending(&ends->client, connects);
    endpoint_pending(&ends->client, &ends->client);
    CHECK_OK(PENDING(fi_connect(ends->client.ep, &address, NULL, 0)));
    ends->server = (struct side){.info = event_pending(ends, ends->listener.eq, FI_CONNREQ)};
    endpoint_pending(&ends->server, &ends->listener);
    CHECK_OK(PENDING(fi_accept(ends->server.ep, NULL, 0)));
    /* This data call is the one that finds the client connected. */
    while (PENDING(fi_recv(ends->client.ep, &address, 1, NULL, 0, NULL)) == -FI_ENOTCONN)
        CHECK_RET(PENDING(fi_trywait(ends->listener.fabric, &(struct fid *){&ends->server.ep->fid}, 1)), 0);
    (void)event_pending(ends, ends->client.eq, FI_CONNECTED);
    (void)event_pending(ends, ends->listener.eq, FI_CONNECTED);
}

static void close_pending(struct side *side)
{
    struct fid *fids[] = {side->ep ? &side->ep->fid : NULL, side->pep ? &side->pep->fid : NULL,
                          side->eq ? &side->eq->fid : NULL, side->domain ? &side->domain->fid : NULL,
                          side->fabric ? &side->fabric->fid : NULL};

    for (size_t i = 0; i < sizeof fids / sizeof fids[0]; i++)
        if (fids[i])
            CHECK_OK(PENDING(fi_close(fids[i])));
    fi_freeinfo(side->info);
}

static void *live_pending(void *argument)
{
    struct fi_info *hints = stream_hints(), *listens, *connects;
    struct ends ends;
    char host[64];

    snprintf(host, sizeof host, "%s", IPV4);
    CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL), 0);
    CHECK_INT(pthread_cancel(pthread_self()), 0);
    CHECK_OK(fi_getinfo(TEST_API, host, "0", FI_SOURCE, hints, &listens));
    CHECK_OK(fi_getinfo(TEST_API, host, "1", 0, hints, &connects));
    fi_freeinfo(hints);
    connect_pending(&ends, listens, connects);
    move_pending(ends.client.ep, ends.server.ep, 300000);
    move_pending(ends.server.ep, ends.client.ep, 300000);
    CHECK_OK(PENDING(fi_shutdown(ends.server.ep, FI_SEND)));
    CHECK_OK(PENDING(fi_shutdown(ends.client.ep, 0)));
    close_pending(&ends.client);
    close_pending(&ends.server);
    close_pending(&ends.listener);
    *(bool *)argument = true;
    CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL), 0);
    pthread_testcancel();
    return NULL;
}

static void live(void)
{
    struct pair pair;
    pthread_t thread;
    bool whole = false;
    void *result;

    CHECK_INT(pthread_create(&thread, NULL, live_pending, &whole), 0);
    CHECK_INT(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(whole);
    pair_open(&pair, IPV4, NULL);
    transfer(pair.client.ep, pair.server.ep, 50000);
    pair_close(&pair);
}

static void pending_in_any_call(void)
{
    live();
}

/* Calls write log lines. These go to /dev/null, and so does the text of a failed check. */
static void with_log(void)
{
    int output = CHECK_SYS(open("/dev/null", O_WRONLY));

    CHECK_SYS(setenv("FI_LOG_LEVEL", "debug", 1));
    CHECK_SYS(setenv("FI_LOG_PROV", PROVIDER, 1));
    CHECK_SYS(dup2(output, STDERR_FILENO));
    close(output);
    live();
}

/* ---- a call that waits for another thread's ------------------------------------------------- */

#define LONG_SEND ((size_t)8 << 20)

/* A thread that sends much in each call, and one that receives it. */
struct stream {
    struct pair pair;
    atomic_bool long_sends, stop;
};

/* Sends short messages until calls need no other lock than that of their direction, and long ones then. */
static void *send_long(void *argument)
{
    struct stream *stream = argument;
    uint8_t *bytes = calloc(1, LONG_SEND);

    CHECK(bytes != NULL);
    while (!stream->stop) {
        int64_t enough = now_ms() + 5;
        for (unsigned sent = 0; sent < 20000 && !stream->stop && now_ms() < enough;)
            sent += send_once(stream->pair.client.ep, bytes, 64) > 0;
        stream->long_sends = true;
        for (int64_t until = now_ms() + 3; now_ms() < until;)
            (void)send_once(stream->pair.client.ep, bytes, LONG_SEND);
        stream->long_sends = false;
    }
    free(bytes);
    CHECK_OK(fi_shutdown(stream->pair.client.ep, FI_SEND));
    return NULL;
}

static void *receive_long(void *argument)
{
    struct stream *stream = argument;
    uint8_t *bytes = malloc(LONG_SEND);
    ssize_t got;

    CHECK(bytes != NULL);
    while ((got = recv_once(stream->pair.server.ep, bytes, LONG_SEND)) != 0)
        CHECK(got > 0 || got == -FI_EAGAIN);
    free(bytes);
    return NULL;
}

/* Receives where nothing comes: the call arms the descriptor for both directions. */
static void *receive_nothing(void *argument)
{
    struct stream *stream = argument;

    for (;;) {
        while (!stream->long_sends) {
            pthread_testcancel();
            sched_yield();
        }
        CHECK_RET(recv_once(stream->pair.client.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
        pthread_testcancel();
    }
    return NULL;
}

static void beside_long_calls(void)
{
    enum { CANCELS = 300 };
    const struct settings settings = {.send_ring = LONG_SEND, .recv_ring = LONG_SEND};
    struct stream stream = {.stop = false};
    const char *setting = getenv("FI_RSTREAM_SHM");
    pthread_t sender, receiver;

    if (on_rdma_device() || (setting != NULL && strcmp(setting, "0") == 0))
        skip("only in shared memory has a lock an owner that others wait for");
    pair_open(&stream.pair, IPV4, &settings);
    (void)wait_fd(&stream.pair.client.ep->fid);
    CHECK_INT(pthread_create(&sender, NULL, send_long, &stream), 0);
    CHECK_INT(pthread_create(&receiver, NULL, receive_long, &stream), 0);
    /* Where a message takes long, fewer have to do. */
    const int64_t enough = now_ms() + 10000;
    for (unsigned i = 0; i < CANCELS && now_ms() < enough; i++) {
        const struct timespec pause = {.tv_nsec = (200 + i % 7 * 150) * 1000};
        pthread_t thread;
        void *result;

        CHECK_INT(pthread_create(&thread, NULL, receive_nothing, &stream), 0);
        while (!stream.long_sends)
            sched_yield();
        (void)nanosleep(&pause, NULL);
        CHECK_INT(pthread_cancel(thread), 0);
        CHECK_INT(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
    }
    stream.stop = true;
    CHECK_INT(pthread_join(sender, NULL), 0);
    CHECK_INT(pthread_join(receiver, NULL), 0);
    pair_close(&stream.pair);
}

static const struct test tests[] = {
    TEST(in_close, "pthread_cancel of a thread whose fi_close waits: the call ends first, in order"),
    TEST(in_sread, "pthread_cancel of a thread that waits in fi_eq_sread: the call ends first, with its event"),
    TEST(pending_in_any_call, "a pending cancellation acts in no call, and after it"),
    TEST(beside_long_calls, "nor where a call waits for another thread's"),
    TEST(with_log, "nor where a call writes log lines"),
};

const struct section cancelling_section = SECTION("cancelled threads", tests);
