//! What a C program needs to use this provider and does not find in libfabric's headers: the
//! source of `include/rstream.h`, which the build generates from this file.

use std::ffi::c_int;

use super::sys::fid_ep;

/// `fi_ep_attr.type` of a byte stream endpoint. Headers of libfabric up to 1.20 have it as an
/// enumerator of this value; later ones make it a macro for `FI_EP_UNSPEC`, which this definition
/// replaces.
pub const FI_EP_SOCK_STREAM: u32 = 4;

/// The sending side is shut: `EPIPE`, which libfabric's headers leave out.
pub const FI_EPIPE: i32 = 32;

/// Least value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
pub const RSTREAM_BUF_SIZE_MIN: u32 = 1;

/// Greatest value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE`, in bytes.
pub const RSTREAM_BUF_SIZE_MAX: u32 = 0xffff_ffff;

/// Value of `FI_OPT_SEND_BUF_SIZE` and `FI_OPT_RECV_BUF_SIZE` unless set, in bytes.
pub const RSTREAM_BUF_SIZE_DEFAULT: u32 = 0x8000;

/// Least value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages.
pub const RSTREAM_QUEUE_SIZE_MIN: u32 = 3;

/// Greatest value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE`, in messages; a device may have less.
pub const RSTREAM_QUEUE_SIZE_MAX: u32 = 0xffff;

/// Value of `FI_OPT_TX_SIZE` and `FI_OPT_RX_SIZE` unless set, in messages.
pub const RSTREAM_QUEUE_SIZE_DEFAULT: u32 = 384;

/// Name by which `fi_open_ops` on an active endpoint gives a `struct rstream_endpoint_ops`.
pub const RSTREAM_ENDPOINT_OPS: &str = "rstream_endpoint_ops";

/// Figures of one connection, from its beginning; all 0 before it stands. Later versions may add
/// fields at the end.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct rstream_figures {
    /// Bytes that calls took to send.
    pub bytes_sent: u64,
    /// Bytes that calls gave, those only peeked at not counted.
    pub bytes_received: u64,
    /// Calls of `fi_send`, `fi_sendv`, `fi_sendmsg` and `fi_inject`, peeks not counted.
    pub send_calls: u64,
    /// Calls of `fi_recv`, `fi_recvv` and `fi_recvmsg`, peeks not counted.
    pub receive_calls: u64,
    /// Of `send_calls`, those that answered `-FI_EAGAIN`: no room at the peer.
    pub send_waits: u64,
    /// Of `receive_calls`, those that answered `-FI_EAGAIN`: nothing there.
    pub receive_waits: u64,
    /// Data messages sent; one call takes more than one where a ring wraps.
    pub messages_sent: u64,
    /// Data messages received.
    pub messages_received: u64,
    /// Control messages sent: room and receives given back to the peer, ends of the stream.
    pub updates_sent: u64,
    /// Control messages received.
    pub updates_received: u64,
    /// Input of the peer that was refused because it broke a protocol. The first ends the
    /// connection; the log has the numbers, as a warning.
    pub refused: u64,
}

/// What `fi_open_ops` gives under the name `RSTREAM_ENDPOINT_OPS`. Valid as long as the endpoint.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Debug)]
pub struct rstream_endpoint_ops {
    /// Size of this struct in the provider; later versions may add functions at the end.
    pub size: usize,
    /// Fills `figures`, which has `size` bytes (`sizeof *figures`); fields that the provider does
    /// not have become 0. May be called at any time until the endpoint is closed, from any thread.
    /// Answers 0, or `-FI_EINVAL` for a null pointer.
    pub figures:
        Option<unsafe extern "C" fn(ep: *mut fid_ep, figures: *mut rstream_figures, size: usize) -> c_int>,
}

const _: () = assert!(FI_EPIPE == libc::EPIPE);
