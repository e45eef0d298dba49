/* Contract, section Threads: any call from any thread on any object. */
#include "conformance.h"

#include <sched.h>
#include <stdlib.h>

#include "../crowd.h"

static void both_ways(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    flows_cross(pair.client.ep, pair.server.ep, 8 << 20);
    pair_close(&pair);
}

/* Sends and receives on one endpoint, while a third thread queries it. */
static atomic_bool stop_asking;

static void *ask(void *argument)
{
    struct side *side = argument;
    struct sockaddr_storage address;
    union {
        struct fi_eq_cm_entry entry;
        uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 16];
    } buffer;
    int fd = wait_fd(&side->ep->fid), eq_fd = wait_fd(&side->eq->fid);
    uint32_t kind;
    uint64_t value;

    while (!stop_asking) {
        struct fid *fid = &side->ep->fid, *fids[] = {&side->eq->fid, fid};
        enum fi_wait_obj wait_obj;
        struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
        size_t length = sizeof address;
        ssize_t ret;

        CHECK_OK(fi_getname(&side->ep->fid, &address, &length));
        length = sizeof address;
        CHECK_OK(fi_getpeer(side->ep, &address, &length));
        length = sizeof value;
        CHECK_OK(fi_getopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, &length));
        CHECK_INT(wait_fd(fid), fd);
        CHECK_INT(wait_fd(&side->eq->fid), eq_fd);
        CHECK_OK(fi_control(fid, FI_GETWAITOBJ, &wait_obj));
        CHECK_INT(wait_obj, FI_WAIT_FD);
        ret = fi_trywait(side->fabric, fids, 2);
        CHECK(ret == 0 || ret == -FI_EAGAIN);
        ret = fi_recvmsg(side->ep, &message, FI_PEEK);
        CHECK(ret > 0 || ret == -FI_EAGAIN);
        ret = fi_sendmsg(side->ep, &message, FI_PEEK);
        CHECK(ret > 0 || ret == -FI_EAGAIN);
        CHECK_RET(fi_eq_read(side->eq, &kind, &buffer, sizeof buffer, FI_PEEK), -FI_EAGAIN);
        CHECK_RET(fi_eq_sread(side->eq, &kind, &buffer, sizeof buffer, 0, 0), -FI_EAGAIN);
    }
    return NULL;
}

static void any_call(void)
{
    struct pair pair;
    pthread_t askers[2];

    pair_open(&pair, IPV4, NULL);
    CHECK_INT(pthread_create(&askers[0], NULL, ask, &pair.client), 0);
    CHECK_INT(pthread_create(&askers[1], NULL, ask, &pair.server), 0);
    flows_cross(pair.client.ep, pair.server.ep, 2 << 20);
    stop_asking = true;
    for (unsigned i = 0; i < 2; i++)
        CHECK_INT(pthread_join(askers[i], NULL), 0);
    pair_close(&pair);
}

/* Threads that share both directions of a stream. Each sender sends records, which no call divides. */
#define SHARERS 3
#define RECORDS_MAX 20000

struct record {
    uint64_t sender, number;
};

struct shared {
    struct fid_ep *ep;
    /* How many records each sender sends. */
    size_t records;
    atomic_uint sender, left;
    /* How often each record was received. */
    atomic_uchar received[SHARERS][RECORDS_MAX];
};

/* Sends in bursts, so that a thread is alone at times. */
static void *send_records(void *argument)
{
    struct shared *shared = argument;
    struct record record = {.sender = atomic_fetch_add(&shared->sender, 1)};
    struct dice dice = {record.sender};

    for (uint64_t rest = 0; record.number < shared->records; record.number++) {
        if (rest-- == 0) {
            rest = throw_below(&dice, 1000);
            sleep_ms((int)throw_below(&dice, 2));
        }
        while (fi_inject(shared->ep, &record, sizeof record, FI_ADDR_UNSPEC) == -FI_EAGAIN)
            sched_yield();
    }
    return NULL;
}

static void *receive_records(void *argument)
{
    struct shared *shared = argument;
    uint64_t next[SHARERS] = {0};
    struct record records[50];

    while (shared->left > 0) {
        ssize_t got = recv_once(shared->ep, records, sizeof records);

        if (got == -FI_EAGAIN) {
            sched_yield();
            continue;
        }
        CHECK_AT_LEAST(got, 1);
        CHECK_INT(got % (ssize_t)sizeof *records, 0);
        for (size_t i = 0; i < (size_t)got / sizeof *records; i++) {
            CHECK_BETWEEN(records[i].sender, 0, SHARERS - 1);
            CHECK_BETWEEN(records[i].number, next[records[i].sender], shared->records - 1);
            next[records[i].sender] = records[i].number + 1;
            CHECK_INT(atomic_fetch_add(&shared->received[records[i].sender][records[i].number], 1), 0);
            shared->left--;
        }
    }
    return NULL;
}

