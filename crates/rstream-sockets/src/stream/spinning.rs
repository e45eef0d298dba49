//! Recognizes callers that look for input again and again without a sleep: they need no bell.

use rstream_ring::Reader;
use rustix::time::{ClockId, clock_gettime};

use super::Stream;
use super::wait::System;
use crate::shared::Input;

/// Of the calls of such a caller, one in so many looks at the kernel.
const LOOK: u32 = 512;
/// Calls in a row that found nothing, each at most so many nanoseconds after the one before: there was no sleep in
/// between, not even one that is not seen here.
const CALLS: u32 = 16;
const SOON: u64 = 5_000;

/// Counts a call that has found nothing in the ring. Returns whether that is all it has to do.
pub(super) fn spins(state: &mut Input) -> bool {
    state.empty = state.empty.wrapping_add(1);
    state.spins && !state.empty.is_multiple_of(LOOK)
}

impl Stream {
    /// After a call that has found nothing, in the kernel either: decides whether its caller spins. `was_rung`: there
    /// were bells, which may have woken it.
    pub(super) fn note_nothing(&self, state: &mut Input, reader: &mut Reader, was_rung: bool) {
        let now = nanoseconds();
        if was_rung || now.saturating_sub(state.looked) > SOON {
            state.empty = 1;
        }
        state.looked = now;
        if !state.spins && state.empty >= CALLS {
            state.spins = true;
            self.words().sleepers.silence(&System, reader);
        }
    }
}

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
