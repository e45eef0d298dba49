/* Contract, section Message endpoints: who sleeps while others make calls on the same domain. */
#include "message.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

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

    separate_open(&open, NULL);
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

struct sleeper {
    struct fid_fabric *fabric;
    struct fid_cq *queue;
    bool reads;
    atomic_bool is_over;
};

/* Ends after a signal of `wake`. */
static void *sleep_on_queue(void *argument)
{
    struct sleeper *sleeper = argument;
    struct fid *fids[1] = {&sleeper->queue->fid};
    struct fi_cq_data_entry entry;

    if (sleeper->reads) {
        CHECK_RET(fi_cq_sread(sleeper->queue, &entry, 1, NULL, -1), -FI_EAGAIN);
        return NULL;
    }
    while (!atomic_load(&sleeper->is_over)) {
        if (fi_trywait(sleeper->fabric, fids, 1) == 0)
            CHECK(readable(wait_fd(fids[0]), PATIENCE_MS));
        CHECK_RET(fi_cq_read(sleeper->queue, &entry, 1), -FI_EAGAIN);
    }
    return NULL;
}

/* The sleeper has to be asleep until then. */
static void wake(struct sleeper *sleeper)
{
    enum { MS = 200 };
    int64_t cpu;

    sleep_ms(20);
    cpu = cpu_ms();
    sleep_ms(MS);
    check_idle("a sleeper on a queue for which there is nothing", cpu, MS);
    atomic_store(&sleeper->is_over, true);
    CHECK_OK(fi_cq_signal(sleeper->queue));
}

/* The first thread is woken by the device, and the second one by the first. */
static void closed_while_read(void)
{
    struct sleeper first = {.reads = true}, second = {.reads = true};
    pthread_t threads[2];
    struct pair pair;

    messages_open(&pair, &waiting);
    for (unsigned i = 0; i < 2; i++) {
        struct sleeper *sleeper = i == 0 ? &first : &second;

        CHECK_OK(fi_cq_open(pair.server.domain, &(struct fi_cq_attr){.wait_obj = FI_WAIT_FD}, &sleeper->queue, NULL));
        CHECK_OK(pthread_create(&threads[i], NULL, sleep_on_queue, sleeper));
        sleep_ms(20);
        CHECK_RET(fi_close(&sleeper->queue->fid), -FI_EBUSY);
    }
    wake(&first);
    CHECK_OK(pthread_join(threads[0], NULL));
    close_fid(&first.queue->fid);
    messages_pass(&pair);
    wake(&second);
    CHECK_OK(pthread_join(threads[1], NULL));
    close_fid(&second.queue->fid);
    pair_close(&pair);
}

/* More than TCP takes at once is injected, then endpoint and queue are closed. A thread that sleeps on another queue
 * of the domain sends the rest. */
static void sleeper_sends_rest(bool reads)
{
    enum { LENGTH = 4096, MOST = 8000 };
    static const struct message_settings deep = {.cq = {.wait_obj = FI_WAIT_FD}, .tx_size = MOST};
    struct sleeper sleeper = {.reads = reads};
    struct pair pair;
    static uint8_t got[LENGTH];
    pthread_t thread;
    unsigned sent = 0;

    messages_open(&pair, &deep);
    sleeper.fabric = pair.client.fabric;
    CHECK_OK(fi_cq_open(pair.client.domain, &(struct fi_cq_attr){.wait_obj = FI_WAIT_FD}, &sleeper.queue, NULL));
    while (sent < MOST && fi_inject(pair.client.ep, pattern(sent, LENGTH), LENGTH, FI_ADDR_UNSPEC) == 0)
        sent++;
    CHECK_BETWEEN(sent, 500, MOST - 1);
    close_fid(&pair.client.ep->fid);
    close_fid(&pair.client.cq->fid);
    pair.client.ep = NULL;
    pair.client.cq = NULL;
    CHECK_OK(pthread_create(&thread, NULL, sleep_on_queue, &sleeper));
    sleep_ms(50);
    for (unsigned i = 0; i < sent; i++) {
        post_recv(pair.server.ep, got, LENGTH, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, LENGTH);
        CHECK_BYTES(got, pattern(i, LENGTH), LENGTH);
    }
    wake(&sleeper);
    CHECK_OK(pthread_join(thread, NULL));
    close_fid(&sleeper.queue->fid);
    pair_close(&pair);
}

static void sleepers_send_rest(void)
{
    sleeper_sends_rest(false);
    sleeper_sends_rest(true);
}

/* The peer writes more than TCP takes to an endpoint whose queue has no wait object. A thread that sleeps on the
 * descriptor of another queue, which was opened before or after the endpoint, receives it. */
