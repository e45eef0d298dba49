/* Stream endpoints through libfabric's public calls: discovery, opening, connecting, sending and
 * receiving. */
#include "common.h"

#include <stdlib.h>
#include <time.h>

/* ---- finding and opening ------------------------------------------------------------------ */

struct fi_info *stream_hints(void)
{
    struct fi_info *hints = fi_allocinfo();

    CHECK(hints != NULL);
    hints->ep_attr->type = FI_EP_SOCK_STREAM;
    hints->caps = FI_MSG;
    hints->fabric_attr->prov_name = strdup(PROVIDER);
    CHECK(hints->fabric_attr->prov_name != NULL);
    return hints;
}

struct fi_info *find(const char *node, const char *service, uint64_t flags, const struct fi_info *hints)
{
    struct fi_info *info = NULL;

    CHECK_OK(fi_getinfo(TEST_API, node, service, flags, hints, &info));
    CHECK(info != NULL);
    return info;
}

bool is_ours(const struct fi_info *info)
{
    return info->fabric_attr && info->fabric_attr->prov_name && strcmp(info->fabric_attr->prov_name, PROVIDER) == 0;
}

void close_fid(struct fid *fid)
{
    CHECK_OK(fi_close(fid));
}

struct fid_eq *open_eq(struct fid_fabric *fabric)
{
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
    struct fid_eq *eq = NULL;

    CHECK_OK(fi_eq_open(fabric, &attr, &eq, NULL));
    CHECK(eq != NULL);
    return eq;
}

/* The open sides of this thread, which drive() drives. */
#define SIDES_MAX 80
static _Thread_local struct side *open_sides[SIDES_MAX];

void side_remember(struct side *side)
{
    for (size_t i = 0; i < SIDES_MAX; i++) {
        if (open_sides[i] == NULL) {
            open_sides[i] = side;
            return;
        }
    }
    fail_at(__FILE__, __LINE__, "more than %d sides are open", SIDES_MAX);
}

static void forget(const struct side *side)
{
    for (size_t i = 0; i < SIDES_MAX; i++)
        if (open_sides[i] == side)
            open_sides[i] = NULL;
}

void side_open(struct side *side, struct fi_info *info)
{
    memset(side, 0, sizeof *side);
    side_remember(side);
    side->info = info;
    CHECK_OK(fi_fabric(info->fabric_attr, &side->fabric, NULL));
    CHECK_OK(fi_domain(side->fabric, info, &side->domain, NULL));
    side->eq = open_eq(side->fabric);
}

void side_share(struct side *side, struct side *owner, struct fi_info *info)
{
    memset(side, 0, sizeof *side);
    side_remember(side);
    side->borrows = true;
    side->info = info;
    side->fabric = owner->fabric;
    side->eq = owner->eq;
    CHECK_OK(fi_domain(side->fabric, info, &side->domain, NULL));
}

void side_close(struct side *side)
{
    forget(side);
    if (side->ep)
        close_fid(&side->ep->fid);
    if (side->cq)
        close_fid(&side->cq->fid);
    if (side->pep)
        close_fid(&side->pep->fid);
    if (side->eq && !side->borrows)
        close_fid(&side->eq->fid);
    if (side->domain)
        close_fid(&side->domain->fid);
    if (side->fabric && !side->borrows)
        close_fid(&side->fabric->fid);
    if (side->info)
        fi_freeinfo(side->info);
    memset(side, 0, sizeof *side);
}

void apply_settings(struct fid *fid, const struct settings *settings)
{
    const struct {
        int name;
        size_t value;
    } options[] = {
        {FI_OPT_SEND_BUF_SIZE, settings ? settings->send_ring : 0},
        {FI_OPT_RECV_BUF_SIZE, settings ? settings->recv_ring : 0},
        {FI_OPT_TX_SIZE, settings ? settings->tx_size : 0},
        {FI_OPT_RX_SIZE, settings ? settings->rx_size : 0},
    };

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].value != 0)
            CHECK_OK(fi_setopt(fid, FI_OPT_ENDPOINT, options[i].name, &options[i].value, sizeof options[i].value));
}

void side_endpoint(struct side *side, const struct settings *settings)
{
    CHECK_OK(fi_endpoint(side->domain, side->info, &side->ep, NULL));
    CHECK_OK(fi_ep_bind(side->ep, &side->eq->fid, 0));
    apply_settings(&side->ep->fid, settings);
}

static struct fi_info *find_for(const char *host, const char *port, uint64_t flags, const struct settings *settings)
{
    struct fi_info *hints = stream_hints(), *info;

    if (settings)
        hints->ep_attr->protocol = settings->protocol;
    info = find(host, port, flags, hints);
    fi_freeinfo(hints);
    return info;
}

