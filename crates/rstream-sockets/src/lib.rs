#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod bell;
mod counting;
mod delays;
#[cfg(rstream_jitter)]
mod jitter;
mod kernel;
mod lock;
mod meeting;
mod patience;
pub mod settings;
#[allow(unsafe_code)]
mod shared;
pub mod statistics;
mod stream;

#[cfg(test)]
mod tests;

pub use delays::Delays;
#[cfg(rstream_jitter)]
pub use jitter::jitter;
pub use kernel::{Counts, Kernel, Socket};
pub use meeting::{Report, set_reporter};
pub use patience::{LOOK, Naps, OUTPUT_SLEEP, Patience};
pub use stream::{Answer, Ready, Role, Step, Stream, TURNS, Then, Wait, WayBack};

/// Where a test may have the thread pause.
#[cfg(not(rstream_jitter))]
#[inline(always)]
pub fn jitter() {}

/// To be called in a process that is about to fork: `streams` are all that it has. What they share stays
/// shared, and none that is not upgraded yet is upgraded by both processes.
pub fn before_fork(streams: &mut dyn Iterator<Item = &Stream>) {
    shared::before_fork();
    streams.for_each(Stream::share);
}

/// To be called in the process that was forked, for the same streams.
pub fn after_fork(streams: &mut dyn Iterator<Item = &Stream>) {
    lock::forget_thread();
    statistics::forget();
    streams.for_each(Stream::leave_meeting);
}
