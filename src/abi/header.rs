//! What a C program needs to use this provider and does not find in libfabric's headers: the
//! source of `include/rstream.h`, which the build generates from this file.

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

const _: () = assert!(FI_EPIPE == libc::EPIPE);
