/* Sleeping in poll on an endpoint's descriptor, and its cost while there is nothing to do. */
#ifndef RSTREAM_TESTS_SLEEPER_H
#define RSTREAM_TESTS_SLEEPER_H

#include "common.h"

/* The sum of several sleeps. */
struct sleeper {
    int64_t slept_us, cpu_us;
    unsigned wakes;
};

/* Calls fi_trywait. Returns whether there is something to do first. */
bool must_not_wait(struct side *side);
/* Sleeps on the descriptor for `us`, and sleeps again when fi_trywait finds nothing. Fails after more than
 * `most` of these wake-ups. Returns true after the whole time. Returns false, and counts nothing, when
 * there is something to do. */
bool sleep_idle(struct sleeper *sleeper, struct side *side, int us, unsigned most);
/* Checks that the sleeps used less than 1 % of a processor. */
void sleeper_check(const struct sleeper *sleeper);

#endif
