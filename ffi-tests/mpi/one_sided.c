/*
 * One-sided operations on windows: put, get and accumulate between fences; between post and wait; and under
 * locks, with the atomic ones. Every number is checked.
 *
 *   mpiexec -n N one_sided
 */
#include "job.h"

/* Numbers that one process writes to another at most. */
#define LARGEST 100000

static MPI_Win window;
static int *memory, *local;
/* A window of counters at process 0. */
static MPI_Win counters;
static long *counter;

enum { TOTAL, TICKETS, SWAPPED, GATHERED, COUNTERS };

/* Each process has a block in each other's window. */
static void between_fences(int count)
{
    MPI_Win_fence(0, window);
    for (int to = 0; to < processes; to++) {
        for (int i = 0; i < count; i++)
            local[to * LARGEST + i] = number(rank, to, i);
        MPI_Put(local + to * LARGEST, count, MPI_INT, to, rank * LARGEST, count, MPI_INT, window);
    }
    MPI_Win_fence(0, window);
    for (int from = 0; from < processes; from++)
        for (int i = 0; i < count; i++)
            require(memory[from * LARGEST + i] == number(from, rank, i), "MPI_Put between fences");
    /* What this process put, back. */
    for (int from = 0; from < processes; from++)
        MPI_Get(local + from * LARGEST, count, MPI_INT, from, rank * LARGEST, count, MPI_INT, window);
    MPI_Win_fence(0, window);
    for (int from = 0; from < processes; from++)
        for (int i = 0; i < count; i++)
            require(local[from * LARGEST + i] == number(rank, from, i), "MPI_Get between fences");
    /* All add to the same numbers of each. */
    for (int i = 0; i < count; i++)
        memory[i] = 0;
    MPI_Win_fence(0, window);
    for (int to = 0; to < processes; to++)
        MPI_Accumulate(local + to * LARGEST, count, MPI_INT, to, 0, count, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < count; i++) {
        int sum = 0;

        for (int from = 0; from < processes; from++)
            sum += number(from, rank, i);
        require(memory[i] == sum, "MPI_Accumulate between fences");
    }
}

/* Around a ring: the process on the left writes here, and this one writes to the right. */
static void between_post_and_wait(int count)
{
    int left = (rank + processes - 1) % processes, right = (rank + 1) % processes;
    MPI_Group all, sources, targets;

    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &left, &sources);
    MPI_Group_incl(all, 1, &right, &targets);
    for (int i = 0; i < count; i++)
        local[i] = number(rank, right, i);
    MPI_Win_post(sources, 0, window);
    MPI_Win_start(targets, 0, window);
    MPI_Put(local, count, MPI_INT, right, rank * LARGEST, count, MPI_INT, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    for (int i = 0; i < count; i++)
        require(memory[left * LARGEST + i] == number(left, rank, i), "MPI_Put between post and wait");
    MPI_Group_free(&targets);
    MPI_Group_free(&sources);
    MPI_Group_free(&all);
}

static void under_locks(int count)
{
    int to = (rank + 1) % processes;
    MPI_Request request;

    MPI_Win_lock_all(0, window);
    for (int i = 0; i < count; i++)
        local[i] = number(rank, to, i);
    MPI_Rput(local, count, MPI_INT, to, rank * LARGEST, count, MPI_INT, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_flush(to, window);
    MPI_Rget(local + LARGEST, count, MPI_INT, to, rank * LARGEST, count, MPI_INT, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++)
        require(local[LARGEST + i] == number(rank, to, i), "MPI_Rput and MPI_Rget under a lock");
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Each process adds one to each counter a number of times, in each way that does not lose any. */
static void counting(int times)
{
    const long one = 1;
    long was, next, *tickets = allocate((size_t)times * sizeof *tickets), *all = NULL;

    for (int i = 0; i < times; i++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, counters);
        MPI_Get(&was, 1, MPI_LONG, 0, TOTAL, 1, MPI_LONG, counters);
        MPI_Win_flush(0, counters);
        next = was + 1;
        MPI_Put(&next, 1, MPI_LONG, 0, TOTAL, 1, MPI_LONG, counters);
        MPI_Win_unlock(0, counters);
    }
    MPI_Win_lock_all(0, counters);
    for (int i = 0; i < times; i++) {
        MPI_Fetch_and_op(&one, &tickets[i], MPI_LONG, 0, TICKETS, MPI_SUM, counters);
        MPI_Win_flush(0, counters);
        was = 0;
        for (long found = -1; found != was; ) {
            if (found >= 0)
                was = found;
            next = was + 1;
            MPI_Compare_and_swap(&next, &was, &found, MPI_LONG, 0, SWAPPED, counters);
            MPI_Win_flush(0, counters);
        }
        MPI_Get_accumulate(&one, 1, MPI_LONG, &was, 1, MPI_LONG, 0, GATHERED, 1, MPI_LONG, MPI_SUM, counters);
        MPI_Win_flush(0, counters);
    }
    MPI_Win_unlock_all(counters);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        all = allocate((size_t)(times * processes) * sizeof *all);
    MPI_Gather(tickets, times, MPI_LONG, all, times, MPI_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        bool *taken = allocate((size_t)(times * processes) * sizeof *taken);

        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
        for (int i = 0; i < COUNTERS; i++)
            require(counter[i] == (long)times * processes, "a counter lost an addition");
        MPI_Win_unlock(0, counters);
        for (int i = 0; i < times * processes; i++) {
            require(all[i] >= 0 && all[i] < times * processes && !taken[all[i]], "two have the same ticket");
            taken[all[i]] = true;
        }
        free(taken);
    }
    free(all);
    free(tickets);
}

int main(int argc, char **argv)
{
    static const int counts[] = {1, 1000, LARGEST};
    size_t size;

    begin(&argc, &argv, MPI_THREAD_SINGLE);
    size = (size_t)(processes > 2 ? processes : 2) * LARGEST * sizeof(int);
    local = allocate(size);
    MPI_Win_allocate((MPI_Aint)size, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    counter = allocate(COUNTERS * sizeof *counter);
    MPI_Win_create(counter, rank == 0 ? COUNTERS * sizeof *counter : 0, sizeof *counter, MPI_INFO_NULL,
                   MPI_COMM_WORLD, &counters);
    for (int i = 0; i < 3; i++) {
        between_fences(counts[i]);
        between_post_and_wait(counts[i]);
        under_locks(counts[i]);
    }
    counting(200);
    MPI_Win_free(&counters);
    MPI_Win_free(&window);
    free(counter);
    free(local);
    end("one_sided");
    return 0;
}
