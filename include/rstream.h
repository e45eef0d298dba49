#ifndef RSTREAM_H
#define RSTREAM_H

/* Generated from src/abi/header.rs by tools/c-headers; do not edit. */

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#undef FI_EP_SOCK_STREAM
#undef FI_EPIPE

/**
 * Name by which `fi_open_ops` on an active endpoint gives a `struct rstream_endpoint_ops`.
 */
#define RSTREAM_ENDPOINT_OPS "rstream_endpoint_ops"

/**
 * `fi_ep_attr.type` of a byte stream endpoint. Headers of libfabric up to 1.20 define it as an
 * enumerator of this value; later ones make it a macro for `FI_EP_UNSPEC`. This definition
 * replaces both.
 */
#define FI_EP_SOCK_STREAM 4

/**
 * The sending side is shut down. Equal to the system's `EPIPE`; libfabric's headers omit it.
 */
#define FI_EPIPE 32

/**
 * Smallest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
 */
#define RSTREAM_BUF_SIZE_MIN 1

/**
 * Largest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
 */
#define RSTREAM_BUF_SIZE_MAX 4294967295

/**
 * Default value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
 */
#define RSTREAM_BUF_SIZE_DEFAULT 32768

/**
 * Smallest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
 */
#define RSTREAM_QUEUE_SIZE_MIN 3

/**
 * Largest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages. A device may support less.
 */
#define RSTREAM_QUEUE_SIZE_MAX 65535

/**
 * Default value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
 */
#define RSTREAM_QUEUE_SIZE_DEFAULT 384

/**
 * Statistics of one connection since it was established; all 0 before that. Later versions may
 * append fields. Fields that are of streams only are 0 for message endpoints, and the reverse.
 */
struct rstream_stats {
  /**
   * Bytes that send calls accepted.
   */
  uint64_t bytes_sent;
  /**
   * Bytes that receive calls returned, without peeks; of message endpoints, bytes that receives took.
   */
  uint64_t bytes_received;
  /**
   * Calls of `fi_send`, `fi_sendv`, `fi_sendmsg` and `fi_inject`, without peeks; of message endpoints,
   * calls that posted a send, a read or a write, and `send_waits`.
   */
  uint64_t send_calls;
  /**
   * Calls of `fi_recv`, `fi_recvv` and `fi_recvmsg`, without peeks. Streams only.
   */
  uint64_t receive_calls;
  /**
   * Those of `send_calls` that returned `-FI_EAGAIN`: the peer had granted no room, or, of message
   * endpoints, the queue was full or the connection not established.
   */
  uint64_t send_waits;
  /**
   * Those of `receive_calls` that returned `-FI_EAGAIN`: no byte had arrived. Streams only.
   */
  uint64_t receive_waits;
  /**
   * Data messages sent. One call on a stream sends several where a ring wraps, and none once the stream
   * has moved to shared memory.
   */
  uint64_t messages_sent;
  /**
   * Data messages received.
   */
  uint64_t messages_received;
  /**
   * Control messages sent. They return room and receives to the peer, or end the stream. Streams
   * only.
   */
  uint64_t updates_sent;
  /**
   * Control messages received. Streams only.
   */
  uint64_t updates_received;
  /**
   * Inputs of the peer that violated a protocol. The first one ends the connection and is logged
   * with the numbers: as a warning for streams, at level info for message endpoints.
   */
  uint64_t refused;
  /**
   * Messages that found no receive posted, or too many unread entries of writes with data, and waited; not
   * known on RDMA devices. Message endpoints only, like the fields that follow.
   */
  uint64_t stalls;
  /**
   * Those of `messages_received` that were longer than their receive. `bytes_received` has what
   * fitted.
   */
  uint64_t truncated;
  /**
   * Reads of the peer's memory that were posted.
   */
  uint64_t reads;
  /**
   * Their bytes.
   */
  uint64_t bytes_read;
  /**
   * Writes to the peer's memory that were posted.
   */
  uint64_t writes;
  /**
   * Their bytes.
   */
  uint64_t bytes_written;
};

/**
 * The function table that `fi_open_ops` returns for the name `RSTREAM_ENDPOINT_OPS`. Valid until the
 * endpoint is closed.
 */
struct rstream_endpoint_ops {
  /**
   * Size of this structure in the provider. Later versions may append functions.
   */
  size_t size;
  /**
   * Writes the statistics of `ep` to `stats`, which is `size` bytes long (`sizeof *stats`). Fields
   * that this provider does not have become 0. Any thread may call this at any time until the
   * endpoint is closed. Returns 0, or `-FI_EINVAL` for a null pointer.
   */
  int (*stats)(struct fid_ep *ep, struct rstream_stats *stats, size_t size);
};

#endif  /* RSTREAM_H */

#ifdef __cplusplus
/* In C++ a field of an enumeration takes no plain number. */
#undef FI_EP_SOCK_STREAM
#define FI_EP_SOCK_STREAM (static_cast<enum fi_ep_type>(4))
#endif
