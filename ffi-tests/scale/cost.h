/* The resources that this process uses: descriptors, memory, processor time. */
#ifndef RSTREAM_SCALE_COST_H
#define RSTREAM_SCALE_COST_H

#include <stddef.h>
#include <stdint.h>

struct cost {
    unsigned descriptors;
    /* Bytes in use on the heap, and bytes of resident memory. */
    size_t heap, resident;
    /* Processor time, and when it was read, in microseconds. */
    int64_t busy, at;
};

struct cost cost_now(void);

/* Raises the limit to `count` descriptors. Skips the test if that is not allowed. */
void need_descriptors(unsigned count);

#endif
