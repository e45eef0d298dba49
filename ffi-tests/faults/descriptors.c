/* A process without free descriptors: every call that needs one fails once in turn, and succeeds when
 * there are descriptors again. */
#include "raw.h"

#include <unistd.h>

#include "../conformance/message.h"

/* More descriptors than a connection needs from opening to closing. */
#define ENOUGH 64

/* The call that failed for lack of a descriptor during the present connection, or NULL. */
static const char *failed;

/* A call that succeeds, or returns `refusal` once and succeeds when there are descriptors again. */
#define TRY(call, refusal)                                                                          \
    do {                                                                                            \
        int try_got_ = (call);                                                                      \
        if (try_got_ != 0) {                                                                        \
            CHECK(shortage());                                                                     \
            CHECK_RET(try_got_, refusal);                                                           \
            failed = #call;                                                                         \
            shortage_end();                                                                         \
            CHECK_OK(call);                                                                         \
        }                                                                                           \
    } while (0)

/* Waits for the next event of `eq`. A listener that cannot accept gets none until there are descriptors. */
static struct event event_at_last(struct fid_eq *eq, uint32_t kind)
{
    int64_t until = now_ms() + 300;
    struct fi_eq_cm_entry entry;
    uint32_t peeked;

    while (shortage() && now_ms() < until && fi_eq_read(eq, &peeked, &entry, sizeof entry, FI_PEEK) < 0)
        drive();
    if (shortage() && now_ms() >= until) {
        failed = "accepting on a listener";
        shortage_end();
        until = now_ms();
        AWAIT(SOON_MS, fi_eq_read(eq, &peeked, &entry, sizeof entry, FI_PEEK) > 0);
    }
    return await_event(eq, kind);
}

/* ---- a connection from opening to closing -------------------------------------------------- */

static void open_side(struct side *side, const char *port, uint64_t flags)
{
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fi_info *hints = stream_hints();

    memset(side, 0, sizeof *side);
    side_remember(side);
    TRY(fi_getinfo(TEST_API, IPV4, port, flags, hints, &side->info), -FI_ENODATA);
    fi_freeinfo(hints);
    TRY(fi_fabric(side->info->fabric_attr, &side->fabric, NULL), -FI_EMFILE);
    TRY(fi_domain(side->fabric, side->info, &side->domain, NULL), -FI_EMFILE);
    TRY(fi_eq_open(side->fabric, &attr, &side->eq, NULL), -FI_EMFILE);
}

static void open_endpoint(struct side *side, int *wait)
{
    TRY(fi_endpoint(side->domain, side->info, &side->ep, NULL), -FI_EMFILE);
    TRY(fi_ep_bind(side->ep, &side->eq->fid, 0), -FI_EMFILE);
    TRY(fi_control(&side->ep->fid, FI_GETWAIT, wait), -FI_EMFILE);
    TRY(fi_enable(side->ep), -FI_EMFILE);
}

/* Checks that bytes wake a thread that sleeps on the descriptor: unread bytes, and arriving bytes. */
static void check_wakes(struct side *from, struct side *to, int wait)
{
    uint8_t got[4];
    struct fid *fid = &to->ep->fid;

    CHECK_RET(fi_trywait(to->fabric, &fid, 1), 0);
    CHECK(!readable(wait, 0));
    send_all(from->ep, "four", 4);
    CHECK(readable(wait, SOON_MS));
    CHECK_RET(recv_wait(to->ep, got, 1), 1);
    CHECK(readable(wait, SOON_MS));
    CHECK_RET(recv_wait(to->ep, got, 4), 3);
}

/* Opens all objects, connects, moves bytes and closes, with `left` free descriptors. Returns whether they
 * sufficed. */
