#include "checksum.h"

#include <endian.h>
#include <string.h>

#define FNV_OFFSET 0xcbf29ce484222325u
#define FNV_PRIME 0x00000100000001b3u

static uint64_t mix(uint64_t state, uint64_t word)
{
    state = (state ^ word) * FNV_PRIME;
    return state << 29 | state >> 35;
}

static uint64_t word_at(const uint8_t *data)
{
    uint64_t word;

    memcpy(&word, data, sizeof word);
    return le64toh(word);
}

void checksum_init(struct checksum *sum)
{
    memset(sum, 0, sizeof *sum);
    for (unsigned i = 0; i < 4; i++)
        sum->lanes[i] = FNV_OFFSET + i;
}

/* Adds complete steps only. Returns the number of bytes added. */
static size_t add_steps(struct checksum *sum, const uint8_t *data, size_t length)
{
    uint64_t a = sum->lanes[0], b = sum->lanes[1], c = sum->lanes[2], d = sum->lanes[3];
    size_t done = 0;

    for (; length - done >= CHECKSUM_STEP; done += CHECKSUM_STEP) {
        a = mix(a, word_at(data + done));
        b = mix(b, word_at(data + done + 8));
        c = mix(c, word_at(data + done + 16));
        d = mix(d, word_at(data + done + 24));
    }
    sum->lanes[0] = a;
    sum->lanes[1] = b;
    sum->lanes[2] = c;
    sum->lanes[3] = d;
    return done;
}

void checksum_add(struct checksum *sum, const void *data, size_t length)
{
    const uint8_t *next = data;
    size_t done;

    sum->total += length;
    if (sum->rest_length > 0) {
        size_t room = CHECKSUM_STEP - sum->rest_length, part = length < room ? length : room;

        memcpy(sum->rest + sum->rest_length, next, part);
        sum->rest_length += part;
        next += part;
        length -= part;
        if (sum->rest_length < CHECKSUM_STEP)
            return;
        add_steps(sum, sum->rest, CHECKSUM_STEP);
        sum->rest_length = 0;
    }
    done = add_steps(sum, next, length);
    memcpy(sum->rest, next + done, length - done);
    sum->rest_length = length - done;
}

uint64_t checksum_value(const struct checksum *sum)
{
    uint64_t value = mix(FNV_OFFSET, sum->total);

    for (unsigned i = 0; i < 4; i++)
        value = mix(value, sum->lanes[i]);
    for (size_t i = 0; i < sum->rest_length; i++)
        value = mix(value, sum->rest[i]);
    return value ^ value >> 32;
}
