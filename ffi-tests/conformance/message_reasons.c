/* Contract, section Message endpoints: what the log says of a broken connection, and what becomes of the operations
 * that a peer refuses or terminates. */
#include "message.h"

#include <sys/mman.h>
#include <unistd.h>

#include "../iwarp_wire.h"

enum { LENGTH = 1000, PLACE = 10, KEY = 1, WRITABLE = 2, READABLE = 3, NO_KEY = 0xbad };

static uint8_t here[LENGTH], there[LENGTH];

/* ---- refused accesses --------------------------------------------------------------------- */

/* Accesses to PLACE bytes, and what the logs of the target and of the initiator say of them. */
static const struct {
    bool reads;
    uint32_t key;
    uint64_t offset;
    const char *refused, *told;
} refusals[] = {
    {false, NO_KEY, 0, "Write with STag 0x00000bad, which names nothing", "invalid STag"},
    {true, NO_KEY, 0, "Read with STag 0x00000bad, which names nothing", "invalid STag"},
    {false, KEY, LENGTH - 9, "Write of 10 bytes at 991 with STag 0x00000001: the region has 1000",
     "base or bounds violation"},
    {true, KEY, LENGTH - 9, "Read of 10 bytes at 991 with STag 0x00000001: the region has 1000",
     "base or bounds violation"},
    {false, KEY, UINT64_MAX, "Write of 10 bytes at 18446744073709551615 with STag 0x00000001: the end exceeds 64 bits",
     "offset wraps"},
    {true, KEY, UINT64_MAX, "Read of 10 bytes at 18446744073709551615 with STag 0x00000001: the end exceeds 64 bits",
     "offset wraps"},
    {false, READABLE, 0, "Write of 10 bytes at 0 with STag 0x00000003: no right", "access rights violation"},
    {true, WRITABLE, 0, "Read of 10 bytes at 0 with STag 0x00000002: no right", "access rights violation"},
};

/* Each side says once that the connection is broken, and why. */
static void refusals_in_the_logs(void)
{
    log_connections();
    for (unsigned i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char text[65536], refused[200], told[200];
        struct fid_mr *regions[3];
        struct pair pair;
        int errors;

        note("refusal %u", i);
        messages_open(&pair, NULL);
        regions[0] = message_region(&pair.server, there, LENGTH, KEY);
        CHECK_OK(fi_mr_reg(pair.server.domain, there, LENGTH, FI_REMOTE_WRITE, 0, WRITABLE, 0, &regions[1], NULL));
        CHECK_OK(fi_mr_reg(pair.server.domain, there, LENGTH, FI_REMOTE_READ, 0, READABLE, 0, &regions[2], NULL));
        errors = capture_errors();
        if (refusals[i].reads)
            CHECK_OK(fi_read(pair.client.ep, here, PLACE, NULL, FI_ADDR_UNSPEC, refusals[i].offset, refusals[i].key,
                             NULL));
        else
            CHECK_OK(fi_inject_write(pair.client.ep, here, PLACE, FI_ADDR_UNSPEC, refusals[i].offset, refusals[i].key));
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        (void)await_event(pair.client.eq, FI_SHUTDOWN);
        drive_for(20);
        end_capture(errors, text, sizeof text);
        snprintf(refused, sizeof refused, "is broken: peer broke the protocol: %s", refusals[i].refused);
        snprintf(told, sizeof told, "is broken: peer terminated: %s", refusals[i].told);
        if (count_words(text, refused) != 1 || count_words(text, told) != 1 || count_words(text, "is broken") != 2)
            fail_at(__FILE__, __LINE__, "not \"%s\" and \"%s\" in: %s", refused, told, text);
        for (unsigned n = 0; n < 3; n++)
            close_fid(&regions[n]->fid);
        pair_close(&pair);
    }
}

/* A side whose memory cannot be accessed says that, and the other that it was told. */
static void local_fault_in_the_logs(void)
{
    enum { LONG = 1 << 20 };
    uint8_t *memory = map_pages(LONG);
    char text[65536];
    struct pair pair;
    int errors;

    log_connections();
    CHECK_SYS(mprotect(memory, LONG, PROT_NONE));
    messages_open(&pair, NULL);
    errors = capture_errors();
    post_send(pair.client.ep, memory, LONG, 1);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    drive_for(20);
    end_capture(errors, text, sizeof text);
    CHECK_INT(count_words(text, "is broken: this side cannot continue: memory of a message cannot be read"), 1);
    CHECK_INT(count_words(text, "is broken"), 2);
    pair_close(&pair);
    unmap_pages(memory, LONG);
}

/* ---- the event of the end ------------------------------------------------------------------ */

/* Operations that fail, and end the connection. */
enum failure { REFUSED_READ, REFUSED_WRITE, UNREADABLE_SEND, UNWRITABLE_READ, FAILURES };

