/*
 * What travels in a copy, numbers big-endian: a header (magic, length if known); frames of a length
 * and as many bytes; a length of 0 and the sender's checksum. Then the receiver's answer (magic,
 * count, checksum). The end is said in words because over TCP the end of the stream alone does not
 * tell a sender that is done from one that was killed.
 */
#ifndef STREAM_COPY_COPY_H
#define STREAM_COPY_COPY_H

#include <stdbool.h>
#include <stddef.h>

#include "output.h"
#include "stream.h"

/* Sends what `input` holds; fails unless the receiver read the same bytes. 0 or -1. */
int send_copy(struct stream *stream, int input, const char *name, size_t call, bool quiet);
/* Receives a copy into `output`, commits it, and answers the sender. 0 or -1. */
int recv_copy(struct stream *stream, struct output *output, size_t call, bool quiet);

#endif
