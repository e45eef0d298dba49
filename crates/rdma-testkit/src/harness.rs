//! Ends of connections for tests, examples and benchmarks. They are driven as documented: poll until nothing
//! is found, arm, poll once more, then sleep until a wait set is readable or a deadline of the device has
//! come. Every wait is bounded.
//!
//! | item | purpose |
//! |---|---|
//! | [`End`] | tests: a device with one completion queue, and what it reported. Its calls panic on errors |
//! | [`Pair`] | tests: two ends driven by one thread |
//! | [`Lent`] | tests: memory for requests in places |
//! | [`Connection`] | examples: one queue pair with calls that wait and return a [`Result`] |
//! | [`step`] | drives several ends at once |

mod connection;
mod end;
#[allow(unsafe_code)]
mod lent;
mod pair;

use std::time::{Duration, Instant};

use rdma_verbs::{
    CompletionKind, CompletionQueue as _, CompletionStatus, ConnectOptions, ConnectionEvent, Device,
    MemoryRegion, Operation, QpCapabilities, RemoteAddress, Segment,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub use connection::Connection;
pub use end::{End, success};
pub use lent::Lent;
pub use pair::{Joined, Pair};

/// Longest time that anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Time without events after which nothing more is expected.
pub const QUIET: Duration = Duration::from_millis(50);

/// Capabilities that suffice for most tests.
pub const CAPABILITIES: QpCapabilities =
    QpCapabilities { send_depth: 16, recv_depth: 16, inline: 64, initiator_depth: 4, responder_resources: 4 };

/// The default options of ends.
pub const OPTIONS: ConnectOptions = ConnectOptions { timeout: LIMIT, keepalive: LIMIT };

/// A plain send.
pub const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

/// Outcome of a call of a [`Connection`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of a [`Connection`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call was refused.
    #[error(transparent)]
    Verbs(#[from] rdma_verbs::Error),
    /// A message is longer than its buffer.
    #[error(transparent)]
    Memory(#[from] rdma_verbs::memory::OutOfBounds),
    /// It did not happen within [`LIMIT`].
    #[error("waited in vain for {0}")]
    TimedOut(&'static str),
    /// The connection reported another event.
    #[error("instead of {wanted} came {event:?}")]
    Event {
        /// The expected event.
        wanted: &'static str,
        /// The reported event.
        event: ConnectionEvent,
    },
    /// A request failed.
    #[error("{kind:?} ended with {status:?}, connection: {}", describe(event.as_ref()))]
    Request {
        /// Its kind.
        kind: CompletionKind,
        /// Its status.
        status: CompletionStatus,
        /// The connection's event, if there is one.
        event: Option<ConnectionEvent>,
    },
}

/// The text for an event: for a broken connection, the reason.
fn describe(event: Option<&ConnectionEvent>) -> String {
    match event {
        Some(ConnectionEvent::Broken(reason)) => reason.to_string(),
        Some(event) => format!("{event:?}"),
        None => "established".into(),
    }
}

/// Collects the completions, events and requests of these ends. If there are none, sleeps until a wait set is
/// readable, until a deadline of a device, or until `deadline`.
///
/// # Errors
/// [`Error::TimedOut`] with `what`, which the caller waits for, from `deadline` on; [`Error::Verbs`] if a
/// queue cannot be armed.
pub fn step<D: Device>(ends: &mut [&mut End<D>], deadline: Instant, what: &'static str) -> Result<()> {
    let poll_all = |ends: &mut [&mut End<D>]| ends.iter_mut().fold(false, |any, end| end.poll() | any);
    if poll_all(ends) {
        return Ok(());
    }
    for end in ends.iter_mut() {
        end.cq.arm()?;
    }
    if poll_all(ends) {
        return Ok(());
    }
    let until = ends.iter().filter_map(|end| end.deadline()).fold(deadline, Instant::min);
    let sets = ends.iter().flat_map(|end| [&end.data, &end.events]);
    let mut sources: Vec<_> = sets.map(|set| PollFd::new(set.as_ref(), PollFlags::IN)).collect();
    // One nanosecond more, so that the deadline has passed when `poll` returns.
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_nanos(1);
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut sources, Some(&left)) {
        Ok(_) | Err(Errno::INTR) if Instant::now() < deadline => Ok(()),
        Ok(_) | Err(Errno::INTR) => Err(Error::TimedOut(what)),
        Err(errno) => Err(rdma_verbs::Error::io("poll")(errno).into()),
    }
}

/// The local segment of `length` bytes at `offset` in a region.
///
/// # Panics
/// If `length` does not fit in a segment.
pub fn segment(region: &impl MemoryRegion, offset: usize, length: usize) -> Segment {
    let address = region.address() + offset as u64;
    let length = u32::try_from(length).expect("a segment has less than 4 GiB");
    Segment { key: region.local_key(), address, length }
}

/// The remote address of `offset` in a region, for its peer.
pub fn remote(region: &impl MemoryRegion, offset: usize) -> RemoteAddress {
    RemoteAddress { key: region.remote_key(), address: region.address() + offset as u64 }
}

/// All bytes of a region.
pub fn bytes(region: &impl MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.memory().len()];
    region.memory().read(0, &mut bytes).expect("the buffer has the memory's length");
    bytes
}

/// Bytes that differ from place to place, and for each `salt`.
pub fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + at / 251 + salt * 97) % 255) as u8 + 1).collect()
}
