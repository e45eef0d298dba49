/* Contract, section Message endpoints: threads and processes. */
#include "message.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct message_settings waiting = {.cq = {.wait_obj = FI_WAIT_FD}};

/* ---- posting, reading and closing in three threads ---------------------------------------- */

enum { MESSAGES = 20000, WINDOW = 64 };

struct flow {
    struct side *side;
    atomic_uint done;
    atomic_bool stop;
};

/* Posts numbered messages; the completions are read by another thread. */
static void *post_messages(void *argument)
{
    struct flow *flow = argument;
    static _Thread_local uint32_t numbers[WINDOW];

    for (unsigned i = 0; i < MESSAGES && !atomic_load(&flow->stop); i++) {
        ssize_t answer;

        while (i - atomic_load(&flow->done) >= WINDOW)
            sched_yield();
        numbers[i % WINDOW] = i;
        do {
            answer = fi_send(flow->side->ep, &numbers[i % WINDOW], 4, NULL, FI_ADDR_UNSPEC, CONTEXT(i));
        } while (answer == -FI_EAGAIN);
        CHECK_RET(answer, 0);
    }
    return NULL;
}

static void *read_sends(void *argument)
{
    struct flow *flow = argument;

    while (atomic_load(&flow->done) < MESSAGES) {
        struct fi_cq_data_entry entries[8];
        ssize_t count = fi_cq_sread(flow->side->cq, entries, 8, NULL, PATIENCE_MS);

        CHECK_AT_LEAST(count, 1);
        for (ssize_t i = 0; i < count; i++) {
            CHECK_INT((uintptr_t)entries[i].op_context, atomic_load(&flow->done));
            atomic_fetch_add(&flow->done, 1);
        }
    }
    return NULL;
}

static void *receive_messages(void *argument)
{
    struct flow *flow = argument;
    static uint32_t got[WINDOW];
    unsigned next = 0;

    for (unsigned i = 0; i < WINDOW; i++)
        post_recv(flow->side->ep, &got[i], 4, i);
    while (next < MESSAGES) {
        struct fi_cq_data_entry entry;

        CHECK_RET(fi_cq_sread(flow->side->cq, &entry, 1, NULL, PATIENCE_MS), 1);
        CHECK_INT((uintptr_t)entry.op_context, next % WINDOW);
        CHECK_INT(got[next % WINDOW], next);
        post_recv(flow->side->ep, &got[next % WINDOW], 4, next % WINDOW);
        next++;
    }
    return NULL;
}

static void post_and_read(void)
{
    struct pair pair;
    struct flow out = {.side = &pair.client}, in = {.side = &pair.server};
    pthread_t threads[3];

    messages_open(&pair, &waiting);
    CHECK_OK(pthread_create(&threads[0], NULL, receive_messages, &in));
    CHECK_OK(pthread_create(&threads[1], NULL, read_sends, &out));
    CHECK_OK(pthread_create(&threads[2], NULL, post_messages, &out));
    for (unsigned i = 0; i < 3; i++)
        CHECK_OK(pthread_join(threads[i], NULL));
    pair_close(&pair);
}

/* ---- waiting beside a thread that drives -------------------------------------------------- */

/* What the server's receives count in, and what a thread reads to drive the domain. */
static struct fid_cntr *counted, *driven;
static atomic_bool enough;

static void bind_received(struct side *side)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};

    if (side->info->handle == NULL)
        return;
    CHECK_OK(fi_cntr_open(side->domain, &attr, &counted, NULL));
    CHECK_OK(fi_cntr_open(side->domain, &attr, &driven, NULL));
    CHECK_OK(fi_ep_bind(side->ep, &counted->fid, FI_RECV));
}

static void *drive_domain(void *argument)
{
    (void)argument;
    while (!atomic_load(&enough))
        CHECK_INT(fi_cntr_read(driven), 0);
    return NULL;
}

static void *await_count(void *argument)
{
    CHECK_RET(fi_cntr_wait(counted, *(uint64_t *)argument, PATIENCE_MS), 0);
    return NULL;
}

static void *await_entries(void *argument)
{
    struct fi_cq_data_entry entries[4];

    CHECK_RET(fi_cq_sread(argument, entries, 4, CONTEXT(3), PATIENCE_MS), 3);
    return NULL;
}

