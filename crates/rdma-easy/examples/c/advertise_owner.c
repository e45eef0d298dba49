/* Advertises memory, which the peer writes and reads: advertise_owner [HOST [PORT [DEVICE]]] */
#include "try.h"

#define LENGTH (1 << 20)

int main(int argc, char **argv)
{
    struct place place = place_of(argc, argv);
    struct rdma_easy_domain *domain;
    struct rdma_easy_listener *listener;
    struct rdma_easy_connection *connection;
    struct rdma_easy_request *request;
    struct rdma_easy_region *region, *inbox;
    struct rdma_easy_completion done;
    unsigned long sum = 0;

    TRY(rdma_easy_open(place.device, &domain));
    TRY(rdma_easy_listen(domain, place.host, place.port, 1, &listener));
    TRY(rdma_easy_connection_create(domain, NULL, &connection));
    TRY(rdma_easy_region_create(domain, LENGTH, RDMA_EASY_REMOTE_WRITE | RDMA_EASY_REMOTE_READ, &region));
    TRY(rdma_easy_region_create(domain, 16, RDMA_EASY_LOCAL_WRITE, &inbox));
    struct rdma_easy_piece told = {inbox, 0, 16};
    TRY(rdma_easy_post_receive(connection, &told, 1, NULL));
    /* Over iWARP the side that connects sends first. */
    TRY(rdma_easy_post_receive(connection, &told, 1, NULL));

    TRY(rdma_easy_get_request(listener, -1, &request));
    TRY(rdma_easy_accept(request, connection, NULL, 0));
    TRY(rdma_easy_await(connection, RDMA_EASY_RECEIVES, &done, 1, -1));
    check(&done);
    TRY(rdma_easy_advertise(connection, region, 0, LENGTH));
    /* The waiting does what the peer's writes and reads need. A message tells when they are done. */
    TRY(rdma_easy_await(connection, RDMA_EASY_RECEIVES, &done, 1, -1));
    check(&done);
    for (int i = 0; i < LENGTH; i++)
        sum += ((unsigned char *)rdma_easy_region_base(region))[i];
    printf("the peer has written %d bytes, their sum is %lu\n", LENGTH, sum);

    TRY(rdma_easy_await_disconnect(connection, -1));
    TRY(rdma_easy_connection_free(connection));
    TRY(rdma_easy_region_free(region));
    TRY(rdma_easy_region_free(inbox));
    TRY(rdma_easy_listener_free(listener));
    TRY(rdma_easy_close(domain));
    return 0;
}
