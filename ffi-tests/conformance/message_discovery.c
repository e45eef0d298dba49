/* Contract, section Message endpoints: what fi_getinfo answers. */
#include "message.h"

#include <stdlib.h>

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

    ASK(caps, FI_MSG | FI_TAGGED, 0);
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

static const struct test tests[] = {
    TEST(message_attributes, "hints of FI_EP_MSG: the attributes of the answer"),
    TEST(filters, "hints are filters"),
    TEST(asked_capabilities, "only the primary capabilities that the hints ask for are answered"),
    TEST(changed_infos, "fi_endpoint with an info that fi_getinfo would not answer: -FI_ENODATA"),
    TEST(fabric_of_network, "the fabric's name has the network of the local address, and is a filter"),
    TEST(answers_itself, "an info given as hints is answered by itself first"),
    TEST(behind_streams, "without a type, infos of streams come before those of messages"),
    TEST(sizes_as_asked, "sizes and flags are answered as they were asked for"),
};

const struct section message_discovery_section = SECTION("discovery of message endpoints", tests);
