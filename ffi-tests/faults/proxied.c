/* Connections through the proxy: bytes that arrive in pieces of any size, or changed, or not at all. */
#include "proxy.h"

#include <stdlib.h>

/* More than two rings of the default size, so that the windows close and open again. */
#define BYTES 150000
/* The longest frame of a handshake, and some bytes of the stream after it. */
#define HANDSHAKE 80
/* If nothing has moved for this long, the stream is stuck. */
#define STUCK_MS 150
#define NEVER_STUCK_MS 5000

static const struct settings protocols[] = {{.protocol = FI_PROTO_RSTREAM}, {.protocol = FI_PROTO_IWARP}};

/* The outcomes of the runs of a test. */
struct tally {
    unsigned complete, broken, refused, stuck;
    int64_t slowest_ms;
};

struct course {
    struct proxy proxy;
    struct bystander bystander;
    struct tally tally;
    /* The stream may become stuck. */
    bool sticky;
    /* Wrong bytes and any kind of end are expected. */
    bool unchecked;
};

static void course_start(struct course *course, bool crc)
{
    memset(course, 0, sizeof *course);
    CHECK_SYS(setenv("FI_RSTREAM_IWARP_CRC", crc ? "1" : "0", 1));
    CHECK_SYS(setenv("FI_RSTREAM_CONNECT_TIMEOUT_MS", "1000", 1));
    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "100", 1));
    proxy_start(&course->proxy);
    bystander_open(&course->bystander);
}

static void course_end(struct course *course)
{
    const struct tally *tally = &course->tally;

    printf("%u complete, %u broken, %u not connected, %u stuck; the slowest took %lld ms\n", tally->complete,
           tally->broken, tally->refused, tally->stuck, (long long)tally->slowest_ms);
    bystander_close(&course->bystander);
    proxy_end(&course->proxy);
}

/* Runs one connection of `total` bytes in each direction under `plan`. */
static void pass(struct course *course, struct plan *plan, const struct settings *settings, uint64_t total)
{
    struct meeting meeting;
    struct end client, server;
    uint64_t passed[2];
    int64_t start = now_ms();

    meeting_listen(&meeting, settings);
    plan->port = fid_port(&meeting.listener.pep->fid);
    proxy_expect(&course->proxy, plan);
    if (!meeting_connect(&meeting, course->proxy.port, settings)) {
        course->tally.refused++;
    } else {
        end_start(&client, meeting.client.ep, total);
        end_start(&server, meeting.server.ep, total);
        client.unchecked = server.unchecked = course->unchecked;
        if (!exchange(&client, &server, course->sticky ? STUCK_MS : NEVER_STUCK_MS))
            course->tally.stuck++;
        else if (client.recv_end == 0 && server.recv_end == 0)
            course->tally.complete++;
        else
            course->tally.broken++;
        if (!course->unchecked) {
            end_judge(&client, &server);
            end_judge(&server, &client);
        }
    }
    meeting_close(&meeting);
    if (now_ms() - start > course->tally.slowest_ms)
        course->tally.slowest_ms = now_ms() - start;
    CHECK_BETWEEN(now_ms() - start, 0, 1000 + 3 * SOON_MS);
    proxy_passed(&course->proxy, passed);
    bystander_held(&course->bystander);
}

/* ---- pieces of any size ------------------------------------------------------------------- */

static void every_byte_alone_with(bool crc)
{
    struct course course;

    course_start(&course, crc);
    for (unsigned i = 0; i < 2; i++)
        pass(&course, &(struct plan){.delivery = DELIVER_SINGLE}, &protocols[i], 20000);
    CHECK_INT(course.tally.complete, 2);
    course_end(&course);
}

static void every_byte_alone(void)
{
    every_byte_alone_with(false);
}

static void every_byte_alone_crc(void)
{
    every_byte_alone_with(true);
}

static void any_pieces_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct plan plan = {.delivery = DELIVER_PIECES, .seed = seed};

    pass(argument, &plan, &protocols[throw_below(dice, 2)], BYTES);
}

static void any_pieces(void)
{
    struct course course;

    course_start(&course, true);
    each_seed(20, any_pieces_seed, &course);
    CHECK_INT(course.tally.broken + course.tally.refused + course.tally.stuck, 0);
    course_end(&course);
}

/* ---- cuts --------------------------------------------------------------------------------- */