static void woken_by_driver(void)
{
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_THRESHOLD},
                                        .prepare = bind_received};
    struct pair pair;
    uint8_t got[3];
    int64_t start;
    pthread_t driver, waiters[2];

    messages_open(&pair, &settings);
    CHECK_OK(pthread_create(&driver, NULL, drive_domain, NULL));
    for (uint64_t round = 1; round <= 20; round++) {
        uint64_t count = 3 * round;

        CHECK_OK(pthread_create(&waiters[0], NULL, await_count, &count));
        CHECK_OK(pthread_create(&waiters[1], NULL, await_entries, pair.server.cq));
        for (unsigned i = 0; i < 3; i++) {
            post_recv(pair.server.ep, &got[i], 1, i);
            usleep(2000);
            CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
        }
        CHECK_OK(pthread_join(waiters[0], NULL));
        CHECK_OK(pthread_join(waiters[1], NULL));
    }
    /* The application's own changes wake as well. */
    CHECK_OK(pthread_create(&waiters[0], NULL, await_count, &(uint64_t){1000}));
    usleep(20000);
    start = now_ms();
    CHECK_OK(fi_cntr_add(counted, 940));
    CHECK_OK(pthread_join(waiters[0], NULL));
    CHECK(now_ms() - start < PATIENCE_MS / 2);
    atomic_store(&enough, true);
    CHECK_OK(pthread_join(driver, NULL));
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    close_fid(&counted->fid);
    close_fid(&driven->fid);
    pair_close(&pair);
}

/* Reads entries until it has been told to stop and nothing is left. */
struct reader {
    struct fid_cq *cq;
    atomic_bool stop;
    atomic_uint entries, failures;
};

static void *read_entries(void *argument)
{
    struct reader *reader = argument;

    for (;;) {
        bool last = atomic_load(&reader->stop);
        struct fi_cq_data_entry entry;
        struct fi_cq_err_entry error = {0};
        ssize_t answer = fi_cq_sread(reader->cq, &entry, 1, NULL, last ? 0 : 100);

        if (answer == 1)
            atomic_fetch_add(&reader->entries, 1);
        else if (answer == -FI_EAVAIL && fi_cq_readerr(reader->cq, &error, 0) == 1)
            atomic_fetch_add(&reader->failures, 1);
        else if (last && answer == -FI_EAGAIN)
            return NULL;
    }
}

/* One thread reads the queue, another closes the endpoint with operations outstanding: each is read once. */
static void close_beside_reader(void)
{
    enum { ROUNDS = 20, OPERATIONS = 50 };
    static uint8_t got[OPERATIONS][1000];

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct reader reader = {0};
        pthread_t threads[2];
        struct pair pair;

        messages_open(&pair, &waiting);
        reader.cq = pair.server.cq;
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_create(&threads[i], NULL, read_entries, &reader));
        for (unsigned i = 0; i < OPERATIONS; i++)
            post_recv(pair.server.ep, got[i], sizeof got[i], i);
        for (unsigned i = 0; i < round; i++)
            CHECK_OK(fi_inject(pair.client.ep, pattern(0, 1000), 1000, FI_ADDR_UNSPEC));
        if (round % 2)
            sleep_ms(2);
        close_fid(&pair.server.ep->fid);
        pair.server.ep = NULL;
        memset(got, 0xdd, sizeof got);
        atomic_store(&reader.stop, true);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_join(threads[i], NULL));
        CHECK_INT(reader.entries + reader.failures, OPERATIONS);
        CHECK_BETWEEN(reader.entries, 0, round);
        for (unsigned i = 0; i < sizeof got; i++)
            CHECK_INT(((uint8_t *)got)[i], 0xdd);
        pair_close(&pair);
    }
}

/* Several threads share one endpoint and one queue. */
enum { SHARERS = 4, EACH = 2000 };
static struct pair shared_pair;
static atomic_uint sent, received;

static void *use_endpoint(void *argument)
{
    unsigned number = *(unsigned *)argument;
    uint32_t value = number;

    for (unsigned i = 0; i < EACH;) {
        struct fi_cq_data_entry entry;
        ssize_t answer;

        if (number % 2) {
            answer = fi_inject(shared_pair.client.ep, &value, 4, FI_ADDR_UNSPEC);
            i += answer == 0;
            CHECK(answer == 0 || answer == -FI_EAGAIN);
            atomic_fetch_add(&sent, answer == 0);
            /* Drives. */
            CHECK_RET(fi_cq_read(shared_pair.client.cq, &entry, 1), -FI_EAGAIN);
            continue;
        }
        answer = fi_recv(shared_pair.server.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, CONTEXT(number));
        i += answer == 0;
        CHECK(answer == 0 || answer == -FI_EAGAIN);
        answer = fi_cq_read(shared_pair.server.cq, &entry, 1);
        if (answer == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};

            /* Another thread may have taken it. */
            if (fi_cq_readerr(shared_pair.server.cq, &error, 0) == 1) {
                CHECK_INT(error.err, FI_ETRUNC);
                CHECK_INT(error.olen, 4);
                atomic_fetch_add(&received, 1);
            }
        } else {
            CHECK_RET(answer, -FI_EAGAIN);
        }
    }
    return NULL;
}

