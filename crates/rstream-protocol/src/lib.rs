#![doc = include_str!("../README.md")]
//!
//! # Calls
//!
//! ```text
//!             Offer, negotiate ──▶ Setup ──▶ Stream
//! fi_send ──▶ sendable, next_write ──────▶ WriteMessage ───▶ write (and word) to post
//! any call ─▶ next_control until None ───▶ ControlMessage ─▶ word to post
//! send completion ────▶ on_sent
//! receive completion ─▶ on_arrival, repost the receive at once
//! fi_recv ──▶ span, copy, consume; receive_end when nothing is readable
//! fi_shutdown, fi_close ──▶ shut_send, shut_recv, close; is_over, outgoing_done
//! connection event ───────▶ on_disconnected, on_broken
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
// Input of a peer never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

extern crate alloc;

mod connection;
mod credits;
pub mod hello;
mod negotiate;
mod offer;
#[cfg(any(test, feature = "pair"))]
#[doc(hidden)]
#[allow(clippy::expect_used, clippy::panic, reason = "a test, which fuzz targets run too")]
pub mod pair;
mod recv;
mod refusal;
mod ring;
mod send;
mod setup;
mod side;
mod slots;
pub mod tag;
mod traffic;
mod violation;
mod words;

#[cfg(test)]
mod tests;

pub use connection::{Arrival, ControlMessage, RecvState, SendEnd, Stream, WriteMessage};
pub use credits::LEAST_RECEIVES;
pub use hello::Hello;
pub use negotiate::{Features, negotiate};
pub use offer::{Extension, Offer, OfferError, VERSION};
pub use recv::Span;
pub use refusal::{Refusal, RefusalReason, UserDataTooLong};
pub use setup::{GUARANTEED_ROOM, Setup, SetupError};
pub use side::Side;
pub use slots::{CONTROL_ENTRIES, Ticket};
pub use traffic::Traffic;
pub use violation::Violation;
pub use words::{Control, SHORT_DATA_MOST, Word, WordFormat};