static bool live(unsigned left)
{
    struct side listener, client, server;
    struct event request;
    int client_wait = -1, server_wait = -1, eq_wait = -1;
    char port[16];

    failed = NULL;
    shortage_begin(left);
    open_side(&listener, "0", FI_SOURCE);
    TRY(fi_passive_ep(listener.fabric, listener.info, &listener.pep, NULL), -FI_EMFILE);
    TRY(fi_pep_bind(listener.pep, &listener.eq->fid, 0), -FI_EMFILE);
    TRY(fi_control(&listener.eq->fid, FI_GETWAIT, &eq_wait), -FI_EMFILE);
    TRY(fi_listen(listener.pep), -FI_EMFILE);
    snprintf(port, sizeof port, "%u", fid_port(&listener.pep->fid));

    open_side(&client, port, 0);
    open_endpoint(&client, &client_wait);
    TRY(fi_connect(client.ep, client.info->dest_addr, NULL, 0), -FI_EMFILE);
    request = event_at_last(listener.eq, FI_CONNREQ);

    server = (struct side){.info = request.info, .fabric = listener.fabric, .eq = listener.eq, .borrows = true};
    side_remember(&server);
    TRY(fi_domain(server.fabric, server.info, &server.domain, NULL), -FI_EMFILE);
    open_endpoint(&server, &server_wait);
    TRY(fi_accept(server.ep, NULL, 0), -FI_EMFILE);
    CHECK(event_at_last(client.eq, FI_CONNECTED).fid == &client.ep->fid);
    CHECK(readable(eq_wait, SOON_MS));
    event_at_last(listener.eq, FI_CONNECTED);
    check_wakes(&client, &server, server_wait);
    check_wakes(&server, &client, client_wait);
    transfer(client.ep, server.ep, 100000);
    close_fid(&client.ep->fid);
    client.ep = NULL;
    CHECK(readable(server_wait, SOON_MS));
    CHECK_RET(recv_wait(server.ep, &(uint8_t){0}, 1), 0);
    event_at_last(listener.eq, FI_SHUTDOWN);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
    shortage_end();
    return failed == NULL;
}

static void each_call_in_turn(void)
{
    struct bystander bystander;
    const char *last = NULL;
    unsigned left = 0, calls = 0;

    bystander_open(&bystander);
    for (;; left++) {
        CHECK(left < ENOUGH);
        note("%u descriptors left", left);
        if (live(left))
            break;
        if (last == NULL || strcmp(last, failed) != 0)
            calls++;
        last = failed;
        bystander_held(&bystander);
    }
    printf("%u descriptors are enough for all; %u different calls failed before\n", left, calls);
    CHECK_AT_LEAST(calls, 5);
    bystander_close(&bystander);
}

/* ---- message endpoints --------------------------------------------------------------------- */

/* The calls of a connection that needs descriptors. */
enum { OPENS_QUEUE = 1, OPENS_COUNTER = 2, OPENS_ENDPOINT = 4, CONNECTS = 8 };

static unsigned call_that_failed(void)
{
    const char *const names[] = {"fi_cq_open", "fi_cntr_open", "fi_endpoint", "fi_connect"};
    unsigned at = 0;

    while (strncmp(failed, names[at], strlen(names[at])) != 0)
        CHECK(++at < 4);
    return 1U << at;
}

/* Opens the objects that an endpoint for messages needs, with `left` free descriptors, and connects. The
 * endpoint or the queue is the first object of its domain. Returns whether the descriptors sufficed. */
static bool open_message_objects(struct side *side, bool endpoint_first, unsigned left)
{
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    struct fi_cntr_attr counting = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD};
    struct fid_cntr *counter = NULL;
    struct fid_ep *shared = NULL;

    failed = NULL;
    shortage_begin(left);
    if (endpoint_first)
        TRY(fi_endpoint(side->domain, side->info, &side->ep, NULL), -FI_EMFILE);
    TRY(fi_cq_open(side->domain, &queue, &side->cq, NULL), -FI_EMFILE);
    TRY(fi_cntr_open(side->domain, &counting, &counter, NULL), -FI_EMFILE);
    TRY(fi_srx_context(side->domain, NULL, &shared, NULL), -FI_EMFILE);
    if (!endpoint_first)
        TRY(fi_endpoint(side->domain, side->info, &side->ep, NULL), -FI_EMFILE);
    TRY(fi_ep_bind(side->ep, &side->eq->fid, 0), -FI_EMFILE);
    TRY(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), -FI_EMFILE);
    TRY(fi_enable(side->ep), -FI_EMFILE);
    TRY(fi_connect(side->ep, side->info->dest_addr, NULL, 0), -FI_EMFILE);
    shortage_end();
    close_fid(&shared->fid);
    close_fid(&counter->fid);
    return failed == NULL;
}

