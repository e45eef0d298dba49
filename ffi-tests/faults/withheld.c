/* What a peer of message endpoints withholds: the rest of a frame while the application takes its memory back, and
 * everything while the application sends; and what the application withholds from a peer: a receive. */
#include "beside.h"

#include <stdlib.h>
#include <unistd.h>

/* Contexts of operations. */
enum { RECEIVE = 1, READ, SEND };

static struct beside beside;
static struct raw raw;

/* Where the endpoint's receives are posted. */
static struct fid_ep *receives(void)
{
    return beside.shared ? beside.shared : beside.attacked;
}

/* Closes the endpoint, unless it is closed, and the peer. The bystander goes on. */
static void connection_over(void)
{
    if (beside.attacked)
        close_fid(&beside.attacked->fid);
    beside.attacked = NULL;
    CHECK_SYS(close(raw.fd));
    beside_exchange(&beside);
    check_no_completion(beside.listener.cq);
    check_no_event(beside.listener.eq);
}

static void run_once(void (*run)(void), bool shares)
{
    note("%s", shares ? "shared receives" : "receives of its own");
    beside_open(&beside, shares);
    run();
    beside_close(&beside);
}

/* Runs a test on an endpoint with receives of its own, and on one of a shared receive context. All that they took is
 * released. */
static void each_way(void (*run)(void))
{
    struct bystander bystander;

    CHECK_SYS(setenv("FI_RSTREAM_LINGER_MS", "200", 1));
    run_once(run, false);
    bystander_open(&bystander);
    for (unsigned shares = 0; shares < 2; shares++) {
        run_once(run, shares);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
}

/* ---- memory that is taken back -------------------------------------------------------------- */

/* The application's memory; how many bytes of it are announced, and how many of the frame come after it was taken
 * back. */
enum { PAGES = 16 << 20, ANNOUNCED = 3000, REST = 2000, KEY = 0x70 };

/* Sends the first part of what is composed. Returns when it is in the memory. */
static void send_first(volatile const uint8_t *memory)
{
    raw.length -= REST;
    raw_flush(&raw);
    AWAIT(PATIENCE_MS, memory[ANNOUNCED - REST - 8] != 0);
}

static void send_rest(void)
{
    put_bytes(&raw, pattern(0, REST), REST);
    raw_flush(&raw);
}

static void write_taken_back(uint8_t *memory)
{
    struct fid_mr *region = message_region(&beside.listener, memory, PAGES, KEY);

    put_tagged(&raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY, 0, ANNOUNCED);
    send_first(memory);
    close_fid(&region->fid);
    unmap_pages(memory, PAGES);
    send_rest();
    CHECK(await_event(beside.listener.eq, FI_SHUTDOWN).fid == &beside.attacked->fid);
}

/* The peer has requested all of the memory, and takes a little. */
static void response_taken_back(uint8_t *memory)
{
    struct fid_mr *region = message_region(&beside.listener, memory, PAGES, KEY);
    static uint8_t rest[PAGES];

    put_read(&raw, 1, KEY, 0, PAGES);
    raw_flush(&raw);
    beside_rest(&beside);
    close_fid(&region->fid);
    unmap_pages(memory, PAGES);
    CHECK_BETWEEN(tcp_read_to_end(raw.fd, rest, sizeof rest, SOON_MS), 1, PAGES - 1);
    CHECK(await_event(beside.listener.eq, FI_SHUTDOWN).fid == &beside.attacked->fid);
}

static void receive_taken_back(uint8_t *memory)
{
    post_recv(receives(), memory, PAGES, RECEIVE);
    put_message(&raw, ANNOUNCED);
    send_first(memory);
    close_fid(&beside.attacked->fid);
    beside.attacked = NULL;
    if (beside.shared)
        CHECK_OK(fi_cancel(&beside.shared->fid, CONTEXT(RECEIVE)));
    else
        (void)await_failed(beside.listener.cq, RECEIVE, RECEIVED, FI_ECANCELED);
    unmap_pages(memory, PAGES);
    send_rest();
}

static void read_taken_back(uint8_t *memory)
{
    static uint8_t frame[FPDU_MAX];
    struct segment request;
    bool ended;

    CHECK_OK(fi_read(beside.attacked, memory, ANNOUNCED, NULL, FI_ADDR_UNSPEC, 0, 7, CONTEXT(READ)));
    /* It is sent when a frame has arrived. */
    put(&raw, 0, 8);
    raw_flush(&raw);
    AWAIT(PATIENCE_MS, readable(raw.fd, 0));
    CHECK(wire_read(raw.fd, frame, &request, &ended, SOON_MS));
    put_tagged(&raw, DDP_TAGGED, RDMAP | WIRE_READ_RESPONSE, (uint32_t)get_be(request.payload, 4),
               get_be(request.payload + 4, 8), ANNOUNCED);
    send_first(memory);
    close_fid(&beside.attacked->fid);
    beside.attacked = NULL;
    (void)await_failed(beside.listener.cq, READ, WAS_READ, FI_ECANCELED);
    unmap_pages(memory, PAGES);
    send_rest();
}

static void each_taken_back(void)
{
    void (*const kinds[])(uint8_t *memory) = {write_taken_back, response_taken_back, receive_taken_back,
                                              read_taken_back};

    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        beside_connect(&beside, &raw);
        kinds[i](map_pages(PAGES));
        for (unsigned round = 0; round < 10; round++)
            drive();
        connection_over();
    }
}

