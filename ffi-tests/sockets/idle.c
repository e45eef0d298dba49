/*
 * Many connections between two processes that were used, and then are idle: what memory they take, and whether
 * anything wakes.
 *
 *   idle COUNT
 *
 * COUNT descriptors are open in each of the two. Under rstream-run, all of them have to be upgraded.
 */
#include <arpa/inet.h>
#include <errno.h>
/* The C library's `struct tcp_info` ends before the counts of bytes. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s, line %d: %s does not hold (%s)\n", side, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* ROUNDS: a connection is upgraded after the first. MOST_KIB: of an upgraded one, in each process. */
enum { ROUNDS = 16, IDLE_MS = 3000, MOST_KIB = 16, MOST_BUSY_MS = 20 };

static const char *side = "acceptor";

/* Each side's end of a pair, by which they meet. */
static int other;

static void meet(void)
{
    CHECK(write(other, "x", 1) == 1 && read(other, &(char){0}, 1) == 1);
}

/* Resident memory, shared memory included. */
static long resident_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");

    CHECK(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmRSS: %ld", &kib);
    fclose(status);
    return kib;
}

/* The kernel's count of what a socket has sent. */
static unsigned long long sent_by_kernel(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    return info.tcpi_bytes_sent;
}

/* A message there and back on each. */
static void round_trip(const int *fds, int count, bool first)
{
    char bytes[100] = {0};

    for (int phase = 0; phase < 2; phase++)
        for (int i = 0; i < count; i++)
            if ((phase == 0) == first)
                CHECK(send(fds[i], bytes, sizeof bytes, 0) == sizeof bytes);
            else
                CHECK(recv(fds[i], bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
}

static long busy_ms(const struct rusage *usage)
{
    return (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000 +
           (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1000;
}

/* Waits for all of them, which are idle. */
static void wait_in_vain(const int *fds, int count)
{
    struct rusage before, after;
    struct epoll_event event;
    int set = epoll_create1(0);

    CHECK(set >= 0);
    for (int i = 0; i < count; i++) {
        event = (struct epoll_event){.events = EPOLLIN, .data.fd = fds[i]};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    /* The first wait may have to tell the peers that it sleeps. */
    CHECK(epoll_wait(set, &event, 1, 100) == 0);
    meet();
    getrusage(RUSAGE_SELF, &before);
    CHECK(epoll_wait(set, &event, 1, IDLE_MS) == 0);
    getrusage(RUSAGE_SELF, &after);
    printf("%s: %ld sleeps and %ld ms of processor time in %d ms\n", side, after.ru_nvcsw - before.ru_nvcsw,
           busy_ms(&after) - busy_ms(&before), IDLE_MS);
    CHECK(after.ru_nvcsw - before.ru_nvcsw <= 2);
    CHECK(busy_ms(&after) - busy_ms(&before) <= MOST_BUSY_MS);
    close(set);
    meet();
}

static void use(const int *fds, int count, bool first, long before)
{
    unsigned long long known;
    bool is_loaded = getenv("LD_PRELOAD") != NULL;
    double each;

    for (int round = 0; round < ROUNDS; round++)
        round_trip(fds, count, first);
    each = (double)(resident_kib() - before) / count;
    for (int i = 0; i < count; i++) {
        known = sent_by_kernel(fds[i]);
        round_trip(fds + i, 1, first);
        /* Nothing, or a bell. */
        CHECK((sent_by_kernel(fds[i]) - known < 100) == is_loaded);
    }
    printf("%s: %d connections, %.1f KiB each\n", side, count, each);
    CHECK(each <= MOST_KIB);
    wait_in_vain(fds, count);
    round_trip(fds, count, first);
}

int main(int argc, char **argv)
{
    int count = argc == 2 ? atoi(argv[1]) : 0, listener, status, pair[2];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int *fds;
    long before;
    pid_t child;

    if (count < 1)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK((fds = calloc((size_t)count, sizeof *fds)) != NULL);
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, SOMAXCONN) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK((child = fork()) >= 0);
    if (child == 0)
        side = "connector";
    other = pair[child == 0];
    before = resident_kib();
    for (int i = 0; i < count; i++)
        if (child == 0) {
            CHECK((fds[i] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
            CHECK(connect(fds[i], (struct sockaddr *)&address, length) == 0);
        } else {
            CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
        }
    use(fds, count, child == 0, before);
    if (child == 0)
        return 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("1 passed, 0 failed");
    return 0;
}
