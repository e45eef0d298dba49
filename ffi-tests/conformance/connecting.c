/* Contract, section Connecting: binding, requests, user data, names. */
#include "conformance.h"

#include <unistd.h>

static size_t cm_data_size(struct fid *fid)
{
    size_t size = 0, length = sizeof size;

    CHECK_OK(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length));
    return size;
}

static void enable_needs_queue(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;

    side_open(&side, find(IPV4, "7471", 0, hints));
    CHECK_OK(fi_endpoint(side.domain, side.info, &side.ep, NULL));
    CHECK_RET(fi_enable(side.ep), -FI_ENOEQ);
    CHECK_RET(fi_connect(side.ep, side.info->dest_addr, NULL, 0), -FI_ENOEQ);
    CHECK_OK(fi_ep_bind(side.ep, &side.eq->fid, 0));
    CHECK_OK(fi_enable(side.ep));
    side_close(&side);
    fi_freeinfo(hints);
}

static void connect_with(bool enable_first, const char *host)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, host, NULL);
    side_active(&client, host, fid_port(&listener.pep->fid), NULL);
    if (enable_first)
        CHECK_OK(fi_enable(client.ep));
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    side_for_request(&listener, &server, &request);
    if (enable_first)
        CHECK_OK(fi_enable(server.ep));
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    transfer(client.ep, server.ep, 1000);
    transfer(server.ep, client.ep, 1000);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void enable_is_implied(void)
{
    connect_with(false, IPV4);
    connect_with(true, IPV4);
}

static void over_ipv6(void)
{
    connect_with(false, IPV6);
}

static void shared_event_queue(void)
{
    enum { CLIENTS = 6 };
    struct side listener, second, clients[CLIENTS], servers[CLIENTS];
    struct fi_info *hints = stream_hints();
    unsigned accepted = 0, established = 0;

    side_listen(&listener, IPV4, NULL);
    side_share(&second, &listener, find(IPV4, "0", FI_SOURCE, hints));
    CHECK_OK(fi_passive_ep(second.fabric, second.info, &second.pep, NULL));
    CHECK_OK(fi_pep_bind(second.pep, &second.eq->fid, 0));
    CHECK_OK(fi_listen(second.pep));
    for (unsigned i = 0; i < CLIENTS; i++) {
        unsigned port = fid_port(&(i % 2 ? second : listener).pep->fid);

        side_share(&clients[i], &listener, find_peer(IPV4, port, NULL));
        side_endpoint(&clients[i], NULL);
        CHECK_OK(fi_connect(clients[i].ep, clients[i].info->dest_addr, &i, sizeof i));
    }
    while (established < 2 * CLIENTS) {
        struct event event = next_event(listener.eq);
        unsigned client;

        if (event.kind == FI_CONNECTED) {
            established++;
            continue;
        }
        CHECK_INT(event.kind, FI_CONNREQ);
        CHECK_INT(event.data_length, sizeof client);
        memcpy(&client, event.data, sizeof client);
        CHECK(event.fid == &(client % 2 ? second : listener).pep->fid);
        accept_request(&listener, &servers[client], &event, NULL, 0);
        accepted++;
    }
    CHECK_INT(accepted, CLIENTS);
    for (unsigned i = 0; i < CLIENTS; i++)
        transfer(clients[i].ep, servers[i].ep, 1000 + i);
    for (unsigned i = 0; i < CLIENTS; i++) {
        side_close(&clients[i]);
        side_close(&servers[i]);
    }
    side_close(&second);
    side_close(&listener);
    fi_freeinfo(hints);
}

static void bind_only_queues(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;

    side_open(&side, find(IPV4, "7471", 0, hints));
    CHECK_OK(fi_endpoint(side.domain, side.info, &side.ep, NULL));
    CHECK_RET(fi_ep_bind(side.ep, &side.domain->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &side.fabric->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &side.ep->fid, 0), -FI_EINVAL);
    CHECK_OK(fi_passive_ep(side.fabric, side.info, &side.pep, NULL));
    CHECK_RET(fi_pep_bind(side.pep, &side.domain->fid, 0), -FI_EINVAL);
    side_close(&side);
    fi_freeinfo(hints);
}

