/*
 * Many endpoints: event-driven use, scalability, and resources. See usage() for the commands.
 */
#include <getopt.h>
#include <stdlib.h>
#include <unistd.h>

#include "cost.h"
#include "loop.h"
#include "messages.h"
#include "setup.h"

/* By how much the heap may be larger after many rounds than after the first: the hash tables of open
 * objects double once after many removals. A block that each connection of a soak leaves would be ten
 * times as much. */
#define HEAP_GROWTH(connections) (65536 + 200 * (size_t)(connections))
/* Percent of a processor while nothing happens. */
#define IDLE_PERCENT_MOST 1.0
/* The event queue checks its connections regularly, and the clock may be early. */
#define IDLE_WAKEUPS_MOST(seconds) (4 + (seconds))

static const char *const waiting_names[] = {"sleep", "edge", "trywait", "poll"};

static void print_phase(const struct loop *loop, const char *phase, struct cost before, struct cost after)
{
    unsigned connections = loop->plan->connections;
    double ms = (double)(after.at - before.at) / 1000;

    printf("  %s %-7s %8.0f ms, %6.1f us busy a connection; %u descriptors, heap %.1f KiB, resident %.1f KiB a connection\n",
           loop_serves(loop) ? "server" : "client", phase, ms,
           (double)(after.busy - before.busy) / connections, after.descriptors,
           (double)after.heap / 1024 / connections, (double)after.resident / 1024 / connections);
    fflush(stdout);
}

static void idle(struct loop *loop)
{
    uint64_t wakeups = loop->wakeups;
    struct cost before = cost_now(), after;
    double percent;

    loop_idle(loop);
    after = cost_now();
    percent = 100.0 * (double)(after.busy - before.busy) / (double)(after.at - before.at);
    wakeups = loop->wakeups - wakeups;
    printf("  %s idle %u s: %.2f %% of a core, %llu wake-ups\n", loop_serves(loop) ? "server" : "client",
           loop->plan->idle_s, percent, (unsigned long long)wakeups);
    CHECK(percent < IDLE_PERCENT_MOST);
    CHECK_BETWEEN(wakeups, 1, IDLE_WAKEUPS_MOST(loop->plan->idle_s));
    loop_rested(loop);
}

/* Opens, uses and closes all connections once. Reports each phase if `tell` is set. */
static void round_of(struct loop *loop, bool tell)
{
    struct cost start = cost_now(), open, used, closed;

    loop_open(loop);
    open = cost_now();
    loop_use(loop);
    used = cost_now();
    if (loop->plan->idle_s)
        idle(loop);
    struct cost rested = cost_now();
    loop_end(loop);
    closed = cost_now();
    if (tell) {
        print_phase(loop, "opened", start, open);
        print_phase(loop, "used", open, used);
        print_phase(loop, "closed", rested, closed);
    }
}

/* Runs all rounds, and checks that memory and descriptors return to their values after the first. */
static void rounds(struct loop *loop)
{
    const struct plan *plan = loop->plan;
    struct cost start = cost_now(), first, last;
    int64_t began = now_ms();

    round_of(loop, true);
    first = last = cost_now();
    CHECK_INT(first.descriptors, start.descriptors);
    for (unsigned i = 1; i < plan->rounds; i++) {
        round_of(loop, false);
        last = cost_now();
    }
    printf("  %s %u connections in %.1f s; at the start, after the first and after the last round: "
           "descriptors %u, %u, %u; heap %zu, %zu, %zu KiB; resident %zu, %zu, %zu KiB; "
           "wake-ups %llu, of a stream for nothing %llu\n",
           loop_serves(loop) ? "server" : "client", plan->connections * plan->rounds,
           (double)(now_ms() - began) / 1000, start.descriptors, first.descriptors, last.descriptors,
           start.heap / 1024, first.heap / 1024, last.heap / 1024, start.resident / 1024,
           first.resident / 1024, last.resident / 1024, (unsigned long long)loop->wakeups,
           (unsigned long long)loop->empty);
    CHECK_INT(last.descriptors, first.descriptors);
    CHECK_BETWEEN(last.heap, 0, first.heap + HEAP_GROWTH(plan->connections));
}

