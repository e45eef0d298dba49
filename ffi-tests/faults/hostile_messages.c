/* A peer of message endpoints that makes a correct handshake and then violates the protocol. */
#include "attack.h"

#define COUNT(table) (sizeof table / sizeof table[0])

/* What a breach is called, and how the read that is outstanding ends: 0, or the error of its entry. */
struct breach {
    const char *name;
    int read_end;
};

/* ---- memory of the application -------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t key;
    uint64_t offset;
    uint32_t length;
} places[] = {
    {"a key that names nothing", KEY_NONE, 0, 8},
    {"key 0", 0, 0, 8},
    {"the key of a region that was closed", KEY_CLOSED, 0, 8},
    {"a range over the end", KEY_OPEN, OPEN - 1, 2},
    {"a range behind the end", KEY_OPEN, OPEN, 1},
    {"a range far behind it", KEY_OPEN, 1ULL << 40, 8},
    {"a range whose end exceeds 64 bits", KEY_OPEN, UINT64_MAX, 2},
    {"all of the region and one byte", KEY_READ_ONLY, 0, EDGE + 1},
};

static struct breach write_of(struct raw *raw, size_t at)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, places[at].key, places[at].offset, places[at].length);
    return (struct breach){places[at].name, FI_ECANCELED};
}

static struct breach read_of(struct raw *raw, size_t at)
{
    put_read(raw, 1, places[at].key, places[at].offset, places[at].length);
    return (struct breach){places[at].name, FI_ECANCELED};
}

/* ---- headers -------------------------------------------------------------------------------- */

/* Sends, reads and Terminates. `sequence` is the distance to the number that is next in the queue. */
#define SEND_OF (RDMAP | WIRE_SEND)
#define READ_OF (RDMAP | WIRE_READ_REQUEST)
#define IMMEDIATE_OF (RDMAP | WIRE_IMMEDIATE)
static const struct {
    const char *name;
    struct untagged header;
    size_t length;
} headers[] = {
    {"a message behind a gap", {DDP_UNTAGGED, SEND_OF, 0, 0, 1, 0}, 10},
    {"a message with a number that was there", {DDP_UNTAGGED, SEND_OF, 0, 0, UINT32_MAX, 0}, 10},
    {"a message that begins in its middle", {DDP_UNTAGGED, SEND_OF, 0, 0, 0, 4}, 10},
    {"a message whose end exceeds 32 bits", {DDP_UNTAGGED, SEND_OF, 0, 0, 0, UINT32_MAX}, 10},
    {"a queue that there is not", {DDP_UNTAGGED, SEND_OF, 0, 77, 0, 0}, 10},
    {"a send on the queue of reads", {DDP_UNTAGGED, SEND_OF, 0, 1, 0, 0}, 10},
    {"an opcode that there is not", {DDP_UNTAGGED, RDMAP | 15, 0, 0, 0, 0}, 10},
    {"an atomic request", {DDP_UNTAGGED, RDMAP | 10, 0, 3, 0, 0}, 52},
    {"an untagged write", {DDP_UNTAGGED, RDMAP | WIRE_WRITE, 0, 0, 0, 0}, 10},
    {"an untagged response", {DDP_UNTAGGED, RDMAP | WIRE_READ_RESPONSE, 0, 0, 0, 0}, 10},
    {"another version of DDP", {0x42, SEND_OF, 0, 0, 0, 0}, 10},
    {"another version of RDMAP", {DDP_UNTAGGED, 0x80 | WIRE_SEND, 0, 0, 0, 0}, 10},
    {"7 bytes of immediate data", {DDP_UNTAGGED, IMMEDIATE_OF, 0, 0, 0, 0}, 7},
    {"9 bytes of immediate data", {DDP_UNTAGGED, IMMEDIATE_OF, WORD_OF_WRITE, 0, 0, 0}, 9},
    {"immediate data that is not whole", {DDP_UNTAGGED_PART, IMMEDIATE_OF, 0, 0, 0, 0}, 8},
    {"a message with 7 bytes of data", {DDP_UNTAGGED, SEND_OF, WORD_WITH_DATA, 0, 0, 0}, 7},
    {"a message with no bytes of data", {DDP_UNTAGGED, SEND_OF, WORD_WITH_DATA, 0, 0, 0}, 0},
    {"an invalidation of nothing", {DDP_UNTAGGED, RDMAP | WIRE_SEND_INVALIDATE, KEY_NONE, 0, 0, 0}, 10},
    {"an invalidation of a region", {DDP_UNTAGGED, RDMAP | WIRE_SEND_INVALIDATE, KEY_OPEN, 0, 0, 0}, 10},
    {"a read request of 27 bytes", {DDP_UNTAGGED, READ_OF, 0, 1, 0, 0}, 27},
    {"a read request of 29 bytes", {DDP_UNTAGGED, READ_OF, 0, 1, 0, 0}, 29},
    {"a read request behind a gap", {DDP_UNTAGGED, READ_OF, 0, 1, 1, 0}, 28},
    {"a Terminate of 3 bytes", {DDP_UNTAGGED, RDMAP | WIRE_TERMINATE, 0, 2, 0, 0}, 3},
    {"a Terminate on the queue of messages", {DDP_UNTAGGED, RDMAP | WIRE_TERMINATE, 0, 0, 0, 0}, 4},
};

