/* The parts that rstream and TCP have in common: try, sleep or spin, try again. */
#include "stream.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int complain(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("stream_copy: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return -1;
}

int stream_open(struct stream *stream, const struct stream_options *options)
{
    memset(stream, 0, sizeof *stream);
    stream->ops = options->tcp ? &tcp_ops : &rstream_ops;
    stream->spin = options->spin;
    stream->fd = -1;
    return stream->ops->open(stream, options);
}

/* Sleeps until the call that returned -EAGAIN may succeed. The endpoint's descriptor guarantees that
 * without fi_trywait. */
static int wait_for(struct stream *stream, short events)
{
    struct pollfd poll_fd = {.fd = stream->fd, .events = events};

    if (stream->spin)
        return 0;
    if (poll(&poll_fd, 1, -1) < 0 && errno != EINTR)
        return complain("poll: %s", strerror(errno));
    return 0;
}

int stream_send_all(struct stream *stream, const void *data, size_t length, size_t call)
{
    const uint8_t *next = data;

    while (length > 0) {
        ssize_t took = stream->ops->send(stream, next, length < call ? length : call);

        if (took == -EAGAIN) {
            if (wait_for(stream, stream->events_for_send))
                return -1;
        } else if (took < 0) {
            return complain("send: %s", stream->ops->error(took));
        } else {
            next += took;
            length -= (size_t)took;
        }
    }
    return 0;
}

ssize_t stream_recv_some(struct stream *stream, void *data, size_t length)
{
    for (;;) {
        ssize_t got = stream->ops->recv(stream, data, length);

        if (got >= 0)
            return got;
        if (got != -EAGAIN)
            return complain("receive: %s", stream->ops->error(got));
        if (wait_for(stream, POLLIN))
            return -1;
    }
}

int stream_recv_all(struct stream *stream, void *data, size_t length)
{
    uint8_t *next = data;

    while (length > 0) {
        ssize_t got = stream_recv_some(stream, next, length);

        if (got < 0)
            return -1;
        if (got == 0)
            return complain("the other side ended the stream early");
        next += got;
        length -= (size_t)got;
    }
    return 0;
}

int stream_end(struct stream *stream)
{
    int ret = stream->ops->end(stream);

    return ret < 0 ? complain("shutdown: %s", stream->ops->error(ret)) : 0;
}

void stream_close(struct stream *stream)
{
    stream->ops->close(stream);
}