static void memory_taken_back(void)
{
    each_way(each_taken_back);
}

/* ---- receives ------------------------------------------------------------------------------- */

/* A breach behind a message that waits: the message is received first. */
static void breach_waits(void)
{
    uint8_t got[100];

    for (unsigned closes = 0; closes < 2; closes++) {
        beside_connect(&beside, &raw);
        put_message(&raw, sizeof got);
        put_tagged(&raw, DDP_TAGGED, RDMAP | WIRE_WRITE, KEY_NONE, 0, 8);
        raw_flush(&raw);
        beside_rest(&beside);
        if (!closes) {
            post_recv(receives(), got, sizeof got, RECEIVE);
            CHECK_INT(await_done(beside.listener.cq, RECEIVE, RECEIVED).len, sizeof got);
            CHECK_BYTES(got, pattern(1, sizeof got), sizeof got);
            CHECK(await_event(beside.listener.eq, FI_SHUTDOWN).fid == &beside.attacked->fid);
        }
        connection_over();
    }
}

static void breach_behind_message(void)
{
    each_way(breach_waits);
}

/* ---- a peer that takes nothing -------------------------------------------------------------- */

#define KEPT (1 << 18)

static void send_much(void)
{
    static uint8_t copied[MESSAGE_INJECT];
    unsigned sends = 0, injects = 0;
    int64_t start;
    size_t heap;

    beside_exchange(&beside);
    heap = heap_in_use();
    beside_connect(&beside, &raw);
    put(&raw, 0, 8);
    raw_flush(&raw);
    for (unsigned round = 0; round < 20; round++, drive())
        while (fi_inject(beside.attacked, copied, sizeof copied, FI_ADDR_UNSPEC) == 0)
            injects++;
    while (fi_send(beside.attacked, pattern(0, PATTERN_MAX), PATTERN_MAX, NULL, FI_ADDR_UNSPEC, CONTEXT(SEND)) == 0)
        sends++;
    printf("%u injects and %u sends, %zu KiB\n", injects, sends, (heap_in_use() - heap) / 1024);
    CHECK_BETWEEN(injects, 1, 16384);
    CHECK_BETWEEN(sends, 1, MESSAGE_QUEUE);
    CHECK_BETWEEN(heap_in_use(), 0, heap + KEPT);
    beside_rest(&beside);
    beside_exchange(&beside);
    start = now_ms();
    close_fid(&beside.attacked->fid);
    beside.attacked = NULL;
    CHECK_BETWEEN(now_ms() - start, 0, SOON_MS);
    while (sends-- > 0)
        (void)await_failed(beside.listener.cq, SEND, SENT, FI_ECANCELED);
    connection_over();
}

static void takes_nothing(void)
{
    each_way(send_much);
}

static const struct test tests[] = {
    TEST(memory_taken_back, "messages: nothing touches memory that is taken back while a part of a frame is withheld"),
    TEST(breach_behind_message, "messages: a breach behind a message that waits for a receive waits, too"),
    TEST(takes_nothing, "messages: a peer that takes nothing: -FI_EAGAIN and sleep; what is kept is bounded"),
};

const struct section withheld_section = SECTION("withheld", tests);
