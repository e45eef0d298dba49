//! Adaptive spin: whether a call that finds nothing spins before its caller sleeps.
//!
//! To sleep and be woken takes several microseconds and system calls on both sides, and a busy peer often
//! answers sooner. With an idle peer spinning is a waste. Each connection therefore adapts in each direction:
//! a useless spin doubles the number of sleeps without a spin that follow, up to [`LONGEST_PAUSE`], and a
//! spin that finds something halves it.

/// Most sleeps in a row without spinning.
const LONGEST_PAUSE: u8 = 63;
/// Sleeps without spinning at the start, because a short connection has no time to adapt.
const FIRST_PAUSE: u8 = 7;

/// The state of one direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveSpin {
    /// Sleeps between two spins.
    pause: u8,
    /// How many of them are left.
    left: u8,
}

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self { pause: FIRST_PAUSE, left: FIRST_PAUSE }
    }
}

impl AdaptiveSpin {
    /// Whether to spin before this sleep. Report the outcome with [`AdaptiveSpin::learn`].
    #[must_use]
    pub fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// Adapts to whether a spin `found` something.
    pub fn learn(&mut self, found: bool) {
        self.pause = if found { self.pause / 2 } else { (2 * self.pause + 1).min(LONGEST_PAUSE) };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of spins before `sleeps` sleeps, if each spin finds something or none does.
    fn spins(adaptive: &mut AdaptiveSpin, sleeps: u32, found: bool) -> u32 {
        let mut spins = 0;
        for _ in 0..sleeps {
            if adaptive.is_due() {
                adaptive.learn(found);
                spins += 1;
            }
        }
        spins
    }

    #[test]
    fn useless_spins_become_rare_and_useful_ones_frequent() {
        let mut adaptive = AdaptiveSpin::default();
        assert_eq!(spins(&mut adaptive, 7, true), 0);
        assert_eq!(spins(&mut adaptive, 4 + 2, true), 2);
        assert_eq!(spins(&mut adaptive, 100, true), 100);
        assert_eq!(spins(&mut adaptive, 2 + 4 + 8 + 16 + 32 + 64, false), 6);
        assert_eq!(spins(&mut adaptive, 6400, false), 100);
        assert_eq!(spins(&mut adaptive, 32 + 16 + 8 + 4 + 2 + 1, true), 6);
        assert_eq!(spins(&mut adaptive, 100, true), 100);
    }
}
