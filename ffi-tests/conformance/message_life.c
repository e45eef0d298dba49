/* Contract, section Message endpoints: discovery, opening and binding, connecting, and the end. */
#include "message.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "../iwarp_wire.h"

/* ---- discovery ---------------------------------------------------------------------------- */

static void message_attributes(void)
{
    const uint64_t order = FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAW | FI_ORDER_RAS | FI_ORDER_WAS | FI_ORDER_SAW |
                           FI_ORDER_SAS | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAW;
    struct fi_info *hints = message_hints(NULL), *list;
    unsigned count = 0;

    hints->caps = 0;
    list = find(IPV4, "7471", 0, hints);
    for (struct fi_info *info = list; info; info = info->next, count++) {
        CHECK(is_ours(info));
        CHECK_INT(info->ep_attr->type, FI_EP_MSG);
        CHECK_INT(info->ep_attr->protocol, FI_PROTO_IWARP);
        CHECK_INT(info->caps, FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
                              FI_REMOTE_WRITE | FI_RMA_EVENT | FI_LOCAL_COMM | FI_REMOTE_COMM);
        CHECK_INT(info->tx_attr->caps, FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE);
        CHECK_INT(info->rx_attr->caps, FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT);
        CHECK_INT(info->mode, 0);
        CHECK_INT(info->ep_attr->max_msg_size, UINT32_MAX);
        CHECK_INT(info->ep_attr->max_order_raw_size, SIZE_MAX);
        CHECK_INT(info->ep_attr->max_order_waw_size, SIZE_MAX);
        CHECK_INT(info->ep_attr->max_order_war_size, 0);
        CHECK_INT(info->tx_attr->size, MESSAGE_QUEUE);
        CHECK_INT(info->rx_attr->size, MESSAGE_QUEUE);
        CHECK_INT(info->tx_attr->inject_size, MESSAGE_INJECT);
        CHECK_INT(info->tx_attr->iov_limit, MESSAGE_IOVS);
        CHECK_INT(info->tx_attr->rma_iov_limit, MESSAGE_IOVS);
        CHECK_INT(info->rx_attr->iov_limit, MESSAGE_IOVS);
        CHECK_INT(info->tx_attr->msg_order, order);
        CHECK_INT(info->rx_attr->msg_order, order);
        CHECK_INT(info->domain_attr->mr_mode, 0);
        CHECK_INT(info->domain_attr->mr_key_size, 8);
        CHECK_INT(info->domain_attr->cq_data_size, 8);
        CHECK_INT(info->domain_attr->threading, FI_THREAD_SAFE);
        CHECK_INT(info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
        CHECK_INT(info->domain_attr->max_ep_srx_ctx > 0, 1);
    }
    CHECK_AT_LEAST(count, 1);
    fi_freeinfo(list);
    fi_freeinfo(hints);
}

/* Of the primary capabilities only those are enabled that are asked for, in all directions if none is named. */
static void asked_capabilities(void)
{
    const uint64_t hosts = FI_LOCAL_COMM | FI_REMOTE_COMM, messages = FI_MSG | FI_SEND | FI_RECV;
    const uint64_t memory = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT;
    const struct {
        uint64_t asked, all, tx, rx;
    } cases[] = {
        {FI_MSG, messages | hosts, FI_MSG | FI_SEND, FI_MSG | FI_RECV},
        {FI_MSG | FI_SEND, FI_MSG | FI_SEND | hosts, FI_MSG | FI_SEND, FI_MSG},
        {FI_RMA, memory | hosts, FI_RMA | FI_READ | FI_WRITE, memory & ~(FI_READ | FI_WRITE)},
        {FI_MSG | FI_RMA | FI_READ, messages | FI_RMA | FI_READ | FI_RMA_EVENT | hosts,
         FI_MSG | FI_SEND | FI_RMA | FI_READ, FI_MSG | FI_RECV | FI_RMA | FI_RMA_EVENT},
        {FI_LOCAL_COMM, messages | memory | hosts, FI_MSG | FI_SEND | FI_RMA | FI_READ | FI_WRITE,
         FI_MSG | FI_RECV | (memory & ~(FI_READ | FI_WRITE))},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fi_info *hints = message_hints(NULL), *info;

        hints->caps = cases[i].asked;
        info = find(IPV4, "7471", 0, hints);
        CHECK_INT(info->caps, cases[i].all);
        CHECK_INT(info->tx_attr->caps, cases[i].tx);
        CHECK_INT(info->rx_attr->caps, cases[i].rx);
        fi_freeinfo(info);
        fi_freeinfo(hints);
    }
}

/* What fi_getinfo would not answer opens no endpoint either. */
static void changed_infos(void)
{
    struct side side, listener;
    struct fid_ep *ep = NULL;

    message_listen(&listener, NULL);
    message_client(&side, &listener, NULL);
#define REFUSED_WITH(field, value)                                                                  \
    do {                                                                                            \
        struct fi_info *info_ = fi_dupinfo(side.info);                                              \
                                                                                                    \
        info_->field = (value);                                                                     \
        CHECK_RET(fi_endpoint(side.domain, info_, &ep, NULL), -FI_ENODATA);                         \
        fi_freeinfo(info_);                                                                         \
    } while (0)
    REFUSED_WITH(ep_attr->type, FI_EP_RDM);
    REFUSED_WITH(ep_attr->type, FI_EP_DGRAM);
    REFUSED_WITH(ep_attr->max_msg_size, (size_t)UINT32_MAX + 1);
    REFUSED_WITH(tx_attr->inject_size, MESSAGE_INJECT + 1);
    REFUSED_WITH(tx_attr->iov_limit, MESSAGE_IOVS + 1);
    REFUSED_WITH(tx_attr->size, (size_t)1 << 30);
    REFUSED_WITH(rx_attr->size, (size_t)1 << 30);
    REFUSED_WITH(rx_attr->op_flags, FI_MULTI_RECV);
    CHECK(ep == NULL);
    CHECK_OK(fi_endpoint(side.domain, side.info, &ep, NULL));
    close_fid(&ep->fid);
    side_close(&side);
    side_close(&listener);
}

/* Addresses in different networks belong to different fabrics, each of which answers for itself alone. */
static void fabric_of_network(void)
{
    struct fi_info *hints = message_hints(NULL), *all, *one;

    all = find(NULL, NULL, 0, hints);
    for (one = all; one; one = one->next) {
        struct fi_info *named;
        bool found = false;

        hints->fabric_attr->name = strdup(one->fabric_attr->name);
        named = find(NULL, NULL, 0, hints);
        for (struct fi_info *same = named; same; same = same->next) {
            CHECK_INT(strcmp(same->fabric_attr->name, one->fabric_attr->name), 0);
            found = found || memcmp(same->src_addr, one->src_addr, one->src_addrlen) == 0;
        }
        CHECK(found);
        fi_freeinfo(named);
        free(hints->fabric_attr->name);
        hints->fabric_attr->name = NULL;
    }
    fi_freeinfo(all);

    one = find("127.1.2.3", NULL, FI_SOURCE, hints);
    CHECK_INT(strcmp(one->fabric_attr->name, "iwarp-127.0.0.0/8"), 0);
    fi_freeinfo(one);
    one = find("::1", "7471", 0, hints);
    CHECK_INT(strcmp(one->fabric_attr->name, "iwarp-::1/128"), 0);
    fi_freeinfo(one);
    /* The wildcard is in no network. The name of all of them is answered as it is. */
    one = find(NULL, "0", FI_SOURCE, hints);
    CHECK_INT(strcmp(one->fabric_attr->name, "iwarp"), 0);
    fi_freeinfo(one);
    hints->fabric_attr->name = strdup("iwarp");
    one = find(IPV4, "7471", 0, hints);
    CHECK_INT(strcmp(one->fabric_attr->name, "iwarp"), 0);
    fi_freeinfo(one);
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup("iwarp-192.0.2.128/25");
    CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &one), -FI_ENODATA);
    /* Streams have the one fabric. */
    hints->ep_attr->type = FI_EP_SOCK_STREAM;
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup("iwarp-127.0.0.0/8");
    CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &one), -FI_ENODATA);
    fi_freeinfo(hints);
}

