#include "traffic.h"

#define CALL_MOST 16384

uint64_t roll(struct stream *stream)
{
    stream->dice ^= stream->dice << 13;
    stream->dice ^= stream->dice >> 7;
    stream->dice ^= stream->dice << 17;
    return stream->dice;
}

/* A random size, from one byte to several ranges. */
static size_t call_size(struct stream *stream)
{
    static const uint64_t sizes[] = {1, 16, 300, 4096, CALL_MOST};

    return 1 + roll(stream) % sizes[roll(stream) % (sizeof sizes / sizeof sizes[0])];
}

/* The pattern offset of the bytes that the server or the client sends on a stream. */
static uint64_t content(const struct loop *loop, const struct stream *stream, bool from_server)
{
    return stream->number * 7919ULL + (from_server && !loop->plan->echo ? 500009 : 0);
}

bool is_complete(const struct stream *stream)
{
    return stream->sent == stream->total && stream->received == stream->total;
}

size_t receive_some(struct loop *loop, struct stream *stream)
{
    uint8_t bytes[CALL_MOST];
    ssize_t got = recv_once(stream->ep, bytes, call_size(stream));

    if (got == -FI_EAGAIN)
        return 0;
    CHECK_BETWEEN(got, 0, stream->total - stream->received);
    if (got == 0) {
        CHECK_INT(stream->received, stream->total);
        stream->met_end = true;
        return 0;
    }
    CHECK_BYTES(bytes, pattern(content(loop, stream, !loop_serves(loop)) + stream->received, (size_t)got),
                (size_t)got);
    stream->received += (size_t)got;
    return (size_t)got;
}

size_t send_some(struct loop *loop, struct stream *stream)
{
    uint64_t end = loop->plan->echo && loop_serves(loop) ? stream->received : stream->total;
    size_t size = call_size(stream), left = end - stream->sent;
    ssize_t took;

    if (left == 0)
        return 0;
    size = size < left ? size : left;
    took = send_once(stream->ep, pattern(content(loop, stream, loop_serves(loop)) + stream->sent, size), size);
    if (took == -FI_EAGAIN)
        return 0;
    CHECK_BETWEEN(took, 1, size);
    stream->sent += (size_t)took;
    return (size_t)took;
}
