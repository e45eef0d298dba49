/* The bytes on the streams: calls of random sizes, and content that is checked when it arrives. */
#ifndef RSTREAM_SCALE_TRAFFIC_H
#define RSTREAM_SCALE_TRAFFIC_H

#include "loop.h"

/* The stream's next random number. */
uint64_t roll(struct stream *stream);
/* Whether all bytes of both directions were moved. */
bool is_complete(const struct stream *stream);
/* Make one call each, and return the number of bytes that moved. */
size_t receive_some(struct loop *loop, struct stream *stream);
size_t send_some(struct loop *loop, struct stream *stream);

#endif
