/*
 * RDMA for C programs, on RDMA hardware and on an iWARP in user space that every Linux machine has.
 *
 * Objects are named by handles, which are pointers in form only. Each function checks them: one that was
 * freed, is of another kind or never was one is -EBADF, NULL is -EINVAL. A pointer argument must not be NULL
 * unless its comment allows it, or the length beside it is 0. What it points to has to be there, with that
 * length, and must not be used by others while the call runs.
 *
 * Functions return 0 or a count, or a negative errno: those that their comments name, -EBADF and -EINVAL for
 * wrong arguments, and -EIO if the library has a bug. rdma_easy_last_error then has a text. Any thread may call
 * any function at any time. A thread must not be cancelled in a call. A child of fork(2) gets -EBADF for its
 * parent's handles.
 *
 * Generated from src/ffi by tools/c-headers; do not edit.
 */


#ifndef RDMA_EASY_H
#define RDMA_EASY_H

#include <stddef.h>
#include <stdint.h>

/**
 * Right: receives and reads of this side may write the region.
 */
#define RDMA_EASY_LOCAL_WRITE 1

/**
 * Right: the peers may write it.
 */
#define RDMA_EASY_REMOTE_WRITE 2

/**
 * Right: the peers may read it.
 */
#define RDMA_EASY_REMOTE_READ 4

/**
 * Right: this side may read into it what peers have. On iWARP adapters this gives the peers the right to
 * write it; elsewhere it is RDMA_EASY_LOCAL_WRITE.
 */
#define RDMA_EASY_READ_TARGET 8

/**
 * Flag: the completion of the request is reported by rdma_easy_await. Without it, only a failure shows, as
 * the end of the connection.
 */
#define RDMA_EASY_SIGNALED 1

/**
 * Queue: sends, writes and reads.
 */
#define RDMA_EASY_SENDS 0

/**
 * Queue: receives.
 */
#define RDMA_EASY_RECEIVES 1

/**
 * A message is new.
 */
#define RDMA_EASY_NEW 0

/**
 * A message is posted: its memory must not be changed.
 */
#define RDMA_EASY_POSTED 1

/**
 * A message was sent: its memory can be used again.
 */
#define RDMA_EASY_SENT 2

/**
 * A connection context: a queue pair with its queues, before, during and after its connection. It connects
 * or accepts once.
 */
struct rdma_easy_connection;

/**
 * What a program opens first, on one device: connections, listeners and regions of a domain work together.
 * A waiting call on one of them makes progress for all of them.
 */
struct rdma_easy_domain;

/**
 * What takes the requests of peers.
 */
struct rdma_easy_listener;

/**
 * An event loop: it listens and connects, and tells the program by callbacks what happens. Messages arrive
 * whole and in order, whatever their length, and no receives have to be posted. Its peers have to be event
 * loops too, or hubs of the Rust crate rdma-verbs.
 */
struct rdma_easy_loop;

/**
 * A message to send: memory, and whether it was sent.
 */
struct rdma_easy_message;

/**
 * A connection of an event loop. Its handle is valid until the callback `ended` returns.
 */
struct rdma_easy_peer;

/**
 * Registered memory of this side. Sends, receives, writes and reads use pieces of it.
 *
 * While a receive or a read is under way in a piece, the program must not use the piece; while a send or a
 * write is, it must not change it. A peer with a right may use it at any time: then what the program reads
 * there means something when a message of the peer says so.
 */
struct rdma_easy_region;

/**
 * A peer's request to connect, until it is answered.
 */
struct rdma_easy_request;

/**
 * Memory of a peer, as rdma_easy_await_advert tells it, or as the program carries it by other means.
 */
struct rdma_easy_remote {
  /**
   * Address of the first byte, as the peer's device counts.
   */
  uint64_t address;
  /**
   * The peer's key.
   */
  uint32_t key;
  /**
   * Length in bytes.
   */
  uint32_t length;
};

/**
 * The sizes of a connection's queues. 0 stands for the default.
 */
