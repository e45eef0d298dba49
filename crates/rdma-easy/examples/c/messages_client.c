/* Sends a short message and a long one to a loop that echoes: messages_client [HOST [PORT [DEVICE]]] */
#include "try.h"

#define LONG 1000000

struct client {
    struct rdma_easy_message *message;
    int sent, received, gone;
};

static void on_established(struct rdma_easy_peer *peer, const void *data, size_t length, void *user)
{
    struct client *client = user;

    printf("the server says: %.*s\n", (int)length, (const char *)data);
    TRY(rdma_easy_peer_send(peer, client->message, 10));
}

static void on_received(struct rdma_easy_peer *peer, const void *bytes, size_t length, void *user)
{
    struct client *client = user;
    int same = memcmp(bytes, rdma_easy_message_base(client->message), length) == 0;

    printf("%zu bytes are back%s\n", length, same ? "" : ", and are others");
    if (++client->received == 2)
        TRY(rdma_easy_peer_disconnect(peer));
}

static void on_sent(struct rdma_easy_peer *peer, struct rdma_easy_message *message, void *user)
{
    struct client *client = user;

    /* Its memory can be sent again. */
    if (client->sent++ == 0)
        TRY(rdma_easy_peer_send(peer, message, LONG));
}

static void on_ended(struct rdma_easy_peer *peer, int error, void *user)
{
    (void)peer;
    tried(error, "the connection");
    ((struct client *)user)->gone = 1;
}

int main(int argc, char **argv)
{
    const struct rdma_easy_callbacks callbacks = {NULL, on_established, on_received, on_sent, on_ended};
    struct place place = place_of(argc, argv);
    struct client client = {0};
    struct rdma_easy_domain *domain;
    struct rdma_easy_loop *loop;
    struct rdma_easy_peer *peer;

    TRY(rdma_easy_open(place.device, &domain));
    TRY(rdma_easy_message_create(domain, LONG, &client.message));
    memset(rdma_easy_message_base(client.message), 'm', LONG);
    TRY(rdma_easy_loop_create(domain, NULL, &callbacks, &client, &loop));
    TRY(rdma_easy_loop_connect(loop, place.host, place.port, NULL, 0, &peer));
    while (!client.gone)
        TRY(rdma_easy_loop_dispatch(loop, -1));
    printf("%d messages were sent\n", client.sent);
    TRY(rdma_easy_loop_free(loop));
    TRY(rdma_easy_message_free(client.message));
    TRY(rdma_easy_close(domain));
    return 0;
}