/* Calls that concern both directions, beside those that concern one. */
static void *ask_at_times(void *argument)
{
    struct shared *shared = argument;
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
    unsigned before = 0, left;

    while ((left = shared->left) > 0) {
        ssize_t room = fi_sendmsg(shared->ep, &message, FI_PEEK);

        CHECK(room > 0 || room == -FI_EAGAIN);
        /* Records arrive; an emulated machine may need more than a minute for all. */
        if (left != before)
            still_moving();
        before = left;
        sleep_ms(3);
    }
    return NULL;
}

static void several_in_each_direction(void)
{
    static struct shared shared[2];
    pthread_t threads[2][2 * SHARERS + 1];
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    /* On a stream that is in shared memory, if it goes there at all. No record is divided at a ring's end. */
    for (unsigned i = 0; i < 200; i++) {
        transfer(pair.client.ep, pair.server.ep, sizeof(struct record));
        transfer(pair.server.ep, pair.client.ep, sizeof(struct record));
    }
    for (unsigned end = 0; end < 2; end++) {
        shared[end].ep = end ? pair.server.ep : pair.client.ep;
        shared[end].records = share_of(RECORDS_MAX);
        shared[end].left = SHARERS * (unsigned)shared[end].records;
        for (unsigned i = 0; i < 2 * SHARERS; i++)
            CHECK_INT(pthread_create(&threads[end][i], NULL, i % 2 ? send_records : receive_records, &shared[end]), 0);
        CHECK_INT(pthread_create(&threads[end][2 * SHARERS], NULL, ask_at_times, &shared[end]), 0);
    }
    for (unsigned end = 0; end < 2; end++)
        for (unsigned i = 0; i <= 2 * SHARERS; i++)
            CHECK_INT(pthread_join(threads[end][i], NULL), 0);
    pair_close(&pair);
}

/* Many connections, made and closed at the same time, each by its own thread. */
static void *connect_repeatedly(void *argument)
{
    const size_t times = share_of(20);

    (void)argument;
    for (size_t i = 0; i < times; i++) {
        struct pair pair;

        pair_open(&pair, i % 2 ? IPV4 : IPV6, NULL);
        transfer(pair.client.ep, pair.server.ep, 20000);
        pair_close(&pair);
    }
    return NULL;
}

static void connect_at_once(void)
{
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, connect_repeatedly, NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
}

static void *shut_later(void *argument)
{
    struct pair *pair = argument;

    sleep_ms(100);
    CHECK_OK(fi_shutdown(pair->client.ep, 0));
    for (unsigned i = 0; i < 200; i++) {
        CHECK_RET(send_once(pair->client.ep, "x", 1), -FI_EPIPE);
        sleep_ms(1);
    }
    return NULL;
}