static void serve_rounds(struct peer *self, void *argument)
{
    const struct plan *plan = argument;
    struct loop loop;

    side_listen(&loop.side, LOOP_HOST, &plan->settings);
    peer_tell(self, fid_port(&loop.side.pep->fid));
    loop_init(&loop, plan, self);
    rounds(&loop);
    loop_close(&loop);
    side_close(&loop.side);
}

static void run_rounds(struct plan *plan)
{
    /* Checks of the connections by a timer would hide a lost wake-up. */
    const char *keepalive = plan->idle_s ? "30" : "3600";
    struct peer server;
    struct loop loop;

    CHECK_SYS(setenv("FI_RSTREAM_KEEPALIVE_S", keepalive, 1));
    need_descriptors(descriptors_of(plan));
    printf("%u connections, %u rounds, %llu bytes each way, seed %llu, waiting: %s%s\n", plan->connections,
           plan->rounds, (unsigned long long)plan->bytes, (unsigned long long)plan->seed,
           waiting_names[plan->waiting], plan->own_queues ? ", an event queue each" : "");
    peer_start(&server, serve_rounds, plan);
    side_open(&loop.side, find_peer(LOOP_HOST, (unsigned)peer_hear(&server), &plan->settings));
    loop_init(&loop, plan, &server);
    rounds(&loop);
    loop_close(&loop);
    side_close(&loop.side);
    peer_join(&server);
}

static _Noreturn void usage(int status)
{
    fputs("usage: scale COMMAND [OPTION]...\n"
          "  rounds   opens, uses and closes connections between two processes, in rounds\n"
          "  setup    how long opening takes and what an endpoint costs, beside plain TCP, in turns\n"
          "  messages opens, uses and closes connections of message endpoints in one process, in rounds\n"
          "  turns    the same, one after the other; only -n\n"
          "options:\n"
          "  -n N   connections (1000)\n"
          "  -r N   rounds (1)\n"
          "  -w HOW sleep (in epoll), edge (the same, EPOLLET), trywait (fi_trywait first), poll\n"
          "  -b N   bytes each way on a connection (10000)\n"
          "  -a     any number of bytes up to -b instead, another on every connection\n"
          "  -e     the server sends what it received, and not before\n"
          "  -k N   ring size (default of the provider)\n"
          "  -d N   queue sizes (default of the provider)\n"
          "  -i N   seconds of idleness between use and end (0)\n"
          "  -q     an event queue for every endpoint\n"
          "  -s N   seed (from the clock)\n",
          status ? stderr : stdout);
    exit(status);
}

int main(int argc, char **argv)
{
    struct plan plan = {.connections = 1000, .rounds = 1, .bytes = 10000, .seed = (uint64_t)now_us()};
    const char *command = argc > 1 ? argv[1] : "";
    int option;

    optind = 2;
    while (argc > 1 && (option = getopt(argc, argv, "n:r:w:b:aek:d:i:qs:h")) != -1) {
        switch (option) {
        case 'n': plan.connections = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'r': plan.rounds = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'b': plan.bytes = strtoull(optarg, NULL, 0); break;
        case 'a': plan.random_amount = true; break;
        case 'e': plan.echo = true; break;
        case 'k': plan.settings.send_ring = plan.settings.recv_ring = strtoul(optarg, NULL, 0); break;
        case 'd': plan.settings.tx_size = plan.settings.rx_size = strtoul(optarg, NULL, 0); break;
        case 'i': plan.idle_s = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'q': plan.own_queues = true; break;
        case 's': plan.seed = strtoull(optarg, NULL, 0); break;
        case 'w':
            plan.waiting = WAIT_SLEEP;
            while (strcmp(waiting_names[plan.waiting], optarg) != 0)
                if (++plan.waiting > WAIT_POLL)
                    usage(2);
            break;
        default: usage(option == 'h' ? 0 : 2);
        }
    }
    setlinebuf(stdout);
    if (strcmp(command, "rounds") == 0)
        run_rounds(&plan);
    else if (strcmp(command, "setup") == 0)
        compare_setup(&plan);
    else if (strcmp(command, "messages") == 0)
        messages_together(&plan);
    else if (strcmp(command, "turns") == 0)
        messages_in_turn(&plan);
    else
        usage(strcmp(command, "-h") == 0 ? 0 : 2);
    return 0;
}
