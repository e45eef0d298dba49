#include "message.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- opening and connecting --------------------------------------------------------------- */

static const struct message_settings defaults;

struct fi_info *message_hints(const struct message_settings *settings)
{
    struct fi_info *hints = stream_hints();

    settings = settings ? settings : &defaults;
    if (settings->on_rdma)
        needs_rdma_device();
    else
        needs_embedded_device();
    hints->ep_attr->type = FI_EP_MSG;
    if (settings->caps)
        hints->caps = settings->caps;
    hints->tx_attr->size = settings->tx_size;
    hints->rx_attr->size = settings->rx_size;
    hints->tx_attr->op_flags = settings->tx_flags;
    hints->rx_attr->op_flags = settings->rx_flags;
    hints->domain_attr->mr_mode = settings->mr_mode;
    if (settings->on_rdma) {
        hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
        hints->mode = FI_RX_CQ_DATA;
    }
    return hints;
}

static const char *host_of(const struct message_settings *settings)
{
    return settings && settings->host ? settings->host : IPV4;
}

void message_listen(struct side *side, const struct message_settings *settings)
{
    struct fi_info *hints = message_hints(settings);

    side_open(side, find(host_of(settings), "0", FI_SOURCE, hints));
    CHECK_OK(fi_passive_ep(side->fabric, side->info, &side->pep, NULL));
    CHECK_OK(fi_pep_bind(side->pep, &side->eq->fid, 0));
    CHECK_OK(fi_listen(side->pep));
    fi_freeinfo(hints);
}

void message_client(struct side *side, const struct side *listener, const struct message_settings *settings)
{
    message_client_to(side, fid_port(&listener->pep->fid), settings);
}

void message_client_to(struct side *side, unsigned port, const struct message_settings *settings)
{
    struct fi_info *hints = message_hints(settings);
    char service[16];

    snprintf(service, sizeof service, "%u", port);
    side_open(side, find(host_of(settings), service, 0, hints));
    fi_freeinfo(hints);
}

void message_queue(struct side *side, const struct message_settings *settings)
{
    struct fi_cq_attr attr = settings ? settings->cq : defaults.cq;

    if (attr.format == FI_CQ_FORMAT_UNSPEC)
        attr.format = FI_CQ_FORMAT_DATA;
    CHECK_OK(fi_cq_open(side->domain, &attr, &side->cq, NULL));
}

void message_endpoint(struct side *side, const struct message_settings *settings)
{
    uint64_t flags = FI_TRANSMIT | FI_RECV | (settings ? settings->bind_flags : 0);

    if (side->cq == NULL)
        message_queue(side, settings);
    CHECK_OK(fi_endpoint(side->domain, side->info, &side->ep, NULL));
    CHECK_OK(fi_ep_bind(side->ep, &side->eq->fid, 0));
    CHECK_OK(fi_ep_bind(side->ep, &side->cq->fid, flags));
    if (settings && settings->prepare)
        settings->prepare(side);
}

void message_server(struct side *listener, struct side *server, const struct event *request,
                    const struct message_settings *settings)
{
    side_share(server, listener, request->info);
    message_endpoint(server, settings);
}

struct event message_request(struct side *listener, struct side *client, const struct message_settings *settings)
{
    message_listen(listener, settings);
    message_client(client, listener, settings);
    message_endpoint(client, settings);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    return await_event(listener->eq, FI_CONNREQ);
}

struct fid_ep *message_shared(struct side *listener, struct side *client, struct fid_ep *shared,
                              const struct message_settings *settings)
{
    struct event request;
    struct fid_ep *ep;

    message_client(client, listener, settings);
    message_endpoint(client, settings);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    request = await_event(listener->eq, FI_CONNREQ);
    ep = message_accept_shared(listener, &request, shared, settings);
    (void)await_event(client->eq, FI_CONNECTED);
    (void)await_event(listener->eq, FI_CONNECTED);
    return ep;
}

