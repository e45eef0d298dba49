#include "beside.h"

#include <unistd.h>

/* For how long the application sleeps, and how long its threads may be busy meanwhile. */
#define REST_MS 30
#define BUSY_MS 5

static const struct message_settings settings = {.cq = {.wait_obj = FI_WAIT_FD}};

static struct fid_mr *region(struct beside *beside, uint8_t *memory, size_t length, uint64_t access, uint64_t key)
{
    struct fid_mr *region = NULL;

    CHECK_OK(fi_mr_reg(beside->listener.domain, memory, length, access, 0, key, 0, &region, NULL));
    CHECK_INT(fi_mr_key(region), key);
    return region;
}

void beside_open(struct beside *beside, bool shares)
{
    struct exposed *memory = map_pages(sizeof *memory);

    memset(beside, 0, sizeof *beside);
    beside->memory = memset(memory, UNTOUCHED, sizeof *memory);
    memset(memory->open, 0, sizeof memory->open);
    memset(memory->read_only, 0, sizeof memory->read_only);
    message_listen(&beside->listener, &settings);
    message_queue(&beside->listener, &settings);
    if (shares)
        CHECK_OK(fi_srx_context(beside->listener.domain, NULL, &beside->shared, NULL));
    beside->regions[0] = region(beside, memory->open, OPEN, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY_OPEN);
    beside->regions[1] = region(beside, memory->read_only, EDGE, FI_REMOTE_READ, KEY_READ_ONLY);
    beside->regions[2] = region(beside, memory->write_only, EDGE, FI_REMOTE_WRITE, KEY_WRITE_ONLY);
    close_fid(&region(beside, memory->closed, EDGE, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY_CLOSED)->fid);
    beside->kept = message_shared(&beside->listener, &beside->client, beside->shared, &settings);
}

void beside_close(struct beside *beside)
{
    close_fid(&beside->kept->fid);
    for (unsigned i = 0; i < sizeof beside->regions / sizeof beside->regions[0]; i++)
        close_fid(&beside->regions[i]->fid);
    if (beside->shared)
        close_fid(&beside->shared->fid);
    side_close(&beside->client);
    side_close(&beside->listener);
    unmap_pages(beside->memory, sizeof *beside->memory);
}

void beside_accept(struct beside *beside)
{
    struct event request = await_event(beside->listener.eq, FI_CONNREQ);

    beside->attacked = message_accept_shared(&beside->listener, &request, beside->shared, &settings);
    CHECK(await_event(beside->listener.eq, FI_CONNECTED).fid == &beside->attacked->fid);
}

void beside_connect(struct beside *beside, struct raw *raw)
{
    raw_ask_messages(raw, fid_port(&beside->listener.pep->fid));
    beside_accept(beside);
    raw_accepted_messages(raw);
}

void beside_connect_to(struct beside *beside, struct raw *raw)
{
    struct side *side = &beside->listener;
    static uint8_t frame[FPDU_MAX];
    struct segment first;
    struct side target;
    unsigned port;
    int listener = tcp_listen(&port);
    bool ended;

    message_client_to(&target, port, &settings);
    if (beside->shared)
        target.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    CHECK_OK(fi_endpoint(side->domain, target.info, &beside->attacked, NULL));
    CHECK_OK(fi_ep_bind(beside->attacked, &side->eq->fid, 0));
    CHECK_OK(fi_ep_bind(beside->attacked, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    if (beside->shared)
        CHECK_OK(fi_ep_bind(beside->attacked, &beside->shared->fid, 0));
    CHECK_OK(fi_connect(beside->attacked, target.info->dest_addr, NULL, 0));
    raw_accept_messages(raw, listener);
    CHECK(await_event(side->eq, FI_CONNECTED).fid == &beside->attacked->fid);
    /* The first frame is a write of no bytes. */
    CHECK(wire_read(raw->fd, frame, &first, &ended, SOON_MS));
    CHECK_INT(first.length, 0);
    CHECK_SYS(close(listener));
    side_close(&target);
}

void beside_exchange(struct beside *beside)
{
    struct side sender = beside->listener, receiver = beside->listener, *client = &beside->client;
    uint8_t got[8];

    sender.ep = beside->kept;
    receiver.ep = beside->shared ? beside->shared : beside->kept;
    message_transfer(client, &receiver, 1000);
    message_transfer(&sender, client, 1000);
    CHECK_OK(fi_write(client->ep, pattern(7, 8), 8, NULL, FI_ADDR_UNSPEC, OPEN - 8, KEY_OPEN, CONTEXT(903)));
    CHECK_OK(fi_read(client->ep, got, 8, NULL, FI_ADDR_UNSPEC, OPEN - 8, KEY_OPEN, CONTEXT(904)));
    (void)await_done(client->cq, 903, WRITTEN);
    (void)await_done(client->cq, 904, WAS_READ);
    CHECK_BYTES(got, pattern(7, 8), 8);
}

void beside_rest(struct beside *beside)
{
    struct fi_cq_data_entry entry;
    int64_t cpu = cpu_ms();

    CHECK_RET(fi_cq_sread(beside->listener.cq, &entry, 1, NULL, REST_MS), -FI_EAGAIN);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, BUSY_MS);
    beside_sleep(beside);
}

void beside_sleep(struct beside *beside)
{
    struct fi_eq_cm_entry event;
    int64_t cpu = cpu_ms();
    uint32_t kind;

    CHECK_RET(fi_eq_sread(beside->listener.eq, &kind, &event, sizeof event, REST_MS, 0), -FI_EAGAIN);
    CHECK_BETWEEN(cpu_ms() - cpu, 0, BUSY_MS);
}

void beside_check_memory(const struct beside *beside)
{
    static uint8_t untouched[3 * EDGE], zeros[EDGE];

    memset(untouched, UNTOUCHED, sizeof untouched);
    CHECK_BYTES(beside->memory->read_only, zeros, sizeof zeros);
    CHECK_BYTES(beside->memory->before, untouched, EDGE);
    CHECK_BYTES(beside->memory->after, untouched, sizeof untouched);
}

void beside_take_rest(struct raw *raw)
{
    static uint8_t rest[16 << 20], untouched[8];
    ssize_t length = tcp_read_to_end(raw->fd, rest, sizeof rest, SOON_MS);

    CHECK_BETWEEN(length, 0, sizeof rest);
    memset(untouched, UNTOUCHED, sizeof untouched);
    CHECK(memmem(rest, (size_t)length, untouched, sizeof untouched) == NULL);
}
