/*
 * A byte stream to one other process, over rstream or plain TCP. The same code copies over both, so that
 * the two can be compared.
 *
 * Functions that return an int return 0, or -1 after they have printed an error.
 */
#ifndef STREAM_COPY_STREAM_H
#define STREAM_COPY_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The options of the command line. 0 or NULL stands for the default. */
struct stream_options {
    const char *host;
    const char *port;
    bool passive;
    bool tcp;
    /* NULL: the first one that reaches the host. */
    const char *fabric;
    bool iwarp;
    bool spin;
    size_t send_ring, recv_ring;
    size_t queue_size;
};

struct stream;

struct stream_ops {
    /* Listens or connects until the connection is established. */
    int (*open)(struct stream *stream, const struct stream_options *options);
    /* Bytes moved (0 from recv: end of stream), -EAGAIN, or another negative errno. */
    ssize_t (*send)(struct stream *stream, const void *data, size_t length);
    ssize_t (*recv)(struct stream *stream, void *data, size_t length);
    /* Ends the sending direction. Returns a negative errno if that fails. */
    int (*end)(struct stream *stream);
    /* The text of an error that the others returned. */
    const char *(*error)(ssize_t ret);
    void (*close)(struct stream *stream);
};

struct stream {
    const struct stream_ops *ops;
    bool spin;
    /* The descriptor to sleep on after -EAGAIN. */
    int fd;
    /* The events for poll(2). An rstream descriptor becomes readable for either direction. */
    short events_for_send;
    void *state;
};

extern const struct stream_ops rstream_ops;
extern const struct stream_ops tcp_ops;

int stream_open(struct stream *stream, const struct stream_options *options);
/* Sends everything, in calls of at most `call` bytes. */
int stream_send_all(struct stream *stream, const void *data, size_t length, size_t call);
/* Receives at least one byte. Returns 0 at the end of the stream, -1 after an error. */
ssize_t stream_recv_some(struct stream *stream, void *data, size_t length);
/* Receives exactly this many bytes. An early end is an error. */
int stream_recv_all(struct stream *stream, void *data, size_t length);
int stream_end(struct stream *stream);
void stream_close(struct stream *stream);

/* Prints "stream_copy: ..." on standard error, and returns -1. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
