/* Contract, section Footprint: what an endpoint costs while nothing happens on it. */
#include "conformance.h"

#include <malloc.h>

#define PAIRS 16
#define DEFAULT_RING 32768
#define BESIDES_RINGS 16384

/* Bytes that the process has from the heap. AddressSanitizer keeps no such count. */
static size_t heap(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static void idle_endpoint(void)
{
    static struct pair pairs[PAIRS + 1];
    size_t before, each;

    /* The first connection pays for what all share. */
    pair_open(&pairs[PAIRS], IPV4, NULL);
    before = heap();
    if (before == 0)
        skip("the heap cannot be measured");
    for (unsigned i = 0; i < PAIRS; i++)
        pair_open(&pairs[i], IPV4, NULL);
    /* Each pair has two endpoints, and a listener, fabrics, domains and infos on top. */
    each = (heap() - before) / (2 * PAIRS);
    printf("    %zu bytes an endpoint\n", each);
    CHECK_BETWEEN(each, DEFAULT_RING, 2 * DEFAULT_RING + BESIDES_RINGS);
    for (unsigned i = 0; i <= PAIRS; i++)
        pair_close(&pairs[i]);
}

static const struct test tests[] = {
    TEST(idle_endpoint, "an idle endpoint at default options costs its two rings and at most 16 KiB"),
};

const struct section footprint_section = SECTION("footprint", tests);
