/* A libfabric stream endpoint of the provider "rstream". */
#include "stream.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "rstream.h"

struct fabric_state {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_ep *ep;
};

static int failed(const char *what, int ret)
{
    return complain("%s: %s", what, fi_strerror(-ret));
}

static int find_info(struct fabric_state *state, const struct stream_options *options)
{
    struct fi_info *hints = fi_allocinfo();
    int ret;

    if (!hints)
        return complain("out of memory");
    hints->ep_attr->type = FI_EP_SOCK_STREAM;
    hints->ep_attr->protocol = options->iwarp ? FI_PROTO_IWARP : FI_PROTO_UNSPEC;
    hints->caps = FI_MSG;
    hints->fabric_attr->prov_name = strdup("rstream");
    if (options->fabric)
        hints->fabric_attr->name = strdup(options->fabric);
    ret = fi_getinfo(FI_VERSION(1, 17), options->host, options->port, options->passive ? FI_SOURCE : 0, hints,
                     &state->info);
    fi_freeinfo(hints);
    if (ret == -FI_ENODATA)
        return complain("%s port %s: libfabric knows no rstream endpoint for it; does FI_PROVIDER_PATH name the "
                        "folder of librstream_fi.so?", options->host, options->port);
    return ret ? failed("fi_getinfo", ret) : 0;
}

static int set_options(struct fid *fid, const struct stream_options *options)
{
    const struct {
        int name;
        const char *what;
        size_t value;
    } wanted[] = {
        {FI_OPT_SEND_BUF_SIZE, "send ring size", options->send_ring},
        {FI_OPT_RECV_BUF_SIZE, "receive ring size", options->recv_ring},
        {FI_OPT_TX_SIZE, "send queue size", options->queue_size},
        {FI_OPT_RX_SIZE, "receive queue size", options->queue_size},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int ret = wanted[i].value == 0 ? 0
                : fi_setopt(fid, FI_OPT_ENDPOINT, wanted[i].name, &wanted[i].value, sizeof wanted[i].value);

        if (ret)
            return complain("%s %zu: %s", wanted[i].what, wanted[i].value, fi_strerror(-ret));
    }
    return 0;
}

/* Waits for the next event, which must be of this kind. Its info, if it has one, is stored in `info`. */
static int await_event(struct fabric_state *state, uint32_t wanted, const char *what, struct fi_info **info)
{
    struct fi_eq_cm_entry entry;
    struct fi_eq_err_entry error = {0};
    uint32_t kind = 0;
    ssize_t ret;

    do
        ret = fi_eq_sread(state->eq, &kind, &entry, sizeof entry, -1, 0);
    while (ret == -FI_EAGAIN || ret == -FI_EINTR);
    if (ret == -FI_EAVAIL) {
        ret = fi_eq_readerr(state->eq, &error, 0);
        if (ret < 0)
            return failed("fi_eq_readerr", (int)ret);
        return complain("%s: %s (%s)", what, fi_strerror(error.err),
                        fi_eq_strerror(state->eq, error.prov_errno, error.err_data, NULL, 0));
    }
    if (ret < 0)
        return failed("fi_eq_sread", (int)ret);
    if (kind != wanted)
        return complain("%s: event %u instead of %u", what, kind, wanted);
    if (info)
        *info = entry.info;
    return 0;
}

static int open_queue(struct fabric_state *state)
{
    struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
    int ret = fi_fabric(state->info->fabric_attr, &state->fabric, NULL);

    if (ret)
        return failed("fi_fabric", ret);
    ret = fi_eq_open(state->fabric, &attr, &state->eq, NULL);
    return ret ? failed("fi_eq_open", ret) : 0;
}

static int open_endpoint(struct fabric_state *state, const struct stream_options *options)
{
    int ret = fi_domain(state->fabric, state->info, &state->domain, NULL);

    if (ret)
        return failed("fi_domain", ret);
    ret = fi_endpoint(state->domain, state->info, &state->ep, NULL);
    if (ret)
        return failed("fi_endpoint", ret);
    ret = fi_ep_bind(state->ep, &state->eq->fid, 0);
    if (ret)
        return failed("fi_ep_bind", ret);
    return set_options(&state->ep->fid, options);
}

