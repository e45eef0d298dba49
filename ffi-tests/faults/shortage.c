/* Causes a lack of descriptors, and ends it. */
#include "faults.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Most descriptor numbers that may be free below the highest one in use. */
#define FILLERS_MAX 1000

static struct {
    struct rlimit usual;
    /* Opened so that no lower number is free. */
    int fillers[FILLERS_MAX];
    unsigned fillers_count;
    bool on;
} lack;

void shortage_begin(unsigned left)
{
    struct rlimit limit;

    CHECK_SYS(getrlimit(RLIMIT_NOFILE, &lack.usual));
    limit = lack.usual;
    lack.fillers_count = 0;
    for (int fd = -1, count = (int)open_descriptors(); fd != count; lack.fillers_count++) {
        /* The lowest free number, which is the number of open descriptors if there is no gap. */
        count = (int)open_descriptors();
        fd = (int)CHECK_SYS(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
        CHECK(lack.fillers_count < FILLERS_MAX);
        lack.fillers[lack.fillers_count] = fd;
    }
    limit.rlim_cur = open_descriptors() + left;
    CHECK_SYS(setrlimit(RLIMIT_NOFILE, &limit));
    lack.on = true;
}

void shortage_end(void)
{
    if (!lack.on)
        return;
    CHECK_SYS(setrlimit(RLIMIT_NOFILE, &lack.usual));
    while (lack.fillers_count > 0)
        close(lack.fillers[--lack.fillers_count]);
    lack.on = false;
}

bool shortage(void)
{
    return lack.on;
}
