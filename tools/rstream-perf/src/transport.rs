//! What carries bytes between two processes, each behind the same few calls, so that a measurement is written
//! once and compiled for each.

#[allow(unsafe_code, reason = "libfabric is C")]
pub(crate) mod fabric;
pub(crate) mod line;
#[allow(unsafe_code, reason = "memory of two processes")]
mod mapping;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod socket;

use anyhow::{Result, bail};

/// One end of a byte stream. No call waits: `None` is "not now".
pub(crate) trait Stream: Sized + Send {
    /// Answers how many bytes were taken.
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>>;

    /// Answers how many bytes were given, 0 at the end of the stream.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>>;

    /// Ends the stream in this direction, after what was sent.
    fn finish(&mut self) -> Result<()>;

    /// The same stream for another thread.
    fn twin(&self) -> Result<Self> {
        bail!("only one thread can use this stream")
    }

    /// Sleeps until one of the streams has what is waited for. It may wake for nothing.
    fn sleep(streams: &[Self], until: Interest) -> Result<()>;
}

/// What a sleeper waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Receive,
    Send,
    Both,
}

/// The side that is found.
pub(crate) trait Listener {
    type Stream: Stream;

    /// What the other process needs to find it, besides the host.
    fn target(&self) -> Result<String>;

    /// Waits for the next connection.
    fn accept(&mut self) -> Result<Self::Stream>;
}

/// The side that finds.
pub(crate) trait Connector {
    type Stream: Stream;

    fn connect(&mut self) -> Result<Self::Stream>;
}
