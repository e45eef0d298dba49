/*
 * What it takes to set up many connections, beside plain TCP: the two take turns in one run, each
 * time between two new processes with one thread and one epoll set each. Plain TCP makes the calls
 * that an event loop of sockets makes: connect without waiting, accept, no delay, watch.
 */
#ifndef RSTREAM_SCALE_SETUP_H
#define RSTREAM_SCALE_SETUP_H

#include "loop.h"

/* Prints time and memory of both, median of `plan->rounds` rounds, and their ratio. */
void compare_setup(struct plan *plan);

#endif
