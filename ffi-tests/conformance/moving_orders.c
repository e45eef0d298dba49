/* Contract, section Moving bytes: calls in generated orders on both ends of one connection, against a model
 * of what each of them may return, and of when a descriptor wakes. RSTREAM_TEST_SEED in the environment
 * repeats one order and prints its calls, RSTREAM_TEST_SEEDS is the number of orders.
 *
 * The model has the numbers of bytes that sends took and receives gave, and which side has ended what. */
#include "conformance.h"

#include <stdarg.h>
#include <stdlib.h>

#include "../sleeper.h"
#include "moving.h"

enum { SEEDS = 250, STEPS_LEAST = 20, STEPS_MOST = 220, LONGEST = 70000, INJECT_MOST = 1024 };

/* Bytes that a peer that discards input has to take. */
#define DISCARDED 100000
/* How long a wake-up may be on its way. */
#define DUE_MS 20
/* Calls after which an idle descriptor is quiet. */
#define RESTLESS 50

/* One end of the connection. */
struct end {
    const char *name;
    struct side *side;
    struct end *other;
    /* Its descriptor, or -1 if it only polls. */
    int fd;
    /* The size of its receive ring, and its longest inject. */
    size_t ring, longest_inject;
    /* Bytes that its sends took, and that its receives gave. */
    uint64_t sent, received;
    bool shut_send, shut_recv;
    /* It ended both at once: it may still receive what had arrived. */
    bool keeps;
    /* A receive has returned the end. */
    bool ended;
    /* It was told that there is nothing to receive: what comes wakes it. */
    bool awaits_input;
    /* The room that the last send lacked: that much wakes it, if the peer receives. What the peer had
     * received by then, and whether both sides had the memory. */
    size_t awaits_room;
    uint64_t received_by_then;
    unsigned mappings_by_then;
};

static struct end ends[2];
static struct dice dice;
static bool traced;
static uint8_t buffer[LONGEST];

/* What all orders together have reached. */
static struct {
    unsigned shared, woken_for_input, woken_for_room, injects, peeks, ends_received, closes, quiet;
} reached;

static uint64_t draw(uint64_t below)
{
    return throw_below(&dice, below);
}

static size_t draw_length(void)
{
    const size_t most[] = {64, 64, 64, 64, 64, 64, 5000, LONGEST};

    return 1 + draw(most[draw(8)]);
}

__attribute__((format(printf, 2, 3))) static void trace(const struct end *end, const char *format, ...)
{
    va_list arguments;

    if (!traced)
        return;
    va_start(arguments, format);
    printf("%s (sent %llu, received %llu%s): ", end->name, (unsigned long long)end->sent,
           (unsigned long long)end->received, shared_mappings() == 2 ? ", shared" : "");
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    va_end(arguments);
}

static bool is_closed(const struct end *end)
{
    return end->shut_send && end->shut_recv;
}

/* ---- wake-ups ---------------------------------------------------------------------------------- */

/* Whether the descriptor is readable before a receive. If there was nothing to receive and there is now, it
 * has to be. */
static bool wakes_for_input(const struct end *end)
{
    bool due = end->other->sent > end->received || end->other->shut_send;

    if (end->fd < 0 || !end->awaits_input || end->ended)
        return true;
    return readable(end->fd, due ? DUE_MS : 0);
}

/* Whether the descriptor is readable before a send. If there was no room and there is now because the peer
 * has received, it has to be. The move makes room too, but wakes nobody: a sender that is blocked by then
 * waits for the peer. */
static bool wakes_for_room(const struct end *end)
{
    if (end->fd < 0 || end->awaits_room == 0 || end->other->received == end->received_by_then)
        return true;
    return readable(end->fd, DUE_MS) || shared_mappings() != end->mappings_by_then;
}

/* ---- sends ------------------------------------------------------------------------------------ */

/* The bytes that the peer's ring has no room for were not taken. */
static void check_capacity(const struct end *end)
{
    if (!end->other->shut_recv)
        CHECK_BETWEEN(end->sent - end->other->received, 0, end->other->ring);
}

