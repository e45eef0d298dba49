//! The FFI boundary of a libfabric provider. All C types and pointers stay inside this module; its public
//! interface is safe.
//!
//! | file | content |
//! |---|---|
//! | `ffi_boundary` | the function through which C calls Rust, with the only `catch_unwind` |
//! | `object`, `registry` | objects that C holds by pointer, and the set of live objects |
//! | `ops/` | for each C op struct: a trait to implement, the shims, the table |
//! | `info/` | reading and creating `struct fi_info` |
//! | `event`, `option`, `address`, `buffer` | arguments of calls: events, option values, socket addresses, bytes |
//! | `provider` | `struct fi_provider` and the entry point |
//! | `cancel`, `fork` | cancellation of threads, forks of the process |
//! | `log`, `params` | libfabric's logging and parameters |
//! | `errno`, `header`, `sys` | error numbers, the source of `rstream.h`, libfabric's types and constants |
//! | `constants` | libfabric's constants that a provider uses |
//!
//! A provider implements [`Provider`] and the traits of [`ops`] on its own types, and passes objects to the
//! application through [`New`]. It handles no pointers. This module does not know what the objects do.

mod address;
mod buffer;
mod cancel;
pub mod constants;
pub mod errno;
pub mod event;
mod ffi_boundary;
mod fork;
pub mod header;
pub mod info;
mod log;
mod object;
pub mod ops;
pub mod option;
pub mod params;
mod provider;
mod registry;
pub mod sys;

pub use cancel::defer_cancellation;
pub use errno::{Errno, Result};
pub use event::{ErrorEvent, ErrorOut, Event, EventOut};
pub use header::rstream_stats as Stats;
pub use info::{FabricAttr, Info, InfoList, InfoRef};
pub use object::{
    AnyFid, ConnectionHandle, FidHandle, FidStruct, New, NewDomain, NewEndpoint, NewEventQueue, NewFabric,
    NewPassiveEndpoint,
};
pub use ops::{
    CmOps, Control, DomainOps, EndpointOps, EqAttr, EqOps, FabricOps, Fid, IOV_LIMIT, StatsOps, StreamOps,
};
pub use option::OptionOut;
pub use provider::{NAME, Provider, entry};

#[cfg(test)]
mod tests;