struct fid_ep *message_accept_shared(struct side *listener, const struct event *request, struct fid_ep *shared,
                                     const struct message_settings *settings)
{
    struct fid_ep *ep;

    if (shared)
        request->info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    CHECK_OK(fi_endpoint(listener->domain, request->info, &ep, NULL));
    fi_freeinfo(request->info);
    CHECK_OK(fi_ep_bind(ep, &listener->eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &listener->cq->fid, FI_TRANSMIT | FI_RECV | (settings ? settings->bind_flags : 0)));
    if (shared) {
        CHECK_RET(fi_ep_bind(ep, &shared->fid, 1ULL << 45), -FI_EBADFLAGS);
        CHECK_OK(fi_ep_bind(ep, &shared->fid, 0));
        CHECK_RET(fi_ep_bind(ep, &shared->fid, 0), -FI_EINVAL);
    }
    CHECK_OK(fi_accept(ep, NULL, 0));
    return ep;
}

void message_accept(struct side *client, struct side *server)
{
    CHECK_OK(fi_accept(server->ep, NULL, 0));
    CHECK(await_event(client->eq, FI_CONNECTED).fid == &client->ep->fid);
    CHECK(await_event(server->eq, FI_CONNECTED).fid == &server->ep->fid);
}

struct fid_ep *message_endpoint_of(struct side *side, struct fi_info *info)
{
    struct fid_ep *ep;

    CHECK_OK(fi_endpoint(side->domain, info, &ep, NULL));
    CHECK_OK(fi_ep_bind(ep, &side->eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_OK(fi_enable(ep));
    return ep;
}

void message_connect(struct side *client, struct side *listener, struct fid_ep *eps[2])
{
    struct event request;

    eps[0] = message_endpoint_of(client, client->info);
    CHECK_OK(fi_connect(eps[0], client->info->dest_addr, NULL, 0));
    request = await_event(listener->eq, FI_CONNREQ);
    eps[1] = message_endpoint_of(listener, request.info);
    fi_freeinfo(request.info);
    CHECK_OK(fi_accept(eps[1], NULL, 0));
    (void)await_event(client->eq, FI_CONNECTED);
    (void)await_event(listener->eq, FI_CONNECTED);
}

struct fid_ep *message_beside(struct pair *pair, struct side *client, const struct message_settings *settings)
{
    struct side *server = &pair->server;
    struct event request;
    struct fid_ep *ep;

    message_client(client, &pair->listener, settings);
    message_endpoint(client, settings);
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    request = await_event(pair->listener.eq, FI_CONNREQ);
    ep = message_endpoint_of(server, request.info);
    fi_freeinfo(request.info);
    CHECK_OK(fi_accept(ep, NULL, 0));
    (void)await_event(client->eq, FI_CONNECTED);
    (void)await_event(server->eq, FI_CONNECTED);
    return ep;
}

void messages_open(struct pair *pair, const struct message_settings *settings)
{
    struct event request;

    memset(pair, 0, sizeof *pair);
    request = message_request(&pair->listener, &pair->client, settings);
    message_server(&pair->listener, &pair->server, &request, settings);
    message_accept(&pair->client, &pair->server);
}

void separate_open(struct separate *open, const struct message_settings *settings)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    struct side *client = &open->client;
    struct event request;

    memset(open, 0, sizeof *open);
    message_listen(&open->listener, settings);
    message_client(client, &open->listener, settings);
    message_queue(client, &(struct message_settings){.cq = attr});
    CHECK_OK(fi_cq_open(client->domain, &attr, &open->receives, NULL));
    CHECK_OK(fi_endpoint(client->domain, client->info, &client->ep, NULL));
    CHECK_OK(fi_ep_bind(client->ep, &client->eq->fid, 0));
    CHECK_OK(fi_ep_bind(client->ep, &client->cq->fid, FI_TRANSMIT));
    CHECK_OK(fi_ep_bind(client->ep, &open->receives->fid, FI_RECV));
    CHECK_OK(fi_connect(client->ep, client->info->dest_addr, NULL, 0));
    request = await_event(open->listener.eq, FI_CONNREQ);
    message_server(&open->listener, &open->server, &request, settings);
    message_accept(client, &open->server);
}

void separate_close(struct separate *open)
{
    side_close(&open->server);
    if (open->client.ep)
        close_fid(&open->client.ep->fid);
    open->client.ep = NULL;
    close_fid(&open->receives->fid);
    side_close(&open->client);
    side_close(&open->listener);
}

/* ---- completions -------------------------------------------------------------------------- */

struct fi_cq_tagged_entry next_tagged(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got = -FI_EAGAIN;

    memset(&entry, 0xff, sizeof entry);
    AWAIT(PATIENCE_MS, (got = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN);
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};

        CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
        fail_at(__FILE__, __LINE__, "operation %p failed instead: %s: %s", error.op_context, fi_strerror(error.err),
                fi_cq_strerror(cq, error.prov_errno, NULL, NULL, 0));
    }
    CHECK_RET(got, 1);
    return entry;
}

