/* Copies a file or standard input to another process or host, over rstream or plain TCP. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "copy.h"

#define DEFAULT_PORT "7471"
#define DEFAULT_CALL 65536

static const char usage_text[] =
    "usage: stream_copy recv [options] [-a ADDRESS] [-o FILE]\n"
    "       stream_copy send [options] HOST [FILE]\n"
    "Copies FILE, or standard input, to another process or host. The receiver writes to FILE, or to\n"
    "standard output; a file appears under its name only when it is complete. The sender fails unless\n"
    "the receiver's checksum is its own.\n"
    "  -p PORT     port (" DEFAULT_PORT "); 0 lets the receiver choose one, which it tells\n"
    "  -a ADDRESS  address to receive on (0.0.0.0)\n"
    "  -o FILE     where to write what is received\n"
    "  -t          plain TCP instead of rstream, for comparison\n"
    "  -F NAME     fabric: ibv (RDMA devices) or iwarp (embedded); the first that leads there\n"
    "  -P NAME     protocol: rstream or iwarp (rstream)\n"
    "  -b BYTES    most bytes in a call (65536); k, m and g multiply\n"
    "  -S BYTES    send ring, with -t the socket's send buffer\n"
    "  -R BYTES    receive ring, with -t the socket's receive buffer\n"
    "  -Q ENTRIES  queue sizes\n"
    "  -s          spin instead of sleeping in poll()\n"
    "  -q          no progress display\n"
    "rstream is found by libfabric: FI_PROVIDER_PATH names the folder of librstream_fi.so.\n";

struct arguments {
    struct stream_options stream;
    const char *file;
    size_t call;
    bool quiet;
};

/* Parses a positive number with an optional k, m or g. Returns 0 if it is invalid. */
static size_t parse_size(const char *text)
{
    char *end;
    unsigned long long value;
    unsigned shift = 0;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (*end == 'k' || *end == 'K')
        shift = 10;
    else if (*end == 'm' || *end == 'M')
        shift = 20;
    else if (*end == 'g' || *end == 'G')
        shift = 30;
    if (errno || end[shift ? 1 : 0] != '\0' || value > SIZE_MAX >> shift)
        return 0;
    return (size_t)value << shift;
}

static int parse_size_option(int option, const char *text, size_t *value)
{
    *value = parse_size(text);
    return *value ? 0 : complain("-%c %s is not a size", option, text);
}

static int parse_option(struct arguments *arguments, int option, const char *value)
{
    struct stream_options *stream = &arguments->stream;

    switch (option) {
    case 'p':
        stream->port = value;
        return 0;
    case 'a':
        stream->host = value;
        return stream->passive ? 0 : complain("-a is for receiving");
    case 'o':
        arguments->file = value;
        return stream->passive ? 0 : complain("-o is for receiving");
    case 't':
        stream->tcp = true;
        return 0;
    case 'F':
        stream->fabric = value;
        return 0;
    case 'P':
        stream->iwarp = strcmp(value, "iwarp") == 0;
        return stream->iwarp || strcmp(value, "rstream") == 0 ? 0 : complain("-P %s is neither rstream nor iwarp", value);
    case 'b':
        return parse_size_option(option, value, &arguments->call);
    case 'S':
        return parse_size_option(option, value, &stream->send_ring);
    case 'R':
        return parse_size_option(option, value, &stream->recv_ring);
    case 'Q':
        return parse_size_option(option, value, &stream->queue_size);
    case 's':
        stream->spin = true;
        return 0;
    case 'q':
        arguments->quiet = true;
        return 0;
    default:
        return -1;
    }
}

static int parse(struct arguments *arguments, int argc, char **argv)
{
    int option;

    if (argc < 2 || (strcmp(argv[1], "recv") != 0 && strcmp(argv[1], "send") != 0))
        return -1;
    arguments->call = DEFAULT_CALL;
    arguments->stream.port = DEFAULT_PORT;
    arguments->stream.passive = strcmp(argv[1], "recv") == 0;
    arguments->stream.host = arguments->stream.passive ? "0.0.0.0" : NULL;
    argc--;
    argv++;
    /* GNU getopt accepts options after HOST too. */
    while ((option = getopt(argc, argv, "p:a:o:tF:P:b:S:R:Q:sqh")) != -1)
        if (parse_option(arguments, option, optarg))
            return -1;
    argc -= optind;
    argv += optind;
    if (arguments->stream.passive)
        return argc == 0 ? 0 : -1;
    if (argc < 1 || argc > 2)
        return -1;
    arguments->stream.host = argv[0];
    arguments->file = argc > 1 ? argv[1] : NULL;
    return 0;
}

static int run_send(const struct arguments *arguments)
{
    bool standard = !arguments->file || strcmp(arguments->file, "-") == 0;
    const char *name = standard ? "standard input" : arguments->file;
    struct stream stream;
    int input = standard ? STDIN_FILENO : open(arguments->file, O_RDONLY | O_CLOEXEC), ret;

    if (input < 0)
        return complain("%s: %s", name, strerror(errno));
    ret = stream_open(&stream, &arguments->stream);
    if (ret == 0)
        ret = send_copy(&stream, input, name, arguments->call, arguments->quiet);
    stream_close(&stream);
    close(input);
    return ret;
}

static int run_recv(const struct arguments *arguments)
{
    struct stream stream;
    struct output output;
    int ret;

    if (!arguments->file && isatty(STDOUT_FILENO))
        return complain("standard output is a terminal; -o names a file");
    if (output_open(&output, arguments->file))
        return -1;
    ret = stream_open(&stream, &arguments->stream);
    if (ret == 0)
        ret = recv_copy(&stream, &output, arguments->call, arguments->quiet);
    stream_close(&stream);
    output_close(&output);
    return ret;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {0};

    if (parse(&arguments, argc, argv)) {
        fputs(usage_text, stderr);
        return 2;
    }
    return (arguments.stream.passive ? run_recv(&arguments) : run_send(&arguments)) ? 1 : 0;
}
