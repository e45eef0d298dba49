/* Contract, section Message endpoints: opening, binding and connecting. */
#include "message.h"

#include <unistd.h>

#include "../iwarp_wire.h"

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
    TEST(other_kind, "streams and messages are refused by each other's listeners"),
    TEST(strangers, "a listener is not disturbed by peers that speak something else, or nothing"),
};

const struct section message_life_section = SECTION("message endpoints", tests);
