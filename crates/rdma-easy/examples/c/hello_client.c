/* Connects, sends a message of two pieces, and takes the answer: hello_client [HOST [PORT [DEVICE]]] */
#include "try.h"

int main(int argc, char **argv)
{
    struct place place = place_of(argc, argv);
    struct rdma_easy_domain *domain;
    struct rdma_easy_connection *connection;
    struct rdma_easy_region *region;
    struct rdma_easy_completion done;
    char *memory, data[64];
    int length;

    TRY(rdma_easy_open(place.device, &domain));
    TRY(rdma_easy_connection_create(domain, NULL, &connection));
    TRY(rdma_easy_region_create(domain, 128, RDMA_EASY_LOCAL_WRITE, &region));
    memory = rdma_easy_region_base(region);
    struct rdma_easy_piece room = {region, 64, 64};
    TRY(rdma_easy_post_receive(connection, &room, 1, NULL));

    TRY(rdma_easy_connect(connection, place.host, place.port, "let me in", 9));
    length = TRY(rdma_easy_private_data(connection, data, sizeof data));
    printf("the reply says: %.*s\n", length, data);

    strcpy(memory, "server hello, ");
    struct rdma_easy_piece pieces[] = {{region, 7, 7}, {region, 0, 6}};
    TRY(rdma_easy_post_send(connection, pieces, 2, 0, NULL));
    TRY(rdma_easy_await(connection, RDMA_EASY_RECEIVES, &done, 1, -1));
    check(&done);
    printf("the answer says: %.*s\n", (int)done.length, memory + 64);

    TRY(rdma_easy_disconnect(connection));
    TRY(rdma_easy_await_disconnect(connection, -1));
    TRY(rdma_easy_connection_free(connection));
    TRY(rdma_easy_region_free(region));
    TRY(rdma_easy_close(domain));
    return 0;
}
