#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod blocking;
mod connection;
#[cfg(feature = "endpoint")]
pub mod endpoint;
mod listener;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use connection::Path;
pub use listener::{Incoming, TcpListener};
pub use stream::TcpStream;
