/* Contract, section Message endpoints: what becomes of each operation when the peer is killed, and when the endpoint
 * is closed. */
#include "message.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- a peer that is killed ---------------------------------------------------------------- */

/* What the peer does on its connection before it waits to be killed. */
struct role {
    void (*act)(struct side *side);
};

/* The peer's process. */
static void connect_and_act(struct peer *self, void *argument)
{
    const struct role *role = argument;
    struct side client;

    message_client_to(&client, (unsigned)peer_hear(self), NULL);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    (void)await_event(client.eq, FI_CONNECTED);
    role->act(&client);
    peer_tell(self, 1);
    for (;;)
        drive();
}

/* Awaits the peer's request. */
static struct event victim_request(struct peer *peer, struct side *listener)
{
    peer_tell(peer, fid_port(&listener->pep->fid));
    return await_event(listener->eq, FI_CONNREQ);
}

/* Starts a peer, and opens a listener whose endpoints share receives. */
static struct fid_ep *shared_listen(struct peer *peer, const struct role *role, struct side *listener)
{
    struct fid_ep *shared;

    peer_start(peer, connect_and_act, (void *)(uintptr_t)role);
    message_listen(listener, NULL);
    message_queue(listener, NULL);
    CHECK_OK(fi_srx_context(listener->domain, NULL, &shared, NULL));
    return shared;
}

/* Connects an endpoint with the peer. */
static struct fid_ep *shared_victim(struct peer *peer, struct side *listener, struct fid_ep *shared)
{
    struct event request = victim_request(peer, listener);
    struct fid_ep *victim = message_accept_shared(listener, &request, shared, NULL);

    (void)await_event(listener->eq, FI_CONNECTED);
    return victim;
}

/* Starts a peer, and connects `server` with it. */
static void victim_open(struct peer *peer, struct role role, struct side *listener, struct side *server)
{
    struct event request;

    peer_start(peer, connect_and_act, &role);
    message_listen(listener, NULL);
    request = victim_request(peer, listener);
    message_server(listener, server, &request, NULL);
    CHECK_OK(fi_accept(server->ep, NULL, 0));
    (void)await_event(server->eq, FI_CONNECTED);
}

#define VICTIM_KEY 1

static void offer_memory(struct side *side)
{
    static uint8_t memory[PATTERN_MAX], got[100];

    (void)message_region(side, memory, sizeof memory, VICTIM_KEY);
    post_recv(side->ep, got, sizeof got, 1);
}

/* A peer that has stopped, and is killed, with operations of each kind outstanding. */
static void message_peer_killed(void)
{
    struct side listener, server;
    struct peer peer;

    victim_open(&peer, (struct role){offer_memory}, &listener, &server);
    CHECK_INT(peer_hear(&peer), 1);
    CHECK_SYS(kill(peer.pid, SIGSTOP));
    post_each_kind(&server, VICTIM_KEY);
    for (unsigned i = 0; i < 30; i++)
        drive();
    peer_kill(&peer);
    CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
    check_each_kind_ended(server.cq);
    check_no_event(server.eq);
    side_close(&server);
    side_close(&listener);
}

#define KILLED_MESSAGES 5
#define KILLED_STEP 4000

/* Sends messages until TCP has all of them. */
static void send_messages(struct side *side)
{
    for (unsigned i = 0; i < KILLED_MESSAGES; i++)
        post_send(side->ep, pattern(i, i * KILLED_STEP), i * KILLED_STEP, i);
    for (unsigned i = 0; i < KILLED_MESSAGES; i++)
        (void)await_done(side->cq, i, SENT);
}

/* What the peer sent before it was killed is received, although the end is read first. */
static void killed_after_sending(void)
{
    enum { POSTED = KILLED_MESSAGES + 3 };
    static uint8_t got[POSTED][KILLED_MESSAGES * KILLED_STEP];
    struct side listener, server;
    struct peer peer;

    victim_open(&peer, (struct role){send_messages}, &listener, &server);
    for (unsigned i = 0; i < POSTED; i++)
        post_recv(server.ep, got[i], sizeof got[i], i);
    CHECK_INT(peer_hear(&peer), 1);
    peer_kill(&peer);
    (void)await_event(server.eq, FI_SHUTDOWN);
    for (unsigned i = 0; i < KILLED_MESSAGES; i++) {
        CHECK_INT(await_done(server.cq, i, RECEIVED).len, i * KILLED_STEP);
        CHECK_BYTES(got[i], pattern(i, i * KILLED_STEP), i * KILLED_STEP);
    }
    for (unsigned i = KILLED_MESSAGES; i < POSTED; i++)
        (void)await_failed(server.cq, i, RECEIVED, FI_ECANCELED);
    check_no_completion(server.cq);
    check_no_event(server.eq);
    side_close(&server);
    side_close(&listener);
}

