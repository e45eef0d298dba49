/* Contract, section Message endpoints: peers that do not follow the protocol of tagged messages (docs/protocol.md). */
#include "tags.h"

#include <unistd.h>

#include "../iwarp_wire.h"

enum { HEADER = 24, WITH_TAG = 1, WITH_DATA = 2 };

/* A plain socket that is the peer of a message endpoint with tags. */
struct stranger {
    int fd;
    struct side listener, server;
    /* The number of the latest Send. */
    uint32_t number;
};

static void stranger_open(struct stranger *stranger)
{
    memset(stranger, 0, sizeof *stranger);
    stranger->fd = message_stranger(&stranger->listener, &stranger->server, &tagged_settings);
}

static void stranger_close(struct stranger *stranger)
{
    close(stranger->fd);
    side_close(&stranger->server);
    side_close(&stranger->listener);
}

static void send_raw(struct stranger *stranger, const uint8_t *data, size_t length)
{
    wire_send(stranger->fd, ++stranger->number, data, length);
}

static void make_header(uint8_t header[HEADER], uint8_t flags, uint32_t length, uint64_t tag, uint64_t data)
{
    memset(header, 0, HEADER);
    header[0] = flags;
    put_be(header + 4, length, 4);
    put_be(header + 8, tag, 8);
    put_be(header + 16, data, 8);
}

static void send_header(struct stranger *stranger, uint8_t flags, uint32_t length, uint64_t tag, uint64_t data)
{
    uint8_t header[HEADER];

    make_header(header, flags, length, tag, data);
    send_raw(stranger, header, HEADER);
}

/* Awaits the end of the connection, before which the receive with context 1 ends with this error. */
static void check_refused(struct stranger *stranger, int err)
{
    (void)await_failed(stranger->server.cq, 1, TAG_RECEIVED, err);
    CHECK(await_event(stranger->server.eq, FI_SHUTDOWN).fid == &stranger->server.ep->fid);
    CHECK_INT(stats_of(stranger->server.ep).refused, 1);
    drive_for(20);
    check_no_completion(stranger->server.cq);
    check_no_event(stranger->server.eq);
    stranger_close(stranger);
}

/* What follows the document is taken. */
static void stranger_understood(void)
{
    struct fi_cq_tagged_entry entry;
    struct stranger stranger;
    uint8_t got[3][8];

    stranger_open(&stranger);
    for (unsigned i = 0; i < 3; i++)
        post_trecv(stranger.server.ep, got[i], sizeof got[i], 7, 0, i);
    send_header(&stranger, WITH_TAG, 5, 7, 0);
    send_raw(&stranger, (const uint8_t *)"bytes", 5);
    send_header(&stranger, WITH_TAG | WITH_DATA, 0, 7, UINT64_C(0x0123456789abcdef));
    send_header(&stranger, WITH_TAG, 8, 7, 0);
    (void)await_tagged(stranger.server.cq, 0, TAG_RECEIVED, 5, 7);
    CHECK_BYTES(got[0], "bytes", 5);
    entry = await_tagged(stranger.server.cq, 1, TAG_RECEIVED | FI_REMOTE_CQ_DATA, 0, 7);
    CHECK_INT(entry.data, UINT64_C(0x0123456789abcdef));
    drive_for(20);
    check_no_completion(stranger.server.cq);
    send_raw(&stranger, (const uint8_t *)"together", 8);
    (void)await_tagged(stranger.server.cq, 2, TAG_RECEIVED, 8, 7);
    CHECK_BYTES(got[2], "together", 8);
    stranger_close(&stranger);
}

/* Every other header ends its connection. */
static void strange_headers(void)
{
    enum { CHANGES = 8 };
    static const struct {
        uint8_t at, value;
    } changes[CHANGES] = {{0, 4}, {0, 0x81}, {1, 1}, {2, 1}, {3, 0x80}, {16, 1}, {23, 1}, {0, 0}};
    static const size_t lengths[] = {0, 1, HEADER - 1, HEADER + 1, 1000};

    for (unsigned i = 0; i < CHANGES + sizeof lengths / sizeof *lengths; i++) {
        size_t length = i < CHANGES ? HEADER : lengths[i - CHANGES];
        uint8_t bytes[1000] = {0}, got;
        struct stranger stranger;

        note("case %u", i);
        stranger_open(&stranger);
        post_trecv(stranger.server.ep, &got, 1, 7, 0, 1);
        make_header(bytes, WITH_TAG, 1, 7, 0);
        if (i < CHANGES)
            bytes[changes[i].at] = changes[i].value;
        send_raw(&stranger, bytes, length);
        check_refused(&stranger, FI_ECANCELED);
    }
}

/* So does a payload of another length than its header says, whether it has a receive or not. */
static void strange_payloads(void)
{
    static const size_t lengths[] = {0, 1, 9, 11, 1000};

    for (unsigned i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        uint8_t bytes[1000] = {0}, got[20];
        struct stranger stranger;
        bool is_posted = i % 2 == 0;

        note("case %u", i);
        stranger_open(&stranger);
        post_trecv(stranger.server.ep, got, sizeof got, 7, 0, 1);
        send_header(&stranger, WITH_TAG, 10, is_posted ? 7 : 8, 0);
        send_raw(&stranger, bytes, lengths[i / 2]);
        check_refused(&stranger, is_posted ? FI_EIO : FI_ECANCELED);
    }
}

