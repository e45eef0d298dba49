/* Contract, section Message endpoints: the end of a connection by fi_shutdown, by fi_close, or with the host. */
#include "message.h"

/* What was sent before arrives; receives that nothing reached are cancelled; both sides are told once. */
static void shutdown_from(bool client_ends)
{
    static uint8_t got[3][70000];
    struct pair pair;
    struct side *ends, *other;

    messages_open(&pair, NULL);
    ends = client_ends ? &pair.client : &pair.server;
    other = client_ends ? &pair.server : &pair.client;
    for (unsigned i = 0; i < 3; i++)
        post_recv(other->ep, got[i], sizeof got[i], i);
    post_recv(ends->ep, got[0], 1, 20);
    post_send(ends->ep, pattern(0, 70000), 70000, 10);
    CHECK_OK(fi_inject(ends->ep, pattern(1, 100), 100, FI_ADDR_UNSPEC));
    CHECK_OK(fi_shutdown(ends->ep, 0));
    CHECK_INT(await_done(other->cq, 0, RECEIVED).len, 70000);
    CHECK_BYTES(got[0], pattern(0, 70000), 70000);
    CHECK_INT(await_done(other->cq, 1, RECEIVED).len, 100);
    (void)await_failed(other->cq, 2, RECEIVED, FI_ECANCELED);
    CHECK(await_event(ends->eq, FI_SHUTDOWN).fid == &ends->ep->fid);
    CHECK(await_event(other->eq, FI_SHUTDOWN).fid == &other->ep->fid);
    (void)await_done(ends->cq, 10, SENT);
    (void)await_failed(ends->cq, 20, RECEIVED, FI_ECANCELED);
    check_no_event(ends->eq);
    check_no_event(other->eq);
    check_no_completion(ends->cq);
    check_no_completion(other->cq);
    pair_close(&pair);
}

static void shuts_down(void)
{
    shutdown_from(true);
    shutdown_from(false);
}

/* A server of one connection closes its passive endpoint before it opens the endpoint. */
static void accepts_after_listener(void)
{
    struct side listener, client, server;
    struct event request;

    request = message_request(&listener, &client, NULL);
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    message_server(&listener, &server, &request, NULL);
    message_accept(&client, &server);
    message_transfer(&client, &server, 100);
    side_close(&server);
    side_close(&client);
    side_close(&listener);
}

/* More than the connection takes at once. The flags make no difference. */
static void shuts_down_behind_much(void)
{
    enum { LENGTH = 16 << 20, COUNT = 4 };
    const uint64_t flags[] = {0, FI_SEND, FI_RECV};
    uint8_t *sent = map_pages(LENGTH), *got = map_pages(LENGTH);

    for (unsigned i = 0; i < LENGTH; i++)
        sent[i] = (uint8_t)(i * 7 + i / 4093);
    for (unsigned round = 0; round < 3; round++) {
        struct pair pair;

        note("round %u", round);
        messages_open(&pair, NULL);
        for (unsigned i = 0; i < COUNT; i++)
            post_send(pair.client.ep, sent, LENGTH, i);
        check_no_completion(pair.client.cq);
        CHECK_OK(fi_shutdown(pair.client.ep, flags[round]));
        for (unsigned i = 0; i < COUNT; i++) {
            memset(got, 0, LENGTH);
            post_recv(pair.server.ep, got, LENGTH, 10 + i);
            CHECK_INT(await_done(pair.server.cq, 10 + i, RECEIVED).len, LENGTH);
            CHECK_BYTES(got, sent, LENGTH);
        }
        for (unsigned i = 0; i < COUNT; i++)
            (void)await_done(pair.client.cq, i, SENT);
        (void)await_event(pair.client.eq, FI_SHUTDOWN);
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        pair_close(&pair);
    }
    unmap_pages(got, LENGTH);
    unmap_pages(sent, LENGTH);
}

