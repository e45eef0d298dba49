/*
 * Connections that are made and closed in many threads: each round has a seed that determines its number
 * of connections, event queue readers and threads, and how it ends. Meanwhile one thread makes every query
 * on every endpoint. Every byte is compared, every event counted.
 *
 * The seed of a round is printed before it, and -s runs it again.
 */
#include <stdlib.h>
#include <unistd.h>

#include "crowd.h"

#define LINKS_MAX 24

enum ending { SHUT_BOTH, SHUT_IN_TURN, CLOSE_ONE, CLOSE_BOTH, ENDINGS };

/* How this round ends. */
static enum ending ending;

static uint64_t state;

static unsigned below(unsigned bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % bound;
}

/* ---- queries -------------------------------------------------------------------------------- */

struct asker {
    struct crowd *crowd;
    atomic_bool stop;
};

static void ask_end(struct crowd *crowd, struct fid_ep *ep)
{
    struct fid *fids[] = {&crowd->listener.eq->fid, &ep->fid};
    struct fi_msg message = {.addr = FI_ADDR_UNSPEC};
    struct sockaddr_storage address;
    size_t length = sizeof address;
    uint64_t value;
    ssize_t ret;

    CHECK_OK(fi_getname(&ep->fid, &address, &length));
    length = sizeof address;
    CHECK_OK(fi_getpeer(ep, &address, &length));
    length = sizeof value;
    CHECK_OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_RX_SIZE, &value, &length));
    (void)wait_fd(&ep->fid);
    ret = fi_trywait(crowd->listener.fabric, fids, 2);
    CHECK(ret == 0 || ret == -FI_EAGAIN);
    ret = fi_recvmsg(ep, &message, FI_PEEK);
    CHECK(ret > 0 || ret == -FI_EAGAIN);
    ret = fi_sendmsg(ep, &message, FI_PEEK);
    CHECK(ret > 0 || ret == -FI_EAGAIN);
}

static void *ask(void *argument)
{
    struct asker *asker = argument;

    while (!asker->stop)
        for (unsigned i = 0; i < 2 * asker->crowd->count; i++)
            ask_end(asker->crowd, asker->crowd->links[i / 2].ends[i % 2].ep);
    return NULL;
}

/* ---- rounds --------------------------------------------------------------------------------- */

static void *shut(void *argument)
{
    struct end *end = argument;

    CHECK_OK(fi_shutdown(end->ep, 0));
    return NULL;
}

static void await_end(struct end *end)
{
    ssize_t got;

    do
        got = recv_wait(end->ep, &(uint8_t){0}, 1);
    while (got > 0);
    CHECK_RET(got, 0);
    await_count(&end->shut, 1);
}

static void end_link(struct crowd *crowd, unsigned link)
{
    struct end *ends = crowd->links[link].ends, *first = &ends[link % 2], *second = &ends[1 - link % 2];

    switch (ending) {
    case SHUT_BOTH:
        threads_run(2, shut, ends, sizeof ends[0]);
        break;
    case SHUT_IN_TURN:
        CHECK_OK(fi_shutdown(first->ep, FI_SEND));
        CHECK_RET(recv_wait(second->ep, &(uint8_t){0}, 1), 0);
        CHECK_OK(fi_shutdown(second->ep, FI_SEND));
        break;
    case CLOSE_ONE:
        crowd_close_end(crowd, first);
        await_end(second);
        return;
    default:
        return;
    }
    await_end(first);
    await_end(second);
}

static void run_round(uint64_t seed)
{
    struct crowd crowd;
    struct asker asker = {.crowd = &crowd};
    pthread_t thread;
    unsigned threads;

    state = seed;
    /* The first random numbers of a small seed are small. */
    for (unsigned i = 0; i < 16; i++)
        (void)below(2);
    ending = below(ENDINGS);
    threads = 1 + below(6);
    crowd_open(&crowd, 1 + below(LINKS_MAX), 1 + below(READERS_MAX));
    crowd_each(&crowd, threads, crowd_connect);
    for (unsigned i = 0; i < crowd.count; i++)
        crowd_load(&crowd, i, below(1 << 18), 4 + below(20000));
    CHECK_INT(pthread_create(&thread, NULL, ask, &asker), 0);
    crowd_carry(&crowd, threads);
    asker.stop = true;
    CHECK_INT(pthread_join(thread, NULL), 0);
    crowd_each(&crowd, threads, end_link);
    crowd_close(&crowd);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, rounds = 0;
    int64_t until = 0;
    int option;

    while ((option = getopt(argc, argv, "s:t:")) != -1) {
        if (option == 's') {
            seed = strtoull(optarg, NULL, 0);
        } else if (option == 't') {
            until = now_ms() + atoi(optarg) * 1000;
        } else {
            fputs("usage: thread_stress [-s SEED] [-t SECONDS]\n"
                  "Runs one round, or rounds of seeds from SEED on until SECONDS have passed.\n", stderr);
            return 2;
        }
    }
    do {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        run_round(seed++);
        rounds++;
    } while (now_ms() < until);
    printf("%llu rounds\n1 passed, 0 failed\n", (unsigned long long)rounds);
    return 0;
}
