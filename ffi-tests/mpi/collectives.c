/*
 * Every collective operation, those of neighbours too: each by itself, and then all of them at once without
 * blocking, with one number, some and many for each process. Every number that arrives is checked.
 *
 *   mpiexec -n N collectives
 */
#include <string.h>

#include "job.h"

/* What a process has when an operation has ended. */
enum meaning {
    NOTHING,
    BROADCAST,      /* what the root had */
    GATHERED,       /* what each had */
    SCATTERED,      /* what the root had for this process */
    EXCHANGED,      /* what each had for this process */
    REDUCED,        /* the sum over all */
    SPREAD,         /* the sum over all of what they had for this process */
    SCANNED,        /* the sum up to this process */
    SCANNED_BEFORE, /* the sum up to the process before this one */
};

struct operation {
    const char *name;
    enum meaning meaning;
    void (*start)(struct operation *operation, MPI_Request *request);
    /* Only the root gets something. */
    bool at_root;
    /* Process r has, or gets, r numbers more than process 0. */
    bool uneven;
    int root;
    int *out, *in;
};

/* Numbers of each process. Where it is uneven: of process r, and in front of them if all are in a row. */
static int count, *counts, *offsets;
/* The same of what each process has for this one. */
static int *own_counts, *own_offsets;
/* MPI_Alltoallw takes displacements in bytes, MPI_Neighbor_alltoallw as addresses. */
static int *bytes, *own_bytes;
static MPI_Aint *addresses, *own_addresses;
static MPI_Datatype *types;
/* Each process is a neighbour of all, and of itself: an operation of neighbours does what that of all does. */
static MPI_Comm neighbours;
static int **const layout[] = {&counts, &offsets, &own_counts, &own_offsets, &bytes, &own_bytes};

static void lay_out(int numbers)
{
    count = numbers;
    for (int r = 0, at = 0; r < processes; at += counts[r++]) {
        counts[r] = count + r;
        offsets[r] = at;
        own_counts[r] = count + rank;
        own_offsets[r] = r * own_counts[r];
        bytes[r] = offsets[r] * (int)sizeof(int);
        own_bytes[r] = own_offsets[r] * (int)sizeof(int);
        addresses[r] = bytes[r];
        own_addresses[r] = own_bytes[r];
        types[r] = MPI_INT;
    }
}

/* ---- the calls ---------------------------------------------------------------------------- */

