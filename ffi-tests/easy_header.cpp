/* rdma_easy.h in C++: its functions link by their C names. */
#include "rdma_easy.h"

static_assert(sizeof(rdma_easy_remote) == 16, "address, key and length");

int (*const open_domain)(const char *, rdma_easy_domain **) = rdma_easy_open;
