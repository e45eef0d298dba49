//! How long a close waits until the peer's host has everything.
//!
//! A peer can delay the end of its connection for the whole linger time, and a thread that closes one
//! connection after the other would wait as long for each. So all closes of the process share one allowance
//! of waiting time. It is as long as the linger time, and is restored within ten times as long. Each close
//! may wait for a hundredth of the linger time beside it, so that a close always waits for a peer that
//! answers soon.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time that a close spins before it sleeps between two looks. A peer on a near host that is awake answers
/// within it.
const NEAR: Duration = Duration::from_micros(50);
/// Longest pause between two looks at a connection that is closing.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Fraction of the linger time that each close may wait beside the allowance.
const OWN: u32 = 100;
/// The allowance is restored by this factor more slowly than it is used.
const RETURN: u32 = 10;

/// The wait of one close.
#[derive(Debug)]
pub struct Linger {
    most: Duration,
    closed: Instant,
    begun: Instant,
    pause: Duration,
}

impl Linger {
    /// For a connection whose both directions this side closed at `closed`. It waits until `most` later.
    #[must_use]
    pub fn since(closed: Instant, most: Duration) -> Self {
        Self { most, closed, begun: Instant::now(), pause: NEAR }
    }

    /// Waits for a moment. Returns `false`, without waiting, when the time is over.
    pub fn wait(&mut self) -> bool {
        static SHARED: Mutex<Allowance> = Mutex::new(Allowance { restored: None });
        let now = Instant::now();
        let waited = now - self.begun;
        let draws = || SHARED.lock().unwrap_or_else(PoisonError::into_inner).draw(self.pause, self.most, now);
        if waited >= self.most / OWN && (now - self.closed >= self.most || !draws()) {
            return false;
        }
        if waited < NEAR {
            std::thread::yield_now();
            return true;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Waiting time that all closes share.
struct Allowance {
    /// When all of it is restored; `None`: none was used yet.
    restored: Option<Instant>,
}

impl Allowance {
    /// Takes `time`, if that much of `whole` is left.
    fn draw(&mut self, time: Duration, whole: Duration, now: Instant) -> bool {
        let restored = self.restored.map_or(now, |restored| restored.max(now)) + time * RETURN;
        let enough = restored - now <= whole * RETURN;
        if enough {
            self.restored = Some(restored);
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn nobody_draws_more_than_there_is() {
        let start = Instant::now();
        let mut allowance = Allowance { restored: None };
        let mut draw = |time, now| allowance.draw(time, ms(100), now);
        assert!(!draw(ms(101), start));
        assert!(draw(ms(60), start));
        assert!(!draw(ms(41), start));
        assert!(draw(ms(40), start));
        assert!(!draw(ms(1), start));
        assert!(draw(ms(0), start));
    }

    #[test]
    fn it_comes_back_slowly_and_not_beyond_the_whole() {
        let start = Instant::now();
        let mut allowance = Allowance { restored: None };
        let mut draw = |time, now| allowance.draw(time, ms(100), now);
        assert!(draw(ms(100), start));
        assert!(!draw(ms(1), start + ms(9)));
        assert!(draw(ms(1), start + ms(10)));
        assert!(!draw(ms(51), start + ms(510)));
        assert!(draw(ms(50), start + ms(510)));
        assert!(!draw(ms(101), start + ms(100_000)));
        assert!(draw(ms(100), start + ms(100_000)));
    }

    #[test]
    fn without_linger_time_nothing_is_waited_for() {
        let start = Instant::now();
        assert!(!Allowance { restored: None }.draw(ms(1), ms(0), start + ms(1000)));
    }
}