/* Posts one. Half of the `length` bytes at `unusable`, as many as the region under KEY has, cannot be accessed. */
static void post_failure(struct fid_ep *ep, enum failure failure, uint8_t *unusable, size_t length)
{
    struct iovec piece = {here, PLACE};
    struct fi_rma_iov place = {.len = PLACE, .key = NO_KEY};
    struct fi_msg_rma write = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &place,
                               .rma_iov_count = 1, .context = CONTEXT(1)};

    switch (failure) {
    case REFUSED_READ:
        CHECK_OK(fi_read(ep, here, PLACE, NULL, FI_ADDR_UNSPEC, 0, NO_KEY, CONTEXT(1)));
        break;
    case REFUSED_WRITE:
        CHECK_OK(fi_writemsg(ep, &write, FI_DELIVERY_COMPLETE));
        break;
    case UNREADABLE_SEND:
        post_send(ep, unusable, length, 1);
        break;
    default:
        CHECK_OK(fi_read(ep, unusable, length, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(1)));
    }
}

/* Whoever reads FI_SHUTDOWN finds the failure in the completion queue, and there is one FI_SHUTDOWN. */
static void failure_before_its_event(void)
{
    enum { LONG = 1 << 20 };
    uint8_t *unusable = map_pages(LONG), *memory = map_pages(LONG);

    CHECK_SYS(mprotect(unusable + LONG / 2, LONG / 2, PROT_NONE));
    for (enum failure failure = 0; failure < FAILURES; failure++) {
        struct fi_cq_err_entry error = {0};
        struct fid_mr *region;
        struct pair pair;

        note("failure %u", failure);
        messages_open(&pair, NULL);
        region = message_region(&pair.server, memory, LONG, KEY);
        post_recv(pair.server.ep, memory, LONG, 2);
        post_failure(pair.client.ep, failure, unusable, LONG);
        CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
        CHECK_RET(fi_cq_readerr(pair.client.cq, &error, 0), 1);
        CHECK(error.op_context == CONTEXT(1));
        CHECK_INT(error.err, failure < UNREADABLE_SEND ? FI_EACCES : FI_EFAULT);
        CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
        memset(&error, 0, sizeof error);
        CHECK_RET(fi_cq_readerr(pair.server.cq, &error, 0), 1);
        CHECK(error.op_context == CONTEXT(2));
        CHECK_INT(error.err, FI_ECANCELED);
        drive_for(50);
        check_no_event(pair.client.eq);
        check_no_event(pair.server.eq);
        check_no_completion(pair.client.cq);
        check_no_completion(pair.server.cq);
        close_fid(&region->fid);
        pair_close(&pair);
    }
    unmap_pages(unusable, LONG);
    unmap_pages(memory, LONG);
}

/* ---- Terminates of other peers ------------------------------------------------------------- */

/* The segments whose header a Terminate may repeat. */
enum about { NOTHING, FIRST_READ, SECOND_READ, A_WRITE };
/* The operations that are outstanding then, besides one behind them. */
enum { OLDEST, SECOND, LAST, OPERATIONS, NONE = OPERATIONS };

/* Which of them is to blame, if it is a read that is the oldest. */
static const struct {
    uint8_t layer, type, code;
    enum about about;
    unsigned blamed;
    const char *meaning;
} terminates[] = {
    /* Those that name a read. */
    {0, 1, 0, FIRST_READ, OLDEST, "invalid STag"},
    {0, 1, 1, SECOND_READ, SECOND, "base or bounds violation"},
    {0, 1, 2, SECOND_READ, SECOND, "access rights violation"},
    /* Those that refuse an access, and do not say which. */
    {0, 1, 2, NOTHING, OLDEST, "access rights violation"},
    {1, 1, 0, NOTHING, OLDEST, "invalid STag"},
    {0, 1, 77, NOTHING, OLDEST, "other error"},
    /* That of a write which is complete already. */
    {1, 1, 1, A_WRITE, NONE, "base or bounds violation"},
    /* Those that do not refuse an access. */
    {0, 0, 0, NOTHING, NONE, "local catastrophic error"},
    {0, 2, 6, FIRST_READ, NONE, "unexpected opcode"},
    {0, 2, 0xff, FIRST_READ, NONE, "other error"},
    {1, 2, 2, SECOND_READ, NONE, "no buffer available"},
    {1, 2, 5, NOTHING, NONE, "message too long for its buffer"},
    {2, 0, 2, NOTHING, NONE, "CRC mismatch"},
    {15, 15, 0xff, NOTHING, NONE, "other error"},
};

