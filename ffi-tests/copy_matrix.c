/*
 * Copies in both directions at once between two processes, with many call sizes, ring sizes and queue
 * sizes, both address families and both protocols. Every byte is compared when it arrives.
 *
 *   copy_matrix [--large] [NAME]...
 *
 * Prints one line for each case, and "N passed, N failed" at the end. --large moves 1 GiB in each
 * direction with the larger call sizes instead.
 */
#include "common.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB 1024u
#define MIB (1024u * 1024u)
#define GIB ((uint64_t)1 << 30)

/* A case that takes longer counts as hanging. */
#define LIMIT_S 60
#define LARGE_LIMIT_S 300

struct copy_case {
    char name[64];
    const char *host;
    size_t send_size, recv_size;
    struct settings settings;
    /* Bytes in each direction. */
    uint64_t length;
};

/* ---- both directions of one end -------------------------------------------------------------- */

struct direction {
    uint64_t done;
    size_t part;
    /* The peer has ended its direction. */
    bool ended;
};

/* Returns whether bytes moved. */
static bool send_step(struct fid_ep *ep, struct direction *out, const struct copy_case *one)
{
    size_t part = one->length - out->done < out->part ? (size_t)(one->length - out->done) : out->part;
    ssize_t took;

    if (out->ended)
        return false;
    if (part == 0) {
        CHECK_OK(fi_shutdown(ep, FI_SEND));
        out->ended = true;
        return true;
    }
    took = send_once(ep, pattern(out->done, part), part);
    if (took == -FI_EAGAIN)
        return false;
    CHECK_BETWEEN(took, 1, part);
    out->done += (uint64_t)took;
    return true;
}

static bool recv_step(struct fid_ep *ep, struct direction *in, const struct copy_case *one, uint8_t *buffer)
{
    ssize_t got;

    if (in->ended)
        return false;
    got = recv_once(ep, buffer, in->part);
    if (got == -FI_EAGAIN)
        return false;
    if (got == 0) {
        CHECK_INT(in->done, one->length);
        in->ended = true;
        return true;
    }
    CHECK_BETWEEN(got, 1, in->part);
    CHECK_BYTES(buffer, pattern(in->done, (size_t)got), (size_t)got);
    in->done += (uint64_t)got;
    return true;
}

/* Both directions of one end. Sleeps in poll when neither moves bytes. */
static void copy_both_ways(struct fid_ep *ep, const struct copy_case *one)
{
    struct direction out = {.part = one->send_size}, in = {.part = one->recv_size};
    struct pollfd poll_fd = {.fd = wait_fd(&ep->fid), .events = POLLIN};
    uint8_t *buffer = malloc(one->recv_size);

    CHECK(buffer != NULL);
    while (!out.ended || !in.ended) {
        bool moved = send_step(ep, &out, one);

        moved |= recv_step(ep, &in, one, buffer);
        if (!moved)
            CHECK_INT(CHECK_SYS(poll(&poll_fd, 1, PATIENCE_MS)), 1);
    }
    free(buffer);
}

static void serve(struct peer *self, void *argument)
{
    const struct copy_case *one = argument;
    struct side listener, server;
    struct event request;

    side_listen(&listener, one->host, &one->settings);
    peer_tell(self, fid_port(&listener.pep->fid));
    request = await_event(listener.eq, FI_CONNREQ);
    accept_request(&listener, &server, &request, NULL, 0);
    await_event(server.eq, FI_CONNECTED);
    copy_both_ways(server.ep, one);
    side_close(&server);
    side_close(&listener);
}

static void run_both_ends(struct copy_case *one)
{
    struct side client;
    struct peer peer;

    peer_start(&peer, serve, one);
    side_active(&client, one->host, (unsigned)peer_hear(&peer), &one->settings);
    CHECK_OK(fi_connect(client.ep, client.info->dest_addr, NULL, 0));
    await_event(client.eq, FI_CONNECTED);
    copy_both_ways(client.ep, one);
    side_close(&client);
    peer_join(&peer);
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct matrix {
    struct copy_case *cases;
    size_t count, room;
};

static struct copy_case *add(struct matrix *matrix, const char *group, size_t send_size, size_t recv_size)
{
    struct copy_case *one;
    size_t smaller = send_size < recv_size ? send_size : recv_size;

    if (matrix->count == matrix->room) {
        matrix->room = matrix->room ? 2 * matrix->room : 64;
        matrix->cases = realloc(matrix->cases, matrix->room * sizeof *matrix->cases);
        CHECK(matrix->cases != NULL);
    }
    one = &matrix->cases[matrix->count++];
    memset(one, 0, sizeof *one);
    one->host = IPV4;
    one->send_size = send_size;
    one->recv_size = recv_size;
    /* The cases take about the same time: some ten thousand calls, or some ten MiB. */
    one->length = (uint64_t)smaller * 20000;
    if (one->length > 48 * MIB)
        one->length = 48 * MIB;
    one->length += 12345 % (smaller + 1);
    snprintf(one->name, sizeof one->name, "%s-%zu-%zu", group, send_size, recv_size);
    return one;
}

/* Appends the case's own value to its name. */
static void extend_name(struct copy_case *one, const char *what, size_t value)
{
    size_t length = strlen(one->name);

    snprintf(one->name + length, sizeof one->name - length, "-%s%zu", what, value);
}

static void add_call_sizes(struct matrix *matrix)
{
    static const size_t sizes[] = {
        1, 2, 3, 7, 13, 64, 97, 509, 1024, 4093, 4096, 16381, 32768, 65521, 65536, 262139, MIB, 4 * MIB,
    };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        add(matrix, "ipv4", sizes[i], sizes[i]);
        add(matrix, "ipv6", sizes[i], sizes[i])->host = IPV6;
        add(matrix, "iwarp", sizes[i], sizes[i])->settings.protocol = FI_PROTO_IWARP;
    }
    add(matrix, "uneven", 1, 65536);
    add(matrix, "uneven", 65536, 13);
    add(matrix, "uneven", 4 * MIB, 997);
    add(matrix, "uneven", 1009, MIB);
}

