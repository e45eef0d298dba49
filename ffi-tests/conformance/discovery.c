/* Contract, section Discovery: the results of fi_getinfo. */
#include "conformance.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>

/* Calls fi_getinfo with these hints. Answers -FI_ENODATA if no result is this provider's: some are of ofi_rxm,
 * which is layered on message endpoints. */
static int ask(const struct fi_info *hints)
{
    struct fi_info *info = NULL;
    int ret = fi_getinfo(TEST_API, IPV4, "7471", FI_NUMERICHOST, hints, &info);

    if (ret == 0) {
        ret = -FI_ENODATA;
        for (const struct fi_info *one = info; one; one = one->next)
            if (is_ours(one))
                ret = 0;
        fi_freeinfo(info);
    }
    return ret;
}

static void no_hints(void)
{
    struct fi_info *info = find(NULL, NULL, 0, NULL);
    unsigned streams = 0, messages = 0;

    for (struct fi_info *one = info; one; one = one->next) {
        if (!is_ours(one))
            continue;
        if (one->ep_attr->type == FI_EP_MSG) {
            messages++;
        } else {
            CHECK_INT(one->ep_attr->type, FI_EP_SOCK_STREAM);
            CHECK_INT(messages, 0);
            streams++;
        }
        CHECK(one->domain_attr->name != NULL);
        CHECK(one->fabric_attr->name != NULL);
        for (struct fi_info *other = one->next; other; other = other->next)
            CHECK(!is_ours(other) || one->ep_attr->type != other->ep_attr->type ||
                  strcmp(one->domain_attr->name, other->domain_attr->name) != 0 ||
                  one->src_addrlen != other->src_addrlen ||
                  memcmp(one->src_addr, other->src_addr, one->src_addrlen) != 0);
    }
    CHECK_AT_LEAST(streams, 1);
    /* The embedded device offers both kinds on every address. */
    CHECK_AT_LEAST(messages, 1);
    fi_freeinfo(info);
}

static void endpoint_type(void)
{
    const struct {
        enum fi_ep_type type;
        int answer;
    } cases[] = {
        {(enum fi_ep_type)FI_EP_SOCK_STREAM, 0}, {(enum fi_ep_type)0, 0},
        {FI_EP_MSG, 0},                          {FI_EP_DGRAM, -FI_ENODATA},
        {FI_EP_RDM, -FI_ENODATA},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fi_info *hints = stream_hints();

        hints->ep_attr->type = cases[i].type;
        CHECK_RET(ask(hints), cases[i].answer);
        fi_freeinfo(hints);
    }
}

static void caps_offered(void)
{
    const uint64_t offered[] = {FI_MSG, FI_SEND, FI_RECV, FI_LOCAL_COMM, FI_REMOTE_COMM};
    struct fi_info *hints = stream_hints(), *info;

    for (unsigned subset = 0; subset < 1u << 5; subset++) {
        hints->caps = 0;
        for (unsigned bit = 0; bit < 5; bit++)
            if (subset & 1u << bit)
                hints->caps |= offered[bit];
        info = find(IPV4, "7471", 0, hints);
        for (struct fi_info *one = info; one; one = one->next)
            CHECK_INT(one->caps & hints->caps, hints->caps);
        fi_freeinfo(info);
    }
    fi_freeinfo(hints);
}

