//! libfabric's C types and constants, which `build.rs` generates from its headers. Names, layouts and values
//! are libfabric's; its manual describes them, starting with [`fabric(7)`].
//!
//! Enumerations are plain integers, because a caller may be newer than these headers.
//!
//! [`fabric(7)`]: https://ofiwg.github.io/libfabric/main/man/fabric.7.html

pub use super::header::FI_EP_SOCK_STREAM;

/// `fi_info.addr_format`: IPv4 or IPv6. In libfabric's headers since 1.18.
pub const FI_SOCKADDR_IP: u32 = 17;

/// An API version, as the macro `FI_VERSION` gives it.
pub(super) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// A source address that is not available.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = fi_addr_t::MAX;
/// Key of a memory region that peers cannot access.
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// `fi_ep_attr.tx_ctx_cnt` and `rx_ctx_cnt` of an endpoint with a shared context.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;

// Constants that some versions of the headers lack. Later ones deprecate or drop the first ones.
/// `fi_domain_attr.mr_mode`: not a set of bits, but the mode before 1.5 that has addresses and keys of the
/// provider.
pub const FI_MR_BASIC: i32 = 1 << 0;
/// `fi_domain_attr.mr_mode`: not a set of bits, but the mode before 1.5 that has offsets and keys of the
/// application.
pub const FI_MR_SCALABLE: i32 = 1 << 1;
/// Mode of an application before 1.5: it registers local memory.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// `fi_tx_attr.comp_order`, `fi_rx_attr.comp_order`: completions in the order of the operations.
pub const FI_ORDER_STRICT: u64 = 0x1ff;
/// Flag of an operation.
pub const FI_PRIORITY: u64 = 1 << 22;
/// [`FI_PRIORITY`] as libfabric's own providers use it since 2.0.
pub const OFI_PRIORITY: u64 = 1 << 62;
/// Flag of `fi_mr_regattr`: the memory is a `dma-buf`. Since 1.20.
pub const FI_MR_DMABUF: u64 = 1 << 40;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use generated::*;
