/* Sleeping in poll on an endpoint's descriptor, and what that costs when nothing is to be had. */
#ifndef RSTREAM_TESTS_SLEEPER_H
#define RSTREAM_TESTS_SLEEPER_H

#include "common.h"

/* What sleeps took together. */
struct sleeper {
    int64_t slept_us, cpu_us;
    unsigned wakes;
};

/* fi_trywait; answers whether there is something to do first. */
bool must_not_wait(struct side *side);
/* Sleeps on the descriptor for `us`, and goes back to sleep when fi_trywait finds nothing: fails after more than
 * `most` of these wake-ups. A sleep that ends for a reason is not counted; answers whether it did not. */
bool sleep_idle(struct sleeper *sleeper, struct side *side, int us, unsigned most);
/* The sleeps took less than 1 % of a processor. */
void sleeper_check(const struct sleeper *sleeper);

#endif
