#ifndef RSTREAM_H
#define RSTREAM_H

/* Generated from src/abi/header.rs by the build; do not edit. */

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
 * `fi_ep_attr.type` of a byte stream endpoint. Headers of libfabric up to 1.20 have it as an
 * enumerator of this value; later ones make it a macro for `FI_EP_UNSPEC`, which this definition
 * replaces.
 */
#define FI_EP_SOCK_STREAM 4

/**
 * The sending side is shut: `EPIPE`, which libfabric's headers leave out.
 */
#define FI_EPIPE 32

/**
 * Least value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
 */
#define RSTREAM_BUF_SIZE_MIN 1

/**
 * Greatest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
 */
#define RSTREAM_BUF_SIZE_MAX 4294967295

/**
 * Value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE` unless set, in bytes.
 */
#define RSTREAM_BUF_SIZE_DEFAULT 32768

/**
 * Least value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
 */
#define RSTREAM_QUEUE_SIZE_MIN 3

/**
 * Greatest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages; a device may have less.
 */
#define RSTREAM_QUEUE_SIZE_MAX 65535

/**
 * Value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE` unless set, in messages.
 */
#define RSTREAM_QUEUE_SIZE_DEFAULT 384

/**
 * Figures of one connection, from its beginning; all 0 before it stands. Later versions may add
 * fields at the end.
 */
struct rstream_figures {
  /**
   * Bytes that calls took to send.
   */
  uint64_t bytes_sent;
  /**
   * Bytes that calls gave, those only peeked at not counted.
   */
  uint64_t bytes_received;
  /**
   * Calls of `fi_send`, `fi_sendv`, `fi_sendmsg` and `fi_inject`, peeks not counted.
   */
  uint64_t send_calls;
  /**
   * Calls of `fi_recv`, `fi_recvv` and `fi_recvmsg`, peeks not counted.
   */
  uint64_t receive_calls;
  /**
   * Of `send_calls`, those that answered `-FI_EAGAIN`: no room at the peer.
   */
  uint64_t send_waits;
  /**
   * Of `receive_calls`, those that answered `-FI_EAGAIN`: nothing there.
   */
  uint64_t receive_waits;
  /**
   * Data messages sent; one call takes more than one where a ring wraps.
   */
  uint64_t messages_sent;
  /**
   * Data messages received.
   */
  uint64_t messages_received;
  /**
   * Control messages sent: room and receives given back to the peer, ends of the stream.
   */
  uint64_t updates_sent;
  /**
   * Control messages received.
   */
  uint64_t updates_received;
  /**
   * Input of the peer that was refused because it broke a protocol. The first ends the
   * connection; the log has the numbers, as a warning.
   */
  uint64_t refused;
};

/**
 * What `fi_open_ops` gives under the name `RSTREAM_ENDPOINT_OPS`. Valid as long as the endpoint.
 */
struct rstream_endpoint_ops {
  /**
   * Size of this struct in the provider; later versions may add functions at the end.
   */
  size_t size;
  /**
   * Fills `figures`, which has `size` bytes (`sizeof *figures`); fields that the provider does
   * not have become 0. May be called at any time until the endpoint is closed, from any thread.
   * Answers 0, or `-FI_EINVAL` for a null pointer.
   */
  int (*figures)(struct fid_ep *ep, struct rstream_figures *figures, size_t size);
};

#endif  /* RSTREAM_H */

#ifdef __cplusplus
/* In C++ a field of an enumeration takes no plain number. */
#undef FI_EP_SOCK_STREAM
#define FI_EP_SOCK_STREAM (static_cast<enum fi_ep_type>(4))
#endif
