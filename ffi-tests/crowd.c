/* Many connections with one event queue, used by several threads. */
#include "crowd.h"

#include <sched.h>
#include <stdlib.h>

/* ---- one direction -------------------------------------------------------------------------- */

static size_t next_part(const struct flow *flow)
{
    uint64_t left = flow->length - flow->done;

    return left < flow->part ? (size_t)left : flow->part;
}

bool flow_send(struct flow *flow)
{
    size_t part = next_part(flow);
    ssize_t took = part ? send_once(flow->ep, pattern(flow->done, part), part) : -FI_EAGAIN;

    if (took == -FI_EAGAIN)
        return false;
    CHECK_BETWEEN(took, 1, part);
    flow->done += (uint64_t)took;
    return true;
}

bool flow_recv(struct flow *flow)
{
    static _Thread_local uint8_t buffer[65536];
    size_t part = next_part(flow);
    ssize_t got = part ? recv_once(flow->ep, buffer, part) : -FI_EAGAIN;

    if (got == -FI_EAGAIN)
        return false;
    CHECK_BETWEEN(got, 1, part);
    CHECK_BYTES(buffer, pattern(flow->done, (size_t)got), (size_t)got);
    flow->done += (uint64_t)got;
    return true;
}

static void move_all(struct flow *flow, bool (*move)(struct flow *))
{
    int64_t until = now_ms() + PATIENCE_MS;

    while (flow->done < flow->length) {
        if (move(flow)) {
            until = now_ms() + PATIENCE_MS;
        } else {
            CHECK(now_ms() < until);
            sched_yield();
        }
    }
}

void flow_send_all(struct flow *flow)
{
    move_all(flow, flow_send);
}

void flow_recv_all(struct flow *flow)
{
    move_all(flow, flow_recv);
}

static void *send_body(void *flow)
{
    flow_send_all(flow);
    return NULL;
}

static void *recv_body(void *flow)
{
    flow_recv_all(flow);
    return NULL;
}

