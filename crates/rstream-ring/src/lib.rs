#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
// What a peer or a consumer says never panics: nothing outside tests asks for it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod control;
#[cfg(not(loom))]
mod diagnostics;
mod error;
#[allow(unsafe_code)]
mod lock;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod memory;
#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod models;
mod notifier;
#[cfg(not(loom))]
mod rendezvous;
mod ring;
#[cfg(not(loom))]
mod segment;
mod sleepers;
mod sync;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod user;
mod wait;

pub use error::{Error, Result};
pub use lock::{OwnedGuard, OwnedLock, Thread};
pub use notifier::{Notifier, Notify};
#[cfg(not(loom))]
pub use rendezvous::{Connected, Listener, Rendezvous, lengthen_table, move_up};
pub use ring::{Reader, ReaderState, Writer, WriterState};
#[cfg(not(loom))]
pub use segment::{RingSizes, Segment};
pub use sleepers::{Sleep, Sleepers, Threads};
#[cfg(not(loom))]
pub use sync::prepare;
pub use wait::{arm, ask};
