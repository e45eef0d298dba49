/*
 * The program that callgrind counts: it sends and receives messages of 64 bytes between two endpoints in
 * one thread. Only `exchange` is to be counted (--toggle-collect=exchange), which runs after connecting
 * and warming up.
 *
 *   instructions MESSAGES
 */
#include "common.h"

#include <stdlib.h>

#define MESSAGE 64
/* Messages after which every place of both rings and every entry of both queues has been used. */
#define WARMING 4096

/* Sends a message and receives it at the other end. Repeats calls that return -FI_EAGAIN. */
__attribute__((noinline)) void exchange(struct fid_ep *from, struct fid_ep *to, uint8_t *data)
{
    ssize_t took, gave = 0;

    do
        took = fi_send(from, data, MESSAGE, NULL, FI_ADDR_UNSPEC, NULL);
    while (took == -FI_EAGAIN);
    while (took > 0 && gave < took) {
        ssize_t got = fi_recv(to, data + gave, (size_t)(took - gave), NULL, FI_ADDR_UNSPEC, NULL);

        if (got == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(got, 1);
        gave += got;
    }
    CHECK_AT_LEAST(took, 1);
}

int main(int argc, char **argv)
{
    static uint8_t data[MESSAGE];
    int messages = argc > 1 ? atoi(argv[1]) : 0;
    struct pair pair;

    if (messages < 1) {
        fprintf(stderr, "instructions: a number of messages\n");
        return 2;
    }
    pair_open(&pair, IPV4, NULL);
    for (int i = 0; i < WARMING; i++) {
        send_all(pair.client.ep, data, MESSAGE);
        recv_all(pair.server.ep, data, MESSAGE);
    }
    for (int i = 0; i < messages; i++)
        exchange(pair.client.ep, pair.server.ep, data);
    pair_close(&pair);
    return 0;
}