static void shutdown_wakes_reader(void)
{
    struct pair pair;
    pthread_t thread;
    ssize_t got;

    /* One thread sleeps on an endpoint that another thread shuts down. */
    pair_open(&pair, IPV4, NULL);
    CHECK_INT(pthread_create(&thread, NULL, shut_later, &pair), 0);
    while ((got = recv_once(pair.server.ep, &(uint8_t){0}, 1)) == -FI_EAGAIN)
        CHECK(readable(wait_fd(&pair.server.ep->fid), PATIENCE_MS));
    CHECK_RET(got, 0);
    while ((got = recv_once(pair.client.ep, &(uint8_t){0}, 1)) == -FI_EAGAIN)
        CHECK(readable(wait_fd(&pair.client.ep->fid), PATIENCE_MS));
    CHECK_RET(got, 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pair_close(&pair);
}

/* One direction of an endpoint, used by a thread that sleeps on the endpoint's descriptor. */
struct course {
    struct side *side;
    bool sends;
    /* Calls that moved bytes, and sleeps after which a call moved none. */
    uint64_t transfers, empty;
};

#define COURSE_BYTES ((size_t)4 << 20)
#define COURSE_CALL ((size_t)64 << 10)

static ssize_t course_call(const struct course *course, uint8_t *buffer, size_t done)
{
    size_t length = COURSE_BYTES - done < COURSE_CALL ? COURSE_BYTES - done : COURSE_CALL;

    if (course->sends)
        return send_once(course->side->ep, pattern(done, length), length);
    return recv_once(course->side->ep, buffer, length);
}

static void *course_run(void *argument)
{
    struct course *course = argument;
    struct fid *fid = &course->side->ep->fid;
    uint8_t *buffer = malloc(COURSE_CALL);
    bool slept = false;
    int fd = wait_fd(fid);

    CHECK(buffer != NULL);
    for (size_t done = 0; done < COURSE_BYTES;) {
        ssize_t moved = course_call(course, buffer, done);

        if (moved > 0) {
            if (!course->sends)
                CHECK_BYTES(buffer, pattern(done, (size_t)moved), (size_t)moved);
            done += (size_t)moved;
            course->transfers++;
            slept = false;
            continue;
        }
        CHECK_RET(moved, -FI_EAGAIN);
        course->empty += slept;
        if (fi_trywait(course->side->fabric, &fid, 1) == 0)
            CHECK(readable(fd, PATIENCE_MS));
        slept = true;
    }
    free(buffer);
    return NULL;
}

static void asleep_both_ways(void)
{
    const struct settings rings[] = {{0}, {.send_ring = 512 << 10, .recv_ring = 512 << 10}};

    for (size_t i = 0; i < 2; i++) {
        struct pair pair;
        struct course courses[] = {
            {.side = &pair.client, .sends = true},
            {.side = &pair.client},
            {.side = &pair.server, .sends = true},
            {.side = &pair.server},
        };
        uint64_t transfers = 0, empty = 0;

        pair_open(&pair, IPV4, &rings[i]);
        threads_run(4, course_run, courses, sizeof courses[0]);
        for (size_t j = 0; j < 4; j++) {
            transfers += courses[j].transfers;
            empty += courses[j].empty;
        }
        CHECK_BETWEEN(empty, 0, transfers);
        pair_close(&pair);
    }
}

/* Sends until the endpoint takes no more bytes, and does not try again when there is room. */
static void *fill_and_leave(void *argument)
{
    static const uint8_t bytes[4096];
    struct side *side = argument;
    size_t sent = 0;
    ssize_t taken;

    while ((taken = send_once(side->ep, bytes, sizeof bytes)) > 0)
        sent += (size_t)taken;
    return (void *)sent;
}

static void sender_leaves(void)
{
    struct pair pair;
    struct fid *fid;
    pthread_t thread;
    void *sent;
    uint8_t byte;
    unsigned calls = 0;
    int64_t until;
    int fd;

    pair_open(&pair, IPV4, NULL);
    fid = &pair.client.ep->fid;
    fd = wait_fd(fid);
    CHECK_INT(pthread_create(&thread, NULL, fill_and_leave, &pair.client), 0);
    CHECK_INT(pthread_join(thread, &sent), 0);
    for (size_t i = 0; i < (size_t)sent; i++)
        CHECK_RET(recv_wait(pair.server.ep, &byte, 1), 1);

    /* The descriptor stays readable, because there is room for the sender. */
    until = now_ms() + 400;
    while (now_ms() < until) {
        CHECK_RET(recv_once(pair.client.ep, &byte, 1), -FI_EAGAIN);
        calls++;
        if (fi_trywait(pair.client.fabric, &fid, 1) == 0)
            (void)readable(fd, 1000);
    }
    CHECK_BETWEEN(calls, 1, 1000);
    pair_close(&pair);
}

/* How many threads' fi_close was refused. */
static atomic_uint refused_closes;

static void *close_once(void *argument)
{
    int answer = fi_close(argument);

    if (answer != 0) {
        CHECK_RET(answer, -FI_EINVAL);
        refused_closes++;
    }
    return NULL;
}

static void closed_by_several(void)
{
    /* With these rings the socket does not take all bytes, so the close waits until the peer is driven. */
    const struct settings settings = {.send_ring = 16 << 20, .recv_ring = 16 << 20};
    const size_t part = 1 << 20;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct pair pair;
    size_t sent = 0;
    ssize_t took;
    int64_t until;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "0", 1));
    pair_open(&pair, IPV4, &settings);
    while ((took = send_once(pair.client.ep, pattern(sent, part), part)) > 0)
        sent += (size_t)took;
    CHECK_RET(took, -FI_EAGAIN);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, close_once, &pair.client.ep->fid), 0);
    /* The others do not wait for the one that closes. */
    until = now_ms() + PATIENCE_MS;
    while (refused_closes < THREADS - 1) {
        CHECK(now_ms() < until);
        sleep_ms(1);
    }
    pair.client.ep = NULL;
    recv_pattern(pair.server.ep, 0, sent);
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    CHECK_INT(refused_closes, THREADS - 1);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(both_ways, "sending in one thread and receiving in another never deadlocks"),
    TEST(asleep_both_ways, "two threads asleep on one descriptor, one for each direction: a wake-up for one keeps the other from neither sleep nor work"),
    TEST(sender_leaves, "a receiver does not spin while the descriptor is readable for another thread that does not come"),
    TEST(any_call, "any call from any thread on any object"),
    TEST(several_in_each_direction, "several senders and several receivers on one endpoint: each call's bytes stay together and come once"),
    TEST(connect_at_once, "connections made and closed in several threads at once"),
    TEST(shutdown_wakes_reader, "a shutdown in one thread wakes a reader in another"),
    TEST(closed_by_several, "of several threads that close an object at once one closes it, the others get -FI_EINVAL"),
};

const struct section threads_section = SECTION("threads", tests);
