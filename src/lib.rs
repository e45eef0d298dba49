//! **rstream**: byte streams over RDMA for every libfabric application.
//!
//! The library is a libfabric provider. libfabric finds it by its file name and calls [`fi_prov_ini`], which
//! returns the function tables through which all other calls arrive.
//!
//! | module | purpose |
//! |---|---|
//! | [`abi`] | FFI boundary: libfabric's types, op tables, logging and parameters behind safe traits |
//! | `provider` | libfabric's objects: fabric, domain, endpoints, event queue |
//!
//! The stream over a queue pair ([`rstream_session`]), the stream protocol ([`rstream_protocol`]) and the
//! verbs core ([`rdma_verbs`]) are crates of their own. `docs/architecture.md` describes how they work
//! together and follows a sent and a received byte.

#![deny(unsafe_code)]
// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

#[allow(unsafe_code)]
pub mod abi;
mod provider;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

/// Entry point: libfabric calls it after loading the library. Returns the provider's description and
/// its first functions.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut abi::sys::fi_provider {
    abi::entry(&provider::Rstream)
}
