/*
 * Shared by all the programs here: checks that print both values, functions that open and connect stream
 * endpoints through libfabric's public calls only, and a second process as a peer.
 *
 * A failed check prints FILE:LINE with both values and ends the process with status 1; no function returns
 * an error. Every wait has a limit, so that no program hangs.
 */
#ifndef RSTREAM_TESTS_COMMON_H
#define RSTREAM_TESTS_COMMON_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "dice.h"
#include "rstream.h"

/* The oldest API version that the provider supports. Newer libraries accept it. */
#define TEST_API FI_VERSION(1, 17)

/* The provider's name in libfabric. */
#define PROVIDER "rstream"

/* The two address families of most tests. */
#define IPV4 ipv4()
#define IPV6 ipv6()

/* Long enough on a busy machine for anything that is not a time-out under test. */
#define PATIENCE_MS 10000

/* Exit status of a test that cannot run here. It has printed the reason. */
#define EXIT_SKIPPED 77

/* ---- checks ------------------------------------------------------------------------------- */

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition))                                                                           \
            fail_at(__FILE__, __LINE__, "%s does not hold", #condition);                            \
    } while (0)

/* Compares two numbers. */
#define CHECK_INT(expression, wanted)                                                               \
    check_int_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(wanted))

/* Lower and upper bounds. */
#define CHECK_AT_LEAST(expression, least)                                                           \
    check_range_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(least), INT64_MAX)
#define CHECK_BETWEEN(expression, least, most)                                                      \
    check_range_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(least),    \
                   (long long)(most))

/* Checks the return value of a libfabric call: a count, or a negative error, which is printed with its
 * text. */
