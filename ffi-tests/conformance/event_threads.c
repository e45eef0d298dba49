/* Contract, section Threads: threads that read event queues, that make and end connections, and that pass
 * endpoints to other threads. */
#include "conformance.h"

#include <stdlib.h>
#include <unistd.h>

#include "../crowd.h"

#define LINKS 16

static void *shut(void *argument)
{
    struct end *end = argument;

    CHECK_OK(fi_shutdown(end->ep, 0));
    return NULL;
}

static void third_thread(void)
{
    struct crowd crowd;

    crowd_open(&crowd, 1, 1);
    crowd_connect(&crowd, 0);
    flows_cross(crowd.links[0].ends[0].ep, crowd.links[0].ends[1].ep, 2 << 20);
    CHECK_INT(crowd.links[0].ends[0].shut + crowd.links[0].ends[1].shut, 0);
    CHECK_OK(fi_shutdown(crowd.links[0].ends[0].ep, FI_SEND));
    CHECK_RET(recv_wait(crowd.links[0].ends[1].ep, &(uint8_t){0}, 1), 0);
    CHECK_OK(fi_shutdown(crowd.links[0].ends[1].ep, FI_SEND));
    for (unsigned i = 0; i < 2; i++)
        await_count(&crowd.links[0].ends[i].shut, 1);
    crowd_close(&crowd);
}

/* ---- many connections ----------------------------------------------------------------------- */

static void moved_between_threads(void)
{
    struct crowd crowd;

    crowd_open(&crowd, LINKS, 2);
    crowd_each(&crowd, 4, crowd_connect);
    for (unsigned i = 0; i < LINKS; i++)
        crowd_load(&crowd, i, 1 << 18, 4001);
    crowd_carry(&crowd, 4);
    crowd_close(&crowd);
}

static void connects_and_accepts(void)
{
    struct crowd crowd;

    /* Each event goes to exactly one of the readers, which the counts show. */
    crowd_open(&crowd, LINKS, 3);
    crowd_each(&crowd, 4, crowd_connect);
    for (unsigned i = 0; i < LINKS; i++)
        flows_cross(crowd.links[i].ends[0].ep, crowd.links[i].ends[1].ep, 20000);
    crowd_close(&crowd);
}

static void one_shutdown_event(void)
{
    struct crowd crowd;
    struct end *ends;

    /* Both ends shut down at the same time, while bytes are in flight. */
    crowd_open(&crowd, LINKS, 3);
    crowd_each(&crowd, 4, crowd_connect);
    for (unsigned i = 0; i < LINKS; i++) {
        ends = crowd.links[i].ends;
        crowd_load(&crowd, i, 1 << 20, 4001);
        while (flow_send(&ends[0].out) || flow_send(&ends[1].out))
            ;
        threads_run(2, shut, ends, sizeof ends[0]);
    }
    for (unsigned i = 0; i < 2 * LINKS; i++)
        await_count(&crowd.links[i / 2].ends[i % 2].shut, 1);
    sleep_ms(100);
    for (unsigned i = 0; i < 2 * LINKS; i++)
        CHECK_INT(crowd.links[i / 2].ends[i % 2].shut, 1);
    crowd_close(&crowd);
}

/* Closes one end after its last bytes. The other end reads them, gets the end, and is closed. */
static void end_link(struct crowd *crowd, unsigned link)
{
    struct end *first = &crowd->links[link].ends[link % 2], *second = &crowd->links[link].ends[1 - link % 2];

    crowd_load(crowd, link, 10000, 4001);
    flow_send_all(&first->out);
    crowd_close_end(crowd, first);
    flow_recv_all(&second->in);
    CHECK_RET(recv_wait(second->ep, &(uint8_t){0}, 1), 0);
    await_count(&second->shut, 1);
    crowd_close_end(crowd, second);
}

