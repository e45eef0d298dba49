/* Takes one connection, a message in memory of its own, and answers: hello_server [HOST [PORT [DEVICE]]] */
#include "try.h"

int main(int argc, char **argv)
{
    struct place place = place_of(argc, argv);
    struct rdma_easy_domain *domain;
    struct rdma_easy_listener *listener;
    struct rdma_easy_connection *connection;
    struct rdma_easy_request *request;
    struct rdma_easy_region *region;
    struct rdma_easy_completion done;
    static char memory[64];
    char data[64];
    int length;

    TRY(rdma_easy_open(place.device, &domain));
    TRY(rdma_easy_listen(domain, place.host, place.port, 1, &listener));
    TRY(rdma_easy_connection_create(domain, NULL, &connection));
    TRY(rdma_easy_region_register(domain, memory, sizeof memory, RDMA_EASY_LOCAL_WRITE, &region));
    /* The receive has to be there before the message: first of all. */
    struct rdma_easy_piece whole = {region, 0, sizeof memory};
    TRY(rdma_easy_post_receive(connection, &whole, 1, NULL));

    TRY(rdma_easy_get_request(listener, -1, &request));
    length = TRY(rdma_easy_request_data(request, data, sizeof data));
    printf("a request says: %.*s\n", length, data);
    TRY(rdma_easy_accept(request, connection, "come in", 7));

    TRY(rdma_easy_await(connection, RDMA_EASY_RECEIVES, &done, 1, -1));
    check(&done);
    printf("a message says: %.*s\n", (int)done.length, memory);
    struct rdma_easy_piece answer = {region, 0, (size_t)sprintf(memory, "hello, client")};
    TRY(rdma_easy_post_send(connection, &answer, 1, RDMA_EASY_SIGNALED, NULL));
    TRY(rdma_easy_await(connection, RDMA_EASY_SENDS, &done, 1, -1));
    check(&done);

    TRY(rdma_easy_await_disconnect(connection, -1));
    printf("the client has gone\n");
    TRY(rdma_easy_connection_free(connection));
    TRY(rdma_easy_region_free(region));
    TRY(rdma_easy_listener_free(listener));
    TRY(rdma_easy_close(domain));
    return 0;
}