/* More than the sockets hold. */
#define UNTAKEN ((size_t)(32 << 20))
#define UNTAKEN_SEND 100

/* A peer that is killed while it has not taken all has its system reset the connection. What it had sent before still
 * waits for receives, and the end comes behind it; only the sends end at once, and further ones have to come again. Time,
 * fi_shutdown and fi_close drop what waits. */
static void reset_spares_messages(void)
{
    enum { RECEIVE, WAIT, SHUTDOWN, CLOSE, WAYS };
    static uint8_t got[KILLED_MESSAGES][KILLED_MESSAGES * KILLED_STEP];
    uint8_t *untaken = map_pages(UNTAKEN);

    for (int way = RECEIVE; way < WAYS; way++) {
        struct side listener, server;
        struct peer peer;
        struct fid *eq;

        victim_open(&peer, (struct role){send_messages}, &listener, &server);
        CHECK_INT(peer_hear(&peer), 1);
        check_no_completion(server.cq);
        post_send(server.ep, untaken, UNTAKEN, UNTAKEN_SEND);
        peer_kill(&peer);
        (void)await_failed(server.cq, UNTAKEN_SEND, SENT, FI_ECONNRESET);
        eq = &server.eq->fid;
        settle(&server, &eq, 1);
        check_no_event(server.eq);
        if (way == RECEIVE) {
            int64_t cpu = cpu_ms();
            uint64_t event;
            uint32_t kind;

            CHECK_RET(fi_eq_sread(server.eq, &kind, &event, sizeof event, 600, 0), -FI_EAGAIN);
            check_idle("a reader of events behind a reset", cpu, 600);
            for (unsigned i = 0; i < KILLED_MESSAGES; i++) {
                check_no_event(server.eq);
                CHECK_RET(fi_inject(server.ep, "x", 1, FI_ADDR_UNSPEC), -FI_EAGAIN);
                post_recv(server.ep, got[i], sizeof got[i], i);
                CHECK_INT(await_done(server.cq, i, RECEIVED).len, i * KILLED_STEP);
                CHECK_BYTES(got[i], pattern(i, i * KILLED_STEP), i * KILLED_STEP);
            }
        } else if (way == SHUTDOWN) {
            CHECK_OK(fi_shutdown(server.ep, 0));
        }
        if (way != CLOSE) {
            (void)await_event(server.eq, FI_SHUTDOWN);
            CHECK_RET(fi_recv(server.ep, got[0], 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
        }
        check_no_completion(server.cq);
        check_no_event(server.eq);
        side_close(&server);
        side_close(&listener);
    }
    unmap_pages(untaken, UNTAKEN);
}

#define LATER 60000

/* A short message, and one that goes straight to its place. */
static void send_short_and_long(struct side *side)
{
    post_send(side->ep, pattern(0, 20), 20, 0);
    post_send(side->ep, pattern(1, LATER), LATER, 1);
    (void)await_done(side->cq, 0, SENT);
    (void)await_done(side->cq, 1, SENT);
}

/* Kills a peer that has sent its messages, so that it resets the connection of `ep`. */
static void kill_behind_messages(struct peer *peer, struct fid_ep *ep, struct fid_cq *cq, const void *untaken)
{
    CHECK_INT(peer_hear(peer), 1);
    check_no_completion(cq);
    post_send(ep, untaken, UNTAKEN, UNTAKEN_SEND);
    peer_kill(peer);
    (void)await_failed(cq, UNTAKEN_SEND, SENT, FI_ECONNRESET);
}

/* Memory for a message of LATER bytes, the second half of which cannot be written. */
static uint8_t *half_writable(void)
{
    uint8_t *target = map_pages(2 * LATER);

    CHECK(mprotect(target + 32768, 32768, PROT_READ) == 0);
    return target;
}

/* Behind a reset a message waits, and the receive that it gets cannot be written. */
static void unwritable_behind_reset(void)
{
    static uint8_t got[20];
    uint8_t *untaken = map_pages(UNTAKEN), *target = half_writable();
    struct side listener, server;
    struct peer peer;

    victim_open(&peer, (struct role){send_short_and_long}, &listener, &server);
    kill_behind_messages(&peer, server.ep, server.cq, untaken);
    post_recv(server.ep, got, sizeof got, 0);
    CHECK_INT(await_done(server.cq, 0, RECEIVED).len, 20);
    post_recv(server.ep, target, 2 * LATER, 1);
    (void)await_failed(server.cq, 1, RECEIVED, FI_EFAULT);
    (void)await_event(server.eq, FI_SHUTDOWN);
    check_no_completion(server.cq);
    side_close(&server);
    side_close(&listener);
    unmap_pages(target, 2 * LATER);
    unmap_pages(untaken, UNTAKEN);
}

/* The same with shared receives: another connection gets the next one. */
static void unwritable_shared_behind_reset(void)
{
    static uint8_t got[20];
    uint8_t *untaken = map_pages(UNTAKEN), *target = half_writable();
    struct side listener, client;
    struct fid_ep *shared, *victim, *next;
    struct peer peer;

    shared = shared_listen(&peer, &(struct role){send_short_and_long}, &listener);
    victim = shared_victim(&peer, &listener, shared);
    kill_behind_messages(&peer, victim, listener.cq, untaken);
    post_recv(shared, got, sizeof got, 0);
    CHECK_INT(await_done(listener.cq, 0, RECEIVED).len, 20);
    post_recv(shared, target, 2 * LATER, 1);
    (void)await_failed(listener.cq, 1, RECEIVED, FI_EFAULT);
    CHECK(await_event(listener.eq, FI_SHUTDOWN).fid == &victim->fid);
    post_recv(shared, got, sizeof got, 2);
    next = message_shared(&listener, &client, shared, NULL);
    CHECK_OK(fi_inject(client.ep, "next", 4, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 2, RECEIVED).len, 4);
    check_no_event(listener.eq);
    close_fid(&victim->fid);
    close_fid(&next->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
    unmap_pages(target, 2 * LATER);
    unmap_pages(untaken, UNTAKEN);
}

/* Connections that were reset wait for receives of one context. Each of these comes within two seconds of the one before,
 * and the last one later. */
static void reset_ones_take_turns(void)
{
    enum { PEERS = 3, PAUSE_MS = 900 };
    static uint8_t got[PEERS][20];
    uint8_t *untaken = map_pages(UNTAKEN);
    struct fid_ep *shared, *victims[PEERS];
    struct peer peers[PEERS];
    struct side listener;

    for (unsigned i = 1; i < PEERS; i++)
        peer_start(&peers[i], connect_and_act, &(struct role){send_short_and_long});
    shared = shared_listen(&peers[0], &(struct role){send_short_and_long}, &listener);
    for (unsigned i = 0; i < PEERS; i++)
        victims[i] = shared_victim(&peers[i], &listener, shared);
    for (unsigned i = 0; i < PEERS; i++)
        kill_behind_messages(&peers[i], victims[i], listener.cq, untaken);
    for (unsigned i = 0; i < PEERS; i++) {
        for (int64_t end = now_ms() + PAUSE_MS; now_ms() < end; sleep_ms(1)) {
            drive();
            check_no_event(listener.eq);
        }
        post_recv(shared, got[i], sizeof got[i], i);
        CHECK_INT(await_done(listener.cq, i, RECEIVED).len, 20);
    }
    /* The second message of each. */
    for (unsigned i = 0; i < PEERS; i++)
        (void)await_event(listener.eq, FI_SHUTDOWN);
    for (unsigned i = 0; i < PEERS; i++)
        close_fid(&victims[i]->fid);
    close_fid(&shared->fid);
    side_close(&listener);
    unmap_pages(untaken, UNTAKEN);
}

/* An end between two messages looks orderly: the log is what tells of a peer that was killed. */
static void end_is_logged(void)
{
    struct side listener, server;
    struct peer peer;
    int errors;

    log_connections();
    victim_open(&peer, (struct role){offer_memory}, &listener, &server);
    CHECK_INT(peer_hear(&peer), 1);
    errors = capture_errors();
    peer_kill(&peer);
    (void)await_event(server.eq, FI_SHUTDOWN);
    check_logged(errors, " has ended the connection");
    side_close(&server);
    side_close(&listener);
}

/* That of one which had not taken all is a reset, of which the log tells once. */
static void reset_is_logged(void)
{
    struct side listener, server;
    struct peer peer;
    int errors;

    log_connections();
    victim_open(&peer, (struct role){offer_memory}, &listener, &server);
    CHECK_INT(peer_hear(&peer), 1);
    CHECK_SYS(kill(peer.pid, SIGSTOP));
    post_each_kind(&server, VICTIM_KEY);
    drive_for(5);
    errors = capture_errors();
    peer_kill(&peer);
    (void)await_event(server.eq, FI_SHUTDOWN);
    check_each_kind_ended(server.cq);
    check_broken(errors, "reset by peer", 1);
    side_close(&server);
    side_close(&listener);
}

/* More than arrives in a few calls. */
#define HALF_LENGTH ((size_t)(64 << 20))

static void send_much(struct side *side)
{
    uint8_t *data = map_pages(HALF_LENGTH);

    memset(data, 1, HALF_LENGTH);
    post_send(side->ep, data, HALF_LENGTH, 1);
}

/* A shared receive whose sender is killed in the middle of the message serves the next connection. */
static void killed_half_way(void)
{
    struct side listener, client;
    struct fid_ep *shared, *victim, *next;
    uint8_t *got, second[8] = {0};
    struct peer peer;

    shared = shared_listen(&peer, &(struct role){send_much}, &listener);
    got = map_pages(HALF_LENGTH);
    post_recv(shared, got, HALF_LENGTH, 1);
    post_recv(shared, second, sizeof second, 2);
    victim = shared_victim(&peer, &listener, shared);
    AWAIT(PATIENCE_MS, got[0] == 1);
    peer_kill(&peer);
    CHECK(await_event(listener.eq, FI_SHUTDOWN).fid == &victim->fid);
    CHECK_INT(got[HALF_LENGTH - 1], 0);
    check_no_completion(listener.cq);
    next = message_shared(&listener, &client, shared, NULL);
    CHECK_OK(fi_inject(client.ep, "next", 4, FI_ADDR_UNSPEC));
    CHECK_OK(fi_inject(client.ep, "after", 5, FI_ADDR_UNSPEC));
    CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 4);
    CHECK_BYTES(got, "next", 4);
    CHECK_INT(await_done(listener.cq, 2, RECEIVED).len, 5);
    CHECK_BYTES(second, "after", 5);
    check_no_completion(listener.cq);
    check_no_event(listener.eq);
    unmap_pages(got, HALF_LENGTH);
    close_fid(&victim->fid);
    close_fid(&next->fid);
    close_fid(&shared->fid);
    side_close(&client);
    side_close(&listener);
}

/* A reset while messages wait for shared receives: the next ones are for them, and one that a message took which was
 * cut serves the next connection. */
static void reset_spares_shared(void)
{
    static const struct role roles[] = {{send_messages}, {send_much}};
    static uint8_t got[KILLED_MESSAGES][KILLED_MESSAGES * KILLED_STEP];
    uint8_t *untaken = map_pages(UNTAKEN), *long_one = map_pages(HALF_LENGTH);

    for (unsigned cut = 0; cut < 2; cut++) {
        struct side listener, client;
        struct fid_ep *shared, *victim, *next;
        struct peer peer;
        struct fid *eq;

        shared = shared_listen(&peer, &roles[cut], &listener);
        victim = shared_victim(&peer, &listener, shared);
        CHECK_INT(peer_hear(&peer), 1);
        check_no_completion(listener.cq);
        post_send(victim, untaken, UNTAKEN, UNTAKEN_SEND);
        peer_kill(&peer);
        (void)await_failed(listener.cq, UNTAKEN_SEND, SENT, FI_ECONNRESET);
        eq = &listener.eq->fid;
        settle(&listener, &eq, 1);
        check_no_event(listener.eq);
        for (unsigned i = 0; !cut && i < KILLED_MESSAGES; i++) {
            post_recv(shared, got[i], sizeof got[i], i);
            CHECK_INT(await_done(listener.cq, i, RECEIVED).len, i * KILLED_STEP);
            CHECK_BYTES(got[i], pattern(i, i * KILLED_STEP), i * KILLED_STEP);
        }
        if (cut)
            post_recv(shared, long_one, HALF_LENGTH, 1);
        CHECK(await_event(listener.eq, FI_SHUTDOWN).fid == &victim->fid);
        if (!cut)
            post_recv(shared, long_one, HALF_LENGTH, 1);
        check_no_completion(listener.cq);
        next = message_shared(&listener, &client, shared, NULL);
        CHECK_OK(fi_inject(client.ep, "next", 4, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(listener.cq, 1, RECEIVED).len, 4);
        CHECK_BYTES(long_one, "next", 4);
        check_no_event(listener.eq);
        close_fid(&victim->fid);
        close_fid(&next->fid);
        close_fid(&shared->fid);
        side_close(&client);
        side_close(&listener);
    }
    unmap_pages(long_one, HALF_LENGTH);
    unmap_pages(untaken, UNTAKEN);
}

/* ---- separate queues ---------------------------------------------------------------------- */

/* Each queue has the ends of its own direction, in the order of the calls, as soon as fi_close has returned. */
static void closed_with_separate_queues(void)
{
    enum { LENGTH = 16 << 20, KINDS = 3, POSTED = 2 * KINDS, RECEIVES = 8, FIRST_RECEIVE = 100, REMOTE_KEY = 1 };
    static const uint64_t kinds[KINDS] = {SENT, WAS_READ, WRITTEN};

    for (unsigned round = 0; round < 8; round++) {
        uint8_t *memory = map_pages(LENGTH), *remote = map_pages(LENGTH);
        struct separate open;
        struct ending ending;
        struct fid_mr *region;
        struct fid_ep *ep;
        bool over;

        note("round %u", round);
        separate_open(&open, NULL);
        ep = open.client.ep;
        region = message_region(&open.server, remote, LENGTH, REMOTE_KEY);
        for (unsigned i = 0; i < RECEIVES; i++)
            post_recv(ep, memory, 4000, FIRST_RECEIVE + i);
        /* A message that waits for a receive would delay the end. */
        for (unsigned i = 0; i < POSTED / KINDS; i++)
            post_recv(open.server.ep, remote, LENGTH, i);
        for (unsigned i = 0; i < POSTED; i += KINDS) {
            post_send(ep, memory, LENGTH, i);
            CHECK_OK(fi_read(ep, memory, LENGTH, NULL, FI_ADDR_UNSPEC, 0, REMOTE_KEY, CONTEXT(i + 1)));
            CHECK_OK(fi_write(ep, memory, LENGTH, NULL, FI_ADDR_UNSPEC, 0, REMOTE_KEY, CONTEXT(i + 2)));
        }
        /* Fewer than there are receives. */
        for (unsigned i = 0; i < RECEIVES / 2; i++)
            CHECK_OK(fi_inject(open.server.ep, pattern(i, 4000), 4000, FI_ADDR_UNSPEC));
        for (unsigned i = 0; i < round; i++)
            drive();
        close_fid(&ep->fid);
        open.client.ep = NULL;
        unmap_pages(memory, LENGTH);
        over = false;
        for (unsigned i = 0; i < POSTED; i++) {
            CHECK(next_ending(open.client.cq, &ending));
            CHECK_INT(ending.context, i);
            CHECK_INT(ending.flags, kinds[i % KINDS]);
            /* What is behind a cancelled operation is, too. */
            CHECK_INT(ending.err, over || ending.err ? FI_ECANCELED : 0);
            over = ending.err;
        }
        CHECK(over);
        over = false;
        for (unsigned i = 0; i < RECEIVES; i++) {
            CHECK(next_ending(open.receives, &ending));
            CHECK_INT(ending.context, FIRST_RECEIVE + i);
            CHECK_INT(ending.flags, RECEIVED);
            CHECK_INT(ending.err, over || ending.err ? FI_ECANCELED : 0);
            over = ending.err;
        }
        CHECK(over);
        CHECK(await_event(open.server.eq, FI_SHUTDOWN).fid == &open.server.ep->fid);
        check_no_completion(open.client.cq);
        check_no_completion(open.receives);
        close_fid(&region->fid);
        unmap_pages(remote, LENGTH);
        separate_close(&open);
    }
}

/* ---- a full socket ------------------------------------------------------------------------ */

/* Reads the end of the next send, if it is there. They come in order; `ended` is their number. */
static bool next_send(struct side *side, unsigned *ended)
{
    struct ending ending;

    if (!next_ending(side->cq, &ending))
        return false;
    CHECK_INT(ending.context, *ended);
    CHECK_INT(ending.flags, SENT);
    *ended += 1;
    return true;
}

/* From now on sockets have buffers of the least size. */
static void small_sockets(void)
{
    static const char *const sizes[] = {"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"};

    own_network();
    for (unsigned i = 0; i < 2; i++) {
        FILE *file = fopen(sizes[i], "w");

        if (!file || fputs("4096 4096 4096", file) < 0 || fclose(file) != 0)
            skip("%s cannot be set: %s", sizes[i], strerror(errno));
    }
}

/* The socket of one side is full of input when it refuses an access, and the other, which has said that it is done,
 * has more to send. All of that ends, although nobody takes it. */
static void ended_while_full(void)
{
    enum { LENGTH = 1 << 20, SENDS = 8, NO_KEY = 77 };
    uint8_t *memory = map_pages(LENGTH);
    unsigned ended[2] = {0};
    struct pair pair;

    small_sockets();
    messages_open(&pair, NULL);
    CHECK_OK(fi_inject_write(pair.client.ep, "x", 1, FI_ADDR_UNSPEC, 0, NO_KEY));
    for (unsigned i = 0; i < SENDS; i++) {
        post_send(pair.client.ep, memory, LENGTH, i);
        post_send(pair.server.ep, memory, LENGTH, i);
    }
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    /* Nobody drives the server meanwhile. */
    for (int64_t until = now_ms() + 100; now_ms() < until;)
        (void)next_send(&pair.client, &ended[0]);
    CHECK_BETWEEN(ended[0], 0, SENDS - 1);
    AWAIT(PATIENCE_MS, next_send(&pair.client, &ended[0]) && ended[0] == SENDS);
    AWAIT(PATIENCE_MS, next_send(&pair.server, &ended[1]) && ended[1] == SENDS);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    check_no_completion(pair.client.cq);
    check_no_completion(pair.server.cq);
    pair_close(&pair);
    unmap_pages(memory, LENGTH);
}

/* ---- what was complete -------------------------------------------------------------------- */

#define COMPLETE_MAX 1000
#define LONGEST 65536

/* Posts sends of `length` bytes each, with contexts from 0 on, until one does not complete. Returns the number of
 * those that do. */
static unsigned send_until_full(struct side *side, size_t length)
{
    struct ending ending;
    unsigned complete = 0;

    for (; complete < COMPLETE_MAX; complete++) {
        const int64_t end = now_ms() + 300;
        bool is_over;

        post_send(side->ep, pattern(complete, length), length, complete);
        while (!(is_over = next_ending(side->cq, &ending)) && now_ms() < end)
            ;
        if (!is_over)
            break;
        CHECK_INT(ending.context, complete);
        CHECK(!ending.err);
    }
    CHECK_BETWEEN(complete, 1, COMPLETE_MAX - 1);
    return complete;
}

/* Receives the messages of send_until_full with contexts from 0 on. */
static void receive_complete(struct side *side, size_t length, unsigned complete)
{
    static uint8_t got[LONGEST];

    for (unsigned i = 0; i < complete; i++) {
        post_recv(side->ep, got, length, i);
        CHECK_INT(await_done(side->cq, i, RECEIVED).len, length);
        CHECK_BYTES(got, pattern(i, length), length);
    }
}

/* fi_close with a read outstanding, before messages of the peer that nobody receives. */
static void closed_under_read(void)
{
    enum { KEY = 1, READ = COMPLETE_MAX };
    static uint8_t remote[64], fetched[sizeof remote];
    struct fid_mr *region;
    struct ending ending;
    unsigned complete;
    struct pair pair;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, remote, sizeof remote, KEY);
    complete = send_until_full(&pair.client, LONGEST);
    CHECK_OK(fi_read(pair.client.ep, fetched, sizeof fetched, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(READ)));
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    while (next_ending(pair.client.cq, &ending)) {
        CHECK_BETWEEN(ending.context, complete, READ);
        complete += !ending.err;
    }
    CHECK_INT(ending.context, READ);
    CHECK_INT(ending.err, FI_ECANCELED);
    for (unsigned i = 0; i < 20; i++)
        CHECK_OK(fi_inject(pair.server.ep, pattern(0, 4000), 4000, FI_ADDR_UNSPEC));
    receive_complete(&pair.server, LONGEST, complete);
    close_fid(&region->fid);
    pair_close(&pair);
}

/* fi_close when the peer's host has all messages. The peer sends before it receives them, which resets the connection. */
static void closed_before_received(void)
{
    enum { LENGTH = 4000, SENDS = 15 };
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < SENDS; i++) {
        post_send(pair.client.ep, pattern(i, LENGTH), LENGTH, i);
        (void)await_done(pair.client.cq, i, SENT);
    }
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    /* The host acknowledges after 40 ms, and then the socket closes. */
    for (unsigned i = 0; i < 100; i++) {
        CHECK_RET(fi_cq_read(pair.client.cq, NULL, 0), -FI_EAGAIN);
        sleep_ms(1);
    }
    for (unsigned i = 0; i < SENDS; i++) {
        ssize_t answer = fi_inject(pair.server.ep, pattern(0, LENGTH), LENGTH, FI_ADDR_UNSPEC);

        CHECK(answer == 0 || answer == -FI_EAGAIN);
        drive();
    }
    receive_complete(&pair.server, LENGTH, SENDS);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* A side refuses an access while its socket is full of messages, and the other goes on to send. These messages arrive,
 * and the reason behind them. */
static void refused_while_full(void)
{
    enum { LENGTH = 500, LONG = 1 << 20, SENDS = 4, NO_KEY = 77, READ = SENDS };
    uint8_t *memory = map_pages(LONG);
    unsigned complete, ended = 0;
    struct ending ending;
    struct pair pair;

    small_sockets();
    messages_open(&pair, NULL);
    complete = send_until_full(&pair.server, LENGTH);
    CHECK_OK(fi_read(pair.client.ep, memory, 8, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(READ)));
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, memory, LONG, i);
    AWAIT(PATIENCE_MS, next_ending(pair.server.cq, &ending));
    CHECK_INT(ending.context, complete);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    /* The one that was cancelled had been copied. */
    receive_complete(&pair.client, LENGTH, complete + 1);
    (void)await_failed(pair.client.cq, READ, WAS_READ, FI_EACCES);
    while (ended < SENDS)
        (void)next_send(&pair.client, &ended);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
    unmap_pages(memory, LONG);
}

/* A side that has said that it is done learns why its read is refused, and what it waits to send ends, although the
 * other takes nothing more and does not leave. */
static void refused_after_shutdown(void)
{
    enum { LONG = 1 << 20, SENDS = 4, NO_KEY = 77, READ = SENDS };
    uint8_t *memory = map_pages(LONG);
    unsigned ended = 0;
    struct pair pair;

    small_sockets();
    messages_open(&pair, NULL);
    CHECK_OK(fi_read(pair.client.ep, memory, 8, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(READ)));
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, memory, LONG, i);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    (void)await_failed(pair.client.cq, READ, WAS_READ, FI_EACCES);
    AWAIT(PATIENCE_MS, next_send(&pair.client, &ended) && ended == SENDS);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
    unmap_pages(memory, LONG);
}