void flows_cross(struct fid_ep *one, struct fid_ep *other, uint64_t length)
{
    pthread_t threads[4];
    struct flow flows[4];

    for (unsigned i = 0; i < 4; i++) {
        flows[i] = (struct flow){.ep = i < 2 ? one : other, .length = length, .part = 4001 + i};
        CHECK_INT(pthread_create(&threads[i], NULL, i % 2 ? recv_body : send_body, &flows[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
}

/* ---- events --------------------------------------------------------------------------------- */

static void open_end(struct crowd *crowd, struct end *end, struct fi_info *info)
{
    struct fid_ep *ep = NULL;

    end->info = info;
    CHECK_OK(fi_domain(crowd->listener.fabric, info, &end->domain, NULL));
    CHECK_OK(fi_endpoint(end->domain, info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &crowd->listener.eq->fid, 0));
    end->ep = ep;
}

static void accept_link(struct crowd *crowd, struct fi_info *info, const void *data, size_t length)
{
    uint32_t index = 0;
    struct end *end;

    CHECK_INT(length, sizeof index);
    memcpy(&index, data, sizeof index);
    CHECK_BETWEEN(index, 0, crowd->count - 1);
    end = &crowd->links[index].ends[1];
    open_end(crowd, end, info);
    CHECK_OK(fi_accept(end->ep, NULL, 0));
}

static struct end *find_end(struct crowd *crowd, const struct fid *fid)
{
    for (unsigned i = 0; i < 2 * crowd->count; i++) {
        struct end *end = &crowd->links[i / 2].ends[i % 2];
        struct fid_ep *ep = end->ep;

        if (ep && &ep->fid == fid)
            return end;
    }
    fail_at(__FILE__, __LINE__, "an event of no endpoint");
}

static void *read_events(void *argument)
{
    struct crowd *crowd = argument;
    union {
        struct fi_eq_cm_entry entry;
        uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 64];
    } buffer;

    while (!crowd->stop) {
        unsigned closes = crowd->closes;
        uint32_t kind;
        ssize_t got = fi_eq_sread(crowd->listener.eq, &kind, &buffer, sizeof buffer, 20, 0);
        struct end *end;

        if (got == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(got, sizeof buffer.entry);
        if (kind == FI_CONNREQ) {
            accept_link(crowd, buffer.entry.info, buffer.entry.data, (size_t)got - sizeof buffer.entry);
            continue;
        }
        end = find_end(crowd, buffer.entry.fid);
        if (end->closed)
            CHECK_AT_LEAST(end->closed, closes + 1);
        if (kind == FI_CONNECTED) {
            end->connected++;
        } else {
            CHECK_INT(kind, FI_SHUTDOWN);
            end->shut++;
        }
    }
    return NULL;
}

void await_count(atomic_uint *counter, unsigned count)
{
    int64_t until = now_ms() + PATIENCE_MS;

    while (*counter < count) {
        CHECK(now_ms() < until);
        sleep_ms(1);
    }
    CHECK_INT(*counter, count);
}

/* ---- connections ---------------------------------------------------------------------------- */

void crowd_open(struct crowd *crowd, unsigned links, unsigned readers)
{
    memset(crowd, 0, sizeof *crowd);
    side_listen(&crowd->listener, "127.0.0.1", NULL);
    crowd->links = calloc(links, sizeof *crowd->links);
    CHECK(crowd->links != NULL);
    crowd->count = links;
    CHECK(readers <= READERS_MAX);
    crowd->readers = readers;
    for (unsigned i = 0; i < readers; i++)
        CHECK_INT(pthread_create(&crowd->threads[i], NULL, read_events, crowd), 0);
}

void crowd_connect(struct crowd *crowd, unsigned link)
{
    unsigned port = fid_port(&crowd->listener.pep->fid);
    struct end *ends = crowd->links[link].ends;
    uint32_t index = link;

    open_end(crowd, &ends[0], find_peer("127.0.0.1", port, NULL));
    CHECK_OK(fi_connect(ends[0].ep, ends[0].info->dest_addr, &index, sizeof index));
    for (unsigned i = 0; i < 2; i++) {
        await_count(&ends[i].connected, 1);
        ends[i].out = ends[i].in = (struct flow){.ep = ends[i].ep};
    }
}

void crowd_close_end(struct crowd *crowd, struct end *end)
{
    if (end->ep == NULL || end->closed)
        return;
    close_fid(&((struct fid_ep *)end->ep)->fid);
    end->closed = atomic_fetch_add(&crowd->closes, 1) + 1;
    close_fid(&end->domain->fid);
    fi_freeinfo(end->info);
}

void crowd_close(struct crowd *crowd)
{
    for (unsigned i = 0; i < 2 * crowd->count; i++)
        crowd_close_end(crowd, &crowd->links[i / 2].ends[i % 2]);
    crowd->stop = true;
    for (unsigned i = 0; i < crowd->readers; i++)
        CHECK_INT(pthread_join(crowd->threads[i], NULL), 0);
    side_close(&crowd->listener);
    free(crowd->links);
}

/* ---- the bytes of all connections ----------------------------------------------------------- */

void crowd_load(struct crowd *crowd, unsigned link, uint64_t length, size_t part)
{
    for (unsigned i = 0; i < 2; i++) {
        struct end *end = &crowd->links[link].ends[i];

        end->out = (struct flow){.ep = end->ep, .length = length, .part = part + i};
        end->in = (struct flow){.ep = end->ep, .length = length, .part = part * 3 / 4 + i};
    }
}

/* One call in each direction. Returns whether bytes moved. */
static bool carry_end(struct end *end)
{
    bool sent = flow_send(&end->out), received = flow_recv(&end->in);

    return sent || received;
}

/* Moves some bytes of a connection. Returns whether all are moved. */
static bool carry_link(struct link *link, int64_t *until)
{
    bool done = true;

    if (atomic_flag_test_and_set(&link->taken))
        return false;
    for (unsigned i = 0; i < 2; i++) {
        struct end *end = &link->ends[i];

        while (carry_end(end))
            *until = now_ms() + PATIENCE_MS;
        done = done && end->out.done == end->out.length && end->in.done == end->in.length;
    }
    atomic_flag_clear(&link->taken);
    return done;
}

static void *carry(void *argument)
{
    struct crowd *crowd = argument;
    int64_t until = now_ms() + PATIENCE_MS;
    unsigned done = 0;

    /* The loop ends when each connection in turn is done. */
    for (unsigned link = 0; done < crowd->count; link = (link + 1) % crowd->count) {
        done = carry_link(&crowd->links[link], &until) ? done + 1 : 0;
        CHECK(now_ms() < until);
    }
    return NULL;
}

void crowd_carry(struct crowd *crowd, unsigned threads)
{
    threads_run(threads, carry, crowd, 0);
}

struct each {
    struct crowd *crowd;
    void (*body)(struct crowd *, unsigned);
    atomic_uint next;
};

static void *run_each(void *argument)
{
    struct each *each = argument;
    unsigned link;

    while ((link = atomic_fetch_add(&each->next, 1)) < each->crowd->count)
        each->body(each->crowd, link);
    return NULL;
}

void crowd_each(struct crowd *crowd, unsigned threads, void (*body)(struct crowd *, unsigned))
{
    struct each each = {crowd, body, 0};

    threads_run(threads, run_each, &each, 0);
}

/* ---- threads -------------------------------------------------------------------------------- */

void threads_run(unsigned count, void *(*body)(void *), void *arguments, size_t size)
{
    pthread_t *threads = calloc(count, sizeof *threads);

    CHECK(threads != NULL);
    for (unsigned i = 0; i < count; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, body, (uint8_t *)arguments + i * size), 0);
    for (unsigned i = 0; i < count; i++)
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    free(threads);
}
