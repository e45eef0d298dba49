//! How long `fi_close` waits until the peer's host has everything.
//!
//! A peer can hold up the end of its connection for the whole linger time, and a thread that closes one
//! endpoint after the other would wait that long for each. So what closes wait comes out of an allowance that all
//! of the process share: as long as the linger time, and whole again after ten times as long. A hundredth of the
//! linger time is each close's own, however late it comes, so that peers that answer soon are always waited for.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::config::Config;

/// For how long a close looks again and again before it sleeps between looks: a peer that is near and
/// awake answers within it.
const NEAR: Duration = Duration::from_micros(50);
/// Longest pause between two looks at a connection that is closing.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// One in so many parts of the linger time is each close's own.
const OWN: u32 = 100;
/// How much slower the allowance comes back than it goes.
const RETURN: u32 = 10;

/// The waiting of one close.
pub(super) struct Linger {
    most: Duration,
    closed: Instant,
    begun: Instant,
    pause: Duration,
}

impl Linger {
    /// Of a connection whose both directions this side closed at `closed`.
    pub(super) fn since(closed: Instant) -> Self {
        Self { most: Config::get().linger, closed, begun: Instant::now(), pause: NEAR }
    }

    /// Waits for a moment, unless the time is over. Answers whether it was not.
    pub(super) fn wait(&mut self) -> bool {
        static SHARED: LazyLock<Mutex<Allowance>> =
            LazyLock::new(|| Mutex::new(Allowance::new(Config::get().linger, Instant::now())));
        let now = Instant::now();
        let waited = now - self.begun;
        let is_over = || now - self.closed >= self.most || !SHARED.lock().draw(self.pause, now);
        if waited >= self.most / OWN && is_over() {
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

/// Time that all may use.
struct Allowance {
    whole: Duration,
    /// When nothing of it is missing any more.
    restored: Instant,
}

impl Allowance {
    fn new(whole: Duration, now: Instant) -> Self {
        Self { whole, restored: now }
    }

    /// Takes `time` out, if so much is left.
    fn draw(&mut self, time: Duration, now: Instant) -> bool {
        let restored = self.restored.max(now) + time * RETURN;
        let enough = restored - now <= self.whole * RETURN;
        if enough {
            self.restored = restored;
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
        let mut allowance = Allowance::new(ms(100), start);
        assert!(!allowance.draw(ms(101), start));
        assert!(allowance.draw(ms(60), start));
        assert!(!allowance.draw(ms(41), start));
        assert!(allowance.draw(ms(40), start));
        assert!(!allowance.draw(ms(1), start));
        assert!(allowance.draw(ms(0), start));
    }

    #[test]
    fn it_comes_back_slowly_and_not_beyond_the_whole() {
        let start = Instant::now();
        let mut allowance = Allowance::new(ms(100), start);
        assert!(allowance.draw(ms(100), start));
        assert!(!allowance.draw(ms(1), start + ms(9)));
        assert!(allowance.draw(ms(1), start + ms(10)));
        assert!(!allowance.draw(ms(51), start + ms(510)));
        assert!(allowance.draw(ms(50), start + ms(510)));
        assert!(!allowance.draw(ms(101), start + ms(100_000)));
        assert!(allowance.draw(ms(100), start + ms(100_000)));
    }

    #[test]
    fn without_linger_time_nothing_is_waited_for() {
        let start = Instant::now();
        assert!(!Allowance::new(ms(0), start).draw(ms(1), start + ms(1000)));
    }
}