/* Checks the answer of a call that wants room for `wanted` bytes, or else waits for it. It may take or report
 * `most` bytes. `woken`: wakes_for_room before the call. Returns whether it found room. */
static bool check_send(struct end *end, size_t wanted, size_t most, bool woken, ssize_t answer)
{
    if (answer == -FI_EAGAIN) {
        CHECK(!end->shut_send);
        end->awaits_room = wanted;
        end->received_by_then = end->other->received;
        end->mappings_by_then = shared_mappings();
        return false;
    }
    if (answer == -FI_EPIPE) {
        CHECK(end->shut_send || is_closed(end->other));
        end->awaits_room = 0;
        return false;
    }
    CHECK_BETWEEN(answer, 1, most);
    CHECK(!end->shut_send);
    if (end->awaits_room > 0 && (size_t)answer >= end->awaits_room) {
        CHECK(woken);
        reached.woken_for_room += end->fd >= 0;
    }
    return true;
}

/* Counts the bytes that a send took. */
static void took(struct end *end, size_t bytes)
{
    end->sent += bytes;
    end->awaits_room = 0;
    check_capacity(end);
}

/* Sends `length` bytes in two pieces. Returns the answer. */
static ssize_t send_bytes(struct end *end, size_t length, uint64_t flags)
{
    const uint8_t *bytes = pattern(end->sent, length);
    size_t cut = draw(length + 1);
    struct iovec parts[] = {{(void *)bytes, cut}, {(void *)(bytes + cut), length - cut}};
    struct fi_msg message = {.msg_iov = parts, .iov_count = 2, .addr = FI_ADDR_UNSPEC};
    bool woken = wakes_for_room(end);
    ssize_t answer = fi_sendmsg(end->side->ep, &message, flags);

    trace(end, "send %zu%s -> %zd", length, flags & FI_MORE ? " with more" : "", answer);
    if (check_send(end, 1, length, woken, answer))
        took(end, (size_t)answer);
    return answer;
}

static void send_nothing(struct end *end)
{
    ssize_t answer = send_once(end->side->ep, "", 0);

    trace(end, "send nothing -> %zd", answer);
    if (answer != 0)
        CHECK_RET(answer, -FI_EPIPE);
}

static void inject(struct end *end)
{
    size_t length = 1 + draw(draw(2) ? 16 : INJECT_MOST);
    bool woken = wakes_for_room(end);
    ssize_t answer = fi_inject(end->side->ep, pattern(end->sent, length), length, FI_ADDR_UNSPEC);

    trace(end, "inject %zu -> %zd", length, answer);
    if (length > end->longest_inject) {
        CHECK(answer == -FI_EMSGSIZE || (answer == -FI_EPIPE && (end->shut_send || is_closed(end->other))));
        return;
    }
    if (check_send(end, length, length, woken, answer)) {
        CHECK_INT(answer, length);
        took(end, length);
        reached.injects++;
    }
}

/* Asks for the room, and sometimes sends that much and more. */
static void peek_send(struct end *end)
{
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
    bool woken = wakes_for_room(end);
    ssize_t room = fi_sendmsg(end->side->ep, &message, FI_PEEK), answer;

    trace(end, "peek for room -> %zd", room);
    if (!check_send(end, 1, SIZE_MAX / 2, woken, room))
        return;
    if (!end->other->shut_recv)
        CHECK_BETWEEN(end->sent + (size_t)room - end->other->received, 1, end->other->ring);
    reached.peeks++;
    if (draw(2)) {
        answer = send_bytes(end, (size_t)room + draw(3), 0);
        if (answer != -FI_EPIPE)
            CHECK_AT_LEAST(answer, room);
    }
}

/* ---- receives ----------------------------------------------------------------------------------- */

/* Checks that the stream may end here: the peer ended it and all was received, unless this side takes no
 * more. */
static void check_end(struct end *end)
{
    reached.ends_received += !end->ended;
    end->ended = true;
    if (end->shut_recv)
        return;
    CHECK(end->other->shut_send);
    CHECK_INT(end->received, end->other->sent);
}