void side_listen(struct side *side, const char *host, const struct settings *settings)
{
    side_open(side, find_for(host, "0", FI_SOURCE, settings));
    CHECK_OK(fi_passive_ep(side->fabric, side->info, &side->pep, NULL));
    CHECK_OK(fi_pep_bind(side->pep, &side->eq->fid, 0));
    apply_settings(&side->pep->fid, settings);
    CHECK_OK(fi_listen(side->pep));
}

struct fi_info *find_peer(const char *host, unsigned port, const struct settings *settings)
{
    char service[16];

    snprintf(service, sizeof service, "%u", port);
    return find_for(host, service, 0, settings);
}

void side_active(struct side *side, const char *host, unsigned port, const struct settings *settings)
{
    side_open(side, find_peer(host, port, settings));
    side_endpoint(side, settings);
}

unsigned address_port(const void *address)
{
    const struct sockaddr *any = address;

    if (any->sa_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    CHECK_INT(any->sa_family, AF_INET);
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

unsigned fid_port(struct fid *fid)
{
    struct sockaddr_storage address;
    size_t length = sizeof address;

    CHECK_OK(fi_getname(fid, &address, &length));
    return address_port(&address);
}

/* ---- events and progress ------------------------------------------------------------------ */

/* Room for an entry and its data. The entry must be aligned. */
union event_buffer {
    struct fi_eq_cm_entry entry;
    uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 1024];
};

/* Any call drives an object. These read the event queue and the completion queue, and call fi_trywait. */
static void drive_side(struct side *side)
{
    union event_buffer buffer;
    uint32_t kind;

    if (side->eq)
        (void)fi_eq_read(side->eq, &kind, &buffer, sizeof buffer, FI_PEEK);
    if (side->cq) {
        (void)fi_cq_read(side->cq, NULL, 0);
    } else if (side->ep) {
        struct fid *fid = &side->ep->fid;

        (void)fi_trywait(side->fabric, &fid, 1);
    }
}

void drive(void)
{
    static const struct timespec moment = {0, 50000};

    for (size_t i = 0; i < SIDES_MAX; i++)
        if (open_sides[i])
            drive_side(open_sides[i]);
    nanosleep(&moment, NULL);
}

bool read_event(struct fid_eq *eq, struct event *event)
{
    union event_buffer buffer;
    ssize_t got = fi_eq_read(eq, &event->kind, &buffer, sizeof buffer, 0);

    if (got == -FI_EAGAIN)
        return false;
    if (got == -FI_EAVAIL) {
        struct fi_eq_err_entry error = {0};

        CHECK_AT_LEAST(fi_eq_readerr(eq, &error, 0), sizeof error);
        fail_at(__FILE__, __LINE__, "an error instead of an event: %s: %s", fi_strerror(error.err),
                fi_eq_strerror(eq, error.prov_errno, error.err_data, NULL, 0));
    }
    CHECK_AT_LEAST(got, sizeof buffer.entry);
    event->fid = buffer.entry.fid;
    event->info = event->kind == FI_CONNREQ ? buffer.entry.info : NULL;
    event->data_length = (size_t)got - sizeof buffer.entry;
    memcpy(event->data, buffer.bytes + sizeof buffer.entry, event->data_length);
    return true;
}

struct event next_event(struct fid_eq *eq)
{
    struct event event = {0};

    AWAIT(PATIENCE_MS, read_event(eq, &event));
    return event;
}

struct event await_event(struct fid_eq *eq, uint32_t kind)
{
    struct event event = next_event(eq);

    CHECK_INT(event.kind, kind);
    return event;
}

struct fi_eq_err_entry await_error(struct fid_eq *eq, void *data, size_t size)
{
    struct fi_eq_err_entry error = {.err_data = data, .err_data_size = size};
    union event_buffer buffer;
    uint32_t kind;
    ssize_t got = -FI_EAGAIN;

    AWAIT(PATIENCE_MS, (got = fi_eq_read(eq, &kind, &buffer, sizeof buffer, 0)) != -FI_EAGAIN);
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_eq_readerr(eq, &error, 0), sizeof error);
    return error;
}

void check_no_event(struct fid_eq *eq)
{
    union event_buffer buffer;
    uint32_t kind;

    CHECK_RET(fi_eq_read(eq, &kind, &buffer, sizeof buffer, 0), -FI_EAGAIN);
}

/* ---- connecting --------------------------------------------------------------------------- */

void side_for_request(struct side *listener, struct side *server, const struct event *request)
{
    side_share(server, listener, request->info);
    side_endpoint(server, NULL);
}

void accept_request(struct side *listener, struct side *server, const struct event *request,
                    const void *data, size_t length)
{
    side_for_request(listener, server, request);
    CHECK_OK(fi_accept(server->ep, data, length));
}

