/* Contract, section Message endpoints: many queues, counters and threads that sleep at the same time. */
#include "message.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CONNECTIONS = 130, FEW = 20 };

/* Connections of two domains. Each has completion queues of its own on one side, which sleep on their
 * descriptors. */
struct connections {
    struct side listener, clients, servers;
    size_t count;
    struct fid_ep *client[CONNECTIONS], *server[CONNECTIONS];
    struct fid_cq *queue[CONNECTIONS];
    /* Of messages received, for the first few. */
    struct fid_cntr *counter[FEW];
};

static struct fid_ep *connection_end(struct side *side, struct fi_info *info, struct fid_cq *queue)
{
    struct fid_ep *ep;

    CHECK_OK(fi_endpoint(side->domain, info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &side->eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &queue->fid, FI_TRANSMIT | FI_RECV));
    return ep;
}

static void connections_open(struct connections *open, size_t count)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    struct event request;

    memset(open, 0, sizeof *open);
    open->count = count;
    message_listen(&open->listener, NULL);
    message_client(&open->clients, &open->listener, NULL);
    message_queue(&open->clients, NULL);
    for (size_t i = 0; i < count; i++) {
        open->client[i] = connection_end(&open->clients, open->clients.info, open->clients.cq);
        CHECK_OK(fi_connect(open->client[i], open->clients.info->dest_addr, NULL, 0));
        request = await_event(open->listener.eq, FI_CONNREQ);
        if (i == 0)
            side_share(&open->servers, &open->listener, request.info);
        CHECK_OK(fi_cq_open(open->servers.domain, &attr, &open->queue[i], NULL));
        open->server[i] = connection_end(&open->servers, request.info, open->queue[i]);
        if (i < FEW) {
            CHECK_OK(fi_cntr_open(open->servers.domain, NULL, &open->counter[i], NULL));
            CHECK_OK(fi_ep_bind(open->server[i], &open->counter[i]->fid, FI_RECV));
        }
        CHECK_OK(fi_accept(open->server[i], NULL, 0));
        (void)await_event(open->clients.eq, FI_CONNECTED);
        (void)await_event(open->listener.eq, FI_CONNECTED);
        if (i > 0)
            fi_freeinfo(request.info);
    }
}

static void connections_close(struct connections *open)
{
    for (size_t i = 0; i < open->count; i++) {
        close_fid(&open->client[i]->fid);
        close_fid(&open->server[i]->fid);
        close_fid(&open->queue[i]->fid);
        if (i < FEW)
            close_fid(&open->counter[i]->fid);
    }
    side_close(&open->servers);
    side_close(&open->clients);
    side_close(&open->listener);
}

/* The kernel would take only 100 descriptors that hold one common set. */
static void many_descriptors(void)
{
    static struct connections open;
    static uint8_t got[CONNECTIONS];
    const size_t chosen[] = {0, CONNECTIONS / 2, CONNECTIONS - 1};
    int epoll = CHECK_SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event events[4];

    connections_open(&open, CONNECTIONS);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = i};
        struct fid *fids[1] = {&open.queue[i]->fid};

        post_recv(open.server[i], &got[i], 1, i);
        settle(&open.servers, fids, 1);
        CHECK_SYS(epoll_ctl(epoll, EPOLL_CTL_ADD, wait_fd(fids[0]), &event));
    }
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        CHECK_INT(epoll_wait(epoll, events, 4, 20), 0);
        CHECK_OK(fi_inject(open.client[chosen[i]], "x", 1, FI_ADDR_UNSPEC));
        CHECK_INT(epoll_wait(epoll, events, 4, PATIENCE_MS), 1);
        CHECK_INT(events[0].data.u64, chosen[i]);
        (void)await_done(open.queue[chosen[i]], chosen[i], RECEIVED);
        CHECK_INT(got[chosen[i]], 'x');
    }
    CHECK_SYS(close(epoll));
    connections_close(&open);
}

/* A thread that sleeps in a call until a message arrives. */
struct waiter {
    struct connections *open;
    size_t at;
    pthread_t thread;
    _Atomic bool done;
};

static void *wait_for_message(void *argument)
{
    struct waiter *waiter = argument;
    struct fi_cq_data_entry entry;

    if (waiter->at % 2 == 0)
        CHECK_RET(fi_cq_sread(waiter->open->queue[waiter->at], &entry, 1, NULL, -1), 1);
    else
        CHECK_OK(fi_cntr_wait(waiter->open->counter[waiter->at], 1, -1));
    waiter->done = true;
    return NULL;
}

/* How often the process's threads, other than this one, have given up a processor to sleep. */
static long switches_of_others(void)
{
    struct rusage process, own;

    CHECK_SYS(getrusage(RUSAGE_SELF, &process));
    CHECK_SYS(getrusage(RUSAGE_THREAD, &own));
    return process.ru_nvcsw - own.ru_nvcsw;
}

