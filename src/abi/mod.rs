//! The C border of a libfabric provider: everything of C is behind this module, and what it gives
//! the rest of the crate is safe.
//!
//! | file | what it holds |
//! |---|---|
//! | `border` | the one function through which C calls Rust, with the only `catch_unwind` |
//! | `object`, `registry` | objects that C holds by pointer, and which of them are live |
//! | `ops/` | for each C op struct: a trait to implement, the shims, the table |
//! | `info/` | `struct fi_info`, read and made |
//! | `event`, `option`, `address`, `buffer` | what calls give and take: events, option values, socket addresses, bytes |
//! | `provider` | `struct fi_provider`, the entry |
//! | `cancel`, `fork` | threads that are cancelled and processes that fork |
//! | `log`, `params` | libfabric's logging and parameters |
//! | `errno`, `header`, `sys` | error numbers, our own constants, libfabric's types and constants |
//! | `constants` | those of libfabric's constants that concern a provider |
//!
//! Whoever implements a provider implements [`Provider`] and the traits of [`ops`] on types of
//! their own, gives objects out through [`New`], and never sees a pointer. Nothing here knows what
//! the objects do.

mod address;
mod border;
mod buffer;
mod cancel;
pub mod constants;
pub mod errno;
pub mod event;
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

pub use cancel::put_off;
pub use errno::{Errno, Result};
pub use event::{ErrorEvent, ErrorOut, Event, EventOut};
pub use header::rstream_stats as Stats;
pub use info::{FabricAttr, Info, InfoList, InfoRef};
pub use object::{
    AnyFid, ConnectionHandle, FidHandle, FidStruct, New, NewDomain, NewEndpoint, NewEventQueue, NewFabric,
    NewPassiveEndpoint,
};
pub use ops::{
    CmOps, Control, DomainOps, EndpointOps, EqAttr, EqOps, FabricOps, Fid, IOV_LIMIT, MsgOps, StatsOps,
};
pub use option::OptionOut;
pub use provider::{NAME, Provider, entry};

#[cfg(test)]
mod tests;
