/*
 * One measurement of a stream beside those of rdma-core's perftest: the same traffic, and a line with the
 * same columns, between two processes that poll, each on a processor of its own.
 *
 *   verbs_bench bw BYTES COUNT [RING]      one way; bytes, count, MiB/s twice
 *   verbs_bench lat BYTES COUNT [RING]     there and back; bytes, count, least, greatest, median and mean
 *                                          microseconds of half a round trip
 *
 * RING is the size of both rings, the default unless given. The address is that of TEST_IPV4.
 */
#include "common.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct work {
    bool latency;
    size_t bytes;
    int count;
    struct settings settings;
};

static void stay_on(int processor)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    CHECK_SYS(sched_setaffinity(0, sizeof set, &set));
}

/* The time in microseconds. */
static double now(void)
{
    struct timespec time;

    CHECK_SYS(clock_gettime(CLOCK_MONOTONIC, &time));
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* A cheap clock of any unit, for systems where reading the time is a system call. */
static double ticks(void)
{
#ifdef __x86_64__
    return (double)__builtin_ia32_rdtsc();
#else
    return now();
#endif
}

static void all_out(struct fid_ep *ep, const uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t done = fi_send(ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);

        if (done == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(done, 1);
        data += done;
        length -= (size_t)done;
    }
}

static void all_in(struct fid_ep *ep, uint8_t *data, size_t length)
{
    while (length > 0) {
        ssize_t done = fi_recv(ep, data, length, NULL, FI_ADDR_UNSPEC, NULL);

        if (done == -FI_EAGAIN)
            continue;
        CHECK_AT_LEAST(done, 1);
        data += done;
        length -= (size_t)done;
    }
}

static void serve(struct peer *self, void *argument)
{
    const struct work *work = argument;
    uint8_t *data = calloc(1, work->bytes);
    struct side listener, side;
    struct event request;

    CHECK(data);
    stay_on(1);
    side_listen(&listener, IPV4, &work->settings);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &side, &request, NULL, 0);
    await_event(side.eq, FI_CONNECTED);
    for (int i = 0; i < work->count; i++) {
        all_in(side.ep, data, work->bytes);
        if (work->latency)
            all_out(side.ep, data, work->bytes);
    }
    if (!work->latency)
        all_out(side.ep, data, 1);
    CHECK_INT(peer_hear(self), 1);
    side_close(&side);
    side_close(&listener);
    free(data);
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static void measure_latency(struct fid_ep *ep, const struct work *work, uint8_t *data)
{
    double *trips = calloc((size_t)work->count, sizeof *trips), start = now(), ticks_made = ticks(), scale, sum = 0;

    CHECK(trips);
    for (int i = 0; i < work->count; i++) {
        double sent = ticks();

        all_out(ep, data, work->bytes);
        all_in(ep, data, work->bytes);
        trips[i] = ticks() - sent;
        sum += trips[i];
    }
    scale = (now() - start) / (ticks() - ticks_made) / 2;
    qsort(trips, (size_t)work->count, sizeof *trips, ascending);
    printf("%zu %d %.2f %.2f %.2f %.2f\n", work->bytes, work->count, scale * trips[0],
           scale * trips[work->count - 1], scale * trips[work->count / 2], scale * sum / work->count);
    free(trips);
}

static void measure_throughput(struct fid_ep *ep, const struct work *work, uint8_t *data)
{
    double start = now(), rate;

    for (int i = 0; i < work->count; i++)
        all_out(ep, data, work->bytes);
    all_in(ep, data, 1);
    rate = (double)work->bytes * work->count / (1 << 20) / (now() - start) * 1e6;
    printf("%zu %d %.2f %.2f\n", work->bytes, work->count, rate, rate);
}

static void run(struct work *work)
{
    uint8_t *data = calloc(1, work->bytes);
    struct peer peer;
    struct side side;

    CHECK(data);
    peer_start(&peer, serve, work);
    stay_on(0);
    side_active(&side, IPV4, (unsigned)peer_hear(&peer), &work->settings);
    CHECK_OK(fi_connect(side.ep, side.info->dest_addr, NULL, 0));
    await_event(side.eq, FI_CONNECTED);
    if (work->latency)
        measure_latency(side.ep, work, data);
    else
        measure_throughput(side.ep, work, data);
    peer_tell(&peer, 1);
    side_close(&side);
    peer_join(&peer);
    free(data);
}

int main(int argc, char **argv)
{
    struct work work = {0};

    if (argc >= 4) {
        work.latency = strcmp(argv[1], "lat") == 0;
        work.bytes = strtoul(argv[2], NULL, 10);
        work.count = atoi(argv[3]);
        work.settings.send_ring = work.settings.recv_ring = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
    }
    if (work.bytes == 0 || work.count < 1 || (!work.latency && strcmp(argv[1], "bw") != 0)) {
        fprintf(stderr, "verbs_bench: bw or lat, BYTES, COUNT, and at most a RING\n");
        return 2;
    }
    run(&work);
    return 0;
}
