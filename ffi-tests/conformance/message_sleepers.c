/* Contract, section Message endpoints: who sleeps while others make calls on the same domain. */
#include "message.h"

#include <pthread.h>

static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

/* Lets messages arrive that find no receive. */
static void let_messages_wait(void)
{
    for (unsigned i = 0; i < 30; i++) {
        drive();
        sleep_ms(1);
    }
}

static void *read_receives(void *argument)
{
    struct separate *open = argument;
    static uint8_t got;

    /* The message is received within the call, and its entry is read. Nobody has slept on that queue. */
    post_recv(open->client.ep, &got, 1, 1);
    (void)await_done(open->receives, 1, RECEIVED);
    return NULL;
}

static void reader_wakes_others(void)
{
    struct separate open;
    struct fid *fids[1];
    pthread_t reader;
    int fd;

    separate_open(&open);
    fids[0] = &open.client.cq->fid;
    fd = wait_fd(fids[0]);
    CHECK_OK(fi_inject(open.server.ep, "x", 1, FI_ADDR_UNSPEC));
    let_messages_wait();
    settle(&open.client, fids, 1);
    CHECK(!readable(fd, 20));
    CHECK_OK(pthread_create(&reader, NULL, read_receives, &open));
    CHECK_OK(pthread_join(reader, NULL));
    post_send(open.client.ep, "y", 1, 2);
    CHECK(readable(fd, PATIENCE_MS));
    (void)await_done(open.client.cq, 2, SENT);
    separate_close(&open);
}

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

static void stalled_without_peer(void)
{
    enum { MS = 600 };
    struct fi_cq_data_entry entry;
    struct fi_eq_cm_entry end;
    struct pair pair;
    struct fid *fids[1];
    uint32_t event;
    uint8_t got[4];
    int64_t cpu;

    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    CHECK_OK(fi_inject(pair.client.ep, "last", 4, FI_ADDR_UNSPEC));
    let_messages_wait();
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    sleep_ms(20);
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, MS), -FI_EAGAIN);
    check_idle("a reader of a receiver that waits for a receive, and whose peer has left", cpu, MS);
    settle(&pair.server, fids, 1);
    CHECK(!readable(wait_fd(fids[0]), 20));
    CHECK_RET(fi_eq_read(pair.server.eq, &event, &end, sizeof end, 0), -FI_EAGAIN);
    post_recv(pair.server.ep, got, 4, 1);
    CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, 4);
    /* Nobody reads the completion queue meanwhile. */
    CHECK_RET(fi_eq_sread(pair.server.eq, &event, &end, sizeof end, PATIENCE_MS, 0), sizeof end);
    CHECK_INT(event, FI_SHUTDOWN);
    CHECK(end.fid == &pair.server.ep->fid);
    pair_close(&pair);
}

/* A peer that does not take the response to its read, and one whose memory is closed meanwhile. */
static void unread_response(void)
{
    enum { MS = 600, COPIES = 8 };
    const size_t length = COPIES * PATTERN_MAX;
    struct fi_cq_data_entry entry;
    struct fid_mr *region;
    struct pair pair;
    uint8_t *here = map_pages(length), *there = map_pages(length);
    int64_t cpu;

    for (size_t at = 0; at < COPIES; at++)
        memcpy(there + at * PATTERN_MAX, pattern(at, PATTERN_MAX), PATTERN_MAX);
    messages_open(&pair, &waiting);
    region = message_region(&pair.server, there, length, 9);
    CHECK_OK(fi_read(pair.client.ep, here, length, NULL, FI_ADDR_UNSPEC, 0, 9, CONTEXT(1)));
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 50), -FI_EAGAIN);
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, MS), -FI_EAGAIN);
    check_idle("a reader whose peer does not take the response to its read", cpu, MS);
    (void)await_done(pair.client.cq, 1, WAS_READ);
    CHECK_BYTES(here, there, length);
    CHECK_OK(fi_read(pair.client.ep, here, length, NULL, FI_ADDR_UNSPEC, 0, 9, CONTEXT(2)));
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 50), -FI_EAGAIN);
    close_fid(&region->fid);
    unmap_pages(there, length);
    (void)await_failed(pair.client.cq, 2, WAS_READ, FI_EACCES);
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
    pair_close(&pair);
    unmap_pages(here, length);
}

/* Writes with data that wait because the entries of others are not read, behind them the end. */
static void unread_without_peer(void)
{
    enum { MOST = 1 << 18, ALL = MOST + 500, MS = 600 };
    static uint8_t there[4];
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fi_cq_data_entry entries[64];
    struct fi_eq_cm_entry end;
    struct fid_cntr *writes;
    struct fid_mr *region;
    struct pair pair;
    uint64_t sent = 0, seen = 0;
    uint32_t event;
    ssize_t count;
    int64_t cpu;

    messages_open(&pair, &waiting);
    CHECK_OK(fi_cntr_open(pair.server.domain, &attr, &writes, NULL));
    region = message_region(&pair.server, there, sizeof there, 9);
    CHECK_OK(fi_mr_bind(region, &writes->fid, FI_REMOTE_WRITE));
    /* The server takes what has arrived before it lets further ones wait: those are sent afterwards. Reading the
     * counter makes progress at the server. */
    while (fi_cntr_read(writes) < MOST || sent < ALL) {
        uint64_t until = fi_cntr_read(writes) < MOST ? MOST : ALL;

        while (sent < until && fi_inject_writedata(pair.client.ep, there, 4, sent, FI_ADDR_UNSPEC, 0, 9) == 0)
            sent++;
        (void)fi_cq_read(pair.client.cq, NULL, 0);
    }
    let_messages_wait();
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    sleep_ms(20);
    cpu = cpu_ms();
    CHECK_RET(fi_eq_sread(pair.server.eq, &event, &end, sizeof end, MS, 0), -FI_EAGAIN);
    check_idle("a reader of events of a receiver whose entries are not read, and whose peer has left", cpu, MS);
    while (seen < ALL) {
        count = fi_cq_read(pair.server.cq, entries, 64);
        CHECK(count > 0 || count == -FI_EAGAIN);
        for (ssize_t at = 0; at < count; at++)
            CHECK_INT(entries[at].data, seen++);
    }
    CHECK_RET(fi_eq_sread(pair.server.eq, &event, &end, sizeof end, PATIENCE_MS, 0), sizeof end);
    CHECK_INT(event, FI_SHUTDOWN);
    close_fid(&region->fid);
    close_fid(&writes->fid);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(reader_wakes_others, "fi_cq_read of one queue takes no wake-up from a sleeper on another"),
    TEST(signal_of_descriptor, "fi_cq_signal wakes a sleeper on the descriptor, once"),
    TEST(counter_descriptor, "the descriptor of a counter wakes for each change, whoever drives the domain"),
    TEST(stalled_without_peer, "a message that waits for a receive, and whose sender has left: readers sleep, and the end comes behind it"),
    TEST(unread_response, "a response that the peer does not take: the processor rests; its region closed: FI_EACCES, then the end"),
    TEST(unread_without_peer, "writes with data that wait for unread entries, and whose writer has left: readers of events sleep, and the end comes behind them"),
};

const struct section message_sleepers_section = SECTION("sleepers on message endpoints", tests);