/* An access is refused behind a message that waits for a receive, for five seconds: it ends, and the message is still
 * received. */
static void refuse_behind_waiting(struct pair *pair)
{
    enum { NO_KEY = 77, READ = 1 };
    uint8_t got[8];
    int64_t start;

    CHECK_OK(fi_inject(pair->server.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_read(pair->client.ep, got, sizeof got, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(READ)));
    start = now_ms();
    (void)await_failed(pair->client.cq, READ, WAS_READ, FI_ECONNRESET);
    CHECK_BETWEEN(now_ms() - start, 4500, 8000);
    check_no_event(pair->client.eq);
    post_recv(pair->client.ep, got, 1, 2);
    CHECK_INT(await_done(pair->client.cq, 2, RECEIVED).len, 1);
    (void)await_event(pair->client.eq, FI_SHUTDOWN);
}

static void refused_behind_waiting(void)
{
    struct pair pair;

    messages_open(&pair, NULL);
    refuse_behind_waiting(&pair);
    pair_close(&pair);
}

/* The refusing side has another connection, and finds those that have something to do by their sockets. */
static void refused_beside_another(void)
{
    struct fid_ep *other;
    struct side client;
    struct pair pair;

    messages_open(&pair, NULL);
    other = message_beside(&pair, &client, NULL);
    refuse_behind_waiting(&pair);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    CHECK_OK(fi_inject(other, "y", 1, FI_ADDR_UNSPEC));
    check_no_event(client.eq);
    close_fid(&other->fid);
    side_close(&client);
    pair_close(&pair);
}

/* The thread of the refusing side sleeps for longer, and wakes at the time. */
static void refused_asleep(void)
{
    enum { NO_KEY = 77, READ = 1, MS = 6000 };
    struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD}};
    struct fi_cq_data_entry entry;
    struct fid_ep *other;
    struct side client;
    struct pair pair;
    uint8_t got[8];
    int64_t cpu;

    messages_open(&pair, &settings);
    other = message_beside(&pair, &client, &settings);
    CHECK_OK(fi_inject(pair.server.ep, "x", 1, FI_ADDR_UNSPEC));
    CHECK_OK(fi_read(pair.client.ep, got, sizeof got, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(READ)));
    cpu = cpu_ms();
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, MS), -FI_EAGAIN);
    check_idle("a reader beside a connection that refused an access", cpu, MS);
    CHECK_RET(fi_cq_sread(pair.client.cq, &entry, 1, NULL, MS), -FI_EAVAIL);
    (void)await_failed(pair.client.cq, READ, WAS_READ, FI_ECONNRESET);
    CHECK_RET(fi_cq_sread(pair.server.cq, &entry, 1, NULL, 300), -FI_EAGAIN);
    check_idle("both readers", cpu, MS);
    close_fid(&other->fid);
    side_close(&client);
    pair_close(&pair);
}

