/*
 * To be preloaded: makes dlopen() fail for rdma-core, as on a host without it. It cannot be uninstalled,
 * because libfabric of some distributions is linked with it.
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
