/* A process that is killed at any time, and what its peer sees. */
#include "faults.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Processes that are started before the test, because a process that has used libfabric cannot fork. */
#define VICTIMS 40
/* They are killed within this time after their start: some before they are connected, most while they move
 * bytes, some while they close. */
#define LIFE_US 15000
/* A victim that closes has sent this many bytes. Its peer reads late, so that the close takes some time. */
#define BEFORE_CLOSE 20000

/* Memory that a victim shares with the process that kills it. */
struct report {
    uint64_t sent;
    /* It has called fi_close or ended its stream in another way. */
    bool closing;
};

struct victim {
    struct peer peer;
    struct report *report;
    bool closes;
};

/* Sends the pattern and reads until it is killed, or closes after some time. */
static void stream(struct side *side, const struct victim *victim)
{
    struct end end;

    end_start(&end, side->ep, UINT64_MAX);
    end.unchecked = true;
    while (!victim->closes || end.sent < BEFORE_CLOSE) {
        end_step(&end);
        victim->report->sent = end.sent;
        CHECK_RET(end.send_end, 0);
    }
    victim->report->closing = true;
    side_close(side);
    sleep_ms(PATIENCE_MS);
}

static void connect_and_stream(struct peer *self, void *argument)
{
    struct side client;

    /* Done first, because loading libraries takes longer than everything else. */
    fi_freeinfo(find_peer(IPV4, 1, NULL));
    peer_tell(self, 0);
    side_active(&client, IPV4, (unsigned)peer_hear(self), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    stream(&client, argument);
}

static void accept_and_stream(struct peer *self, void *argument)
{
    struct side listener, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(listener.eq, FI_CONNECTED);
    stream(&server, argument);
}

static void listen_only(struct peer *self, void *argument)
{
    struct side listener;

    (void)argument;
    side_listen(&listener, IPV4, NULL);
    peer_tell(self, fid_port(&listener.pep->fid));
    for (;;)
        drive();
}

static void victims_start(struct victim victims[VICTIMS], void (*body)(struct peer *self, void *argument))
{
    struct report *reports = mmap(NULL, VICTIMS * sizeof *reports, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(reports != MAP_FAILED);
    for (unsigned i = 0; i < VICTIMS; i++) {
        victims[i].report = &reports[i];
        victims[i].closes = i % 2 == 0;
        peer_start(&victims[i].peer, body, &victims[i]);
    }
}

/* Kills the victim, and returns when it ended, which takes some time on a busy machine. */
static int64_t end_victim(struct victim *victim)
{
    CHECK_SYS(kill(victim->peer.pid, SIGKILL));
    peer_gone(&victim->peer);
    return now_ms();
}

struct hunt {
    struct victim victims[VICTIMS];
    struct bystander bystander;
    unsigned unconnected, reset, closed;
    int64_t slowest_ms;
};

/* Exchanges bytes with a victim until it is killed, and checks the results. */
static void survive(struct hunt *hunt, struct victim *victim, struct fid_ep *ep, int64_t moment)
{
    struct end end;
    int64_t killed = 0;

    end_start(&end, ep, UINT64_MAX);
    while (!end_is_over(&end) || killed == 0) {
        if (killed == 0 && now_us() >= moment)
            killed = end_victim(victim);
        /* Reads late, so that the victim's last bytes are still in flight when it is killed. */
        if (!victim->closes || killed > 0 || end.received < BEFORE_CLOSE / 4)
            end_step(&end);
        if (killed > 0)
            CHECK_BETWEEN(now_ms() - killed, 0, SOON_MS);
    }
    if (now_ms() - killed > hunt->slowest_ms)
        hunt->slowest_ms = now_ms() - killed;
    if (end.recv_end == 0) {
        CHECK(victim->report->closing);
        CHECK_INT(end.received, victim->report->sent);
        CHECK(end.send_end == -FI_EPIPE || end.send_end == -FI_ECONNRESET);
        hunt->closed++;
    } else {
        CHECK_RET(end.recv_end, -FI_ECONNRESET);
        CHECK_RET(end.send_end, -FI_ECONNRESET);
        hunt->reset++;
    }
}

static void hunt_end(struct hunt *hunt)
{
    printf("%u reset, %u had closed, %u not connected yet; the slowest took %lld ms\n", hunt->reset, hunt->closed,
           hunt->unconnected, (long long)hunt->slowest_ms);
    bystander_close(&hunt->bystander);
}

/* ---- the active side dies ------------------------------------------------------------------ */

static void active_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct hunt *hunt = argument;
    struct victim *victim = &hunt->victims[seed % VICTIMS];
    struct meeting meeting;
    int64_t moment, killed = 0;

    meeting_listen(&meeting, NULL);
    (void)peer_hear(&victim->peer);
    peer_tell(&victim->peer, fid_port(&meeting.listener.pep->fid));
    moment = now_us() + (int64_t)throw_below(dice, LIFE_US);
    while (!meeting.server_up && meeting.server_error == 0) {
        if (killed == 0 && now_us() >= moment)
            killed = end_victim(victim);
        if (killed > 0 && now_ms() - killed > 100 && meeting.server.ep == NULL)
            break;
        if (killed > 0)
            CHECK_BETWEEN(now_ms() - killed, 0, SOON_MS);
        meeting_events(&meeting);
        drive();
    }
    if (meeting.server_up)
        survive(hunt, victim, meeting.server.ep, killed > 0 ? now_us() : moment);
    else
        hunt->unconnected++;
    meeting_close(&meeting);
    bystander_held(&hunt->bystander);
}

static void active_side(void)
{
    static struct hunt hunt;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    victims_start(hunt.victims, connect_and_stream);
    bystander_open(&hunt.bystander);
    each_seed(VICTIMS, active_seed, &hunt);
    hunt_end(&hunt);
}

/* ---- the passive side dies ----------------------------------------------------------------- */

static void passive_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct hunt *hunt = argument;
    struct victim *victim = &hunt->victims[seed % VICTIMS];
    unsigned port = (unsigned)peer_hear(&victim->peer);
    int64_t moment, killed = 0;
    struct fi_eq_cm_entry entry;
    struct fi_eq_err_entry error = {0};
    struct side client;
    uint32_t kind;
    ssize_t got;

    side_active(&client, IPV4, port, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    moment = now_us() + (int64_t)throw_below(dice, throw_below(dice, 4) ? LIFE_US : 400);
    while ((got = fi_eq_read(client.eq, &kind, &entry, sizeof entry, 0)) == -FI_EAGAIN) {
        if (killed == 0 && now_us() >= moment)
            killed = end_victim(victim);
        if (killed > 0)
            CHECK_BETWEEN(now_ms() - killed, 0, SOON_MS);
    }
    if (got == -FI_EAVAIL) {
        CHECK_RET(fi_eq_readerr(client.eq, &error, 0), sizeof error);
        CHECK(error.err == FI_ECONNRESET || error.err == FI_ECONNREFUSED);
        hunt->unconnected++;
    } else {
        survive(hunt, victim, client.ep, killed > 0 ? now_us() : moment);
    }
    side_close(&client);
    bystander_held(&hunt->bystander);
}

static void passive_side(void)
{
    static struct hunt hunt;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    victims_start(hunt.victims, accept_and_stream);
    bystander_open(&hunt.bystander);
    each_seed(VICTIMS, passive_seed, &hunt);
    hunt_end(&hunt);
}

/* ---- a listener dies with unanswered requests ----------------------------------------------- */

static void listener(void)
{
    struct side clients[8];
    struct bystander bystander;
    struct peer victim;
    unsigned port;
    int64_t killed;

    peer_start(&victim, listen_only, NULL);
    port = (unsigned)peer_hear(&victim);
    bystander_open(&bystander);
    for (unsigned i = 0; i < 8; i++) {
        side_active(&clients[i], IPV4, port, NULL);
        CHECK_OK(fi_connect(clients[i].ep, clients[i].info->dest_addr, NULL, 0));
    }
    for (int64_t until = now_ms() + 50; now_ms() < until;)
        drive();
    CHECK_SYS(kill(victim.pid, SIGKILL));
    peer_gone(&victim);
    killed = now_ms();
    for (unsigned i = 0; i < 8; i++) {
        CHECK_INT(await_error(clients[i].eq, NULL, 0).err, FI_ECONNRESET);
        CHECK_BETWEEN(now_ms() - killed, 0, SOON_MS);
    }
    for (unsigned i = 0; i < 8; i++)
        side_close(&clients[i]);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static const struct test tests[] = {
    TEST(active_side, "the active side killed at any moment: -FI_ECONNRESET within a second, never 0"),
    TEST(passive_side, "the passive side killed at any moment: the same, or FI_ECONNRESET for the attempt"),
    TEST(listener, "a listener killed with requests unanswered: FI_ECONNRESET for each attempt"),
};

const struct section killed_section = SECTION("killed", tests);