/* A header may announce what never comes: it costs no memory, and no other message is taken for it. */
static void strange_announcements(void)
{
    struct stranger stranger;
    uint8_t got;

    stranger_open(&stranger);
    post_trecv(stranger.server.ep, &got, 1, 7, 0, 1);
    send_header(&stranger, WITH_TAG, UINT32_MAX, 9, 0);
    CHECK_INT(await_peek(&stranger.server, 9, 0, 0, 2).len, UINT32_MAX);
    close(stranger.fd);
    stranger.fd = -1;
    (void)await_failed(stranger.server.cq, 1, TAG_RECEIVED, FI_ECANCELED);
    CHECK(await_event(stranger.server.eq, FI_SHUTDOWN).fid == &stranger.server.ep->fid);
    side_close(&stranger.server);
    side_close(&stranger.listener);
}

/* Immediate data is of other endpoints: it ends the connection, whether its Send carries a header or a payload. */
static void strange_immediates(void)
{
    for (unsigned i = 0; i < 3; i++) {
        uint8_t header[HEADER], got[8];
        struct stranger stranger;

        note("case %u", i);
        stranger_open(&stranger);
        /* Of the other tag is what it takes. */
        post_trecv(stranger.server.ep, got, sizeof got, 7, 0, 1);
        make_header(header, WITH_TAG, 5, i == 1 ? 7 : 8, 0);
        if (i == 2)
            send_raw(&stranger, header, HEADER);
        wire_send_immediate(stranger.fd, ++stranger.number, UINT64_C(0x1122334455667788),
                            i == 2 ? (const uint8_t *)"bytes" : header, i == 2 ? 5 : HEADER);
        check_refused(&stranger, FI_ECANCELED);
    }
}

/* ---- before the events are read ------------------------------------------------------------ */

/* What the stranger does before the server makes any call: it may read the reply to its request, or not, which makes
 * its close a reset. */
enum { ANNOUNCES_AND_CLOSES, ANNOUNCES_AND_RESETS, IS_BAD };

static void be_early(struct stranger *stranger, unsigned what)
{
    uint8_t reply[128];

    memset(stranger, 0, sizeof *stranger);
    stranger->fd = message_stranger_early(&stranger->listener, &stranger->server, &tagged_settings);
    if (what != ANNOUNCES_AND_RESETS)
        CHECK_AT_LEAST(CHECK_SYS(read(stranger->fd, reply, sizeof reply)), 20);
    send_header(stranger, what == IS_BAD ? 0x80 : WITH_TAG, UINT32_MAX, 9, 0);
    if (what != IS_BAD) {
        CHECK_SYS(close(stranger->fd));
        stranger->fd = -1;
    }
    sleep_ms(20);
}

/* FI_CONNECTED and FI_SHUTDOWN are there once each, whichever queue is read first. */
static void check_early_end(struct stranger *stranger, bool completions_first, unsigned what)
{
    struct side *server = &stranger->server;
    struct fi_cq_tagged_entry entry;

    for (unsigned i = 0; completions_first && i < 20; i++) {
        CHECK_RET(fi_cq_read(server->cq, &entry, 1), -FI_EAGAIN);
        sleep_ms(1);
    }
    CHECK(await_event(server->eq, FI_CONNECTED).fid == &server->ep->fid);
    CHECK(await_event(server->eq, FI_SHUTDOWN).fid == &server->ep->fid);
    CHECK_INT(stats_of(server->ep).refused, what == IS_BAD);
    drive_for(50);
    check_no_event(server->eq);
    check_no_completion(server->cq);
    check_tagged_calls(server->ep, -FI_ENOTCONN);
    check_tagged_receives(server->ep, -FI_ENOTCONN);
    check_calls(server->ep, -FI_ENOTCONN);
    check_receives(server->ep, -FI_ENOTCONN);
    CHECK_RET(fi_trecv(server->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 0, ANY_TAG, NULL), -FI_ENOTCONN);
    stranger_close(stranger);
}

static void early_end(void)
{
    for (unsigned i = 0; i < 2 * IS_BAD; i++) {
        struct stranger stranger;

        note("case %u", i);
        be_early(&stranger, i / 2);
        check_early_end(&stranger, i % 2, i / 2);
    }
}

static void early_bad_header(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct stranger stranger;

        note("case %u", i);
        be_early(&stranger, IS_BAD);
        check_early_end(&stranger, i % 2, IS_BAD);
    }
}

/* ---- a reset behind a message that is held -------------------------------------------------- */

enum way { SREAD, DESCRIPTOR, COUNTER };

static struct fid_cntr *counter;

static void bind_counter(struct side *side)
{
    counter = message_counter(side, FI_WAIT_UNSPEC);
    CHECK_OK(fi_ep_bind(side->ep, &counter->fid, FI_RECV));
}

