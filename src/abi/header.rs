//! Definitions that a C program needs to use this provider and that libfabric's headers lack.
//! `tools/c-headers` writes `include/rstream.h` from this file.

use std::ffi::c_int;

use super::sys::fid_ep;

/// `fi_ep_attr.type` of a byte stream endpoint. Headers of libfabric up to 1.20 define it as an
/// enumerator of this value; later ones make it a macro for `FI_EP_UNSPEC`. This definition
/// replaces both.
pub const FI_EP_SOCK_STREAM: u32 = 4;

/// The sending side is shut down. Equal to the system's `EPIPE`; libfabric's headers omit it.
pub const FI_EPIPE: i32 = 32;

/// Smallest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
pub const RSTREAM_BUF_SIZE_MIN: u32 = 1;

/// Largest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
pub const RSTREAM_BUF_SIZE_MAX: u32 = 0xffff_ffff;

/// Default value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
pub const RSTREAM_BUF_SIZE_DEFAULT: u32 = 0x8000;

/// Smallest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
pub const RSTREAM_QUEUE_SIZE_MIN: u32 = 3;

/// Largest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages. A device may support less.
pub const RSTREAM_QUEUE_SIZE_MAX: u32 = 0xffff;

/// Default value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
pub const RSTREAM_QUEUE_SIZE_DEFAULT: u32 = 384;

/// The name under which `fi_open_ops` on an active endpoint returns a `struct rstream_endpoint_ops`.
pub const RSTREAM_ENDPOINT_OPS: &str = "rstream_endpoint_ops";

/// Statistics of one connection since it was established; all 0 before that. Later versions may
/// append fields. Fields that are of streams only are 0 for message endpoints, and the reverse.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct rstream_stats {
    /// Bytes that send calls accepted.
    pub bytes_sent: u64,
    /// Bytes that receive calls returned, without peeks; of message endpoints, bytes that receives took.
    pub bytes_received: u64,
    /// Calls of `fi_send`, `fi_sendv`, `fi_sendmsg` and `fi_inject`, without peeks; of message endpoints,
    /// calls that posted a send, a read or a write, and `send_waits`.
    pub send_calls: u64,
    /// Calls of `fi_recv`, `fi_recvv` and `fi_recvmsg`, without peeks. Streams only.
    pub receive_calls: u64,
    /// Those of `send_calls` that returned `-FI_EAGAIN`: the peer had granted no room, or, of message
    /// endpoints, the queue was full or the connection not established.
    pub send_waits: u64,
    /// Those of `receive_calls` that returned `-FI_EAGAIN`: no byte had arrived. Streams only.
    pub receive_waits: u64,
    /// Data messages sent. One call on a stream sends several where a ring wraps, and none once the stream
    /// has moved to shared memory.
    pub messages_sent: u64,
    /// Data messages received.
    pub messages_received: u64,
    /// Control messages sent. They return room and receives to the peer, or end the stream. Streams
    /// only.
    pub updates_sent: u64,
    /// Control messages received. Streams only.
    pub updates_received: u64,
    /// Inputs of the peer that violated a protocol. The first one ends the connection and is logged
    /// with the numbers: as a warning for streams, at level info for message endpoints.
    pub refused: u64,
    /// Messages that found no receive posted, or too many unread entries of writes with data, and waited; not
    /// known on RDMA devices. Message endpoints only, like the fields that follow.
    pub stalls: u64,
    /// Those of `messages_received` that were longer than their receive. `bytes_received` has what
    /// fitted.
    pub truncated: u64,
    /// Reads of the peer's memory that were posted.
    pub reads: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Writes to the peer's memory that were posted.
    pub writes: u64,
    /// Their bytes.
    pub bytes_written: u64,
}

/// The function table that `fi_open_ops` returns for the name `RSTREAM_ENDPOINT_OPS`. Valid until the
/// endpoint is closed.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Debug)]
pub struct rstream_endpoint_ops {
    /// Size of this structure in the provider. Later versions may append functions.
    pub size: usize,
    /// Writes the statistics of `ep` to `stats`, which is `size` bytes long (`sizeof *stats`). Fields
    /// that this provider does not have become 0. Any thread may call this at any time until the
    /// endpoint is closed. Returns 0, or `-FI_EINVAL` for a null pointer.
    pub stats: Option<unsafe extern "C" fn(ep: *mut fid_ep, stats: *mut rstream_stats, size: usize) -> c_int>,
}

const _: () = assert!(FI_EPIPE == libc::EPIPE);
