/* Random numbers that a seed gives. */
#ifndef RSTREAM_DICE_H
#define RSTREAM_DICE_H

#include <stdint.h>

struct dice {
    uint64_t state;
};

/* A number from 0 to bound - 1. */
static inline uint64_t throw_below(struct dice *dice, uint64_t bound)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15;

    /* Splitmix64. */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % bound;
}

#endif
