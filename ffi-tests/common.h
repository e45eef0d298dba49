/*
 * What all the programs here share: checks that print both values, opening and connecting stream
 * endpoints through libfabric's public calls only, and a second process as a peer.
 *
 * A failed check prints FILE:LINE with both values and ends the process with status 1; nothing
 * here returns an error. Every wait has a limit, so that no program hangs.
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

#include "rstream.h"

/* The oldest interface that the provider serves; newer libraries accept it. */
#define TEST_API FI_VERSION(1, 17)

/* The name under which libfabric knows the provider. */
#define PROVIDER "rstream"

/* The two address families of most tests. */
#define IPV4 ipv4()
#define IPV6 ipv6()

/* Long enough for anything that is not a time-out under test, also on a busy machine. */
#define PATIENCE_MS 10000

/* Exit status of a test that cannot run here; the reason was printed. */
#define EXIT_SKIPPED 77

/* ---- checks ------------------------------------------------------------------------------- */

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition))                                                                           \
            fail_at(__FILE__, __LINE__, "%s does not hold", #condition);                            \
    } while (0)

/* Two numbers. */
#define CHECK_INT(expression, wanted)                                                               \
    check_int_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(wanted))

/* At least, at most. */
#define CHECK_AT_LEAST(expression, least)                                                           \
    check_range_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(least), INT64_MAX)
#define CHECK_BETWEEN(expression, least, most)                                                      \
    check_range_at(__FILE__, __LINE__, #expression, (long long)(expression), (long long)(least),    \
                   (long long)(most))

/* What a libfabric call returned: a count, or a negative error that is shown with its text. */
#define CHECK_RET(call, wanted)                                                                     \
    check_ret_at(__FILE__, __LINE__, #call, (long long)(call), (long long)(wanted))

/* A call that must succeed, and a call whose system error matters. */
#define CHECK_OK(call) CHECK_RET(call, 0)
#define CHECK_SYS(call) check_sys_at(__FILE__, __LINE__, #call, (long)(call))

#define CHECK_BYTES(got, wanted, length) check_bytes_at(__FILE__, __LINE__, #got, got, wanted, length)

/* Waits until a condition holds, driving all sides that are open; fails after `ms`. */
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

/* ---- what a process holds -------------------------------------------------------------------- */

/* Open descriptors; bytes from the heap, 0 where that is not counted (AddressSanitizer); processor
 * time in milliseconds. */
size_t open_descriptors(void);
size_t heap_in_use(void);
int64_t cpu_ms(void);

/* ---- time and progress -------------------------------------------------------------------- */

int64_t now_ms(void);
int64_t now_us(void);
void sleep_ms(int ms);

/* Endpoints make progress only inside calls. While a helper here waits, it drives every side that
 * this thread has open, so that the other end of a connection in the same thread moves too, and
 * gives up the processor for a moment. */
void drive(void);

/* ---- finding and opening ------------------------------------------------------------------ */

/* Ring sizes in bytes, queue sizes in entries, protocol; 0 leaves the default. */
struct settings {
    size_t send_ring, recv_ring;
    size_t tx_size, rx_size;
    uint32_t protocol;
};

/* Hints for this provider's stream endpoints and nothing more. Free with fi_freeinfo. */
struct fi_info *stream_hints(void);
/* fi_getinfo that must succeed. */
struct fi_info *find(const char *node, const char *service, uint64_t flags, const struct fi_info *hints);
/* Whether the info is from this provider. */
bool is_ours(const struct fi_info *info);

/* One side of a connection. A field that is not in use is NULL. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_pep *pep;
    struct fid_ep *ep;
    /* Fabric and event queue belong to another side. */
    bool borrows;
};

/* Opens fabric, domain and event queue of `info`, which the side owns from now on. */
void side_open(struct side *side, struct fi_info *info);
/* The same with another side's fabric and event queue. */
void side_share(struct side *side, struct side *owner, struct fi_info *info);
/* Lets drive() drive a side that was put together by hand, until it is closed. */
void side_remember(struct side *side);
/* Closes what is open, innermost first. */
void side_close(struct side *side);
/* Closes one object that must close without complaint. */
void close_fid(struct fid *fid);

/* Opens an event queue with a descriptor to wait on. */
struct fid_eq *open_eq(struct fid_fabric *fabric);
/* An endpoint of the side, bound to its event queue, with these settings (NULL: defaults). */
void side_endpoint(struct side *side, const struct settings *settings);
/* A side that listens on `host`, on a port that the system chooses. */
void side_listen(struct side *side, const char *host, const struct settings *settings);
/* fi_getinfo for an endpoint that connects to `host` and `port`. */
struct fi_info *find_peer(const char *host, unsigned port, const struct settings *settings);
/* A side with an endpoint that can connect to `host` and `port`. */
void side_active(struct side *side, const char *host, unsigned port, const struct settings *settings);
/* Sets what the settings name, on an active or passive endpoint. */
void apply_settings(struct fid *fid, const struct settings *settings);

unsigned address_port(const void *address);
/* The port of an active or passive endpoint. */
unsigned fid_port(struct fid *fid);

/* ---- connecting --------------------------------------------------------------------------- */

