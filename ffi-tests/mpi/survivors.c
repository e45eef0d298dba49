/*
 * The last process receives from all others, pauses until messages to it are under way, and kills itself.
 * Each of the others prints the error with which its message ends, and leaves with a status.
 *
 *   mpiexec -n N survivors
 *
 * One message at a time, of a size that ofi_rxm hands to a connection as it is: the end of the connection ends
 * the message, too. A message after that would make ofi_rxm connect again without an end, and no end of a
 * connection ends a receive.
 */
#include <signal.h>
#include <unistd.h>

#include "job.h"

#define SIZE 14000
#define ROUNDS 20
/* Seconds: the pause, how long a message may take, and how long others may take to print theirs. */
#define PAUSE 1
#define PATIENCE 30
#define OTHERS 2

static void be_killed(char *in)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int peer = 0; peer < processes - 1; peer++)
            MPI_Recv(in, SIZE, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sleep(PAUSE);
    raise(SIGKILL);
}

/* Even where MPI does not come back from a call. */
static void tired(int signal)
{
    static const char text[] = "a message has not ended\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);

    (void)signal;
    _exit(written > 0 ? 2 : 3);
}

/* Sends until a message ends with an error, which is the result. */
static int send_to(int peer, char *out)
{
    for (;;) {
        MPI_Request request;
        int error, done = 0;

        alarm(PATIENCE);
        error = MPI_Isend(out, SIZE, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &request);
        while (error == MPI_SUCCESS && !done)
            error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS)
            return error;
    }
}

int main(int argc, char **argv)
{
    char *bytes, text[MPI_MAX_ERROR_STRING];
    int error, length;

    begin(&argc, &argv, MPI_THREAD_SINGLE);
    bytes = allocate(SIZE);
    if (rank == processes - 1)
        be_killed(bytes);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    signal(SIGALRM, tired);
    error = send_to(processes - 1, bytes);
    MPI_Error_string(error, text, &length);
    printf("process %d was told: %s\n", rank, text);
    fflush(stdout);
    alarm(0);
    /* The first that leaves may end the job. */
    sleep(OTHERS);
    _exit(1);
}