void pair_join(struct pair *pair)
{
    struct event request;

    CHECK_OK(fi_connect(pair->client.ep, pair->client.info->dest_addr, NULL, 0));
    request = await_event(pair->listener.eq, FI_CONNREQ);
    accept_request(&pair->listener, &pair->server, &request, NULL, 0);
    CHECK(await_event(pair->client.eq, FI_CONNECTED).fid == &pair->client.ep->fid);
    CHECK(await_event(pair->server.eq, FI_CONNECTED).fid == &pair->server.ep->fid);
}

void pair_open_with(struct pair *pair, const char *host, const struct settings *client,
                    const struct settings *server)
{
    memset(pair, 0, sizeof *pair);
    side_listen(&pair->listener, host, server);
    side_active(&pair->client, host, fid_port(&pair->listener.pep->fid), client);
    pair_join(pair);
}

void pair_open(struct pair *pair, const char *host, const struct settings *settings)
{
    pair_open_with(pair, host, settings, settings);
}

void pair_close(struct pair *pair)
{
    side_close(&pair->client);
    side_close(&pair->server);
    side_close(&pair->listener);
}

/* ---- sending and receiving ---------------------------------------------------------------- */

ssize_t send_once(struct fid_ep *ep, const void *data, size_t length)
{
    return fi_send(ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
}

ssize_t recv_once(struct fid_ep *ep, void *data, size_t length)
{
    return fi_recv(ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
}

ssize_t recv_wait(struct fid_ep *ep, void *data, size_t length)
{
    ssize_t got = -FI_EAGAIN;

    AWAIT(PATIENCE_MS, (got = recv_once(ep, data, length)) != -FI_EAGAIN);
    return got;
}

void send_all(struct fid_ep *ep, const void *data, size_t length)
{
    size_t sent = 0;

    while (sent < length) {
        ssize_t took = -FI_EAGAIN;

        AWAIT(PATIENCE_MS, (took = send_once(ep, (const uint8_t *)data + sent, length - sent)) != -FI_EAGAIN);
        CHECK_BETWEEN(took, 1, length - sent);
        sent += (size_t)took;
    }
}

void recv_all(struct fid_ep *ep, void *data, size_t length)
{
    size_t received = 0;

    while (received < length) {
        ssize_t got = recv_wait(ep, (uint8_t *)data + received, length - received);

        CHECK_BETWEEN(got, 1, length - received);
        received += (size_t)got;
    }
}

void recv_pattern(struct fid_ep *ep, uint64_t offset, size_t length)
{
    static _Thread_local uint8_t buffer[65536];

    while (length > 0) {
        size_t part = length < sizeof buffer ? length : sizeof buffer;

        recv_all(ep, buffer, part);
        CHECK_BYTES(buffer, pattern(offset, part), part);
        offset += part;
        length -= part;
    }
}

size_t fill(struct fid_ep *ep, uint64_t offset)
{
    const size_t part = 65536;
    size_t total = 0;
    int refused = 0;

    /* Bytes in flight may still become room, so the end is a time without success. */
    while (refused < 200) {
        ssize_t took = send_once(ep, pattern(offset + total, part), part);

        if (took == -FI_EAGAIN) {
            refused++;
            drive();
        } else {
            CHECK_BETWEEN(took, 1, part);
            total += (size_t)took;
            refused = 0;
        }
    }
    return total;
}

void transfer(struct fid_ep *from, struct fid_ep *to, size_t length)
{
    uint8_t buffer[16384];
    size_t sent = 0, received = 0;
    int64_t until = now_ms() + PATIENCE_MS;

    while (received < length) {
        size_t part = length - sent < sizeof buffer ? length - sent : sizeof buffer;
        ssize_t took = part ? send_once(from, pattern(sent, part), part) : -FI_EAGAIN;
        ssize_t got = recv_once(to, buffer, sizeof buffer);

        if (took != -FI_EAGAIN) {
            CHECK_BETWEEN(took, 1, part);
            sent += (size_t)took;
        }
        if (got != -FI_EAGAIN) {
            CHECK_BETWEEN(got, 1, sent - received);
            CHECK_BYTES(buffer, pattern(received, (size_t)got), (size_t)got);
            received += (size_t)got;
        }
        if (took == -FI_EAGAIN && got == -FI_EAGAIN) {
            CHECK(now_ms() < until);
            drive();
        } else {
            until = now_ms() + PATIENCE_MS;
        }
    }
}

/* ---- waiting ------------------------------------------------------------------------------ */

int wait_fd(struct fid *fid)
{
    int fd = -1;

    CHECK_OK(fi_control(fid, FI_GETWAIT, &fd));
    CHECK_AT_LEAST(fd, 0);
    return fd;
}