struct rdma_easy_sizes {
  /**
   * Sends, writes and reads that may be posted and not done; default 64.
   */
  uint32_t sends;
  /**
   * Receives that may be posted and not done; default 64.
   */
  uint32_t receives;
  /**
   * Reads that the device has under way at a time, in each direction; default 16.
   */
  uint8_t reads;
};

/**
 * Bytes of a region.
 */
struct rdma_easy_piece {
  /**
   * The region.
   */
  struct rdma_easy_region *region;
  /**
   * Of the first byte.
   */
  size_t offset;
  /**
   * In bytes.
   */
  size_t length;
};

/**
 * What became of a request.
 */
struct rdma_easy_completion {
  /**
   * What the request was posted with.
   */
  void *context;
  /**
   * 0, or a negative errno: -ECANCELED if the connection ended before; -EMSGSIZE if the message was longer
   * than its receive; -EACCES if the peer's memory could not be accessed.
   */
  int error;
  /**
   * Of a receive: the length of the message in bytes.
   */
  uint32_t length;
};

/**
 * What each connection of an event loop has. 0 stands for the default.
 */
struct rdma_easy_loop_sizes {
  /**
   * Length in bytes of the longest message that this side takes; default 1048576.
   */
  uint32_t longest;
  /**
   * Length in bytes of the longest message that is copied to a buffer and sent at once; default 4088. A
   * longer one stays in its memory until the peer's device has read it.
   */
  uint32_t eager;
  /**
   * Messages that may be under way to this side; default 16.
   */
  uint16_t window;
  /**
   * Messages that may be posted to a peer and not sent; default 32.
   */
  uint32_t queue;
};

/**
 * What an event loop tells the program, in calls that rdma_easy_loop_dispatch makes. Each may be NULL. A
 * callback may call all functions but rdma_easy_loop_dispatch, and must return: no longjmp, no exception.
 * `user` is what rdma_easy_loop_create has got.
 */
