/* Contract, section Message endpoints: what objects cost, what they refuse, and what becomes of their events. */
#include "message.h"

enum { LENGTH = 10000, KEY = 1 };

static uint8_t here[LENGTH], there[LENGTH];

/* ---- completion queues -------------------------------------------------------------------- */

/* Opens a queue. Answers how many bytes of the heap it takes. */
static size_t queue_of(struct fid_domain *domain, size_t size, enum fi_wait_obj wait, struct fid_cq **cq)
{
    struct fi_cq_attr attr = {.size = size, .wait_obj = wait};
    size_t before = heap_in_use();

    CHECK_OK(fi_cq_open(domain, &attr, cq, NULL));
    return heap_in_use() - before;
}

static void size_costs_nothing(void)
{
    const enum fi_wait_obj waits[] = {FI_WAIT_NONE, FI_WAIT_FD};
    struct side listener;
    struct fid_cq *cqs[3];

    message_listen(&listener, NULL);
    if (heap_in_use() == 0)
        skip("the heap cannot be measured");
    for (unsigned i = 0; i < 2; i++) {
        size_t one, most;

        /* The first one takes room for several. */
        (void)queue_of(listener.domain, 1, waits[i], &cqs[0]);
        one = queue_of(listener.domain, 1, waits[i], &cqs[1]);
        most = queue_of(listener.domain, 262144, waits[i], &cqs[2]);
        printf("    %zu bytes for 1 entry, %zu for 262144\n", one, most);
        CHECK_BETWEEN(most, 0, one + 1000);
        if (waits[i] == FI_WAIT_NONE)
            CHECK_BETWEEN(most, 0, 4095);
        for (unsigned n = 0; n < 3; n++)
            close_fid(&cqs[n]->fid);
    }
    side_close(&listener);
}

/* ---- endpoints ---------------------------------------------------------------------------- */

/* Both directions need a queue, also those for which the info has no capability. */
static void reduced_capabilities(void)
{
    const uint64_t caps[] = {FI_MSG | FI_SEND, FI_MSG | FI_RECV, FI_RMA | FI_READ, FI_RMA | FI_REMOTE_WRITE};
    const uint64_t directions[] = {FI_TRANSMIT, FI_RECV};

    for (unsigned i = 0; i < 8; i++) {
        struct fi_info *hints = message_hints(NULL);
        struct fid_ep *ep;
        struct side side;

        note("capabilities 0x%llx, direction %u", (unsigned long long)caps[i / 2], i % 2);
        hints->caps = caps[i / 2];
        side_open(&side, find(IPV4, "7471", 0, hints));
        fi_freeinfo(hints);
        message_queue(&side, NULL);
        CHECK_OK(fi_endpoint(side.domain, side.info, &ep, NULL));
        CHECK_OK(fi_ep_bind(ep, &side.eq->fid, 0));
        CHECK_OK(fi_ep_bind(ep, &side.cq->fid, directions[i % 2]));
        CHECK_RET(fi_enable(ep), -FI_ENOCQ);
        CHECK_OK(fi_ep_bind(ep, &side.cq->fid, directions[1 - i % 2]));
        CHECK_OK(fi_enable(ep));
        close_fid(&ep->fid);
        side_close(&side);
    }
}

/* The handle of a request is invalid once that is accepted or rejected. */
static void answered_requests(void)
{
    for (unsigned accepts = 0; accepts < 2; accepts++) {
        struct side listener, client, server;
        struct fi_info *again;
        struct event request;
        struct fid_ep *ep;

        note("accepts %u", accepts);
        request = message_request(&listener, &client, NULL);
        again = fi_dupinfo(request.info);
        again->handle = request.info->handle;
        message_server(&listener, &server, &request, NULL);
        if (accepts) {
            message_accept(&client, &server);
        } else {
            CHECK_OK(fi_reject(listener.pep, again->handle, NULL, 0));
            CHECK_INT(await_error(client.eq, NULL, 0).err, FI_ECONNREFUSED);
            CHECK_RET(fi_accept(server.ep, NULL, 0), -FI_EINVAL);
        }
        CHECK_RET(fi_endpoint(server.domain, again, &ep, NULL), -FI_EINVAL);
        CHECK_RET(fi_reject(listener.pep, again->handle, NULL, 0), -FI_EINVAL);
        if (accepts)
            message_transfer(&client, &server, 100);
        fi_freeinfo(again);
        side_close(&client);
        side_close(&server);
        side_close(&listener);
    }
}