/* Asks with one hint of its own. */
#define ASK(field, value, answer)                                                                   \
    do {                                                                                            \
        struct fi_info *hints_ = message_hints(NULL), *info_ = NULL;                                \
                                                                                                    \
        hints_->field = (value);                                                                    \
        CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints_, &info_), answer);                   \
        fi_freeinfo(hints_);                                                                        \
        if (info_)                                                                                  \
            fi_freeinfo(info_);                                                                     \
    } while (0)

static void filters(void)
{
    /* FI_ORDER_STRICT and FI_ORDER_DATA, which later headers call deprecated. */
    const uint64_t strict = 0x1ff, data = 1 << 16;

    ASK(caps, FI_MSG | FI_TAGGED, -FI_ENODATA);
    ASK(caps, FI_MSG | FI_ATOMIC, -FI_ENODATA);
    ASK(caps, FI_MSG | FI_MULTI_RECV, -FI_ENODATA);
    ASK(caps, FI_RMA | FI_REMOTE_READ, 0);
    ASK(mode, ~0ULL, 0);
    ASK(ep_attr->protocol, FI_PROTO_IWARP, 0);
    ASK(ep_attr->protocol, FI_PROTO_SOCK_TCP, -FI_ENODATA);
    ASK(ep_attr->max_msg_size, UINT32_MAX, 0);
    ASK(ep_attr->max_msg_size, (size_t)UINT32_MAX + 1, -FI_ENODATA);
    ASK(ep_attr->tx_ctx_cnt, 2, -FI_ENODATA);
    ASK(ep_attr->tx_ctx_cnt, FI_SHARED_CONTEXT, -FI_ENODATA);
    ASK(ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT, 0);
    ASK(ep_attr->rx_ctx_cnt, 2, -FI_ENODATA);
    ASK(tx_attr->inject_size, MESSAGE_INJECT, 0);
    ASK(tx_attr->inject_size, MESSAGE_INJECT + 1, -FI_ENODATA);
    ASK(tx_attr->iov_limit, MESSAGE_IOVS + 1, -FI_ENODATA);
    ASK(tx_attr->comp_order, strict, 0);
    ASK(tx_attr->comp_order, strict | data, -FI_ENODATA);
    ASK(rx_attr->comp_order, data, -FI_ENODATA);
    ASK(domain_attr->resource_mgmt, FI_RM_ENABLED, 0);
    ASK(domain_attr->resource_mgmt, (enum fi_resource_mgmt)(FI_RM_ENABLED + 1), -FI_ENODATA);
    ASK(domain_attr->max_err_data, 201, -FI_ENODATA);
    ASK(tx_attr->rma_iov_limit, MESSAGE_IOVS + 1, -FI_ENODATA);
    ASK(rx_attr->iov_limit, MESSAGE_IOVS + 1, -FI_ENODATA);
    ASK(tx_attr->size, 1 << 17, 0);
    ASK(tx_attr->size, (1 << 17) + 1, -FI_ENODATA);
    ASK(rx_attr->size, (1 << 17) + 1, -FI_ENODATA);
    ASK(tx_attr->msg_order, FI_ORDER_SAS | FI_ORDER_RAW, 0);
    ASK(tx_attr->msg_order, FI_ORDER_WAR, -FI_ENODATA);
    ASK(rx_attr->msg_order, FI_ORDER_SAR, -FI_ENODATA);
    ASK(tx_attr->op_flags, FI_DELIVERY_COMPLETE | FI_INJECT | FI_COMPLETION, 0);
    ASK(tx_attr->op_flags, FI_MATCH_COMPLETE, -FI_ENODATA);
    ASK(rx_attr->op_flags, FI_COMPLETION, 0);
    ASK(rx_attr->op_flags, FI_MULTI_RECV, -FI_ENODATA);
    ASK(domain_attr->cq_data_size, 8, 0);
    ASK(domain_attr->cq_data_size, 9, -FI_ENODATA);
    ASK(domain_attr->mr_key_size, 9, -FI_ENODATA);
    ASK(domain_attr->data_progress, FI_PROGRESS_AUTO, -FI_ENODATA);
    ASK(domain_attr->control_progress, FI_PROGRESS_AUTO, 0);
    ASK(domain_attr->mr_mode, ~(MR_BASIC | MR_SCALABLE), 0);
    ASK(domain_attr->threading, FI_THREAD_COMPLETION, 0);
    ASK(addr_format, FI_SOCKADDR_IN6, -FI_ENODATA);
    ASK(domain_attr->name, strdup("no such domain"), -FI_ENODATA);
    ASK(fabric_attr->name, strdup("no such fabric"), -FI_ENODATA);
}

/* An info given as hints is the first answer: ofi_rxm opens what it finds in this way. */
static void answers_itself(void)
{
    struct fi_info *hints = message_hints(NULL), *list = find(NULL, NULL, 0, hints);

    for (struct fi_info *one = list; one; one = one->next) {
        struct fi_info *again = NULL;

        CHECK_OK(fi_getinfo(TEST_API, NULL, NULL, 0, one, &again));
        CHECK_INT(again->ep_attr->type, FI_EP_MSG);
        CHECK(strcmp(again->fabric_attr->name, one->fabric_attr->name) == 0);
        CHECK(strcmp(again->domain_attr->name, one->domain_attr->name) == 0);
        CHECK_INT(again->src_addrlen, one->src_addrlen);
        CHECK(one->src_addr == NULL || memcmp(again->src_addr, one->src_addr, one->src_addrlen) == 0);
        fi_freeinfo(again);
    }
    fi_freeinfo(list);
    fi_freeinfo(hints);
}

/* Without a type, infos of streams come first. */
static void behind_streams(void)
{
    struct fi_info *hints = message_hints(NULL), *list;
    bool messages = false, streams = false;

    hints->ep_attr->type = FI_EP_UNSPEC;
    list = find(IPV4, "7471", 0, hints);
    for (struct fi_info *one = list; one; one = one->next) {
        if (!is_ours(one))
            continue;
        if (one->ep_attr->type == FI_EP_MSG)
            messages = true;
        else
            CHECK(!messages);
        streams = streams || !messages;
    }
    CHECK(messages && streams);
    fi_freeinfo(list);
    /* What only one of them has decides. Infos of ofi_rxm, which is layered on messages, may be among the others. */
    hints->caps = FI_RMA;
    messages = false;
    list = find(IPV4, "7471", 0, hints);
    for (struct fi_info *one = list; one; one = one->next) {
        if (is_ours(one)) {
            CHECK_INT(one->ep_attr->type, FI_EP_MSG);
            messages = true;
        }
    }
    CHECK(messages);
    fi_freeinfo(list);
    fi_freeinfo(hints);
}