struct rdma_easy_callbacks {
  /**
   * A peer wants to connect. rdma_easy_loop_accept or rdma_easy_reject answers; if neither is called, the
   * request is rejected. Afterwards its handle is invalid.
   */
  void (*request)(struct rdma_easy_request *request, void *user);
  /**
   * There is a connection: messages can be sent. `data` is the peer's private data, valid in the call.
   */
  void (*established)(struct rdma_easy_peer *peer, const void *data, size_t length, void *user);
  /**
   * A message has arrived. Its bytes are valid in the call.
   */
  void (*received)(struct rdma_easy_peer *peer, const void *bytes, size_t length, void *user);
  /**
   * A message was sent: its memory can be used again, or freed.
   */
  void (*sent)(struct rdma_easy_peer *peer, struct rdma_easy_message *message, void *user);
  /**
   * The connection is no more, or could not be made; messages that were not sent have failed. `error`: 0
   * after an orderly end, or a negative errno, of which rdma_easy_last_error has the text.
   */
  void (*ended)(struct rdma_easy_peer *peer, int error, void *user);
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Why the last call of this thread failed that did: a text with the numbers that matter, in English. It is
 * empty if none has failed. It is valid until the next call of this thread fails, or the thread ends.
 */
const char *rdma_easy_last_error(void);

/**
 * What an error number means, whether it is negative or not: the system's text. It is valid until the
 * thread calls this again or ends.
 */
const char *rdma_easy_strerror(int error);

/**
 * Tells the name of a device of this machine: with index 0, 1 and so on until it returns -ENODEV. Those of
 * rdma-core come first, and last `iwarp`, the one that every machine has. It does not block.
 *
 * `name`: room for `size` bytes, for the name and a zero byte.
 * Returns 0; -ENODEV for an index beyond the last device; -ENOSPC if there is not enough room.
 */
int rdma_easy_device_name(size_t index,
                          char *name,
                          size_t size);

/**
 * Opens a domain on a device. It does not block.
 *
 * `device`: a name of rdma_easy_device_name; NULL for `iwarp`.
 * `domain`: gets the domain, which rdma_easy_close frees.
 * Returns 0; -ENODEV if there is no such device; the system's error if it cannot be opened.
 */
int rdma_easy_open(const char *device, struct rdma_easy_domain **domain);

/**
 * Frees a domain. What was made of it stays valid. It does not block.
 *
 * Returns 0; -EBADF if it is none.
 */
int rdma_easy_close(struct rdma_easy_domain *domain);

/**
 * The descriptor of a domain, for a program that waits for other things too: it is readable when
 * rdma_easy_drive, or a call with a time-out of 0, has something to do. The program must not read, change
 * or close it. It is valid until the domain and all that was made of it are freed.
 *
 * Returns the descriptor; -EBADF if it is no domain.
 */
int rdma_easy_fd(struct rdma_easy_domain *domain);

/**
 * Does what there is to do for all connections of a domain, without blocking. Only programs need this that
 * wait by the descriptor: every call that waits does the same.
 *
 * Returns 1 if there may be more to do now; 0 if there is nothing until the descriptor is readable; -EBADF
 * if it is no domain; the device's error.
 */
int rdma_easy_drive(struct rdma_easy_domain *domain);

/**
 * Allocates memory of `length` zeros and registers it with these rights. It does not block.
 *
 * `length`: bytes, 1 to 4294967295.
 * `rights`: a sum of RDMA_EASY_LOCAL_WRITE and the like; 0 suffices for sends and writes from it.
 * `region`: gets the region, which rdma_easy_region_free frees with its memory.
 * Returns 0; -EINVAL for a wrong length or right; -ENOMEM; the device's error.
 */
int rdma_easy_region_create(struct rdma_easy_domain *domain,
                            size_t length,
                            uint32_t rights,
                            struct rdma_easy_region **region);

/**
 * Registers memory that the program has, with these rights. It does not block.
 *
 * `base`: the first of `length` bytes. Until rdma_easy_region_free has returned 0 they must stay mapped, be
 * readable, and be writable if a right is one to write. This is the one promise that no call can check.
 * The rest is as for rdma_easy_region_create.
 */
int rdma_easy_region_register(struct rdma_easy_domain *domain,
                              void *base,
                              size_t length,
                              uint32_t rights,
                              struct rdma_easy_region **region);

/**
 * The first byte of a region. It is valid until the region is freed.
 *
 * Returns NULL if it is no region.
 */
void *rdma_easy_region_base(struct rdma_easy_region *region);

/**
 * The length of a region in bytes.
 *
 * Returns 0 if it is no region.
 */
size_t rdma_easy_region_length(struct rdma_easy_region *region);

/**
 * The name by which a peer can write and read bytes of a region, to be told to it, for example in private
 * data. rdma_easy_advertise tells it by a message. It does not block.
 *
 * `offset`, `length`: in bytes.
 * `remote`: gets the name.
 * Returns 0; -ERANGE if the bytes are not within the region; -EBADF if it is none.
 */
int rdma_easy_region_remote(struct rdma_easy_region *region,
                            size_t offset,
                            size_t length,
                            struct rdma_easy_remote *remote);

/**
 * Deregisters a region and frees it: peers cannot use it any more, and memory that was registered is the
 * program's again. It does not block.
 *
 * Returns 0; -EBUSY while requests use it whose completions were not taken, or that were posted without
 * signal and are not done, on connections that are not freed: then it stays; -EBADF if it is no region.
 */
int rdma_easy_region_free(struct rdma_easy_region *region);

/**
 * Makes a connection context. Receives can be posted to it, and have to be before it connects or accepts: an
 * iWARP device breaks the connection when a message finds none. It does not block.
 *
 * `sizes`: NULL for the defaults.
 * `connection`: gets the context, which rdma_easy_connection_free frees.
 * Returns 0; -EBADF if it is no domain; the device's error, if it has no queues of this size.
 */
int rdma_easy_connection_create(struct rdma_easy_domain *domain,
                                const struct rdma_easy_sizes *sizes,
                                struct rdma_easy_connection **connection);

/**
 * Connects to a listener. It blocks until there is a connection or the attempt fails: 10 s at most, if the
 * name of the host is resolved at once.
 *
 * `host`: a name or a numeric address; of several addresses, the first. `port`: of the listener.
 * `data`: private data of `length` bytes for the peer; at most 56 go with every device.
 * Returns 0; -ECONNREFUSED if nobody listens, or if the peer rejects: then rdma_easy_private_data has what
 * it said; -ETIMEDOUT; -EADDRNOTAVAIL if the host is unknown; -EISCONN if it has connected before; -EALREADY
 * during an attempt; -EINVAL for too much data; the network's error. After a failed attempt the context is
 * spent: it can only be freed.
 */
int rdma_easy_connect(struct rdma_easy_connection *connection,
                      const char *host,
                      uint16_t port,
                      const void *data,
                      size_t length);

/**
 * Listens. It does not block, but for the name of the host.
 *
 * `host`: the address to listen on, or its name. `port`: 0 for any free one.
 * `backlog`: requests that may wait to be taken; further ones are cut.
 * `listener`: gets the listener, which rdma_easy_listener_free frees.
 * Returns 0; -EADDRNOTAVAIL; -EADDRINUSE; -EBADF if it is no domain; the system's error.
 */
int rdma_easy_listen(struct rdma_easy_domain *domain,
                     const char *host,
                     uint16_t port,
                     uint32_t backlog,
                     struct rdma_easy_listener **listener);

/**
 * The port of a listener.
 *
 * Returns 1 to 65535; -EBADF if it is no listener.
 */
int rdma_easy_listener_port(struct rdma_easy_listener *listener);

/**
 * Frees a listener. Requests that were not taken are cut. A thread that waits for one returns. It does not
 * block.
 *
 * Returns 0; -EBADF if it is none.
 */
int rdma_easy_listener_free(struct rdma_easy_listener *listener);

/**
 * Takes the next request of a peer. It blocks until there is one, `timeout_ms` milliseconds at most; without
 * end if that is below 0.
 *
 * `request`: gets the request. rdma_easy_accept or rdma_easy_reject answers and frees it.
 * Returns 0; -ETIMEDOUT; -EBADF if it is no listener, or is freed meanwhile.
 */
int rdma_easy_get_request(struct rdma_easy_listener *listener,
                          int timeout_ms,
                          struct rdma_easy_request **request);

/**
 * The private data of a request. On InfiniBand zeros may follow what the peer has given.
 *
 * `data`: gets as many bytes as there is room for: `size` at most.
 * Returns the number of bytes that there are; -EBADF if it is no request.
 */
int rdma_easy_request_data(struct rdma_easy_request *request, void *data, size_t size);

/**
 * Accepts a request on a connection context, and frees the request. It blocks until there is a connection
 * or the attempt fails, 10 s at most.
 *
 * `data`: private data of `length` bytes for the peer; at most 196 go with every device.
 * Returns 0; -ECONNRESET or another error if the peer has left; -EBADF if either is none, or the request is
 * answered; -EISCONN, -EALREADY: then the request is still there. After a failed attempt the context is
 * spent.
 */
int rdma_easy_accept(struct rdma_easy_request *request,
                     struct rdma_easy_connection *connection,
                     const void *data,
                     size_t length);

/**
 * Rejects a request, and frees it. It does not block.
 *
 * `data`: private data of `length` bytes for the peer; at most 148 go with every device, and more is cut.
 * Returns 0; -EBADF if it is no request, or answered.
 */
int rdma_easy_reject(struct rdma_easy_request *request,
                     const void *data,
                     size_t length);

/**
 * The private data that the peer has given: with its request on the side that accepted, with its reply or
 * its reject on the side that connected. On InfiniBand zeros may follow it.
 *
 * `data`: gets as many bytes as there is room for: `size` at most.
 * Returns the number of bytes that there are; -EBADF if it is no connection.
 */
int rdma_easy_private_data(struct rdma_easy_connection *connection,
                           void *data,
                           size_t size);

/**
 * Begins the orderly end: what was posted is sent, and nothing more can be posted. Messages of the peer
 * still arrive until it ends its side. It does not block: the end makes progress as all else does, in calls
 * that wait, such as rdma_easy_await_disconnect.
 *
 * Returns 0, also if the end has begun; -ENOTCONN if there was no connection; -EBADF if it is none.
 */
int rdma_easy_disconnect(struct rdma_easy_connection *connection);

/**
 * Waits for the end of a connection, whichever side begins it: `timeout_ms` milliseconds at most; without
 * end if that is below 0. After rdma_easy_disconnect, the end means that the peer's host has all that was
 * posted.
 *
 * Returns 0 after an orderly end; -ETIMEDOUT if the time is over, or if the peer's host does not answer;
 * -ECONNRESET, -EPROTO, -EREMOTEIO and others if the connection broke, with the reason in
 * rdma_easy_last_error; -ENOTCONN if there was no connection; -EBADF if it is none.
 */
int rdma_easy_await_disconnect(struct rdma_easy_connection *connection,
                               int timeout_ms);

/**
 * Frees a connection context. A connection that has not ended is broken: rdma_easy_disconnect and
 * rdma_easy_await_disconnect end it in order. Completions that were not taken are lost, and afterwards its
 * requests use no region. A thread that waits for it returns. It blocks as long as the device still uses
 * memory of requests: no time to speak of, and 1 s at most.
 *
 * Returns 0; -EBADF if it is none.
 */
int rdma_easy_connection_free(struct rdma_easy_connection *connection);

/**
 * Posts a receive: one message of the peer goes to these pieces. Messages fill receives in the order of
 * posting. It does not block.
 *
 * `pieces`: `count` pieces of regions with RDMA_EASY_LOCAL_WRITE, which are filled one after the other. The
 * device fills one piece by itself; for several, the message is copied when its completion is taken. A
 * message that is longer breaks the connection.
 * `context`: comes back in the completion.
 * Returns 0; -EAGAIN if as many are posted as the queue has room for; -ERANGE if a piece is not within its
 * region; -EXDEV if a region is of another domain; -EACCES if one lacks the right; -EINVAL for no piece;
 * -EBADF if something is no region or no connection; the reason if the connection has ended.
 */
int rdma_easy_post_receive(struct rdma_easy_connection *connection,
                           const struct rdma_easy_piece *pieces,
                           size_t count,
                           void *context);

/**
 * Posts a message: these pieces, one after the other, go to the peer's oldest receive. It does not block. A
 * request that fails while it is posted returns its error, and has no completion.
 *
 * `pieces`: `count` pieces of regions; every device takes 3, and the device iwarp any number.
 * `flags`: RDMA_EASY_SIGNALED or 0.
 * `context`: comes back in the completion, if it is signaled.
 * Returns 0; -EAGAIN if as many are posted as the queue has room for; -ENOTCONN if there is no connection
 * yet or no more, or its end has begun; -ERANGE, -EXDEV, -EINVAL, -EBADF as rdma_easy_post_receive; the
 * reason if the connection broke.
 */
int rdma_easy_post_send(struct rdma_easy_connection *connection,
                        const struct rdma_easy_piece *pieces,
                        size_t count,
                        uint32_t flags,
                        void *context);

/**
 * Posts a write: these pieces, one after the other, go to the peer's memory. The peer is not told: a message
 * that is posted afterwards tells it. It does not block.
 *
 * `remote`: the peer's memory. `offset`: in bytes, from its beginning.
 * The rest is as for rdma_easy_post_send; -ERANGE also if the bytes are not within the peer's memory. If the
 * peer's memory has no such right, or is freed, the connection breaks.
 */
int rdma_easy_post_write(struct rdma_easy_connection *connection,
                         const struct rdma_easy_piece *pieces,
                         size_t count,
                         const struct rdma_easy_remote *remote,
                         uint32_t offset,
                         uint32_t flags,
                         void *context);

/**
 * Posts a read: bytes of the peer's memory go to these pieces, one after the other. The peer is not told. It
 * does not block.
 *
 * `pieces`: `count` pieces of regions with RDMA_EASY_READ_TARGET. The device fills one piece by itself; a
 * read into several has to be signaled, and is copied when its completion is taken.
 * The rest is as for rdma_easy_post_write; -EACCES if a region lacks the right.
 */
int rdma_easy_post_read(struct rdma_easy_connection *connection,
                        const struct rdma_easy_piece *pieces,
                        size_t count,
                        const struct rdma_easy_remote *remote,
                        uint32_t offset,
                        uint32_t flags,
                        void *context);

/**
 * Takes the completions of the oldest requests of a queue, in the order of posting. It blocks until `count`
 * of them are done, `timeout_ms` milliseconds at most; without end if that is below 0. If fewer requests
 * are left whose completions can be taken, it waits for those only.
 *
 * `queue`: RDMA_EASY_SENDS or RDMA_EASY_RECEIVES.
 * `completions`: room for `count`.
 * Returns how many were taken, at least 1; -ETIMEDOUT if none is done when the time is over; -ENODATA if no
 * request is left; -EINVAL for a wrong queue, or a count of 0; -EBADF if it is no connection. A request that
 * failed is a completion with its error.
 */
int rdma_easy_await(struct rdma_easy_connection *connection,
                    int queue,
                    struct rdma_easy_completion *completions,
                    size_t count,
                    int timeout_ms);

/**
 * Tells the peer of memory of this side, by a message of 16 bytes: address (8), key (4) and length (4), each
 * big-endian, as rdma-core's `rping` does. The peer needs a receive for it. It does not block.
 *
 * `region`: with RDMA_EASY_REMOTE_WRITE or RDMA_EASY_REMOTE_READ. `offset`, `length`: in bytes.
 * Returns 0; -ERANGE if the bytes are not within the region; -EAGAIN if too much is posted; -ENOTCONN if
 * there is no connection; -EXDEV if the region is of another domain; -EBADF if either is none.
 */
int rdma_easy_advertise(struct rdma_easy_connection *connection,
                        struct rdma_easy_region *region,
                        size_t offset,
                        size_t length);

/**
 * Posts a receive for an advertisement of the peer, as rdma_easy_post_receive posts one for a message: in
 * this order the peer has to send. It does not block.
 *
 * Returns 0; -EAGAIN if too much is posted; -EBADF if it is no connection; the reason if the connection has
 * ended.
 */
int rdma_easy_expect_advert(struct rdma_easy_connection *connection);

/**
 * Waits for the peer's next advertisement: `timeout_ms` milliseconds at most; without end if that is below
 * 0.
 *
 * `remote`: gets the peer's memory.
 * Returns 0; -ETIMEDOUT; -ENODATA if rdma_easy_expect_advert has posted no receive; -EBADMSG if the message
 * is no advertisement; -ENOTCONN if there is no connection yet or no more; -EBADF if it is none; the reason
 * if the connection broke.
 */
int rdma_easy_await_advert(struct rdma_easy_connection *connection,
                           int timeout_ms,
                           struct rdma_easy_remote *remote);

/**
 * Makes an event loop on a domain. It does not block.
 *
 * `sizes`: NULL for the defaults. `callbacks`: copied. `user`: for the callbacks.
 * `event_loop`: gets the loop, which rdma_easy_loop_free frees.
 * Returns 0; -EINVAL for sizes outside their limits; -EBADF if it is no domain.
 */
int rdma_easy_loop_create(struct rdma_easy_domain *domain,
                          const struct rdma_easy_loop_sizes *sizes,
                          const struct rdma_easy_callbacks *callbacks,
                          void *user,
                          struct rdma_easy_loop **event_loop);

/**
 * Frees an event loop. Its connections are ended in order, without waiting for that, and the handles of its
 * peers are invalid. Messages that were not sent have failed. It does not block.
 *
 * Returns 0; -EBADF if it is none.
 */
int rdma_easy_loop_free(struct rdma_easy_loop *event_loop);

/**
 * Listens, as long as the loop lives. It does not block, but for the name of the host.
 *
 * `host`: the address to listen on, or its name. `port`: 0 for any free one.
 * `backlog`: requests that may wait to be reported; further ones are cut.
 * Returns the port, 1 to 65535; -EADDRNOTAVAIL; -EADDRINUSE; -EBADF if it is no loop; the system's error.
 */
int rdma_easy_loop_listen(struct rdma_easy_loop *event_loop,
                          const char *host,
                          uint16_t port,
                          uint32_t backlog);

/**
 * Begins to connect to an event loop that listens. `established` or `ended` tells the outcome. It does not
 * block, but for the name of the host.
 *
 * `host`, `port`: as for rdma_easy_connect.
 * `data`: private data of `length` bytes for the peer; at most 44 go with every device.
 * `peer`: gets the peer.
 * Returns 0; -EADDRNOTAVAIL if the host is unknown; -EINVAL for too much data; -EBADF if it is no loop; the
 * device's error.
 */
int rdma_easy_loop_connect(struct rdma_easy_loop *event_loop,
                           const char *host,
                           uint16_t port,
                           const void *data,
                           size_t length,
                           struct rdma_easy_peer **peer);

/**
 * Accepts a request that the callback `request` has got. `established` or `ended` tells the outcome. It does
 * not block.
 *
 * `data`: private data of `length` bytes for the peer; at most 184 go with every device.
 * `peer`: gets the peer.
 * Returns 0; -EBADF if it is no loop, or no request, or answered; -EINVAL for too much data, or for a
 * request of rdma_easy_get_request; the device's error.
 */
int rdma_easy_loop_accept(struct rdma_easy_loop *event_loop,
                          struct rdma_easy_request *request,
                          const void *data,
                          size_t length,
                          struct rdma_easy_peer **peer);

/**
 * Makes progress and calls the callbacks, for at most 256 events. It blocks until there is one, `timeout_ms`
 * milliseconds at most; without end if that is below 0. Then it reports what there is without blocking.
 *
 * A program that waits by the descriptor of the domain calls this with a time-out of 0 before it waits, and
 * whenever the descriptor is readable.
 *
 * Returns the number of events, 0 if the time is over; -EBUSY in a callback, or while another thread does
 * the same; -EBADF if it is no loop.
 */
int rdma_easy_loop_dispatch(struct rdma_easy_loop *event_loop,
                            int timeout_ms);

/**
 * Begins the orderly end of a connection: it ends when the peer has everything that was sent. Nothing more
 * can be sent, and messages of the peer may still arrive until `ended` is called. It does not block.
 *
 * Returns 0; -EBADF if it is no peer.
 */
int rdma_easy_peer_disconnect(struct rdma_easy_peer *peer);

/**
 * Breaks a connection, or ends the attempt to make one. `ended` reports it. It does not block.
 *
 * Returns 0; -EBADF if it is no peer.
 */
int rdma_easy_peer_abort(struct rdma_easy_peer *peer);

/**
 * Posts a message to a peer. Until it is sent or has failed, its memory must not be changed. It does not
 * block.
 *
 * `length`: bytes of the message, from the beginning of its memory.
 * Returns 0; -EAGAIN if too many are posted: `sent` tells when there is room again; -EINVAL if the peer
 * takes no message of this length; -ERANGE if its memory is not so long; -EBUSY if it is posted; -ENOTCONN
 * if there is no connection yet, or its end has begun; -EXDEV if it is of another domain; -EBADF if either
 * is none.
 */
int rdma_easy_peer_send(struct rdma_easy_peer *peer,
                        struct rdma_easy_message *message,
                        size_t length);

/**
 * Allocates a message of at most `size` bytes, zeros at first. It can be sent again and again, one time
 * after the other. It does not block.
 *
 * `message`: gets the message, which rdma_easy_message_free frees.
 * Returns 0; -EINVAL for a size of 0, or above 4294967295; -ENOMEM; -EBADF if it is no domain.
 */
int rdma_easy_message_create(struct rdma_easy_domain *domain,
                             size_t size,
                             struct rdma_easy_message **message);

/**
 * The memory of a message, valid until it is freed.
 *
 * Returns NULL if it is no message.
 */
void *rdma_easy_message_base(struct rdma_easy_message *message);

/**
 * What became of a message.
 *
 * Returns RDMA_EASY_NEW, RDMA_EASY_POSTED, RDMA_EASY_SENT; a negative errno, with a text, if it failed;
 * -EBADF if it is no message.
 */
int rdma_easy_message_status(struct rdma_easy_message *message);

/**
 * Frees a message and its memory. It does not block.
 *
 * Returns 0; -EBUSY if it is posted; -EBADF if it is none.
 */
int rdma_easy_message_free(struct rdma_easy_message *message);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RDMA_EASY_H */
