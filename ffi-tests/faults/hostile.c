/* A peer that makes a correct handshake and then violates the protocol. */
#include "raw.h"

#include <stdlib.h>
#include <unistd.h>

static const struct grant usual = {.ring = 32768, .receives = 4};

/* ---- violations ---------------------------------------------------------------------------- */

static void wrong_stag(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag ^ 0x10, raw->address, 8);
}

static void no_stag(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, 0, raw->address, 8);
}

static void over_the_end(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag, raw->address + raw->ring - 1, 2);
}

static void before_the_start(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag, raw->address - 1, 2);
}

static void wraps(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag, UINT64_MAX, 2);
}

static void larger_than_ring(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, raw->stag, raw->address, 60000);
}

static void reads_the_ring(struct raw *raw)
{
    put_read(raw, 1, raw->stag, 0, 16);
}

static void announces_nothing(struct raw *raw)
{
    put_word(raw, 0x80000000);
}

static void announces_too_much(struct raw *raw)
{
    put_word(raw, 0x80000000 | (raw->ring + 1));
}

static void frees_too_much(struct raw *raw)
{
    put_word(raw, 1);
}

static void returns_too_much(struct raw *raw)
{
    put_word(raw, 511 << 20);
}

static void says_zero(struct raw *raw)
{
    put_word(raw, 0);
}

static void unknown_bits(struct raw *raw)
{
    put_word(raw, 1 << 30);
}

static void short_word(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_SEND, 0, raw->sequence, "abc", 3);
}

static void long_word(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_SEND, 0, raw->sequence, pattern(0, 5000), 5000);
}

static void immediate(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_IMMEDIATE, 0, raw->sequence, "12345678", 8);
}

static void sequence_gap(struct raw *raw)
{
    raw->sequence += 7;
    put_word(raw, 0x80000000 | 1);
}

static void unknown_queue(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_SEND, 77, raw->sequence, "1234", 4);
}

static void unknown_opcode(struct raw *raw)
{
    put_untagged(raw, RDMAP | 15, 0, raw->sequence, "1234", 4);
}

static void wrong_versions(struct raw *raw)
{
    put_tagged(raw, 0xc2, 0x80, raw->stag, raw->address, 8);
}

static void more_than_receives(struct raw *raw)
{
    /* The endpoint returns receives while it may send words, and this peer returns none for these words. */
    for (unsigned i = 0; i < 2000; i++)
        put_data(raw, 1);
}

static void terminates(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_TERMINATE, 2, 1, "\x10\x00\x00\x00", 4);
}

static void text(struct raw *raw)
{
    put_bytes(raw, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 36);
}

static const struct {
    const char *name;
    void (*act)(struct raw *raw);
} acts[] = {
    {"write with an STag that names nothing", wrong_stag},
    {"write with STag 0", no_stag},
    {"write over the ring's end", over_the_end},
    {"write before its start", before_the_start},
    {"write whose end exceeds 64 bits", wraps},
    {"write longer than the ring", larger_than_ring},
    {"read of the ring", reads_the_ring},
    {"data of length 0", announces_nothing},
    {"data beyond the window", announces_too_much},
    {"more bytes freed than are outstanding", frees_too_much},
    {"more receives returned than are outstanding", returns_too_much},
    {"a control word of 0", says_zero},
    {"bits that mean nothing", unknown_bits},
    {"a send of 3 bytes", short_word},
    {"a send longer than a receive", long_word},
    {"immediate data that was not agreed on", immediate},
    {"a gap in the sequence", sequence_gap},
    {"a queue that there is not", unknown_queue},
    {"an opcode that there is not", unknown_opcode},
    {"wrong versions", wrong_versions},
    {"more messages than receives", more_than_receives},
    {"a Terminate", terminates},
    {"text", text},
};

/* Checks that after a violation of `raw` the server's endpoint returns the bytes before it and then the
 * reset, and that `raw` gets the end of the connection. */
