/*
 * Shared by the tests of librstream_c: attached connections in one process and between two, and their bytes.
 */
#ifndef RSTREAM_TESTS_SOCKETS_C_H
#define RSTREAM_TESTS_SOCKETS_C_H

#include "../runner.h"
#include "rstream_sockets.h"

#include <errno.h>

extern const struct section rs_calls, rs_waiting, rs_ending, rs_leaving, rs_sharing;
extern const struct section rs_peers, rs_misuse, rs_unchecked;

void check_errno_at(const char *file, int line, const char *what, long long got, int error, int wanted);

/* The call returns -1, and leaves this error number. */
#define CHECK_ERRNO(call, wanted)                                                                   \
    do {                                                                                            \
        long long answer_ = (long long)(call);                                                      \
        check_errno_at(__FILE__, __LINE__, #call, answer_, errno, wanted);                          \
    } while (0)

/* A new connection of this process with itself: the end that connected, and the one that was accepted. */
void open_plain(int ends[2]);
/* The same, attached. */
void open_fresh(int ends[2]);
/* Exchanges bytes until both directions go through shared memory. */
void upgrade(int ends[2]);
/* Both. */
void open_pair(int ends[2]);
void close_pair(int ends[2]);

/* The path, and what its text begins with. */
void check_path(int fd, int path, const char *text);
/* Bytes that the kernel has received on this connection. */
uint64_t kernel_received(int fd);

/* These bytes of the pattern, by rs_send and rs_recv. */
void send_part(int fd, uint64_t offset, size_t length);
void receive_part(int fd, uint64_t offset, size_t length);
/* Sends a part there and receives it back, so many times. */
void exchange(int fd, uint64_t offset, size_t length, int times);

/* What rs_poll says of one descriptor within `ms`. */
int polled(int fd, int events, int ms);
/* Waits until rs_poll says these events. */
void await_polled(int fd, int events);

/* Another process with the other end of an attached connection, which it has accepted, or with `connects` made.
 * Returns this process's end. */
int start_peer(struct peer *peer, bool connects, void (*body)(struct peer *self, int fd));
/* What it may do: sends back what it receives, until the end. */
void echo(struct peer *self, int fd);

/* main() of a process that connects to a port and sends back what it receives: by the C library's calls, or, if it
 * is to attach the connection, by those here. */
int run_echo(int port, bool attaches);

#endif
