//! **rstream**: byte streams over RDMA for every libfabric application.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C border: libfabric's types, op tables, logging and parameters behind safe traits |
//! | `provider` | libfabric's nouns: fabric, domain, endpoints, event queue |
//!
//! The stream protocol ([`rstream_protocol`]), the stream over a queue pair ([`rstream_session`]) and the verbs core
//! ([`rdma_verbs`]) are crates of their own.
//!
//! The library is a libfabric provider: libfabric finds it by file name, calls [`fi_prov_ini`],
//! and everything else follows from the tables that this returns.
//!
//! # The way of a received byte
//!
//! `fi_recv` locks the endpoint and, if its ring has nothing, polls the completion queue
//! (`connection.rs` in `rstream-session`). That is when the device looks: the embedded one reads its socket, or its shared
//! memory, and puts payload straight into the ring of the memory region that the peer named
//! (`iwarp/queue_pair/input.rs` and `iwarp/machine/receive.rs` in `rdma-verbs`). The completion says how much; [`rstream_protocol`]
//! checks that against what the peer was allowed, and answers where in the ring the application's next bytes are.
//! From there they are copied once, into the application's buffer.

#![deny(unsafe_code)]
// What a peer or an application says never panics: nothing outside tests asks for it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

#[allow(unsafe_code)]
pub mod abi;
mod provider;

/// Called by libfabric when it has loaded the library; answers what the provider is and where its
/// calls begin.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut abi::sys::fi_provider {
    abi::entry(&provider::Rstream)
}
