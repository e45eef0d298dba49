/* Fills memory that the peer advertises, and reads it back: advertise_writer [HOST [PORT [DEVICE]]] */
#include "try.h"

#define PIECE (1 << 16)
#define AHEAD 8

int main(int argc, char **argv)
{
    struct place place = place_of(argc, argv);
    struct rdma_easy_domain *domain;
    struct rdma_easy_connection *connection;
    struct rdma_easy_region *region;
    struct rdma_easy_remote remote;
    struct rdma_easy_completion done[AHEAD];

    TRY(rdma_easy_open(place.device, &domain));
    TRY(rdma_easy_connection_create(domain, NULL, &connection));
    TRY(rdma_easy_region_create(domain, 2 * PIECE, RDMA_EASY_READ_TARGET, &region));
    memset(rdma_easy_region_base(region), 3, PIECE);
    TRY(rdma_easy_expect_advert(connection));
    TRY(rdma_easy_connect(connection, place.host, place.port, NULL, 0));
    struct rdma_easy_piece source = {region, 0, PIECE}, nothing = {region, 0, 0};
    struct rdma_easy_piece target = {region, PIECE, PIECE};
    TRY(rdma_easy_post_send(connection, &nothing, 1, 0, NULL));
    TRY(rdma_easy_await_advert(connection, -1, &remote));

    /* Several writes at once; each is signaled, and their completions are awaited together. */
    for (uint32_t at = 0; at < remote.length;) {
        for (int i = 0; i < AHEAD; i++, at += PIECE)
            TRY(rdma_easy_post_write(connection, &source, 1, &remote, at, RDMA_EASY_SIGNALED, NULL));
        TRY(rdma_easy_await(connection, RDMA_EASY_SENDS, done, AHEAD, -1));
        for (int i = 0; i < AHEAD; i++)
            check(&done[i]);
    }
    const uint32_t last = remote.length - PIECE;
    TRY(rdma_easy_post_read(connection, &target, 1, &remote, last, RDMA_EASY_SIGNALED, NULL));
    TRY(rdma_easy_await(connection, RDMA_EASY_SENDS, done, 1, -1));
    check(&done[0]);
    printf("the last byte is %d\n", ((char *)rdma_easy_region_base(region))[2 * PIECE - 1]);

    TRY(rdma_easy_post_send(connection, &nothing, 1, 0, NULL));
    TRY(rdma_easy_disconnect(connection));
    TRY(rdma_easy_await_disconnect(connection, -1));
    TRY(rdma_easy_connection_free(connection));
    TRY(rdma_easy_region_free(region));
    TRY(rdma_easy_close(domain));
    return 0;
}
