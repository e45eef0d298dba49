/*
 * Lists this provider's stream endpoints, one in a line, as fi_info does for other types. fi_info of
 * libfabric 1.17 cannot request FI_EP_SOCK_STREAM.
 *
 *   info_probe [unspec|rstream|iwarp] [NODE [SERVICE]]
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "rstream.h"

static void format_address(const void *address, char *text, size_t size)
{
    const struct sockaddr *any = address;
    char host[INET6_ADDRSTRLEN] = "?";

    if (!address) {
        snprintf(text, size, "-");
    } else if (any->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = address;

        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(text, size, "[%s]:%u", host, ntohs(six->sin6_port));
    } else {
        const struct sockaddr_in *four = address;

        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(text, size, "%s:%u", host, ntohs(four->sin_port));
    }
}

int main(int argc, char **argv)
{
    const char *protocol = argc > 1 ? argv[1] : "unspec";
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    int ret;

    if (!hints)
        return 1;
    hints->ep_attr->type = FI_EP_SOCK_STREAM;
    hints->fabric_attr->prov_name = strdup("rstream");
    if (strcmp(protocol, "rstream") == 0) {
        hints->ep_attr->protocol = FI_PROTO_RSTREAM;
    } else if (strcmp(protocol, "iwarp") == 0) {
        hints->ep_attr->protocol = FI_PROTO_IWARP;
    } else if (strcmp(protocol, "unspec") != 0) {
        fprintf(stderr, "usage: info_probe [unspec|rstream|iwarp] [NODE [SERVICE]]\n");
        fi_freeinfo(hints);
        return 2;
    }
    ret = fi_getinfo(FI_VERSION(1, 17), argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL, 0, hints, &info);
    if (ret) {
        fprintf(stderr, "info_probe: fi_getinfo: %s\n", fi_strerror(-ret));
        fi_freeinfo(hints);
        return 1;
    }
    for (struct fi_info *one = info; one; one = one->next) {
        uint32_t spoken = one->ep_attr->protocol;
        char from[80], to[80];

        format_address(one->src_addr, from, sizeof from);
        format_address(one->dest_addr, to, sizeof to);
        printf("provider %s fabric %s domain %s type %s protocol %s source %s destination %s\n",
               one->fabric_attr->prov_name, one->fabric_attr->name, one->domain_attr->name,
               one->ep_attr->type == FI_EP_SOCK_STREAM ? "FI_EP_SOCK_STREAM" : "another",
               spoken == FI_PROTO_RSTREAM ? "FI_PROTO_RSTREAM" : spoken == FI_PROTO_IWARP ? "FI_PROTO_IWARP" : "another",
               from, to);
    }
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}
