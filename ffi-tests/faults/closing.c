/* Closing many endpoints whose peers delay the end. */
#include "raw.h"

#include <stdlib.h>
#include <unistd.h>

#define LINGER_MS 1000
#define PEERS 20

/* A peer that grants the smallest possible room, and returns none. */
static const struct grant stingy = {.ring = 32768, .receives = 3, .endings = true};

struct stuck {
    struct meeting meeting;
    int fd;
};

/* Opens a connection on which two messages use all of the peer's receives that data may use. With
 * `exhausted` an update uses the last one. */
static void stuck_open(struct stuck *stuck, bool exhausted)
{
    static struct raw raw;
    const size_t half = 16384;

    meeting_listen(&stuck->meeting, NULL);
    raw_connect(&raw, &stuck->meeting, &stingy);
    stuck->fd = raw.fd;
    /* The active side sends first. An empty write uses no receive. */
    put_tagged(&raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw.stag, raw.address, 0);
    raw_flush(&raw);
    send_all(stuck->meeting.server.ep, "a", 1);
    send_all(stuck->meeting.server.ep, "b", 1);
    CHECK_RET(send_once(stuck->meeting.server.ep, "c", 1), -FI_EAGAIN);
    if (!exhausted)
        return;
    put_data(&raw, half);
    raw_flush(&raw);
    recv_pattern(stuck->meeting.server.ep, 0, half);
}

/* Reads both bytes and an orderly end, not a reset. Returns the last word. */
static uint32_t stuck_read(struct stuck *stuck)
{
    uint8_t got[4096];
    size_t length = 0;
    ssize_t part;

    while ((part = CHECK_SYS(recv(stuck->fd, got + length, sizeof got - length, 0))) > 0)
        length += (size_t)part;
    CHECK_AT_LEAST(length, 8);
    CHECK(memmem(got, length, "a", 1) != NULL && memmem(got, length, "b", 1) != NULL);
    /* The word before the CRC, least significant byte first. */
    return (uint32_t)got[length - 8] | (uint32_t)got[length - 7] << 8 | (uint32_t)got[length - 6] << 16
        | (uint32_t)got[length - 5] << 24;
}

static void stuck_close(struct stuck *stuck)
{
    CHECK_SYS(close(stuck->fd));
    meeting_close(&stuck->meeting);
}

/* Closes the endpoints one after the other. Returns how long that took. */
static int64_t close_all(struct stuck *stuck, unsigned count)
{
    int64_t start = now_ms();

    for (unsigned i = 0; i < count; i++)
        side_close(&stuck[i].meeting.server);
    return now_ms() - start;
}

static void last_receive(void)
{
    struct bystander bystander;
    struct stuck stuck[3];
    int64_t took;

    bystander_open(&bystander);
    for (unsigned i = 0; i < 3; i++)
        stuck_open(&stuck[i], false);
    for (unsigned i = 0; i < 3; i++)
        CHECK_OK(fi_shutdown(stuck[i].meeting.server.ep, 0));
    took = close_all(stuck, 3);
    printf("3 endpoints closed in %lld ms\n", (long long)took);
    CHECK_BETWEEN(took, 0, SOON_MS);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(stuck_read(&stuck[i]) & WORD_CLOSE);
        stuck_close(&stuck[i]);
    }
    bystander_held(&bystander);
    bystander_close(&bystander);
}

/* Closes as many endpoints as there are peers that leave no receive for the end, after fi_shutdown or
 * without it. */
static void in_a_row(bool shut_first, int64_t most_ms)
{
    static struct stuck stuck[PEERS];
    struct bystander bystander;
    int64_t took, start;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "1000", 1));
    bystander_open(&bystander);
    for (unsigned i = 0; i < PEERS; i++)
        stuck_open(&stuck[i], true);
    start = now_ms();
    for (unsigned i = 0; shut_first && i < PEERS; i++)
        CHECK_OK(fi_shutdown(stuck[i].meeting.server.ep, 0));
    took = now_ms() - start + close_all(stuck, PEERS);
    printf("%d endpoints closed in %lld ms, %d ms each at most\n", PEERS, (long long)took, LINGER_MS);
    CHECK_BETWEEN(took, LINGER_MS, most_ms);
    for (unsigned i = 0; i < PEERS; i++) {
        CHECK(!(stuck_read(&stuck[i]) & WORD_CLOSE));
        stuck_close(&stuck[i]);
    }
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static void after_shutdown(void)
{
    in_a_row(true, LINGER_MS + SOON_MS / 2);
}

static void one_after_the_other(void)
{
    in_a_row(false, 2 * LINGER_MS + SOON_MS);
}

static const struct test tests[] = {
    TEST(last_receive, "a peer that has one receive left is told of the end at once"),
    TEST(after_shutdown, "the linger time of a close counts from fi_shutdown"),
    TEST(one_after_the_other, "closes in a row share one linger time; each peer reads every byte and an orderly end"),
};

const struct section closing_section = SECTION("closing", tests);