static void add_ring_sizes(struct matrix *matrix)
{
    static const size_t rings[] = {4 * KIB, 5003, 32 * KIB, 65537, 262144, MIB - 1, MIB, 4 * MIB};
    static const size_t sizes[] = {997, 65536};

    for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct copy_case *one = add(matrix, "ring", sizes[s], sizes[s]);

            one->settings.send_ring = one->settings.recv_ring = rings[r];
            extend_name(one, "r", rings[r]);
            if (s == 1)
                one->settings.protocol = FI_PROTO_IWARP;
        }
    }
}

static void add_queue_sizes(struct matrix *matrix)
{
    static const size_t queues[] = {4, 5, 16, 61, 384, 512, 1024};
    static const size_t sizes[] = {31, 4096, 65536};

    for (size_t q = 0; q < sizeof queues / sizeof queues[0]; q++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct copy_case *one = add(matrix, "queue", sizes[s], sizes[s]);

            one->settings.tx_size = one->settings.rx_size = queues[q];
            extend_name(one, "q", queues[q]);
            if (s == 1)
                one->settings.protocol = FI_PROTO_IWARP;
        }
    }
}

/* A peer that grants many times the send ring: the ring is used again while TCP still holds its bytes. */
static void add_uneven_rings(struct matrix *matrix)
{
    static const size_t rings[] = {8 * KIB, 32 * KIB};

    for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
        struct copy_case *one = add(matrix, "reuse", 65536, 65536);

        one->settings.send_ring = rings[r];
        one->settings.recv_ring = MIB;
        one->length = 8 * MIB;
        extend_name(one, "r", rings[r]);
    }
}

static void add_large(struct matrix *matrix)
{
    static const size_t sizes[] = {65536, 262139, MIB, 4 * MIB};

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct copy_case *one = add(matrix, "large", sizes[s], sizes[s]);

        one->length = GIB;
        one->settings.send_ring = one->settings.recv_ring = MIB;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* Each case runs in its own process, so that a crash or a hang fails only this case. */
static bool run_case(struct copy_case *one, int limit)
{
    int64_t start = now_us(), took;
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = (pid_t)CHECK_SYS(fork());
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm((unsigned)limit);
        run_both_ends(one);
        exit(0);
    }
    CHECK_SYS(waitpid(pid, &status, 0));
    kill(-pid, SIGKILL);
    took = now_us() - start;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        printf("ok %-28s %10llu bytes each way %8.3f s %9.1f MB/s\n", one->name, (unsigned long long)one->length,
               (double)took / 1e6, 2 * (double)one->length / (double)took);
        return true;
    }
    printf("FAILED %s: %s\n", one->name,
           WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "a check did not hold, see above");
    return false;
}

static bool wanted(const struct copy_case *one, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], one->name) == 0)
            return true;
    return count == 0;
}

int main(int argc, char **argv)
{
    bool large = argc > 1 && strcmp(argv[1], "--large") == 0;
    int first = large ? 2 : 1;
    struct matrix matrix = {0};
    unsigned passed = 0, failed = 0;

    if (argc > first && argv[first][0] == '-') {
        fprintf(stderr, "usage: copy_matrix [--large] [NAME]...\n");
        return 2;
    }
    if (large) {
        add_large(&matrix);
    } else {
        add_call_sizes(&matrix);
        add_ring_sizes(&matrix);
        add_queue_sizes(&matrix);
        add_uneven_rings(&matrix);
    }
    for (size_t i = 0; i < matrix.count; i++) {
        if (!wanted(&matrix.cases[i], argv + first, argc - first))
            continue;
        if (run_case(&matrix.cases[i], large ? LARGE_LIMIT_S : LIMIT_S))
            passed++;
        else
            failed++;
    }
    free(matrix.cases);
    printf("%u passed, %u failed\n", passed, failed);
    return failed || passed == 0 ? 1 : 0;
}
