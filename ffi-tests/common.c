/* Checks, time, content, peers in other processes, and plain sockets. */
#include "common.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- checks ------------------------------------------------------------------------------- */

void fail_at(const char *file, int line, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    fflush(NULL);
    _exit(1);
}

void skip(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    fflush(NULL);
    _exit(EXIT_SKIPPED);
}

void check_int_at(const char *file, int line, const char *what, long long got, long long wanted)
{
    if (got != wanted)
        fail_at(file, line, "%s is %lld, should be %lld", what, got, wanted);
}

void check_range_at(const char *file, int line, const char *what, long long got, long long least, long long most)
{
    if (got < least)
        fail_at(file, line, "%s is %lld, should be at least %lld", what, got, least);
    if (got > most)
        fail_at(file, line, "%s is %lld, should be at most %lld", what, got, most);
}

/* Formats a count, or an error with its text. */
static const char *describe(long long value, char *text, size_t size)
{
    if (value < 0)
        snprintf(text, size, "%lld (%s)", value, fi_strerror((int)-value));
    else
        snprintf(text, size, "%lld", value);
    return text;
}

void check_ret_at(const char *file, int line, const char *what, long long got, long long wanted)
{
    char got_text[128], wanted_text[128];

    if (got != wanted)
        fail_at(file, line, "%s answered %s, should be %s", what, describe(got, got_text, sizeof got_text),
                describe(wanted, wanted_text, sizeof wanted_text));
}

long check_sys_at(const char *file, int line, const char *what, long got)
{
    if (got < 0)
        fail_at(file, line, "%s: %s", what, strerror(errno));
    return got;
}

void check_bytes_at(const char *file, int line, const char *what, const void *got, const void *wanted, size_t length)
{
    const uint8_t *a = got, *b = wanted;

    if (length == 0 || memcmp(a, b, length) == 0)
        return;
    for (size_t i = 0; i < length; i++)
        if (a[i] != b[i])
            fail_at(file, line, "%s: byte %zu of %zu is 0x%02x, should be 0x%02x", what, i, length, a[i], b[i]);
}

/* ---- resources of a process ------------------------------------------------------------------ */

size_t open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    CHECK(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    /* Not counted: the descriptor of the folder itself, and the entries "." and "..". */
    return count - 3;
}

