//! Whether a call looks again for a while before its caller goes to sleep.
//!
//! To sleep and be woken takes several microseconds and system calls on both sides, and a peer that is at it
//! often answers sooner. A peer that is not would cost the whole while for nothing, so each connection learns,
//! for each direction: every time in vain doubles the number of sleeps that come without looking again, up to
//! [`LONGEST_PAUSE`], and every success halves it.

/// Most sleeps in a row without looking again.
const LONGEST_PAUSE: u8 = 63;
/// The first sleeps are without: a connection that is soon over has learned nothing.
const FIRST_PAUSE: u8 = 7;

/// What was learned of one direction of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Sleeps between two times of looking again.
    pause: u8,
    /// How many of them are left.
    left: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self { pause: FIRST_PAUSE, left: FIRST_PAUSE }
    }
}

impl Patience {
    /// Whether to look again before this sleep; say with [`Patience::learn`] what came of it.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// Whether something was `found` in time.
    pub(super) fn learn(&mut self, found: bool) {
        self.pause = if found { self.pause / 2 } else { (2 * self.pause + 1).min(LONGEST_PAUSE) };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `sleeps`, those before which it looked again, with this luck.
    fn looks(patience: &mut Patience, sleeps: u32, found: bool) -> u32 {
        let mut looks = 0;
        for _ in 0..sleeps {
            if patience.is_due() {
                patience.learn(found);
                looks += 1;
            }
        }
        looks
    }

    #[test]
    fn what_is_in_vain_becomes_rare_and_what_pays_frequent() {
        let mut patience = Patience::default();
        assert_eq!(looks(&mut patience, 7, true), 0);
        assert_eq!(looks(&mut patience, 4 + 2, true), 2);
        assert_eq!(looks(&mut patience, 100, true), 100);
        assert_eq!(looks(&mut patience, 2 + 4 + 8 + 16 + 32 + 64, false), 6);
        assert_eq!(looks(&mut patience, 6400, false), 100);
        assert_eq!(looks(&mut patience, 32 + 16 + 8 + 4 + 2 + 1, true), 6);
        assert_eq!(looks(&mut patience, 100, true), 100);
    }
}