static void tell_name(struct fid_pep *pep)
{
    struct sockaddr_storage address;
    size_t length = sizeof address;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";

    if (fi_getname(&pep->fid, &address, &length) == 0)
        getnameinfo((struct sockaddr *)&address, (socklen_t)length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    fprintf(stderr, "listening on %s port %s\n", host, port);
}

static int accept_one(struct fabric_state *state, const struct stream_options *options)
{
    struct fi_info *request = NULL;
    int ret = fi_passive_ep(state->fabric, state->info, &state->pep, NULL);

    if (ret)
        return failed("fi_passive_ep", ret);
    ret = fi_pep_bind(state->pep, &state->eq->fid, 0);
    if (ret)
        return failed("fi_pep_bind", ret);
    if (set_options(&state->pep->fid, options))
        return -1;
    ret = fi_listen(state->pep);
    if (ret)
        return complain("listen on %s port %s: %s", options->host, options->port, fi_strerror(-ret));
    tell_name(state->pep);
    if (await_event(state, FI_CONNREQ, "waiting for a connection", &request))
        return -1;
    fi_freeinfo(state->info);
    state->info = request;
    if (open_endpoint(state, options))
        return -1;
    ret = fi_accept(state->ep, NULL, 0);
    if (ret)
        return failed("fi_accept", ret);
    return await_event(state, FI_CONNECTED, "accepting a connection", NULL);
}

static int connect_one(struct fabric_state *state, const struct stream_options *options)
{
    char what[128];
    int ret;

    snprintf(what, sizeof what, "connect to %s port %s", options->host, options->port);
    if (open_endpoint(state, options))
        return -1;
    ret = fi_connect(state->ep, state->info->dest_addr, NULL, 0);
    if (ret)
        return failed(what, ret);
    return await_event(state, FI_CONNECTED, what, NULL);
}

static int rstream_open(struct stream *stream, const struct stream_options *options)
{
    struct fabric_state *state = calloc(1, sizeof *state);
    int ret;

    if (!state)
        return complain("out of memory");
    stream->state = state;
    stream->events_for_send = POLLIN;
    if (find_info(state, options) || open_queue(state))
        return -1;
    if (options->passive ? accept_one(state, options) : connect_one(state, options))
        return -1;
    ret = fi_control(&state->ep->fid, FI_GETWAIT, &stream->fd);
    return ret ? failed("fi_control(FI_GETWAIT)", ret) : 0;
}

static ssize_t rstream_send(struct stream *stream, const void *data, size_t length)
{
    struct fabric_state *state = stream->state;

    return fi_send(state->ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
}

static ssize_t rstream_recv(struct stream *stream, void *data, size_t length)
{
    struct fabric_state *state = stream->state;

    return fi_recv(state->ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
}

static int rstream_end(struct stream *stream)
{
    struct fabric_state *state = stream->state;

    return fi_shutdown(state->ep, FI_SEND);
}

static const char *rstream_error(ssize_t ret)
{
    return fi_strerror((int)-ret);
}

static void close_fid(struct fid *fid, const char *what)
{
    int ret = fi_close(fid);

    if (ret)
        failed(what, ret);
}

static void rstream_close(struct stream *stream)
{
    struct fabric_state *state = stream->state;

    if (!state)
        return;
    if (state->ep)
        close_fid(&state->ep->fid, "closing the endpoint");
    if (state->pep)
        close_fid(&state->pep->fid, "closing the passive endpoint");
    if (state->eq)
        close_fid(&state->eq->fid, "closing the event queue");
    if (state->domain)
        close_fid(&state->domain->fid, "closing the domain");
    if (state->fabric)
        close_fid(&state->fabric->fid, "closing the fabric");
    if (state->info)
        fi_freeinfo(state->info);
    free(state);
    stream->state = NULL;
}

const struct stream_ops rstream_ops = {rstream_open, rstream_send, rstream_recv, rstream_end, rstream_error,
                                       rstream_close};
