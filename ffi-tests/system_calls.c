/*
 * The program whose system calls are counted: two threads, each with one end of a connection, send a message of
 * 64 bytes there and back. Each is asleep when a message arrives.
 *
 *   system_calls stream|fd|sread COUNT
 *
 *   stream    over a stream, asleep on the endpoint's descriptor
 *   fd        between message endpoints, asleep on the descriptor of the completion queue
 *   sread     the same, asleep in fi_cq_sread
 *   COUNT     messages there, and as many back
 */
#include "conformance/message.h"

#include <pthread.h>
#include <stdlib.h>

#define LENGTH 64
/* After this time, in ms, the other thread is asleep. */
#define PAUSE_MS 20

/* One end, and what its thread does. */
struct end {
    struct side *side;
    const struct way *way;
    int count;
    bool begins;
    /* Of the endpoint of a stream, or of a completion queue. */
    int fd;
};

/* What an end does to send a message, and to sleep until one has arrived. */
struct way {
    const char *name;
    bool message, by_fd;
    void (*send)(const struct end *end);
    void (*await)(const struct end *end);
};

static void stream_send(const struct end *end)
{
    send_all(end->side->ep, pattern(0, LENGTH), LENGTH);
}

static void stream_await(const struct end *end)
{
    uint8_t data[LENGTH];
    ssize_t got;

    while ((got = recv_once(end->side->ep, data, sizeof data)) == -FI_EAGAIN)
        CHECK(readable(end->fd, PATIENCE_MS));
    CHECK_INT(got, LENGTH);
}

static void message_send(const struct end *end)
{
    post_send(end->side->ep, pattern(0, LENGTH), LENGTH, 0);
}

static struct fi_cq_data_entry next_by_fd(const struct end *end)
{
    struct fid *fid = &end->side->cq->fid;
    struct fi_cq_data_entry entry;

    while (fi_cq_read(end->side->cq, &entry, 1) != 1)
        if (fi_trywait(end->side->fabric, &fid, 1) == 0)
            CHECK(readable(end->fd, PATIENCE_MS));
    return entry;
}

static struct fi_cq_data_entry next_by_sread(const struct end *end)
{
    struct fi_cq_data_entry entry;

    CHECK_RET(fi_cq_sread(end->side->cq, &entry, 1, NULL, PATIENCE_MS), 1);
    return entry;
}

/* Posts the receive that has ended again. */
static void message_await(const struct end *end)
{
    static uint8_t data[LENGTH];
    struct fi_cq_data_entry entry;

    do
        entry = end->way->by_fd ? next_by_fd(end) : next_by_sread(end);
    while (!(entry.flags & FI_RECV));
    post_recv(end->side->ep, data, sizeof data, 0);
}

static const struct way ways[] = {
    {.name = "stream", .by_fd = true, .send = stream_send, .await = stream_await},
    {.name = "fd", .message = true, .by_fd = true, .send = message_send, .await = message_await},
    {.name = "sread", .message = true, .send = message_send, .await = message_await},
};

static void *exchange(void *argument)
{
    const struct end *end = argument;

    for (int i = 0; i < end->count; i++) {
        if (!end->begins)
            end->way->await(end);
        sleep_ms(PAUSE_MS);
        end->way->send(end);
        if (end->begins)
            end->way->await(end);
    }
    return NULL;
}

static const struct way *way_of(const char *name)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(ways[i].name, name) == 0)
            return &ways[i];
    return NULL;
}

int main(int argc, char **argv)
{
    const struct message_settings settings = {.cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD}};
    const struct way *way = argc > 2 ? way_of(argv[1]) : NULL;
    int count = argc > 2 ? atoi(argv[2]) : 0;
    static uint8_t first[2][LENGTH];
    struct pair pair;
    struct end ends[2];
    pthread_t echo;

    if (way == NULL || count < 1) {
        fprintf(stderr, "system_calls: stream, fd or sread, and a number of messages\n");
        return 2;
    }
    if (way->message)
        messages_open(&pair, &settings);
    else
        pair_open(&pair, IPV4, NULL);
    for (int i = 0; i < 2; i++) {
        struct side *side = i == 0 ? &pair.client : &pair.server;

        ends[i] = (struct end){.side = side, .way = way, .count = count, .begins = i == 0};
        if (way->by_fd)
            ends[i].fd = wait_fd(way->message ? &side->cq->fid : &side->ep->fid);
        if (way->message)
            post_recv(side->ep, first[i], LENGTH, 0);
    }
    CHECK_INT(pthread_create(&echo, NULL, exchange, &ends[1]), 0);
    exchange(&ends[0]);
    CHECK_INT(pthread_join(echo, NULL), 0);
    pair_close(&pair);
    return 0;
}