/* An event as it was read. `data` is the connection data that came with it. */
struct event {
    uint32_t kind;
    struct fid *fid;
    struct fi_info *info;
    uint8_t data[1024];
    size_t data_length;
};

/* Reads an event if there is one; fails if an error is queued. */
bool read_event(struct fid_eq *eq, struct event *event);
/* Reads the next event; fails if there is none in time or an error is queued. */
struct event next_event(struct fid_eq *eq);
/* The same, and it must be of this kind. */
struct event await_event(struct fid_eq *eq, uint32_t kind);
/* Reads the next event, which must be an error; `data` gets what came with it, exactly. */
struct fi_eq_err_entry await_error(struct fid_eq *eq, void *data, size_t size);
/* Nothing is queued. */
void check_no_event(struct fid_eq *eq);

/* Two connected endpoints in one process. The server's endpoint was accepted by `listener`, and
 * shares its event queue. */
struct pair {
    struct side listener;
    struct side client;
    struct side server;
};

void pair_open(struct pair *pair, const char *host, const struct settings *settings);
/* Different settings for the two ends. */
void pair_open_with(struct pair *pair, const char *host, const struct settings *client,
                    const struct settings *server);
void pair_close(struct pair *pair);
/* An endpoint for what `request` asks, in `server`, which borrows the listener's objects. */
void side_for_request(struct side *listener, struct side *server, const struct event *request);
/* The same, and accepts with this connection data. */
void accept_request(struct side *listener, struct side *server, const struct event *request,
                    const void *data, size_t length);

/* ---- moving bytes ------------------------------------------------------------------------- */

ssize_t send_once(struct fid_ep *ep, const void *data, size_t length);
ssize_t recv_once(struct fid_ep *ep, void *data, size_t length);
/* What the next receive answers once it is no longer -FI_EAGAIN. */
ssize_t recv_wait(struct fid_ep *ep, void *data, size_t length);
/* All of it, in as many calls as it takes. */
void send_all(struct fid_ep *ep, const void *data, size_t length);
void recv_all(struct fid_ep *ep, void *data, size_t length);
/* Receives `length` bytes and checks that they are pattern(offset ...). */
void recv_pattern(struct fid_ep *ep, uint64_t offset, size_t length);
/* Sends until nothing is taken any more although the other end was driven; answers how many bytes
 * of the pattern from `offset` went. */
size_t fill(struct fid_ep *ep, uint64_t offset);
/* Sends `length` bytes of the pattern one way while reading them at the other end. */
void transfer(struct fid_ep *from, struct fid_ep *to, size_t length);

/* Reproducible content: where in a stream a byte stands decides its value. The answer points to
 * `length` bytes (at most PATTERN_MAX) that belong at `offset`. */
#define PATTERN_MAX ((size_t)(4 << 20))
const uint8_t *pattern(uint64_t offset, size_t length);

/* ---- waiting ------------------------------------------------------------------------------ */

/* The descriptor of an endpoint or event queue. */
int wait_fd(struct fid *fid);
/* Whether it is readable within `ms`. Drives nothing. */
bool readable(int fd, int ms);

/* ---- where the tests run -------------------------------------------------------------------- */

/* The addresses to listen on, those of the loopback interface or of TEST_IPV4 and TEST_IPV6. Their device is
 * the first that the provider names for them: the embedded one, or an RDMA device. */
const char *ipv4(void);
const char *ipv6(void);
/* The address as connecting calls take it, with this port. */
struct sockaddr_in ipv4_address(unsigned port);
/* Ends the test as skipped unless the device there is the embedded one: a test that makes its handshake by
 * hand is about that device's. */
void needs_embedded_device(void);
/* The contrary. */
void needs_rdma_device(void);
bool on_rdma_device(void);
/* Lets something befall the RDMA device, as scripts/vm/fault.sh calls it. It is mended on demand, or when the
 * process ends. */
void fault(const char *what);
void mend(void);

/* ---- other processes and plain sockets ----------------------------------------------------- */

/* A process started by a test; it is killed with the test. */
struct peer {
    pid_t pid;
    int to_peer;
    int from_peer;
};

/* Runs `body` in a new process. Call it before any libfabric call. `body` ends by returning. */
void peer_start(struct peer *peer, void (*body)(struct peer *self, void *argument), void *argument);
/* Tells the other process one number, and waits for one. */
void peer_tell(struct peer *peer, uint64_t number);
uint64_t peer_hear(struct peer *peer);
/* Waits for its end, which must be a good one. */
void peer_join(struct peer *peer);
/* Waits for its end, whatever that is, and leaves the rest to peer_join or peer_kill. */
void peer_gone(const struct peer *peer);
/* kill -9, and waits until it is gone. */
void peer_kill(struct peer *peer);

/* A listening TCP socket on ipv4() and its port; a TCP connection to a port there. */
int tcp_listen(unsigned *port);
int tcp_connect(unsigned port);
/* Waits for a connection to a listening socket, and drives what is open meanwhile. */
int tcp_accept(int fd);
/* Reads until the other end closes or resets, or `ms` have passed: then it answers -1. */
ssize_t tcp_read_to_end(int fd, void *data, size_t size, int ms);

#endif
