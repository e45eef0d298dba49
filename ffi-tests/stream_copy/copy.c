#include "copy.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checksum.h"
#include "progress.h"

#define HEADER_MAGIC "RSCOPY01"
#define ANSWER_MAGIC "RSCOPYOK"
#define MAGIC_LENGTH 8

struct header {
    char magic[MAGIC_LENGTH];
    uint64_t length;
};

struct trailer {
    uint64_t no_more;
    uint64_t checksum;
};

struct answer {
    char magic[MAGIC_LENGTH];
    uint64_t length;
    uint64_t checksum;
};

/* Most bytes of a frame, unless one call has more. */
#define FRAME_SIZE ((size_t)1 << 20)

static void *allocate(size_t size)
{
    void *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

    if (!memory)
        complain("out of memory for a buffer of %zu bytes", size);
    return memory;
}

/* Prints to the given file, since standard output may carry the copy itself. */
static void report(FILE *to, const char *verb, const struct checksum *sum, double seconds)
{
    double rate = seconds > 0 ? (double)sum->total / seconds : 0;

    fprintf(to, "%s %" PRIu64 " bytes in %.3f s, %.1f MB/s (%.2f Gb/s), checksum %016" PRIx64 "\n", verb, sum->total,
            seconds, rate / 1e6, rate * 8 / 1e9, checksum_value(sum));
    fflush(to);
}

static uint64_t input_length(int input)
{
    struct stat status;

    return fstat(input, &status) == 0 && S_ISREG(status.st_mode) ? (uint64_t)status.st_size : LENGTH_UNKNOWN;
}

static int send_frames(struct stream *stream, int input, const char *name, size_t call, struct checksum *sum,
                       struct progress *progress)
{
    size_t size = call > FRAME_SIZE ? call : FRAME_SIZE;
    uint8_t *frame = allocate(sizeof(uint64_t) + size);
    int ret = frame ? 0 : -1;

    while (ret == 0) {
        ssize_t got = read(input, frame + sizeof(uint64_t), size);
        uint64_t length = htobe64((uint64_t)got);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            ret = complain("%s: %s", name, strerror(errno));
        if (got <= 0)
            break;
        memcpy(frame, &length, sizeof length);
        ret = stream_send_all(stream, frame, sizeof length + (size_t)got, call);
        checksum_add(sum, frame + sizeof length, (size_t)got);
        progress_update(progress, sum->total);
    }
    free(frame);
    return ret;
}

/* Sends the end of the copy and the checksum. */
static int send_end(struct stream *stream, const struct checksum *sum)
{
    struct trailer trailer = {0, htobe64(checksum_value(sum))};

    return stream_send_all(stream, &trailer, sizeof trailer, sizeof trailer) || stream_end(stream) ? -1 : 0;
}

int send_copy(struct stream *stream, int input, const char *name, size_t call, bool quiet)
{
    uint64_t length = input_length(input);
    struct header header = {HEADER_MAGIC, htobe64(length)};
    struct answer answer;
    struct progress progress;
    struct checksum sum;
    double seconds;
    int ret;

    checksum_init(&sum);
    progress_start(&progress, length, quiet);
    ret = stream_send_all(stream, &header, sizeof header, sizeof header);
    if (ret == 0)
        ret = send_frames(stream, input, name, call, &sum, &progress);
    if (ret == 0)
        ret = send_end(stream, &sum);
    if (ret == 0)
        ret = stream_recv_all(stream, &answer, sizeof answer);
    seconds = progress_finish(&progress);
    if (ret)
        return -1;
    report(stdout, "sent", &sum, seconds);
    if (memcmp(answer.magic, ANSWER_MAGIC, MAGIC_LENGTH) != 0)
        return complain("the other side answered with something else than stream_copy's answer");
    if (be64toh(answer.length) != sum.total || be64toh(answer.checksum) != checksum_value(&sum))
        return complain("the copy differs: sent %" PRIu64 " bytes with checksum %016" PRIx64 ", received %" PRIu64
                        " bytes with checksum %016" PRIx64, sum.total, checksum_value(&sum), be64toh(answer.length),
                        be64toh(answer.checksum));
    return 0;
}

/* Receives the bytes of one frame. */
static int recv_frame(struct stream *stream, struct output *output, uint64_t length, uint8_t *buffer, size_t call,
                      struct checksum *sum)
{
    while (length > 0) {
        ssize_t got = stream_recv_some(stream, buffer, length < call ? (size_t)length : call);

        if (got < 0)
            return -1;
        if (got == 0)
            return complain("the other side ended before everything came");
        checksum_add(sum, buffer, (size_t)got);
        if (output_write(output, buffer, (size_t)got))
            return -1;
        length -= (uint64_t)got;
    }
    return 0;
}

/* Receives all frames and the sender's checksum. */
static int recv_frames(struct stream *stream, struct output *output, size_t call, struct checksum *sum,
                       struct progress *progress, uint64_t *checksum)
{
    uint8_t *buffer = allocate(call);
    uint64_t length = 1;
    int ret = buffer ? 0 : -1;

    while (ret == 0 && length != 0) {
        ret = stream_recv_all(stream, &length, sizeof length);
        if (ret == 0)
            ret = recv_frame(stream, output, be64toh(length), buffer, call, sum);
        progress_update(progress, sum->total);
    }
    if (ret == 0)
        ret = stream_recv_all(stream, checksum, sizeof *checksum);
    *checksum = be64toh(*checksum);
    free(buffer);
    return ret;
}

/* Standard error if the copy itself goes to standard output. */
static FILE *report_file(const struct output *output)
{
    return strcmp(output->path, "-") == 0 ? stderr : stdout;
}

int recv_copy(struct stream *stream, struct output *output, size_t call, bool quiet)
{
    struct header header;
    struct answer answer = {ANSWER_MAGIC, 0, 0};
    struct progress progress;
    struct checksum sum;
    uint64_t length, checksum = 0;
    double seconds;
    int ret;

    if (stream_recv_all(stream, &header, sizeof header))
        return -1;
    if (memcmp(header.magic, HEADER_MAGIC, MAGIC_LENGTH) != 0)
        return complain("the other side is not a stream_copy of this version");
    length = be64toh(header.length);
    checksum_init(&sum);
    progress_start(&progress, length, quiet);
    ret = recv_frames(stream, output, call, &sum, &progress, &checksum);
    seconds = progress_finish(&progress);
    if (ret)
        return -1;
    report(report_file(output), "received", &sum, seconds);
    /* If the file grew or shrank while it was sent, the copy is not valid. */
    if (length != LENGTH_UNKNOWN && length != sum.total)
        return complain("%" PRIu64 " bytes came instead of %" PRIu64, sum.total, length);
    if (checksum != checksum_value(&sum))
        return complain("the copy differs: the sender's checksum is %016" PRIx64, checksum);
    if (output_commit(output))
        return -1;
    answer.length = htobe64(sum.total);
    answer.checksum = htobe64(checksum_value(&sum));
    if (stream_send_all(stream, &answer, sizeof answer, sizeof answer))
        return -1;
    return stream_end(stream);
}