/* Checks the answer of a receive or peek of at most `most` bytes, which are in `bytes` unless that is NULL.
 * `woken`: wakes_for_input before the call. */
static void check_receive(struct end *end, const uint8_t *bytes, size_t most, bool woken, ssize_t answer)
{
    if (answer == -FI_EAGAIN) {
        CHECK(!end->shut_recv && !end->ended);
        end->awaits_input = true;
        return;
    }
    CHECK(woken);
    reached.woken_for_input += end->awaits_input && end->fd >= 0;
    end->awaits_input = false;
    if (answer == 0) {
        check_end(end);
        return;
    }
    CHECK_BETWEEN(answer, 1, most);
    CHECK(!end->ended);
    CHECK(!end->shut_recv || end->keeps);
    CHECK_BETWEEN(end->received + (size_t)answer, 1, end->other->sent);
    if (bytes)
        CHECK_BYTES(bytes, pattern(end->received, (size_t)answer), (size_t)answer);
}

/* Receives at most `length` bytes, or peeks at them. Returns the answer. */
static ssize_t receive(struct end *end, size_t length, uint64_t flags)
{
    struct iovec part = {buffer, length};
    struct fi_msg message = {.msg_iov = &part, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    bool woken = wakes_for_input(end);
    ssize_t answer = fi_recvmsg(end->side->ep, &message, flags);

    trace(end, "receive %zu%s -> %zd", length, flags & FI_PEEK ? " with peek" : "", answer);
    check_receive(end, buffer, length, woken, answer);
    if (answer > 0 && !(flags & FI_PEEK))
        end->received += (size_t)answer;
    return answer;
}

/* Not if it may be the receive that returns the end, which 0 does not tell. */
static void receive_nothing(struct end *end)
{
    if (!end->ended && (end->shut_recv || end->other->shut_send))
        return;
    trace(end, "receive nothing");
    CHECK_RET(recv_once(end->side->ep, buffer, 0), 0);
}

/* Asks for the number of bytes, and sometimes receives that many and more. */
static void peek_receive(struct end *end)
{
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
    bool woken = wakes_for_input(end);
    ssize_t there = fi_recvmsg(end->side->ep, &message, FI_PEEK);

    trace(end, "peek for bytes -> %zd", there);
    check_receive(end, NULL, SIZE_MAX / 2, woken, there);
    if (there > 0 && (size_t)there <= sizeof buffer - 2 && draw(2))
        CHECK_AT_LEAST(receive(end, (size_t)there + draw(3), 0), there);
}

/* ---- the descriptor, and ends -------------------------------------------------------------------- */

/* Whether fi_trywait allows to sleep. */
static bool trywait(struct end *end)
{
    bool sleeps = !must_not_wait(end->side);

    trace(end, "fi_trywait -> %s", sleeps ? "sleep" : "-FI_EAGAIN");
    end->awaits_input = sleeps;
    return sleeps;
}

static void read_event_queue(struct end *end)
{
    uint8_t event[512];
    uint32_t kind;

    trace(end, "fi_eq_read");
    (void)fi_eq_read(end->side->eq, &kind, event, sizeof event, FI_PEEK);
}

/* Once there is nothing to receive and no room, the descriptor is quiet. After the end of both directions it
 * need not be. */
static void check_quiet(struct end *end)
{
    const struct end *other = end->other;

    if (end->fd < 0 || is_closed(end) || is_closed(other) || (end->shut_send && other->shut_send))
        return;
    for (unsigned i = 0; i < RESTLESS; i++) {
        if (!readable(end->fd, 0) && trywait(end)) {
            reached.quiet++;
            return;
        }
        while (receive(end, sizeof buffer, 0) > 0)
            ;
        if (end->awaits_room > 0)
            (void)send_bytes(end, draw_length(), 0);
    }
    fail_at(__FILE__, __LINE__, "the descriptor does not become quiet");
}

static void shut(struct end *end, uint64_t what)
{
    trace(end, "fi_shutdown %s", what == FI_SEND ? "FI_SEND" : what == FI_RECV ? "FI_RECV" : "0");
    CHECK_OK(fi_shutdown(end->side->ep, what));
    reached.closes += what == 0;
    end->keeps = what == FI_RECV ? false : what == 0 && !end->shut_recv ? true : end->keeps;
    end->shut_send |= what != FI_RECV;
    end->shut_recv |= what != FI_SEND;
    end->awaits_input = false;
    if (end->shut_send)
        end->awaits_room = 0;
}

/* ---- one order ---------------------------------------------------------------------------------- */

static void step(struct end *end)
{
    switch (draw(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        (void)send_bytes(end, draw_length(), draw(6) ? 0 : FI_MORE);
        break;
    case 4:
        inject(end);
        break;
    case 5:
        peek_send(end);
        break;
    case 6:
    case 7:
    case 8:
    case 9:
        (void)receive(end, draw_length(), 0);
        break;
    case 10:
        (void)receive(end, draw_length(), FI_PEEK);
        break;
    case 11:
        peek_receive(end);
        break;
    case 12:
    case 13:
        if (end->fd >= 0)
            (void)trywait(end);
        break;
    case 14:
        check_quiet(end);
        break;
    default:
        if (draw(2))
            read_event_queue(end);
        else if (draw(2))
            receive_nothing(end);
        else if (end->awaits_room == 0)
            send_nothing(end);
    }
}

/* Makes calls: several of one end in a row, of both ends alike or more of one. Some orders shut down on the
 * way. */
static void make_calls(void)
{
    const uint64_t ways[] = {FI_SEND, FI_RECV, 0};
    unsigned steps = STEPS_LEAST + (unsigned)draw(STEPS_MOST - STEPS_LEAST), row = 0;
    unsigned quiet_until = draw(3) ? (unsigned)draw(STEPS_MOST / 2) : STEPS_MOST;
    struct end *favourite = &ends[draw(2)], *end = favourite;
    bool favours = draw(5) < 2;

    for (unsigned i = 0; i < steps; i++) {
        if (row == 0) {
            row = 1 + (unsigned)draw(draw(3) ? 2 : 15);
            end = favours && draw(4) ? favourite : &ends[draw(2)];
        }
        row--;
        if (i >= quiet_until && draw(6) == 0) {
            shut(end, ways[draw(3)]);
            quiet_until = i + (unsigned)draw(100);
        }
        step(end);
    }
}

/* Whether the end has received all that it has to. */
static bool has_all(const struct end *end)
{
    return end->shut_recv || (end->received == end->other->sent && (end->ended || !end->other->shut_send));
}

/* Receives at both ends until all has arrived. */
static void receive_all(void)
{
    int64_t until = now_ms() + PATIENCE_MS;

    while (!has_all(&ends[0]) || !has_all(&ends[1])) {
        CHECK(now_ms() < until);
        for (unsigned which = 0; which < 2; which++)
            (void)receive(&ends[which], sizeof buffer, 0);
    }
}

/* Whoever may send can send: also to a side that discards input, if that makes calls now and then. */
static void send_on(struct end *end)
{
    uint64_t until = end->sent + (end->other->shut_recv ? DISCARDED : 100);
    int64_t deadline = now_ms() + PATIENCE_MS;

    while (!end->shut_send && !is_closed(end->other) && end->sent < until) {
        CHECK(now_ms() < deadline);
        if (send_bytes(end, 100 + draw(4000), 0) == -FI_EAGAIN) {
            if (end->other->fd >= 0)
                (void)trywait(end->other);
            else
                (void)receive(end->other, sizeof buffer, 0);
        }
    }
}

/* Closes one end. The other one receives the end. */
static void close_end(struct end *end)
{
    int64_t until = now_ms() + PATIENCE_MS;

    trace(end, "fi_close");
    end->shut_send = end->shut_recv = true;
    side_close(end->side);
    do
        CHECK(now_ms() < until);
    while (receive(end->other, sizeof buffer, 0) != 0);
    side_close(end->other->side);
}

static struct settings draw_settings(void)
{
    static const size_t rings[] = {100, 1000, 1024, 4096, 32768, 32768, 65536, 262144};
    struct settings settings = {.send_ring = rings[draw(8)], .recv_ring = rings[draw(8)]};

    if (draw(4) == 0) {
        settings.tx_size = 3 + draw(20);
        settings.rx_size = 3 + draw(20);
    }
    return settings;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void open_ends(struct pair *pair)
{
    const struct settings settings[] = {draw_settings(), draw_settings()};
    bool sleeps = draw(4) > 0;

    pair_open_with(pair, IPV4, &settings[0], &settings[1]);
    for (unsigned which = 0; which < 2; which++)
        ends[which] = (struct end){
            .name = which ? "server" : "client",
            .side = which ? &pair->server : &pair->client,
            .other = &ends[!which],
            .fd = -1,
            .ring = settings[which].recv_ring,
            .longest_inject = least(settings[which].send_ring, settings[!which].recv_ring),
        };
    for (unsigned which = 0; which < 2; which++) {
        if (sleeps && draw(5) > 0)
            ends[which].fd = wait_fd(&ends[which].side->ep->fid);
        trace(&ends[which], "rings of %zu and %zu bytes, queues of %zu and %zu (0: default), %s descriptor",
              settings[which].send_ring, settings[which].recv_ring, settings[which].tx_size,
              settings[which].rx_size, ends[which].fd < 0 ? "no" : "a");
    }
}

static void live(uint64_t seed)
{
    struct pair pair;

    note("RSTREAM_TEST_SEED=%llu", (unsigned long long)seed);
    still_moving();
    dice.state = seed;
    open_ends(&pair);
    make_calls();
    for (unsigned which = 0; which < 2; which++)
        if (!ends[which].shut_send && draw(2))
            shut(&ends[which], FI_SEND);
    receive_all();
    for (unsigned which = 0; which < 2; which++)
        send_on(&ends[which]);
    receive_all();
    for (unsigned which = 0; which < 2; which++)
        check_quiet(&ends[which]);
    receive_all();
    reached.shared += shared_mappings() > 0;
    close_end(&ends[draw(2)]);
    side_close(&pair.listener);
    CHECK_INT(shared_mappings(), 0);
}

/* Runs all orders, which reach everything often. Returns their number, or 0 for a single one. */
static unsigned live_all(const char *shared_memory)
{
    const char *only = getenv("RSTREAM_TEST_SEED"), *seeds = getenv("RSTREAM_TEST_SEEDS");
    unsigned count = seeds ? (unsigned)strtoul(seeds, NULL, 10) : SEEDS;

    needs_embedded_device();
    CHECK_SYS(setenv("FI_RSTREAM_SHM", shared_memory, 1));
    /* A spin could find what no wake-up reports. */
    CHECK_SYS(setenv("FI_RSTREAM_SPIN_US", "0", 1));
    if (only) {
        traced = true;
        live(strtoull(only, NULL, 10));
        return 0;
    }
    for (uint64_t seed = 0; seed < count; seed++)
        live(seed);
    printf("%u shared; %u woken for input, %u for room; %u injects, %u peeks; %u ends, %u closes; "
           "%u times quiet\n", reached.shared, reached.woken_for_input, reached.woken_for_room,
           reached.injects, reached.peeks, reached.ends_received, reached.closes, reached.quiet);
    CHECK_AT_LEAST(reached.woken_for_input, count);
    CHECK_AT_LEAST(reached.woken_for_room, count / 2);
    CHECK_AT_LEAST(reached.injects, count);
    CHECK_AT_LEAST(reached.peeks, count);
    CHECK_AT_LEAST(reached.ends_received, count);
    CHECK_AT_LEAST(reached.closes, count / 8);
    CHECK_AT_LEAST(reached.quiet, count);
    return count;
}

void orders_in_memory(void)
{
    unsigned count = live_all("1");

    CHECK_AT_LEAST(reached.shared, count / 2);
}

void orders_on_iwarp(void)
{
    (void)live_all("0");
    CHECK_INT(reached.shared, 0);
}
