/*
 * Where the received bytes go. A regular file appears under its name only when it is complete:
 * until then it has a temporary name beside it, which goes away if the copy fails.
 */
#ifndef STREAM_COPY_OUTPUT_H
#define STREAM_COPY_OUTPUT_H

#include <stddef.h>

struct output {
    int fd;
    const char *path;
    /* Empty when written in place: standard output, a device, a pipe. */
    char temporary[4096];
};

/* `path` NULL or "-": standard output. The functions answer 0, or -1 after saying why. */
int output_open(struct output *output, const char *path);
int output_write(struct output *output, const void *data, size_t length);
/* Puts the file in its place. */
int output_commit(struct output *output);
/* Leaves nothing behind, unless committed. */
void output_close(struct output *output);

#endif
