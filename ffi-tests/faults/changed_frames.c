/* A peer of message endpoints whose frames are correct but for a few bits of their headers. Whatever they mean then,
 * they concern their connection alone. */
#include "beside.h"

#include <unistd.h>

/* Frames of a connection, and receives for messages among them, of different lengths. */
enum { FRAMES = 12, RECEIVES = 8, RECEIVE_STEP = 40, ROOM = RECEIVES * RECEIVE_STEP };
/* Bytes of a frame in which its headers are, and how many bits of them change at most. */
enum { HEADERS = 2 + 18 + 28, CHANGES = 3 };
enum { SEEDS = 500 };

struct changes {
    struct beside beside;
    struct raw raw;
    /* Connections that ended, and what was received on all. */
    unsigned ended, received;
};

/* ---- frames --------------------------------------------------------------------------------- */

static void put_any(struct raw *raw, struct dice *dice, uint32_t *reads)
{
    uint32_t length = (uint32_t)throw_below(dice, 100), word = (uint32_t)throw_below(dice, 2);
    struct untagged header = {DDP_UNTAGGED, RDMAP | WIRE_SEND, word, 0, raw->sequence, 0};

    switch (throw_below(dice, 5)) {
    case 0:
        put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_OPEN, throw_below(dice, OPEN - 100), length);
        break;
    case 1:
        put_read(raw, ++*reads, KEY_OPEN, throw_below(dice, OPEN - 100), length);
        break;
    case 2:
        header.rdmap = RDMAP | WIRE_IMMEDIATE;
        put_segment(raw, &header, "12345678", 8);
        raw->sequence++;
        break;
    case 3:
        header.ddp = DDP_UNTAGGED_PART;
        put_segment(raw, &header, pattern(0, 20), 20);
        header.ddp = DDP_UNTAGGED;
        header.offset = 20;
        put_segment(raw, &header, pattern(20, length), length);
        raw->sequence++;
        break;
    default:
        put_segment(raw, &header, pattern(0, 8 + length), 8 + length);
        raw->sequence++;
    }
}

/* Appends frames, in one of which a few bits change. */
static void put_changed(struct raw *raw, struct dice *dice)
{
    unsigned changed = (unsigned)throw_below(dice, FRAMES);
    uint32_t reads = 0;

    for (unsigned i = 0; i < FRAMES; i++) {
        size_t start = raw->length;

        put_any(raw, dice, &reads);
        for (uint64_t left = i == changed ? 1 + throw_below(dice, CHANGES) : 0; left > 0; left--) {
            size_t most = raw->length - start < HEADERS ? raw->length - start : HEADERS;

            raw->out[start + throw_below(dice, most)] ^= (uint8_t)(1 << throw_below(dice, 8));
        }
    }
}

/* ---- the endpoint --------------------------------------------------------------------------- */

/* Takes the entries of receives, each of which ends at most once, and those of writes with data. */
static unsigned take_entries(struct fid_cq *cq, unsigned *left)
{
    struct fi_cq_data_entry entry;
    unsigned received = 0;
    ssize_t got;

    while ((got = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN) {
        struct fi_cq_err_entry error = {0};

        if (got == -FI_EAVAIL) {
            CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
            CHECK(error.err == FI_ECANCELED || error.err == FI_ETRUNC);
            entry.op_context = error.op_context;
        } else if (entry.flags == REMOTE_WRITTEN) {
            continue;
        }
        CHECK((uintptr_t)entry.op_context < RECEIVES && (*left & 1U << (uintptr_t)entry.op_context));
        *left &= ~(1U << (uintptr_t)entry.op_context);
        received += got == 1;
    }
    return received;
}

static void change_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct changes *changes = argument;
    struct beside *beside = &changes->beside;
    struct fid_ep *receives;
    uint8_t got[ROOM + 1];
    unsigned left = (1U << RECEIVES) - 1;
    struct event event;

    (void)seed;
    memset(got, UNTOUCHED, sizeof got);
    beside_connect(beside, &changes->raw);
    receives = beside->shared ? beside->shared : beside->attacked;
    for (unsigned i = 0; i < RECEIVES; i++)
        post_recv(receives, got + i * RECEIVE_STEP, RECEIVE_STEP, i);
    put_changed(&changes->raw, dice);
    raw_flush(&changes->raw);
    for (unsigned i = 0; i < 5; i++) {
        drive();
        changes->received += take_entries(beside->listener.cq, &left);
    }
    if (read_event(beside->listener.eq, &event)) {
        CHECK_INT(event.kind, FI_SHUTDOWN);
        CHECK(event.fid == &beside->attacked->fid);
        changes->ended++;
    }
    close_fid(&beside->attacked->fid);
    beside_take_rest(&changes->raw);
    CHECK_SYS(close(changes->raw.fd));
    changes->received += take_entries(beside->listener.cq, &left);
    /* Shared receives that nothing took are there, the others were cancelled. */
    for (unsigned i = 0; i < RECEIVES; i++)
        if (beside->shared && (left & 1U << i))
            CHECK_OK(fi_cancel(&beside->shared->fid, CONTEXT(i)));
    CHECK(beside->shared || left == 0);
    CHECK_INT(got[ROOM], UNTOUCHED);
    beside_exchange(beside);
    beside_check_memory(beside);
    check_no_completion(beside->listener.cq);
    check_no_event(beside->listener.eq);
    still_moving();
}

static void changed_frames(void)
{
    static struct changes changes;

    for (unsigned shares = 0; shares < 2; shares++) {
        beside_open(&changes.beside, shares);
        each_seed(SEEDS, change_seed, &changes);
        beside_close(&changes.beside);
    }
    printf("%u of %d connections ended; %u messages received\n", changes.ended, 2 * SEEDS, changes.received);
}

static const struct test tests[] = {
    TEST(changed_frames, "messages: frames with a few changed bits concern their connection alone"),
};

const struct section changed_frames_section = SECTION("changed frames", tests);
