/*
 * The last process kills itself while all exchange messages with it. The others go on, as nobody tells
 * them: the job has to end all the same, and must not end well.
 *
 *   mpiexec -n N killed
 */
#include <signal.h>

#include "job.h"

#define SIZE 300000

int main(int argc, char **argv)
{
    char *out, *in;

    begin(&argc, &argv, MPI_THREAD_SINGLE);
    out = allocate(SIZE);
    in = allocate(SIZE);
    for (int round = 0;; round++) {
        int size = round % 2 ? SIZE : 8, last = processes - 1;

        if (round == 20 && rank == last)
            raise(SIGKILL);
        for (int peer = rank == last ? 0 : last; peer <= (rank == last ? last - 1 : last); peer++)
            MPI_Sendrecv(out, size, MPI_BYTE, peer, 0, in, size, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
    }
}
