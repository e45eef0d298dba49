/* An event loop that echoes, until its first client has gone: messages_server [HOST [PORT [DEVICE]]] */
#include "try.h"

struct server {
    struct rdma_easy_domain *domain;
    struct rdma_easy_loop *loop;
    int gone;
};

static void on_request(struct rdma_easy_request *request, void *user)
{
    struct server *server = user;
    struct rdma_easy_peer *peer;

    TRY(rdma_easy_loop_accept(server->loop, request, "welcome", 7, &peer));
}

static void on_received(struct rdma_easy_peer *peer, const void *bytes, size_t length, void *user)
{
    struct server *server = user;
    struct rdma_easy_message *message;

    printf("%zu bytes\n", length);
    TRY(rdma_easy_message_create(server->domain, length, &message));
    memcpy(rdma_easy_message_base(message), bytes, length);
    TRY(rdma_easy_peer_send(peer, message, length));
}

static void on_sent(struct rdma_easy_peer *peer, struct rdma_easy_message *message, void *user)
{
    (void)peer, (void)user;
    TRY(rdma_easy_message_free(message));
}

static void on_ended(struct rdma_easy_peer *peer, int error, void *user)
{
    (void)peer;
    printf("the client has gone%s%s\n", error ? ": " : "", error ? rdma_easy_last_error() : "");
    ((struct server *)user)->gone = 1;
}

int main(int argc, char **argv)
{
    const struct rdma_easy_callbacks callbacks = {on_request, NULL, on_received, on_sent, on_ended};
    struct place place = place_of(argc, argv);
    struct server server = {0};

    TRY(rdma_easy_open(place.device, &server.domain));
    TRY(rdma_easy_loop_create(server.domain, NULL, &callbacks, &server, &server.loop));
    TRY(rdma_easy_loop_listen(server.loop, place.host, place.port, 8));
    while (!server.gone)
        TRY(rdma_easy_loop_dispatch(server.loop, -1));
    TRY(rdma_easy_loop_free(server.loop));
    TRY(rdma_easy_close(server.domain));
    return 0;
}
