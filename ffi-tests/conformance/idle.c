/* Contract, section Waiting: a thread sleeps on a descriptor as long as there is nothing to do, whatever
 * calls it made before. */
#include "../sleeper.h"
#include "conformance.h"

/* Steps that each happen once on a connection, in every order. */
enum step {
    GETWAIT, /* gets the endpoint's descriptor, if no earlier step did */
    TRYWAIT,
    POLL,    /* sleeps on the descriptor, if there is one */
    MESSAGE, /* the peer sends MESSAGE_BYTES */
    RECEIVE, /* receives PART_BYTES of it, or nothing yet */
    SHUT,    /* shuts down the own sending direction */
    STEPS
};

#define MESSAGE_BYTES 5
#define PART_BYTES 2
/* Duration of a sleep without an event. */
#define SLEEP_US 6000
/* A late notification may end one sleep, and there are two messages. */
#define MOST_WAKES 2

/* The sleeps of all connections together. */
static struct sleeper total;

static void take(struct pair *pair, enum step step, bool *has_descriptor)
{
    uint8_t bytes[MESSAGE_BYTES];
    ssize_t got;

    switch (step) {
    case GETWAIT:
        (void)wait_fd(&pair->server.ep->fid);
        *has_descriptor = true;
        break;
    case TRYWAIT:
        (void)must_not_wait(&pair->server);
        break;
    case POLL:
        if (*has_descriptor)
            (void)sleep_idle(&total, &pair->server, SLEEP_US, MOST_WAKES);
        break;
    case MESSAGE:
        CHECK_RET(send_once(pair->client.ep, pattern(0, MESSAGE_BYTES), MESSAGE_BYTES), MESSAGE_BYTES);
        break;
    case RECEIVE:
        got = recv_once(pair->server.ep, bytes, PART_BYTES);
        CHECK(got == PART_BYTES || got == -FI_EAGAIN);
        break;
    default:
        CHECK_OK(fi_shutdown(pair->server.ep, FI_SEND));
    }
}

/* Receives everything, after which the connection has nothing to report. */
static void drain(struct pair *pair)
{
    uint8_t bytes[MESSAGE_BYTES];

    do
        (void)recv_once(pair->client.ep, bytes, sizeof bytes);
    while (recv_once(pair->server.ep, bytes, sizeof bytes) > 0 || must_not_wait(&pair->server));
}

/* Makes one connection, with the steps in this order. Afterwards it sleeps, is woken by a message, sleeps
 * again, and is woken by the end. */
static void live(const enum step *order)
{
    struct pair pair;
    bool has_descriptor = false;

    note("order %d%d%d%d%d%d", order[0], order[1], order[2], order[3], order[4], order[5]);
    pair_open(&pair, IPV4, NULL);
    for (unsigned i = 0; i < STEPS; i++)
        take(&pair, order[i], &has_descriptor);
    drain(&pair);
    CHECK(sleep_idle(&total, &pair.server, SLEEP_US, MOST_WAKES));
    take(&pair, MESSAGE, &has_descriptor);
    CHECK(readable(wait_fd(&pair.server.ep->fid), PATIENCE_MS));
    drain(&pair);
    CHECK(sleep_idle(&total, &pair.server, SLEEP_US, MOST_WAKES));
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    CHECK(readable(wait_fd(&pair.server.ep->fid), PATIENCE_MS));
    CHECK_RET(recv_wait(pair.server.ep, &(uint8_t){0}, 1), 0);
    pair_close(&pair);
}

/* Tests every order of the steps from `at` on. */
static void permute(enum step *order, unsigned at)
{
    if (at == STEPS)
        live(order);
    for (unsigned i = at; i < STEPS; i++) {
        enum step first = order[i];

        order[i] = order[at];
        order[at] = first;
        permute(order, at + 1);
        order[at] = order[i];
        order[i] = first;
    }
}

static void sleeps_in_every_order(void)
{
    enum step order[STEPS] = {GETWAIT, TRYWAIT, POLL, MESSAGE, RECEIVE, SHUT};

    needs_embedded_device();
    permute(order, 0);
    sleeper_check(&total);
}

static const struct test tests[] = {
    TEST(sleeps_in_every_order, "a sleeper for whom nothing is there sleeps: below 1 % of processor time, in every order of calls"),
};

const struct section idle_section = SECTION("idle", tests);
