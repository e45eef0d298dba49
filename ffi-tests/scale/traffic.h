/* What goes over the streams: calls of random sizes, content that is checked as it arrives. */
#ifndef RSTREAM_SCALE_TRAFFIC_H
#define RSTREAM_SCALE_TRAFFIC_H

#include "loop.h"

/* The stream's next random number. */
uint64_t roll(struct stream *stream);
/* Whether all bytes went both ways. */
bool is_complete(const struct stream *stream);
/* One call each; they answer how many bytes moved. */
size_t receive_some(struct loop *loop, struct stream *stream);
size_t send_some(struct loop *loop, struct stream *stream);

#endif