/* What a thread sleeps for, and when it has woken. */
struct victim {
    struct side *server;
    enum way way;
    int64_t woken;
};

/* Sleeps until the receive with context 1 fails. Nobody makes another call. */
static void *sleep_until_failure(void *argument)
{
    struct victim *victim = argument;
    struct fid *fids[1] = {&victim->server->cq->fid};
    struct fi_cq_err_entry error = {0};
    struct fi_cq_tagged_entry entry;
    ssize_t answer;

    if (victim->way == SREAD) {
        CHECK_RET(fi_cq_sread(victim->server->cq, &entry, 1, NULL, PATIENCE_MS), -FI_EAVAIL);
    } else if (victim->way == COUNTER) {
        CHECK_RET(fi_cntr_wait(counter, 1, PATIENCE_MS), -FI_EAVAIL);
        CHECK_INT(fi_cntr_readerr(counter), 1);
    } else {
        while ((answer = fi_cq_read(victim->server->cq, &entry, 1)) == -FI_EAGAIN)
            if (fi_trywait(victim->server->fabric, fids, 1) == 0)
                CHECK(readable(wait_fd(fids[0]), PATIENCE_MS));
        CHECK_RET(answer, -FI_EAVAIL);
    }
    victim->woken = now_ms();
    CHECK_RET(fi_cq_readerr(victim->server->cq, &error, 0), 1);
    CHECK_INT((uintptr_t)error.op_context, 1);
    CHECK_INT(error.flags, TAG_RECEIVED);
    CHECK_INT(error.err, FI_ECANCELED);
    CHECK_INT(error.tag, 7);
    return NULL;
}

static void reset_behind_held(enum way way)
{
    /* A reset takes effect after 2 s. */
    enum { LENGTH = 2 << 20, CAME = 1000, SOON_MS = 1000, LATE_MS = 4000 };
    const struct linger hard = {.l_onoff = 1, .l_linger = 0};
    struct message_settings settings = tagged_settings;
    struct victim victim = {.way = way};
    struct stranger stranger = {0};
    int64_t start, cpu;
    pthread_t thread;
    uint8_t got;

    settings.cq.wait_obj = FI_WAIT_FD;
    settings.prepare = bind_counter;
    stranger.fd = message_stranger(&stranger.listener, &stranger.server, &settings);
    victim.server = &stranger.server;
    post_trecv(stranger.server.ep, &got, 1, 7, 0, 1);
    send_header(&stranger, WITH_TAG, LENGTH, 8, 0);
    CHECK_INT(await_peek(&stranger.server, 8, 0, 0, 2).len, LENGTH);
    send_raw(&stranger, pattern(0, CAME), CAME);
    drive_for(20);
    CHECK_INT(stats_of(stranger.server.ep).stalls, 1);
    CHECK_OK(pthread_create(&thread, NULL, sleep_until_failure, &victim));
    sleep_ms(50);
    CHECK_SYS(setsockopt(stranger.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    cpu = cpu_ms();
    start = now_ms();
    CHECK_SYS(close(stranger.fd));
    stranger.fd = -1;
    CHECK_OK(pthread_join(thread, NULL));
    CHECK_BETWEEN(victim.woken - start, SOON_MS, LATE_MS);
    check_idle("a sleeper beside a message that is held, and a reset", cpu, victim.woken - start);
    CHECK(await_event(stranger.server.eq, FI_SHUTDOWN).fid == &stranger.server.ep->fid);
    drive_for(20);
    check_no_event(stranger.server.eq);
    check_no_completion(stranger.server.cq);
    close_fid(&stranger.server.ep->fid);
    stranger.server.ep = NULL;
    close_fid(&counter->fid);
    stranger_close(&stranger);
}

static void reset_wakes_reader(void)
{
    reset_behind_held(SREAD);
}

static void reset_wakes_descriptor(void)
{
    reset_behind_held(DESCRIPTOR);
}

static void reset_wakes_counter(void)
{
    reset_behind_held(COUNTER);
}

static const struct test tests[] = {
    TEST(stranger_understood, "a plain socket that sends headers and payloads as the document says"),
    TEST(strange_headers, "every other header ends its own connection; posted receives have FI_ECANCELED"),
    TEST(strange_payloads, "a payload of another length than its header says: FI_EIO, and the connection ends"),
    TEST(strange_announcements, "an announced message that never comes costs nothing, and the end is reported"),
    TEST(strange_immediates, "immediate data ends its own connection, beside a header or a payload"),
    TEST(early_end, "announced and ended before FI_CONNECTED is read: that, then FI_SHUTDOWN, then -FI_ENOTCONN"),
    TEST(early_bad_header, "no header, before FI_CONNECTED is read: the same, whichever queue is read first"),
    TEST(reset_wakes_reader, "a reset behind a held message: fi_cq_sread has FI_ECANCELED after two seconds"),
    TEST(reset_wakes_descriptor, "so has a sleeper on the descriptor"),
    TEST(reset_wakes_counter, "fi_cntr_wait ends with -FI_EAVAIL then"),
};

const struct section message_tag_strangers_section = SECTION("strangers with tags", tests);