static void sleeper_receives(bool first)
{
    enum { LENGTH = 32 << 20 };
    struct fi_cq_attr attr = {.wait_obj = FI_WAIT_FD};
    uint8_t *here = map_pages(LENGTH), *there = map_pages(LENGTH);
    const int64_t end = now_ms() + PATIENCE_MS;
    struct sleeper sleeper = {0};
    struct fi_cq_data_entry entry;
    struct side listener;
    struct event request;
    struct fid_mr *region;
    struct pair pair;
    pthread_t thread;

    memset(here, 7, LENGTH);
    request = message_request(&listener, &pair.client, NULL);
    side_share(&pair.server, &listener, request.info);
    if (first)
        CHECK_OK(fi_cq_open(pair.server.domain, &attr, &sleeper.queue, NULL));
    message_endpoint(&pair.server, NULL);
    if (!first) {
        CHECK_OK(fi_enable(pair.server.ep));
        CHECK_OK(fi_cq_open(pair.server.domain, &attr, &sleeper.queue, NULL));
    }
    message_accept(&pair.client, &pair.server);
    region = message_region(&pair.server, there, LENGTH, 1);
    sleeper.fabric = pair.server.fabric;
    CHECK_OK(pthread_create(&thread, NULL, sleep_on_queue, &sleeper));
    sleep_ms(50);
    CHECK_OK(fi_write(pair.client.ep, here, LENGTH, NULL, 0, 0, fi_mr_key(region), CONTEXT(1)));
    /* Nothing else drives the server meanwhile. */
    while (fi_cq_read(pair.client.cq, &entry, 1) == -FI_EAGAIN)
        CHECK(now_ms() < end);
    CHECK_INT(entry.flags, WRITTEN);
    wake(&sleeper);
    CHECK_OK(pthread_join(thread, NULL));
    close_fid(&sleeper.queue->fid);
    close_fid(&region->fid);
    side_close(&pair.server);
    side_close(&pair.client);
    side_close(&listener);
    unmap_pages(there, LENGTH);
    unmap_pages(here, LENGTH);
}

static void sleepers_receive(void)
{
    sleeper_receives(true);
    sleeper_receives(false);
}

/* Puts a descriptor into an epoll set, that into another one, and so on, as deep as the kernel allows. */
static void nest(int fd, int *sets, unsigned depth)
{
    for (unsigned i = 0; i < depth; i++) {
        struct epoll_event event = {.events = EPOLLIN};

        sets[i] = (int)CHECK_SYS(epoll_create1(EPOLL_CLOEXEC));
        CHECK_SYS(epoll_ctl(sets[i], EPOLL_CTL_ADD, fd, &event));
        fd = sets[i];
    }
}

/* An endpoint none of whose queues has a wait object cannot be enabled while the descriptor of another queue cannot show
 * what there is to do for it. Once it can, a later call enables the endpoint, and the descriptor shows that. */
static void enabled_at_last(void)
{
    enum { QUEUES = 3, DEPTH = 4 };
    struct fi_cq_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fid_cq *queues[QUEUES];
    struct fid *fids[QUEUES];
    struct side listener;
    struct event request;
    int fds[QUEUES], sets[DEPTH];
    struct pair pair;
    uint8_t got;

    request = message_request(&listener, &pair.client, NULL);
    side_share(&pair.server, &listener, request.info);
    for (unsigned i = 0; i < QUEUES; i++) {
        CHECK_OK(fi_cq_open(pair.server.domain, &attr, &queues[i], NULL));
        fids[i] = &queues[i]->fid;
        fds[i] = wait_fd(fids[i]);
    }
    nest(fds[1], sets, DEPTH);
    message_endpoint(&pair.server, NULL);
    for (unsigned i = 0; i < 2; i++) {
        note("call %u", i);
        CHECK(fi_enable(pair.server.ep) < 0);
    }
    for (unsigned i = 0; i < DEPTH; i++)
        CHECK_SYS(close(sets[i]));
    CHECK_OK(fi_enable(pair.server.ep));
    message_accept(&pair.client, &pair.server);
    post_recv(pair.server.ep, &got, 1, 1);
    settle(&pair.server, fids, QUEUES);
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    for (unsigned i = 0; i < QUEUES; i++) {
        note("queue %u", i);
        CHECK(readable(fds[i], PATIENCE_MS));
    }
    (void)await_done(pair.server.cq, 1, RECEIVED);
    for (unsigned i = 0; i < QUEUES; i++)
        close_fid(fids[i]);
    side_close(&pair.server);
    side_close(&pair.client);
    side_close(&listener);
}

static void *await_failure(void *argument)
{
    struct fi_cq_data_entry entry;

    CHECK_RET(fi_cq_sread(argument, &entry, 1, NULL, PATIENCE_MS), -FI_EAVAIL);
    return NULL;
}