/* Each arrival wakes the thread that drives for all, and the one that it is for, which may be the same. */
static void waiters_wake(void)
{
    enum { ROUNDS = 20 };
    static struct connections open;
    static uint8_t got[FEW];
    struct waiter waiters[FEW];
    long all = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t order[FEW];
        long before, switches;

        connections_open(&open, FEW);
        for (size_t i = 0; i < FEW; i++) {
            waiters[i] = (struct waiter){.open = &open, .at = i};
            post_recv(open.server[i], &got[i], 1, i);
            CHECK_OK(pthread_create(&waiters[i].thread, NULL, wait_for_message, &waiters[i]));
            order[i] = i;
        }
        for (size_t i = FEW - 1; i > 0; i--) {
            size_t other = (size_t)rand() % (i + 1), kept = order[i];

            order[i] = order[other];
            order[other] = kept;
        }
        sleep_ms(20);
        before = switches_of_others();
        for (size_t i = 0; i < FEW; i++) {
            int64_t end = now_ms() + PATIENCE_MS;

            CHECK_OK(fi_inject(open.client[order[i]], "x", 1, FI_ADDR_UNSPEC));
            while (!waiters[order[i]].done) {
                CHECK(now_ms() < end);
                sleep_ms(1);
            }
            CHECK_OK(pthread_join(waiters[order[i]].thread, NULL));
        }
        switches = switches_of_others() - before;
        note("round %u: %ld switches of threads for %d messages", round, switches, FEW);
        /* If each arrival woke all that sleep, they would be FEW / 2 for each message. */
        CHECK_BETWEEN(switches, 0, 6 * FEW);
        all += switches;
        connections_close(&open);
    }
    /* Two for each, and some for locks, of which a busy machine makes more in one round or another. */
    CHECK_BETWEEN(all, 0, 3 * FEW * ROUNDS);
}

/* Threads that sleep for moments in turn, and so begin and end to drive for the others. */
struct passer {
    struct connections *open;
    unsigned seed;
    pthread_t thread;
};

static _Atomic bool passing;
static _Atomic unsigned arrived[FEW];

static void *pass_by(void *argument)
{
    struct passer *passer = argument;
    struct fi_cq_data_entry entry;
    struct fid_cq *queue;

    CHECK_OK(fi_cq_open(passer->open->servers.domain, &(struct fi_cq_attr){.wait_obj = FI_WAIT_FD}, &queue, NULL));
    while (passing) {
        int ms = rand_r(&passer->seed) % 4;

        if (rand_r(&passer->seed) % 2)
            CHECK_RET(fi_cq_sread(queue, &entry, 1, NULL, ms), -FI_EAGAIN);
        else
            CHECK_RET(fi_cntr_wait(passer->open->counter[0], UINT64_MAX, ms), -FI_ETIMEDOUT);
    }
    close_fid(&queue->fid);
    return NULL;
}

static void *count_messages(void *argument)
{
    struct waiter *waiter = argument;
    struct fi_cq_data_entry entry;
    ssize_t got;

    while ((got = fi_cq_sread(waiter->open->queue[waiter->at], &entry, 1, NULL, -1)) == 1)
        arrived[waiter->at]++;
    CHECK_RET(got, -FI_EAGAIN);
    return NULL;
}

static void leaders_change(void)
{
    enum { MESSAGES = 3000, PASSERS = 4 };
    static struct connections open;
    static uint8_t got;
    struct passer passers[PASSERS];
    struct waiter waiters[FEW];
    unsigned sent[FEW] = {0};

    connections_open(&open, FEW);
    passing = true;
    for (unsigned i = 0; i < PASSERS; i++) {
        passers[i] = (struct passer){.open = &open, .seed = i};
        CHECK_OK(pthread_create(&passers[i].thread, NULL, pass_by, &passers[i]));
    }
    for (size_t i = 0; i < FEW; i++) {
        waiters[i] = (struct waiter){.open = &open, .at = i};
        CHECK_OK(pthread_create(&waiters[i].thread, NULL, count_messages, &waiters[i]));
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        const size_t at = (size_t)rand() % FEW;
        const int64_t end = now_ms() + PATIENCE_MS;

        post_recv(open.server[at], &got, 1, i);
        CHECK_OK(fi_inject(open.client[at], "x", 1, FI_ADDR_UNSPEC));
        sent[at]++;
        while (arrived[at] != sent[at])
            CHECK(now_ms() < end);
    }
    passing = false;
    for (unsigned i = 0; i < PASSERS; i++)
        CHECK_OK(pthread_join(passers[i].thread, NULL));
    for (size_t i = 0; i < FEW; i++) {
        CHECK_OK(fi_cq_signal(open.queue[i]));
        CHECK_OK(pthread_join(waiters[i].thread, NULL));
    }
    connections_close(&open);
}

static const struct test tests[] = {
    TEST(many_descriptors, "130 queues of a domain in one epoll set: an arrival wakes whom it is for, and nobody else"),
    TEST(waiters_wake, "of 20 threads in fi_cq_sread and fi_cntr_wait, an arrival wakes whom it is for, and one more at most"),
    TEST(leaders_change, "20 threads in fi_cq_sread while others come and go: each arrival wakes the one that it is for"),
};

const struct section message_crowds_section = SECTION("crowds of sleepers on message endpoints", tests);
