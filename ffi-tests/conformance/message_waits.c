/* Contract, section Message endpoints: wait objects of each kind of queue, fi_trywait for several of them, and
 * what ends a wait in a call. */
#include "message.h"

#include <signal.h>
#include <stdatomic.h>

enum { OBJECTS = 3 };

static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

/* Counts the receives of each side, of which the server is the second. */
static struct fid_cntr *receives[2];
static unsigned counted_sides;

static void bind_counter(struct side *side)
{
    struct fid_cntr *counter = message_counter(side, FI_WAIT_UNSPEC);

    receives[counted_sides++] = counter;
    CHECK_OK(fi_ep_bind(side->ep, &counter->fid, FI_RECV));
}

/* Closes the endpoints, then their counters, then the rest. */
static void close_counted(struct pair *pair)
{
    close_fid(&pair->client.ep->fid);
    close_fid(&pair->server.ep->fid);
    pair->client.ep = pair->server.ep = NULL;
    close_fid(&receives[0]->fid);
    close_fid(&receives[1]->fid);
    pair_close(pair);
}

/* Each of the three ends the sleep of a caller that waits for all of them, wherever it stands. */
static void trywait_for_all(void)
{
    struct fi_eq_entry written = {.data = 7}, event;
    struct fi_cq_data_entry entry;
    struct fid_cntr *counter;
    struct pair pair;
    struct fid *all[OBJECTS];
    uint32_t kind;
    uint8_t got;

    messages_open(&pair, &waiting);
    counter = message_counter(&pair.server, FI_WAIT_FD);
    for (unsigned turn = 0; turn < OBJECTS; turn++) {
        struct fid_fabric *fabric = pair.server.fabric;

        note("turn %u", turn);
        all[turn] = &pair.server.cq->fid;
        all[(turn + 1) % OBJECTS] = &pair.server.eq->fid;
        all[(turn + 2) % OBJECTS] = &counter->fid;
        settle(&pair.server, all, OBJECTS);
        CHECK_RET(fi_eq_write(pair.server.eq, FI_NOTIFY, &written, sizeof written, 0), sizeof written);
        CHECK(readable(wait_fd(&pair.server.eq->fid), 0));
        for (unsigned i = 0; i < 3; i++)
            CHECK_RET(fi_trywait(fabric, all, OBJECTS), -FI_EAGAIN);
        CHECK_RET(fi_eq_read(pair.server.eq, &kind, &event, sizeof event, 0), sizeof event);
        settle(&pair.server, all, OBJECTS);
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
        post_recv(pair.server.ep, &got, 1, turn);
        AWAIT(PATIENCE_MS, fi_rx_size_left(pair.server.ep) == MESSAGE_QUEUE);
        for (unsigned i = 0; i < 3; i++)
            CHECK_RET(fi_trywait(fabric, all, OBJECTS), -FI_EAGAIN);
        CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), 1);
        settle(&pair.server, all, OBJECTS);
        CHECK_OK(fi_cntr_add(counter, 1));
        CHECK(readable(wait_fd(&counter->fid), 0));
        CHECK_RET(fi_trywait(fabric, all, OBJECTS), -FI_EAGAIN);
        settle(&pair.server, all, OBJECTS);
    }
    all[1] = &pair.server.domain->fid;
    CHECK_RET(fi_trywait(pair.server.fabric, all, OBJECTS), -FI_EINVAL);
    close_fid(&counter->fid);
    pair_close(&pair);
}

/* Checks what an object says of its descriptor: it has one, or refuses both commands. */
static void check_wait_object(struct fid *fid, bool has_one)
{
    enum fi_wait_obj object = FI_WAIT_NONE;
    int fd = -1;

    CHECK_RET(fi_control(fid, FI_GETWAITOBJ, &object), has_one ? 0 : -FI_ENOSYS);
    CHECK_RET(fi_control(fid, FI_GETWAIT, &fd), has_one ? 0 : -FI_ENOSYS);
    CHECK_INT(object, has_one ? FI_WAIT_FD : FI_WAIT_NONE);
    if (has_one) {
        CHECK_INT(wait_fd(fid), fd);
    } else {
        CHECK_INT(fd, -1);
    }
    CHECK_RET(fi_control(fid, FI_GETWAITOBJ, NULL), -FI_EINVAL);
    CHECK_RET(fi_control(fid, FI_GETWAIT, NULL), -FI_EINVAL);
}

static void wait_objects(void)
{
    static const struct {
        enum fi_wait_obj wait;
        bool queue_has_one, counter_has_one;
    } cases[] = {
        {FI_WAIT_NONE, false, false},
        {FI_WAIT_UNSPEC, true, false},
        {FI_WAIT_FD, true, true},
    };
    struct fid_mr *region;
    struct pair pair;
    uint8_t byte;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fi_cq_attr attr = {.wait_obj = cases[i].wait};
        struct fid_cntr *counter = message_counter(&pair.client, cases[i].wait);
        struct fid_cq *cq = NULL;

        note("wait object %d", cases[i].wait);
        CHECK_OK(fi_cq_open(pair.client.domain, &attr, &cq, NULL));
        check_wait_object(&cq->fid, cases[i].queue_has_one);
        check_wait_object(&counter->fid, cases[i].counter_has_one);
        close_fid(&cq->fid);
        close_fid(&counter->fid);
    }
    note("others");
    region = message_region(&pair.client, &byte, 1, 1);
    check_wait_object(&pair.client.eq->fid, true);
    check_wait_object(&pair.client.ep->fid, false);
    check_wait_object(&region->fid, false);
    close_fid(&region->fid);
    pair_close(&pair);
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
    (void)number;
    handled = 1;
}