static void close_while_reading(void)
{
    struct crowd crowd;

    crowd_open(&crowd, LINKS, 3);
    crowd_each(&crowd, 4, crowd_connect);
    crowd_each(&crowd, 4, end_link);
    crowd_close(&crowd);
}

static void silent_among_readers(void)
{
    struct crowd crowd;
    unsigned port;

    /* Peers that connect and leave keep the readers busy, then one peer stays and sends nothing. Its
     * time-out must not be lost, whichever thread drives the listener last. */
    setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", "100", 1);
    crowd_open(&crowd, 0, READERS_MAX);
    port = fid_port(&crowd.listener.pep->fid);
    for (unsigned i = 0; i < 10; i++) {
        int silent;

        for (unsigned gone = 0; gone < 3; gone++)
            CHECK_SYS(close(stranger_connect(port)));
        silent = stranger_connect(port);
        CHECK(readable(silent, PATIENCE_MS));
        CHECK_INT(recv(silent, &(uint8_t){0}, 1, 0), 0);
        CHECK_SYS(close(silent));
    }
    crowd_close(&crowd);
}

/* ---- fairness ------------------------------------------------------------------------------- */

#define ENOUGH (128 << 10) /* several times the size of a ring */

/* Bytes that the single thread and the other threads have moved. */
struct moved {
    atomic_ullong lone, flood;
};

/* A thread that makes calls continuously on an endpoint that other threads use too, until enough bytes
 * were moved in both directions. */
struct racer {
    struct fid_ep *ep;
    bool sends;
    struct moved *moved;
    atomic_ullong *tally; /* its counter in `moved`, or one that is not used */
};

static void *race(void *argument)
{
    static const uint8_t zeros[512];
    struct racer *racer = argument;
    int64_t patience = now_ms() + PATIENCE_MS;

    while ((racer->moved->lone < ENOUGH || racer->moved->flood < ENOUGH) && now_ms() < patience) {
        uint8_t buffer[sizeof zeros];
        ssize_t count = racer->sends ? send_once(racer->ep, zeros, sizeof zeros)
                                     : recv_once(racer->ep, buffer, sizeof buffer);

        if (count != -FI_EAGAIN)
            *racer->tally += (uint64_t)CHECK_SYS(count);
    }
    return NULL;
}

/* Three threads send many bytes in one direction. A single thread uses the other direction of the same two
 * endpoints. */
static void check_fair(bool flood_sends)
{
    struct crowd crowd;
    struct racer racers[6];
    struct moved moved = {0};
    atomic_ullong elsewhere = 0;

    crowd_open(&crowd, 1, 1);
    crowd_connect(&crowd, 0);
    for (unsigned i = 0; i < 6; i++)
        racers[i] = (struct racer){
            .ep = crowd.links[0].ends[i >= 4].ep,
            .sends = (i == 0 || i == 5) != flood_sends,
            .moved = &moved,
            .tally = i == 0 ? &moved.lone : i < 4 ? &moved.flood : &elsewhere,
        };
    threads_run(6, race, racers, sizeof racers[0]);
    CHECK_AT_LEAST(moved.lone, ENOUGH);
    CHECK_AT_LEAST(moved.flood, ENOUGH);
    crowd_close(&crowd);
}

static void no_starving(void)
{
    check_fair(true);
    check_fair(false);
}

static const struct test tests[] = {
    TEST(third_thread, "a third thread reads the events of connecting, traffic and shutdown"),
    TEST(connects_and_accepts, "connecting and accepting in several threads, over one event queue and one listener"),
    TEST(moved_between_threads, "many endpoints, each handed from thread to thread"),
    TEST(one_shutdown_event, "FI_SHUTDOWN comes once however many threads end and read"),
    TEST(close_while_reading, "endpoints are closed while other threads read their event queue"),
    TEST(silent_among_readers, "with several readers no time-out is forgotten"),
    TEST(no_starving, "many threads in one direction do not starve one in the other"),
};

const struct section event_threads_section = SECTION("event_threads", tests);