static void cut_handshake(enum fault fault)
{
    struct course course;

    course_start(&course, false);
    for (unsigned direction = 0; direction < 2; direction++) {
        for (uint64_t offset = 0; offset < HANDSHAKE; offset++) {
            struct plan plan = {.fault = fault, .direction = direction, .offset = offset};

            note("direction %u, offset %u", direction, (unsigned)offset);
            pass(&course, &plan, NULL, 1000);
        }
    }
    CHECK_INT(course.tally.complete + course.tally.stuck, 0);
    CHECK_AT_LEAST(course.tally.refused, 100);
    course_end(&course);
}

static void reset_in_handshake(void)
{
    cut_handshake(FAULT_RESET);
}

static void end_in_handshake(void)
{
    cut_handshake(FAULT_END);
}

static void cut_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct plan plan = {
        .fault = throw_below(dice, 2) ? FAULT_RESET : FAULT_END,
        .delivery = throw_below(dice, 2) ? DELIVER_PIECES : DELIVER_WHOLE,
        .direction = (unsigned)throw_below(dice, 2),
        .offset = HANDSHAKE + throw_below(dice, BYTES),
        .seed = seed,
    };

    pass(argument, &plan, &protocols[throw_below(dice, 2)], BYTES);
}

static void cut_in_data(void)
{
    struct course course;

    course_start(&course, false);
    each_seed(100, cut_seed, &course);
    CHECK_INT(course.tally.complete + course.tally.refused + course.tally.stuck, 0);
    course_end(&course);
}

/* ---- changed bytes ------------------------------------------------------------------------ */

static void corrupt_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct plan plan = {
        .fault = throw_below(dice, 4) ? FAULT_CORRUPT : FAULT_SWAP,
        .direction = (unsigned)throw_below(dice, 2),
        .offset = HANDSHAKE + throw_below(dice, throw_below(dice, 2) ? BYTES : HANDSHAKE),
        .value = (uint8_t)(1 + throw_below(dice, 255)),
        .seed = seed,
    };

    pass(argument, &plan, &protocols[throw_below(dice, 2)], BYTES);
}

static void corrupt_with_crc(void)
{
    struct course course;

    course_start(&course, true);
    course.sticky = true;
    each_seed(200, corrupt_seed, &course);
    course_end(&course);
}

static void corrupt_without_crc(void)
{
    struct course course;

    course_start(&course, false);
    course.sticky = course.unchecked = true;
    each_seed(200, corrupt_seed, &course);
    course_end(&course);
}

static void corrupt_handshake_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct plan plan = {
        .fault = FAULT_CORRUPT,
        .direction = seed % 2,
        .offset = seed / 2,
        .value = (uint8_t)(1 + throw_below(dice, 255)),
    };

    pass(argument, &plan, NULL, BYTES);
}

static void corrupt_handshake(void)
{
    struct course course;

    course_start(&course, true);
    course.sticky = course.unchecked = true;
    each_seed(2 * HANDSHAKE, corrupt_handshake_seed, &course);
    course_end(&course);
}

/* ---- silence ------------------------------------------------------------------------------ */

static void stall_seed(struct dice *dice, uint64_t seed, void *argument)
{
    struct plan plan = {
        .fault = FAULT_STALL,
        .direction = (unsigned)throw_below(dice, 2),
        .offset = throw_below(dice, 2 * HANDSHAKE + BYTES / 2),
        .seed = seed,
    };

    pass(argument, &plan, &protocols[throw_below(dice, 2)], BYTES);
}

static void stalled(void)
{
    struct course course;

    course_start(&course, false);
    course.sticky = true;
    each_seed(20, stall_seed, &course);
    CHECK_INT(course.tally.complete + course.tally.broken, 0);
    course_end(&course);
}

static const struct test tests[] = {
    TEST(every_byte_alone, "a peer whose bytes come one by one is understood"),
    TEST(every_byte_alone_crc, "the same with CRC32c"),
    TEST(any_pieces, "bytes that come in pieces of any size, some of them late, are understood"),
    TEST(reset_in_handshake, "a reset at each byte of the handshake: an error entry or -FI_ECONNRESET, at once"),
    TEST(end_in_handshake, "an orderly end at each byte of the handshake: the same"),
    TEST(cut_in_data, "a reset or an end anywhere in the stream: -FI_ECONNRESET at both ends, never 0"),
    TEST(corrupt_with_crc, "with CRC32c a changed byte ends the connection, and no wrong byte is given out"),
    TEST(corrupt_handshake, "a changed byte in the handshake, which no CRC covers, harms its connection only"),
    TEST(corrupt_without_crc, "without CRC32c a changed byte harms its connection only"),
    TEST(stalled, "a path that falls silent: the handshake times out, and fi_close takes its linger time"),
};

const struct section proxied_section = SECTION("proxied", tests);
