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

static const struct test tests[] = {
    TEST(stranger_understood, "a plain socket that sends headers and payloads as the document says"),
    TEST(strange_headers, "every other header ends its own connection; posted receives have FI_ECANCELED"),
    TEST(strange_payloads, "a payload of another length than its header says: FI_EIO, and the connection ends"),
    TEST(strange_announcements, "an announced message that never comes costs nothing, and the end is reported"),
};

const struct section message_tag_strangers_section = SECTION("strangers with tags", tests);