static struct breach header_of(struct raw *raw, size_t at)
{
    struct untagged header = headers[at].header;

    header.sequence += header.queue == 0 ? raw->sequence : 1;
    put_segment(raw, &header, pattern(0, headers[at].length), headers[at].length);
    return (struct breach){headers[at].name, FI_ECANCELED};
}

/* ---- everything else ------------------------------------------------------------------------ */

static void respond(struct raw *raw, uint8_t ddp, uint32_t stag, uint64_t offset, size_t length)
{
    put_tagged(raw, ddp, RDMAP | WIRE_READ_RESPONSE, stag, offset, length);
}

static void second_before_end(struct raw *raw)
{
    put_segment(raw, PART_OF(raw, 0), "begin", 5);
    raw->sequence++;
    put_segment(raw, LAST_OF(raw, 0), "other", 5);
}

static void hole_in_message(struct raw *raw)
{
    put_segment(raw, PART_OF(raw, 0), "begin", 5);
    put_segment(raw, LAST_OF(raw, 6), "behind", 6);
}

static void second_segment_beyond(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED_PART, RDMAP | WIRE_WRITE, KEY_OPEN, OPEN - 16, 8);
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_OPEN, OPEN - 8, 9);
}

static void write_without_right(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_READ_ONLY, 0, 8);
}

static void read_without_right(struct raw *raw)
{
    put_read(raw, 1, KEY_WRITE_ONLY, 0, 8);
}

static void tagged_send(struct raw *raw)
{
    put_tagged(raw, DDP_TAGGED, SEND_OF, KEY_OPEN, 0, 8);
}

static void too_many_reads(struct raw *raw)
{
    for (unsigned i = 1; i <= 100; i++)
        put_read(raw, i, KEY_OPEN, 0, OPEN);
}

static void response_elsewhere(struct raw *raw)
{
    respond(raw, DDP_TAGGED, raw->stag, raw->address + 1, READ_LENGTH);
}

static void response_to_region(struct raw *raw)
{
    respond(raw, DDP_TAGGED, raw->stag ^ KEY_OPEN, raw->address, READ_LENGTH);
}

static void longer_response(struct raw *raw)
{
    respond(raw, DDP_TAGGED, raw->stag, raw->address, READ_LENGTH + 1);
}

static void response_ends_early(struct raw *raw)
{
    respond(raw, DDP_TAGGED, raw->stag, raw->address, READ_LENGTH - 1);
}

static void response_does_not_end(struct raw *raw)
{
    respond(raw, DDP_TAGGED_PART, raw->stag, raw->address, READ_LENGTH);
}

