/*
 * What the MPI programs here share: who a process is among how many, and checks that end the job.
 */
#ifndef RSTREAM_TESTS_MPI_JOB_H
#define RSTREAM_TESTS_MPI_JOB_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

static int rank, processes;

static inline void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "process %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The number at `index` of what one process sends another. Sums of a few of them fit. */
static inline int number(int from, int to, int index)
{
    return from * 7919 + to * 104729 + index;
}

/* Starts MPI with this support for threads. */
static inline void begin(int *argc, char ***argv, int threads)
{
    int provided;

    MPI_Init_thread(argc, argv, threads, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    require(provided >= threads, "MPI does not support threads as it is asked to");
}

/* Ends MPI. Process 0 says that all have come here. */
static inline void end(const char *what)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: %d processes\n", what, processes);
    MPI_Finalize();
}

static inline void *allocate(size_t size)
{
    void *memory = calloc(size ? size : 1, 1);

    require(memory != NULL, "no memory");
    return memory;
}

#endif
