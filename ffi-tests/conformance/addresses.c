/* Contract, section Discovery: the addresses in the hints and in the results of fi_getinfo. */
#include "conformance.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>

/* Compares an address in a result of fi_getinfo with the requested one. */
static void check_address(const void *address, size_t length, int family, unsigned port)
{
    CHECK(address != NULL);
    CHECK_INT(((const struct sockaddr *)address)->sa_family, family);
    CHECK_INT(length, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    CHECK_INT(address_port(address), port);
}

static void node_and_service(void)
{
    struct fi_info *hints = stream_hints(), *info;
    struct in6_addr wanted;

    info = find(IPV4, "7471", 0, hints);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET, 7471);
    CHECK_INT(((struct sockaddr_in *)info->dest_addr)->sin_addr.s_addr, ipv4_address(0).sin_addr.s_addr);
    fi_freeinfo(info);

    /* The source is an address of this host that reaches the destination, with any port. */
    info = find(IPV4, "7471", 0, hints);
    check_address(info->src_addr, info->src_addrlen, AF_INET, 0);
    fi_freeinfo(info);

    info = find(IPV6, "7471", 0, hints);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET6, 7471);
    check_address(info->src_addr, info->src_addrlen, AF_INET6, 0);
    CHECK_INT(inet_pton(AF_INET6, IPV6, &wanted), 1);
    CHECK_BYTES(&((struct sockaddr_in6 *)info->dest_addr)->sin6_addr, &wanted, sizeof wanted);
    fi_freeinfo(info);

    info = find("localhost", "7471", 0, hints);
    CHECK_INT(address_port(info->dest_addr), 7471);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void source_flag(void)
{
    struct fi_info *hints = stream_hints(), *info;

    info = find(IPV4, "7471", FI_SOURCE, hints);
    check_address(info->src_addr, info->src_addrlen, AF_INET, 7471);
    CHECK(info->dest_addr == NULL);
    fi_freeinfo(info);
    info = find(IPV6, "7471", FI_SOURCE, hints);
    check_address(info->src_addr, info->src_addrlen, AF_INET6, 7471);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void numeric_host(void)
{
    struct fi_info *hints = stream_hints(), *info = find(IPV4, "7471", FI_NUMERICHOST, hints);

    fi_freeinfo(info);
    info = NULL;
    CHECK_RET(fi_getinfo(TEST_API, "localhost", "7471", FI_NUMERICHOST, hints, &info), -FI_ENODATA);
    CHECK(info == NULL);
    fi_freeinfo(hints);
}

/* Stores the address with this port in hints. */
static void hint_address(void **field, size_t *length, unsigned port)
{
    struct sockaddr_in address = ipv4_address(port);

    *length = sizeof address;
    *field = malloc(sizeof address);
    CHECK(*field != NULL);
    memcpy(*field, &address, sizeof address);
}

static void hinted_addresses(void)
{
    struct fi_info *hints = stream_hints(), *info;

    hint_address(&hints->dest_addr, &hints->dest_addrlen, 7471);
    info = find(NULL, NULL, 0, hints);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET, 7471);
    fi_freeinfo(info);

    /* The node takes precedence over the destination hint. */
    info = find(IPV4, "7472", 0, hints);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET, 7472);
    fi_freeinfo(info);

    hint_address(&hints->src_addr, &hints->src_addrlen, 7473);
    info = find(NULL, NULL, 0, hints);
    check_address(info->src_addr, info->src_addrlen, AF_INET, 7473);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET, 7471);
    fi_freeinfo(info);

    /* With FI_SOURCE the node takes precedence over the source hint, and the destination hint is used. */
    info = find(IPV4, "7474", FI_SOURCE, hints);
    check_address(info->src_addr, info->src_addrlen, AF_INET, 7474);
    check_address(info->dest_addr, info->dest_addrlen, AF_INET, 7471);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static void wildcard(void)
{
    struct fi_info *hints = stream_hints(), *info;
    struct side side;
    unsigned port;
    int fd;

    needs_embedded_device();
    info = find("0.0.0.0", "0", FI_SOURCE, hints);
    CHECK_INT(((struct sockaddr_in *)info->src_addr)->sin_addr.s_addr, htonl(INADDR_ANY));
    side_open(&side, info);
    CHECK_OK(fi_passive_ep(side.fabric, side.info, &side.pep, NULL));
    CHECK_OK(fi_pep_bind(side.pep, &side.eq->fid, 0));
    CHECK_OK(fi_listen(side.pep));
    port = fid_port(&side.pep->fid);
    CHECK_AT_LEAST(port, 1);
    fd = stranger_connect(port);
    CHECK_SYS(close(fd));
    side_close(&side);

    info = find("::", "0", FI_SOURCE, hints);
    CHECK(IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)info->src_addr)->sin6_addr));
    fi_freeinfo(info);

    /* A service without a node means a port on every address. */
    info = find(NULL, "7471", FI_SOURCE, hints);
    CHECK_INT(address_port(info->src_addr), 7471);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* An address of IPv4 in one of IPv6 can be listened on, and reached in either form. */
