//! Ends of connections for tests, examples and benchmarks, and the documented way to drive them: poll until
//! there is nothing, arm, poll once more, then sleep until a wait set or a deadline of the device says so.
//! Every wait is bounded.
//!
//! | what | for whom |
//! |---|---|
//! | [`End`] | tests: a device with one completion queue, and whatever comes out of it. Its calls panic |
//! | [`Pair`] | tests: two ends driven by one thread |
//! | [`Connection`] | examples: one queue pair with calls that wait and answer a [`Result`] |
//! | [`step`] | who drives ends of several kinds at once |

mod connection;
mod end;
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
pub use pair::{Joined, Pair};

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);
/// How long to watch that nothing happens.
pub const QUIET: Duration = Duration::from_millis(50);

/// A queue pair that is in nobody's way.
pub const CAPABILITIES: QpCapabilities =
    QpCapabilities { send_depth: 16, recv_depth: 16, inline: 64, initiator_depth: 4, responder_resources: 4 };

/// How ends connect and listen unless they are told otherwise.
pub const OPTIONS: ConnectOptions = ConnectOptions { timeout: LIMIT, keepalive: LIMIT };

/// A plain send.
pub const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

/// Outcome of a call of a [`Connection`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why what was waited for does not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call was refused.
    #[error(transparent)]
    Verbs(#[from] rdma_verbs::Error),
    /// A message is longer than what it should be in.
    #[error(transparent)]
    Memory(#[from] rdma_verbs::memory::OutOfBounds),
    /// Nothing came within [`LIMIT`].
    #[error("waited in vain for {0}")]
    TimedOut(&'static str),
    /// The connection says something else.
    #[error("instead of {wanted} came {event:?}")]
    Event {
        /// What was waited for.
        wanted: &'static str,
        /// What came.
        event: ConnectionEvent,
    },
    /// A request did not succeed.
    #[error("{kind:?} ended with {status:?}, connection: {}", describe(event.as_ref()))]
    Request {
        /// What it was.
        kind: CompletionKind,
        /// How it ended.
        status: CompletionStatus,
        /// What the connection says of it.
        event: Option<ConnectionEvent>,
    },
}

/// An event for people: a broken connection by its reason.
fn describe(event: Option<&ConnectionEvent>) -> String {
    match event {
        Some(ConnectionEvent::Broken(reason)) => reason.to_string(),
        Some(event) => format!("{event:?}"),
        None => "stands".into(),
    }
}

/// Collects what there is at these ends, and sleeps if there is nothing: until something comes, until a
/// device wants to be called, or until `deadline`.
///
/// # Errors
/// [`Error::TimedOut`] with `what` was waited for, from `deadline` on; [`Error::Verbs`] if a queue cannot be
/// armed.
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
    // A nanosecond more, so that a deadline has passed when the wait is over.
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_nanos(1);
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut sources, Some(&left)) {
        Ok(_) | Err(Errno::INTR) if Instant::now() < deadline => Ok(()),
        Ok(_) | Err(Errno::INTR) => Err(Error::TimedOut(what)),
        Err(errno) => Err(rdma_verbs::Error::io("poll")(errno).into()),
    }
}

/// `length` bytes of a region, from `offset` on, for a local request.
///
/// # Panics
/// If no request can have so many bytes.
pub fn segment(region: &impl MemoryRegion, offset: usize, length: usize) -> Segment {
    let address = region.address() + offset as u64;
    let length = u32::try_from(length).expect("a segment has less than 4 GiB");
    Segment { key: region.local_key(), address, length }
}

/// A place in a region, as its peer names it.
pub fn remote(region: &impl MemoryRegion, offset: usize) -> RemoteAddress {
    RemoteAddress { key: region.remote_key(), address: region.address() + offset as u64 }
}

/// All bytes of a region.
pub fn bytes(region: &impl MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.memory().len()];
    region.memory().read(0, &mut bytes).expect("it is as long as it says");
    bytes
}

/// Bytes that differ at every place and from pattern to pattern.
pub fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + at / 251 + salt * 97) % 255) as u8 + 1).collect()
}
