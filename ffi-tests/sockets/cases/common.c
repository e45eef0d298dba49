/* Checks, bytes, waiting and threads. */
#include "cases.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* How long the tests wait for what has to come. */
#define PATIENCE_MS 10000

/* ---- checks -------------------------------------------------------------------------------------------- */

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

void check_int_at(const char *file, int line, const char *what, long long got, long long wanted)
{
    if (got != wanted)
        fail_at(file, line, "%s is %lld, should be %lld (%s)", what, got, wanted, strerror(errno));
}

void check_range_at(const char *file, int line, const char *what, long long got, long long least, long long most)
{
    if (got < least || got > most)
        fail_at(file, line, "%s is %lld, should be from %lld to %lld (%s)", what, got, least, most, strerror(errno));
}

void check_error_at(const char *file, int line, const char *what, long long got, int error, int wanted)
{
    if (got >= 0)
        fail_at(file, line, "%s returned %lld, should fail with %s", what, got, strerrorname_np(wanted));
    if (error != wanted)
        fail_at(file, line, "%s failed with %s, should with %s", what, strerrorname_np(error), strerrorname_np(wanted));
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static uint8_t value(uint64_t position)
{
    return (uint8_t)(position * 0x9e3779b97f4a7c15ULL >> 40);
}

void fill(void *bytes, uint64_t from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        ((uint8_t *)bytes)[i] = value(from + i);
}

void check_bytes_at(const char *file, int line, const void *bytes, uint64_t from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (((const uint8_t *)bytes)[i] != value(from + i))
            fail_at(file, line, "byte %zu of %zu is %u, should be %u", i, length, ((const uint8_t *)bytes)[i],
                    value(from + i));
}

#define PIECE 16384

void send_part(int fd, uint64_t from, size_t length)
{
    uint8_t bytes[PIECE];

    while (length > 0) {
        size_t piece = length < PIECE ? length : PIECE;

        fill(bytes, from, piece);
        CHECK_INT(send(fd, bytes, piece, MSG_NOSIGNAL), piece);
        from += piece;
        length -= piece;
    }
}

void receive_part(int fd, uint64_t from, size_t length)
{
    uint8_t bytes[PIECE];

    while (length > 0) {
        ssize_t got = recv(fd, bytes, length < PIECE ? length : PIECE, 0);

        CHECK(got > 0);
        CHECK_BYTES(bytes, from, (size_t)got);
        from += (size_t)got;
        length -= (size_t)got;
    }
}

size_t fill_up(int fd, uint64_t from)
{
    uint8_t bytes[PIECE];
    size_t sent = 0;

    /* What TCP holds grows until the peer's side has acknowledged all it can, which it may do 40 ms later. */
    for (unsigned idle = 0; idle < (is_loaded() ? 4 : 40);) {
        ssize_t now;

        fill(bytes, from + sent, sizeof bytes);
        now = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(now > 0 || errno == EAGAIN);
        sent += now > 0 ? (size_t)now : 0;
        idle = now > 0 ? 0 : idle + 1;
        if (now < 0)
            sleep_ms(2);
        CHECK(sent < 64 << 20);
    }
    return sent;
}

size_t receive_to_end(int fd, uint64_t from)
{
    uint8_t bytes[PIECE];
    size_t all = 0;
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        CHECK_BYTES(bytes, from + all, (size_t)got);
        all += (size_t)got;
    }
    CHECK_INT(got, 0);
    return all;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t busy_ms(void)
{
    struct rusage usage;

    CHECK_INT(getrusage(RUSAGE_SELF, &usage), 0);
    return (int64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

void sleep_ms(int ms)
{
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

void set_nonblocking(int fd, bool is)
{
    int flags = fcntl(fd, F_GETFL);

    CHECK_INT(fcntl(fd, F_SETFL, is ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), 0);
}

void set_limit(int fd, int option, int ms)
{
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};

    CHECK_INT(setsockopt(fd, SOL_SOCKET, option, &limit, sizeof limit), 0);
}

int poll_one(int fd, int events, int ms)
{
    struct pollfd polled = {fd, (short)events, 0};
    int found = poll(&polled, 1, ms);

    CHECK(found >= 0);
    CHECK_INT(found, polled.revents != 0);
    return polled.revents;
}

void await_events(int fd, int events)
{
    int64_t end = now_ms() + PATIENCE_MS;
    int found;

    while ((found = poll_one(fd, events, 0)) != events) {
        if (now_ms() > end)
            fail_at(__FILE__, __LINE__, "poll says 0x%x, should say 0x%x", (unsigned)found, (unsigned)events);
        sleep_ms(1);
    }
}

void await_unread(int fd, int bytes)
{
    int64_t end = now_ms() + PATIENCE_MS;
    int unread;

    for (;;) {
        CHECK_INT(ioctl(fd, FIONREAD, &unread), 0);
        if (unread == bytes)
            break;
        if (now_ms() > end)
            fail_at(__FILE__, __LINE__, "%d bytes are unread, should be %d", unread, bytes);
        sleep_ms(1);
    }
}

pid_t own_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* Whether the thread sleeps, or has ended. */
static bool is_asleep(pid_t thread)
{
    char path[64], line[512], *name_end;
    FILE *file;
    bool is_read;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)thread);
    file = fopen(path, "r");
    if (!file)
        return true;
    is_read = fgets(line, sizeof line, file);
    fclose(file);
    name_end = is_read ? strrchr(line, ')') : NULL;
    return !name_end || (name_end[1] == ' ' && name_end[2] == 'S');
}

void await_sleep(pid_t thread)
{
    int64_t end = now_ms() + PATIENCE_MS;

    /* Thrice, because it may sleep for a moment elsewhere. */
    for (unsigned times = 0; times < 3; times = is_asleep(thread) ? times + 1 : 0) {
        CHECK(now_ms() < end);
        sleep_ms(3);
    }
}

void await_value(const int *value, int least)
{
    int64_t end = now_ms() + PATIENCE_MS;

    while (__atomic_load_n(value, __ATOMIC_ACQUIRE) < least) {
        CHECK(now_ms() < end);
        sleep_ms(1);
    }
}

static void *run_caller(void *argument)
{
    struct caller *caller = argument;

    __atomic_store_n(&caller->thread, own_thread(), __ATOMIC_RELEASE);
    caller->returned = caller->call(caller->argument);
    caller->error = errno;
    __atomic_store_n(&caller->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

void start_caller(struct caller *caller, ssize_t (*call)(void *), void *argument)
{
    *caller = (struct caller){.call = call, .argument = argument};
    CHECK_INT(pthread_create(&caller->pthread, NULL, run_caller, caller), 0);
    await_value((int *)&caller->thread, 1);
    await_sleep(caller->thread);
    CHECK(!__atomic_load_n(&caller->done, __ATOMIC_ACQUIRE));
}

void join_caller(struct caller *caller)
{
    struct timespec end;
    void *returned;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_MS / 1000;
    if (pthread_timedjoin_np(caller->pthread, &returned, &end) != 0)
        fail_at(__FILE__, __LINE__, "the thread still waits in its call");
    if (returned == PTHREAD_CANCELED)
        caller->returned = -2;
}

volatile int signals;

static void count_signal(int signal)
{
    (void)signal;
    signals++;
}

void count_signals(int signal, int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};

    CHECK_INT(sigaction(signal, &action, NULL), 0);
}