static void ipv4_mapped(void)
{
    static const char *const clients[] = {"::ffff:127.0.0.1", "127.0.0.1"};

    needs_embedded_device();
    for (unsigned i = 0; i < sizeof clients / sizeof clients[0]; i++) {
        struct pair pair = {0};

        side_listen(&pair.listener, "::ffff:127.0.0.1", NULL);
        side_active(&pair.client, clients[i], fid_port(&pair.listener.pep->fid), NULL);
        pair_join(&pair);
        transfer(pair.client.ep, pair.server.ep, 1000);
        transfer(pair.server.ep, pair.client.ep, 1000);
        pair_close(&pair);
    }
}

/* An RDMA device reports each of its addresses, and a listener on any of them can be reached. */
static void wildcard_of_rdma_device(void)
{
    struct sockaddr_in wanted = ipv4_address(7475), *found;
    struct fi_info *hints = stream_hints(), *all, *info;
    struct side listener, client;

    needs_rdma_device();
    hints->fabric_attr->name = strdup("ibv");
    all = find("0.0.0.0", "7475", FI_SOURCE, hints);
    for (info = all; info; info = info->next) {
        found = info->src_addr;
        CHECK_INT(found->sin_family, AF_INET);
        CHECK_INT(ntohs(found->sin_port), 7475);
        CHECK(found->sin_addr.s_addr != htonl(INADDR_ANY));
        if (found->sin_addr.s_addr == wanted.sin_addr.s_addr)
            break;
    }
    CHECK(info != NULL);
    side_open(&listener, fi_dupinfo(info));
    CHECK_OK(fi_passive_ep(listener.fabric, listener.info, &listener.pep, NULL));
    CHECK_OK(fi_pep_bind(listener.pep, &listener.eq->fid, 0));
    CHECK_OK(fi_listen(listener.pep));
    side_active(&client, IPV4, 7475, NULL);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    fi_freeinfo(await_event(listener.eq, FI_CONNREQ).info);
    side_close(&client);
    side_close(&listener);
    fi_freeinfo(all);
    fi_freeinfo(hints);
}

static const struct test tests[] = {
    TEST(node_and_service, "node and service, IPv4 and IPv6"),
    TEST(source_flag, "FI_SOURCE: node and service are the local address"),
    TEST(numeric_host, "FI_NUMERICHOST: no look-up of names"),
    TEST(hinted_addresses, "src_addr and dest_addr of the hints"),
    TEST(wildcard, "wildcard addresses"),
    TEST(ipv4_mapped, "an IPv4-mapped address of IPv6 can be listened on, and reached in either form"),
    TEST(wildcard_of_rdma_device, "the wildcard on RDMA devices: each of their addresses"),
};

const struct section addresses_section = SECTION("addresses", tests);
