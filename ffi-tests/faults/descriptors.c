/* A process without free descriptors: every call that needs one fails once in turn, and succeeds when
 * there are descriptors again. */
#include "faults.h"

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

static const struct test tests[] = {
    TEST(each_call_in_turn, "without descriptors a call answers -FI_EMFILE, and works when there are some again"),
};

const struct section descriptors_section = SECTION("descriptors", tests);
