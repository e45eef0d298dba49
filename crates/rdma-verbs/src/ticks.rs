//! Moments that many connections share: one wake-up serves them all.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The next of the moments that lie `interval` apart, counted from one beginning for the whole
/// process.
pub(super) fn next_tick(interval: Duration) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let interval = interval.max(Duration::from_millis(1));
    let ticks = START.elapsed().as_nanos() / interval.as_nanos() + 1;
    *START + interval.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}
