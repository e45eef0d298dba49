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
#define PAUSE_MS 5

/* What an end does to send a message, and to sleep until one has arrived. */
struct way {
    const char *name;
    void (*send)(struct side *side);
    void (*await)(struct side *side);
};

/* One end, and what its thread does. */
struct end {
    struct side *side;
    const struct way *way;
    int count;
    bool begins;
};

static void stream_send(struct side *side)
{
    send_all(side->ep, pattern(0, LENGTH), LENGTH);
}

static void stream_await(struct side *side)
{
    uint8_t data[LENGTH];
    ssize_t got;

    while ((got = recv_once(side->ep, data, sizeof data)) == -FI_EAGAIN)
        CHECK(readable(wait_fd(&side->ep->fid), PATIENCE_MS));
    CHECK_INT(got, LENGTH);
}

static void message_send(struct side *side)
{
    post_send(side->ep, pattern(0, LENGTH), LENGTH, 0);
}

/* `next` returns the next completion, and sleeps before if there is none. The receive that has ended is posted
 * again. */
static void message_await(struct side *side, struct fi_cq_data_entry (*next)(struct side *side))
{
    static uint8_t data[LENGTH];

    while (!(next(side).flags & FI_RECV))
        ;
    post_recv(side->ep, data, sizeof data, 0);
}

static struct fi_cq_data_entry next_by_fd(struct side *side)
{
    struct fid *fid = &side->cq->fid;
    struct fi_cq_data_entry entry;

    while (fi_cq_read(side->cq, &entry, 1) != 1)
        if (fi_trywait(side->fabric, &fid, 1) == 0)
            CHECK(readable(wait_fd(fid), PATIENCE_MS));
    return entry;
}

static struct fi_cq_data_entry next_by_sread(struct side *side)
{
    struct fi_cq_data_entry entry;

    CHECK_RET(fi_cq_sread(side->cq, &entry, 1, NULL, PATIENCE_MS), 1);
    return entry;
}

static void await_by_fd(struct side *side)
{
    message_await(side, next_by_fd);
}

static void await_by_sread(struct side *side)
{
    message_await(side, next_by_sread);
}

static const struct way ways[] = {
    {"stream", stream_send, stream_await},
    {"fd", message_send, await_by_fd},
    {"sread", message_send, await_by_sread},
};

static void *exchange(void *argument)
{
    const struct end *end = argument;

    for (int i = 0; i < end->count; i++) {
        if (!end->begins)
            end->way->await(end->side);
        sleep_ms(PAUSE_MS);
        end->way->send(end->side);
        if (end->begins)
            end->way->await(end->side);
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
    if (way->send == message_send)
        messages_open(&pair, &settings);
    else
        pair_open(&pair, IPV4, NULL);
    ends[0] = (struct end){&pair.client, way, count, true};
    ends[1] = (struct end){&pair.server, way, count, false};
    if (way->send == message_send)
        for (int i = 0; i < 2; i++)
            post_recv(ends[i].side->ep, first[i], LENGTH, 0);
    CHECK_INT(pthread_create(&echo, NULL, exchange, &ends[1]), 0);
    exchange(&ends[0]);
    CHECK_INT(pthread_join(echo, NULL), 0);
    pair_close(&pair);
    return 0;
}
