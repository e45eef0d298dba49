#include "attack.h"

#include <unistd.h>

/* The operations of the endpoint: a receive that takes the peer's correct message, one that does not, a read, and
 * sends, for which TCP has no room. */
enum { MESSAGE, RECEIVE, READ, SENDS, ALL = SENDS + 3 };
#define RECEIVE_LENGTH 4096
/* The peer's correct message, and the part that it sends of the next one. */
#define MESSAGE_LENGTH 100
#define HALF 50
/* What the heap may hold more after many attacks than after the first. */
#define HEAP_SLACK 4096

/* The memory of the operations, with a byte behind each that nothing may touch. */
static struct {
    uint8_t message[RECEIVE_LENGTH + 1], receive[RECEIVE_LENGTH + 1], read[READ_LENGTH + 1];
} memory;

size_t attack_begun(const struct attack *attack)
{
    return attack->beside.shared ? HALF : 0;
}

void attack_begin(struct attack *attack)
{
    static uint8_t frame[FPDU_MAX];
    struct beside *beside = &attack->beside;
    struct fid_ep *receives;
    struct raw *raw = &attack->raw;
    struct segment request;
    bool ended;

    memset(&memory, UNTOUCHED, sizeof memory);
    if (attack->connects)
        beside_connect_to(beside, raw);
    else
        beside_connect(beside, raw);
    receives = beside->shared ? beside->shared : beside->attacked;
    post_recv(receives, memory.message, RECEIVE_LENGTH, MESSAGE);
    post_recv(receives, memory.receive, RECEIVE_LENGTH, RECEIVE);
    put_message(raw, MESSAGE_LENGTH);
    if (beside->shared)
        put_segment(raw, PART_OF(raw, 0), pattern(0, HALF), HALF);
    raw_flush(raw);
    CHECK_INT(await_done(beside->listener.cq, MESSAGE, RECEIVED).len, MESSAGE_LENGTH);
    CHECK_BYTES(memory.message, pattern(1, MESSAGE_LENGTH), MESSAGE_LENGTH);
    CHECK_OK(fi_read(beside->attacked, memory.read, READ_LENGTH, NULL, FI_ADDR_UNSPEC, 0, 7, CONTEXT(READ)));
    CHECK(wire_read(raw->fd, frame, &request, &ended, SOON_MS));
    CHECK_INT(request.queue, 1);
    raw->stag = (uint32_t)get_be(request.payload, 4);
    raw->address = get_be(request.payload + 4, 8);
    for (unsigned i = SENDS; i < ALL; i++)
        post_send(beside->attacked, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
}

/* Checks that each operation has ended, once. */
static void check_operations(struct attack *attack, int read_end)
{
    struct fid_cq *cq = attack->beside.listener.cq;
    unsigned left = (1U << ALL) - (1U << RECEIVE);

    /* A receive of a shared context goes back instead. */
    if (attack->beside.shared)
        left &= ~(1U << RECEIVE);
    while (left > 0) {
        struct fi_cq_err_entry error = {0};
        struct fi_cq_data_entry entry = {0};
        ssize_t got = -FI_EAGAIN;
        uintptr_t at;

        AWAIT(SOON_MS, (got = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN);
        if (got == -FI_EAVAIL)
            CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
        at = (uintptr_t)(got == 1 ? entry.op_context : error.op_context);
        CHECK(at < ALL && (left & 1U << at));
        left &= ~(1U << at);
        /* TCP may have taken all of the first sends, but not of the last. */
        if (at == RECEIVE)
            CHECK_INT(error.err, FI_ECANCELED);
        else if (read_end == ANY_END && (error.err != 0 || at == READ || at == ALL - 1)) {
            CHECK(error.err == FI_ECANCELED || error.err == FI_ECONNRESET);
            /* All for one reason. */
            read_end = error.err;
        } else if (at == READ)
            CHECK_INT(error.err, read_end);
        else if (error.err != 0 || at == ALL - 1)
            CHECK_INT(error.err, read_end == FI_ECONNRESET ? FI_ECONNRESET : FI_ECANCELED);
    }
    check_no_completion(cq);
}

void attack_ended(struct attack *attack, int read_end)
{
    struct beside *beside = &attack->beside;

    check_operations(attack, read_end);
    CHECK(await_event(beside->listener.eq, FI_SHUTDOWN).fid == &beside->attacked->fid);
    CHECK_RET(fi_send(beside->attacked, "x", 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
}

void attack_closed(struct attack *attack)
{
    close_fid(&attack->beside.attacked->fid);
    attack->beside.attacked = NULL;
    check_operations(attack, FI_ECANCELED);
}

void attack_over(struct attack *attack)
{
    struct beside *beside = &attack->beside;

    if (beside->attacked)
        close_fid(&beside->attacked->fid);
    beside_take_rest(&attack->raw);
    CHECK_SYS(close(attack->raw.fd));
    if (beside->shared) {
        /* The receive that was half filled takes the bystander's next message. */
        CHECK_OK(fi_inject(beside->client.ep, "next", 4, FI_ADDR_UNSPEC));
        CHECK_INT(await_done(beside->listener.cq, RECEIVE, RECEIVED).len, 4);
        CHECK_BYTES(memory.receive, "next", 4);
    }
    beside_exchange(beside);
    beside_check_memory(beside);
    CHECK_INT(memory.message[RECEIVE_LENGTH], UNTOUCHED);
    CHECK_INT(memory.receive[RECEIVE_LENGTH], UNTOUCHED);
    CHECK_INT(memory.read[READ_LENGTH], UNTOUCHED);
    check_no_completion(beside->listener.cq);
    check_no_event(beside->listener.eq);
    still_moving();
}

/* Opens an application. One connection allocates what stays. */
static void open_attacked(struct attack *attack, bool shares)
{
    beside_open(&attack->beside, shares);
    beside_exchange(&attack->beside);
    attack_begin(attack);
    attack_closed(attack);
    attack_over(attack);
}

void attack_each_way(bool connects, void (*attacks)(struct attack *attack))
{
    static struct attack attack;
    struct bystander bystander;
    size_t heap;

    attack.connects = connects;
    open_attacked(&attack, false);
    beside_close(&attack.beside);
    bystander_open(&bystander);
    for (unsigned shares = 0; shares < 2; shares++) {
        open_attacked(&attack, shares);
        heap = heap_in_use();
        attacks(&attack);
        CHECK_BETWEEN(heap_in_use(), 0, heap + HEAP_SLACK);
        beside_close(&attack.beside);
        bystander_held(&bystander);
    }
    bystander_close(&bystander);
}
