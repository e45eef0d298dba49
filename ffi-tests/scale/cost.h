/* What this process costs the machine: descriptors, memory, processor time. */
#ifndef RSTREAM_SCALE_COST_H
#define RSTREAM_SCALE_COST_H

#include <stddef.h>
#include <stdint.h>

struct cost {
    unsigned descriptors;
    /* Bytes in use on the heap, and bytes of memory that are there. */
    size_t heap, resident;
    /* Processor time, and when it was looked at; microseconds. */
    int64_t busy, at;
};

struct cost cost_now(void);

/* Sees to it that the process may have `count` descriptors; skips the test if it may not. */
void need_descriptors(unsigned count);

#endif
