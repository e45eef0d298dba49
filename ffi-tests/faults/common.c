/* Tests with seeds, and a connection that faults elsewhere must not affect. */
#include "faults.h"

#include <stdlib.h>

void each_seed(unsigned count, void (*run)(struct dice *dice, uint64_t seed, void *argument), void *argument)
{
    const char *given = getenv("RSTREAM_TEST_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : 0, last = given ? first + 1 : count;

    for (uint64_t seed = first; seed < last; seed++) {
        struct dice dice = {seed};

        note("seed %llu; replay it alone with RSTREAM_TEST_SEED=%llu", (unsigned long long)seed,
             (unsigned long long)seed);
        run(&dice, seed, argument);
    }
}

/* Memory of the newest wait set that is shared with the next ones and stays until these are made, and the
 * padding that the heap adds to a block. */
#define SHARED (32 + 32)

/* ---- the bystander ------------------------------------------------------------------------ */

void bystander_open(struct bystander *bystander)
{
    pair_open(&bystander->pair, IPV4, NULL);
    /* After the first the two sides come to share memory. */
    for (unsigned round = 0; round < 3; round++)
        bystander_check(bystander);
    bystander->descriptors = open_descriptors();
    bystander->heap = heap_in_use();
}

void bystander_check(struct bystander *bystander)
{
    transfer(bystander->pair.client.ep, bystander->pair.server.ep, 50000);
    transfer(bystander->pair.server.ep, bystander->pair.client.ep, 50000);
    check_no_event(bystander->pair.client.eq);
    check_no_event(bystander->pair.server.eq);
}

void bystander_held(struct bystander *bystander)
{
    bystander_check(bystander);
    CHECK_INT(open_descriptors(), bystander->descriptors);
    CHECK_BETWEEN(heap_in_use(), bystander->heap, bystander->heap + SHARED);
}

void bystander_close(struct bystander *bystander)
{
    pair_close(&bystander->pair);
}
