#include "sleeper.h"

#include <poll.h>
#include <time.h>

static int64_t thread_us(void)
{
    struct timespec time;

    CHECK_SYS(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time));
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

bool must_not_wait(struct side *side)
{
    struct fid *fid = &side->ep->fid;
    int answer = fi_trywait(side->fabric, &fid, 1);

    if (answer != -FI_EAGAIN)
        CHECK_OK(answer);
    return answer != 0;
}

bool sleep_idle(struct sleeper *sleeper, struct side *side, int us, unsigned most)
{
    struct pollfd poll_fd = {.fd = wait_fd(&side->ep->fid), .events = POLLIN};
    int64_t start = now_us(), cpu = thread_us(), left;
    unsigned wakes = 0;

    while ((left = start + us - now_us()) > 0) {
        const struct timespec limit = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};

        if (CHECK_SYS(ppoll(&poll_fd, 1, &limit, NULL)) == 0)
            continue;
        if (must_not_wait(side))
            return false;
        CHECK_BETWEEN(++wakes, 1, most);
    }
    sleeper->slept_us += now_us() - start;
    sleeper->cpu_us += thread_us() - cpu;
    sleeper->wakes += wakes;
    return true;
}

void sleeper_check(const struct sleeper *sleeper)
{
    printf("%lld us of processor time in %lld ms asleep, %u wake-ups for nothing\n", (long long)sleeper->cpu_us,
           (long long)sleeper->slept_us / 1000, sleeper->wakes);
    CHECK_BETWEEN(sleeper->cpu_us, 0, sleeper->slept_us / 100);
}
