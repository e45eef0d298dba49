/*
 * To be preloaded: lets dlopen() find no rdma-core, as on a host that has none. libfabric of some
 * distributions links it, so it cannot be taken away.
 */
#include <dlfcn.h>
#include <string.h>

void *dlopen(const char *name, int flags)
{
    static void *(*next)(const char *, int);

    if (!next)
        next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (name && (strstr(name, "libibverbs.so") || strstr(name, "librdmacm.so")))
        name = "/nonexistent/rdma-core.so";
    return next(name, flags);
}
