/* What the example does about errors: it says what failed and why, and ends. */
#ifndef TRY_H
#define TRY_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int tried(long result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, strerror(errno));
        exit(1);
    }
    return (int)result;
}

#define TRY(call) tried(call, #call)

#endif