struct fi_cq_data_entry next_completion(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry = next_tagged(cq);

    return (struct fi_cq_data_entry){entry.op_context, entry.flags, entry.len, entry.buf, entry.data};
}

struct fi_cq_data_entry await_done(struct fid_cq *cq, uintptr_t context, uint64_t flags)
{
    struct fi_cq_data_entry entry = next_completion(cq);

    CHECK_INT((uintptr_t)entry.op_context, context);
    CHECK_INT(entry.flags, flags);
    CHECK(entry.buf == NULL);
    return entry;
}

struct fi_cq_err_entry await_failed(struct fid_cq *cq, uintptr_t context, uint64_t flags, int err)
{
    struct fi_cq_err_entry error = {0};
    struct fi_cq_tagged_entry entry;
    ssize_t got = -FI_EAGAIN;

    AWAIT(PATIENCE_MS, (got = fi_cq_read(cq, &entry, 1)) != -FI_EAGAIN);
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
    CHECK_INT((uintptr_t)error.op_context, context);
    CHECK_INT(error.flags, flags);
    CHECK_INT(error.err, err);
    CHECK(error.prov_errno != 0);
    return error;
}

void check_no_completion(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;

    CHECK_RET(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
}

bool next_ending(struct fid_cq *cq, struct ending *ending)
{
    struct fi_cq_err_entry error = {0};
    struct fi_cq_tagged_entry entry;
    ssize_t got = fi_cq_read(cq, &entry, 1);

    if (got == -FI_EAGAIN)
        return false;
    if (got == 1) {
        *ending = (struct ending){(uintptr_t)entry.op_context, entry.flags, 0};
        return true;
    }
    CHECK_RET(got, -FI_EAVAIL);
    CHECK_RET(fi_cq_readerr(cq, &error, 0), 1);
    CHECK(error.err == FI_ECANCELED || (error.err == FI_ECONNRESET && !(error.flags & FI_RECV)));
    *ending = (struct ending){(uintptr_t)error.op_context, error.flags, error.err};
    return true;
}

void drive_for(int ms)
{
    int64_t until = now_ms() + ms;

    while (now_ms() < until)
        drive();
}

void log_connections(void)
{
    CHECK_SYS(setenv("FI_LOG_LEVEL", "info", 1));
    CHECK_SYS(setenv("FI_LOG_SUBSYS", "ep_ctrl", 1));
}

void check_broken(int errors, const char *reason, unsigned count)
{
    char text[65536], line[256];

    end_capture(errors, text, sizeof text);
    snprintf(line, sizeof line, "is broken: %s", reason);
    if (count_words(text, line) != count || count_words(text, "is broken") != count)
        fail_at(__FILE__, __LINE__, "not %u times \"%s\" in: %s", count, line, text);
}

void settle(struct side *side, struct fid **fids, int count)
{
    AWAIT(PATIENCE_MS, fi_trywait(side->fabric, fids, count) == 0);
}

void check_idle(const char *what, int64_t cpu, int64_t ms)
{
    int64_t used = cpu_ms() - cpu;
    /* What an emulated processor counts includes time for which it had to wait. */
    int percent = on_rdma_device() ? 6 : 3;

    printf("%s: %lld ms of processor time in %lld ms\n", what, (long long)used, (long long)ms);
    CHECK_BETWEEN(used, 0, ms * percent / 100);
}

/* ---- messages ----------------------------------------------------------------------------- */

void post_recv(struct fid_ep *ep, void *data, size_t length, uintptr_t context)
{
    CHECK_OK(fi_recv(ep, data, length, NULL, FI_ADDR_UNSPEC, CONTEXT(context)));
}

void post_send(struct fid_ep *ep, const void *data, size_t length, uintptr_t context)
{
    CHECK_OK(fi_send(ep, data, length, NULL, FI_ADDR_UNSPEC, CONTEXT(context)));
}

enum { EACH_ROUNDS = 4, EACH_KINDS = 3, EACH_SENT = EACH_ROUNDS * EACH_KINDS, EACH_RECEIVES = 10, FIRST_RECEIVE = 100 };

void post_each_kind(struct side *side, uint64_t key)
{
    enum { READ_BYTES = 1000 };
    static uint8_t got[EACH_RECEIVES], fetched[EACH_ROUNDS][READ_BYTES];
    const void *data = pattern(0, PATTERN_MAX);

    for (unsigned i = 0; i < EACH_RECEIVES; i++)
        post_recv(side->ep, &got[i], 1, FIRST_RECEIVE + i);
    for (unsigned i = 0; i < EACH_ROUNDS; i++) {
        uintptr_t context = i * EACH_KINDS;

        CHECK_OK(fi_write(side->ep, data, PATTERN_MAX, NULL, FI_ADDR_UNSPEC, 0, key, CONTEXT(context)));
        post_send(side->ep, data, PATTERN_MAX, context + 1);
        CHECK_OK(fi_read(side->ep, fetched[i], READ_BYTES, NULL, FI_ADDR_UNSPEC, 0, key, CONTEXT(context + 2)));
    }
}

void check_each_kind_ended(struct fid_cq *cq)
{
    static const uint64_t kinds[EACH_KINDS] = {WRITTEN, SENT, WAS_READ};
    uintptr_t posted = 0, received = FIRST_RECEIVE;
    struct ending ending;

    while (posted < EACH_SENT || received < FIRST_RECEIVE + EACH_RECEIVES) {
        AWAIT(PATIENCE_MS, next_ending(cq, &ending));
        if (ending.context >= FIRST_RECEIVE) {
            CHECK_INT(ending.context, received++);
            CHECK_INT(ending.flags, RECEIVED);
            CHECK_INT(ending.err, FI_ECANCELED);
        } else {
            CHECK_INT(ending.context, posted);
            CHECK_INT(ending.flags, kinds[posted % EACH_KINDS]);
            /* TCP may have taken what comes before the first read. */
            if (ending.err != 0 || posted >= EACH_KINDS - 1)
                CHECK_INT(ending.err, FI_ECONNRESET);
            posted++;
        }
    }
    drive_for(20);
    check_no_completion(cq);
}

void check_calls(struct fid_ep *ep, ssize_t answer)
{
    static uint8_t byte;
    struct iovec piece = {&byte, 1};
    struct fi_rma_iov place = {.len = 1, .key = 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct fi_msg_rma access = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .rma_iov = &place,
                                .rma_iov_count = 1};

    CHECK_RET(fi_send(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, NULL), answer);
    CHECK_RET(fi_sendv(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, NULL), answer);
    CHECK_RET(fi_sendmsg(ep, &message, 0), answer);
    CHECK_RET(fi_senddata(ep, &byte, 1, NULL, 1, FI_ADDR_UNSPEC, NULL), answer);
    CHECK_RET(fi_inject(ep, &byte, 1, FI_ADDR_UNSPEC), answer);
    CHECK_RET(fi_injectdata(ep, &byte, 1, 1, FI_ADDR_UNSPEC), answer);
    CHECK_RET(fi_read(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 1, NULL), answer);
    CHECK_RET(fi_readv(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, 0, 1, NULL), answer);
    CHECK_RET(fi_readmsg(ep, &access, 0), answer);
    CHECK_RET(fi_write(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 1, NULL), answer);
    CHECK_RET(fi_writev(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, 0, 1, NULL), answer);
    CHECK_RET(fi_writemsg(ep, &access, 0), answer);
    CHECK_RET(fi_writedata(ep, &byte, 1, NULL, 1, FI_ADDR_UNSPEC, 0, 1, NULL), answer);
    CHECK_RET(fi_inject_write(ep, &byte, 1, FI_ADDR_UNSPEC, 0, 1), answer);
    CHECK_RET(fi_inject_writedata(ep, &byte, 1, 1, FI_ADDR_UNSPEC, 0, 1), answer);
}

void check_receives(struct fid_ep *ep, ssize_t answer)
{
    static uint8_t byte;
    struct iovec piece = {&byte, 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC};

    CHECK_RET(fi_recv(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, NULL), answer);
    CHECK_RET(fi_recvv(ep, &piece, NULL, 1, FI_ADDR_UNSPEC, NULL), answer);
    CHECK_RET(fi_recvmsg(ep, &message, 0), answer);
}

void message_transfer(struct side *from, struct side *to, size_t length)
{
    uint8_t *buffer = calloc(1, length + 1);

    CHECK(buffer != NULL);
    post_recv(to->ep, buffer, length + 1, 901);
    post_send(from->ep, pattern(length, length), length, 902);
    CHECK_INT(await_done(to->cq, 901, RECEIVED).len, length);
    (void)await_done(from->cq, 902, SENT);
    CHECK_BYTES(buffer, pattern(length, length), length);
    CHECK_INT(buffer[length], 0);
    free(buffer);
}

void messages_pass(struct pair *pair)
{
    message_transfer(&pair->client, &pair->server, 1000);
    message_transfer(&pair->server, &pair->client, 1000);
}

enum { SHORT = 64 };

static uint8_t slots[SERIES][SHORT];

void post_series(struct side *from, struct side *to, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        post_recv(to->ep, slots[i], SHORT, i);
    for (unsigned i = 0; i < count; i++)
        post_send(from->ep, pattern(i, SHORT), SHORT, i);
}

void read_series(struct fid_cq *cq, unsigned count, uint64_t flags, int ms)
{
    int64_t until = now_ms() + ms;
    struct fi_cq_data_entry entry;

    for (unsigned i = 0; i < count;) {
        ssize_t got = fi_cq_read(cq, &entry, 1);

        CHECK_BETWEEN(now_ms(), 0, until);
        if (got == -FI_EAGAIN)
            continue;
        CHECK_RET(got, 1);
        CHECK_INT((uintptr_t)entry.op_context, i);
        CHECK_INT(entry.flags, flags);
        if (flags == RECEIVED)
            CHECK_BYTES(slots[i], pattern(i, SHORT), SHORT);
        i++;
    }
}

int64_t message_series(struct side *from, struct side *to)
{
    int64_t start = now_us(), took;

    post_series(from, to, SERIES);
    read_series(from->cq, SERIES, SENT, PATIENCE_MS);
    took = now_us() - start;
    read_series(to->cq, SERIES, RECEIVED, PATIENCE_MS);
    return took;
}

/* ---- counters and calls by another thread -------------------------------------------------- */

struct fid_cntr *message_counter(struct side *side, enum fi_wait_obj wait)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
    struct fid_cntr *counter = NULL;

    CHECK_OK(fi_cntr_open(side->domain, &attr, &counter, NULL));
    return counter;
}

struct later {
    void (*call)(void *argument);
    void *argument;
};

static void *run_later(void *argument)
{
    struct later later = *(struct later *)argument;

    free(argument);
    sleep_ms(50);
    later.call(later.argument);
    return NULL;
}

pthread_t call_later(void (*call)(void *argument), void *argument)
{
    struct later *later = malloc(sizeof *later);
    pthread_t thread;

    CHECK(later != NULL);
    *later = (struct later){call, argument};
    CHECK_OK(pthread_create(&thread, NULL, run_later, later));
    return thread;
}

void close_client(void *pair)
{
    struct side *client = &((struct pair *)pair)->client;

    close_fid(&client->ep->fid);
    client->ep = NULL;
}

/* ---- memory ------------------------------------------------------------------------------- */

void *map_pages(size_t length)
{
    void *pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(pages != MAP_FAILED);
    return pages;
}

void unmap_pages(void *pages, size_t length)
{
    CHECK_SYS(munmap(pages, length));
}

struct fid_mr *message_region(struct side *side, void *data, size_t length, uint64_t key)
{
    const uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fid_mr *region = NULL;

    CHECK_OK(fi_mr_reg(side->domain, data, length, all, 0, key, 0, &region, NULL));
    return region;
}
