/* Contract, section Message endpoints: the descriptors of completion queues and counters, and who sleeps on them. */
#include "message.h"

#include <sys/epoll.h>
#include <unistd.h>

enum { MUCH_COUNT = 20, MUCH_LENGTH = 4 << 20 };

static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

static void signal_of_descriptor(void)
{
    struct fi_cq_data_entry entry;
    struct pair pair;
    struct fid *fids[1];

    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    for (unsigned i = 0; i < 3; i++) {
        settle(&pair.server, fids, 1);
        CHECK(!readable(wait_fd(fids[0]), 0));
        CHECK_OK(fi_cq_signal(pair.server.cq));
        CHECK(readable(wait_fd(fids[0]), 0));
        CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), -FI_EAGAIN);
        CHECK_RET(fi_trywait(pair.server.fabric, fids, 1), -FI_EAGAIN);
    }
    settle(&pair.server, fids, 1);
    pair_close(&pair);
}

static struct fid_cntr *counter;

static void bind_counter(struct side *side)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD};

    if (side->info->handle == NULL)
        return;
    CHECK_OK(fi_cntr_open(side->domain, &attr, &counter, NULL));
    CHECK_OK(fi_ep_bind(side->ep, &counter->fid, FI_RECV));
}

static void counter_descriptor(void)
{
    struct message_settings settings = {.prepare = bind_counter};
    struct pair pair;
    struct fid *fids[1];
    uint8_t got[4];

    messages_open(&pair, &settings);
    fids[0] = &counter->fid;
    for (unsigned i = 0; i < 3; i++) {
        settle(&pair.server, fids, 1);
        CHECK(!readable(wait_fd(fids[0]), 20));
        post_recv(pair.server.ep, got, 1, i);
        CHECK_OK(fi_inject(pair.client.ep, "xx", i == 2 ? 2 : 1, FI_ADDR_UNSPEC));
        /* Reading the queue drives the domain as well. */
        if (i < 2)
            (void)await_done(pair.server.cq, i, RECEIVED);
        else
            (void)await_failed(pair.server.cq, i, RECEIVED, FI_ETRUNC);
        CHECK(readable(wait_fd(fids[0]), 0));
        CHECK_RET(fi_trywait(pair.server.fabric, fids, 1), -FI_EAGAIN);
    }
    CHECK_INT(fi_cntr_read(counter), 2);
    CHECK_INT(fi_cntr_readerr(counter), 1);
    settle(&pair.server, fids, 1);
    CHECK_OK(fi_cntr_add(counter, 1));
    CHECK(readable(wait_fd(fids[0]), 0));
    CHECK_RET(fi_close(&counter->fid), -FI_EBUSY);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    close_fid(&counter->fid);
    pair_close(&pair);
}

/* An epoll set that has the descriptor of a queue or counter, edge-triggered. */
static int edges_of(struct fid *fid)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll = CHECK_SYS(epoll_create1(EPOLL_CLOEXEC));

    CHECK_SYS(epoll_ctl(epoll, EPOLL_CTL_ADD, wait_fd(fid), &event));
    return epoll;
}

/* How many events there are within this time. */
static int edges_within(int epoll, int ms)
{
    struct epoll_event event;

    return CHECK_SYS(epoll_wait(epoll, &event, 1, ms));
}

/* Much data, to a reader that sleeps edge-triggered after fi_trywait has let it. */
static void *send_much(void *argument)
{
    struct pair *pair = argument;
    struct fi_cq_data_entry entry;

    for (unsigned i = 0; i < MUCH_COUNT; i++)
        post_send(pair->client.ep, pattern(i, MUCH_LENGTH), MUCH_LENGTH, i);
    for (unsigned i = 0; i < MUCH_COUNT; i++)
        CHECK_RET(fi_cq_sread(pair->client.cq, &entry, 1, NULL, PATIENCE_MS), 1);
    return NULL;
}

