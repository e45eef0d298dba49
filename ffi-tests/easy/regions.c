/* Registered memory: created, registered, used and freed. */
#include "easy.h"

#include <stdlib.h>

static void memory_of_the_program_is_registered(void)
{
    struct ends ends;
    struct rdma_easy_region *source, *target;
    struct rdma_easy_remote remote;
    struct rdma_easy_piece piece;
    char *memory = malloc(100);

    CHECK(memory != NULL);
    memset(memory, '.', 100);
    ends_open(&ends, NULL);
    source = region_of(ends.domains[0], 8, "eight");
    CHECK_OK(rdma_easy_region_register(ends.domains[1], memory, 100, ALL_RIGHTS, &target));
    CHECK(rdma_easy_region_base(target) == memory);
    CHECK_INT(rdma_easy_region_length(target), 100);
    post_receive(ends.server, target, 50, 50, 1);
    ends_connect(&ends);
    CHECK_OK(rdma_easy_region_remote(target, 0, 10, &remote));
    piece = (struct rdma_easy_piece){source, 0, 5};
    CHECK_OK(rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL));
    post_send(ends.client, source, 0, 5, 2);
    /* The receive uses it, although it is done, until its completion is taken. */
    CHECK_RET(rdma_easy_region_free(target), -EBUSY);
    CHECK_RET(rdma_easy_await_disconnect(ends.server, 50), -ETIMEDOUT);
    CHECK_RET(rdma_easy_region_free(target), -EBUSY);
    CHECK_INT(taken(ends.server, RDMA_EASY_RECEIVES, 1, 0), 5);
    CHECK_BYTES(memory, "eight.....", 10);
    CHECK_BYTES(memory + 50, "eight.....", 10);
    CHECK_OK(rdma_easy_region_free(target));
    free(memory);

    /* Its key means nothing any more. The device may know it at once. */
    CHECK_AT_LEAST(0, rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL));
    if (device(0) == NULL)
        CHECK_RET(rdma_easy_await_disconnect(ends.server, SOON), -EPROTO);
    ends_close(&ends);
}

static void a_freed_connection_uses_no_region(void)
{
    struct ends ends;
    struct rdma_easy_region *regions[2];
    char *memory = calloc(1, 64);

    CHECK(memory != NULL);
    ends_open(&ends, NULL);
    CHECK_OK(rdma_easy_region_register(ends.domains[0], memory, 64, ALL_RIGHTS, &regions[0]));
    regions[1] = region_of(ends.domains[1], 64, NULL);
    for (int i = 0; i < 8; i++) {
        post_receive(ends.client, regions[0], 0, 64, i);
        post_receive(ends.server, regions[1], 0, 64, i);
    }
    ends_connect(&ends);
    for (int i = 0; i < 4; i++)
        post_send(ends.client, regions[0], 0, 64, i);
    CHECK_RET(rdma_easy_region_free(regions[0]), -EBUSY);
    ends_close(&ends);
    CHECK_OK(rdma_easy_region_free(regions[0]));
    free(memory);
    CHECK_OK(rdma_easy_region_free(regions[1]));
}

static void a_context_that_never_connected_uses_no_region(void)
{
    struct ends ends;
    struct rdma_easy_region *region;

    ends_open(&ends, NULL);
    region = region_of(ends.domains[0], 8, NULL);
    post_receive(ends.client, region, 0, 8, 1);
    CHECK_RET(rdma_easy_region_free(region), -EBUSY);
    ends_close(&ends);
    CHECK_OK(rdma_easy_region_free(region));
}

