/* Message endpoints (FI_EP_MSG) through libfabric's public calls: opening and connecting them, and reading
 * their completions. */
#ifndef RSTREAM_TESTS_MESSAGE_H
#define RSTREAM_TESTS_MESSAGE_H

#include <pthread.h>

#include <rdma/fi_rma.h>

#include "conformance.h"

/* FI_MR_BASIC, FI_MR_SCALABLE and FI_LOCAL_MR: later headers warn of these names. */
enum { MR_BASIC = 1 << 0, MR_SCALABLE = 1 << 1 };
#define LOCAL_MR (1ULL << 55)

/* Flags of completions. */
#define SENT ((uint64_t)(FI_SEND | FI_MSG))
#define RECEIVED ((uint64_t)(FI_RECV | FI_MSG))
#define WAS_READ ((uint64_t)(FI_RMA | FI_READ))
#define WRITTEN ((uint64_t)(FI_RMA | FI_WRITE))
#define REMOTE_WRITTEN ((uint64_t)(FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA))

/* Limits that the contract states. */
#define MESSAGE_INJECT 4096
#define MESSAGE_IOVS 4
#define MESSAGE_QUEUE 256
#define MESSAGE_CM_DATA 200

/* The context of an operation with this number. */
#define CONTEXT(number) ((void *)(uintptr_t)(number))

/* What the two sides of a pair have. 0 stands for the default. */
struct message_settings {
    const char *host;
    /* The default is FI_CQ_FORMAT_DATA without a wait object. */
    struct fi_cq_attr cq;
    /* Added to FI_TRANSMIT | FI_RECV when the completion queue is bound. */
    uint64_t bind_flags;
    size_t tx_size, rx_size;
    uint64_t tx_flags, rx_flags;
    int mr_mode;
    /* The default is FI_MSG. */
    uint64_t caps;
    /* On an RDMA device instead of the embedded one. Implies the mr_mode that these require. */
    bool on_rdma;
    /* Called for each side before its endpoint is enabled, to bind further objects. */
    void (*prepare)(struct side *side);
};

/* Hints that request this provider's message endpoints, as settings (NULL: defaults) say. Skips the test on
 * devices that do not have them. Free them with fi_freeinfo. */
struct fi_info *message_hints(const struct message_settings *settings);
/* Opens a side that listens for message endpoints, and one that can connect to it. Neither has an endpoint. */
void message_listen(struct side *side, const struct message_settings *settings);
void message_client(struct side *side, const struct side *listener, const struct message_settings *settings);
/* Like message_client, for this port of the settings' host. */
void message_client_to(struct side *side, unsigned port, const struct message_settings *settings);
/* Opens the completion queue of a side, and its endpoint, bound to it and to the event queue. */
void message_queue(struct side *side, const struct message_settings *settings);
void message_endpoint(struct side *side, const struct message_settings *settings);
/* Opens a side that listens, and one that connects to it. Returns the connection request. */
struct event message_request(struct side *listener, struct side *client, const struct message_settings *settings);
/* Opens an endpoint in `server` for this connection request. `server` shares the listener's objects. */
void message_server(struct side *listener, struct side *server, const struct event *request,
                    const struct message_settings *settings);
/* Connects a client to an endpoint in the listener's domain that takes its receives from `shared`, if that is not NULL,
 * and reports to the listener's completion queue. */
struct fid_ep *message_shared(struct side *listener, struct side *client, struct fid_ep *shared,
                              const struct message_settings *settings);
/* The listener's part of message_shared: opens the endpoint for this request, and accepts. */
struct fid_ep *message_accept_shared(struct side *listener, const struct event *request, struct fid_ep *shared,
                                     const struct message_settings *settings);
/* Connects another client to the pair's listener, with an endpoint in the server's domain that reports to its queue. */
struct fid_ep *message_beside(struct pair *pair, struct side *client, const struct message_settings *settings);
/* Accepts the request that `server` was opened for, and waits until both are connected. */
void message_accept(struct side *client, struct side *server);
/* Connects two endpoints; pair_close closes them. */
void messages_open(struct pair *pair, const struct message_settings *settings);

/* Opens an endpoint on the objects of a side, for this info, and enables it. */
struct fid_ep *message_endpoint_of(struct side *side, struct fi_info *info);
/* Connects two such endpoints: of the client, and of the listener's side. */
void message_connect(struct side *client, struct side *listener, struct fid_ep *eps[2]);
/* The statistics of an endpoint. */
struct rstream_stats stats_of(struct fid_ep *ep);
/* Connects a socket to the listener, as a message endpoint would: `server` is opened for it. The test speaks for it. */
int message_stranger(struct side *listener, struct side *server, const struct message_settings *settings);
/* The same, but the server has not read FI_CONNECTED, nor the socket the reply to its request. */
int message_stranger_early(struct side *listener, struct side *server, const struct message_settings *settings);

