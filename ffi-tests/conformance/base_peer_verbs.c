/* The base peer over rdma-core, with immediate data on InfiniBand and RoCE, and with words on iWARP, which
 * has no immediate data. */
#include "base_peer.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct verbs_end {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *id;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_mr *ring, *words, *outbox;
    bool is_iwarp, disconnected;
    /* The buffers of received words, and of the message to send. */
    uint8_t word[RECEIVES][4];
    uint8_t out[CALL_MAX];
};

#define CHECK_POINTER(call) check_pointer(__LINE__, #call, call)

static void *check_pointer(int line, const char *what, void *got)
{
    if (got == NULL)
        fail_at(__FILE__, line, "%s failed", what);
    return got;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void open_end(struct base_peer *peer)
{
    peer->verbs = CHECK_POINTER(calloc(1, sizeof *peer->verbs));
    peer->verbs->channel = CHECK_POINTER(rdma_create_event_channel());
}

/* Waits for the next event, and drives the endpoints of this thread meanwhile. */
static struct rdma_cm_event *next_cm(struct verbs_end *end)
{
    struct rdma_cm_event *event;

    AWAIT(PATIENCE_MS, readable(end->channel->fd, 0));
    CHECK_SYS(rdma_get_cm_event(end->channel, &event));
    return event;
}

/* Waits for the next event, which must be of this kind. */
static struct rdma_cm_event *await_cm(struct verbs_end *end, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event = next_cm(end);

    if (event->event != kind)
        fail_at(__FILE__, __LINE__, "%s, status %d, instead of %s", rdma_event_str(event->event), event->status,
                rdma_event_str(kind));
    return event;
}

static void post_receive(struct verbs_end *end, uint64_t at)
{
    struct ibv_sge place = {(uintptr_t)end->word[at], sizeof end->word[at], end->words->lkey};
    struct ibv_recv_wr receive = {.wr_id = at, .sg_list = &place, .num_sge = 1}, *bad;

    CHECK_INT(ibv_post_recv(end->id->qp, &receive, &bad), 0);
}

/* Creates the queue pair with its receives, and registers the ring. The device must be known. */
static void make_queue_pair(struct base_peer *peer)
{
    struct verbs_end *end = peer->verbs;
    struct ibv_context *device = end->id->verbs;
    struct ibv_qp_init_attr wanted = {
        .cap = {.max_send_wr = 2, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    const int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

    end->is_iwarp = device->device->transport_type == IBV_TRANSPORT_IWARP;
    end->pd = CHECK_POINTER(ibv_alloc_pd(device));
    end->send_cq = wanted.send_cq = CHECK_POINTER(ibv_create_cq(device, 2, NULL, NULL, 0));
    end->recv_cq = wanted.recv_cq = CHECK_POINTER(ibv_create_cq(device, RECEIVES, NULL, NULL, 0));
    end->ring = CHECK_POINTER(ibv_reg_mr(end->pd, peer->ring, sizeof peer->ring, writable));
    end->words = CHECK_POINTER(ibv_reg_mr(end->pd, end->word, sizeof end->word, IBV_ACCESS_LOCAL_WRITE));
    end->outbox = CHECK_POINTER(ibv_reg_mr(end->pd, end->out, sizeof end->out, 0));
    CHECK_SYS(rdma_create_qp(end->id, end->pd, &wanted));
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_receive(end, i);
    peer->own_address = (uintptr_t)peer->ring;
    peer->own_key = end->ring->rkey;
}

static struct rdma_conn_param parameters(const uint8_t *offer)
{
    return (struct rdma_conn_param){.private_data = offer, .private_data_len = OFFER, .responder_resources = 1,
                                    .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
}

/* Copies the private data of an event, and acknowledges the event. */
static size_t take_private_data(struct rdma_cm_event *event, uint8_t *data)
{
    size_t length = event->param.conn.private_data_len;

    memcpy(data, event->param.conn.private_data, length);
    CHECK_SYS(rdma_ack_cm_event(event));
    return length;
}

/* Resolves an address. Linux 6.1 may notice the result only when the attempt times out, so the time-outs
 * are short and there are several attempts. */
static void resolve(struct verbs_end *end, struct sockaddr_in *address)
{
    int64_t until = now_ms() + PATIENCE_MS;
    enum rdma_cm_event_type kind;

    do {
        struct rdma_cm_event *event;

        CHECK(now_ms() < until);
        CHECK_SYS(rdma_resolve_addr(end->id, NULL, (struct sockaddr *)address, 200));
        event = next_cm(end);
        kind = event->event;
        CHECK_SYS(rdma_ack_cm_event(event));
    } while (kind == RDMA_CM_EVENT_ADDR_ERROR);
    CHECK_INT(kind, RDMA_CM_EVENT_ADDR_RESOLVED);
}

static void begin(struct base_peer *peer, unsigned port)
{
    struct sockaddr_in address = ipv4_address(port);
    struct verbs_end *end;

    open_end(peer);
    end = peer->verbs;
    CHECK_SYS(rdma_create_id(end->channel, &end->id, NULL, RDMA_PS_TCP));
    resolve(end, &address);
    CHECK_SYS(rdma_resolve_route(end->id, PATIENCE_MS));
    CHECK_SYS(rdma_ack_cm_event(await_cm(end, RDMA_CM_EVENT_ROUTE_RESOLVED)));
    make_queue_pair(peer);
}

static void request(struct base_peer *peer, const uint8_t *offer, uint8_t revision)
{
    struct rdma_conn_param wanted = parameters(offer);

    (void)revision;
    CHECK_SYS(rdma_connect(peer->verbs->id, &wanted));
}

static size_t answer(struct base_peer *peer, uint8_t *data, uint8_t revision)
{
    (void)revision;
    return take_private_data(await_cm(peer->verbs, RDMA_CM_EVENT_ESTABLISHED), data);
}

static unsigned begin_listening(struct base_peer *peer)
{
    struct sockaddr_in address = ipv4_address(0);
    struct verbs_end *end;

    open_end(peer);
    end = peer->verbs;
    CHECK_SYS(rdma_create_id(end->channel, &end->listener, NULL, RDMA_PS_TCP));
    CHECK_SYS(rdma_bind_addr(end->listener, (struct sockaddr *)&address));
    CHECK_SYS(rdma_listen(end->listener, 1));
    return ntohs(rdma_get_src_port(end->listener));
}

static size_t take_request(struct base_peer *peer, uint8_t *data, uint8_t revision)
{
    struct rdma_cm_event *event = await_cm(peer->verbs, RDMA_CM_EVENT_CONNECT_REQUEST);

    (void)revision;
    peer->verbs->id = event->id;
    make_queue_pair(peer);
    return take_private_data(event, data);
}

static void accept_request_with(struct base_peer *peer, const uint8_t *offer, uint8_t revision)
{
    struct rdma_conn_param granted = parameters(offer);

    (void)revision;
    CHECK_SYS(rdma_accept(peer->verbs->id, &granted));
    CHECK_SYS(rdma_ack_cm_event(await_cm(peer->verbs, RDMA_CM_EVENT_ESTABLISHED)));
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool has_ended(struct verbs_end *end)
{
    struct rdma_cm_event *event;

    while (readable(end->channel->fd, 0)) {
        CHECK_SYS(rdma_get_cm_event(end->channel, &event));
        end->disconnected |= event->event == RDMA_CM_EVENT_DISCONNECTED;
        CHECK_SYS(rdma_ack_cm_event(event));
    }
    return end->disconnected;
}

static void take_word(struct base_peer *peer, const uint8_t *bytes)
{
    uint32_t word = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;

    if (word & WORD_DATA)
        take_data(peer, word & ~WORD_DATA);
    else
        take_control(peer, word);
}

static void take_message(struct base_peer *peer, const struct ibv_wc *done)
{
    struct verbs_end *end = peer->verbs;
    bool with_immediate = done->wc_flags & IBV_WC_WITH_IMM;

    CHECK_INT(with_immediate, !end->is_iwarp);
    if (end->is_iwarp) {
        CHECK_INT(done->byte_len, 4);
        take_word(peer, end->word[done->wr_id]);
    } else if (done->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        CHECK_INT(done->imm_data, 0);
        take_data(peer, done->byte_len);
    } else {
        CHECK_INT(done->opcode, IBV_WC_RECV);
        CHECK_INT(done->byte_len, 0);
        take_control(peer, ntohl(done->imm_data));
    }
    post_receive(end, done->wr_id);
}

static bool take_in(struct base_peer *peer)
{
    struct verbs_end *end = peer->verbs;
    struct ibv_wc done;
    bool any = false;
    /* Read before polling: if the connection has ended, every earlier message has arrived. */
    bool ended = has_ended(end);

    while (ibv_poll_cq(end->recv_cq, 1, &done) > 0) {
        if (done.status == IBV_WC_WR_FLUSH_ERR)
            continue;
        CHECK_INT(done.status, IBV_WC_SUCCESS);
        take_message(peer, &done);
        any = true;
    }
    peer->ended = ended;
    return any;
}

/* Posts one request and waits for its completion, after which its buffer is free. */
static void post(struct verbs_end *end, struct ibv_send_wr *work, size_t length)
{
    struct ibv_sge place = {(uintptr_t)end->out, (uint32_t)length, end->outbox->lkey};
    struct ibv_send_wr *bad;
    struct ibv_wc done;

    work->send_flags = IBV_SEND_SIGNALED;
    work->sg_list = &place;
    work->num_sge = length > 0;
    CHECK_INT(ibv_post_send(end->id->qp, work, &bad), 0);
    AWAIT(PATIENCE_MS, ibv_poll_cq(end->send_cq, 1, &done) == 1);
    CHECK_INT(done.status, IBV_WC_SUCCESS);
}

static void send_control(struct base_peer *peer, uint32_t word)
{
    struct verbs_end *end = peer->verbs;
    struct ibv_send_wr with_immediate = {.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(word)};
    struct ibv_send_wr plain = {.opcode = IBV_WR_SEND};

    if (!end->is_iwarp) {
        post(end, &with_immediate, 0);
        return;
    }
    for (unsigned i = 0; i < 4; i++)
        end->out[i] = (uint8_t)(word >> (8 * i));
    post(end, &plain, 4);
}

static void send_data(struct base_peer *peer, const uint8_t *data, size_t length)
{
    struct verbs_end *end = peer->verbs;
    struct ibv_send_wr work = {.opcode = end->is_iwarp ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM};

    work.wr.rdma.remote_addr = peer->address + peer->at;
    work.wr.rdma.rkey = (uint32_t)peer->key;
    memcpy(end->out, data, length);
    post(end, &work, length);
    if (end->is_iwarp)
        send_control(peer, WORD_DATA | (uint32_t)length);
}

static void end_connection(struct base_peer *peer)
{
    struct verbs_end *end = peer->verbs;

    (void)rdma_disconnect(end->id);
    rdma_destroy_qp(end->id);
    CHECK_INT(ibv_dereg_mr(end->ring), 0);
    CHECK_INT(ibv_dereg_mr(end->words), 0);
    CHECK_INT(ibv_dereg_mr(end->outbox), 0);
    CHECK_INT(ibv_destroy_cq(end->send_cq), 0);
    CHECK_INT(ibv_destroy_cq(end->recv_cq), 0);
    CHECK_INT(ibv_dealloc_pd(end->pd), 0);
    CHECK_SYS(rdma_destroy_id(end->id));
    if (end->listener)
        CHECK_SYS(rdma_destroy_id(end->listener));
    rdma_destroy_event_channel(end->channel);
    free(end);
}

const struct carrier verbs_carrier = {
    .begin = begin,
    .request = request,
    .answer = answer,
    .listen = begin_listening,
    .take_request = take_request,
    .accept = accept_request_with,
    .take_in = take_in,
    .send_data = send_data,
    .send_control = send_control,
    .end = end_connection,
};
