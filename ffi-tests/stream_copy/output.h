/*
 * The destination of the received bytes. A regular file gets its name only when it is complete. Until then
 * it has a temporary name in the same folder, and it is removed if the copy fails.
 */
#ifndef STREAM_COPY_OUTPUT_H
#define STREAM_COPY_OUTPUT_H

#include <stddef.h>

struct output {
    int fd;
    const char *path;
    /* Empty if the bytes are written in place: to standard output, a device, a pipe. */
    char temporary[4096];
};

/* `path` NULL or "-": standard output. The functions return 0, or -1 after they have printed an error. */
int output_open(struct output *output, const char *path);
int output_write(struct output *output, const void *data, size_t length);
/* Gives the file its name. */
int output_commit(struct output *output);
/* Removes the temporary file, unless it was committed. */
void output_close(struct output *output);

#endif