static void both_shut_down(void)
{
    struct pair pair;
    int answer;

    messages_open(&pair, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    answer = fi_shutdown(pair.server.ep, 0);
    CHECK(answer == 0 || answer == -FI_ENOTCONN);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

/* A host that vanishes, while operations of each kind are under way to it and while none is. */
static void message_host_vanished(void)
{
    enum { KEY = 1 };
    static uint8_t memory[PATTERN_MAX];
    struct pair idle, sending;
    const struct pair *pairs[] = {&idle, &sending};
    struct fid_mr *region;
    int64_t lost;
    uint8_t got;
    int errors;

    log_connections();
    partable_hosts();
    messages_open(&idle, NULL);
    messages_open(&sending, NULL);
    region = message_region(&sending.server, memory, sizeof memory, KEY);
    post_recv(idle.client.ep, &got, 1, 1);
    errors = capture_errors();
    part_hosts();
    lost = now_ms();
    post_each_kind(&sending.client, KEY);
    for (unsigned i = 0; i < 2; i++)
        CHECK(await_event(pairs[i]->client.eq, FI_SHUTDOWN).fid == &pairs[i]->client.ep->fid);
    CHECK_BETWEEN(now_ms() - lost, 1, 2 * KEEPALIVE_MS + 500);
    (void)await_failed(idle.client.cq, 1, RECEIVED, FI_ECANCELED);
    check_each_kind_ended(sending.client.cq);
    /* The other sides have lost a host, too. */
    for (unsigned i = 0; i < 2; i++)
        CHECK(await_event(pairs[i]->server.eq, FI_SHUTDOWN).fid == &pairs[i]->server.ep->fid);
    check_broken(errors, "peer's host does not answer", 4);
    for (unsigned i = 0; i < 2; i++) {
        check_no_completion(pairs[i]->client.cq);
        check_no_event(pairs[i]->client.eq);
        check_no_event(pairs[i]->server.eq);
    }
    close_fid(&region->fid);
    pair_close(&idle);
    pair_close(&sending);
    join_hosts();
}

/* How long fi_close may take, which does not wait for the peer. */
#define CLOSES_MS 2000

/* fi_close reports each outstanding operation before it returns, and gives its memory back. */
static void closed_with_operations(void)
{
    enum { LENGTH = 16 << 20, SENDS = 5, RECEIVES = 20, READS = 3 };

    for (unsigned round = 0; round < 8; round++) {
        uint8_t *memory = map_pages(LENGTH), *remote = map_pages(LENGTH);
        unsigned ended[SENDS + RECEIVES + READS] = {0}, entries = 0;
        struct fi_cq_data_entry entry;
        struct fid_mr *region;
        struct pair pair;
        int64_t started;
        ssize_t answer;

        note("round %u", round);
        messages_open(&pair, NULL);
        region = message_region(&pair.server, remote, LENGTH, 1);
        for (unsigned i = 0; i < RECEIVES; i++)
            post_recv(pair.client.ep, memory + i * 100000, 100000, SENDS + i);
        for (unsigned i = 0; i < READS; i++)
            CHECK_OK(fi_read(pair.client.ep, memory, LENGTH, NULL, FI_ADDR_UNSPEC, 0, 1,
                             CONTEXT(SENDS + RECEIVES + i)));
        for (unsigned i = 0; i < SENDS; i++)
            post_send(pair.client.ep, memory, LENGTH, i);
        /* Behind so much there may be no room for it. It has no entry in any case. */
        (void)fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC);
        for (unsigned i = 0; i < 20; i++)
            CHECK_OK(fi_inject(pair.server.ep, pattern(0, 4000), 4000, FI_ADDR_UNSPEC));
        for (unsigned i = 0; i < round; i++)
            drive();
        started = now_ms();
        close_fid(&pair.client.ep->fid);
        CHECK_BETWEEN(now_ms() - started, 0, CLOSES_MS);
        pair.client.ep = NULL;
        unmap_pages(memory, LENGTH);
        while ((answer = fi_cq_read(pair.client.cq, &entry, 1)) != -FI_EAGAIN) {
            struct fi_cq_err_entry error = {.op_context = entry.op_context};

            if (answer == -FI_EAVAIL) {
                CHECK_RET(fi_cq_readerr(pair.client.cq, &error, 0), 1);
                CHECK_INT(error.err, FI_ECANCELED);
            } else {
                CHECK_RET(answer, 1);
            }
            CHECK_BETWEEN((uintptr_t)error.op_context, 0, SENDS + RECEIVES + READS - 1);
            CHECK_INT(++ended[(uintptr_t)error.op_context], 1);
            entries++;
        }
        CHECK_INT(entries, SENDS + RECEIVES + READS);
        /* The peer goes on, and nothing follows. */
        CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
        check_no_completion(pair.client.cq);
        close_fid(&region->fid);
        unmap_pages(remote, LENGTH);
        pair_close(&pair);
    }
}

/* The peer closes in order, with messages on the way that it posted no receives for. */
static void peer_closes_in_order(void)
{
    enum { SENDS = 4 };
    struct fi_cq_data_entry entry;
    struct pair pair;
    unsigned complete = 0;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    for (unsigned i = 0; i < 30; i++)
        drive();
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    /* TCP may have taken the first ones. */
    while (fi_cq_read(pair.client.cq, &entry, 1) == 1) {
        CHECK_INT((uintptr_t)entry.op_context, complete);
        CHECK_INT(entry.flags, SENT);
        complete++;
    }
    CHECK_BETWEEN(complete, 0, SENDS - 1);
    for (unsigned i = complete; i < SENDS; i++)
        (void)await_failed(pair.client.cq, i, SENT, FI_ECONNRESET);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_completion(pair.client.cq);
    check_no_event(pair.client.eq);
    pair_close(&pair);
}

/* The same with operations of each kind. */
static void peer_closes_on_each_kind(void)
{
    enum { KEY = 1 };
    static uint8_t memory[PATTERN_MAX];
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, memory, sizeof memory, KEY);
    post_each_kind(&pair.client, KEY);
    drive_for(5);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    check_each_kind_ended(pair.client.cq);
    check_no_event(pair.client.eq);
    close_fid(&region->fid);
    pair_close(&pair);
}

