/*
 * MPI_THREAD_MULTIPLE: threads of each process exchange messages of all sizes with their counterparts in
 * all other processes at once, by tags and by communicators of their own, while another makes collective
 * operations. Every number is checked.
 *
 *   mpiexec -n N threads
 */
#include <pthread.h>

#include "job.h"

#define THREADS 4
#define ROUNDS 30
#define LARGEST 40000

static MPI_Comm communicators[THREADS + 1];

/* One number, some, or many. */
static int count_of(int round)
{
    static const int counts[] = {1, 30, 1000, 5000, LARGEST};

    return counts[round % 5];
}

static void *exchange(void *argument)
{
    int thread = *(int *)argument;
    size_t size = (size_t)processes * LARGEST * sizeof(int);
    int *out = allocate(size), *in = allocate(size);
    MPI_Request requests[2 * processes];
    /* Every other thread shares a communicator with all, and has its tag. */
    MPI_Comm communicator = communicators[thread % 2 ? thread : 0];

    for (int round = 0; round < ROUNDS; round++) {
        int count = count_of(round + thread);

        for (int peer = 0; peer < processes; peer++)
            MPI_Irecv(in + peer * LARGEST, count, MPI_INT, peer, thread, communicator, &requests[peer]);
        for (int peer = 0; peer < processes; peer++) {
            for (int i = 0; i < count; i++)
                out[peer * LARGEST + i] = number(rank, peer, i + thread + round);
            MPI_Isend(out + peer * LARGEST, count, MPI_INT, peer, thread, communicator,
                      &requests[processes + peer]);
        }
        MPI_Waitall(2 * processes, requests, MPI_STATUSES_IGNORE);
        for (int peer = 0; peer < processes; peer++)
            for (int i = 0; i < count; i++)
                require(in[peer * LARGEST + i] == number(peer, rank, i + thread + round), "a message");
    }
    free(in);
    free(out);
    return NULL;
}

static void *add_up(void *argument)
{
    (void)argument;
    for (int round = 0; round < ROUNDS; round++) {
        int mine = number(rank, 0, round), all, wanted = 0;

        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, communicators[THREADS]);
        for (int from = 0; from < processes; from++)
            wanted += number(from, 0, round);
        require(all == wanted, "a sum beside messages");
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS + 1];
    int numbers[THREADS];

    begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int i = 0; i <= THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &communicators[i]);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        require(pthread_create(&threads[i], NULL, exchange, &numbers[i]) == 0, "no thread");
    }
    require(pthread_create(&threads[THREADS], NULL, add_up, NULL) == 0, "no thread");
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i <= THREADS; i++)
        MPI_Comm_free(&communicators[i]);
    end("threads");
    return 0;
}
