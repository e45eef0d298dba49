//! A byte stream over an RDMA queue pair: the protocol of [`rstream_protocol`], driven on a device of
//! [`rdma_verbs`]. Every call returns at once, and the caller's calls make all progress.
//!
//! | type | what it is |
//! |---|---|
//! | [`Settings`] | sizes of rings and queues, and how to connect |
//! | [`StreamQueuePair`] | a queue pair with the registered memory of one stream |
//! | [`Handshake`] | a connection attempt: both sides exchange their parameters |
//! | [`Connection`] | a stream: send, receive, peek, shut, close |
//! | [`Direct`] | send and receive in shared memory, without the lock that covers a connection |
//! | [`Linger`] | how long a close waits for the peer's host |
//!
//! A process whose streams may share memory with peers on its host calls [`prepare`] early: without it their
//! messages take longer.
//!
//! A caller that wants to sleep attaches a wait set ([`StreamQueuePair::attach`], [`Connection::attach`]).
//! After a call that returned [`Error::WouldBlock`] it arms the connection ([`Connection::arm`]), and sleeps
//! on the set.
//!
#![doc = concat!("```\n", include_str!("../examples/two_sides.rs"), "```")]
#![forbid(unsafe_code)]
// Input of a peer never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod connection;
mod direct;
mod error;
mod gather;
mod handshake;
mod linger;
mod parameters;
mod queue_pair;
mod settings;
mod sharing;
mod spin;
mod statistics;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Direction};
pub use direct::{Direct, Received};
pub use error::{Error, Result};
pub use gather::MAX_PIECES;
pub use handshake::{Handshake, Outcome, StartError, Started};
pub use linger::Linger;
pub use parameters::{BadParameters, Peer, refusal, user_data_room};
pub use queue_pair::StreamQueuePair;
pub use rstream_ring::{Thread, prepare};
pub use settings::{Settings, Sizes, run};
pub use spin::AdaptiveSpin;
pub use statistics::{Calls, Statistics};