/* The side that refused an access closes its domain, while the other is idle and does not take the reason. */
static void domain_closed_beside_idle(void)
{
    enum { NO_KEY = 77, READ = 1 };
    struct event event;
    struct pair pair;
    uint8_t got[8];
    int64_t start;

    messages_open(&pair, NULL);
    CHECK_OK(fi_read(pair.client.ep, got, sizeof got, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(READ)));
    while (!read_event(pair.server.eq, &event))
        ;
    CHECK_INT(event.kind, FI_SHUTDOWN);
    start = now_ms();
    side_close(&pair.server);
    CHECK_BETWEEN(now_ms() - start, 0, 1000);
    (void)await_failed(pair.client.cq, READ, WAS_READ, FI_EACCES);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    side_close(&pair.client);
    side_close(&pair.listener);
}

static const struct test tests[] = {
    TEST(message_peer_killed, "a peer that is killed: operations of each kind end once, in order, then FI_SHUTDOWN"),
    TEST(killed_after_sending, "what a killed peer had sent is received, also after FI_SHUTDOWN was read"),
    TEST(reset_spares_messages, "what waits for receives when the connection is reset is received, or dropped in the end"),
    TEST(unwritable_behind_reset, "what waits behind a reset gets a receive that cannot be written: FI_EFAULT"),
    TEST(unwritable_shared_behind_reset, "the same with shared receives; another connection gets the next one"),
    TEST(reset_ones_take_turns, "reset connections whose messages wait for shared receives get them in turn, however long"),
    TEST(end_is_logged, "a peer's end of the connection, as of one that is killed between two messages, stands in the log"),
    TEST(reset_is_logged, "a peer that is killed with input unread: \"reset by peer\" in the log, once"),
    TEST(reset_spares_shared, "the same with shared receives; one that a cut message took serves the next connection"),
    TEST(killed_half_way, "a shared receive that a killed peer has half filled serves the next connection first"),
    TEST(closed_with_separate_queues, "fi_close: each operation is reported to the queue of its direction, in order"),
    TEST(ended_while_full, "a side refuses an access while its socket is full: what the other waits to send ends, too"),
    TEST(closed_under_read, "fi_close while a read is outstanding and the peer sends: complete messages arrive"),
    TEST(closed_before_received, "fi_close before the peer receives, which sends first: its messages arrive"),
    TEST(refused_while_full, "a side refuses an access behind messages that wait in its socket: they arrive, and FI_EACCES"),
    TEST(refused_behind_waiting, "a refused access behind a message without a receive ends after five seconds, the message stays"),
    TEST(refused_beside_another, "the same if the refusing side has another connection, which goes on"),
    TEST(refused_asleep, "the same if its thread sleeps in fi_cq_sread: the connection ends, the thread sleeps on"),
    TEST(domain_closed_beside_idle, "fi_close of the domain after a refused access does not wait for an idle peer"),
    TEST(refused_after_shutdown, "a side refuses a read, and takes nothing more: FI_EACCES, also after fi_shutdown"),
};

const struct section message_ends_section = SECTION("message ends", tests);