#define CALL(blocking, other, ...) \
    (request ? MPI_I##other(__VA_ARGS__, request) : MPI_##blocking(__VA_ARGS__))
#define OPERATION_ON(communicator, name, blocking, ...) \
    static void name(struct operation *o, MPI_Request *request) \
    { \
        (void)o; \
        CALL(blocking, name, __VA_ARGS__, communicator); \
    }
#define OPERATION(...) OPERATION_ON(MPI_COMM_WORLD, __VA_ARGS__)
#define OF_NEIGHBOURS(...) OPERATION_ON(neighbours, __VA_ARGS__)
#define OUT o->out, count, MPI_INT
#define IN o->in, count, MPI_INT
#define OUT_OF_RANK o->out, counts[rank], MPI_INT
#define IN_OF_RANK o->in, counts[rank], MPI_INT
#define OUT_UNEVEN o->out, counts, offsets, MPI_INT
#define IN_UNEVEN o->in, counts, offsets, MPI_INT

static void barrier(struct operation *o, MPI_Request *request)
{
    (void)o;
    CALL(Barrier, barrier, MPI_COMM_WORLD);
}

static void bcast(struct operation *o, MPI_Request *request)
{
    if (rank == o->root)
        memcpy(o->in, o->out, (size_t)count * sizeof(int));
    CALL(Bcast, bcast, IN, o->root, MPI_COMM_WORLD);
}

OPERATION(gather, Gather, OUT, IN, o->root)
OPERATION(gatherv, Gatherv, OUT_OF_RANK, IN_UNEVEN, o->root)
OPERATION(scatter, Scatter, OUT, IN, o->root)
OPERATION(scatterv, Scatterv, OUT_UNEVEN, IN_OF_RANK, o->root)
OPERATION(allgather, Allgather, OUT, IN)
OPERATION(allgatherv, Allgatherv, OUT_OF_RANK, IN_UNEVEN)
OPERATION(alltoall, Alltoall, OUT, IN)
OPERATION(alltoallv, Alltoallv, OUT_UNEVEN, o->in, own_counts, own_offsets, MPI_INT)
OPERATION(alltoallw, Alltoallw, o->out, counts, bytes, types, o->in, own_counts, own_bytes, types)
OPERATION(reduce, Reduce, o->out, o->in, count, MPI_INT, MPI_SUM, o->root)
OPERATION(allreduce, Allreduce, o->out, o->in, count, MPI_INT, MPI_SUM)
OPERATION(reduce_scatter, Reduce_scatter, o->out, o->in, counts, MPI_INT, MPI_SUM)
OPERATION(reduce_scatter_block, Reduce_scatter_block, o->out, o->in, count, MPI_INT, MPI_SUM)
OPERATION(scan, Scan, o->out, o->in, count, MPI_INT, MPI_SUM)
OPERATION(exscan, Exscan, o->out, o->in, count, MPI_INT, MPI_SUM)
OF_NEIGHBOURS(neighbor_allgather, Neighbor_allgather, OUT, IN)
OF_NEIGHBOURS(neighbor_allgatherv, Neighbor_allgatherv, OUT_OF_RANK, IN_UNEVEN)
OF_NEIGHBOURS(neighbor_alltoall, Neighbor_alltoall, OUT, IN)
OF_NEIGHBOURS(neighbor_alltoallv, Neighbor_alltoallv, OUT_UNEVEN, o->in, own_counts, own_offsets, MPI_INT)
OF_NEIGHBOURS(neighbor_alltoallw, Neighbor_alltoallw, o->out, counts, addresses, types, o->in, own_counts,
              own_addresses, types)

static struct operation operations[] = {
    {"MPI_Barrier", NOTHING, barrier, false, false, 0, NULL, NULL},
    {"MPI_Bcast", BROADCAST, bcast, false, false, 0, NULL, NULL},
    {"MPI_Gather", GATHERED, gather, true, false, 0, NULL, NULL},
    {"MPI_Gatherv", GATHERED, gatherv, true, true, 0, NULL, NULL},
    {"MPI_Scatter", SCATTERED, scatter, false, false, 0, NULL, NULL},
    {"MPI_Scatterv", SCATTERED, scatterv, false, true, 0, NULL, NULL},
    {"MPI_Allgather", GATHERED, allgather, false, false, 0, NULL, NULL},
    {"MPI_Allgatherv", GATHERED, allgatherv, false, true, 0, NULL, NULL},
    {"MPI_Alltoall", EXCHANGED, alltoall, false, false, 0, NULL, NULL},
    {"MPI_Alltoallv", EXCHANGED, alltoallv, false, true, 0, NULL, NULL},
    {"MPI_Alltoallw", EXCHANGED, alltoallw, false, true, 0, NULL, NULL},
    {"MPI_Reduce", REDUCED, reduce, true, false, 0, NULL, NULL},
    {"MPI_Allreduce", REDUCED, allreduce, false, false, 0, NULL, NULL},
    {"MPI_Reduce_scatter", SPREAD, reduce_scatter, false, true, 0, NULL, NULL},
    {"MPI_Reduce_scatter_block", SPREAD, reduce_scatter_block, false, false, 0, NULL, NULL},
    {"MPI_Scan", SCANNED, scan, false, false, 0, NULL, NULL},
    {"MPI_Exscan", SCANNED_BEFORE, exscan, false, false, 0, NULL, NULL},
    {"MPI_Neighbor_allgather", GATHERED, neighbor_allgather, false, false, 0, NULL, NULL},
    {"MPI_Neighbor_allgatherv", GATHERED, neighbor_allgatherv, false, true, 0, NULL, NULL},
    {"MPI_Neighbor_alltoall", EXCHANGED, neighbor_alltoall, false, false, 0, NULL, NULL},
    {"MPI_Neighbor_alltoallv", EXCHANGED, neighbor_alltoallv, false, true, 0, NULL, NULL},
    {"MPI_Neighbor_alltoallw", EXCHANGED, neighbor_alltoallw, false, true, 0, NULL, NULL},
};
#define OPERATIONS ((int)(sizeof operations / sizeof operations[0]))

/* ---- what goes in, what comes out --------------------------------------------------------- */

/* Whether a process has numbers for each of them, not the same for all. */
static bool is_addressed(enum meaning meaning)
{
    return meaning == SCATTERED || meaning == EXCHANGED || meaning == SPREAD;
}

/* Whether a process gets what each of them has, not one thing. */
static bool is_in_blocks(enum meaning meaning)
{
    return meaning == GATHERED || meaning == EXCHANGED;
}

static void fill(struct operation *operation, int root)
{
    bool addressed = is_addressed(operation->meaning);

    operation->root = root;
    for (int to = 0; to < (addressed ? processes : 1); to++) {
        int length = !operation->uneven ? count : counts[addressed ? to : rank];
        int *block = operation->out + (!addressed ? 0 : operation->uneven ? offsets[to] : to * count);

        for (int i = 0; i < length; i++)
            block[i] = number(rank, to, i);
    }
    memset(operation->in, 0, (size_t)processes * (size_t)(count + processes) * sizeof(int));
}

/* Of the processes from `first` to `last`. */
static int sum(int first, int last, int to, int index)
{
    int sum = 0;

    for (int from = first; from <= last; from++)
        sum += number(from, to, index);
    return sum;
}

static int expected(const struct operation *operation, int block, int index)
{
    switch (operation->meaning) {
    case BROADCAST: return number(operation->root, 0, index);
    case GATHERED: return number(block, 0, index);
    case SCATTERED: return number(operation->root, rank, index);
    case EXCHANGED: return number(block, rank, index);
    case REDUCED: return sum(0, processes - 1, 0, index);
    case SPREAD: return sum(0, processes - 1, rank, index);
    case SCANNED: return sum(0, rank, 0, index);
    case SCANNED_BEFORE: return sum(0, rank - 1, 0, index);
    default: return 0;
    }
}

static void check(const struct operation *operation)
{
    bool exchanged = operation->meaning == EXCHANGED;

    if (operation->meaning == NOTHING || (operation->at_root && rank != operation->root))
        return;
    for (int from = 0; from < (is_in_blocks(operation->meaning) ? processes : 1); from++) {
        int of = exchanged || !is_in_blocks(operation->meaning) ? rank : from;
        int length = !operation->uneven ? count : counts[of];
        int offset = exchanged ? own_offsets[from] : offsets[from];
        int *block = operation->in + (!operation->uneven ? from * count : offset);

        for (int i = 0; i < length; i++)
            require(block[i] == expected(operation, from, i), operation->name);
    }
}

static void meet_neighbours(void)
{
    int *everyone = allocate((size_t)processes * sizeof(int)), *weights = allocate((size_t)processes * sizeof(int));

    for (int r = 0; r < processes; r++) {
        everyone[r] = r;
        weights[r] = 1;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, processes, everyone, weights, processes, everyone, weights,
                                   MPI_INFO_NULL, 0, &neighbours);
    free(weights);
    free(everyone);
}

int main(int argc, char **argv)
{
    static const int numbers[] = {1, 1000, 40000};
    MPI_Request requests[OPERATIONS];
    size_t room;

    begin(&argc, &argv, MPI_THREAD_SINGLE);
    room = (size_t)processes * (size_t)(numbers[2] + processes) * sizeof(int);
    for (int o = 0; o < OPERATIONS; o++) {
        operations[o].out = allocate(room);
        operations[o].in = allocate(room);
    }
    for (int i = 0; i < (int)(sizeof layout / sizeof layout[0]); i++)
        *layout[i] = allocate((size_t)processes * sizeof(int));
    addresses = allocate((size_t)processes * sizeof(MPI_Aint));
    own_addresses = allocate((size_t)processes * sizeof(MPI_Aint));
    types = allocate((size_t)processes * sizeof(MPI_Datatype));
    meet_neighbours();
    for (int n = 0; n < 3; n++) {
        lay_out(numbers[n]);
        for (int root = 0; root < processes; root++) {
            for (int o = 0; o < OPERATIONS; o++) {
                fill(&operations[o], root);
                operations[o].start(&operations[o], NULL);
                check(&operations[o]);
            }
            for (int o = 0; o < OPERATIONS; o++) {
                fill(&operations[o], (root + o) % processes);
                operations[o].start(&operations[o], &requests[o]);
            }
            MPI_Waitall(OPERATIONS, requests, MPI_STATUSES_IGNORE);
            for (int o = 0; o < OPERATIONS; o++)
                check(&operations[o]);
        }
    }
    MPI_Comm_free(&neighbours);
    end("collectives");
    return 0;
}
