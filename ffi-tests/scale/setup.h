/*
 * The cost of setting up many connections, compared with plain TCP. The two take turns in one run, each
 * time between two new processes with one thread and one epoll set each. Plain TCP makes the calls of an
 * event loop for sockets: nonblocking connect, accept, TCP_NODELAY, epoll_ctl.
 */
#ifndef RSTREAM_SCALE_SETUP_H
#define RSTREAM_SCALE_SETUP_H

#include "loop.h"

/* Prints time and memory of both, as the median of `plan->rounds` rounds, and their ratio. */
void compare_setup(struct plan *plan);

#endif