size_t heap_in_use(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

int64_t cpu_ms(void)
{
    struct rusage usage;

    CHECK_SYS(getrusage(RUSAGE_SELF, &usage));
    return (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* ---- time --------------------------------------------------------------------------------- */

int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t now_ms(void)
{
    return now_us() / 1000;
}

void sleep_ms(int ms)
{
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* ---- content ------------------------------------------------------------------------------ */

/* A prime, so that it is no multiple of a ring, call or segment size: bytes that are shifted by such a
 * size differ from the pattern. */
#define PATTERN_PERIOD 1048583

static uint8_t pattern_bytes[PATTERN_PERIOD + PATTERN_MAX];

static void make_pattern(void)
{
    uint64_t state = 0x9e3779b97f4a7c15;

    for (size_t i = 0; i < PATTERN_PERIOD; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pattern_bytes[i] = (uint8_t)(state >> 32);
    }
    for (size_t i = PATTERN_PERIOD; i < sizeof pattern_bytes; i++)
        pattern_bytes[i] = pattern_bytes[i - PATTERN_PERIOD];
}

const uint8_t *pattern(uint64_t offset, size_t length)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_pattern);
    CHECK(length <= PATTERN_MAX);
    return pattern_bytes + offset % PATTERN_PERIOD;
}

/* ---- other processes ---------------------------------------------------------------------- */

void peer_start(struct peer *peer, void (*body)(struct peer *self, void *argument), void *argument)
{
    int down[2], up[2];
    pid_t parent = getpid();

    CHECK_SYS(pipe(down));
    CHECK_SYS(pipe(up));
    fflush(NULL);
    peer->pid = (pid_t)CHECK_SYS(fork());
    if (peer->pid == 0) {
        struct peer self = {parent, up[1], down[0]};

        CHECK_SYS(prctl(PR_SET_PDEATHSIG, SIGKILL));
        if (getppid() != parent)
            _exit(1);
        close(down[1]);
        close(up[0]);
        body(&self, argument);
        exit(0);
    }
    close(down[0]);
    close(up[1]);
    peer->to_peer = down[1];
    peer->from_peer = up[0];
}

void peer_tell(struct peer *peer, uint64_t number)
{
    CHECK_INT(CHECK_SYS(write(peer->to_peer, &number, sizeof number)), sizeof number);
}

uint64_t peer_hear(struct peer *peer)
{
    uint64_t number = 0;
    ssize_t got;

    do
        got = read(peer->from_peer, &number, sizeof number);
    while (got < 0 && errno == EINTR);
    if (got != sizeof number)
        fail_at(__FILE__, __LINE__, "process %d ended without saying what it should", (int)peer->pid);
    return number;
}

static int peer_wait(struct peer *peer)
{
    int status = 0;

    close(peer->to_peer);
    close(peer->from_peer);
    CHECK_INT(CHECK_SYS(waitpid(peer->pid, &status, 0)), peer->pid);
    return status;
}

void peer_join(struct peer *peer)
{
    int status = peer_wait(peer);

    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_at(__FILE__, __LINE__, "the other process ended with wait status 0x%x", status);
}

void peer_gone(const struct peer *peer)
{
    siginfo_t info;

    CHECK_SYS(waitid(P_PID, (id_t)peer->pid, &info, WEXITED | WNOWAIT));
}

void peer_kill(struct peer *peer)
{
    CHECK_SYS(kill(peer->pid, SIGKILL));
    CHECK(WIFSIGNALED(peer_wait(peer)));
}

/* ---- addresses and devices of the tests ----------------------------------------------------- */

static const char *setting(const char *name, const char *standard)
{
    const char *value = getenv(name);

    return value && *value ? value : standard;
}

const char *ipv4(void)
{
    return setting("TEST_IPV4", "127.0.0.1");
}

const char *ipv6(void)
{
    return setting("TEST_IPV6", "::1");
}

struct sockaddr_in ipv4_address(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    CHECK_INT(inet_pton(AF_INET, ipv4(), &address.sin_addr), 1);
    return address;
}

bool on_rdma_device(void)
{
    return getenv("TEST_IPV4") != NULL;
}

size_t share_of(size_t whole)
{
    return on_rdma_device() ? whole / 4 : whole;
}

void needs_embedded_device(void)
{
    if (on_rdma_device())
        skip("about the embedded device");
}

void needs_rdma_device(void)
{
    if (!on_rdma_device())
        skip("about RDMA devices");
    if (!getenv("TEST_FAULT"))
        skip("TEST_FAULT names no command that lets something befall the device");
}

void *other_driver(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);

    needs_rdma_device();
    if (found == NULL)
        skip("other_driver.so is not preloaded");
    return found;
}

/* A process that repairs the device when its input ends. It outlives this process. */
static FILE *mender;

void fault(const char *what)
{
    char command[256];

    if (mender == NULL)
        mender = popen("exec setsid sh -c 'read line; exec $TEST_FAULT mend'", "we");
    CHECK(mender != NULL);
    snprintf(command, sizeof command, "$TEST_FAULT %s", what);
    CHECK_INT(system(command), 0);
}

void mend(void)
{
    CHECK_INT(pclose(mender), 0);
    mender = NULL;
}

static void loopback(const char *state)
{
    char command[64];

    snprintf(command, sizeof command, "ip link set lo %s", state);
    if (system(command) != 0)
        skip("%s does not work", command);
}

void own_network(void)
{
    if (unshare(CLONE_NEWNET) != 0)
        skip("no network namespace of its own: %s", strerror(errno));
    loopback("up");
}

void partable_hosts(void)
{
    setenv("FI_RSTREAM_KEEPALIVE_S", "1", 1);
    if (on_rdma_device())
        needs_rdma_device();
    else
        own_network();
}

void part_hosts(void)
{
    if (on_rdma_device())
        fault("drop");
    else
        loopback("down");
}

void join_hosts(void)
{
    if (on_rdma_device())
        mend();
}

/* ---- plain sockets ------------------------------------------------------------------------ */

int tcp_listen(unsigned *port)
{
    struct sockaddr_in address = ipv4_address(0);
    socklen_t length = sizeof address;
    int fd = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));

    CHECK_SYS(bind(fd, (struct sockaddr *)&address, length));
    CHECK_SYS(listen(fd, 16));
    CHECK_SYS(getsockname(fd, (struct sockaddr *)&address, &length));
    *port = ntohs(address.sin_port);
    return fd;
}

int tcp_connect(unsigned port)
{
    struct sockaddr_in address = ipv4_address(0);
    int fd = (int)CHECK_SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));

    address.sin_port = htons((uint16_t)port);
    CHECK_SYS(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

int tcp_accept(int fd)
{
    int64_t until = now_ms() + PATIENCE_MS;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    needs_embedded_device();
    do {
        CHECK(now_ms() < until);
        drive();
    } while (poll(&poll_fd, 1, 1) <= 0);
    return (int)CHECK_SYS(accept(fd, NULL, NULL));
}

ssize_t tcp_read_to_end(int fd, void *data, size_t size, int ms)
{
    int64_t until = now_ms() + ms;
    size_t length = 0;

    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint8_t overflow[256];
        bool room = length < size;
        ssize_t got;

        if (now_ms() > until)
            return -1;
        drive();
        if (poll(&poll_fd, 1, 1) <= 0)
            continue;
        got = room ? recv(fd, (uint8_t *)data + length, size - length, 0) : recv(fd, overflow, sizeof overflow, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return (ssize_t)length;
        if (room)
            length += (size_t)CHECK_SYS(got);
    }
}

bool readable(int fd, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    return CHECK_SYS(poll(&poll_fd, 1, ms)) == 1;
}

int capture_errors(void)
{
    int ends[2];

    CHECK_SYS(pipe(ends));
    CHECK_SYS(dup2(ends[1], STDERR_FILENO));
    close(ends[1]);
    return ends[0];
}

void end_capture(int errors, char *text, size_t size)
{
    ssize_t length = 0;

    if (readable(errors, 0))
        length = CHECK_SYS(read(errors, text, size - 1));
    text[length] = '\0';
    dup2(STDOUT_FILENO, STDERR_FILENO);
    close(errors);
}

void check_logged(int errors, const char *words)
{
    char text[65536];

    end_capture(errors, text, sizeof text);
    if (!strstr(text, words))
        fail_at(__FILE__, __LINE__, "\"%s\" is not in: %s", words, text);
}

unsigned count_words(const char *text, const char *words)
{
    unsigned count = 0;

    while ((text = strstr(text, words)) != NULL) {
        text++;
        count++;
    }
    return count;
}
