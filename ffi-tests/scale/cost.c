#include "cost.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../common.h"

static unsigned count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    /* Not counted: "." and "..", and the descriptor of the folder itself. */
    return count - 3;
}

static size_t resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    size_t total, pages;

    CHECK(file != NULL);
    CHECK_INT(fscanf(file, "%zu %zu", &total, &pages), 2);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static int64_t microseconds(struct timeval time)
{
    return (int64_t)time.tv_sec * 1000000 + time.tv_usec;
}

struct cost cost_now(void)
{
    struct mallinfo2 info;
    struct rusage usage;

    malloc_trim(0);
    info = mallinfo2();
    CHECK_SYS(getrusage(RUSAGE_SELF, &usage));
    return (struct cost){
        .descriptors = count_descriptors(),
        .heap = info.uordblks + info.hblkhd,
        .resident = resident(),
        .busy = microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
        .at = now_us(),
    };
}

void need_descriptors(unsigned count)
{
    struct rlimit limit;

    CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_cur >= count)
        return;
    limit.rlim_cur = count;
    if (limit.rlim_max < count)
        limit.rlim_max = count;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        CHECK_SYS(getrlimit(RLIMIT_NOFILE, &limit));
        skip("%u descriptors are needed, a process may have %llu", count, (unsigned long long)limit.rlim_max);
    }
}
