//! libfabric's C types and constants, which `build.rs` generates from its headers. Names, layouts and values
//! are libfabric's; its manual describes them, starting with [`fabric(7)`].
//!
//! Enumerations are plain integers, because a caller may be newer than these headers.
//!
//! [`fabric(7)`]: https://ofiwg.github.io/libfabric/main/man/fabric.7.html

pub use super::header::FI_EP_SOCK_STREAM;

/// `fi_info.addr_format`: IPv4 or IPv6. In libfabric's headers since 1.18.
pub const FI_SOCKADDR_IP: u32 = 17;

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
