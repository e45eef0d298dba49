#include "messages.h"

#include <stdlib.h>

#include "../conformance/message.h"
#include "cost.h"

/* What a message endpoint that does nothing may cost. */
#define ENDPOINT_HEAP 8192
/* By how much the heap may be larger after many connections than after the first ones. */
#define HEAP_GROWTH 65536
/* Descriptors that each side keeps once it has had several connections. */
#define OF_MANY 2
/* Connections in turn that are compared with each other; how much longer the last may take, beside what other processes
 * may cost each of them. */
#define SAMPLE 100
#define SLOWER 3
#define HICCUP_US 10000
/* Percent of a processor that both sides may take while nothing happens, and for how long that is. */
#define IDLE_PERCENT 3
#define IDLE_MS 1000

/* Both sides, with one domain, one event queue and one completion queue each, and the endpoints of each connection. */
struct links {
    struct side listener, client;
    struct fid_ep *(*eps)[2];
    unsigned count;
};

static void links_close(struct links *links)
{
    for (unsigned i = 0; i < links->count; i++) {
        close_fid(&links->eps[i][0]->fid);
        close_fid(&links->eps[i][1]->fid);
    }
}

/* ---- at the same time ----------------------------------------------------------------------- */

/* Reads an event of either side, if there is one. Returns whether the client's side has one more that is connected. */
static bool serve_event(struct links *links)
{
    struct event event;

    if (read_event(links->listener.eq, &event) && event.kind == FI_CONNREQ) {
        uint32_t number;

        CHECK_INT(event.data_length, sizeof number);
        memcpy(&number, event.data, sizeof number);
        CHECK(number < links->count && links->eps[number][1] == NULL);
        links->eps[number][1] = message_endpoint_of(&links->listener, event.info);
        fi_freeinfo(event.info);
        CHECK_OK(fi_accept(links->eps[number][1], NULL, 0));
    }
    if (!read_event(links->client.eq, &event))
        return false;
    CHECK_INT(event.kind, FI_CONNECTED);
    return true;
}

/* CONNECTING_MOST of them begin before the first event is read. */
static void links_open(struct links *links)
{
    unsigned begun = 0, open = 0;

    for (int64_t until = now_ms() + PATIENCE_MS; open < links->count;) {
        for (; begun < links->count && begun - open < CONNECTING_MOST; begun++) {
            uint32_t number = begun;

            links->eps[begun][0] = message_endpoint_of(&links->client, links->client.info);
            links->eps[begun][1] = NULL;
            CHECK_OK(fi_connect(links->eps[begun][0], links->client.info->dest_addr, &number, sizeof number));
        }
        CHECK(now_ms() < until);
        if (serve_event(links)) {
            open++;
            until = now_ms() + PATIENCE_MS;
        }
    }
    /* What is left are the listener's events of connections that stand. */
    for (struct event event; read_event(links->listener.eq, &event);)
        CHECK_INT(event.kind, FI_CONNECTED);
}

/* Takes `count` entries of sends and receives. Each receive has the number of its connection. */
static void take_entries(struct side *side, const uint32_t *got, unsigned count)
{
    for (unsigned received = 0; count > 0; count--) {
        struct fi_cq_data_entry entry = next_completion(side->cq);

        if (entry.flags != RECEIVED)
            continue;
        CHECK_INT(entry.len, sizeof *got);
        CHECK_INT(got[(uintptr_t)entry.op_context], (uintptr_t)entry.op_context);
        received++;
    }
}

/* A message in each direction of each connection, all of them under way at the same time. */
static void links_use(struct links *links)
{
    uint32_t *got = calloc(2 * links->count, sizeof *got), *numbers = calloc(links->count, sizeof *numbers);

    CHECK(got != NULL && numbers != NULL);
    for (unsigned i = 0; i < links->count; i++) {
        numbers[i] = i;
        for (unsigned side = 0; side < 2; side++)
            post_recv(links->eps[i][side], &got[side * links->count + i], sizeof *got, i);
    }
    for (unsigned i = 0; i < links->count; i++)
        for (unsigned side = 0; side < 2; side++)
            post_send(links->eps[i][side], &numbers[i], sizeof *numbers, i);
    take_entries(&links->client, got, 2 * links->count);
    take_entries(&links->listener, got + links->count, 2 * links->count);
    free(got);
    free(numbers);
}