static void bounds_and_rights_are_checked(void)
{
    static const struct {
        size_t offset, length;
    } outside[] = {{0, 9}, {8, 1}, {9, 0}, {4, 5}, {SIZE_MAX, 1}, {1, SIZE_MAX}, {SIZE_MAX, SIZE_MAX}};
    struct ends ends;
    struct rdma_easy_region *region, *foreign, *source, *none;
    struct rdma_easy_remote remote = {0};
    struct rdma_easy_piece piece, two[2];

    ends_open(&ends, NULL);
    region = region_of(ends.domains[0], 8, NULL);
    foreign = region_of(ends.domains[1], 8, NULL);
    CHECK_OK(rdma_easy_region_create(ends.domains[0], 8, 0, &source));
    ends_connect(&ends);
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        piece = (struct rdma_easy_piece){region, outside[i].offset, outside[i].length};
        two[0] = piece;
        two[1] = (struct rdma_easy_piece){region, 0, 1};
        remote.length = UINT32_MAX;
        note("piece %zu", i);
        CHECK_RET(rdma_easy_post_receive(ends.client, &piece, 1, NULL), -ERANGE);
        CHECK_RET(rdma_easy_post_send(ends.client, &piece, 1, 0, NULL), -ERANGE);
        CHECK_RET(rdma_easy_region_remote(region, piece.offset, piece.length, &remote), -ERANGE);
        CHECK_RET(rdma_easy_advertise(ends.client, region, piece.offset, piece.length), -ERANGE);
        CHECK_RET(rdma_easy_post_send(ends.client, two, 2, 0, NULL), -ERANGE);
        CHECK_AT_LEAST(-1, rdma_easy_post_receive(ends.client, two, 2, NULL));
        CHECK_AT_LEAST(-1, rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL));
        CHECK_AT_LEAST(-1, rdma_easy_post_read(ends.client, two, 2, &remote, 0, RDMA_EASY_SIGNALED, NULL));
    }
    remote.length = 8;
    piece = (struct rdma_easy_piece){region, 0, 8};
    CHECK_RET(rdma_easy_post_write(ends.client, &piece, 1, &remote, 1, 0, NULL), -ERANGE);
    CHECK_RET(rdma_easy_post_read(ends.client, &piece, 1, &remote, UINT32_MAX, 0, NULL), -ERANGE);

    piece.region = foreign;
    two[0] = (struct rdma_easy_piece){region, 0, 1};
    two[1] = (struct rdma_easy_piece){foreign, 0, 1};
    CHECK_RET(rdma_easy_post_send(ends.client, &piece, 1, 0, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_send(ends.client, two, 2, 0, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_receive(ends.client, &piece, 1, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_receive(ends.client, two, 2, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_write(ends.client, &piece, 1, &remote, 0, 0, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_read(ends.client, &piece, 1, &remote, 0, 0, NULL), -EXDEV);
    CHECK_RET(rdma_easy_post_read(ends.client, two, 2, &remote, 0, RDMA_EASY_SIGNALED, NULL), -EXDEV);
    CHECK_RET(rdma_easy_advertise(ends.client, foreign, 0, 8), -EXDEV);

    piece.region = source;
    two[1].region = source;
    CHECK_RET(rdma_easy_post_receive(ends.client, &piece, 1, NULL), -EACCES);
    CHECK_RET(rdma_easy_post_receive(ends.client, two, 2, NULL), -EACCES);
    CHECK_RET(rdma_easy_post_read(ends.client, &piece, 1, &remote, 0, 0, NULL), -EACCES);
    CHECK_RET(rdma_easy_post_read(ends.client, two, 2, &remote, 0, RDMA_EASY_SIGNALED, NULL), -EACCES);

    CHECK_RET(rdma_easy_region_create(ends.domains[0], 0, 0, &none), -EINVAL);
    CHECK_RET(rdma_easy_region_create(ends.domains[0], 1, 16, &none), -EINVAL);
    check_text("unknown rights");
    CHECK_RET(rdma_easy_region_create(ends.domains[0], (size_t)1 << 32, 0, &none), -EINVAL);
    CHECK_RET(rdma_easy_region_register(ends.domains[0], NULL, 8, 0, &none), -EINVAL);
    CHECK_RET(rdma_easy_region_register(ends.domains[0], &piece, 0, 0, &none), -EINVAL);
    CHECK_RET(rdma_easy_region_register(ends.domains[0], (void *)(UINTPTR_MAX - 3), 8, 0, &none), -EINVAL);
    CHECK_RET(rdma_easy_await_disconnect(ends.client, 0), -ETIMEDOUT);
    ends_close(&ends);
}

static const struct test tests[] = {
    TEST(memory_of_the_program_is_registered, "memory of the program is registered, and given back"),
    TEST(a_freed_connection_uses_no_region, "after a connection is freed its regions can be freed"),
    TEST(a_context_that_never_connected_uses_no_region, "so they can after a context that never connected"),
    TEST(bounds_and_rights_are_checked, "wrong bounds, domains and rights are refused"),
};

const struct section easy_regions = SECTION("regions", tests);
