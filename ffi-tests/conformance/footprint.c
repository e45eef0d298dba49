/* Contract, section Footprint: the memory of an idle endpoint. */
#include "conformance.h"

#define PAIRS 16
#define RECEIVES 384
/* Each receive has a slot for a word. */
#define WORD 4
#define BESIDES_RINGS 20480

static void idle_endpoint(void)
{
    static struct pair pairs[PAIRS + 1];
    size_t before, each;

    needs_embedded_device();
    /* The first connection allocates what all connections share. */
    pair_open(&pairs[PAIRS], IPV4, NULL);
    before = heap_in_use();
    if (before == 0)
        skip("the heap cannot be measured");
    for (unsigned i = 0; i < PAIRS; i++)
        pair_open(&pairs[i], IPV4, NULL);
    /* Each pair has two endpoints. Its listener, fabrics, domains and infos count as well. */
    each = (heap_in_use() - before) / (2 * PAIRS);
    printf("    %zu bytes an endpoint\n", each);
    CHECK_BETWEEN(each, RECEIVES * WORD, BESIDES_RINGS);
    for (unsigned i = 0; i <= PAIRS; i++)
        pair_close(&pairs[i]);
}

static const struct test tests[] = {
    TEST(idle_endpoint, "an idle endpoint at default options costs at most 20 KiB besides its rings"),
};

const struct section footprint_section = SECTION("footprint", tests);
