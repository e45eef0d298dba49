/*
 * Named tests of what programs see of TCP sockets. Each passes over plain TCP, which is its proof, and has to
 * pass with the preload library.
 */
#ifndef RSTREAM_CASES_H
#define RSTREAM_CASES_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* ---- tests --------------------------------------------------------------------------------------------- */

/* Each test runs in its own process, and fails if it does not end by returning within some seconds. */
void add_test(const char *name, const char *kind, void (*run)(const void *kind), const void *argument);

#define TEST(function)                                                                              \
    static void function(void);                                                                     \
    static void run_##function(const void *kind) { (void)kind; function(); }                        \
    __attribute__((constructor)) static void add_##function(void)                                   \
    {                                                                                               \
        add_test(#function, NULL, run_##function, NULL);                                            \
    }                                                                                               \
    static void function(void)

/* A test for each entry of a table, whose entries begin with their names: `function.name`. */
#define FAMILY(function, table)                                                                     \
    static void function(const typeof(*(table)) *kind);                                             \
    static void run_##function(const void *kind) { function(kind); }                                \
    __attribute__((constructor)) static void add_##function(void)                                   \
    {                                                                                               \
        for (size_t i = 0; i < sizeof (table) / sizeof *(table); i++)                               \
            add_test(#function, *(const char *const *)&(table)[i], run_##function, &(table)[i]);    \
    }                                                                                               \
    static void function(const typeof(*(table)) *kind)

/* The same test in different ways. */
struct way {
    const char *name;
    int number;
};

/* ---- checks -------------------------------------------------------------------------------------------- */

_Noreturn void fail_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void check_int_at(const char *file, int line, const char *what, long long got, long long wanted);
void check_range_at(const char *file, int line, const char *what, long long got, long long least, long long most);
void check_error_at(const char *file, int line, const char *what, long long got, int error, int wanted);

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition))                                                                           \
            fail_at(__FILE__, __LINE__, "%s does not hold (%s)", #condition, strerror(errno));      \
    } while (0)
#define CHECK_INT(got, wanted) check_int_at(__FILE__, __LINE__, #got, (long long)(got), (long long)(wanted))
#define CHECK_RANGE(got, least, most) \
    check_range_at(__FILE__, __LINE__, #got, (long long)(got), (long long)(least), (long long)(most))
/* The call returns -1, and leaves this error number. */
#define CHECK_ERROR(call, wanted)                                                                   \
    do {                                                                                            \
        long long answer_ = (long long)(call);                                                      \
        check_error_at(__FILE__, __LINE__, #call, answer_, errno, wanted);                          \
    } while (0)

/* ---- connections --------------------------------------------------------------------------------------- */

/* Whether the library is loaded. */
bool is_loaded(void);
/* Bytes that the kernel has received on this connection. */
uint64_t kernel_received(int fd);

/* A listening socket of the loopback interface, and its port. */
int open_listener(unsigned *port);
int connect_to(unsigned port);
/* A new connection of this process with itself: the end that connected, and the one that was accepted. */
void open_fresh(int ends[2]);
/* Exchanges bytes until both directions of the connection are upgraded, if the library is loaded. */
void upgrade(int ends[2]);
/* Both. */
void open_pair(int ends[2]);
void close_pair(int ends[2]);

/* Another process with the other end of a connection. */
struct peer {
    pid_t pid;
    int to, from;
};

/* Starts it, and returns this process's end of an upgraded connection. `connects`: this process connects. */
int start_peer(struct peer *peer, bool connects, void (*body)(struct peer *self, int fd));
/* The same with a connection that was not used yet. */
int start_fresh_peer(struct peer *peer, bool connects, void (*body)(struct peer *self, int fd));
/* A word to the other process, and from it. */
void tell(struct peer *peer);
void hear(struct peer *peer);
/* What it may do: sends back what it receives, until the end. */
void echo(struct peer *self, int fd);
/* Waits until it ends, which must be with status 0. */
void join_peer(struct peer *peer);
void kill_peer(struct peer *peer);

/* A process without the library, which does as its name says with the connection, see plain.c. Returns this
 * process's end, which was used a while. */
int start_plain(struct peer *peer, bool connects, const char *name);
/* In that process. */
int open_plain(struct peer *self, int number);
int run_plain(int argc, char **argv);

/* ---- bytes --------------------------------------------------------------------------------------------- */

/* The bytes of a stream, which depend on their place in it. */
void fill(void *bytes, uint64_t from, size_t length);
void check_bytes_at(const char *file, int line, const void *bytes, uint64_t from, size_t length);
#define CHECK_BYTES(bytes, from, length) check_bytes_at(__FILE__, __LINE__, bytes, from, length)

/* Sends these bytes of the stream, by calls that wait; receives them, and checks. */
void send_part(int fd, uint64_t from, size_t length);
void receive_part(int fd, uint64_t from, size_t length);
/* Sends until there is no room, without waiting. Returns how many bytes. */
size_t fill_up(int fd, uint64_t from);
/* Receives the stream until its end. Returns how many bytes. */
size_t receive_to_end(int fd, uint64_t from);

/* ---- waiting ------------------------------------------------------------------------------------------- */

int64_t now_ms(void);
/* Processor time of this process. */
int64_t busy_ms(void);
void sleep_ms(int ms);
void set_nonblocking(int fd, bool is);
void set_limit(int fd, int option, int ms);
/* Whether poll() says one of these events within `ms`, and which. */
int poll_one(int fd, int events, int ms);
/* Waits until poll() says these events at once. */
void await_events(int fd, int events);
/* Waits until so many bytes can be read. */
void await_unread(int fd, int bytes);
/* Waits until the thread sleeps, or has ended. */
void await_sleep(pid_t thread);
pid_t own_thread(void);
/* Waits until the value is at least this. */
void await_value(const int *value, int least);

/* A thread that makes a call, which waits. */
struct caller {
    ssize_t (*call)(void *argument);
    void *argument;
    pid_t thread;
    unsigned long pthread;
    ssize_t returned;
    int error, done;
};

/* Returns when it sleeps in the call. */
void start_caller(struct caller *caller, ssize_t (*call)(void *), void *argument);
void join_caller(struct caller *caller);
/* A handler of this signal, which counts. */
extern volatile int signals;
void count_signals(int signal, int flags);

/* ---- kinds of calls ------------------------------------------------------------------------------------ */

struct send_kind {
    const char *name;
    ssize_t (*call)(int fd, const void *bytes, size_t length, int flags);
    bool takes_flags;
    /* It copies from something else than memory. */
    bool is_file;
};

struct receive_kind {
    const char *name;
    ssize_t (*call)(int fd, void *bytes, size_t length, int flags);
    bool takes_flags;
};

extern const struct send_kind send_kinds[11];
extern const struct receive_kind receive_kinds[11];

#endif