/* A connection that ends by a fault of this side while input is left in its socket. */
static void ended_before_input(void)
{
    enum { MS = 600 };
    const size_t length = 48 << 20;
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry failure;
    struct fid *fids[1];
    struct pair pair;
    pthread_t sender;
    uint8_t *from = map_pages(length), *to = map_pages(length), *unreadable = map_pages(PATTERN_MAX);
    int64_t cpu;

    CHECK_SYS(mprotect(unreadable, PATTERN_MAX, PROT_NONE));
    messages_open(&pair, &waiting);
    fids[0] = &pair.server.cq->fid;
    post_recv(pair.server.ep, to, length, 1);
    post_send(pair.client.ep, from, length, 2);
    CHECK_OK(pthread_create(&sender, NULL, await_failure, pair.client.cq));
    sleep_ms(50);
    for (unsigned i = 0; i < 3; i++)
        CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), -FI_EAGAIN);
    post_send(pair.server.ep, unreadable, PATTERN_MAX, 3);
    for (unsigned i = 0; i < 2; i++) {
        memset(&failure, 0, sizeof failure);
        AWAIT(PATIENCE_MS, fi_cq_read(pair.server.cq, &entry, 1) == -FI_EAVAIL);
        CHECK_RET(fi_cq_readerr(pair.server.cq, &failure, 0), 1);
    }
    CHECK_OK(pthread_join(sender, NULL));
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, MS), -FI_EAGAIN);
    check_idle("a reader whose connection ended before its input was taken", cpu, MS);
    settle(&pair.server, fids, 1);
    pair_close(&pair);
    unmap_pages(unreadable, PATTERN_MAX);
    unmap_pages(to, length);
    unmap_pages(from, length);
}

/* A thread that fi_trywait has told to sleep, and that is about to. */
static void *nearly_asleep(void *argument)
{
    struct sleeper *sleeper = argument;
    struct fid *fids[1] = {&sleeper->queue->fid};

    while (fi_trywait(sleeper->fabric, fids, 1) != 0)
        ;
    atomic_store(&sleeper->is_over, true);
    while (atomic_load(&sleeper->is_over))
        sleep_ms(1);
    return NULL;
}

/* Another thread takes the entry that was to wake it, calls fi_trywait, and takes more. It is woken all the same by what
 * nobody takes. */
static void slept_beside_reader(void)
{
    struct sleeper sleeper = {0};
    struct fid *fids[1];
    pthread_t thread;
    struct pair pair;
    uint8_t got;
    int fd;

    messages_open(&pair, &waiting);
    fids[0] = &pair.client.cq->fid;
    fd = wait_fd(fids[0]);
    sleeper.fabric = pair.client.fabric;
    sleeper.queue = pair.client.cq;
    CHECK_OK(pthread_create(&thread, NULL, nearly_asleep, &sleeper));
    while (!atomic_load(&sleeper.is_over))
        sleep_ms(1);
    for (unsigned i = 0; i < 6; i += 2) {
        post_send(pair.client.ep, "x", 1, i);
        CHECK(readable(fd, 0));
        (void)await_done(pair.client.cq, i, SENT);
        settle(&pair.client, fids, 1);
        CHECK(!readable(fd, 0));
        post_recv(pair.client.ep, &got, 1, i + 1);
        CHECK_OK(fi_inject(pair.server.ep, "x", 1, FI_ADDR_UNSPEC));
        (void)await_done(pair.client.cq, i + 1, RECEIVED);
    }
    atomic_store(&sleeper.is_over, false);
    CHECK_OK(pthread_join(thread, NULL));
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(slept_beside_reader, "of two threads on one descriptor, one reads: the other is woken by what it leaves"),
    TEST(reader_wakes_others, "fi_cq_read of one queue takes no wake-up from a sleeper on another"),
    TEST(closed_while_read, "fi_close of a queue while a thread waits in fi_cq_sread: -FI_EBUSY"),
    TEST(sleepers_send_rest, "a sleeper on another queue sends what closed endpoints have left"),
    TEST(sleepers_receive, "a sleeper on another queue receives for endpoints whose queue has no wait object"),
    TEST(enabled_at_last, "fi_enable of such an endpoint fails while a descriptor cannot serve it; a later one succeeds"),
    TEST(ended_before_input, "a connection that ends by a fault of this side, with input left: the processor rests"),
    TEST(stalled_without_peer, "a message that waits for a receive, and whose sender has left: readers sleep, and the end comes behind it"),
    TEST(unread_response, "a response that the peer does not take: the processor rests; its region closed: FI_EACCES, then the end"),
    TEST(unread_without_peer, "writes with data that wait for unread entries, and whose writer has left: readers of events sleep, and the end comes behind them"),
};

const struct section message_sleepers_section = SECTION("sleepers on message endpoints", tests);
