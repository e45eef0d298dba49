#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_S 0.2
#define BAR_WIDTH 30

double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void progress_start(struct progress *progress, uint64_t length, bool quiet)
{
    progress->shown = !quiet && isatty(STDERR_FILENO);
    progress->length = length;
    progress->started = seconds_now();
    progress->next = progress->started + PERIOD_S;
}

static void draw(const struct progress *progress, uint64_t done, double now)
{
    double rate = (double)done / (now - progress->started);

    if (progress->length == LENGTH_UNKNOWN || progress->length == 0) {
        fprintf(stderr, "\r%10.1f MB  %8.1f MB/s\x1b[K", (double)done / 1e6, rate / 1e6);
    } else {
        double share = (double)done / (double)progress->length;
        char bar[BAR_WIDTH + 1];

        for (int i = 0; i < BAR_WIDTH; i++)
            bar[i] = i < (int)(share * BAR_WIDTH) ? '#' : '.';
        bar[BAR_WIDTH] = '\0';
        fprintf(stderr, "\r%3.0f%% [%s] %10.1f MB  %8.1f MB/s  %4.0f s left\x1b[K", share * 100, bar,
                (double)done / 1e6, rate / 1e6, rate > 0 ? (double)(progress->length - done) / rate : 0.0);
    }
    fflush(stderr);
}

void progress_update(struct progress *progress, uint64_t done)
{
    double now;

    if (!progress->shown)
        return;
    now = seconds_now();
    if (now >= progress->next) {
        draw(progress, done, now);
        progress->next = now + PERIOD_S;
    }
}

double progress_finish(struct progress *progress)
{
    if (progress->shown)
        fputs("\r\x1b[K", stderr);
    return seconds_now() - progress->started;
}
