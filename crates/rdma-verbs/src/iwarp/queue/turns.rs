//! Which queue pair comes next, where queue pairs take turns.
//!
//! Peers that are served in the same order again and again, as in collective operations and in tests of
//! request and answer, send in that order. A poll then tries the socket of the queue pair that followed the
//! last time, and saves the question which sockets are ready.

/// So many queue pairs have to come in the expected order before a poll relies on it.
const SURE: u8 = 3;
/// At most so many polls in a row rely on it: the other queue pairs are not to wait for long.
const MOST: u8 = 32;

/// The order in which queue pairs had something to receive. They are named by their position in the queue.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The queue pair that followed, by queue pair.
    after: Vec<usize>,
    last: usize,
    /// How many came in the expected order, as far as it matters.
    sure: u8,
    /// How many came since all sockets were asked.
    relied: u8,
}

impl Turns {
    /// The queue pair to try, if it is known well enough.
    pub(super) fn next(&self) -> Option<usize> {
        self.after.get(self.last).copied().filter(|_| self.sure >= SURE && self.relied < MOST)
    }

    /// Takes note that all sockets are asked.
    pub(super) fn ask_all(&mut self) {
        self.relied = 0;
    }

    /// Takes note of a queue pair that had something to receive.
    pub(super) fn came(&mut self, at: usize) {
        if self.after.get(self.last) == Some(&at) {
            self.sure = SURE.min(self.sure + 1);
        } else {
            self.sure = 0;
            self.after.resize(self.after.len().max(self.last + 1), at);
            self.after[self.last] = at;
        }
        self.last = at;
        self.relied = self.relied.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_was_seen_before_is_relied_on_and_not_for_ever() {
        let mut turns = Turns::default();
        for at in [4, 1, 7, 4, 1, 7, 4] {
            assert_eq!(turns.next(), None);
            turns.ask_all();
            turns.came(at);
        }
        let mut relied = 0;
        for at in [1, 7, 4].into_iter().cycle().take(10 * usize::from(MOST)) {
            match turns.next() {
                Some(next) => (relied += 1, assert_eq!(next, at)).0,
                None => turns.ask_all(),
            }
            turns.came(at);
        }
        assert_eq!(relied, 10 * (usize::from(MOST) - 1));
    }

    #[test]
    fn another_order_ends_that() {
        let mut turns = Turns::default();
        for at in [0, 1].into_iter().cycle().take(10) {
            turns.ask_all();
            turns.came(at);
        }
        assert_eq!(turns.next(), Some(0));
        turns.came(5);
        assert_eq!(turns.next(), None);
    }
}
