/* Names of the endpoint type, which libfabric's headers define up to 1.20. */

/* Before rstream.h: an enumerator, or the macro for FI_EP_UNSPEC of newer headers. */
#include <rdma/fabric.h>

static const enum fi_ep_type type_in_headers = FI_EP_SOCK_STREAM;

#include "conformance.h"

#include <errno.h>

static void own_names(void)
{
    CHECK_INT(FI_EP_SOCK_STREAM, 4);
    CHECK_INT(FI_EPIPE, EPIPE);
}

static void without_rstream_h(void)
{
    struct fi_info *hints = stream_hints();
    struct pair pair = {0};
    char port[8];

    side_listen(&pair.listener, IPV4, NULL);
    snprintf(port, sizeof port, "%u", fid_port(&pair.listener.pep->fid));
    hints->ep_attr->type = type_in_headers;
    /* Of any type there are others, which libfabric lists first. */
    hints->ep_attr->protocol = FI_PROTO_RSTREAM;
    side_open(&pair.client, find(IPV4, port, 0, hints));
    fi_freeinfo(hints);
    CHECK_INT(pair.client.info->ep_attr->type, FI_EP_SOCK_STREAM);
    side_endpoint(&pair.client, NULL);
    pair_join(&pair);
    transfer(pair.client.ep, pair.server.ep, 100000);
    pair_close(&pair);
}

static const struct test tests[] = {
    TEST(own_names, "rstream.h: FI_EP_SOCK_STREAM is 4 and FI_EPIPE is EPIPE, whatever libfabric's headers have"),
    TEST(without_rstream_h, "headers' own FI_EP_SOCK_STREAM, also as FI_EP_UNSPEC, with the provider's name and protocol finds streams that work"),
};

const struct section headers_section = SECTION("headers", tests);
