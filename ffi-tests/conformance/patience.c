/* Contract, section Waiting: the adaptive spin before a caller sleeps on the descriptor. */
#include "conformance.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define SOON_MS 50
#define LATE_MS 400

/* The first calls of a connection that find nothing do not spin. */
#define FIRST_CALLS 7

/* Receives that find nothing. Returns their duration in milliseconds. */
static int64_t receive_in_vain(struct fid_ep *ep, unsigned calls)
{
    int64_t started = now_ms();
    uint8_t got;

    for (unsigned i = 0; i < calls; i++)
        CHECK_RET(recv_once(ep, &got, 1), -FI_EAGAIN);
    return now_ms() - started;
}

/* A pair whose client has a descriptor, in a process whose calls spin for `us`. */
static void pair_open_patient(struct pair *pair, const char *us)
{
    CHECK_SYS(setenv("FI_RSTREAM_SPIN_US", us, 1));
    pair_open(pair, IPV4, NULL);
    (void)wait_fd(&pair->client.ep->fid);
    (void)receive_in_vain(pair->client.ep, FIRST_CALLS);
}

static void *send_soon(void *pair)
{
    static const uint8_t byte = 7;

    usleep(SOON_MS * 1000);
    CHECK_RET(send_once(((struct pair *)pair)->server.ep, &byte, 1), 1);
    return NULL;
}

static void looks_again(void)
{
    int64_t started;
    struct pair pair;
    pthread_t thread;
    uint8_t got;

    pair_open_patient(&pair, "5000000");
    CHECK_INT(pthread_create(&thread, NULL, send_soon, &pair), 0);
    started = now_ms();
    CHECK_RET(recv_once(pair.client.ep, &got, 1), 1);
    CHECK_BETWEEN(now_ms() - started, 0, 4000);
    CHECK_INT(got, 7);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pair_close(&pair);
}

static void only_with_descriptor(void)
{
    struct pair pair;

    pair_open_patient(&pair, "5000000");
    CHECK_BETWEEN(receive_in_vain(pair.server.ep, FIRST_CALLS + 1), 0, 2000);
    pair_close(&pair);
}

static void never(void)
{
    struct pair pair;

    pair_open_patient(&pair, "0");
    CHECK_BETWEEN(receive_in_vain(pair.client.ep, 1), 0, 1000);
    pair_close(&pair);
}

static void seldom_in_vain(void)
{
    struct pair pair;

    /* Each spin would take 10 ms. */
    pair_open_patient(&pair, "10000");
    CHECK_BETWEEN(receive_in_vain(pair.client.ep, 640), 60, 2000);
    pair_close(&pair);
}

static void *receive_late(void *ep)
{
    (void)receive_in_vain(ep, 1);
    return NULL;
}

static void others_are_let_in(void)
{
    static const uint8_t byte = 7;
    int64_t started;
    struct pair pair;
    pthread_t thread;

    /* Twice the longest duration of the other call. */
    pair_open_patient(&pair, "800000");
    CHECK_INT(pthread_create(&thread, NULL, receive_late, pair.client.ep), 0);
    usleep(SOON_MS * 1000);
    started = now_ms();
    CHECK_RET(send_once(pair.client.ep, &byte, 1), 1);
    CHECK_BETWEEN(now_ms() - started, 0, LATE_MS);
    CHECK_INT(pthread_join(thread, NULL), 0);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(looks_again, "FI_RSTREAM_SPIN_US: a call that finds nothing looks again before its caller sleeps"),
    TEST(only_with_descriptor, "FI_RSTREAM_SPIN_US: not on an endpoint without a descriptor"),
    TEST(never, "FI_RSTREAM_SPIN_US: 0 is never"),
    TEST(seldom_in_vain, "FI_RSTREAM_SPIN_US: what is in vain becomes rare"),
    TEST(others_are_let_in, "FI_RSTREAM_SPIN_US: another thread's calls do not wait meanwhile"),
};

const struct section patience_section = SECTION("patience", tests);
