/* A peer of message endpoints that sends garbage, or a part of a frame. */
#include "attack.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- garbage -------------------------------------------------------------------------------- */

static void garbage_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct attack *attack = argument;
    size_t count = 1 + throw_below(dice, 3000);

    (void)seed;
    attack_begin(attack);
    for (size_t i = 0; i < count; i++)
        put(&attack->raw, throw_below(dice, 256), 1);
    raw_flush(&attack->raw);
    /* Garbage may announce more bytes than there are. Then the end of the input is the violation. */
    shutdown(attack->raw.fd, SHUT_WR);
    attack_ended(attack, ANY_END);
    attack_over(attack);
}

static void garbage(struct attack *attack)
{
    each_seed(100, garbage_seed, attack);
}

static void message_garbage(void)
{
    attack_each_way(false, garbage);
}

/* ---- parts ---------------------------------------------------------------------------------- */

/* Correct frames: a message with data, a write, a read request, a response. */
enum { FRAMES = 4 };

static void put_frame(struct attack *attack, unsigned frame)
{
    struct raw *raw = &attack->raw;
    struct untagged *header = LAST_OF(raw, (uint32_t)attack_begun(attack));

    header->word = WORD_WITH_DATA;
    if (frame == 0)
        put_segment(raw, header, pattern(0, 20), 20);
    else if (frame == 1)
        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_OPEN, 0, 10);
    else if (frame == 2)
        put_read(raw, 1, KEY_OPEN, 0, 10);
    else
        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_READ_RESPONSE, raw->stag, raw->address, READ_LENGTH);
}

/* Connects, and sends the first `count` bytes of a frame. Returns whether it has more than one further byte. */
static bool send_part(struct attack *attack, unsigned frame, size_t count)
{
    bool has_more;

    note("frame %u, %zu bytes", frame, count);
    attack_begin(attack);
    put_frame(attack, frame);
    has_more = attack->raw.length > count + 1;
    attack->raw.length = count;
    raw_flush(&attack->raw);
    return has_more;
}

static void cuts(struct attack *attack)
{
    for (unsigned frame = 0; frame < FRAMES; frame++) {
        bool has_more = true;

        for (size_t count = 1; has_more; count++) {
            has_more = send_part(attack, frame, count);
            shutdown(attack->raw.fd, SHUT_WR);
            attack_ended(attack, FI_ECONNRESET);
            attack_over(attack);
        }
    }
}

static void cut_frames(void)
{
    attack_each_way(false, cuts);
}

/* The peer sends nothing more: the endpoint waits, and can be closed. */
static void silences(struct attack *attack)
{
    static const size_t counts[] = {1, 2, 19, 25, 30};

    for (unsigned frame = 0; frame < FRAMES; frame++) {
        for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            (void)send_part(attack, frame, counts[i]);
            beside_rest(&attack->beside);
            beside_exchange(&attack->beside);
            attack_closed(attack);
            attack_over(attack);
        }
    }
}

static void silent_frames(void)
{
    attack_each_way(false, silences);
}

/* ---- checksums ------------------------------------------------------------------------------ */

/* The application asks for CRC32c, and the peer has none in its frames: nothing of them is placed or answered. */
static void wrong_crc_on(struct beside *beside, unsigned kind)
{
    static struct raw raw;
    struct fid_ep *receives;
    uint8_t got[100] = {0};

    beside_connect(beside, &raw);
    receives = beside->shared ? beside->shared : beside->attacked;
    post_recv(receives, got, sizeof got, 1);
    if (kind == 0)
        put_message(&raw, sizeof got);
    else if (kind == 1)
        put_tagged(&raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_OPEN, 0, sizeof got);
    else
        put_read(&raw, 1, KEY_OPEN, 0, sizeof got);
    raw_flush(&raw);
    CHECK(await_event(beside->listener.eq, FI_SHUTDOWN).fid == &beside->attacked->fid);
    if (beside->shared)
        CHECK_OK(fi_cancel(&beside->shared->fid, CONTEXT(1)));
    else
        (void)await_failed(beside->listener.cq, 1, RECEIVED, FI_ECANCELED);
    for (unsigned i = 0; i < sizeof got; i++)
        CHECK_INT(got[i] + beside->memory->open[i], 0);
    close_fid(&beside->attacked->fid);
    beside_take_rest(&raw);
    CHECK_SYS(close(raw.fd));
    beside_exchange(beside);
    beside_check_memory(beside);
}

static void wrong_crc(void)
{
    struct beside beside;

    CHECK_SYS(setenv("FI_RSTREAM_IWARP_CRC", "1", 1));
    for (unsigned i = 0; i < 6; i++) {
        beside_open(&beside, i / 3);
        wrong_crc_on(&beside, i % 3);
        beside_close(&beside);
    }
}

/* ---- what is no breach ---------------------------------------------------------------------- */

/* Empty frames, and a write and a read of no bytes. */
static void harmless(struct attack *attack)
{
    struct beside *beside = &attack->beside;
    struct raw *raw = &attack->raw;

    attack_begin(attack);
    put_bytes(raw, "\0\0\0\0\0\0\0\0", 8);
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_NONE, UINT64_MAX, 0);
    put_read(raw, 1, KEY_NONE, UINT64_MAX, 0);
    raw_flush(raw);
    beside_rest(beside);
    beside_exchange(beside);
    attack_closed(attack);
    attack_over(attack);
}

static void harmless_frames(void)
{
    attack_each_way(false, harmless);
}

static const struct test tests[] = {
    TEST(message_garbage, "messages: garbage ends its connection, and touches nothing else"),
    TEST(cut_frames, "messages: an end behind each byte of a frame: the same"),
    TEST(silent_frames, "messages: silence behind a part of a frame: the endpoint waits, and closes at once"),
    TEST(wrong_crc, "messages: frames without the CRC32c that was asked for: nothing of them is placed or answered"),
    TEST(harmless_frames, "messages: empty frames, and accesses of no bytes by a key of nothing, change nothing"),
};

const struct section broken_frames_section = SECTION("broken frames", tests);
