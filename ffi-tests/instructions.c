/*
 * The program that callgrind counts: it sends and receives messages of 64 bytes between two endpoints in
 * one thread. Only the functions `exchange_*` are to be counted (--toggle-collect=exchange_*). They run after
 * connecting and warming up.
 *
 *   instructions stream|message COUNT
 */
#include "conformance/message.h"

#include <stdlib.h>

#define LENGTH 64
/* Exchanges after which every place of all rings and every entry of all queues has been used. */
#define WARMING 4096

/* Sends over a stream and receives at the other end. Repeats calls that return -FI_EAGAIN. */
__attribute__((noinline)) void exchange_stream(struct pair *pair, uint8_t *data)
{
    ssize_t took, gave = 0;

    do
        took = fi_send(pair->client.ep, data, LENGTH, NULL, FI_ADDR_UNSPEC, NULL);
    while (took == -FI_EAGAIN);
    while (took > 0 && gave < took) {
        ssize_t got = fi_recv(pair->server.ep, data + gave, (size_t)(took - gave), NULL, FI_ADDR_UNSPEC, NULL);

        if (got == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(got, 1);
        gave += got;
    }
    CHECK_AT_LEAST(took, 1);
}

/* Reads one completion, a success. */
static void completed(struct fid_cq *cq)
{
    struct fi_cq_data_entry entry;
    ssize_t got;

    do
        got = fi_cq_read(cq, &entry, 1);
    while (got == -FI_EAGAIN);
    CHECK_AT_LEAST(got, 1);
}

/* Posts a receive and a send of a message, and reads both completions. */
__attribute__((noinline)) void exchange_message(struct pair *pair, uint8_t *data)
{
    post_recv(pair->server.ep, data, LENGTH, 0);
    post_send(pair->client.ep, data, LENGTH, 0);
    completed(pair->server.cq);
    completed(pair->client.cq);
}

int main(int argc, char **argv)
{
    static uint8_t data[LENGTH];
    const char *what = argc > 2 ? argv[1] : "";
    bool message = strcmp(what, "message") == 0;
    int count = argc > 2 ? atoi(argv[2]) : 0;
    struct pair pair;

    if (count < 1 || !(message || strcmp(what, "stream") == 0)) {
        fprintf(stderr, "instructions: stream or message, and a number of messages\n");
        return 2;
    }
    if (message) {
        messages_open(&pair, NULL);
        for (int i = 0; i < WARMING; i++)
            message_transfer(&pair.client, &pair.server, LENGTH);
    } else {
        pair_open(&pair, IPV4, NULL);
        for (int i = 0; i < WARMING; i++) {
            send_all(pair.client.ep, data, LENGTH);
            recv_all(pair.server.ep, data, LENGTH);
        }
    }
    for (int i = 0; i < count; i++)
        if (message)
            exchange_message(&pair, data);
        else
            exchange_stream(&pair, data);
    pair_close(&pair);
    return 0;
}