static void share_endpoint(void)
{
    unsigned numbers[SHARERS] = {0, 1, 2, 3};
    pthread_t threads[SHARERS];

    messages_open(&shared_pair, NULL);
    for (unsigned i = 0; i < SHARERS; i++)
        CHECK_OK(pthread_create(&threads[i], NULL, use_endpoint, &numbers[i]));
    for (unsigned i = 0; i < SHARERS; i++)
        CHECK_OK(pthread_join(threads[i], NULL));
    while (received < 2 * EACH) {
        struct fi_cq_err_entry error = {0};

        AWAIT(PATIENCE_MS, fi_cq_read(shared_pair.server.cq, NULL, 0) == -FI_EAVAIL);
        CHECK_RET(fi_cq_readerr(shared_pair.server.cq, &error, 0), 1);
        CHECK_INT(error.err, FI_ETRUNC);
        received++;
    }
    CHECK_INT(sent, 2 * EACH);
    check_no_completion(shared_pair.server.cq);
    pair_close(&shared_pair);
}

/* ---- opening and closing while others live ------------------------------------------------ */

static void *connect_and_close(void *argument)
{
    for (unsigned i = 0; i < 15; i++) {
        struct pair pair;

        messages_open(&pair, argument);
        messages_pass(&pair);
        pair_close(&pair);
    }
    return NULL;
}

static void many_lives(void)
{
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        CHECK_OK(pthread_create(&threads[i], NULL, connect_and_close, (void *)(uintptr_t)(i % 2 ? &waiting : NULL)));
    for (unsigned i = 0; i < 4; i++)
        CHECK_OK(pthread_join(threads[i], NULL));
}

/* ---- processes ---------------------------------------------------------------------------- */

/* A child may close its copies, which changes nothing for the parent; other calls are refused. */
static void fork_and_close(void)
{
    struct fi_cq_data_entry entry;
    struct fid_mr *region;
    struct pair pair;
    static uint8_t memory[100], got[10];
    pid_t child;
    int status;

    messages_open(&pair, &waiting);
    region = message_region(&pair.server, memory, sizeof memory, 1);
    post_recv(pair.server.ep, got, sizeof got, 1);
    child = (pid_t)CHECK_SYS(fork());
    if (child == 0) {
        CHECK_RET(fi_send(pair.client.ep, "x", 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EOPBADSTATE);
        CHECK_RET(fi_recv(pair.client.ep, got, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EOPBADSTATE);
        CHECK_RET(fi_cq_read(pair.client.cq, &entry, 1), -FI_EOPBADSTATE);
        close_fid(&region->fid);
        pair_close(&pair);
        /* Its own objects work. */
        messages_open(&pair, &waiting);
        messages_pass(&pair);
        pair_close(&pair);
        exit(0);
    }
    CHECK_SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    post_send(pair.client.ep, "after", 5, 2);
    CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, 5);
    (void)await_done(pair.client.cq, 2, SENT);
    messages_pass(&pair);
    close_fid(&region->fid);
    pair_close(&pair);
}

/* ---- leaks -------------------------------------------------------------------------------- */

static void leaks_nothing(void)
{
    size_t before_fds = 0, before_heap = 0;

    /* The allocator keeps what it was given back: it has settled after some rounds. */
    for (unsigned i = 0; i < 100; i++) {
        struct pair pair;
        struct fid_mr *region;
        static uint8_t got[100];

        if (i == 60) {
            before_fds = open_descriptors();
            before_heap = heap_in_use();
        }
        messages_open(&pair, i % 2 ? &waiting : NULL);
        region = message_region(&pair.server, got, sizeof got, 1);
        post_recv(pair.server.ep, got, sizeof got, 1);
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
        if (i % 3)
            (void)await_done(pair.server.cq, 1, RECEIVED);
        close_fid(&region->fid);
        pair_close(&pair);
    }
    CHECK_INT(open_descriptors(), before_fds);
    if (before_heap)
        CHECK_BETWEEN(heap_in_use(), 0, before_heap + 4096);
}

static const struct test tests[] = {
    TEST(post_and_read, "one thread posts, another reads the completions"),
    TEST(woken_by_driver, "fi_cntr_wait, and fi_cq_sread for several entries, while another thread takes the wake-ups"),
    TEST(close_beside_reader, "a close beside threads that read: each operation is read once"),
    TEST(share_endpoint, "several threads use one endpoint and one queue"),
    TEST(many_lives, "threads open, connect and close beside each other"),
    TEST(fork_and_close, "a child of fork closes its copies, and the parent goes on"),
    TEST(leaks_nothing, "no descriptors or memory are left behind"),
};

const struct section message_threads_section = SECTION("message threads", tests);