static void caps_of_each_side(void)
{
    struct fi_info *hints = stream_hints(), *info = find(IPV4, "7471", 0, hints);

    /* The sending side has FI_SEND, the receiving side FI_RECV. The domain alone determines local and
     * remote communication. */
    CHECK_INT(info->tx_attr->caps, FI_MSG | FI_SEND);
    CHECK_INT(info->rx_attr->caps, FI_MSG | FI_RECV);
    CHECK_INT(info->domain_attr->caps & (FI_LOCAL_COMM | FI_REMOTE_COMM), FI_LOCAL_COMM | FI_REMOTE_COMM);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void caps_refused(void)
{
    const uint64_t offered = FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
    struct fi_info *hints = stream_hints();

    /* Compares bits, not names, because the headers determine which bits have names. */
    for (unsigned bit = 0; bit < 64; bit++) {
        hints->caps = FI_MSG | UINT64_C(1) << bit;
        CHECK_RET(ask(hints), hints->caps & ~offered ? -FI_ENODATA : 0);
    }
    fi_freeinfo(hints);
}

static void protocol_filter(void)
{
    const uint32_t known[] = {FI_PROTO_UNSPEC, FI_PROTO_RSTREAM, FI_PROTO_IWARP};
    struct fi_info *hints = stream_hints(), *info;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        hints->ep_attr->protocol = known[i];
        info = find(IPV4, "7471", 0, hints);
        if (known[i] == FI_PROTO_IWARP)
            CHECK_INT(info->ep_attr->protocol, FI_PROTO_IWARP);
        else
            CHECK_INT(info->ep_attr->protocol, FI_PROTO_RSTREAM);
        fi_freeinfo(info);
    }
    hints->ep_attr->protocol = FI_PROTO_SOCK_TCP;
    CHECK_RET(ask(hints), -FI_ENODATA);
    fi_freeinfo(hints);
}

static void protocol_not_process_wide(void)
{
    struct settings iwarp = {.protocol = FI_PROTO_IWARP}, plain = {.protocol = FI_PROTO_RSTREAM};
    struct pair first, second;

    pair_open(&first, IPV4, &iwarp);
    pair_open(&second, IPV4, &plain);
    CHECK_INT(first.client.info->ep_attr->protocol, FI_PROTO_IWARP);
    CHECK_INT(second.client.info->ep_attr->protocol, FI_PROTO_RSTREAM);
    transfer(second.client.ep, second.server.ep, 100000);
    transfer(first.client.ep, first.server.ep, 100000);
    pair_close(&first);
    pair_close(&second);
}

static void address_format(void)
{
    const struct {
        uint32_t format;
        int answer_v4, answer_v6;
    } cases[] = {
        {FI_FORMAT_UNSPEC, 0, 0},
        {FI_SOCKADDR, 0, 0},
        {FI_SOCKADDR_IN, 0, -FI_ENODATA},
        {FI_SOCKADDR_IN6, -FI_ENODATA, 0},
        {FI_SOCKADDR_IB, -FI_ENODATA, -FI_ENODATA},
        {FI_ADDR_STR, -FI_ENODATA, -FI_ENODATA},
#if FI_MAJOR_VERSION > 2 || (FI_MAJOR_VERSION == 2 && FI_MINOR_VERSION >= 5)
        {FI_SOCKADDR_IP, 0, 0},
#endif
    };
    struct fi_info *hints = stream_hints();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fi_info *info = NULL;

        hints->addr_format = cases[i].format;
        CHECK_RET(fi_getinfo(TEST_API, IPV4, "7471", 0, hints, &info), cases[i].answer_v4);
        if (info) {
            CHECK_INT(((struct sockaddr *)info->dest_addr)->sa_family, AF_INET);
            CHECK_INT(info->dest_addrlen, sizeof(struct sockaddr_in));
            fi_freeinfo(info);
            info = NULL;
        }
        CHECK_RET(fi_getinfo(TEST_API, IPV6, "7471", 0, hints, &info), cases[i].answer_v6);
        if (info) {
            CHECK_INT(((struct sockaddr *)info->dest_addr)->sa_family, AF_INET6);
            CHECK_INT(info->dest_addrlen, sizeof(struct sockaddr_in6));
            fi_freeinfo(info);
        }
    }
    fi_freeinfo(hints);
}

static void threading(void)
{
    const enum fi_threading levels[] = {FI_THREAD_UNSPEC, FI_THREAD_SAFE,       FI_THREAD_FID,
                                        FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT};
    struct fi_info *hints = stream_hints(), *info;

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        hints->domain_attr->threading = levels[i];
        info = find(IPV4, "7471", 0, hints);
        CHECK_INT(info->domain_attr->threading, FI_THREAD_SAFE);
        fi_freeinfo(info);
    }
    fi_freeinfo(hints);
}

static void progress_data(void)
{
    struct fi_info *hints = stream_hints(), *info;

    info = find(IPV4, "7471", 0, hints);
    CHECK_INT(info->domain_attr->data_progress, FI_PROGRESS_MANUAL);
    fi_freeinfo(info);
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    CHECK_OK(ask(hints));
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    CHECK_RET(ask(hints), -FI_ENODATA);
    fi_freeinfo(hints);
}