static void check_ended(struct meeting *meeting, struct raw *raw, size_t before)
{
    uint8_t rest[4096];
    ssize_t got = -FI_EAGAIN;

    recv_pattern(meeting->server.ep, 0, before);
    /* Valid bytes may have followed them. */
    do
        AWAIT(SOON_MS, (got = recv_once(meeting->server.ep, rest, sizeof rest)) != -FI_EAGAIN);
    while (got > 0);
    CHECK_RET(got, -FI_ECONNRESET);
    CHECK_RET(send_once(meeting->server.ep, "x", 1), -FI_ECONNRESET);
    CHECK_AT_LEAST(tcp_read_to_end(raw->fd, rest, sizeof rest, SOON_MS), 0);
}

static void breaches(void)
{
    static struct raw raw;
    struct bystander bystander;
    struct meeting meeting;

    bystander_open(&bystander);
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        note("%s", acts[i].name);
        meeting_listen(&meeting, NULL);
        raw_connect(&raw, &meeting, &usual);
        put_data(&raw, 100);
        raw_flush(&raw);
        acts[i].act(&raw);
        raw_flush(&raw);
        check_ended(&meeting, &raw, 100);
        close(raw.fd);
        meeting_close(&meeting);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
}

static void garbage_seed(struct dice *dice, uint64_t seed, void *argument)
{
    static struct raw raw;
    struct meeting meeting;
    size_t count = 1 + throw_below(dice, 3000);

    (void)seed;
    meeting_listen(&meeting, NULL);
    raw_connect(&raw, &meeting, &usual);
    put_data(&raw, 100);
    for (size_t i = 0; i < count; i++)
        put(&raw, throw_below(dice, 256), 1);
    raw_flush(&raw);
    /* The length field of the garbage may announce more bytes than there are. Then the end of the input is
     * the violation. */
    shutdown(raw.fd, SHUT_WR);
    check_ended(&meeting, &raw, 100);
    close(raw.fd);
    meeting_close(&meeting);
    bystander_held(argument);
}

static void garbage(void)
{
    struct bystander bystander;

    bystander_open(&bystander);
    each_seed(100, garbage_seed, &bystander);
    bystander_close(&bystander);
}

/* A peer that grants much room and never reads: closing frees the bytes that wait for it. */
static void never_reads_with(uint32_t ring, size_t most_heap)
{
    static struct raw raw;
    const struct settings settings = {.send_ring = ring};
    struct bystander bystander;
    struct meeting meeting;
    size_t sent = 0, heap;
    int64_t start, cpu;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "200", 1));
    bystander_open(&bystander);
    raw_connect_greedy(&raw, &meeting, &settings);
    sent = fill(meeting.server.ep, 0);
    heap = heap_in_use();
    CHECK_BETWEEN(sent, 1, ring);
    CHECK_BETWEEN(heap, 0, bystander.heap + most_heap);
    /* A thread that waits for room sleeps. */
    cpu = cpu_ms();
    CHECK(!readable(wait_fd(&meeting.server.ep->fid), 500));
    CHECK_RET(send_once(meeting.server.ep, "x", 1), -FI_EAGAIN);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, 50);
    start = now_ms();
    side_close(&meeting.server);
    CHECK_BETWEEN(now_ms() - start, 0, 200 + SOON_MS);
    printf("%zu bytes taken, %zu KiB kept; closed in %lld ms\n", sent, (heap - bystander.heap) / 1024,
           (long long)(now_ms() - start));
    close(raw.fd);
    meeting_close(&meeting);
    bystander_held(&bystander);
    bystander_close(&bystander);
}

static void never_reads(void)
{
    never_reads_with(32768, 200000);
}

static void never_reads_much(void)
{
    never_reads_with(64 << 20, 200000 + 2 * (64 << 20));
}

static const struct test tests[] = {
    TEST(breaches, "each breach of the protocol: what came before it, then -FI_ECONNRESET"),
    TEST(garbage, "garbage after the handshake: the same"),
    TEST(never_reads, "a peer that never reads: -FI_EAGAIN and sleep, and fi_close takes its linger time"),
    TEST(never_reads_much, "the same with a ring of 64 MiB: what is kept for it is bounded by the ring"),
};

const struct section hostile_section = SECTION("hostile", tests);
