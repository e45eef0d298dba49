/*
 * Throughput and latency of a stream over loopback, compared with plain TCP with the same calls. The
 * candidates take turns in one run, each between two processes that poll. Prints the median, the least and
 * the greatest result of the rounds, and the ratio to TCP.
 *
 *   stream_bench [ROUNDS [MIB [TRIPS]]]     default: 5, 1024 and 20000
 */
#include "common.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

#define CALL 65536
#define MESSAGE 64
#define ROUNDS_MOST 99

/* Bytes in one direction, and the number of round trips. */
static uint64_t amount = 1ULL << 30;
static int trips_made = 20000;

/* One end of a stream over any transport. */
struct end {
    struct fid_ep *ep;
    int fd;
};

struct candidate {
    const char *name;
    bool tcp;
    struct settings settings;
};

static const struct candidate candidates[] = {
    {"plain TCP", true, {0}},
    {"rstream, defaults", false, {0}},
    {"rstream, 1 MiB rings", false, {.send_ring = 1 << 20, .recv_ring = 1 << 20}},
    {"rstream, 256 KiB rings", false, {.send_ring = 256 << 10, .recv_ring = 256 << 10}},
    {"rstream, 512 KiB rings", false, {.send_ring = 512 << 10, .recv_ring = 512 << 10}},
};
#define CANDIDATES (sizeof candidates / sizeof candidates[0])

static ssize_t take(ssize_t got)
{
    return got < 0 && errno == EAGAIN ? -EAGAIN : got;
}

