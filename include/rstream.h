#ifndef RSTREAM_H
#define RSTREAM_H

/* Generated from src/abi/header.rs by the build; do not edit. */

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#undef FI_EP_SOCK_STREAM
#undef FI_EPIPE

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

#endif  /* RSTREAM_H */