static void sleeps_edge_triggered(void)
{
    static uint8_t got[MUCH_COUNT][MUCH_LENGTH];
    struct fi_cq_data_entry entry;
    struct fid *fids[1];
    struct pair pair;
    pthread_t sender;
    unsigned done = 0;
    int epoll;

    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    for (unsigned i = 0; i < MUCH_COUNT; i++)
        post_recv(pair.server.ep, got[i], MUCH_LENGTH, i);
    epoll = edges_of(fids[0]);
    CHECK_OK(pthread_create(&sender, NULL, send_much, &pair));
    while (done < MUCH_COUNT) {
        ssize_t count = fi_cq_read(pair.server.cq, &entry, 1);

        if (count == 1) {
            CHECK_INT((uintptr_t)entry.op_context, done);
            CHECK_BYTES(got[done], pattern(done, MUCH_LENGTH), MUCH_LENGTH);
            done++;
        } else if (fi_trywait(pair.server.fabric, fids, 1) == 0) {
            CHECK_INT(edges_within(epoll, PATIENCE_MS), 1);
        }
    }
    CHECK_OK(pthread_join(sender, NULL));
    CHECK_SYS(close(epoll));
    pair_close(&pair);
}

/* What calls of other threads report, to one that sleeps edge-triggered. */
static void edges_of_calls(void)
{
    enum { SEND, COUNT, SIGNAL, CALLS };

    for (unsigned call = SEND; call < CALLS; call++) {
        struct message_settings settings = {.cq = waiting.cq, .prepare = bind_counter};
        struct fi_cq_data_entry entry;
        struct fid *fids[1];
        struct pair pair;
        uint8_t got;
        int epoll;

        messages_open(&pair, &settings);
        fids[0] = call == COUNT ? &counter->fid : &pair.server.cq->fid;
        epoll = edges_of(fids[0]);
        for (unsigned i = 0; i < 5; i++) {
            post_recv(pair.client.ep, &got, 1, i);
            settle(&pair.server, fids, 1);
            CHECK_INT(edges_within(epoll, 0), 0);
            if (call == SEND)
                post_send(pair.server.ep, "x", 1, i);
            else if (call == COUNT)
                CHECK_OK(fi_cntr_add(counter, 1));
            else
                CHECK_OK(fi_cq_signal(pair.server.cq));
            CHECK_INT(edges_within(epoll, PATIENCE_MS), 1);
            if (call == SEND)
                (void)await_done(pair.server.cq, i, SENT);
            else if (call == SIGNAL)
                CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), -FI_EAGAIN);
        }
        CHECK_SYS(close(epoll));
        close_fid(&pair.server.ep->fid);
        pair.server.ep = NULL;
        close_fid(&counter->fid);
        pair_close(&pair);
    }
}

/* fi_trywait of one queue finds nothing; the one of another queue of the domain takes the message that has arrived since.
 * The first descriptor tells. */
static void told_by_another_trywait(void)
{
    struct separate open;
    struct fid *receives[1], *sends[1];
    uint8_t got;

    separate_open(&open, NULL);
    receives[0] = &open.receives->fid;
    sends[0] = &open.client.cq->fid;
    for (unsigned i = 0; i < 20; i++) {
        int fd = wait_fd(receives[0]);

        (void)wait_fd(sends[0]);
        post_recv(open.client.ep, &got, 1, i);
        settle(&open.client, receives, 1);
        CHECK_OK(fi_inject(open.server.ep, "x", 1, FI_ADDR_UNSPEC));
        CHECK(readable(fd, PATIENCE_MS));
        settle(&open.client, sends, 1);
        CHECK(readable(fd, 0));
        CHECK_INT((uintptr_t)next_completion(open.receives).op_context, i);
    }
    separate_close(&open);
}

/* fi_trywait lets the reader sleep. Before it does, it reads messages and answers: as ofi_rxm does while its caller begins
 * to sleep. The end of the answer wakes it. */
static void answered_before_sleep(void)
{
    enum { ROUNDS = 3, MOST = 40, EMPTY_READS = 30 };
    static const unsigned messages[ROUNDS] = {1, 2, MOST};
    struct fi_cq_data_entry entry;
    struct fid *fids[1];
    struct pair pair;
    uint8_t got[MOST], answers[ROUNDS];
    int fd;

    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    fd = wait_fd(fids[0]);
    for (unsigned i = 0; i < ROUNDS; i++) {
        post_recv(pair.client.ep, &answers[i], 1, i);
        for (unsigned j = 0; j < messages[i]; j++)
            post_recv(pair.server.ep, &got[j], 1, j);
        settle(&pair.server, fids, 1);
        for (unsigned j = 0; j < messages[i]; j++)
            CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
        CHECK(readable(fd, PATIENCE_MS));
        for (unsigned j = 0, empty = 0; j < messages[i];) {
            if (fi_cq_read(pair.server.cq, &entry, 1) == 1) {
                CHECK_INT((uintptr_t)entry.op_context, j++);
            } else {
                CHECK_BETWEEN(++empty, 1, EMPTY_READS);
                sleep_ms(10);
            }
        }
        post_send(pair.server.ep, "y", 1, MOST);
        CHECK(readable(fd, PATIENCE_MS));
        (void)await_done(pair.server.cq, MOST, SENT);
        (void)await_done(pair.client.cq, i, RECEIVED);
    }
    pair_close(&pair);
}

