/* Many message endpoints of one process: alive at the same time, or one pair after the other. */
#ifndef RSTREAM_SCALE_MESSAGES_H
#define RSTREAM_SCALE_MESSAGES_H

#include "loop.h"

/* Opens, uses and closes `plan->connections` connections, `plan->rounds` times. */
void messages_together(const struct plan *plan);
/* Opens, uses and closes one connection after the other, so many times. */
void messages_in_turn(const struct plan *plan);

#endif
