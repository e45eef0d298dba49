/*
 * Loads libfabric by dlopen, as MPI libraries do, moves bytes over a stream, and unloads it. Run it under
 * valgrind, which reports what is not freed when the program ends.
 *
 *   unload close    close everything and unload libfabric, twice, then end
 *   unload leave    end with the connection open and libfabric loaded
 */
#include "common.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The program is not linked with libfabric. Calls of the library's functions, rather than of the inline
 * functions of its headers, go to the library that was loaded last. */
static void *library;

#define LOADED(name) ((__typeof__(&name))symbol(#name))

static void *symbol(const char *name)
{
    void *address = dlsym(library, name);

    if (!address)
        fail_at(__FILE__, __LINE__, "libfabric has no %s", name);
    return address;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **info)
{
    return LOADED(fi_getinfo)(version, node, service, flags, hints, info);
}

void fi_freeinfo(struct fi_info *info)
{
    LOADED(fi_freeinfo)(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return LOADED(fi_dupinfo)(info);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    return LOADED(fi_fabric)(attr, fabric, context);
}

const char *fi_strerror(int errnum)
{
    return LOADED(fi_strerror)(errnum);
}

static void load(void)
{
    library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_at(__FILE__, __LINE__, "%s", dlerror());
}

/* Moves more bytes than a ring holds in both directions, and sends some that are never read. */
static void use(struct pair *pair)
{
    pair_open(pair, "127.0.0.1", NULL);
    transfer(pair->client.ep, pair->server.ep, 300000);
    transfer(pair->server.ep, pair->client.ep, 300000);
    send_all(pair->client.ep, "unread", 6);
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    static struct pair pair;

    if (strcmp(what, "leave") == 0) {
        load();
        use(&pair);
        return 0;
    }
    if (strcmp(what, "close") != 0) {
        fprintf(stderr, "usage: unload close|leave\n");
        return 2;
    }
    for (int round = 0; round < 2; round++) {
        load();
        memset(&pair, 0, sizeof pair);
        use(&pair);
        pair_close(&pair);
        CHECK_INT(dlclose(library), 0);
    }
    return 0;
}