static void response_again(struct raw *raw)
{
    respond(raw, DDP_TAGGED, raw->stag, raw->address, READ_LENGTH);
    respond(raw, DDP_TAGGED, raw->stag, raw->address, READ_LENGTH);
}

static void terminates(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_TERMINATE, 2, 1, "\x10\x00\x00\x00", 4);
}

static void refuses_read(struct raw *raw)
{
    put_untagged(raw, RDMAP | WIRE_TERMINATE, 2, 1, "\x01\x00\x00\x00", 4);
}

static void one_byte_frame(struct raw *raw)
{
    put_bytes(raw, "\x00\x01\x41\x00\x00\x00\x00\x00", 8);
}

static void short_tagged(struct raw *raw)
{
    put_bytes(raw, "\x00\x0d\xc1\x40", 4);
    put_bytes(raw, pattern(0, 16), 16);
}

static void short_untagged(struct raw *raw)
{
    put_bytes(raw, "\x00\x11\x41\x43", 4);
    put_bytes(raw, pattern(0, 20), 20);
}

static void text(struct raw *raw)
{
    put_bytes(raw, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 36);
}

static const struct {
    const char *name;
    void (*act)(struct raw *raw);
    int read_end;
} acts[] = {
    {"a second message before the end of the first", second_before_end, FI_ECANCELED},
    {"a hole in a message", hole_in_message, FI_ECANCELED},
    {"a write whose second segment is over the end", second_segment_beyond, FI_ECANCELED},
    {"a write without the right", write_without_right, FI_ECANCELED},
    {"a read without the right", read_without_right, FI_ECANCELED},
    {"a tagged send", tagged_send, FI_ECANCELED},
    {"more reads than were agreed on", too_many_reads, FI_ECANCELED},
    {"a response to another place", response_elsewhere, FI_ECANCELED},
    {"a response to a key of its own", response_to_region, FI_ECANCELED},
    {"a response that is longer than the read", longer_response, FI_ECANCELED},
    {"a response that ends early", response_ends_early, FI_ECANCELED},
    {"a response that does not end", response_does_not_end, FI_ECANCELED},
    {"a response that nobody asked for", response_again, 0},
    {"a Terminate", terminates, FI_ECANCELED},
    {"a Terminate that refuses the read", refuses_read, FI_EACCES},
    {"a frame of 1 byte", one_byte_frame, FI_ECANCELED},
    {"a frame too short for a tagged header", short_tagged, FI_ECANCELED},
    {"a frame too short for an untagged header", short_untagged, FI_ECANCELED},
    {"text", text, FI_ECANCELED},
};

static struct breach act_of(struct raw *raw, size_t at)
{
    acts[at].act(raw);
    return (struct breach){acts[at].name, acts[at].read_end};
}

static const struct {
    size_t count;
    struct breach (*put)(struct raw *raw, size_t at);
} breaches_of[] = {
    {COUNT(places), write_of}, {COUNT(places), read_of}, {COUNT(headers), header_of}, {COUNT(acts), act_of},
};

/* ---- all of them ---------------------------------------------------------------------------- */

static void each_breach(struct attack *attack)
{
    for (size_t kind = 0; kind < COUNT(breaches_of); kind++) {
        for (size_t at = 0; at < breaches_of[kind].count; at++) {
            struct breach breach;

            attack_begin(attack);
            breach = breaches_of[kind].put(&attack->raw, at);
            note("%s%s", kind == 1 ? "read of " : "", breach.name);
            raw_flush(&attack->raw);
            attack_ended(attack, breach.read_end);
            /* The peer does not end its part of the connection. */
            beside_rest(&attack->beside);
            attack_over(attack);
        }
    }
}

static void message_breaches(void)
{
    attack_each_way(false, each_breach);
}

static void listener_breaches(void)
{
    attack_each_way(true, each_breach);
}

static const struct test tests[] = {
    TEST(message_breaches, "messages: each breach of the protocol ends its connection, and touches nothing else"),
    TEST(listener_breaches, "the same of a peer that the application connects to"),
};

const struct section hostile_messages_section = SECTION("hostile messages", tests);
