//! The FFI boundary of a libfabric provider. All C types and pointers stay inside this module; its public
//! interface is safe.
//!
//! | file | content |
//! |---|---|
//! | `ffi_boundary` | the function through which C calls Rust, with the only `catch_unwind` |
//! | `object`, `registry` | objects that C holds by pointer, and the set of live objects |
//! | `ops/` | for each C op struct: a trait to implement, the shims, the table |
//! | `info/` | reading and creating `struct fi_info` |
//! | `event`, `completion`, `err_data` | what queues report: events, completions, the data of errors |
//! | `option`, `address`, `buffer` | arguments of calls: option values, socket addresses, memory |
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
mod completion;
pub mod constants;
mod err_data;
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
mod receive_buffer;
mod registry;
pub mod sys;

/// Memory that the application lends to a memory region.
pub use rdma_verbs::Memory;
/// Memory that the application lends to an operation.
pub use rdma_verbs::Place;

pub use buffer::MESSAGE_IOV_LIMIT;
pub use cancel::defer_cancellation;
pub use completion::{Completion, CompletionError, CompletionsOut, EntryFormat, UserContext};
pub use errno::{Errno, Result};
pub use event::{ErrorEvent, ErrorOut, Event, EventOut};
pub use header::rstream_stats as Stats;
pub use info::{FabricAttr, Info, InfoList, InfoRef, RxAttr};
pub use object::{
    AnyFid, ConnectionHandle, FidHandle, FidStruct, New, NewCompletionQueue, NewCounter, NewDomain,
    NewEndpoint, NewEventQueue, NewFabric, NewMemoryRegion, NewPassiveEndpoint, NewSharedReceive,
};
pub use ops::{
    CmOps, CntrAttr, CntrOps, Control, CqAttr, CqOps, DomainOps, EndpointOps, EqAttr, EqOps, FabricOps, Fid,
    IOV_LIMIT, MemoryPiece, MessageOps, MessageReceive, MessageSend, PayloadPlaces, Registration,
    RemotePiece, RmaCall, RmaOps, StatsOps, StreamOps, TaggedOps, Tags, USER_EVENT_LIMIT,
};
pub use option::OptionOut;
pub use provider::{NAME, Provider, entry};
pub use receive_buffer::ReceiveBuffer;

#[cfg(test)]
pub(crate) mod tests;