/* What the side that shuts down has posted goes out. It takes no answers: its reads are cancelled, and so are the entries
 * of what is behind them. */
static void shuts_down_with_accesses(void)
{
    enum { LENGTH = 16 << 20, KEY = 1 };
    uint8_t *sent = map_pages(LENGTH), *target = map_pages(2 * LENGTH), *fetched = map_pages(LENGTH);

    for (unsigned i = 0; i < LENGTH; i++)
        sent[i] = (uint8_t)(i * 7 + i / 4093);
    for (unsigned client_ends = 0; client_ends < 2; client_ends++) {
        struct fid_mr *region;
        struct pair pair;
        struct side *ends, *other;
        struct fid_ep *ep;

        note("client_ends %u", client_ends);
        messages_open(&pair, NULL);
        ends = client_ends ? &pair.client : &pair.server;
        other = client_ends ? &pair.server : &pair.client;
        ep = ends->ep;
        memset(target, 0, 2 * LENGTH);
        region = message_region(other, target, 2 * LENGTH, KEY);
        CHECK_OK(fi_write(ep, sent, LENGTH, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(1)));
        CHECK_OK(fi_read(ep, fetched, LENGTH, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(2)));
        CHECK_OK(fi_write(ep, sent, LENGTH, NULL, FI_ADDR_UNSPEC, LENGTH, KEY, CONTEXT(3)));
        CHECK_OK(fi_shutdown(ep, 0));
        (void)await_done(ends->cq, 1, WRITTEN);
        (void)await_failed(ends->cq, 2, WAS_READ, FI_ECANCELED);
        memset(fetched, 0xcc, LENGTH);
        (void)await_failed(ends->cq, 3, WRITTEN, FI_ECANCELED);
        CHECK(await_event(ends->eq, FI_SHUTDOWN).fid == &ep->fid);
        CHECK(await_event(other->eq, FI_SHUTDOWN).fid == &other->ep->fid);
        for (unsigned i = 0; i < 2; i++)
            CHECK_BYTES(target + i * LENGTH, sent, LENGTH);
        drive_for(20);
        for (unsigned i = 0; i < LENGTH; i++)
            if (fetched[i] != 0xcc)
                fail_at(__FILE__, __LINE__, "byte %u of a cancelled read is written", i);
        check_no_completion(ends->cq);
        check_no_completion(other->cq);
        check_no_event(ends->eq);
        check_no_event(other->eq);
        close_fid(&region->fid);
        pair_close(&pair);
    }
    unmap_pages(sent, LENGTH);
    unmap_pages(target, 2 * LENGTH);
    unmap_pages(fetched, LENGTH);
}