/* A request has one endpoint: no other one takes it, not even by being closed. */
static void claimed_requests(void)
{
    struct side listener, client, server;
    struct fi_info *again;
    struct event request;
    struct fid_ep *ep = NULL;

    request = message_request(&listener, &client, NULL);
    again = fi_dupinfo(request.info);
    again->handle = request.info->handle;
    message_server(&listener, &server, &request, NULL);
    CHECK_RET(fi_endpoint(server.domain, again, &ep, NULL), -FI_EINVAL);
    CHECK(ep == NULL);
    fi_freeinfo(again);
    message_accept(&client, &server);
    message_transfer(&client, &server, 100);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* A passive endpoint that listens has its address in use. It goes on to listen. */
static void address_of_listener(void)
{
    struct side listener, client, server;
    struct event request;
    struct fid_ep *ep;

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    message_queue(&listener, NULL);
    listener.info->handle = &listener.pep->fid;
    CHECK_OK(fi_endpoint(listener.domain, listener.info, &ep, NULL));
    listener.info->handle = NULL;
    CHECK_INT(fid_port(&ep->fid), fid_port(&listener.pep->fid));
    CHECK_OK(fi_ep_bind(ep, &listener.eq->fid, 0));
    CHECK_OK(fi_ep_bind(ep, &listener.cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK_RET(fi_connect(ep, client.info->dest_addr, NULL, 0), -FI_EADDRINUSE);
    close_fid(&ep->fid);
    message_endpoint(&client, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    message_server(&listener, &server, &request, NULL);
    message_accept(&client, &server);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* An event that nobody has read goes with its endpoint. */
static void unread_connected_leaves(void)
{
    struct side listener, client, server;
    struct fi_eq_cm_entry entry;
    struct event request;
    uint32_t kind;

    request = message_request(&listener, &client, NULL);
    message_server(&listener, &server, &request, NULL);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    AWAIT(PATIENCE_MS, fi_eq_read(client.eq, &kind, &entry, sizeof entry, FI_PEEK) == sizeof entry);
    CHECK_INT(kind, FI_CONNECTED);
    AWAIT(PATIENCE_MS, fi_eq_read(listener.eq, &kind, &entry, sizeof entry, FI_PEEK) == sizeof entry);
    CHECK_INT(kind, FI_CONNECTED);
    close_fid(&client.ep->fid);
    client.ep = NULL;
    check_no_event(client.eq);
    close_fid(&server.ep->fid);
    server.ep = NULL;
    drive_for(20);
    check_no_event(client.eq);
    check_no_event(listener.eq);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* ---- shared receive contexts -------------------------------------------------------------- */

/* A shared receive context takes receives, and nothing else. */
static void shared_refuses(void)
{
    const uint64_t refused[] = {FI_MULTI_RECV, FI_INJECT, FI_DELIVERY_COMPLETE, 1ULL << 45};
    struct fi_rx_attr attr = {0};
    struct fid_ep *shared = NULL;
    uint8_t name[sizeof(struct sockaddr_in6)];
    size_t value = sizeof name;
    struct side listener;

    message_listen(&listener, NULL);
    message_queue(&listener, NULL);
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        attr.op_flags = refused[i];
        CHECK_RET(fi_srx_context(listener.domain, &attr, &shared, NULL), -FI_EBADFLAGS);
        attr.op_flags |= FI_COMPLETION;
        CHECK_RET(fi_srx_context(listener.domain, &attr, &shared, NULL), -FI_EBADFLAGS);
        CHECK(shared == NULL);
    }
    attr.op_flags = FI_COMPLETION;
    CHECK_OK(fi_srx_context(listener.domain, &attr, &shared, NULL));
    check_calls(shared, -FI_ENOSYS);
    CHECK_RET(fi_tx_size_left(shared), -FI_ENOSYS);
    CHECK_RET(fi_connect(shared, listener.info->src_addr, NULL, 0), -FI_ENOSYS);
    CHECK_RET(fi_accept(shared, NULL, 0), -FI_ENOSYS);
    CHECK_RET(fi_shutdown(shared, 0), -FI_ENOSYS);
    CHECK_RET(fi_getname(&shared->fid, name, &value), -FI_ENOSYS);
    CHECK_RET(fi_getpeer(shared, name, &value), -FI_ENOSYS);
    CHECK_RET(fi_setname(&shared->fid, listener.info->src_addr, listener.info->src_addrlen), -FI_ENOSYS);
    CHECK_RET(fi_getopt(&shared->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &(size_t){sizeof value}),
              -FI_ENOSYS);
    CHECK_RET(fi_ep_bind(shared, &listener.cq->fid, FI_RECV), -FI_ENOSYS);
    CHECK_RET(fi_rx_size_left(shared), MESSAGE_QUEUE);
    close_fid(&shared->fid);
    side_close(&listener);
}

/* ---- memory regions ----------------------------------------------------------------------- */

/* Programs that register local memory pass its descriptors, also those of another region. */
static void descriptors_of_regions(void)
{
    struct fid_mr *own, *other, *remote;
    struct iovec piece = {here, LENGTH};
    struct pair pair;
    void *descriptors[2];
    struct fid_ep *ep;

    messages_open(&pair, NULL);
    ep = pair.client.ep;
    own = message_region(&pair.client, here, LENGTH, KEY);
    other = message_region(&pair.client, &pair, 1, KEY + 1);
    remote = message_region(&pair.server, there, LENGTH, KEY);
    descriptors[0] = fi_mr_desc(own);
    descriptors[1] = fi_mr_desc(other);
    for (unsigned i = 0; i < 2; i++) {
        void *descriptor = descriptors[i];

        memcpy(here, pattern(i, LENGTH), LENGTH);
        CHECK_OK(fi_recv(pair.server.ep, there, LENGTH, fi_mr_desc(remote), FI_ADDR_UNSPEC, CONTEXT(1)));
        CHECK_OK(fi_send(ep, here, LENGTH, descriptor, FI_ADDR_UNSPEC, CONTEXT(2)));
        CHECK_INT(await_done(pair.server.cq, 1, RECEIVED).len, LENGTH);
        (void)await_done(pair.client.cq, 2, SENT);
        CHECK_BYTES(there, here, LENGTH);
        memset(there, 0, LENGTH);
        CHECK_OK(fi_writev(ep, &piece, &descriptor, 1, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(3)));
        CHECK_OK(fi_read(ep, here, LENGTH, descriptor, FI_ADDR_UNSPEC, 0, KEY, CONTEXT(4)));
        (void)await_done(pair.client.cq, 3, WRITTEN);
        (void)await_done(pair.client.cq, 4, WAS_READ);
        CHECK_BYTES(there, pattern(i, LENGTH), LENGTH);
        CHECK_BYTES(here, there, LENGTH);
    }
    close_fid(&own->fid);
    close_fid(&other->fid);
    close_fid(&remote->fid);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(size_costs_nothing, "fi_cq_open allocates nothing for its size"),
    TEST(reduced_capabilities, "a queue for each direction, whatever the capabilities: else -FI_ENOCQ"),
    TEST(answered_requests, "the handle of a request that was accepted or rejected: -FI_EINVAL"),
    TEST(claimed_requests, "the handle of a request that has an endpoint: -FI_EINVAL"),
    TEST(address_of_listener, "an endpoint opened from a passive endpoint that listens: -FI_EADDRINUSE of fi_connect"),
    TEST(unread_connected_leaves, "FI_CONNECTED that was not read leaves the event queue with its endpoint"),
    TEST(shared_refuses, "fi_srx_context: bad op_flags; every call but those that receive"),
    TEST(descriptors_of_regions, "descriptors of fi_mr_desc, of the memory and of other memory, are taken and ignored"),
};

const struct section message_objects_section = SECTION("objects of message endpoints", tests);
