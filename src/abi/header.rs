//! Definitions that a C program needs to use this provider and that libfabric's headers lack. The build
//! generates `include/rstream.h` from this file.

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
/// append fields.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct rstream_stats {
    /// Bytes that send calls accepted.
    pub bytes_sent: u64,
    /// Bytes that receive calls returned, without peeks.
    pub bytes_received: u64,
    /// Calls of `fi_send`, `fi_sendv`, `fi_sendmsg` and `fi_inject`, without peeks.
    pub send_calls: u64,
    /// Calls of `fi_recv`, `fi_recvv` and `fi_recvmsg`, without peeks.
    pub receive_calls: u64,
    /// Those of `send_calls` that returned `-FI_EAGAIN`: the peer had granted no room.
    pub send_waits: u64,
    /// Those of `receive_calls` that returned `-FI_EAGAIN`: no byte had arrived.
    pub receive_waits: u64,
    /// Data messages sent. One call sends several where a ring wraps.
    pub messages_sent: u64,
    /// Data messages received.
    pub messages_received: u64,
    /// Control messages sent. They return room and receives to the peer, or end the stream.
    pub updates_sent: u64,
    /// Control messages received.
    pub updates_received: u64,
    /// Inputs of the peer that violated a protocol. The first one ends the connection and is logged
    /// as a warning with the numbers.
    pub refused: u64,
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