/* The same for a reader that polls between fi_trywait and its sleep. */
static void polled_before_sleep(void)
{
    enum { ROUNDS = 20, READS = 200 };
    struct fi_cq_data_entry entry;
    struct fid *fids[1];
    struct pair pair;

    messages_open(&pair, &waiting);
    fids[0] = &pair.client.cq->fid;
    for (unsigned i = 0; i < ROUNDS; i++) {
        settle(&pair.client, fids, 1);
        for (unsigned j = 0; j < READS; j++)
            CHECK_RET(fi_cq_read(pair.client.cq, &entry, 1), -FI_EAGAIN);
        post_send(pair.client.ep, "x", 1, i);
        CHECK(readable(wait_fd(fids[0]), PATIENCE_MS));
        (void)await_done(pair.client.cq, i, SENT);
    }
    pair_close(&pair);
}

static void check_comes_to_rest(struct fid_cq *cq)
{
    enum { QUIET = 64 };
    struct fi_cq_data_entry entry;

    for (unsigned reads = 0; readable(wait_fd(&cq->fid), 0); reads++) {
        CHECK_RET(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
        CHECK_BETWEEN(reads, 0, QUIET);
    }
}

/* Whoever sleeps on the descriptor without fi_trywait wakes for each entry, and comes to rest after some reads, whatever
 * took the entry. */
static void slept_without_trywait(void)
{
    struct fi_cq_data_entry entry;
    struct pair pair;
    uint8_t got;
    int fd;

    messages_open(&pair, &waiting);
    fd = wait_fd(&pair.client.cq->fid);
    for (unsigned i = 0; i < 20; i++) {
        post_send(pair.client.ep, "x", 1, i);
        CHECK(readable(fd, 0));
        CHECK_RET(fi_cq_read(pair.client.cq, &entry, 1), 1);
        CHECK_INT((uintptr_t)entry.op_context, i);
        check_comes_to_rest(pair.client.cq);

        CHECK_OK(fi_cq_signal(pair.client.cq));
        CHECK(readable(fd, 0));
        CHECK_RET(fi_cq_sread(pair.client.cq, &entry, 1, NULL, 0), -FI_EAGAIN);
        check_comes_to_rest(pair.client.cq);

        post_recv(pair.client.ep, &got, 1, i);
        CHECK_OK(fi_cancel(&pair.client.ep->fid, CONTEXT(i)));
        CHECK(readable(fd, 0));
        CHECK_RET(fi_cq_readerr(pair.client.cq, &(struct fi_cq_err_entry){0}, 0), 1);
        check_comes_to_rest(pair.client.cq);
    }
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(sleeps_edge_triggered, "fi_trywait lets a reader sleep edge-triggered only if it will be woken"),
    TEST(told_by_another_trywait, "fi_trywait of one queue takes what another one is for, and tells on its descriptor"),
    TEST(answered_before_sleep, "who reads and answers between fi_trywait and its sleep is woken by the end of the answer"),
    TEST(polled_before_sleep, "so is who polls between fi_trywait and its sleep"),
    TEST(slept_without_trywait, "whoever sleeps on a descriptor without fi_trywait wakes for each entry, and comes to rest"),
    TEST(edges_of_calls, "edge-triggered: each send, count and signal by another call wakes, on the descriptor of queue and counter"),
    TEST(signal_of_descriptor, "fi_cq_signal wakes a sleeper on the descriptor, once"),
    TEST(counter_descriptor, "the descriptor of a counter wakes for each change, whoever drives the domain"),
};

const struct section message_descriptors_section = SECTION("descriptors of message endpoints", tests);
