// rstream.h in C++: what a program assigns, compares and calls has to compile.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "rstream.h"

static_assert(FI_EP_SOCK_STREAM == 4 && FI_EPIPE == 32, "as in C");

bool is_stream(fi_info *hints)
{
    hints->ep_attr->type = FI_EP_SOCK_STREAM;
    return hints->ep_attr->type == FI_EP_SOCK_STREAM;
}

int refusals(fid_ep *ep)
{
    rstream_endpoint_ops *ops;
    rstream_stats stats;

    if (fi_open_ops(&ep->fid, RSTREAM_ENDPOINT_OPS, 0, reinterpret_cast<void **>(&ops), nullptr) ||
        ops->stats(ep, &stats, sizeof stats))
        return -1;
    return static_cast<int>(stats.refused);
}