/* Closes the client's endpoint, whose receives 0, 1 and 2 are reported at once. Nothing else is. */
static void close_before_connected(struct side *client)
{
    close_fid(&client->ep->fid);
    client->ep = NULL;
    for (unsigned i = 0; i < 3; i++)
        (void)await_failed(client->cq, i, RECEIVED, FI_ECANCELED);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_completion(client->cq);
    check_no_event(client->eq);
}

static void closed_while_connecting(void)
{
    struct side listener, client;
    struct event request;
    struct fi_eq_cm_entry entry;
    uint32_t kind;
    uint8_t got[3];

    /* With no answer yet, and with one that is not read. */
    for (unsigned answered = 0; answered < 2; answered++) {
        message_listen(&listener, NULL);
        message_client(&client, &listener, NULL);
        message_endpoint(&client, NULL);
        CHECK_OK(fi_enable(client.ep));
        for (unsigned i = 0; i < 3; i++)
            post_recv(client.ep, &got[i], 1, i);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        request = await_event(listener.eq, FI_CONNREQ);
        if (answered) {
            CHECK_OK(fi_reject(listener.pep, request.info->handle, "no", 2));
            AWAIT(PATIENCE_MS, fi_eq_read(client.eq, &kind, &entry, sizeof entry, FI_PEEK) == -FI_EAVAIL);
        }
        close_before_connected(&client);
        fi_freeinfo(request.info);
        side_close(&client);
        side_close(&listener);
    }
}