static void request_opens_endpoint(void)
{
    struct side listener, client, server;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, "hello", 5));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK(request.fid == &listener.pep->fid);
    CHECK(request.info != NULL);
    CHECK(request.info->handle != NULL);
    CHECK_INT(request.info->ep_attr->type, FI_EP_SOCK_STREAM);
    /* The info is complete, like a result of fi_getinfo. */
    CHECK(is_ours(request.info));
    CHECK(request.info->fabric_attr->name != NULL);
    CHECK(request.info->domain_attr->name != NULL);
    CHECK_INT(request.info->fabric_attr->api_version, listener.info->fabric_attr->api_version);
    CHECK_INT(request.data_length, 5);
    CHECK_BYTES(request.data, "hello", 5);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    transfer(server.ep, client.ep, 5000);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* Another endpoint for the request is refused, and does not disturb the one that it has. */
static void one_endpoint_of_request(void)
{
    struct side listener, client, server;
    struct fid_ep *other = NULL;
    struct fi_info *again;
    struct event request;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    again = fi_dupinfo(request.info);
    again->handle = request.info->handle;
    side_for_request(&listener, &server, &request);
    CHECK_RET(fi_endpoint(server.domain, again, &other, NULL), -FI_EINVAL);
    CHECK(other == NULL);
    fi_freeinfo(again);
    CHECK_OK(fi_accept(server.ep, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    await_event(server.eq, FI_CONNECTED);
    transfer(client.ep, server.ep, 1000);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

/* Connects with this much data in each direction, and checks that exactly this data arrives. */
static void exchange_data(struct side *listener, size_t request_length, size_t reply_length)
{
    struct side client, server;
    struct event request, connected;

    side_active(&client, IPV4, fid_port(&listener->pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, pattern(1, request_length), request_length));
    request = await_event(listener->eq, FI_CONNREQ);
    CHECK_INT(request.data_length, request_length);
    CHECK_BYTES(request.data, pattern(1, request_length), request_length);
    accept_request(listener, &server, &request, pattern(2, reply_length), reply_length);
    connected = await_event(client.eq, FI_CONNECTED);
    CHECK_INT(connected.data_length, reply_length);
    CHECK_BYTES(connected.data, pattern(2, reply_length), reply_length);
    await_event(server.eq, FI_CONNECTED);
    side_close(&client);
    side_close(&server);
}

static void user_data_lengths(void)
{
    struct side listener;
    size_t most;

    side_listen(&listener, IPV4, NULL);
    most = cm_data_size(&listener.pep->fid);
    for (size_t length = 0; length <= most; length += length < 40 ? 1 : 13)
        exchange_data(&listener, length, most - length);
    exchange_data(&listener, most, most);
    side_close(&listener);
}

static void user_data_of_zeros(void)
{
    const uint8_t zeros[9] = {0};
    struct side listener, client, server;
    struct event request, connected;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, zeros, 9));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_INT(request.data_length, 9);
    accept_request(&listener, &server, &request, zeros, 3);
    connected = await_event(client.eq, FI_CONNECTED);
    CHECK_INT(connected.data_length, 3);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void user_data_too_long(void)
{
    struct side listener, client, server;
    struct event request;
    size_t most;

    side_listen(&listener, IPV4, NULL);
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    most = cm_data_size(&client.ep->fid);
    CHECK_INT(cm_data_size(&listener.pep->fid), most);
    CHECK_RET(fi_connect(client.ep, client.info->dest_addr, pattern(0, most + 1), most + 1), -FI_EINVAL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_RET(fi_reject(listener.pep, request.info->handle, pattern(0, most + 1), most + 1), -FI_EINVAL);
    side_for_request(&listener, &server, &request);
    CHECK_RET(fi_accept(server.ep, pattern(0, most + 1), most + 1), -FI_EINVAL);
    /* The failed calls changed nothing. */
    CHECK_OK(fi_accept(server.ep, pattern(0, most), most));
    CHECK_INT(await_event(client.eq, FI_CONNECTED).data_length, most);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
}

static void setname_binds(void)
{
    struct sockaddr_in address = ipv4_address(0);
    struct fi_info *hints = stream_hints();
    struct side listener, client, server;
    struct event request;
    unsigned free_port, client_port;

    /* The passive side: the name determines where it listens. */
    CHECK_SYS(close(tcp_listen(&free_port)));
    side_open(&listener, find(IPV4, "0", FI_SOURCE, hints));
    CHECK_OK(fi_passive_ep(listener.fabric, listener.info, &listener.pep, NULL));
    CHECK_OK(fi_pep_bind(listener.pep, &listener.eq->fid, 0));
    address.sin_port = htons((uint16_t)free_port);
    CHECK_OK(fi_setname(&listener.pep->fid, &address, sizeof address));
    CHECK_OK(fi_listen(listener.pep));
    CHECK_INT(fid_port(&listener.pep->fid), free_port);

    /* The active side: the peer sees the name. */
    CHECK_SYS(close(tcp_listen(&client_port)));
    side_active(&client, IPV4, free_port, NULL);
    memcpy(&address, client.info->src_addr, sizeof address);
    address.sin_port = htons((uint16_t)client_port);
    CHECK_OK(fi_setname(&client.ep->fid, &address, sizeof address));
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    request = await_event(listener.eq, FI_CONNREQ);
    CHECK_INT(address_port(request.info->dest_addr), client_port);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(client.eq, FI_CONNECTED);
    CHECK_INT(fid_port(&client.ep->fid), client_port);
    side_close(&client);
    side_close(&server);
    side_close(&listener);
    fi_freeinfo(hints);
}

static void setname_in_use(void)
{
    struct fi_info *hints = stream_hints();
    struct side owner, side;
    char service[16];

    side_listen(&owner, IPV4, NULL);
    snprintf(service, sizeof service, "%u", fid_port(&owner.pep->fid));
    side_open(&side, find(IPV4, service, FI_SOURCE, hints));
    CHECK_OK(fi_passive_ep(side.fabric, side.info, &side.pep, NULL));
    CHECK_OK(fi_pep_bind(side.pep, &side.eq->fid, 0));
    CHECK_RET(fi_listen(side.pep), -FI_EADDRINUSE);
    side_close(&side);
    side_close(&owner);
    fi_freeinfo(hints);
}

static void check_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b, size_t length)
{
    CHECK_INT(a->ss_family, b->ss_family);
    CHECK_INT(address_port(a), address_port(b));
    if (a->ss_family == AF_INET)
        CHECK_BYTES(&((const struct sockaddr_in *)a)->sin_addr, &((const struct sockaddr_in *)b)->sin_addr, 4);
    else
        CHECK_BYTES(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16);
    CHECK_INT(length, a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

static void names_of(const char *host)
{
    struct sockaddr_storage client_name = {0}, client_peer = {0}, server_name = {0}, server_peer = {0};
    size_t length;
    struct pair pair;

    pair_open(&pair, host, NULL);
    CHECK_AT_LEAST(fid_port(&pair.listener.pep->fid), 1);
    length = sizeof client_name;
    CHECK_OK(fi_getname(&pair.client.ep->fid, &client_name, &length));
    length = sizeof server_name;
    CHECK_OK(fi_getname(&pair.server.ep->fid, &server_name, &length));
    length = sizeof client_peer;
    CHECK_OK(fi_getpeer(pair.client.ep, &client_peer, &length));
    check_same_address(&client_peer, &server_name, length);
    length = sizeof server_peer;
    CHECK_OK(fi_getpeer(pair.server.ep, &server_peer, &length));
    check_same_address(&server_peer, &client_name, length);
    CHECK_INT(address_port(&client_peer), fid_port(&pair.listener.pep->fid));
    pair_close(&pair);
}

static void names(void)
{
    names_of(IPV4);
    names_of(IPV6);
}

/* A buffer of 5 bytes gets 5 bytes, and nothing after them changes. */
static void check_short_name(const uint8_t *buffer, size_t length, const struct sockaddr_in *whole)
{
    const uint8_t untouched[3] = {0xaa, 0xaa, 0xaa};

    CHECK_INT(length, sizeof *whole);
    CHECK_BYTES(buffer, whole, 5);
    CHECK_BYTES(buffer + 5, untouched, 3);
}

static void names_cut_short(void)
{
    struct sockaddr_in whole;
    uint8_t buffer[8];
    size_t length;
    struct pair pair;

    pair_open(&pair, IPV4, NULL);
    length = sizeof whole;
    CHECK_OK(fi_getname(&pair.listener.pep->fid, &whole, &length));
    memset(buffer, 0xaa, sizeof buffer);
    length = 5;
    CHECK_RET(fi_getname(&pair.listener.pep->fid, buffer, &length), -FI_ETOOSMALL);
    check_short_name(buffer, length, &whole);

    length = sizeof whole;
    CHECK_OK(fi_getname(&pair.client.ep->fid, &whole, &length));
    memset(buffer, 0xaa, sizeof buffer);
    length = 5;
    CHECK_RET(fi_getname(&pair.client.ep->fid, buffer, &length), -FI_ETOOSMALL);
    check_short_name(buffer, length, &whole);

    length = sizeof whole;
    CHECK_OK(fi_getpeer(pair.client.ep, &whole, &length));
    memset(buffer, 0xaa, sizeof buffer);
    length = 5;
    CHECK_RET(fi_getpeer(pair.client.ep, buffer, &length), -FI_ETOOSMALL);
    check_short_name(buffer, length, &whole);

    length = 0;
    CHECK_RET(fi_getpeer(pair.client.ep, NULL, &length), -FI_ETOOSMALL);
    CHECK_INT(length, sizeof whole);
    pair_close(&pair);
}

static void many_connections(void)
{
    enum { COUNT = 40 };
    static struct side clients[COUNT / 2], servers[COUNT / 2];
    struct side listener;

    /* Twice, so that the resources of the first endpoints are used again. */
    side_listen(&listener, IPV4, NULL);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < COUNT / 2; i++) {
            struct event request;

            side_active(&clients[i], IPV4, fid_port(&listener.pep->fid), NULL);
            CHECK_OK(fi_connect(clients[i].ep, clients[i].info->dest_addr, NULL, 0));
            request = await_event(listener.eq, FI_CONNREQ);
            accept_request(&listener, &servers[i], &request, NULL, 0);
            await_event(clients[i].eq, FI_CONNECTED);
            await_event(listener.eq, FI_CONNECTED);
        }
        for (unsigned i = 0; i < COUNT / 2; i++)
            send_all(clients[i].ep, pattern(i, 100), 100);
        for (unsigned i = 0; i < COUNT / 2; i++)
            recv_pattern(servers[i].ep, i, 100);
        for (unsigned i = 0; i < COUNT / 2; i++) {
            side_close(&clients[i]);
            side_close(&servers[i]);
        }
    }
    side_close(&listener);
}

/* The queues are as short as possible, so that the device's memory for each of them is as small as
 * possible, down to one page. The test then covers every number of endpoints and every position of a
 * queue. */
static void many_endpoints(void)
{
    enum { COUNT = 60 };
    const struct settings settings = {.tx_size = 3, .rx_size = 3};
    static struct side sides[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        side_active(&sides[i], IPV4, 7471, &settings);
        CHECK_OK(fi_enable(sides[i].ep));
    }
    for (unsigned i = 0; i < COUNT; i++)
        side_close(&sides[i]);
}

static const struct test tests[] = {
    TEST(enable_needs_queue, "fi_enable needs a bound event queue (-FI_ENOEQ)"),
    TEST(enable_is_implied, "fi_connect and fi_accept enable an endpoint that is not"),
    TEST(over_ipv6, "connections over IPv6"),
    TEST(shared_event_queue, "any number of endpoints and passive endpoints may share an event queue"),
    TEST(bind_only_queues, "binding anything else to a stream endpoint answers -FI_EINVAL"),
    TEST(request_opens_endpoint, "FI_CONNREQ carries an info that opens an endpoint, and the user's data"),
    TEST(one_endpoint_of_request, "fi_endpoint for a request that has an endpoint: -FI_EINVAL"),
    TEST(user_data_lengths, "lengths of connection data are exact in every event"),
    TEST(user_data_of_zeros, "data that ends in zeros is not cut, nor padded"),
    TEST(user_data_too_long, "user data longer than the device allows: -FI_EINVAL"),
    TEST(setname_binds, "fi_setname before connect or listen binds"),
    TEST(setname_in_use, "an address in use: -FI_EADDRINUSE"),
    TEST(names, "fi_getname and fi_getpeer; port 0 shows the real port"),
    TEST(names_cut_short, "a short buffer is filled as far as it goes and answers -FI_ETOOSMALL"),
    TEST(many_connections, "many connections to one listener, one after another and at once"),
    TEST(many_endpoints, "many enabled endpoints at once, with the shortest queues"),
};

const struct section connecting_section = SECTION("connecting", tests);
