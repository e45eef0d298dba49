/*
 * A job of two MPI processes: each sends messages of many sizes to the other and checks every byte.
 * Process 0 prints what both received. The output depends only on the messages, so that two runs can be
 * compared byte for byte.
 *
 *   mpiexec -n 2 exchange LIBRARY...
 *
 * Each library ("libfabric.so") must be mapped into both processes after MPI is initialized, or must not
 * if "!" precedes it. This shows with which libfabric and providers the job ran.
 */
#include <stdint.h>
#include <string.h>

#include "job.h"

static const int sizes[] = {0, 1, 63, 4096, 65537, 1 << 20, (4 << 20) + 3};
#define SIZES (sizeof sizes / sizeof sizes[0])
#define LARGEST ((4 << 20) + 3)

static bool mapped(const char *library)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    bool found = false;

    require(maps != NULL, "/proc/self/maps cannot be read");
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, library) != NULL;
    fclose(maps);
    return found;
}

/* The content of message `number` from process `from`. */
static void fill(uint8_t *data, int size, int from, int number)
{
    uint32_t state = (uint32_t)(from * 1000 + number) * 2654435761u + 1;

    for (int i = 0; i < size; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint8_t)(state >> 24);
    }
}

/* FNV-1a. */
static uint64_t checksum(const uint8_t *data, int size)
{
    uint64_t sum = 14695981039346656037u;

    for (int i = 0; i < size; i++)
        sum = (sum ^ data[i]) * 1099511628211u;
    return sum;
}

int main(int argc, char **argv)
{
    uint8_t *sent, *received, *expected;

    begin(&argc, &argv, MPI_THREAD_SINGLE);
    require(processes == 2, "a job of two processes is wanted");
    sent = allocate(LARGEST);
    received = allocate(LARGEST);
    expected = allocate(LARGEST);
    for (int i = 1; i < argc; i++) {
        bool absent = argv[i][0] == '!';

        require(mapped(argv[i] + absent) != absent, argv[i]);
    }
    for (int number = 0; number < (int)SIZES; number++) {
        int size = sizes[number], count, peer = 1 - rank;
        unsigned long long mine, both[2];
        MPI_Status status;

        fill(sent, size, rank, number);
        fill(expected, size, peer, number);
        memset(received, 0, (size_t)size);
        MPI_Sendrecv(sent, size, MPI_BYTE, peer, number, received, LARGEST, MPI_BYTE, peer, number, MPI_COMM_WORLD,
                     &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        require(count == size, "a message has another length");
        require(memcmp(received, expected, (size_t)size) == 0, "a message has other bytes");
        mine = checksum(received, size);
        MPI_Gather(&mine, 1, MPI_UNSIGNED_LONG_LONG, both, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%d bytes: %016llx %016llx\n", size, both[0], both[1]);
    }
    MPI_Finalize();
    free(sent);
    free(received);
    free(expected);
    return 0;
}
