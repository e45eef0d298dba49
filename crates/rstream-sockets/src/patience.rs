//! How long a thread looks again before it sleeps, and how long it sleeps where no bell comes.
//!
//! A sleep and the bell that ends it take ten times as long as a message in shared memory. So a thread looks
//! for a while, as long as that has paid: each look that found something makes up for several that did not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::statistics::Looks;

/// How long a thread looks again before it sleeps, if nothing else is said.
pub const LOOK: Duration = Duration::from_micros(20);
/// The longest sleep of a call that sends, if it may end early: another thread may end the output, and the kernel
/// does not know of that.
pub const OUTPUT_SLEEP: Duration = Duration::from_millis(100);

/// What looking has brought. All that share one learn together.
#[derive(Debug)]
pub struct Patience {
    credit: AtomicU32,
    /// Sleeps without a look before.
    skipped: AtomicU32,
}

/// Looks that find nothing, in a row, until no thread looks any more.
const CREDIT: u32 = 16;
/// One that finds something is worth so many of them.
const WORTH: u32 = 4;
/// After so many sleeps a thread tries again.
const AGAIN: u32 = 32;
/// Looks between two questions for the time.
const LOOKS: u32 = 8;

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

impl Patience {
    /// Nothing is known yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { credit: AtomicU32::new(CREDIT), skipped: AtomicU32::new(0) }
    }

    /// Looks until `look` finds something, or for so long, if that has paid. Returns what it found. `counted`
    /// is where the look is counted.
    pub fn look<T>(
        &self,
        most: Duration,
        counted: &impl Looks,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if most.is_zero() || !self.has_paid() {
            return None;
        }
        let end = Instant::now() + most;
        let found = loop {
            if let Some(found) = (0..LOOKS).find_map(|_| {
                std::hint::spin_loop();
                look()
            }) {
                break Some(found);
            }
            if Instant::now() >= end {
                break None;
            }
        };
        self.learn(found.is_some());
        counted.count(found.is_some());
        found
    }

    /// Whether to look before the next sleep, for callers who look by themselves, and then
    /// [`Patience::learn`].
    #[must_use]
    pub fn has_paid(&self) -> bool {
        self.credit.load(Ordering::Relaxed) > 0
            || self.skipped.fetch_add(1, Ordering::Relaxed) % AGAIN == AGAIN - 1
    }

    /// Notes whether looking has found something.
    pub fn learn(&self, found: bool) {
        let credit = self.credit.load(Ordering::Relaxed);
        let credit = if found { (credit + WORTH).min(CREDIT) } else { credit.saturating_sub(1) };
        self.credit.store(credit, Ordering::Relaxed);
    }
}

/// The sleeps of a call that no bell ends: it looks again after each. They grow with the time that it has
/// waited, of which they add an eighth at most, so that a long wait costs next to no processor time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naps {
    /// When the first one began.
    begun: Option<Instant>,
}

/// The first naps, and the longest ones.
const SHORTEST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(16);

impl Naps {
    /// How long to sleep now.
    pub fn length(&mut self) -> Duration {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        (begun.elapsed() / 8).clamp(SHORTEST, LONGEST)
    }
}