static void sizes_as_asked(void)
{
    struct message_settings settings = {.tx_size = 17, .rx_size = 1000, .tx_flags = FI_TRANSMIT_COMPLETE};
    struct fi_info *hints = message_hints(&settings), *info;

    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    info = find(IPV4, "7471", 0, hints);
    CHECK_INT(info->tx_attr->size, 17);
    CHECK_INT(info->rx_attr->size, 1000);
    CHECK_INT(info->tx_attr->op_flags, FI_TRANSMIT_COMPLETE);
    CHECK_INT(info->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* ---- opening and binding ------------------------------------------------------------------ */

static void binding(void)
{
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    struct side side, listener;
    struct fid_ep *ep;

    message_listen(&listener, NULL);
    message_client(&side, &listener, NULL);
    message_queue(&side, NULL);
    CHECK_OK(fi_cntr_open(side.domain, &cntr_attr, &counter, NULL));
    CHECK_OK(fi_endpoint(side.domain, side.info, &ep, CONTEXT(5)));
    CHECK(ep->fid.context == CONTEXT(5));
    CHECK_RET(fi_enable(ep), -FI_ENOEQ);
    CHECK_RET(fi_connect(ep, side.info->dest_addr, NULL, 0), -FI_ENOEQ);
    CHECK_RET(fi_ep_bind(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &side.domain->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &listener.pep->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &side.eq->fid, 1), -FI_EBADFLAGS);
    CHECK_OK(fi_ep_bind(ep, &side.eq->fid, 0));
    CHECK_RET(fi_ep_bind(ep, &side.eq->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_enable(ep), -FI_ENOCQ);
    CHECK_RET(fi_connect(ep, side.info->dest_addr, NULL, 0), -FI_ENOCQ);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_SELECTIVE_COMPLETION), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT | 1ULL << 45), -FI_EBADFLAGS);
    CHECK_OK(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT));
    CHECK_RET(fi_enable(ep), -FI_ENOCQ);
    CHECK_RET(fi_connect(ep, side.info->dest_addr, NULL, 0), -FI_ENOCQ);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
    CHECK_OK(fi_ep_bind(ep, &side.cq->fid, FI_RECV));
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_RECV), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(ep, &counter->fid, 1ULL << 45), -FI_EBADFLAGS);
    CHECK_OK(fi_ep_bind(ep, &counter->fid, FI_SEND));
    /* In use. */
    CHECK_RET(fi_close(&side.cq->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&side.domain->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&side.eq->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&counter->fid), -FI_EBUSY);
    CHECK_OK(fi_enable(ep));
    CHECK_OK(fi_enable(ep));
    CHECK_RET(fi_ep_bind(ep, &side.eq->fid, 0), -FI_EOPBADSTATE);
    CHECK_RET(fi_ep_bind(ep, &side.cq->fid, FI_TRANSMIT), -FI_EOPBADSTATE);
    CHECK_RET(fi_ep_bind(ep, &counter->fid, FI_RECV), -FI_EOPBADSTATE);
    CHECK_RET(fi_close(&side.cq->fid), -FI_EBUSY);
    CHECK_RET(fi_close(&counter->fid), -FI_EBUSY);
    close_fid(&ep->fid);
    close_fid(&counter->fid);
    side_close(&side);
    side_close(&listener);
}