/* Reads segments until a read is requested, which must come. */
static void read_request(int fd, uint8_t *buffer, struct segment *segment)
{
    bool ended;

    do
        AWAIT(PATIENCE_MS, wire_read(fd, buffer, segment, &ended, 1));
    while (segment->operation != WIRE_READ_REQUEST);
}

/* Two reads, and a message behind them, which nobody reports before the reads. */
static void post_operations(struct fid_ep *ep)
{
    for (unsigned i = OLDEST; i <= SECOND; i++)
        CHECK_OK(fi_read(ep, here, PLACE, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(i)));
    post_send(ep, "x", 1, LAST);
}

/* Sends the Terminate with this number, about the segments that the endpoint has sent. */
static void terminate(int fd, unsigned number)
{
    static uint8_t buffers[2][FPDU_MAX];
    /* Of a write to another place than any of this connection. */
    static const uint8_t of_write[16] = {0, 14, 0xc1, 0x40, 0, 0, 0, 99};
    const uint8_t *header = of_write;
    struct segment segments[2];
    size_t length = 0;

    for (unsigned i = 0; i < 2; i++)
        read_request(fd, buffers[i], &segments[i]);
    if (terminates[number].about == FIRST_READ || terminates[number].about == SECOND_READ) {
        unsigned which = terminates[number].about == SECOND_READ;

        header = wire_header(buffers[which], &segments[which], &length);
    } else if (terminates[number].about == A_WRITE) {
        length = sizeof of_write;
    }
    wire_terminate(fd, terminates[number].layer, terminates[number].type, terminates[number].code, header, length);
}

/* Connects with a peer that has sent a message, so that the endpoint may send. */
static int open_stranger(struct side *listener, struct side *server)
{
    int fd = message_stranger(listener, server, NULL);
    uint8_t got;

    post_recv(server->ep, &got, 1, OPERATIONS);
    wire_send(fd, 1, (const uint8_t *)"x", 1);
    (void)await_done(server->cq, OPERATIONS, RECEIVED);
    return fd;
}

/* The read that the peer refuses has FI_EACCES, or the oldest, if it does not say which. All others are cancelled, and
 * so is everything if the peer refuses no access. */
static void terminated(void)
{
    log_connections();
    for (unsigned i = 0; i < sizeof terminates / sizeof *terminates; i++) {
        struct side listener, server;
        char reason[100];
        int fd, errors;

        note("Terminate %u", i);
        fd = open_stranger(&listener, &server);
        post_operations(server.ep);
        errors = capture_errors();
        terminate(fd, i);
        for (unsigned n = OLDEST; n < OPERATIONS; n++)
            (void)await_failed(server.cq, n, n == LAST ? SENT : WAS_READ,
                               n == terminates[i].blamed ? FI_EACCES : FI_ECANCELED);
        CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
        drive_for(20);
        snprintf(reason, sizeof reason, "peer terminated: %s (layer %u, type %u, code %u)", terminates[i].meaning,
                 terminates[i].layer, terminates[i].type, terminates[i].code);
        check_broken(errors, reason, 1);
        check_no_completion(server.cq);
        check_no_event(server.eq);
        close(fd);
        side_close(&server);
        side_close(&listener);
    }
}

/* No read is to blame if the oldest operation is a message. */
static void terminated_behind_message(void)
{
    enum { LONG = 64 << 20 };
    uint8_t *memory = map_pages(LONG);

    for (unsigned type = 0; type < 3; type++) {
        struct side listener, server;
        int fd = open_stranger(&listener, &server);

        note("type %u", type);
        post_send(server.ep, memory, LONG, OLDEST);
        CHECK_OK(fi_read(server.ep, here, PLACE, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(SECOND)));
        wire_terminate(fd, 0, (uint8_t)type, type == 1 ? 2 : 0, NULL, 0);
        (void)await_failed(server.cq, OLDEST, SENT, FI_ECANCELED);
        (void)await_failed(server.cq, SECOND, WAS_READ, FI_ECANCELED);
        CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
        drive_for(20);
        check_no_completion(server.cq);
        check_no_event(server.eq);
        close(fd);
        side_close(&server);
        side_close(&listener);
    }
    unmap_pages(memory, LONG);
}

static const struct test tests[] = {
    TEST(refusals_in_the_logs, "a refused access: both sides say once that the connection is broken, and why"),
    TEST(local_fault_in_the_logs, "memory that cannot be read: the log of its side says so, once"),
    TEST(failure_before_its_event, "after a refusal or FI_EFAULT: FI_SHUTDOWN once, and the failure can be read by then"),
    TEST(terminated, "a Terminate of any kind: FI_EACCES for the read that it refuses, else FI_ECANCELED; the log says why"),
    TEST(terminated_behind_message, "a Terminate without a header while a message is being sent: FI_ECANCELED for all"),
};

const struct section message_reasons_section = SECTION("reasons of message endpoints", tests);
