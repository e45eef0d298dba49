/*
 * A 64-bit checksum that is fast enough to run during the copy: 32 bytes a step, in four lanes of FNV-1a
 * over 64-bit words with a rotation, so that no bit of a word is lost. It does not depend on how calls
 * divide the bytes. It detects accidental changes, not attacks.
 */
#ifndef STREAM_COPY_CHECKSUM_H
#define STREAM_COPY_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_STEP 32

struct checksum {
    uint64_t lanes[4];
    /* Bytes of an incomplete step. */
    uint8_t rest[CHECKSUM_STEP];
    size_t rest_length;
    uint64_t total;
};

void checksum_init(struct checksum *sum);
void checksum_add(struct checksum *sum, const void *data, size_t length);
uint64_t checksum_value(const struct checksum *sum);

#endif