static void progress_control(void)
{
    const enum fi_progress models[] = {FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL};
    struct fi_info *hints = stream_hints();

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        hints->domain_attr->control_progress = models[i];
        CHECK_OK(ask(hints));
    }
    fi_freeinfo(hints);
}

static void modes(void)
{
    const int mr_modes[] = {0, FI_MR_LOCAL, FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY};
    struct fi_info *hints = stream_hints(), *info;

    for (size_t i = 0; i < sizeof mr_modes / sizeof mr_modes[0]; i++) {
        hints->mode = i == 0 ? 0 : ~(uint64_t)0;
        hints->domain_attr->mr_mode = mr_modes[i];
        info = find(IPV4, "7471", 0, hints);
        CHECK_INT(info->mode, 0);
        CHECK_INT(info->domain_attr->mr_mode, 0);
        fi_freeinfo(info);
    }
    fi_freeinfo(hints);
}

static void message_order(void)
{
    const struct {
        uint64_t order;
        int answer;
    } cases[] = {
        {0, 0},                       {FI_ORDER_SAS, 0},
        {FI_ORDER_RAR, -FI_ENODATA},  {FI_ORDER_SAS | FI_ORDER_WAW, -FI_ENODATA},
        {FI_ORDER_SAW, -FI_ENODATA},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fi_info *hints = stream_hints();

        hints->tx_attr->msg_order = cases[i].order;
        CHECK_RET(ask(hints), cases[i].answer);
        hints->tx_attr->msg_order = 0;
        hints->rx_attr->msg_order = cases[i].order;
        CHECK_RET(ask(hints), cases[i].answer);
        fi_freeinfo(hints);
    }
}

static void queue_size(void)
{
    struct fi_info *hints = stream_hints(), *info;
    struct side side;
    uint64_t value;
    size_t length = sizeof value;

    info = find(IPV4, "7471", 0, hints);
    CHECK_INT(info->tx_attr->size, 384);
    CHECK_INT(info->rx_attr->size, 384);
    fi_freeinfo(info);

    hints->tx_attr->size = 100;
    hints->rx_attr->size = 200;
    info = find(IPV4, "7471", 0, hints);
    CHECK_AT_LEAST(info->tx_attr->size, 100);
    CHECK_AT_LEAST(info->rx_attr->size, 200);
    side_open(&side, info);
    side_endpoint(&side, NULL);
    CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, &length));
    CHECK_INT(value, side.info->tx_attr->size);
    CHECK_OK(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_RX_SIZE, &value, &length));
    CHECK_INT(value, side.info->rx_attr->size);
    side_close(&side);

    hints->tx_attr->size = (size_t)1 << 40;
    CHECK_RET(ask(hints), -FI_ENODATA);
    fi_freeinfo(hints);
}

static void name_filters(void)
{
    struct fi_info *hints = stream_hints(), *info = find(IPV4, "7471", 0, hints), *again;

    hints->fabric_attr->name = strdup(info->fabric_attr->name);
    hints->domain_attr->name = strdup(info->domain_attr->name);
    again = find(IPV4, "7471", 0, hints);
    for (struct fi_info *one = again; one; one = one->next) {
        CHECK(strcmp(one->fabric_attr->name, info->fabric_attr->name) == 0);
        CHECK(strcmp(one->domain_attr->name, info->domain_attr->name) == 0);
    }
    fi_freeinfo(again);

    free(hints->domain_attr->name);
    hints->domain_attr->name = strdup("no such domain");
    CHECK_RET(ask(hints), -FI_ENODATA);
    free(hints->domain_attr->name);
    hints->domain_attr->name = NULL;
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = strdup("no such fabric");
    CHECK_RET(ask(hints), -FI_ENODATA);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void order_of_answers(void)
{
    const enum fi_ep_type types[] = {FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM};
    struct fi_info *hints = fi_allocinfo();

    CHECK(hints != NULL);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct fi_info *info = NULL;
        bool ours = false;

        hints->ep_attr->type = types[i];
        if (fi_getinfo(TEST_API, NULL, NULL, 0, hints, &info) != 0)
            continue;
        for (struct fi_info *one = info; one; one = one->next) {
            CHECK(is_ours(one) || !ours);
            ours = ours || is_ours(one);
        }
        CHECK_INT(ours, types[i] == FI_EP_MSG);
        fi_freeinfo(info);
    }
    fi_freeinfo(hints);
}

