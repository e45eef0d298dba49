/* Contract, section Moving bytes: calls that stream endpoints do not support, and those that message endpoints do not
 * support either. */
#include "tags.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_rma.h>

static void with_data(void)
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    CHECK_RET(fi_senddata(pair.client.ep, "x", 1, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_ENOSYS);
    CHECK_RET(fi_injectdata(pair.client.ep, "x", 1, 1, FI_ADDR_UNSPEC), -FI_ENOSYS);
    pair_close(&pair);
}

static void rma(void)
{
    struct fi_msg_rma message = {.addr = FI_ADDR_UNSPEC};
    struct iovec iov = {&(uint8_t){0}, 1};
    struct pair pair;
    struct fid_ep *ep;
    uint8_t byte = 0;

    pair_open(&pair, IPV4, NULL);
    ep = pair.client.ep;
    CHECK_RET(fi_read(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_readv(ep, &iov, NULL, 1, FI_ADDR_UNSPEC, 0, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_readmsg(ep, &message, 0), -FI_ENOSYS);
    CHECK_RET(fi_write(ep, &byte, 1, NULL, FI_ADDR_UNSPEC, 0, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_writev(ep, &iov, NULL, 1, FI_ADDR_UNSPEC, 0, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_writemsg(ep, &message, 0), -FI_ENOSYS);
    CHECK_RET(fi_inject_write(ep, &byte, 1, FI_ADDR_UNSPEC, 0, 0), -FI_ENOSYS);
    CHECK_RET(fi_writedata(ep, &byte, 1, NULL, 0, FI_ADDR_UNSPEC, 0, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_inject_writedata(ep, &byte, 1, 0, FI_ADDR_UNSPEC, 0, 0), -FI_ENOSYS);
    pair_close(&pair);
}

/* The calls that no endpoint has, or that message endpoints have only with FI_TAGGED. */
static void no_tagged_calls(struct side *side)
{
    check_tagged_calls(side->ep, -FI_ENOSYS);
    check_tagged_receives(side->ep, -FI_ENOSYS);
}

static void no_atomic_calls(struct side *side)
{
    const fi_addr_t none = FI_ADDR_UNSPEC;
    struct fi_msg_atomic message = {.addr = none, .datatype = FI_UINT64, .op = FI_SUM};
    uint64_t value = 0, result = 0;
    struct fi_ioc ioc = {&value, 1}, results = {&result, 1};
    struct fi_atomic_attr attr = {0};
    struct fid_ep *ep = side->ep;
    size_t count;

    CHECK_RET(fi_atomic(ep, &value, 1, NULL, none, 0, 0, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS);
    CHECK_RET(fi_atomicv(ep, &ioc, NULL, 1, none, 0, 0, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS);
    CHECK_RET(fi_atomicmsg(ep, &message, 0), -FI_ENOSYS);
    CHECK_RET(fi_inject_atomic(ep, &value, 1, none, 0, 0, FI_UINT64, FI_SUM), -FI_ENOSYS);
    CHECK_RET(fi_fetch_atomic(ep, &value, 1, NULL, &result, NULL, none, 0, 0, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS);
    CHECK_RET(fi_fetch_atomicv(ep, &ioc, NULL, 1, &results, NULL, 1, none, 0, 0, FI_UINT64, FI_SUM, NULL),
              -FI_ENOSYS);
    CHECK_RET(fi_fetch_atomicmsg(ep, &message, &results, NULL, 1, 0), -FI_ENOSYS);
    CHECK_RET(fi_compare_atomic(ep, &value, 1, NULL, &value, NULL, &result, NULL, none, 0, 0, FI_UINT64, FI_CSWAP,
                                NULL), -FI_ENOSYS);
    CHECK_RET(fi_compare_atomicv(ep, &ioc, NULL, 1, &ioc, NULL, 1, &results, NULL, 1, none, 0, 0, FI_UINT64,
                                 FI_CSWAP, NULL), -FI_ENOSYS);
    CHECK_RET(fi_compare_atomicmsg(ep, &message, &ioc, NULL, 1, &results, NULL, 1, 0), -FI_ENOSYS);
    CHECK_RET(fi_atomicvalid(ep, FI_UINT64, FI_SUM, &count), -FI_ENOSYS);
    CHECK_RET(fi_fetch_atomicvalid(ep, FI_UINT64, FI_SUM, &count), -FI_ENOSYS);
    CHECK_RET(fi_compare_atomicvalid(ep, FI_UINT64, FI_CSWAP, &count), -FI_ENOSYS);
    CHECK_RET(fi_query_atomic(side->domain, FI_UINT64, FI_SUM, &attr, 0), -FI_ENOSYS);
}

static void no_collective_calls(struct side *side)
{
    const fi_addr_t none = FI_ADDR_UNSPEC;
    struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_UINT64};
    uint64_t value = 0, result = 0;
    struct fid_mc *mc = NULL;
    struct fid_ep *ep = side->ep;

    CHECK_RET(fi_query_collective(side->domain, FI_BARRIER, &attr, 0), -FI_ENOSYS);
    CHECK_RET(fi_join_collective(ep, none, NULL, 0, &mc, NULL), -FI_ENOSYS);
    CHECK_RET(fi_barrier(ep, none, NULL), -FI_ENOSYS);
    CHECK_RET(fi_barrier2(ep, none, FI_COMPLETION, NULL), -FI_ENOSYS);
    CHECK_RET(fi_broadcast(ep, &value, 1, NULL, none, none, FI_UINT64, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_alltoall(ep, &value, 1, NULL, &result, NULL, none, FI_UINT64, 0, NULL), -FI_ENOSYS);
    CHECK_RET(fi_allreduce(ep, &value, 1, NULL, &result, NULL, none, FI_UINT64, FI_SUM, 0, NULL), -FI_ENOSYS);
    CHECK(mc == NULL);
}

static void on_stream(void (*check)(struct side *side))
{
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    check(&pair.client);
    pair_close(&pair);
}

static void on_messages(void (*check)(struct side *side))
{
    struct pair pair;

    messages_open(&pair, NULL);
    check(&pair.client);
    messages_pass(&pair);
    pair_close(&pair);
}

static void tagged(void)
{
    on_stream(no_tagged_calls);
}

static void tagged_of_messages(void)
{
    on_messages(no_tagged_calls);
}

static void atomic(void)
{
    on_stream(no_atomic_calls);
}

static void atomic_of_messages(void)
{
    on_messages(no_atomic_calls);
}

static void collective(void)
{
    on_stream(no_collective_calls);
}

static void collective_of_messages(void)
{
    on_messages(no_collective_calls);
}

static void domain_objects(void)
{
    struct fi_info *hints = stream_hints();
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_poll_attr poll_attr = {0};
    struct side side;
    struct fid_av *av = NULL;
    struct fid_poll *poll = NULL;
    struct fid_ep *ep = NULL;
    struct fid_stx *stx = NULL;

    side_open(&side, find(IPV4, "7471", 0, hints));
    CHECK_RET(fi_av_open(side.domain, &av_attr, &av, NULL), -FI_ENOSYS);
    CHECK_RET(fi_poll_open(side.domain, &poll_attr, &poll), -FI_ENOSYS);
    CHECK_RET(fi_scalable_ep(side.domain, side.info, &ep, NULL), -FI_ENOSYS);
    CHECK_RET(fi_stx_context(side.domain, side.info->tx_attr, &stx, NULL), -FI_ENOSYS);
    CHECK(av == NULL && poll == NULL && ep == NULL && stx == NULL);
    side_close(&side);
    fi_freeinfo(hints);
}

/* The domain's objects for message endpoints. */
static void message_objects(void)
{
    struct fi_info *hints = stream_hints();
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP};
    struct fid_cq *cq = NULL;
    struct fid_cntr *cntr = NULL;
    struct fid_ep *shared = NULL;
    struct side side;

    needs_embedded_device();
    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_OK(fi_cq_open(side.domain, &cq_attr, &cq, NULL));
    CHECK_OK(fi_cntr_open(side.domain, &cntr_attr, &cntr, NULL));
    CHECK_OK(fi_srx_context(side.domain, NULL, &shared, NULL));
    CHECK_RET(fi_ep_bind(side.ep, &cq->fid, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &cntr->fid, FI_SEND), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &shared->fid, 0), -FI_EINVAL);
    CHECK_OK(fi_enable(side.ep));
    close_fid(&shared->fid);
    close_fid(&cntr->fid);
    close_fid(&cq->fid);
    side_close(&side);
    fi_freeinfo(hints);
}

static void endpoint_calls(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;
    struct fid_ep *ep = NULL;
    struct fid_mc *mc = NULL;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_RET(fi_cancel(&side.ep->fid, NULL), -FI_ENOSYS);
    CHECK_RET(fi_tx_context(side.ep, 0, side.info->tx_attr, &ep, NULL), -FI_ENOSYS);
    CHECK_RET(fi_rx_context(side.ep, 0, side.info->rx_attr, &ep, NULL), -FI_ENOSYS);
    CHECK_RET(fi_join(side.ep, side.info->dest_addr, 0, &mc, NULL), -FI_ENOSYS);
    CHECK_RET(fi_ep_alias(side.ep, &ep, 0), -FI_ENOSYS);
    CHECK(ep == NULL && mc == NULL);
    side_close(&side);
    fi_freeinfo(hints);
}

static const struct test tests[] = {
    TEST(with_data, "fi_senddata, fi_injectdata: -FI_ENOSYS"),
    TEST(rma, "RMA calls: -FI_ENOSYS"),
    TEST(tagged, "tagged calls: -FI_ENOSYS"),
    TEST(tagged_of_messages, "the same on a message endpoint of an info without FI_TAGGED"),
    TEST(atomic, "atomic calls: -FI_ENOSYS"),
    TEST(atomic_of_messages, "the same on a message endpoint"),
    TEST(collective, "collective calls: -FI_ENOSYS"),
    TEST(collective_of_messages, "the same on a message endpoint"),
    TEST(domain_objects, "address vectors, poll sets and further domain calls: -FI_ENOSYS"),
    TEST(message_objects, "objects for message endpoints cannot be bound to a stream: -FI_EINVAL"),
    TEST(endpoint_calls, "cancel, contexts, multicast, alias: -FI_ENOSYS"),
};

const struct section unsupported_section = SECTION("unsupported", tests);