static void links_rest(struct links *links)
{
    struct fi_cq_data_entry entry;
    int64_t cpu = cpu_ms();

    CHECK_RET(fi_cq_sread(links->listener.cq, &entry, 1, NULL, IDLE_MS / 2), -FI_EAGAIN);
    CHECK_RET(fi_cq_sread(links->client.cq, &entry, 1, NULL, IDLE_MS / 2), -FI_EAGAIN);
    printf("  idle: %lld ms of processor time in %d ms\n", (long long)(cpu_ms() - cpu), IDLE_MS);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, IDLE_MS * IDLE_PERCENT / 100);
}

static void links_begin(struct links *links, unsigned count)
{
    const struct message_settings settings = {.host = LOOP_HOST, .cq = {.wait_obj = FI_WAIT_FD}};

    message_listen(&links->listener, &settings);
    message_client(&links->client, &links->listener, &settings);
    message_queue(&links->listener, &settings);
    message_queue(&links->client, &settings);
    links->eps = calloc(count, sizeof *links->eps);
    CHECK(links->eps != NULL);
    /* The first connection, and sleeping on a queue, open and allocate what stays. */
    links->count = 1;
    message_connect(&links->client, &links->listener, links->eps[0]);
    links_use(links);
    links_rest(links);
    links_close(links);
    links->count = count;
}

static void links_end(struct links *links)
{
    side_close(&links->client);
    side_close(&links->listener);
    free(links->eps);
}

/* Opens, uses and closes all connections. Returns what is left of them. */
static struct cost round_of(struct links *links)
{
    unsigned endpoints = 2 * links->count;
    struct cost before = cost_now(), open, used, closed;

    links_open(links);
    open = cost_now();
    links_use(links);
    used = cost_now();
    links_rest(links);
    links_close(links);
    /* The last output of an endpoint goes out, and its socket is closed, during further calls. */
    AWAIT(PATIENCE_MS, cost_now().descriptors <= before.descriptors + OF_MANY);
    closed = cost_now();
    printf("  opened in %lld ms, used in %lld ms; %zu bytes of heap an endpoint, %zu when used; heap before and "
           "afterwards %zu, %zu KiB\n", (long long)(open.at - before.at) / 1000, (long long)(used.at - open.at) / 1000,
           (open.heap - before.heap) / endpoints, (used.heap - before.heap) / endpoints, before.heap / 1024,
           closed.heap / 1024);
    CHECK_BETWEEN(open.heap, before.heap, before.heap + (size_t)ENDPOINT_HEAP * endpoints);
    CHECK_BETWEEN(used.heap, before.heap, before.heap + (size_t)ENDPOINT_HEAP * endpoints);
    return closed;
}

void messages_together(const struct plan *plan)
{
    struct cost first, last;
    struct links links;

    need_descriptors(2 * plan->connections + 64);
    links_begin(&links, plan->connections);
    /* Many connections at a time open and allocate what one alone does not. */
    first = round_of(&links);
    for (unsigned round = 0; round < plan->rounds; round++) {
        last = round_of(&links);
        CHECK_INT(last.descriptors, first.descriptors);
        CHECK_BETWEEN(last.heap, 0, first.heap + HEAP_GROWTH);
    }
    links_end(&links);
}

/* ---- in turn -------------------------------------------------------------------------------- */

void messages_in_turn(const struct plan *plan)
{
    unsigned count = plan->connections;
    /* At the beginning and end of the first and the last of them. */
    struct cost at[4];
    struct links links;
    int64_t busy[2], took[2];

    CHECK(count >= 2 * SAMPLE);
    links_begin(&links, 1);
    for (unsigned i = 0; i < count; i++) {
        if (i == 0 || i == SAMPLE || i == count - SAMPLE)
            at[i == 0 ? 0 : i == SAMPLE ? 1 : 2] = cost_now();
        message_connect(&links.client, &links.listener, links.eps[0]);
        links_use(&links);
        links_close(&links);
    }
    at[3] = cost_now();
    for (unsigned i = 0; i < 2; i++) {
        busy[i] = at[2 * i + 1].busy - at[2 * i].busy;
        took[i] = at[2 * i + 1].at - at[2 * i].at;
    }
    printf("  %u connections in turn: the first %d took %lld us of %lld, the last %lld of %lld; heap %zu, %zu KiB\n",
           count, SAMPLE, (long long)busy[0], (long long)took[0], (long long)busy[1], (long long)took[1],
           at[1].heap / 1024, at[3].heap / 1024);
    CHECK_INT(at[3].descriptors, at[1].descriptors);
    CHECK_BETWEEN(at[3].heap, 0, at[1].heap + HEAP_GROWTH);
    CHECK_BETWEEN(busy[1], 0, SLOWER * busy[0]);
    CHECK_BETWEEN(took[1], 0, SLOWER * took[0] + SAMPLE * HICCUP_US);
    links_end(&links);
}
