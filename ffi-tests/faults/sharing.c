/* A peer on the same host that shares memory and notifies late, always, never, or wrongly, or passes an
 * invalid segment. Nothing of this blocks or ends the other side, or wakes it permanently. */
#include "../sleeper.h"
#include "sharer.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Duration of a sleep without an event. */
#define SLEEP_US 30000
/* Longest duration of a call that does not wait. */
#define AT_ONCE_MS 500
/* More notifications than a socket holds. */
#define NOTIFICATIONS 100000

static struct sleeper total;

static void prepare(struct bystander *bystander)
{
    CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    CHECK_SYS(setenv("FI_RSTREAM_SHM", "1", 1));
    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    bystander_open(bystander);
}

static void finish(struct sharer *sharer, struct bystander *bystander)
{
    bystander_check(bystander);
    sharer_close(sharer);
    bystander_held(bystander);
    bystander_close(bystander);
    sleeper_check(&total);
}

/* Checks that every call of the endpoint returns at once, with the available bytes. */
static void calls_return(struct sharer *sharer)
{
    uint8_t bytes[64];
    int64_t start = now_ms();
    ssize_t got;

    do
        got = recv_once(sharer->victim.ep, bytes, sizeof bytes);
    while (got > 0);
    CHECK_RET(got, -FI_EAGAIN);
    CHECK_RET(send_once(sharer->victim.ep, "x", 1), 1);
    check_no_event(sharer->victim.eq);
    CHECK(!must_not_wait(&sharer->victim));
    CHECK_BETWEEN(now_ms() - start, 0, AT_ONCE_MS);
}

/* The writer pauses between the flag and the notification. Meanwhile the reader finds the message and
 * sleeps again. */
static void late_notifications(void)
{
    struct bystander bystander;
    struct sharer sharer;
    uint8_t bytes[8];

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 0));
    for (unsigned round = 0; round < 20; round++) {
        bool due;

        sharer_write(&sharer, sizeof bytes);
        due = sharer_must_notify(&sharer);
        CHECK(due);
        CHECK_RET(recv_once(sharer.victim.ep, bytes, sizeof bytes), sizeof bytes);
        CHECK_RET(recv_once(sharer.victim.ep, bytes, sizeof bytes), -FI_EAGAIN);
        CHECK(sharer_notify(&sharer));
        CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 1));
    }
    finish(&sharer, &bystander);
}

static void floods(void)
{
    struct bystander bystander;
    struct sharer sharer;
    unsigned count = 0;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    (void)wait_fd(&sharer.victim.ep->fid);
    while (count < NOTIFICATIONS && sharer_notify(&sharer))
        count++;
    CHECK_BETWEEN(count, 1, NOTIFICATIONS - 1);
    calls_return(&sharer);
    sharer_write(&sharer, 8);
    calls_return(&sharer);
    /* Each notification ends one sleep. */
    CHECK(sleep_idle(&(struct sleeper){0}, &sharer.victim, SLEEP_US, count));
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 0));
    finish(&sharer, &bystander);
    /* Not earlier: the first output takes memory. */
    printf("%u notifications are kept\n", count);
}

static void closes_the_notifier(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    (void)wait_fd(&sharer.victim.ep->fid);
    CHECK_SYS(close(sharer.notifier));
    sharer.notifier = -1;
    sharer_sleep(&sharer);
    calls_return(&sharer);
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 1));
    sharer_write(&sharer, 8);
    calls_return(&sharer);
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 0));
    finish(&sharer, &bystander);
}

static void never_listens(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    for (unsigned sent = 0; sent < 1500; sent++) {
        sharer_sleep(&sharer);
        calls_return(&sharer);
        sharer_read(&sharer, sent);
    }
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 0));
    finish(&sharer, &bystander);
}

static void wrong_files(void)
{
    static const char *const names[GIFTS] = {"segment",    "short segment", "unsealed memory", "huge pages", "pipe",
                                             "eventfd",    "file of /proc", "socket",          "nothing",    "three"};
    struct bystander bystander;

    prepare(&bystander);
    for (enum gift gift = SHORT_SEGMENT; gift < GIFTS; gift++) {
        struct sharer sharer;

        note("%s", names[gift]);
        CHECK(!sharer_open(&sharer, gift));
        calls_return(&sharer);
        CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 0));
        bystander_check(&bystander);
        sharer_close(&sharer);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
    sleeper_check(&total);
}

static void boundless_ring(void)
{
    struct bystander bystander;
    const uint32_t rings[] = {32768, UINT32_MAX, UINT32_C(1) << 31};

    prepare(&bystander);
    for (unsigned i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        struct meeting meeting;

        note("ring of %u bytes", rings[i]);
        meeting_listen(&meeting, NULL);
        CHECK_INT(sharer_name(&meeting, rings[i]), i == 0);
        meeting_close(&meeting);
        bystander_held(&bystander);
    }
    bystander_check(&bystander);
    bystander_close(&bystander);
}

/* ---- violations of the protocol ---------------------------------------------------------------- */

/* In a position: this side is done. */
#define DONE (UINT64_C(1) << 63)

static uint64_t refused(struct side *side)
{
    struct rstream_endpoint_ops *ops;
    struct rstream_stats stats = {0};

    CHECK_OK(fi_open_ops(&side->ep->fid, RSTREAM_ENDPOINT_OPS, 0, (void **)&ops, NULL));
    CHECK_OK(ops->stats(side->ep, &stats, sizeof stats));
    return stats.refused;
}