static void provider_name(void)
{
    struct fi_info *hints = stream_hints(), *info = find(IPV4, "7471", 0, hints);

    for (struct fi_info *one = info; one; one = one->next)
        CHECK(strcmp(one->fabric_attr->prov_name, PROVIDER) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void info_opens(void)
{
    struct fi_info *hints = stream_hints();
    struct side first, second;

    side_open(&first, find(IPV4, "7471", 0, hints));
    side_open(&second, find(IPV6, "7471", 0, hints));
    side_endpoint(&first, NULL);
    side_endpoint(&second, NULL);
    side_close(&first);
    side_close(&second);
    fi_freeinfo(hints);
}

/* RDMA devices are reported for their own addresses, and before the embedded device for all addresses. */
static void rdma_devices_first(void)
{
    struct fi_info *hints = stream_hints(), *list, *one;
    bool embedded = false;
    size_t devices = 0;

    list = find(NULL, "0", FI_SOURCE, hints);
    for (one = list; one; one = one->next) {
        if (strcmp(one->fabric_attr->name, "ibv") == 0) {
            CHECK(!embedded);
            CHECK(strcmp(one->domain_attr->name, "any") != 0);
            CHECK_AT_LEAST(one->src_addrlen, sizeof(struct sockaddr_in));
            devices++;
        } else {
            CHECK_INT(strcmp(one->fabric_attr->name, "iwarp"), 0);
            embedded = true;
        }
    }
    CHECK(embedded);
    fi_freeinfo(list);

    list = find(IPV4, "7471", FI_SOURCE, hints);
    CHECK_INT(strcmp(list->fabric_attr->name, devices > 0 ? "ibv" : "iwarp"), 0);
    /* The embedded device listens on such an address as well. */
    CHECK_INT(list->next != NULL, devices > 0);
    fi_freeinfo(list);
    fi_freeinfo(hints);
}

static const struct test tests[] = {
    TEST(no_hints, "no hints: one info per usable device and address, streams before messages"),
    TEST(endpoint_type, "4, FI_EP_MSG or FI_EP_UNSPEC match; DGRAM, RDM answer -FI_ENODATA"),
    TEST(caps_offered, "any subset of MSG, SEND, RECV, LOCAL_COMM, REMOTE_COMM"),
    TEST(caps_of_each_side, "capabilities stand where fi_getinfo(3) has them: sides and domain"),
    TEST(caps_refused, "any other capability of a stream answers -FI_ENODATA"),
    TEST(protocol_filter, "protocol: UNSPEC, FI_PROTO_RSTREAM, FI_PROTO_IWARP"),
    TEST(protocol_not_process_wide, "nothing about the protocol is process-wide"),
    TEST(address_format, "addr_format: UNSPEC, SOCKADDR, SOCKADDR_IN, SOCKADDR_IN6, SOCKADDR_IP"),
    TEST(threading, "threading: everything up to FI_THREAD_SAFE, answer SAFE"),
    TEST(progress_data, "data progress MANUAL (UNSPEC ok; AUTO -FI_ENODATA)"),
    TEST(progress_control, "control progress AUTO and MANUAL are both accepted"),
    TEST(modes, "mode, mr_mode: none needed, any offered"),
    TEST(message_order, "msg_order: subset of FI_ORDER_SAS"),
    TEST(queue_size, "tx and rx size: queue depths, default 384, honoured"),
    TEST(rdma_devices_first, "order: RDMA devices first, then the embedded device"),
    TEST(name_filters, "fabric_attr->name and domain_attr->name are filters"),
    TEST(order_of_answers, "behind other providers for FI_EP_MSG, and absent for types that it lacks"),
    TEST(provider_name, "prov_name is filled in by libfabric"),
    TEST(info_opens, "an answer opens a fabric, a domain and an endpoint"),
};

const struct section discovery_section = SECTION("discovery", tests);
