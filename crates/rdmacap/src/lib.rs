#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// No capture causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

pub mod advertised;
mod assemble;
mod bytes;
mod context;
mod figures;
pub mod file;
mod finding;
mod hash;
mod iwarp;
mod link;
mod operation;
mod ranges;
mod regions;
mod roce;
pub mod rpc;
pub mod rstream;
mod session;
mod table;
mod tcp;

pub use assemble::{Assembler, Content};
pub use figures::Figures;
pub use finding::{Finding, Severity, Topic};
pub use link::{Encapsulation, ROCE_PORT, digest};
pub use operation::{
    Access, Atomic, Carrier, Connection, Endpoint, Kind, Known, Operation, Outcome, Placement, Region, Side,
    Sink, Target,
};
pub use ranges::Ranges;
pub use session::{Config, Session};