/* Checks that the connection has ended, and that this is counted once. */
static void check_refused(struct sharer *sharer)
{
    uint8_t bytes[64];

    AWAIT(SOON_MS, recv_once(sharer->victim.ep, bytes, sizeof bytes) == -FI_ECONNRESET);
    for (unsigned i = 0; i < 100; i++) {
        CHECK_RET(recv_once(sharer->victim.ep, bytes, sizeof bytes), -FI_ECONNRESET);
        CHECK_RET(send_once(sharer->victim.ep, "x", 1), -FI_ECONNRESET);
    }
    CHECK_INT(refused(&sharer->victim), 1);
    CHECK(await_event(sharer->victim.eq, FI_SHUTDOWN).fid == &sharer->victim.ep->fid);
    check_no_event(sharer->victim.eq);
}

static void received(struct sharer *sharer, size_t length)
{
    uint8_t bytes[64];

    CHECK_RET(recv_wait(sharer->victim.ep, bytes, sizeof bytes), length);
    CHECK_BYTES(bytes, pattern(0, length), length);
}

static void wake(struct sharer *sharer)
{
    if (sharer_must_notify(sharer))
        CHECK(sharer_notify(sharer));
}

static void data_behind_the_move(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    (void)wait_fd(&sharer.victim.ep->fid);
    sharer_send(&sharer, 4);
    received(&sharer, 4);
    sharer_set_base(&sharer, 4);
    sharer_write(&sharer, 8);
    wake(&sharer);
    received(&sharer, 8);
    CHECK_RET(recv_once(sharer.victim.ep, &(uint8_t){0}, 1), -FI_EAGAIN);
    sharer_send(&sharer, 4);
    CHECK(readable(wait_fd(&sharer.victim.ep->fid), SOON_MS));
    check_refused(&sharer);
    finish(&sharer, &bystander);
}

/* The ring begins after bytes that never come. Nothing of it is received. */
static void base_ahead(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    (void)wait_fd(&sharer.victim.ep->fid);
    sharer_set_base(&sharer, 1000);
    sharer_write(&sharer, 8);
    wake(&sharer);
    calls_return(&sharer);
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 1));
    sharer_send(&sharer, 4);
    received(&sharer, 4);
    calls_return(&sharer);
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 1));
    CHECK_INT(refused(&sharer.victim), 0);
    /* Now they cannot come any more. */
    sharer_end(&sharer);
    check_refused(&sharer);
    finish(&sharer, &bystander);
}

static void base_behind(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    sharer_send(&sharer, 4);
    received(&sharer, 4);
    sharer_set_base(&sharer, 3);
    sharer_write(&sharer, 8);
    check_refused(&sharer);
    finish(&sharer, &bystander);
}

static void written_too_much(struct sharer *sharer)
{
    sharer_set_written(sharer, sharer->bytes + sharer->victims_ring + 1);
}

static void written_less(struct sharer *sharer)
{
    sharer_set_written(sharer, sharer->bytes - 1);
}

static void read_too_much(struct sharer *sharer)
{
    sharer_read(sharer, UINT64_C(1) << 40);
    while (send_once(sharer->victim.ep, pattern(0, sharer->ring), sharer->ring) > 0)
        ;
}

static void reads_no_more(struct sharer *sharer)
{
    sharer_read(sharer, DONE);
    while (send_once(sharer->victim.ep, pattern(0, sharer->ring), sharer->ring) > 0)
        ;
}

static void impossible_positions(void)
{
    static const struct {
        const char *name;
        void (*act)(struct sharer *sharer);
    } acts[] = {
        {"more written than the ring holds", written_too_much},
        {"less written than before", written_less},
        {"more read than was written", read_too_much},
        {"no more is read, but the stream has not ended", reads_no_more},
    };
    struct bystander bystander;

    prepare(&bystander);
    for (unsigned i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        struct sharer sharer;

        note("%s", acts[i].name);
        CHECK(sharer_open(&sharer, SEGMENT));
        sharer_write(&sharer, 8);
        received(&sharer, 8);
        acts[i].act(&sharer);
        check_refused(&sharer);
        bystander_check(&bystander);
        sharer_close(&sharer);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
}

/* The end of a stream goes through the queue pair. */
static void done_without_end(void)
{
    struct bystander bystander;
    struct sharer sharer;

    prepare(&bystander);
    CHECK(sharer_open(&sharer, SEGMENT));
    (void)wait_fd(&sharer.victim.ep->fid);
    sharer_write(&sharer, 8);
    sharer_set_written(&sharer, sharer.bytes | DONE);
    wake(&sharer);
    received(&sharer, 8);
    calls_return(&sharer);
    CHECK(sleep_idle(&total, &sharer.victim, SLEEP_US, 1));
    sharer_end(&sharer);
    AWAIT(SOON_MS, recv_once(sharer.victim.ep, &(uint8_t){0}, 1) == 0);
    finish(&sharer, &bystander);
}

static const struct test tests[] = {
    TEST(late_notifications, "notifications that come late: each ends one sleep"),
    TEST(floods, "a flood of notifications: each that is kept ends one sleep"),
    TEST(closes_the_notifier, "a notifier that the peer closes wakes nobody"),
    TEST(never_listens, "a peer that takes no notification holds nobody"),
    TEST(wrong_files, "what is no segment is not shared, and the connection goes on without"),
    TEST(boundless_ring, "a peer whose ring is beyond any bound gets no segment"),
    TEST(data_behind_the_move, "data on the queue pair after the move ends the connection"),
    TEST(base_ahead, "a ring that begins after bytes that do not come is not read; an end before is a breach"),
    TEST(base_behind, "a ring that begins before what was received ends the connection"),
    TEST(impossible_positions, "a position that cannot be ends the connection, and is counted once"),
    TEST(done_without_end, "a writer that says in memory that it is done has not ended the stream"),
};

const struct section shared_section = SECTION("shared memory", tests);