static ssize_t end_send(const struct end *end, const void *data, size_t length)
{
    if (end->ep)
        return fi_send(end->ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
    return take(send(end->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static ssize_t end_recv(const struct end *end, void *data, size_t length)
{
    if (end->ep)
        return fi_recv(end->ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);
    return take(recv(end->fd, data, length, MSG_DONTWAIT));
}

static void all_out(const struct end *end, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t done = end_send(end, data, length);

        if (done == -EAGAIN)
            continue;
        CHECK_AT_LEAST(done, 1);
        data += done;
        length -= (size_t)done;
    }
}

static void all_in(const struct end *end, uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t done = end_recv(end, data, length);

        if (done == -EAGAIN)
            continue;
        CHECK_AT_LEAST(done, 1);
        data += done;
        length -= (size_t)done;
    }
}

/* The other process: receives the bytes, acknowledges them, and answers every message. */
static void serve(const struct end *end)
{
    static uint8_t data[CALL];
    uint64_t left = amount;

    while (left > 0) {
        ssize_t got = end_recv(end, data, left < sizeof data ? left : sizeof data);

        if (got == -EAGAIN)
            continue;
        CHECK_AT_LEAST(got, 1);
        left -= (uint64_t)got;
    }
    all_out(end, data, 1);
    for (int i = 0; i < trips_made; i++) {
        all_in(end, data, MESSAGE);
        all_out(end, data, MESSAGE);
    }
}

static void no_delay(int fd)
{
    CHECK_SYS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
}

static void server(struct peer *self, void *argument)
{
    const struct candidate *candidate = argument;
    struct end end = {0};

    if (candidate->tcp) {
        unsigned port;
        int listener = tcp_listen(&port);

        peer_tell(self, port);
        end.fd = (int)CHECK_SYS(accept(listener, NULL, NULL));
        no_delay(end.fd);
        serve(&end);
        CHECK_INT(peer_hear(self), 1);
    } else {
        struct side listener, side;
        struct event request;

        side_listen(&listener, IPV4, &candidate->settings);
        peer_tell(self, fid_port(&listener.pep->fid));
        request = await_event(listener.eq, FI_CONNREQ);
        accept_request(&listener, &side, &request, NULL, 0);
        await_event(side.eq, FI_CONNECTED);
        end.ep = side.ep;
        serve(&end);
        CHECK_INT(peer_hear(self), 1);
        side_close(&side);
        side_close(&listener);
    }
}

struct results {
    double rate;
    double trip;
};

static struct results measure(const struct end *end)
{
    static uint8_t data[CALL];
    struct results results;
    int64_t start = now_us();

    for (uint64_t left = amount; left > 0; left -= CALL)
        all_out(end, data, CALL);
    all_in(end, data, 1);
    results.rate = (double)amount / (double)(now_us() - start);
    start = now_us();
    for (int i = 0; i < trips_made; i++) {
        all_out(end, data, MESSAGE);
        all_in(end, data, MESSAGE);
    }
    results.trip = (double)(now_us() - start) / trips_made;
    return results;
}

static struct results run(const struct candidate *candidate)
{
    struct results results;
    struct end end = {0};
    struct peer peer;
    unsigned port;

    peer_start(&peer, server, (void *)candidate);
    port = (unsigned)peer_hear(&peer);
    if (candidate->tcp) {
        end.fd = tcp_connect(port);
        no_delay(end.fd);
        results = measure(&end);
        CHECK_SYS(close(end.fd));
        peer_tell(&peer, 1);
    } else {
        struct side side;

        side_active(&side, IPV4, port, &candidate->settings);
        CHECK_OK(fi_connect(side.ep, side.info->dest_addr, NULL, 0));
        await_event(side.eq, FI_CONNECTED);
        end.ep = side.ep;
        results = measure(&end);
        peer_tell(&peer, 1);
        side_close(&side);
    }
    peer_join(&peer);
    return results;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Each round runs in its own process, so that every endpoint starts with a newly loaded library. */
static void one_round(struct peer *self, void *argument)
{
    struct results results = run(argument);

    peer_tell(self, (uint64_t)(results.rate * 1000));
    peer_tell(self, (uint64_t)(results.trip * 1000));
}

int main(int argc, char **argv)
{
    static double rates[CANDIDATES][ROUNDS_MOST], trips[CANDIDATES][ROUNDS_MOST];
    int rounds = argc > 1 ? atoi(argv[1]) : 5;

    if (rounds < 1 || rounds > ROUNDS_MOST) {
        fprintf(stderr, "stream_bench: 1 to %d rounds\n", ROUNDS_MOST);
        return 2;
    }
    if (argc > 2)
        amount = strtoull(argv[2], NULL, 10) << 20;
    if (argc > 3)
        trips_made = atoi(argv[3]);
    if (amount == 0 || trips_made < 1) {
        fprintf(stderr, "stream_bench: MIB and TRIPS are positive\n");
        return 2;
    }
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < CANDIDATES; i++) {
            struct peer peer;

            peer_start(&peer, one_round, (void *)&candidates[i]);
            rates[i][round] = (double)peer_hear(&peer) / 1000;
            trips[i][round] = (double)peer_hear(&peer) / 1000;
            peer_join(&peer);
        }
    }
    printf("%d rounds in turn; 64 KiB calls one way; 64 B there and back, polling\n", rounds);
    printf("%-22s %26s %8s %26s %8s\n", "", "MB/s median (least, most)", "/ TCP", "us median (least, most)", "/ TCP");
    for (size_t i = 0; i < CANDIDATES; i++) {
        double *rate = rates[i], *trip = trips[i];

        qsort(rate, (size_t)rounds, sizeof *rate, ascending);
        qsort(trip, (size_t)rounds, sizeof *trip, ascending);
        printf("%-22s %8.0f (%6.0f, %6.0f) %9.2f %9.2f (%6.2f, %6.2f) %8.2f\n", candidates[i].name,
               rate[rounds / 2], rate[0], rate[rounds - 1], rate[rounds / 2] / rates[0][rounds / 2],
               trip[rounds / 2], trip[0], trip[rounds - 1], trip[rounds / 2] / trips[0][rounds / 2]);
    }
    return 0;
}
