/* Contract, section Bad input: a wrong argument fails the call and changes nothing else. */
#include "conformance.h"

#define UNKNOWN_FLAG (1ULL << 61)

static void null_buffers(void)
{
    struct iovec bad = {NULL, 5};
    struct fi_msg no_iov = {.iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct fi_msg null_base = {.msg_iov = &bad, .iov_count = 1, .addr = FI_ADDR_UNSPEC};
    struct pair pair;
    struct fid_ep *ep;

    pair_open(&pair, IPV4, NULL);
    ep = pair.client.ep;
    CHECK_RET(send_once(ep, NULL, 5), -FI_EINVAL);
    CHECK_RET(recv_once(ep, NULL, 5), -FI_EINVAL);
    CHECK_RET(fi_inject(ep, NULL, 5, FI_ADDR_UNSPEC), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(ep, &bad, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, NULL, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(ep, &bad, NULL, 1, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_sendmsg(ep, &no_iov, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(ep, &no_iov, 0), -FI_EINVAL);
    CHECK_RET(fi_sendmsg(ep, &null_base, 0), -FI_EINVAL);
    CHECK_RET(fi_recvmsg(ep, &null_base, 0), -FI_EINVAL);
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static void nonsense_lengths(void)
{
    struct iovec huge[2] = {{(void *)(uintptr_t)"x", SIZE_MAX}, {(void *)(uintptr_t)"y", SIZE_MAX}};
    struct pair pair;

    /* The sum of the lengths overflows. */
    pair_open(&pair, IPV4, NULL);
    CHECK_RET(fi_sendv(pair.client.ep, huge, NULL, 2, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_recvv(pair.client.ep, huge, NULL, 2, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    CHECK_RET(fi_sendv(pair.client.ep, huge, NULL, SIZE_MAX, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static void null_elsewhere(void)
{
    struct fi_info *hints = stream_hints();
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct side side;
    struct fid_eq *eq = NULL;
    struct fid_ep *ep = NULL;
    struct fid_pep *pep = NULL;
    struct fid_domain *domain = NULL;
    size_t length = sizeof address;
    uint64_t value = 4096;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_RET(fi_eq_open(side.fabric, NULL, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_endpoint(side.domain, NULL, &ep, NULL), -FI_EINVAL);
    CHECK_RET(fi_endpoint(side.domain, side.info, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_passive_ep(side.fabric, NULL, &pep, NULL), -FI_EINVAL);
    CHECK_RET(fi_passive_ep(side.fabric, side.info, NULL, NULL), -FI_EINVAL);
    CHECK_RET(fi_domain(side.fabric, NULL, &domain, NULL), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_getname(&side.ep->fid, &address, NULL), -FI_EINVAL);
    CHECK_RET(fi_setname(&side.ep->fid, NULL, length), -FI_EINVAL);
    CHECK_RET(fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, NULL, sizeof value), -FI_EINVAL);
    CHECK_RET(fi_getopt(&side.ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, &value, NULL), -FI_EINVAL);
    CHECK_RET(fi_control(&side.ep->fid, FI_GETWAIT, NULL), -FI_EINVAL);
    CHECK_RET(fi_trywait(side.fabric, NULL, 1), -FI_EINVAL);
    CHECK_RET(fi_eq_readerr(side.eq, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_connect(side.ep, side.info->dest_addr, NULL, 5), -FI_EINVAL);
    CHECK(eq == NULL && ep == NULL && pep == NULL && domain == NULL);
    side_close(&side);
    fi_freeinfo(hints);
}

static void wrong_class(void)
{
    struct fi_info *hints = stream_hints();
    struct side side;
    struct fid *fids[1];

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    fids[0] = &side.domain->fid;
    CHECK_RET(fi_trywait(side.fabric, fids, 1), -FI_EINVAL);
    fids[0] = NULL;
    CHECK_RET(fi_trywait(side.fabric, fids, 1), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &side.domain->fid, 0), -FI_EINVAL);
    CHECK_RET(fi_ep_bind(side.ep, &side.eq->fid, UNKNOWN_FLAG), -FI_EBADFLAGS);
    side_close(&side);
    fi_freeinfo(hints);
}

static void wrong_handle(void)
{
    struct side listener;
    struct fi_info *info;

    /* Handles that are no connection requests. */
    side_listen(&listener, IPV4, NULL);
    CHECK_RET(fi_reject(listener.pep, &listener.eq->fid, NULL, 0), -FI_EINVAL);
    CHECK_RET(fi_reject(listener.pep, NULL, NULL, 0), -FI_EINVAL);
    info = fi_dupinfo(listener.info);
    CHECK(info != NULL);
    info->handle = &listener.eq->fid;
    CHECK_RET(fi_endpoint(listener.domain, info, &listener.ep, NULL), -FI_EINVAL);
    CHECK(listener.ep == NULL);
    fi_freeinfo(info);
    side_close(&listener);
}

/* The provider may choose the error, but the call must fail and change nothing. */
#define CHECK_REFUSED(call) CHECK_BETWEEN(call, -FI_ERRNO_MAX, -1)

static void wrong_state(void)
{
    struct side listener, client;
    struct sockaddr_in address = ipv4_address(0);
    struct pair pair;

    side_listen(&listener, IPV4, NULL);
    CHECK_REFUSED(fi_listen(listener.pep));
    CHECK_REFUSED(fi_setname(&listener.pep->fid, &address, sizeof address));
    side_active(&client, IPV4, fid_port(&listener.pep->fid), NULL);
    CHECK_REFUSED(fi_accept(client.ep, NULL, 0));
    side_close(&client);
    side_close(&listener);

    pair_open(&pair, IPV4, NULL);
    CHECK_REFUSED(fi_connect(pair.client.ep, pair.client.info->dest_addr, NULL, 0));
    CHECK_REFUSED(fi_accept(pair.server.ep, NULL, 0));
    CHECK_REFUSED(fi_setname(&pair.client.ep->fid, &address, sizeof address));
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static void wrong_address(void)
{
    struct fi_info *hints = stream_hints();
    struct sockaddr_in address = ipv4_address(0);
    struct sockaddr_in strange = {.sin_family = AF_UNIX};
    struct side side;

    side_open(&side, find(IPV4, "7471", 0, hints));
    side_endpoint(&side, NULL);
    CHECK_RET(fi_setname(&side.ep->fid, &address, 3), -FI_EINVAL);
    CHECK_RET(fi_setname(&side.ep->fid, &strange, sizeof strange), -FI_EINVAL);
    CHECK_RET(fi_connect(side.ep, &strange, NULL, 0), -FI_EINVAL);
    side_close(&side);
    fi_freeinfo(hints);
}

static void unknown_commands(void)
{
    struct pair pair;
    int value = 0;

    pair_open(&pair, IPV4, NULL);
    CHECK_REFUSED(fi_control(&pair.client.ep->fid, 12345, &value));
    CHECK_REFUSED(fi_control(&pair.client.eq->fid, 12345, &value));
    transfer(pair.client.ep, pair.server.ep, 1000);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(null_buffers, "a null pointer where bytes are needed: -FI_EINVAL"),
    TEST(nonsense_lengths, "a nonsense length: -FI_EINVAL"),
    TEST(null_elsewhere, "a null pointer for an object, an attribute or an answer: -FI_EINVAL"),
    TEST(wrong_class, "a wrong fid class: -FI_EINVAL; an unknown flag: -FI_EBADFLAGS"),
    TEST(wrong_handle, "a handle that is no connection request: -FI_EINVAL"),
    TEST(wrong_state, "a call in the wrong state changes nothing"),
    TEST(wrong_address, "an address of a wrong length or family: -FI_EINVAL"),
    TEST(unknown_commands, "an unknown control command is refused"),
};

const struct section bad_input_section = SECTION("bad input", tests);
