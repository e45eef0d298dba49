//! The stream protocol: byte streams in both directions between two peers that can write into each
//! other's memory and send each other small words. `docs/protocol.md` is its specification.
//!
//! Everything here is arithmetic on values. There is no I/O, clock, thread, pointer or error
//! number, and nothing is allocated once a [`Stream`] stands. The provider owns the memory and the
//! queue pair; it asks a `Stream` what to post, and tells it what was completed and what arrived:
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
//!
//! What a peer says is checked against what was outstanding before it changes anything; what does
//! not fit is a [`Violation`] that names the numbers, and the stream counts as broken from then on.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod connection;
mod credits;
mod negotiate;
mod offer;
#[cfg(any(test, feature = "pair"))]
#[doc(hidden)]
pub mod pair;
mod recv;
mod refusal;
mod ring;
mod send;
mod setup;
mod side;
mod slots;
mod traffic;
mod violation;
mod words;

#[cfg(test)]
mod tests;

pub use connection::{Arrival, ControlMessage, RecvState, SendEnd, Stream, WriteMessage};
pub use credits::LEAST_RECEIVES;
pub use negotiate::{Features, negotiate};
pub use offer::{Extension, Offer, OfferError, VERSION};
pub use recv::Span;
pub use refusal::{Refusal, RefusalReason, UserDataTooLong};
pub use setup::{GUARANTEED_ROOM, Setup, SetupError};
pub use side::Side;
pub use slots::{CONTROL_ENTRIES, Ticket};
pub use traffic::Traffic;
pub use violation::Violation;
pub use words::{SHORT_DATA_MOST, WordFormat};
