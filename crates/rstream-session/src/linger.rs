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
    /// Until when the waiting time is drawn. A pause may take longer than it was meant to.
    drawn: Instant,
    pause: Duration,
}

impl Linger {
    /// For a connection whose both directions this side closed at `closed`. It waits until `most` later.
    #[must_use]
    pub fn since(closed: Instant, most: Duration) -> Self {
        Self::begin(closed, most, Instant::now())
    }

    fn begin(closed: Instant, most: Duration, now: Instant) -> Self {
        Self { most, closed, begun: now, drawn: now + most / OWN, pause: NEAR }
    }

    /// Waits for a moment. Returns `false`, without waiting, when the time is over.
    pub fn wait(&mut self) -> bool {
        static SHARED: Mutex<Allowance> = Mutex::new(Allowance { restored: None });
        let now = Instant::now();
        if !self.goes_on(now, &mut SHARED.lock().unwrap_or_else(PoisonError::into_inner)) {
            return false;
        }
        if now - self.begun < NEAR {
            std::thread::yield_now();
            return true;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// Whether there is time left. Draws what has passed.
    fn goes_on(&mut self, now: Instant, allowance: &mut Allowance) -> bool {
        let Some(passed) = now.checked_duration_since(self.drawn) else { return true };
        self.drawn = now;
        now - self.closed < self.most && allowance.draw(passed, self.most, now)
    }
}

/// Waiting time that all closes share.
struct Allowance {
    /// When all of it is restored; `None`: none was used yet.
    restored: Option<Instant>,
}

impl Allowance {
    /// Takes `time`, or what is left of `whole`. Returns whether that was enough.
    fn draw(&mut self, time: Duration, whole: Duration, now: Instant) -> bool {
        let restored = self.restored.map_or(now, |restored| restored.max(now)) + time * RETURN;
        let empty = now + whole * RETURN;
        self.restored = Some(restored.min(empty));
        restored <= empty
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
        assert!(draw(ms(60), start));
        assert!(draw(ms(40), start));
        assert!(!draw(ms(1), start));
        assert!(draw(ms(0), start));
        assert!(draw(ms(9), start + ms(90)));
        assert!(!draw(ms(2), start + ms(90)), "there was 1 left");
    }

    #[test]
    fn it_comes_back_slowly_and_not_beyond_the_whole() {
        let start = Instant::now();
        let mut allowance = Allowance { restored: None };
        let mut draw = |time, now| allowance.draw(time, ms(100), now);
        assert!(draw(ms(100), start));
        assert!(!draw(ms(1), start + ms(9)));
        assert!(draw(ms(1), start + ms(19)));
        assert!(!draw(ms(51), start + ms(519)));
        assert!(draw(ms(50), start + ms(1019)));
        assert!(!draw(ms(101), start + ms(100_000)));
        assert!(draw(ms(100), start + ms(200_000)));
    }

    #[test]
    fn without_linger_time_nothing_is_waited_for() {
        let start = Instant::now();
        assert!(!Allowance { restored: None }.draw(ms(1), ms(0), start + ms(1000)));
    }

    /// As on a machine that is busy.
    #[test]
    fn pauses_that_take_too_long_are_drawn_as_they_are() {
        const CLOSES: u64 = 20;
        let start = Instant::now();
        let mut allowance = Allowance { restored: None };
        let mut now = start;
        for _ in 0..CLOSES {
            let mut linger = Linger::begin(now, ms(1000), now);
            while linger.goes_on(now, &mut allowance) {
                now += ms(5);
            }
        }
        // Each has a hundredth of its own, and ends with a pause that begins within its time. A tenth of all
        // comes back.
        let most = ms(1000) + ms(CLOSES * (10 + 5)) + ms(200);
        assert!(now - start <= most, "{:?}", now - start);
        assert!(now - start >= ms(1000));
    }
}
