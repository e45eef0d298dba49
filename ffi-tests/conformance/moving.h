/* Tests of the move to shared memory that have a file of their own. */
#ifndef RSTREAM_TESTS_MOVING_H
#define RSTREAM_TESTS_MOVING_H

/* Calls in generated orders, with shared memory and without. */
void orders_in_memory(void);
void orders_on_iwarp(void);

#endif