/* Events of an endpoint that is closed are not read any more. */
static void events_leave(void)
{
    struct pair pair;

    messages_open(&pair, NULL);
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_event(pair.server.eq);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* A program that never reads its event queue learns of the end from its calls. */
static void unread_end(void)
{
    struct fi_cq_data_entry entry;
    uint8_t byte = 0, got;
    int64_t refused = 0;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, NULL);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    do {
        (void)fi_cq_read(pair.client.cq, &entry, 1);
        answer = fi_write(pair.client.ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 1, NULL);
        if (answer == -FI_EAGAIN && refused == 0)
            refused = now_ms();
        if (answer == -FI_EAGAIN)
            CHECK(now_ms() - refused < PATIENCE_MS);
    } while (answer == 0 || answer == -FI_EAGAIN);
    CHECK_RET(answer, -FI_ENOTCONN);
    CHECK_AT_LEAST(now_ms() - refused, 999);
    CHECK_RET(fi_send(pair.client.ep, &byte, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
    CHECK_RET(fi_recv(pair.client.ep, &got, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* One that reads it learns of the end at once, also after calls that have to come again. */
static void read_end(void)
{
    struct fi_eq_cm_entry entry;
    struct pair pair;
    uint32_t kind;

    messages_open(&pair, NULL);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    AWAIT(PATIENCE_MS, fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, FI_PEEK) != -FI_EAGAIN);
    check_calls(pair.client.ep, -FI_EAGAIN);
    check_receives(pair.client.ep, -FI_EAGAIN);
    CHECK_RET(fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, 0), sizeof entry);
    CHECK_INT(kind, FI_SHUTDOWN);
    check_calls(pair.client.ep, -FI_ENOTCONN);
    check_receives(pair.client.ep, -FI_ENOTCONN);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void injected_before_close(void)
{
    static uint8_t got[200][4096];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 200; i++)
        CHECK_OK(fi_inject(pair.client.ep, pattern(i, 4096), 4096, FI_ADDR_UNSPEC));
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    for (unsigned i = 0; i < 200; i++) {
        post_recv(pair.server.ep, got[i], 4096, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, 4096);
        CHECK_BYTES(got[i], pattern(i, 4096), 4096);
    }
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* What is complete arrives, although another message of the endpoint is cancelled. */
static void completed_before_close(void)
{
    enum { LENGTH = 64 << 20 };
    static uint8_t got[65536];
    uint8_t *rest = map_pages(LENGTH);
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error;
    struct pair pair;
    unsigned complete = 0;
    ssize_t answer;

    messages_open(&pair, NULL);
    while (complete < 1000) {
        post_send(pair.client.ep, pattern(complete, sizeof got), sizeof got, complete);
        if (fi_cq_read(pair.client.cq, &entry, 1) != 1)
            break;
        complete++;
    }
    CHECK_BETWEEN(complete, 1, 999);
    post_send(pair.client.ep, rest, LENGTH, 1001);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    unmap_pages(rest, LENGTH);
    while (fi_cq_read(pair.client.cq, &entry, 1) == 1)
        complete++;
    do {
        memset(&error, 0, sizeof error);
        CHECK_RET(fi_cq_readerr(pair.client.cq, &error, 0), 1);
        CHECK_INT(error.err, FI_ECANCELED);
    } while (error.op_context != CONTEXT(1001));
    for (unsigned i = 0; i < complete; i++) {
        post_recv(pair.server.ep, got, sizeof got, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, sizeof got);
        CHECK_BYTES(got, pattern(i, sizeof got), sizeof got);
    }
    /* One that was cancelled may have been copied, and no part of the last arrives. The end follows. */
    post_recv(pair.server.ep, got, sizeof got, complete);
    AWAIT(PATIENCE_MS, (answer = fi_cq_read(pair.server.cq, &entry, 1)) != -FI_EAGAIN);
    if (answer == 1) {
        CHECK_BYTES(got, pattern(complete, sizeof got), sizeof got);
        complete++;
        post_recv(pair.server.ep, got, sizeof got, complete);
    }
    (void)await_failed(pair.server.cq, complete, RECEIVED, FI_ECANCELED);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* ---- what remains of a closed endpoint ---------------------------------------------------- */

/* The end is found by reading completions, and the endpoint closed before its event is read: a reader of events sleeps,
 * although the peer has not ended its part yet. */
static void closed_before_event(void)
{
    enum { NO_KEY = 77, MS = 500 };
    struct fi_cq_data_entry entry;
    struct fi_eq_cm_entry event;
    struct pair pair;
    uint8_t got[8];
    uint32_t kind;
    int64_t cpu;

    messages_open(&pair, NULL);
    post_recv(pair.server.ep, got, sizeof got, 1);
    CHECK_OK(fi_inject_write(pair.client.ep, "x", 1, FI_ADDR_UNSPEC, 0, NO_KEY));
    /* The peer makes no calls from now on. */
    while (fi_cq_read(pair.server.cq, &entry, 1) == -FI_EAGAIN)
        ;
    (void)await_failed(pair.server.cq, 1, RECEIVED, FI_ECANCELED);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    cpu = cpu_ms();
    CHECK_RET(fi_eq_sread(pair.server.eq, &kind, &event, sizeof event, MS, 0), -FI_EAGAIN);
    check_idle("a reader of events beside a closed endpoint", cpu, MS);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* Of the first side that is opened, the client. */
static struct fid_cntr *injects;

static void count_injects(struct side *side)
{
    if (injects)
        return;
    injects = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &injects->fid, FI_SEND));
}

/* Injected messages that are not complete when the endpoint is closed, because they follow a read, count as errors. */
static void closed_with_injected(void)
{
    enum { SENDS = 3 };
    struct message_settings settings = {.prepare = count_injects};
    static uint8_t memory[8], local[8];
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, &settings);
    region = message_region(&pair.server, memory, sizeof memory, 1);
    CHECK_OK(fi_read(pair.client.ep, local, sizeof local, NULL, FI_ADDR_UNSPEC, 0, 1, NULL));
    for (unsigned i = 0; i < SENDS; i++)
        CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    CHECK_INT(fi_cntr_read(injects), 0);
    CHECK_INT(fi_cntr_readerr(injects), SENDS);
    CHECK_OK(fi_close(&injects->fid));
    close_fid(&region->fid);
    pair_close(&pair);
}

/* A side that has read no event, only completions, is connected and can end the connection. */
static void shuts_down_unread(void)
{
    struct fi_cq_data_entry entry;
    struct pair pair = {0};
    struct event request;
    uint8_t got;

    request = message_request(&pair.listener, &pair.client, NULL);
    message_server(&pair.listener, &pair.server, &request, NULL);
    CHECK_OK(fi_accept(pair.server.ep, NULL, 0));
    post_recv(pair.server.ep, &got, 1, 1);
    while (!read_event(pair.client.eq, &request))
        CHECK_RET(fi_cq_read(pair.server.cq, &entry, 1), -FI_EAGAIN);
    CHECK_INT(request.kind, FI_CONNECTED);
    CHECK_OK(fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC));
    while (fi_cq_read(pair.server.cq, &entry, 1) == -FI_EAGAIN)
        ;
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(accepts_after_listener, "a request that was read is accepted after its passive endpoint is closed"),
    TEST(shuts_down, "fi_shutdown by either side: what was sent arrives, then FI_SHUTDOWN once at both"),
    TEST(shuts_down_behind_much, "fi_shutdown with 64 MiB to send, and with any flags: all of it arrives"),
    TEST(shuts_down_with_accesses, "fi_shutdown with 32 MiB to write and a read between: the bytes arrive, the read is cancelled"),
    TEST(both_shut_down, "fi_shutdown by both sides: each is told once"),
    FAULT_TEST(message_host_vanished, "a host that vanishes: FI_SHUTDOWN within twice FI_RSTREAM_KEEPALIVE_S, all is cancelled, the log says why"),
    TEST(closed_with_operations, "fi_close: each operation is reported before it returns, its memory is free"),
    TEST(peer_closes_in_order, "a peer that closes: the messages under way are cancelled in order, FI_SHUTDOWN once"),
    TEST(peer_closes_on_each_kind, "the same with writes, reads and receives as well: each ends once, and nothing follows"),
    TEST(closed_while_connecting, "fi_close before there is a connection: receives are cancelled, no event is left"),
    TEST(events_leave, "events of a closed endpoint are gone"),
    TEST(unread_end, "after the end, without reading the event: -FI_EAGAIN for a second, then -FI_ENOTCONN"),
    TEST(read_end, "after the end: -FI_EAGAIN, and -FI_ENOTCONN at once when FI_SHUTDOWN is read"),
    TEST(injected_before_close, "injected messages arrive although the endpoint was closed"),
    TEST(completed_before_close, "complete messages arrive although others were cancelled by closing the endpoint"),
    TEST(closed_before_event, "fi_close before the end is read, beside a silent peer: a reader of events sleeps"),
    TEST(closed_with_injected, "injected messages behind a read that is unanswered are counted by fi_close"),
    TEST(shuts_down_unread, "fi_shutdown by a side that has read completions, but no event"),
};

const struct section message_closing_section = SECTION("closing message endpoints", tests);