static atomic_bool answered;

/* Sends signals until the call has returned: one that comes before the call begins does not end it. */
static void *interrupt(void *argument)
{
    while (!answered) {
        sleep_ms(20);
        CHECK_OK(pthread_kill(*(const pthread_t *)argument, SIGUSR1));
    }
    return NULL;
}

/* Makes a call while signals come, and checks that one of them ends it. */
#define CHECK_INTERRUPTED(call)                                                                     \
    do {                                                                                            \
        pthread_t self_ = pthread_self(), thread_;                                                  \
                                                                                                    \
        answered = false;                                                                           \
        CHECK_OK(pthread_create(&thread_, NULL, interrupt, &self_));                                \
        CHECK_RET(call, -FI_EINTR);                                                                 \
        answered = true;                                                                            \
        CHECK_OK(pthread_join(thread_, NULL));                                                      \
    } while (0)

/* A program that is told by a signal to stop waiting can do so. */
static void signals_end_waits(void)
{
    struct message_settings settings = {
        .prepare = bind_counter,
        .cq = {.wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_THRESHOLD},
    };
    struct sigaction action = {.sa_handler = handle};
    struct fi_cq_data_entry entries[2];
    struct fi_eq_cm_entry event;
    struct pair pair;
    uint32_t kind;

    messages_open(&pair, &settings);
    CHECK_OK(sigaction(SIGUSR1, &action, NULL));
    for (int limit = -1; limit <= PATIENCE_MS; limit += PATIENCE_MS + 1) {
        CHECK_INTERRUPTED(fi_cq_sread(pair.server.cq, entries, 2, (void *)(intptr_t)1, limit));
        CHECK_INTERRUPTED(fi_cq_sread(pair.server.cq, entries, 2, (void *)(intptr_t)2, limit));
        CHECK_INTERRUPTED(fi_eq_sread(pair.server.eq, &kind, &event, sizeof event, limit, 0));
        CHECK_INTERRUPTED(fi_cntr_wait(receives[1], 1, limit));
    }
    CHECK(handled);
    close_counted(&pair);
}

#define SLEEP_MS 600

/* Reads a queue that gets nothing: it sleeps for as long as it may. */
static void check_reader_sleeps(struct fid_cq *cq, const char *what)
{
    struct fi_cq_data_entry entry;
    int64_t start = now_us(), cpu = cpu_ms();

    CHECK_RET(fi_cq_sread(cq, &entry, 1, NULL, SLEEP_MS), -FI_EAGAIN);
    CHECK_BETWEEN(now_us() - start, SLEEP_MS * 1000, SLEEP_MS * 1000 + 1000000);
    check_idle(what, cpu, SLEEP_MS);
}

static void blocked_callers_sleep(void)
{
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD}, .prepare = bind_counter};
    struct fi_cq_data_entry entry;
    struct pair pair;
    struct fid *fids[2];
    int64_t cpu;

    messages_open(&pair, &settings);
    check_reader_sleeps(pair.server.cq, "a reader of an idle connection");
    cpu = cpu_ms();
    CHECK_RET(fi_cntr_wait(receives[1], 1, SLEEP_MS), -FI_ETIMEDOUT);
    check_idle("a waiter on a counter", cpu, SLEEP_MS);
    /* Messages arrive, and there is no receive for them. */
    for (unsigned i = 0; i < 16; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    for (unsigned i = 0; i < 30; i++)
        drive();
    check_reader_sleeps(pair.server.cq, "a reader of a receiver that waits for a receive");
    /* What is between them fills. */
    while (fi_cq_sread(pair.client.cq, &entry, 1, NULL, 100) == 1)
        drive();
    check_reader_sleeps(pair.client.cq, "a reader of a sender whose peer waits for a receive");
    fids[0] = &pair.server.cq->fid;
    fids[1] = &pair.server.eq->fid;
    settle(&pair.server, fids, 2);
    cpu = cpu_ms();
    CHECK(!readable(wait_fd(fids[0]), SLEEP_MS));
    check_idle("a sleeper on the descriptor", cpu, SLEEP_MS);
    close_counted(&pair);
}

static const struct test tests[] = {
    TEST(trywait_for_all, "fi_trywait for a completion queue, an event queue and a counter at once: each counts"),
    TEST(wait_objects, "FI_GETWAIT and FI_GETWAITOBJ of queues, counters and other objects: FI_WAIT_FD, or -FI_ENOSYS"),
    TEST(signals_end_waits, "a handled signal ends fi_cq_sread, fi_eq_sread and fi_cntr_wait: -FI_EINTR"),
    TEST(blocked_callers_sleep, "blocked callers sleep: a reader, a counter, a stalled receiver and its sender"),
};

const struct section message_waits_section = SECTION("wait objects of message endpoints", tests);