/* A queue for receives alone is not enough either. What is missing can be bound later. */
static void accepting_needs_queues(void)
{
    struct side listener, client, server;
    struct event request;

    request = message_request(&listener, &client, NULL);
    side_share(&server, &listener, request.info);
    message_queue(&server, NULL);
    CHECK_OK(fi_endpoint(server.domain, server.info, &server.ep, NULL));
    CHECK_RET(fi_accept(server.ep, NULL, 0), -FI_ENOEQ);
    CHECK_OK(fi_ep_bind(server.ep, &server.eq->fid, 0));
    CHECK_RET(fi_accept(server.ep, NULL, 0), -FI_ENOCQ);
    CHECK_OK(fi_ep_bind(server.ep, &server.cq->fid, FI_RECV));
    CHECK_RET(fi_accept(server.ep, NULL, 0), -FI_ENOCQ);
    CHECK_RET(fi_enable(server.ep), -FI_ENOCQ);
    CHECK_OK(fi_ep_bind(server.ep, &server.cq->fid, FI_TRANSMIT));
    message_accept(&client, &server);
    message_transfer(&client, &server, 100);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* Objects of another domain are not those of this one, of which an endpoint knows places and counts. */
static void binding_foreign(void)
{
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cntr *counter = NULL;
    struct fid_ep *shared = NULL;
    struct side one, other, listener;

    message_listen(&listener, NULL);
    message_client(&one, &listener, NULL);
    message_client(&other, &listener, NULL);
    message_queue(&other, NULL);
    CHECK_OK(fi_cntr_open(other.domain, &cntr_attr, &counter, NULL));
    CHECK_OK(fi_srx_context(other.domain, NULL, &shared, NULL));
    CHECK_OK(fi_endpoint(one.domain, one.info, &one.ep, NULL));
    CHECK_RET(fi_ep_bind(one.ep, &other.cq->fid, FI_TRANSMIT | FI_RECV), -FI_EDOMAIN);
    CHECK_RET(fi_ep_bind(one.ep, &counter->fid, FI_SEND), -FI_EDOMAIN);
    CHECK_RET(fi_ep_bind(one.ep, &shared->fid, 0), -FI_EDOMAIN);
    close_fid(&shared->fid);
    close_fid(&counter->fid);
    side_close(&other);
    side_close(&one);
    side_close(&listener);
}

static void states(void)
{
    struct side listener, client, server;
    struct fi_cq_data_entry entry;
    struct event request;
    uint8_t got, late;

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    message_endpoint(&client, NULL);
    /* Not enabled. */
    check_receives(client.ep, -FI_EOPBADSTATE);
    check_calls(client.ep, -FI_EOPBADSTATE);
    CHECK_RET(fi_cancel(&client.ep->fid, NULL), -FI_EOPBADSTATE);
    CHECK_RET(fi_shutdown(client.ep, 0), -FI_ENOTCONN);
    CHECK_RET(fi_accept(client.ep, NULL, 0), -FI_EOPBADSTATE);
    /* Enabled, not connected: receives can be posted. */
    CHECK_OK(fi_enable(client.ep));
    post_recv(client.ep, &got, 1, 1);
    check_calls(client.ep, -FI_ENOTCONN);
    CHECK_RET(fi_shutdown(client.ep, 0), -FI_ENOTCONN);
    CHECK_RET(fi_getpeer(client.ep, &(struct sockaddr_in){0}, &(size_t){sizeof(struct sockaddr_in)}), -FI_ENOTCONN);
    /* Connecting. */
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    check_calls(client.ep, -FI_EAGAIN);
    post_recv(client.ep, &late, 1, 2);
    CHECK_RET(fi_connect(client.ep, client.info->dest_addr, NULL, 0), -FI_EALREADY);
    CHECK_RET(fi_shutdown(client.ep, 0), -FI_ENOTCONN);
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, NULL);
    /* Enabled, not accepted. */
    CHECK_OK(fi_enable(server.ep));
    check_calls(server.ep, -FI_ENOTCONN);
    CHECK_RET(fi_shutdown(server.ep, 0), -FI_ENOTCONN);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    CHECK(fi_accept(server.ep, NULL, 0) < 0);
    (void)await_event(client.eq, FI_CONNECTED);
    (void)await_event(server.eq, FI_CONNECTED);
    /* Connected. */
    CHECK_RET(fi_connect(client.ep, client.info->dest_addr, NULL, 0), -FI_EISCONN);
    CHECK(fi_accept(server.ep, NULL, 0) < 0);
    CHECK_RET(fi_setname(&client.ep->fid, client.info->dest_addr, client.info->dest_addrlen), -FI_EOPBADSTATE);
    CHECK_RET(fi_shutdown(client.ep, 1ULL << 45), -FI_EBADFLAGS);
    CHECK_OK(fi_inject(server.ep, "x", 1, FI_ADDR_UNSPEC));
    (void)await_done(client.cq, 1, RECEIVED);
    /* Over: -FI_EAGAIN until the event is read that says so. */
    CHECK_OK(fi_shutdown(client.ep, 0));
    check_calls(client.ep, -FI_EAGAIN);
    check_receives(client.ep, -FI_EAGAIN);
    CHECK(await_event(client.eq, FI_SHUTDOWN).fid == &client.ep->fid);
    check_calls(client.ep, -FI_ENOTCONN);
    check_receives(client.ep, -FI_ENOTCONN);
    (void)await_failed(client.cq, 2, RECEIVED, FI_ECANCELED);
    CHECK_RET(fi_shutdown(client.ep, 0), -FI_ENOTCONN);
    CHECK_RET(fi_connect(client.ep, client.info->dest_addr, NULL, 0), -FI_EOPBADSTATE);
    CHECK(await_event(server.eq, FI_SHUTDOWN).fid == &server.ep->fid);
    check_no_event(client.eq);
    check_no_event(server.eq);
    CHECK_RET(fi_cq_read(client.cq, &entry, 1), -FI_EAGAIN);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* Posts `count` receives of a byte each, from the first context on. */
static void post_many(struct fid_ep *ep, uint8_t *got, size_t count)
{
    for (size_t i = 0; i < count; i++)
        post_recv(ep, &got[i], 1, i);
}

static void check_received(struct fid_cq *cq, const uint8_t *got, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK_INT(await_done(cq, i, RECEIVED).len, 1);
    CHECK_BYTES(got, pattern(0, count), count);
    check_no_completion(cq);
}

static void inject_many(struct fid_ep *ep, size_t count)
{
    for (size_t i = 0; i < count; i++)
        AWAIT(PATIENCE_MS, fi_inject(ep, pattern(i, 1), 1, FI_ADDR_UNSPEC) == 0);
}

/* All receives that were asked for have room before either side is connected. */
static void early_receives(void)
{
    enum { MOST = 1000 };
    const struct message_settings cases[] = {{0}, {.rx_size = MOST}, {.rx_size = 1}};
    const size_t counts[] = {MESSAGE_QUEUE, MOST, 1};

    for (unsigned i = 0; i < 3; i++) {
        struct side listener, client, server;
        uint8_t got[2][MOST] = {{0}}, more;
        struct event request;
        size_t count = counts[i];

        note("%zu receives", count);
        message_listen(&listener, &cases[i]);
        message_client(&client, &listener, &cases[i]);
        message_endpoint(&client, &cases[i]);
        CHECK_OK(fi_enable(client.ep));
        CHECK_INT(client.info->rx_attr->size, count);
        post_many(client.ep, got[0], count);
        CHECK_RET(fi_recv(client.ep, &more, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        CHECK_RET(fi_recv(client.ep, &more, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
        request = await_event(listener.eq, FI_CONNREQ);
        message_server(&listener, &server, &request, &cases[i]);
        CHECK_OK(fi_enable(server.ep));
        CHECK_INT(server.info->rx_attr->size, count);
        post_many(server.ep, got[1], count);
        CHECK_RET(fi_recv(server.ep, &more, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
        message_accept(&client, &server);
        inject_many(server.ep, count);
        check_received(client.cq, got[0], count);
        inject_many(client.ep, count);
        check_received(server.cq, got[1], count);
        side_close(&client);
        side_close(&server);
        side_close(&listener);
    }
}

/* A passive endpoint that does not listen passes its address on. */
static void takes_over_address(void)
{
    struct side side, listener, server;
    struct sockaddr_in address = ipv4_address(0);
    struct sockaddr_in bound;
    size_t length = sizeof bound;
    struct event request;
    struct fid_ep *ep;

    message_listen(&listener, NULL);
    message_client(&side, &listener, NULL);
    CHECK_OK(fi_passive_ep(side.fabric, side.info, &side.pep, NULL));
    address.sin_port = htons((uint16_t)(20000 + getpid() % 10000));
    CHECK_OK(fi_setname(&side.pep->fid, &address, sizeof address));
    side.info->handle = &side.pep->fid;
    message_endpoint(&side, NULL);
    CHECK_OK(fi_getname(&side.ep->fid, &bound, &length));
    CHECK_INT(bound.sin_port, address.sin_port);
    side.info->handle = NULL;
    /* It connects from there. */
    CHECK_OK(fi_connect(side.ep, side.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_INT(address_port(request.info->dest_addr), ntohs(address.sin_port));
    message_server(&listener, &server, &request, NULL);
    message_accept(&side, &server);
    CHECK_OK(fi_getname(&side.ep->fid, &bound, &length));
    CHECK_INT(bound.sin_port, address.sin_port);
    CHECK_INT(bound.sin_addr.s_addr, address.sin_addr.s_addr);
    message_transfer(&side, &server, 100);
    side_close(&server);
    /* Other objects are no handles. */
    side.info->handle = &side.eq->fid;
    CHECK_RET(fi_endpoint(side.domain, side.info, &ep, NULL), -FI_EINVAL);
    side.info->handle = NULL;
    side_close(&side);
    side_close(&listener);
}

/* An address of either family. */
union address {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static union address name_of(struct fid *fid)
{
    union address address = {.v6 = {0}};
    size_t length = sizeof address;

    CHECK_OK(fi_getname(fid, &address, &length));
    return address;
}

static union address peer_of(struct fid_ep *ep)
{
    union address address = {.v6 = {0}};
    size_t length = sizeof address;

    CHECK_OK(fi_getpeer(ep, &address, &length));
    return address;
}

static void check_same(union address got, union address wanted)
{
    CHECK_INT(got.v4.sin_family, wanted.v4.sin_family);
    CHECK_INT(address_port(&got), address_port(&wanted));
    if (got.v4.sin_family == AF_INET)
        CHECK_INT(got.v4.sin_addr.s_addr, wanted.v4.sin_addr.s_addr);
    else
        CHECK_BYTES(&got.v6.sin6_addr, &wanted.v6.sin6_addr, sizeof got.v6.sin6_addr);
}

static void names_on(const char *host, unsigned family)
{
    struct message_settings settings = {.host = host};
    struct side listener, client, server;
    struct event request;
    union address own;

    message_listen(&listener, &settings);
    message_client(&client, &listener, &settings);
    message_endpoint(&client, &settings);
    own = name_of(&client.ep->fid);
    CHECK_INT(own.v4.sin_family, family);
    CHECK_INT(address_port(&own), 0);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, &settings);
    message_accept(&client, &server);
    own = name_of(&client.ep->fid);
    CHECK_INT(own.v4.sin_family, family);
    CHECK(address_port(&own) != 0);
    check_same(peer_of(server.ep), own);
    check_same(peer_of(client.ep), name_of(&server.ep->fid));
    check_same(peer_of(client.ep), name_of(&listener.pep->fid));
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void message_names(void)
{
    names_on(IPV4, AF_INET);
    names_on(IPV6, AF_INET6);
}

/* Those of streams are unknown here. */
static void other_options(void)
{
    const int options[] = {FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE, FI_OPT_TX_SIZE, FI_OPT_RX_SIZE,
                           FI_OPT_MIN_MULTI_RECV, 12345};
    struct side listener, client;
    struct fid *fids[2];
    size_t value = 64;

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    message_endpoint(&client, NULL);
    fids[0] = &client.ep->fid;
    fids[1] = &listener.pep->fid;
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned n = 0; n < sizeof options / sizeof options[0]; n++) {
            size_t length = sizeof value;

            note("option %d of %s", options[n], i ? "a passive endpoint" : "an endpoint");
            CHECK_RET(fi_getopt(fids[i], FI_OPT_ENDPOINT, options[n], &value, &length), -FI_ENOPROTOOPT);
            CHECK_RET(fi_setopt(fids[i], FI_OPT_ENDPOINT, options[n], &value, sizeof value), -FI_ENOPROTOOPT);
        }
        CHECK_RET(fi_getopt(fids[i], FI_OPT_ENDPOINT + 1, FI_OPT_CM_DATA_SIZE, &value, &(size_t){sizeof value}),
                  -FI_ENOPROTOOPT);
        CHECK_RET(fi_setopt(fids[i], FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, sizeof value), -FI_ENOPROTOOPT);
    }
    CHECK_INT(value, 64);
    side_close(&client);
    side_close(&listener);
}

/* ---- connecting --------------------------------------------------------------------------- */

static void connection_data(void)
{
    struct side listener, client, server;
    size_t value = 0, length = sizeof value;

    message_listen(&listener, NULL);
    CHECK_OK(fi_getopt(&listener.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &length));
    CHECK_INT(value, MESSAGE_CM_DATA);
    for (size_t bytes = 0; bytes <= MESSAGE_CM_DATA; bytes += bytes < 10 ? 1 : 19) {
        struct event event;

        note("%zu bytes", bytes);
        message_client(&client, &listener, NULL);
        message_endpoint(&client, NULL);
        CHECK_OK(fi_getopt(&client.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &length));
        CHECK_INT(value, MESSAGE_CM_DATA);
        CHECK_RET(fi_connect(client.ep, client.info->dest_addr, pattern(0, 201), 201), -FI_EINVAL);
        CHECK_RET(fi_connect(client.ep, client.info->dest_addr, NULL, 5), -FI_EINVAL);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, pattern(1, bytes), bytes));
        event = await_event(listener.eq, FI_CONNREQ);
        CHECK_INT(event.data_length, bytes);
        CHECK_BYTES(event.data, pattern(1, bytes), bytes);
        CHECK(event.fid == &listener.pep->fid);
        CHECK_INT(event.info->ep_attr->type, FI_EP_MSG);
        CHECK(event.info->handle != NULL && event.info->dest_addr != NULL);
        CHECK_INT(address_port(event.info->src_addr), fid_port(&listener.pep->fid));
        message_server(&listener, &server, &event, NULL);
        CHECK_RET(fi_accept(server.ep, pattern(0, 201), 201), -FI_EINVAL);
        CHECK_OK(fi_accept(server.ep, pattern(2, bytes), bytes));
        event = await_event(client.eq, FI_CONNECTED);
        CHECK_INT(event.data_length, bytes);
        CHECK_BYTES(event.data, pattern(2, bytes), bytes);
        CHECK_INT(await_event(server.eq, FI_CONNECTED).data_length, 0);
        side_close(&client);
        side_close(&server);
    }
    side_close(&listener);
}

static void rejected(void)
{
    const size_t lengths[] = {0, 1, 2, 100, MESSAGE_CM_DATA};
    struct side listener, client;

    message_listen(&listener, NULL);
    for (unsigned i = 0; i < 5; i++) {
        struct fi_eq_err_entry error;
        struct event request;
        uint8_t data[256];

        message_client(&client, &listener, NULL);
        message_endpoint(&client, NULL);
        CHECK_OK(fi_enable(client.ep));
        post_recv(client.ep, data, 1, 4);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        request = await_event(listener.eq, FI_CONNREQ);
        CHECK_RET(fi_reject(listener.pep, request.info->handle, pattern(0, 201), 201), -FI_EINVAL);
        CHECK_OK(fi_reject(listener.pep, request.info->handle, pattern(6, lengths[i]), lengths[i]));
        CHECK_RET(fi_reject(listener.pep, request.info->handle, NULL, 0), -FI_EINVAL);
        fi_freeinfo(request.info);
        error = await_error(client.eq, data, sizeof data);
        CHECK_INT(error.err, FI_ECONNREFUSED);
        CHECK(error.fid == &client.ep->fid);
        CHECK_INT(error.err_data_size, lengths[i]);
        CHECK_BYTES(data, pattern(6, lengths[i]), lengths[i]);
        check_no_event(client.eq);
        CHECK_RET(fi_send(client.ep, "x", 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
        close_fid(&client.ep->fid);
        client.ep = NULL;
        (void)await_failed(client.cq, 4, RECEIVED, FI_ECANCELED);
        side_close(&client);
    }
    side_close(&listener);
}

static void nobody_listens(void)
{
    struct side listener, client;
    struct fi_eq_err_entry error;

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    side_close(&listener);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    error = await_error(client.eq, NULL, 0);
    CHECK_INT(error.err, FI_ECONNREFUSED);
    side_close(&client);
}

/* A stream's request opens no message endpoint. */
static void stream_request(struct side *streams)
{
    struct side client, server;
    struct event request;
    struct fid_domain *domain;
    struct fid_ep *ep;

    side_active(&client, IPV4, fid_port(&streams->pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(streams->eq, FI_CONNREQ);
    request.info->ep_attr->type = FI_EP_MSG;
    CHECK_OK(fi_domain(streams->fabric, request.info, &domain, NULL));
    CHECK_RET(fi_endpoint(domain, request.info, &ep, NULL), -FI_EINVAL);
    close_fid(&domain->fid);
    request.info->ep_attr->type = (enum fi_ep_type)FI_EP_SOCK_STREAM;
    accept_request(streams, &server, &request, NULL, 0);
    (void)await_event(client.eq, FI_CONNECTED);
    (void)await_event(server.eq, FI_CONNECTED);
    transfer(client.ep, server.ep, 1000);
    side_close(&client);
    side_close(&server);
}

/* The attempt is rejected, without data of an application, because of the kind of the endpoint. */
static void check_refused(struct side *client)
{
    struct fi_eq_err_entry error = await_error(client->eq, NULL, 0);

    CHECK(error.fid == &client->ep->fid);
    CHECK_INT(error.err, FI_ECONNREFUSED);
    CHECK_INT(error.err_data_size, 0);
    CHECK(strstr(fi_eq_strerror(client->eq, error.prov_errno, NULL, NULL, 0), "of another kind") != NULL);
    check_no_event(client->eq);
}

/* Streams and messages are refused by each other's listeners, which live on. */
static void other_kind(void)
{
    struct side messages, streams, client, server;
    struct event request;

    message_listen(&messages, NULL);
    side_listen(&streams, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&messages.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    check_refused(&client);
    side_close(&client);
    check_no_event(messages.eq);

    message_client(&client, &streams, NULL);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    check_refused(&client);
    side_close(&client);
    check_no_event(streams.eq);

    message_client(&client, &messages, NULL);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(messages.eq, FI_CONNREQ);
    /* The request opens no stream. */
    request.info->ep_attr->type = (enum fi_ep_type)FI_EP_SOCK_STREAM;
    CHECK_RET(fi_endpoint(messages.domain, request.info, &server.ep, NULL), -FI_EINVAL);
    request.info->ep_attr->type = FI_EP_MSG;
    message_server(&messages, &server, &request, NULL);
    message_accept(&client, &server);
    message_transfer(&client, &server, 100);
    side_close(&client);
    side_close(&server);
    stream_request(&streams);
    side_close(&messages);
    side_close(&streams);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* What was sent before arrives; receives that nothing reached are cancelled; both sides are told once. */
static void shutdown_from(bool client_ends)
{
    static uint8_t got[3][70000];
    struct pair pair;
    struct side *ends, *other;

    messages_open(&pair, NULL);
    ends = client_ends ? &pair.client : &pair.server;
    other = client_ends ? &pair.server : &pair.client;
    for (unsigned i = 0; i < 3; i++)
        post_recv(other->ep, got[i], sizeof got[i], i);
    post_recv(ends->ep, got[0], 1, 20);
    post_send(ends->ep, pattern(0, 70000), 70000, 10);
    CHECK_OK(fi_inject(ends->ep, pattern(1, 100), 100, FI_ADDR_UNSPEC));
    CHECK_OK(fi_shutdown(ends->ep, 0));
    CHECK_INT(await_done(other->cq, 0, RECEIVED).len, 70000);
    CHECK_BYTES(got[0], pattern(0, 70000), 70000);
    CHECK_INT(await_done(other->cq, 1, RECEIVED).len, 100);
    (void)await_failed(other->cq, 2, RECEIVED, FI_ECANCELED);
    CHECK(await_event(ends->eq, FI_SHUTDOWN).fid == &ends->ep->fid);
    CHECK(await_event(other->eq, FI_SHUTDOWN).fid == &other->ep->fid);
    (void)await_done(ends->cq, 10, SENT);
    (void)await_failed(ends->cq, 20, RECEIVED, FI_ECANCELED);
    check_no_event(ends->eq);
    check_no_event(other->eq);
    check_no_completion(ends->cq);
    check_no_completion(other->cq);
    pair_close(&pair);
}

static void shuts_down(void)
{
    shutdown_from(true);
    shutdown_from(false);
}

/* A server of one connection closes its passive endpoint before it opens the endpoint. */
static void accepts_after_listener(void)
{
    struct side listener, client, server;
    struct event request;

    request = message_request(&listener, &client, NULL);
    close_fid(&listener.pep->fid);
    listener.pep = NULL;
    message_server(&listener, &server, &request, NULL);
    message_accept(&client, &server);
    message_transfer(&client, &server, 100);
    side_close(&server);
    side_close(&client);
    side_close(&listener);
}

/* More than the connection takes at once. The flags make no difference. */
static void shuts_down_behind_much(void)
{
    enum { LENGTH = 16 << 20, COUNT = 4 };
    const uint64_t flags[] = {0, FI_SEND, FI_RECV};
    uint8_t *sent = map_pages(LENGTH), *got = map_pages(LENGTH);

    for (unsigned i = 0; i < LENGTH; i++)
        sent[i] = (uint8_t)(i * 7 + i / 4093);
    for (unsigned round = 0; round < 3; round++) {
        struct pair pair;

        note("round %u", round);
        messages_open(&pair, NULL);
        for (unsigned i = 0; i < COUNT; i++)
            post_send(pair.client.ep, sent, LENGTH, i);
        check_no_completion(pair.client.cq);
        CHECK_OK(fi_shutdown(pair.client.ep, flags[round]));
        for (unsigned i = 0; i < COUNT; i++) {
            memset(got, 0, LENGTH);
            post_recv(pair.server.ep, got, LENGTH, 10 + i);
            CHECK_INT(await_done(pair.server.cq, 10 + i, RECEIVED).len, LENGTH);
            CHECK_BYTES(got, sent, LENGTH);
        }
        for (unsigned i = 0; i < COUNT; i++)
            (void)await_done(pair.client.cq, i, SENT);
        (void)await_event(pair.client.eq, FI_SHUTDOWN);
        (void)await_event(pair.server.eq, FI_SHUTDOWN);
        pair_close(&pair);
    }
    unmap_pages(got, LENGTH);
    unmap_pages(sent, LENGTH);
}

static void both_shut_down(void)
{
    struct pair pair;
    int answer;

    messages_open(&pair, NULL);
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    answer = fi_shutdown(pair.server.ep, 0);
    CHECK(answer == 0 || answer == -FI_ENOTCONN);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_event(pair.client.eq);
    check_no_event(pair.server.eq);
    pair_close(&pair);
}

/* A host that vanishes, while operations of each kind are under way to it and while none is. */
static void message_host_vanished(void)
{
    enum { KEY = 1 };
    static uint8_t memory[PATTERN_MAX];
    struct pair idle, sending;
    const struct pair *pairs[] = {&idle, &sending};
    struct fid_mr *region;
    int64_t lost;
    uint8_t got;
    int errors;

    log_connections();
    partable_hosts();
    messages_open(&idle, NULL);
    messages_open(&sending, NULL);
    region = message_region(&sending.server, memory, sizeof memory, KEY);
    post_recv(idle.client.ep, &got, 1, 1);
    errors = capture_errors();
    part_hosts();
    lost = now_ms();
    post_each_kind(&sending.client, KEY);
    for (unsigned i = 0; i < 2; i++)
        CHECK(await_event(pairs[i]->client.eq, FI_SHUTDOWN).fid == &pairs[i]->client.ep->fid);
    CHECK_BETWEEN(now_ms() - lost, 1, 2 * KEEPALIVE_MS + 500);
    (void)await_failed(idle.client.cq, 1, RECEIVED, FI_ECANCELED);
    check_each_kind_ended(sending.client.cq);
    /* The other sides have lost a host, too. */
    for (unsigned i = 0; i < 2; i++)
        CHECK(await_event(pairs[i]->server.eq, FI_SHUTDOWN).fid == &pairs[i]->server.ep->fid);
    check_broken(errors, "peer's host does not answer", 4);
    for (unsigned i = 0; i < 2; i++) {
        check_no_completion(pairs[i]->client.cq);
        check_no_event(pairs[i]->client.eq);
        check_no_event(pairs[i]->server.eq);
    }
    close_fid(&region->fid);
    pair_close(&idle);
    pair_close(&sending);
    join_hosts();
}

/* How long fi_close may take, which does not wait for the peer. */
#define CLOSES_MS 2000

/* fi_close reports each outstanding operation before it returns, and gives its memory back. */
static void closed_with_operations(void)
{
    enum { LENGTH = 16 << 20, SENDS = 5, RECEIVES = 20, READS = 3 };

    for (unsigned round = 0; round < 8; round++) {
        uint8_t *memory = map_pages(LENGTH), *remote = map_pages(LENGTH);
        unsigned ended[SENDS + RECEIVES + READS] = {0}, entries = 0;
        struct fi_cq_data_entry entry;
        struct fid_mr *region;
        struct pair pair;
        int64_t started;
        ssize_t answer;

        note("round %u", round);
        messages_open(&pair, NULL);
        region = message_region(&pair.server, remote, LENGTH, 1);
        for (unsigned i = 0; i < RECEIVES; i++)
            post_recv(pair.client.ep, memory + i * 100000, 100000, SENDS + i);
        for (unsigned i = 0; i < READS; i++)
            CHECK_OK(fi_read(pair.client.ep, memory, LENGTH, NULL, FI_ADDR_UNSPEC, 0, 1,
                             CONTEXT(SENDS + RECEIVES + i)));
        for (unsigned i = 0; i < SENDS; i++)
            post_send(pair.client.ep, memory, LENGTH, i);
        /* Behind so much there may be no room for it. It has no entry in any case. */
        (void)fi_inject(pair.client.ep, "x", 1, FI_ADDR_UNSPEC);
        for (unsigned i = 0; i < 20; i++)
            CHECK_OK(fi_inject(pair.server.ep, pattern(0, 4000), 4000, FI_ADDR_UNSPEC));
        for (unsigned i = 0; i < round; i++)
            drive();
        started = now_ms();
        close_fid(&pair.client.ep->fid);
        CHECK_BETWEEN(now_ms() - started, 0, CLOSES_MS);
        pair.client.ep = NULL;
        unmap_pages(memory, LENGTH);
        while ((answer = fi_cq_read(pair.client.cq, &entry, 1)) != -FI_EAGAIN) {
            struct fi_cq_err_entry error = {.op_context = entry.op_context};

            if (answer == -FI_EAVAIL) {
                CHECK_RET(fi_cq_readerr(pair.client.cq, &error, 0), 1);
                CHECK_INT(error.err, FI_ECANCELED);
            } else {
                CHECK_RET(answer, 1);
            }
            CHECK_BETWEEN((uintptr_t)error.op_context, 0, SENDS + RECEIVES + READS - 1);
            CHECK_INT(++ended[(uintptr_t)error.op_context], 1);
            entries++;
        }
        CHECK_INT(entries, SENDS + RECEIVES + READS);
        /* The peer goes on, and nothing follows. */
        CHECK(await_event(pair.server.eq, FI_SHUTDOWN).fid == &pair.server.ep->fid);
        check_no_completion(pair.client.cq);
        close_fid(&region->fid);
        unmap_pages(remote, LENGTH);
        pair_close(&pair);
    }
}

/* The peer closes in order, with messages on the way that it posted no receives for. */
static void peer_closes_in_order(void)
{
    enum { SENDS = 4 };
    struct fi_cq_data_entry entry;
    struct pair pair;
    unsigned complete = 0;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < SENDS; i++)
        post_send(pair.client.ep, pattern(0, PATTERN_MAX), PATTERN_MAX, i);
    for (unsigned i = 0; i < 30; i++)
        drive();
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    /* TCP may have taken the first ones. */
    while (fi_cq_read(pair.client.cq, &entry, 1) == 1) {
        CHECK_INT((uintptr_t)entry.op_context, complete);
        CHECK_INT(entry.flags, SENT);
        complete++;
    }
    CHECK_BETWEEN(complete, 0, SENDS - 1);
    for (unsigned i = complete; i < SENDS; i++)
        (void)await_failed(pair.client.cq, i, SENT, FI_ECANCELED);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_completion(pair.client.cq);
    check_no_event(pair.client.eq);
    pair_close(&pair);
}

/* The same with operations of each kind. */
static void peer_closes_on_each_kind(void)
{
    enum { KEY = 1 };
    static uint8_t memory[PATTERN_MAX];
    struct fid_mr *region;
    struct pair pair;

    messages_open(&pair, NULL);
    region = message_region(&pair.server, memory, sizeof memory, KEY);
    post_each_kind(&pair.client, KEY);
    drive_for(5);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    CHECK(await_event(pair.client.eq, FI_SHUTDOWN).fid == &pair.client.ep->fid);
    check_each_kind_ended(pair.client.cq);
    check_no_event(pair.client.eq);
    close_fid(&region->fid);
    pair_close(&pair);
}

/* What the side that shuts down has posted goes out. It takes no answers: its reads are cancelled, and so are the entries
 * of what is behind them. */
static void shuts_down_with_accesses(void)
{
    enum { LENGTH = 16 << 20, KEY = 1 };
    uint8_t *sent = map_pages(LENGTH), *target = map_pages(2 * LENGTH), *fetched = map_pages(LENGTH);

    for (unsigned i = 0; i < LENGTH; i++)
        sent[i] = (uint8_t)(i * 7 + i / 4093);
    for (unsigned client_ends = 0; client_ends < 2; client_ends++) {
        struct fid_mr *region;
        struct pair pair;
        struct side *ends, *other;
        struct fid_ep *ep;

        note("client_ends %u", client_ends);
        messages_open(&pair, NULL);
        ends = client_ends ? &pair.client : &pair.server;
        other = client_ends ? &pair.server : &pair.client;
        ep = ends->ep;
        memset(target, 0, 2 * LENGTH);
        region = message_region(other, target, 2 * LENGTH, KEY);
        CHECK_OK(fi_write(ep, sent, LENGTH, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(1)));
        CHECK_OK(fi_read(ep, fetched, LENGTH, NULL, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(2)));
        CHECK_OK(fi_write(ep, sent, LENGTH, NULL, FI_ADDR_UNSPEC, LENGTH, KEY, CONTEXT(3)));
        CHECK_OK(fi_shutdown(ep, 0));
        (void)await_done(ends->cq, 1, WRITTEN);
        (void)await_failed(ends->cq, 2, WAS_READ, FI_ECANCELED);
        memset(fetched, 0xcc, LENGTH);
        (void)await_failed(ends->cq, 3, WRITTEN, FI_ECANCELED);
        CHECK(await_event(ends->eq, FI_SHUTDOWN).fid == &ep->fid);
        CHECK(await_event(other->eq, FI_SHUTDOWN).fid == &other->ep->fid);
        for (unsigned i = 0; i < 2; i++)
            CHECK_BYTES(target + i * LENGTH, sent, LENGTH);
        drive_for(20);
        for (unsigned i = 0; i < LENGTH; i++)
            if (fetched[i] != 0xcc)
                fail_at(__FILE__, __LINE__, "byte %u of a cancelled read is written", i);
        check_no_completion(ends->cq);
        check_no_completion(other->cq);
        check_no_event(ends->eq);
        check_no_event(other->eq);
        close_fid(&region->fid);
        pair_close(&pair);
    }
    unmap_pages(sent, LENGTH);
    unmap_pages(target, 2 * LENGTH);
    unmap_pages(fetched, LENGTH);
}

/* Closes the client's endpoint, whose receives 0, 1 and 2 are reported at once. Nothing else is. */
static void close_before_connected(struct side *client)
{
    close_fid(&client->ep->fid);
    client->ep = NULL;
    for (unsigned i = 0; i < 3; i++)
        (void)await_failed(client->cq, i, RECEIVED, FI_ECANCELED);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_completion(client->cq);
    check_no_event(client->eq);
}

static void closed_while_connecting(void)
{
    struct side listener, client;
    struct event request;
    struct fi_eq_cm_entry entry;
    uint32_t kind;
    uint8_t got[3];

    /* With no answer yet, and with one that is not read. */
    for (unsigned answered = 0; answered < 2; answered++) {
        message_listen(&listener, NULL);
        message_client(&client, &listener, NULL);
        message_endpoint(&client, NULL);
        CHECK_OK(fi_enable(client.ep));
        for (unsigned i = 0; i < 3; i++)
            post_recv(client.ep, &got[i], 1, i);
        CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
        request = await_event(listener.eq, FI_CONNREQ);
        if (answered) {
            CHECK_OK(fi_reject(listener.pep, request.info->handle, "no", 2));
            AWAIT(PATIENCE_MS, fi_eq_read(client.eq, &kind, &entry, sizeof entry, FI_PEEK) == -FI_EAVAIL);
        }
        close_before_connected(&client);
        fi_freeinfo(request.info);
        side_close(&client);
        side_close(&listener);
    }
}

/* Events of an endpoint that is closed are not read any more. */
static void events_leave(void)
{
    struct pair pair;

    messages_open(&pair, NULL);
    CHECK_OK(fi_shutdown(pair.server.ep, 0));
    CHECK_OK(fi_shutdown(pair.client.ep, 0));
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_event(pair.server.eq);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* A program that never reads its event queue learns of the end from its calls. */
static void unread_end(void)
{
    struct fi_cq_data_entry entry;
    uint8_t byte = 0, got;
    int64_t refused = 0;
    struct pair pair;
    ssize_t answer;

    messages_open(&pair, NULL);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    do {
        (void)fi_cq_read(pair.client.cq, &entry, 1);
        answer = fi_write(pair.client.ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 1, NULL);
        if (answer == -FI_EAGAIN && refused == 0)
            refused = now_ms();
        if (answer == -FI_EAGAIN)
            CHECK(now_ms() - refused < PATIENCE_MS);
    } while (answer == 0 || answer == -FI_EAGAIN);
    CHECK_RET(answer, -FI_ENOTCONN);
    CHECK_AT_LEAST(now_ms() - refused, 999);
    CHECK_RET(fi_send(pair.client.ep, &byte, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
    CHECK_RET(fi_recv(pair.client.ep, &got, 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_ENOTCONN);
    (void)await_event(pair.client.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* One that reads it learns of the end at once, also after calls that have to come again. */
static void read_end(void)
{
    struct fi_eq_cm_entry entry;
    struct pair pair;
    uint32_t kind;

    messages_open(&pair, NULL);
    close_fid(&pair.server.ep->fid);
    pair.server.ep = NULL;
    AWAIT(PATIENCE_MS, fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, FI_PEEK) != -FI_EAGAIN);
    check_calls(pair.client.ep, -FI_EAGAIN);
    check_receives(pair.client.ep, -FI_EAGAIN);
    CHECK_RET(fi_eq_read(pair.client.eq, &kind, &entry, sizeof entry, 0), sizeof entry);
    CHECK_INT(kind, FI_SHUTDOWN);
    check_calls(pair.client.ep, -FI_ENOTCONN);
    check_receives(pair.client.ep, -FI_ENOTCONN);
    check_no_completion(pair.client.cq);
    pair_close(&pair);
}

static void injected_before_close(void)
{
    static uint8_t got[200][4096];
    struct pair pair;

    messages_open(&pair, NULL);
    for (unsigned i = 0; i < 200; i++)
        CHECK_OK(fi_inject(pair.client.ep, pattern(i, 4096), 4096, FI_ADDR_UNSPEC));
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    for (unsigned i = 0; i < 200; i++) {
        post_recv(pair.server.ep, got[i], 4096, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, 4096);
        CHECK_BYTES(got[i], pattern(i, 4096), 4096);
    }
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* What is complete arrives, although another message of the endpoint is cancelled. */
static void completed_before_close(void)
{
    enum { LENGTH = 64 << 20 };
    static uint8_t got[65536];
    uint8_t *rest = map_pages(LENGTH);
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error;
    struct pair pair;
    unsigned complete = 0;
    ssize_t answer;

    messages_open(&pair, NULL);
    while (complete < 1000) {
        post_send(pair.client.ep, pattern(complete, sizeof got), sizeof got, complete);
        if (fi_cq_read(pair.client.cq, &entry, 1) != 1)
            break;
        complete++;
    }
    CHECK_BETWEEN(complete, 1, 999);
    post_send(pair.client.ep, rest, LENGTH, 1001);
    close_fid(&pair.client.ep->fid);
    pair.client.ep = NULL;
    unmap_pages(rest, LENGTH);
    while (fi_cq_read(pair.client.cq, &entry, 1) == 1)
        complete++;
    do {
        memset(&error, 0, sizeof error);
        CHECK_RET(fi_cq_readerr(pair.client.cq, &error, 0), 1);
        CHECK_INT(error.err, FI_ECANCELED);
    } while (error.op_context != CONTEXT(1001));
    for (unsigned i = 0; i < complete; i++) {
        post_recv(pair.server.ep, got, sizeof got, i);
        CHECK_INT(await_done(pair.server.cq, i, RECEIVED).len, sizeof got);
        CHECK_BYTES(got, pattern(i, sizeof got), sizeof got);
    }
    /* One that was cancelled may have been copied, and no part of the last arrives. The end follows. */
    post_recv(pair.server.ep, got, sizeof got, complete);
    AWAIT(PATIENCE_MS, (answer = fi_cq_read(pair.server.cq, &entry, 1)) != -FI_EAGAIN);
    if (answer == 1) {
        CHECK_BYTES(got, pattern(complete, sizeof got), sizeof got);
        complete++;
        post_recv(pair.server.ep, got, sizeof got, complete);
    }
    (void)await_failed(pair.server.cq, complete, RECEIVED, FI_ECANCELED);
    (void)await_event(pair.server.eq, FI_SHUTDOWN);
    pair_close(&pair);
}

/* ---- fi_eq_write -------------------------------------------------------------------------- */

/* The longest event of an application. */
#define EQ_WRITE_MAX 272

static void eq_write(void)
{
    struct fi_eq_entry written = {.context = CONTEXT(3), .data = 77}, read = {0};
    struct side listener;
    uint8_t big[EQ_WRITE_MAX + 1], back[EQ_WRITE_MAX];
    uint32_t kind;

    message_listen(&listener, NULL);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 0), sizeof written);
    CHECK(readable(wait_fd(&listener.eq->fid), 0));
    CHECK_RET(fi_eq_read(listener.eq, &kind, &read, sizeof read, FI_PEEK), sizeof read);
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &read, sizeof read, 1000, FI_PEEK), sizeof read);
    CHECK_RET(fi_eq_read(listener.eq, &kind, &read, 3, 0), -FI_ETOOSMALL);
    CHECK_RET(fi_eq_sread(listener.eq, &kind, &read, sizeof read, 1000, 0), sizeof read);
    CHECK_INT(kind, FI_NOTIFY);
    CHECK(read.context == CONTEXT(3));
    CHECK_INT(read.data, 77);
    check_no_event(listener.eq);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, NULL, 8, 0), -FI_EINVAL);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 1), -FI_EBADFLAGS);
    memcpy(big, pattern(0, sizeof big), sizeof big);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, big, EQ_WRITE_MAX + 1, 0), -FI_EINVAL);
    check_no_event(listener.eq);
    CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, big, EQ_WRITE_MAX, 0), EQ_WRITE_MAX);
    CHECK_RET(fi_eq_read(listener.eq, &kind, back, sizeof back, 0), EQ_WRITE_MAX);
    CHECK_BYTES(back, big, EQ_WRITE_MAX);
    check_no_event(listener.eq);
    side_close(&listener);
}

/* A thread that reads an event queue without a time limit. */
struct eq_reader {
    struct fid_eq *eq;
    uint64_t flags;
    pthread_t thread;
};

static void *read_notice(void *argument)
{
    struct eq_reader *reader = argument;
    struct fi_eq_entry entry = {0};
    uint32_t kind = 0;

    CHECK_RET(fi_eq_sread(reader->eq, &kind, &entry, sizeof entry, -1, reader->flags), sizeof entry);
    CHECK_INT(kind, FI_NOTIFY);
    CHECK_INT(entry.data, 78);
    return NULL;
}

static void eq_write_wakes(void)
{
    const struct fi_eq_entry written = {.data = 78};
    struct side listener;

    message_listen(&listener, NULL);
    for (unsigned round = 0; round < 10; round++) {
        struct eq_reader readers[2] = {{listener.eq, 0, 0}, {listener.eq, FI_PEEK, 0}};
        int64_t start;

        note("round %u", round);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_create(&readers[i].thread, NULL, read_notice, &readers[i]));
        /* They sleep, or are about to. */
        sleep_ms(round % 2 ? 30 : 0);
        start = now_ms();
        /* One takes an event. The other one looks at either, and takes none. */
        for (unsigned i = 0; i < 2; i++)
            CHECK_RET(fi_eq_write(listener.eq, FI_NOTIFY, &written, sizeof written, 0), sizeof written);
        for (unsigned i = 0; i < 2; i++)
            CHECK_OK(pthread_join(readers[i].thread, NULL));
        CHECK_BETWEEN(now_ms() - start, 0, 999);
        (void)read_notice(&(struct eq_reader){.eq = listener.eq});
        check_no_event(listener.eq);
    }
    side_close(&listener);
}

/* ---- strangers ---------------------------------------------------------------------------- */

/* A TCP connection that sends nonsense, and one that says nothing, do not disturb a listener. */
static void strangers(void)
{
    struct side listener, client, server;
    struct event request;
    unsigned port;
    int silent, noisy;

    message_listen(&listener, NULL);
    port = fid_port(&listener.pep->fid);
    silent = stranger_connect(port);
    noisy = stranger_connect(port);
    CHECK_AT_LEAST(write(noisy, pattern(0, 1000), 1000), 1);
    for (unsigned i = 0; i < 20; i++)
        drive();
    check_no_event(listener.eq);
    message_client(&client, &listener, NULL);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, NULL);
    message_accept(&client, &server);
    message_transfer(&client, &server, 5000);
    close(silent);
    close(noisy);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(message_attributes, "hints of FI_EP_MSG: the attributes of the answer"),
    TEST(filters, "hints are filters"),
    TEST(asked_capabilities, "only the primary capabilities that the hints ask for are answered"),
    TEST(changed_infos, "fi_endpoint with an info that fi_getinfo would not answer: -FI_ENODATA"),
    TEST(fabric_of_network, "the fabric's name has the network of the local address, and is a filter"),
    TEST(answers_itself, "an info given as hints is answered by itself first"),
    TEST(behind_streams, "without a type, infos of streams come before those of messages"),
    TEST(sizes_as_asked, "sizes and flags are answered as they were asked for"),
    TEST(binding, "binding and enabling: -FI_ENOEQ, -FI_ENOCQ, -FI_EINVAL, -FI_EOPBADSTATE, -FI_EBUSY"),
    TEST(accepting_needs_queues, "fi_accept without a queue: -FI_ENOEQ, -FI_ENOCQ; it works with them"),
    TEST(binding_foreign, "objects of another domain: -FI_EDOMAIN"),
    TEST(states, "what each call answers before, during and after a connection"),
    TEST(early_receives, "rx_attr.size receives have room before fi_connect and fi_accept; one more: -FI_EAGAIN"),
    TEST(takes_over_address, "an endpoint takes over the address of a passive endpoint"),
    TEST(message_names, "fi_getname and fi_getpeer of both sides agree; port 0 before fi_connect"),
    TEST(other_options, "options other than FI_OPT_CM_DATA_SIZE: -FI_ENOPROTOOPT"),
    TEST(connection_data, "connection data of 0 to 200 bytes, exact"),
    TEST(rejected, "fi_reject with data: FI_ECONNREFUSED with the data"),
    TEST(nobody_listens, "nobody listens: FI_ECONNREFUSED"),
    TEST(accepts_after_listener, "a request that was read is accepted after its passive endpoint is closed"),
    TEST(other_kind, "streams and messages are refused by each other's listeners"),
    TEST(shuts_down, "fi_shutdown by either side: what was sent arrives, then FI_SHUTDOWN once at both"),
    TEST(shuts_down_behind_much, "fi_shutdown with 64 MiB to send, and with any flags: all of it arrives"),
    TEST(shuts_down_with_accesses, "fi_shutdown with 32 MiB to write and a read between: the bytes arrive, the read is cancelled"),
    TEST(both_shut_down, "fi_shutdown by both sides: each is told once"),
    FAULT_TEST(message_host_vanished, "a host that vanishes: FI_SHUTDOWN within twice FI_RSTREAM_KEEPALIVE_S, all is cancelled, the log says why"),
    TEST(closed_with_operations, "fi_close: each operation is reported before it returns, its memory is free"),
    TEST(peer_closes_in_order, "a peer that closes: the messages under way are cancelled in order, FI_SHUTDOWN once"),
    TEST(peer_closes_on_each_kind, "the same with writes, reads and receives as well: each ends once, and nothing follows"),
    TEST(closed_while_connecting, "fi_close before there is a connection: receives are cancelled, no event is left"),
    TEST(events_leave, "events of a closed endpoint are gone"),
    TEST(unread_end, "after the end, without reading the event: -FI_EAGAIN for a second, then -FI_ENOTCONN"),
    TEST(read_end, "after the end: -FI_EAGAIN, and -FI_ENOTCONN at once when FI_SHUTDOWN is read"),
    TEST(injected_before_close, "injected messages arrive although the endpoint was closed"),
    TEST(completed_before_close, "complete messages arrive although others were cancelled by closing the endpoint"),
    TEST(eq_write, "fi_eq_write: read back, also by FI_PEEK; bad arguments, and at most 272 bytes"),
    TEST(eq_write_wakes, "fi_eq_write wakes threads in fi_eq_sread, also with FI_PEEK"),
    TEST(strangers, "a listener is not disturbed by peers that speak something else, or nothing"),
};

const struct section message_life_section = SECTION("message endpoints", tests);
