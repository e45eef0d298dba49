/* Contract, section Footprint: the memory of an idle endpoint. */
#include "message.h"

#define PAIRS 16
#define RECEIVES 384
/* Each receive has a slot for a word. */
#define WORD 4
#define BESIDES_RINGS 20480
/* A message endpoint, and one of its posted receives. */
#define MESSAGE_ENDPOINT 8192
#define POSTED 128
#define POSTED_RECEIVE 128

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

/* As applications do, with all endpoints of a side in one domain. */
static void idle_message_endpoint(void)
{
    struct fid_ep *eps[PAIRS + 1][2];
    struct side listener, client;
    size_t before, each, posted;
    static uint8_t byte;

    message_listen(&listener, NULL);
    message_client(&client, &listener, NULL);
    message_queue(&listener, NULL);
    message_queue(&client, NULL);
    /* The first connection allocates what all connections share. */
    message_connect(&client, &listener, eps[PAIRS]);
    before = heap_in_use();
    if (before == 0)
        skip("the heap cannot be measured");
    for (unsigned i = 0; i < PAIRS; i++)
        message_connect(&client, &listener, eps[i]);
    each = (heap_in_use() - before) / (2 * PAIRS);
    before = heap_in_use();
    for (unsigned i = 0; i < 2 * PAIRS; i++)
        for (unsigned j = 0; j < POSTED; j++)
            post_recv(eps[i / 2][i % 2], &byte, 1, j);
    posted = (heap_in_use() - before) / (2 * PAIRS * POSTED);
    printf("    %zu bytes an endpoint, %zu a posted receive\n", each, posted);
    CHECK_BETWEEN(each, sizeof(struct fid_ep), MESSAGE_ENDPOINT);
    CHECK_BETWEEN(posted, sizeof(void *), POSTED_RECEIVE);
    for (unsigned i = 0; i < 2 * (PAIRS + 1); i++)
        close_fid(&eps[i / 2][i % 2]->fid);
    side_close(&client);
    side_close(&listener);
}

static const struct test tests[] = {
    TEST(idle_endpoint, "an idle endpoint at default options costs at most 20 KiB besides its rings"),
    TEST(idle_message_endpoint, "an idle message endpoint costs at most 8 KiB, and each posted receive 128 bytes"),
};

const struct section footprint_section = SECTION("footprint", tests);
