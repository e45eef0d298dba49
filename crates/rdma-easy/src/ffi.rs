//! The boundary: what C calls. Each function checks its arguments, and runs its body so that no panic leaves
//! it ([`call`](crate::error::call)). The header has the comments of the functions and types here.
//!
//! All unsafe code of the crate is here. Objects are named by handles, which are looked up and never
//! dereferenced, so pointers are only what a call reads from and writes to: `arguments` has that.
#![allow(non_camel_case_types, reason = "they are names of C")]
#![allow(unreachable_pub, reason = "C reaches them")]
#![allow(clippy::missing_safety_doc, reason = "the comments are those of the C header")]

mod arguments;
mod connection;
mod domain;
mod errors;
mod events;
mod fork;
mod region;
mod transfer;

pub use connection::{rdma_easy_connection, rdma_easy_listener, rdma_easy_request};
pub use domain::rdma_easy_domain;
pub(crate) use events::Program;
pub use events::{rdma_easy_loop, rdma_easy_message, rdma_easy_peer};
pub use region::rdma_easy_region;