/* A server, and a client that reports its receives to a queue of their own. Both queues have a descriptor. */
struct separate {
    struct side listener, client, server;
    struct fid_cq *receives;
};

void separate_open(struct separate *open, const struct message_settings *settings);
void separate_close(struct separate *open);

/* Reads the next completion, which must be a success, from a queue with FI_CQ_FORMAT_TAGGED. */
struct fi_cq_tagged_entry next_tagged(struct fid_cq *cq);
/* The same without the tag. This and what follows are for queues with FI_CQ_FORMAT_DATA, too. */
struct fi_cq_data_entry next_completion(struct fid_cq *cq);
/* Waits for the success of the operation with this context, which must be the next to complete. */
struct fi_cq_data_entry await_done(struct fid_cq *cq, uintptr_t context, uint64_t flags);
/* Waits for the failure of the operation with this context, which must be the next to complete. */
struct fi_cq_err_entry await_failed(struct fid_cq *cq, uintptr_t context, uint64_t flags, int err);
/* Checks that nothing is queued. */
void check_no_completion(struct fid_cq *cq);

/* How one operation ended: 0, FI_ECANCELED, or FI_ECONNRESET, which no receive has. */
struct ending {
    uintptr_t context;
    uint64_t flags;
    int err;
};

/* Reads the next end of an operation if one is queued. */
bool next_ending(struct fid_cq *cq, struct ending *ending);
/* Drives both sides for a while. */
void drive_for(int ms);

/* Has the log tell of connections, at level info. Must be called before any libfabric call. */
void log_connections(void);
/* Ends what capture_errors began, and checks that `count` lines say that a connection is broken, for this reason. */
void check_broken(int errors, const char *reason, unsigned count);

/* Calls fi_trywait until it finds nothing. */
void settle(struct side *side, struct fid **fids, int count);
/* Checks that the process has used less than 3 % of a processor in the last `ms`, since it had used `cpu` ms. */
void check_idle(const char *what, int64_t cpu, int64_t ms);

/* Posts a receive, and a send. Both must be taken. */
void post_recv(struct fid_ep *ep, void *data, size_t length, uintptr_t context);
void post_send(struct fid_ep *ep, const void *data, size_t length, uintptr_t context);
/* Posts operations of each kind in turn: writes to, and reads from, PATTERN_MAX bytes of the peer's memory under this
 * key, and messages that the peer does not receive. And receives. */
void post_each_kind(struct side *side, uint64_t key);
/* Checks that each of them ends once when the connection has ended, and those of one direction in order: all from the
 * first read on are cancelled, and the receives. */
void check_each_kind_ended(struct fid_cq *cq);
/* Checks that each call that sends, reads or writes gives this answer, which is an error; and each that receives. */
void check_calls(struct fid_ep *ep, ssize_t answer);
void check_receives(struct fid_ep *ep, ssize_t answer);
/* Sends `length` bytes (at most PATTERN_MAX) in one message from one side to the other, and checks them. */
void message_transfer(struct side *from, struct side *to, size_t length);
/* Checks that messages go in both directions. No receive may be posted. */
void messages_pass(struct pair *pair);

/* Short messages, one after the other. A side that sends SERIES of them and reads its completions at once, several times,
 * has them leave together. */
enum { SERIES = 16 };
/* Posts so many receives, and messages for them, with contexts from 0 on. */
void post_series(struct side *from, struct side *to, unsigned count);
/* Reads the completions of one side, which come within `ms`, without a call on any other object. */
void read_series(struct fid_cq *cq, unsigned count, uint64_t flags, int ms);
/* Both, for SERIES messages. Returns how long the sender took, in microseconds. */
int64_t message_series(struct side *from, struct side *to);

/* Opens a counter, bound to nothing. */
struct fid_cntr *message_counter(struct side *side, enum fi_wait_obj wait);

/* Starts a thread that makes this call 50 ms later. */
pthread_t call_later(void (*call)(void *argument), void *argument);
/* Such a call: closes the client's endpoint of a struct pair. */
void close_client(void *pair);

/* Pages of memory, and their end: any access after that crashes the test. */
void *map_pages(size_t length);
void unmap_pages(void *pages, size_t length);

/* Registers memory with all rights under this key, or under one of the provider's. */
struct fid_mr *message_region(struct side *side, void *data, size_t length, uint64_t key);

#endif
