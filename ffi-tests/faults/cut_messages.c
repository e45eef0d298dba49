/* Connections of message endpoints that the proxy cuts while operations are outstanding. */
#include "proxy.h"

#include <pthread.h>

#include "../conformance/message.h"

#define LENGTH PATTERN_MAX
/* Each message has a receive: one that waits would delay the end. */
#define MESSAGES 4
/* Well behind the handshake, and before the last receive is full. */
#define FIRST_OFFSET 1000
#define LAST_OFFSET (MESSAGES * LENGTH)

/* One end, and the operations of each direction that have ended. */
struct party {
    struct side *side;
    uint8_t *memory;
    unsigned received, sent;
    /* From the first failure of a direction on all fail. */
    bool receives_fail, sends_fail;
};

static void party_start(struct party *party, struct side *side)
{
    *party = (struct party){.side = side, .memory = map_pages(MESSAGES * LENGTH)};
    for (unsigned i = 0; i < MESSAGES; i++) {
        post_recv(side->ep, party->memory + i * LENGTH, LENGTH, i);
        post_send(side->ep, pattern(0, LENGTH), LENGTH, i);
    }
}

static bool party_is_over(const struct party *party)
{
    return party->received + party->sent == 2 * MESSAGES;
}

/* Takes an entry, or the error that `got` announces: the operations of a direction end in order. */
static void party_note(struct party *party, ssize_t got, const struct fi_cq_data_entry *entry)
{
    struct fi_cq_err_entry error = {0};
    bool failed = got == -FI_EAVAIL, receives;

    if (failed) {
        CHECK_RET(fi_cq_readerr(party->side->cq, &error, 0), 1);
        CHECK_INT(error.err, error.flags == SENT ? FI_ECONNRESET : FI_ECANCELED);
    } else {
        CHECK_RET(got, 1);
        error = (struct fi_cq_err_entry){.op_context = entry->op_context, .flags = entry->flags};
    }
    receives = error.flags == RECEIVED;
    CHECK(receives || error.flags == SENT);
    CHECK_INT((uintptr_t)error.op_context, receives ? party->received++ : party->sent++);
    CHECK(failed || !(receives ? party->receives_fail : party->sends_fail));
    if (receives)
        party->receives_fail = failed;
    else
        party->sends_fail = failed;
}

/* The server's thread sleeps without a time limit until everything has ended. */
static void *sleep_through(void *argument)
{
    struct party *party = argument;
    struct fi_cq_data_entry entry;

    while (!party_is_over(party))
        party_note(party, fi_cq_sread(party->side->cq, &entry, 1, NULL, -1), &entry);
    return NULL;
}

struct cuts {
    struct proxy proxy;
    struct bystander bystander;
    /* The ends of which a send was cancelled. */
    unsigned failed_sends;
};

/* Connects through the proxy. */
static void connect_through(struct pair *pair, unsigned port)
{
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD}};
    struct fi_info *hints = message_hints(&settings);
    struct event request;
    char service[16];

    snprintf(service, sizeof service, "%u", port);
    side_open(&pair->client, find(IPV4, service, 0, hints));
    fi_freeinfo(hints);
    message_endpoint(&pair->client, &settings);
    CHECK_OK(fi_connect(pair->client.ep, pair->client.info->dest_addr, NULL, 0));
    request = await_event(pair->listener.eq, FI_CONNREQ);
    message_server(&pair->listener, &pair->server, &request, &settings);
    message_accept(&pair->client, &pair->server);
}

/* One connection, until it is cut and closed. */
static void cut_once(struct cuts *cuts, struct plan *plan)
{
    struct party client, server;
    struct fi_cq_data_entry entry;
    struct pair pair;
    pthread_t sleeper;
    uint64_t passed[2];
    ssize_t got;

    message_listen(&pair.listener, NULL);
    plan->port = fid_port(&pair.listener.pep->fid);
    proxy_expect(&cuts->proxy, plan);
    connect_through(&pair, cuts->proxy.port);
    party_start(&server, &pair.server);
    CHECK_OK(pthread_create(&sleeper, NULL, sleep_through, &server));
    party_start(&client, &pair.client);
    while (!party_is_over(&client))
        if ((got = fi_cq_read(pair.client.cq, &entry, 1)) != -FI_EAGAIN)
            party_note(&client, got, &entry);
    CHECK_OK(pthread_join(sleeper, NULL));
    /* In the other direction everything may have arrived, and TCP may have taken all that was sent. */
    CHECK(plan->direction == 0 ? server.receives_fail : client.receives_fail);
    cuts->failed_sends += (unsigned)client.sends_fail + (unsigned)server.sends_fail;
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    pair_close(&pair);
    unmap_pages(client.memory, MESSAGES * LENGTH);
    unmap_pages(server.memory, MESSAGES * LENGTH);
    proxy_passed(&cuts->proxy, passed);
}

static void cut_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct cuts *cuts = argument;
    struct plan plan = {
        .fault = throw_below(dice, 2) ? FAULT_RESET : FAULT_END,
        .direction = (unsigned)throw_below(dice, 2),
        .offset = FIRST_OFFSET + throw_below(dice, LAST_OFFSET - FIRST_OFFSET),
        .seed = seed,
    };

    cut_once(cuts, &plan);
    still_moving();
    bystander_held(&cuts->bystander);
}

static void cut_messages(void)
{
    static struct cuts cuts;

    proxy_start(&cuts.proxy);
    /* The C library keeps memory of threads for the next ones. */
    cut_once(&cuts, &(struct plan){.fault = FAULT_RESET, .offset = FIRST_OFFSET});
    bystander_open(&cuts.bystander);
    each_seed(40, cut_seed, &cuts);
    printf("sends were cancelled at %u ends\n", cuts.failed_sends);
    CHECK_AT_LEAST(cuts.failed_sends, 1);
    bystander_close(&cuts.bystander);
    proxy_end(&cuts.proxy);
}

static const struct test tests[] = {
    TEST(cut_messages, "a reset or an end among messages: each operation ends once, then FI_SHUTDOWN, and sleepers wake"),
};

const struct section cut_messages_section = SECTION("messages", tests);