/* Connects a client with more and more descriptors, until they suffice. Returns the calls that failed before. */
static unsigned connect_messages(bool endpoint_first)
{
    struct bystander bystander;
    unsigned calls = 0;
    bool enough = false;

    bystander_open(&bystander);
    for (unsigned left = 0; !enough; left++) {
        struct event request;
        struct pair pair;

        CHECK(left < ENOUGH);
        note("%u descriptors left", left);
        message_listen(&pair.listener, NULL);
        message_client(&pair.client, &pair.listener, NULL);
        enough = open_message_objects(&pair.client, endpoint_first, left);
        if (!enough)
            calls |= call_that_failed();
        request = await_event(pair.listener.eq, FI_CONNREQ);
        message_server(&pair.listener, &pair.server, &request, NULL);
        CHECK_OK(fi_accept(pair.server.ep, NULL, 0));
        (void)await_event(pair.client.eq, FI_CONNECTED);
        (void)await_event(pair.server.eq, FI_CONNECTED);
        messages_pass(&pair);
        pair_close(&pair);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
    return calls;
}

static void message_objects(void)
{
    CHECK_INT(connect_messages(false), OPENS_QUEUE | OPENS_COUNTER | CONNECTS);
    CHECK_INT(connect_messages(true), OPENS_ENDPOINT | OPENS_QUEUE | OPENS_COUNTER | CONNECTS);
}

/* Threads that wait on a counter, or for several entries, need a descriptor of their own. */
static void message_waits(void)
{
    struct fi_cntr_attr counting = {.events = FI_CNTR_EVENTS_COMP};
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD, .wait_cond = FI_CQ_COND_THRESHOLD}};
    struct fi_cq_data_entry entries[2];
    struct fid_cntr *counter = NULL;
    struct pair pair;

    messages_open(&pair, &settings);
    CHECK_OK(fi_cntr_open(pair.client.domain, &counting, &counter, NULL));
    shortage_begin(0);
    CHECK_RET(fi_cntr_wait(counter, 1, 10), -FI_EMFILE);
    CHECK_RET(fi_cq_sread(pair.client.cq, entries, 2, CONTEXT(2), 10), -FI_EMFILE);
    shortage_end();
    CHECK_RET(fi_cntr_wait(counter, 1, 10), -FI_ETIMEDOUT);
    CHECK_RET(fi_cq_sread(pair.client.cq, entries, 2, CONTEXT(2), 10), -FI_EAGAIN);
    messages_pass(&pair);
    close_fid(&counter->fid);
    pair_close(&pair);
}

/* Peers of a listener of message endpoints, and how many descriptors there are for them. */
enum { PEERS = 20, LEFT = 5 };

/* Accepts a peer's request. The peer sends a message. */
static struct fid_ep *accept_peer(struct side *listener, const struct event *request, struct raw *raw)
{
    struct fid_ep *ep = message_accept_shared(listener, request, NULL, NULL);
    uint8_t got[10];

    CHECK(await_event(listener->eq, FI_CONNECTED).fid == &ep->fid);
    raw_accepted_messages(raw);
    post_recv(ep, got, sizeof got, 1);
    put_message(raw, sizeof got);
    raw_flush(raw);
    CHECK_INT(await_done(listener->cq, 1, RECEIVED).len, sizeof got);
    return ep;
}

static void message_listener(void)
{
    static struct event requests[PEERS];
    static struct raw raws[PEERS];
    struct bystander bystander;
    struct fi_eq_cm_entry entry;
    struct fid_ep *eps[PEERS];
    struct side listener;
    uint32_t kind;
    int64_t cpu;

    bystander_open(&bystander);
    message_listen(&listener, NULL);
    message_queue(&listener, NULL);
    for (unsigned i = 0; i < PEERS; i++)
        raw_ask_messages(&raws[i], fid_port(&listener.pep->fid));
    shortage_begin(LEFT);
    for (unsigned i = 0; i < LEFT; i++)
        requests[i] = await_event(listener.eq, FI_CONNREQ);
    /* The listener sleeps, although peers wait. */
    cpu = cpu_ms();
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &entry, sizeof entry, 300, 0), -FI_EAGAIN);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, 30);
    shortage_end();
    for (unsigned i = LEFT; i < PEERS; i++)
        requests[i] = await_event(listener.eq, FI_CONNREQ);
    for (unsigned i = 0; i < PEERS; i++)
        eps[i] = accept_peer(&listener, &requests[i], &raws[i]);
    for (unsigned i = 0; i < PEERS; i++) {
        close_fid(&eps[i]->fid);
        CHECK_SYS(close(raws[i].fd));
    }
    side_close(&listener);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static const struct test tests[] = {
    TEST(each_call_in_turn, "without descriptors a call answers -FI_EMFILE, and works when there are some again"),
    TEST(message_objects, "the same for objects of message endpoints"),
    TEST(message_waits, "the same for fi_cntr_wait, and fi_cq_sread with a threshold"),
    TEST(message_listener, "a listener of message endpoints sleeps until there are descriptors, and accepts all"),
};

const struct section descriptors_section = SECTION("descriptors", tests);
