//! Pauses of random length, for tests. Built with `--cfg rstream_jitter` only.
//!
//! The threads of a process, and the two sides of a connection, then meet in orders that come once in thousands of
//! runs by themselves.

use std::hash::{BuildHasher, Hasher, RandomState};

use rustix::thread::nanosleep;
use rustix::time::Timespec;

/// Nanoseconds of the longest pauses, and how many calls of 64 pause up to so long.
const PAUSES: [(u64, u64); 2] = [(2_000_000, 1), (100_000, 12)];

/// Pauses, at times.
pub fn jitter() {
    // The standard library has no generator but that of its hash tables' keys.
    let random = RandomState::new().build_hasher().finish();
    let (choice, random) = (random % 64, random >> 6);
    if let Some(&(longest, _)) = PAUSES.iter().find(|&&(_, calls)| choice < calls) {
        let pause = Timespec { tv_sec: 0, tv_nsec: (random % longest).cast_signed() };
        let _ = nanosleep(&pause);
    }
}