#define CHECK_RET(call, wanted)                                                                     \
    check_ret_at(__FILE__, __LINE__, #call, (long long)(call), (long long)(wanted))

/* A call that must succeed, and a call whose errno is printed if it fails. */
#define CHECK_OK(call) CHECK_RET(call, 0)
#define CHECK_SYS(call) check_sys_at(__FILE__, __LINE__, #call, (long)(call))

#define CHECK_BYTES(got, wanted, length) check_bytes_at(__FILE__, __LINE__, #got, got, wanted, length)

/* Waits until a condition holds, and drives all open sides meanwhile. Fails after `ms`. */
#define AWAIT(ms, condition)                                                                        \
    do {                                                                                            \
        int64_t await_until_ = now_ms() + (ms);                                                     \
        while (!(condition)) {                                                                      \
            if (now_ms() > await_until_)                                                            \
                fail_at(__FILE__, __LINE__, "%s did not come to hold in %d ms", #condition, (int)(ms)); \
            drive();                                                                                \
        }                                                                                           \
    } while (0)

_Noreturn void fail_at(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_int_at(const char *file, int line, const char *what, long long got, long long wanted);
void check_range_at(const char *file, int line, const char *what, long long got, long long least, long long most);
void check_ret_at(const char *file, int line, const char *what, long long got, long long wanted);
long check_sys_at(const char *file, int line, const char *what, long got);
void check_bytes_at(const char *file, int line, const char *what, const void *got, const void *wanted, size_t length);

/* ---- resources of a process ------------------------------------------------------------------ */

/* The number of open descriptors; the bytes in use on the heap, or 0 if they cannot be counted
 * (AddressSanitizer); the processor time in milliseconds. */
size_t open_descriptors(void);
size_t heap_in_use(void);
int64_t cpu_ms(void);

/* ---- time and progress -------------------------------------------------------------------- */

int64_t now_ms(void);
int64_t now_us(void);
void sleep_ms(int ms);

/* Endpoints make progress only in calls. While a helper waits, it drives every side that this thread has
 * open, so that both ends of a connection in one thread make progress, and yields the processor. */
void drive(void);

/* ---- finding and opening ------------------------------------------------------------------ */

/* Ring sizes in bytes, queue sizes in entries, and the protocol. 0 stands for the default. */
struct settings {
    size_t send_ring, recv_ring;
    size_t tx_size, rx_size;
    uint32_t protocol;
};

/* Hints that request this provider's stream endpoints. Free them with fi_freeinfo. */
struct fi_info *stream_hints(void);
/* Calls fi_getinfo, which must succeed. */
struct fi_info *find(const char *node, const char *service, uint64_t flags, const struct fi_info *hints);
/* Whether the info is from this provider. */
bool is_ours(const struct fi_info *info);

/* One side of a connection. An unused field is NULL. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    /* Of message endpoints. */
    struct fid_cq *cq;
    /* The fabric and the event queue belong to another side. */
    bool borrows;
};

/* Opens the fabric, domain and event queue of `info`, which the side owns afterwards. */
void side_open(struct side *side, struct fi_info *info);
/* Like side_open, with another side's fabric and event queue. */
void side_share(struct side *side, struct side *owner, struct fi_info *info);
/* Makes drive() drive a side that a test has assembled, until it is closed. */
void side_remember(struct side *side);
/* Closes what is open, the endpoint first and the fabric last. */
void side_close(struct side *side);
/* Closes one object, which must succeed. */
void close_fid(struct fid *fid);

/* Opens an event queue with a descriptor. */
struct fid_eq *open_eq(struct fid_fabric *fabric);
/* Opens an endpoint of the side, bound to its event queue, with these settings (NULL: defaults). */
void side_endpoint(struct side *side, const struct settings *settings);
/* Opens a side that listens on `host`, on a port that the system chooses. */
void side_listen(struct side *side, const char *host, const struct settings *settings);
/* Calls fi_getinfo for an endpoint that connects to `host` and `port`. */
struct fi_info *find_peer(const char *host, unsigned port, const struct settings *settings);
/* Opens a side with an endpoint that can connect to `host` and `port`. */
void side_active(struct side *side, const char *host, unsigned port, const struct settings *settings);
/* Sets the options of an active or passive endpoint to these settings. */
void apply_settings(struct fid *fid, const struct settings *settings);

unsigned address_port(const void *address);
/* The port of an active or passive endpoint. */
unsigned fid_port(struct fid *fid);

/* ---- connecting --------------------------------------------------------------------------- */

/* An event, with the connection data that came with it. */
struct event {
    uint32_t kind;
    struct fid *fid;
    struct fi_info *info;
    uint8_t data[1024];
    size_t data_length;
};

/* Reads an event if there is one. Fails if an error is queued. */
bool read_event(struct fid_eq *eq, struct event *event);
/* Waits for the next event. Fails on a time-out, or if an error is queued. */
struct event next_event(struct fid_eq *eq);
/* Waits for the next event, which must be of this kind. */
struct event await_event(struct fid_eq *eq, uint32_t kind);
/* Waits for the next event, which must be an error. `data` gets its error data. */
struct fi_eq_err_entry await_error(struct fid_eq *eq, void *data, size_t size);
/* Checks that no event is queued. */
void check_no_event(struct fid_eq *eq);

/* Two connected endpoints in one process. `listener` accepted the server's endpoint, which shares its
 * event queue. */
struct pair {
    struct side listener;
    struct side client;
    struct side server;
};

void pair_open(struct pair *pair, const char *host, const struct settings *settings);
/* Like pair_open, with different settings for the two ends. */
void pair_open_with(struct pair *pair, const char *host, const struct settings *client,
                    const struct settings *server);
/* Connects the client's endpoint to the listener, which accepts. */
void pair_join(struct pair *pair);
void pair_close(struct pair *pair);
/* Opens an endpoint in `server` for this connection request. `server` shares the listener's objects. */
void side_for_request(struct side *listener, struct side *server, const struct event *request);
/* Like side_for_request, and accepts with this connection data. */
void accept_request(struct side *listener, struct side *server, const struct event *request,
                    const void *data, size_t length);

/* ---- sending and receiving ---------------------------------------------------------------- */

ssize_t send_once(struct fid_ep *ep, const void *data, size_t length);
ssize_t recv_once(struct fid_ep *ep, void *data, size_t length);
/* Repeats a receive until it no longer returns -FI_EAGAIN, and returns its result. */
ssize_t recv_wait(struct fid_ep *ep, void *data, size_t length);
/* Sends all bytes, in as many calls as necessary. */
void send_all(struct fid_ep *ep, const void *data, size_t length);
void recv_all(struct fid_ep *ep, void *data, size_t length);
/* Receives `length` bytes, and checks that they are pattern(offset ...). */
void recv_pattern(struct fid_ep *ep, uint64_t offset, size_t length);
/* Sends the pattern from `offset` until the endpoint takes no more bytes although the other end is driven.
 * Returns the number of bytes sent. */
size_t fill(struct fid_ep *ep, uint64_t offset);
/* Sends `length` bytes of the pattern in one direction, and reads them at the other end meanwhile. */
void transfer(struct fid_ep *from, struct fid_ep *to, size_t length);

/* Reproducible content: the value of a byte depends on its offset in the stream. Returns a pointer to the
 * `length` bytes (at most PATTERN_MAX) at `offset`. */
#define PATTERN_MAX ((size_t)(4 << 20))
const uint8_t *pattern(uint64_t offset, size_t length);

/* ---- waiting ------------------------------------------------------------------------------ */

/* The descriptor of an endpoint or event queue. */
int wait_fd(struct fid *fid);
/* Whether the descriptor is readable within `ms`. Drives nothing. */
bool readable(int fd, int ms);
/* Captures what the process writes to standard error from now on. */
int capture_errors(void);
/* Ends that. `text` gets what has been written. */
void end_capture(int errors, char *text, size_t size);
/* Ends that, and fails unless the words have been written. */
void check_logged(int errors, const char *words);
/* How often a text has these words. */
unsigned count_words(const char *text, const char *words);

/* ---- addresses and devices of the tests ----------------------------------------------------- */

/* The addresses to listen on: those of the loopback interface, or TEST_IPV4 and TEST_IPV6. Their device is
 * the first that the provider reports for them: the embedded one, or an RDMA device. */
const char *ipv4(void);
const char *ipv6(void);
/* The address with this port, for calls that connect. */
struct sockaddr_in ipv4_address(unsigned port);
/* Skips the test unless the device is the embedded one. For tests that speak MPA over a plain socket. */
void needs_embedded_device(void);
/* Skips the test unless the device is an RDMA device. */
void needs_rdma_device(void);
bool on_rdma_device(void);
/* How much to do of what is long: all of it, or a quarter on an RDMA device, because a machine that has one for the
 * tests is emulated. */
size_t share_of(size_t whole);
/* Finds a variable or a function of ffi-tests/other_driver.c. Skips the test if that is not preloaded. */
void *other_driver(const char *name);
/* Causes a fault of the RDMA device, with the name that scripts/vm/fault.sh gives it. mend() or the end of
 * the process repairs the device. */
void fault(const char *what);
void mend(void);
/* Moves the test to a network namespace of its own, or skips it. */
void own_network(void);
/* Hosts that part_hosts separates so that nothing arrives and no error is reported, until join_hosts: RDMA devices,
 * or a network namespace of this process whose only device is taken down. Sets FI_RSTREAM_KEEPALIVE_S to
 * KEEPALIVE_MS. Skips the test where neither can be had. */
#define KEEPALIVE_MS 1000
void partable_hosts(void);
void part_hosts(void);
void join_hosts(void);

/* ---- other processes and plain sockets ----------------------------------------------------- */

/* A process that a test started. It is killed with the test. */
struct peer {
    pid_t pid;
    int to_peer;
    int from_peer;
};

/* Runs `body` in a new process, which ends when `body` returns. Must be called before any libfabric call. */
void peer_start(struct peer *peer, void (*body)(struct peer *self, void *argument), void *argument);
/* Sends one number to the other process, and receives one from it. */
void peer_tell(struct peer *peer, uint64_t number);
uint64_t peer_hear(struct peer *peer);
/* Waits until the process ends, which must be with status 0. */
void peer_join(struct peer *peer);
/* Waits until the process ends, with any status. peer_join or peer_kill must follow. */
void peer_gone(const struct peer *peer);
/* Kills the process with SIGKILL, and waits until it ends. */
void peer_kill(struct peer *peer);

/* Opens a listening TCP socket on ipv4() and returns its port; opens a TCP connection to a port there. */
int tcp_listen(unsigned *port);
int tcp_connect(unsigned port);
/* Waits for a connection to a listening socket, and drives the open sides meanwhile. */
int tcp_accept(int fd);
/* Reads until the other end closes or resets the connection. Returns -1 if that does not happen within
 * `ms`. */
ssize_t tcp_read_to_end(int fd, void *data, size_t size, int ms);

#endif
