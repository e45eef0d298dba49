//! Streams for tokio's runtime, as `tokio::net` has them. Feature `tokio`.
//!
//! A task that finds nothing lets others run and looks again for as long as that has paid, then asks its peer
//! for a bell and sleeps on the socket: the reactor sees the bell as it sees any byte.

mod core;
mod listener;
mod nap;
mod split;
mod stream;
pub(crate) mod wakers;

pub use listener::TcpListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
