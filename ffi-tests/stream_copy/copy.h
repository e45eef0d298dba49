/*
 * The format of a copy, with big-endian numbers: a header (magic, length if known); frames, each a length
 * and as many bytes; a length of 0 and the sender's checksum. Then the receiver's answer (magic, count,
 * checksum). The end is explicit because the end of a TCP stream does not distinguish a sender that has
 * finished from one that was killed.
 */
#ifndef STREAM_COPY_COPY_H
#define STREAM_COPY_COPY_H

#include <stdbool.h>
#include <stddef.h>

#include "output.h"
#include "stream.h"

/* Sends the content of `input`. Fails unless the receiver read the same bytes. Returns 0 or -1. */
int send_copy(struct stream *stream, int input, const char *name, size_t call, bool quiet);
/* Receives a copy into `output`, commits it, and answers the sender. Returns 0 or -1. */
int recv_copy(struct stream *stream, struct output *output, size_t call, bool quiet);

#endif
