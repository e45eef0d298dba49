/* What the examples do about errors: they say what failed and why, and end. */
#ifndef TRY_H
#define TRY_H

#include <rdma_easy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int tried(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, rdma_easy_last_error(), rdma_easy_strerror(result));
        exit(1);
    }
    return result;
}

#define TRY(call) tried(call, #call)

/* The command line: [HOST [PORT [DEVICE]]]. */
struct place {
    const char *host;
    uint16_t port;
    const char *device;
};

static inline struct place place_of(int argc, char **argv)
{
    return (struct place){
        argc > 1 ? argv[1] : "127.0.0.1",
        (uint16_t)(argc > 2 ? atoi(argv[2]) : 7471),
        argc > 3 ? argv[3] : NULL,
    };
}

/* The request failed that has this completion. */
static inline void check(const struct rdma_easy_completion *completion)
{
    if (completion->error) {
        fprintf(stderr, "a request failed: %s\n", rdma_easy_strerror(completion->error));
        exit(1);
    }
}

#endif
