/* The progress of a copy: one line on a terminal, updated a few times a second. */
#ifndef STREAM_COPY_PROGRESS_H
#define STREAM_COPY_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* The length is not known in advance. */
#define LENGTH_UNKNOWN UINT64_MAX

struct progress {
    bool shown;
    uint64_t length;
    double started;
    double next;
};

double seconds_now(void);
/* Starts the clock. The line appears only on a terminal, and not if `quiet`. */
void progress_start(struct progress *progress, uint64_t length, bool quiet);
void progress_update(struct progress *progress, uint64_t done);
/* Removes the line. Returns the seconds since the start. */
double progress_finish(struct progress *progress);

#endif
