//! The generator that decides: splitmix64, small and good enough to choose faults.

/// Odds that hold something up are cut to this many thousandths, so that progress stays certain.
const MOST: u16 = 900;

/// A seeded sequence of decisions.
#[derive(Debug, Clone)]
pub(super) struct Dice {
    state: u64,
}

impl Dice {
    /// The sequence number `stream` of a seed; sequences of one seed are unrelated.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self { state: seed };
        let mut dice = Self { state: mixer.next() ^ stream };
        dice.state = dice.next();
        dice
    }

    /// Whether something of these odds happens, in thousandths.
    pub(super) fn happens(&mut self, thousandths: u16) -> bool {
        thousandths > 0 && self.below(1000) < u64::from(thousandths)
    }

    /// Like [`Dice::happens`] for what holds something up.
    pub(super) fn delays(&mut self, thousandths: u16) -> bool {
        self.happens(thousandths.min(MOST))
    }

    /// A number from 0 to `most`.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        let bound = (most as u64).saturating_add(1);
        usize::try_from(self.below(bound)).unwrap_or(most)
    }

    /// A number below `bound`, which is not 0. The bias of the remainder is far too small to matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        let mut dice = Dice { state: 0 };
        assert_eq!(dice.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(dice.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn odds_hold() {
        let mut dice = Dice::new(7, 0);
        assert!(!(0..1000).any(|_| dice.happens(0)));
        assert!((0..1000).all(|_| dice.happens(1000)));
        let hits = (0..100_000).filter(|_| dice.happens(250)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!((0..1000).any(|_| !dice.delays(1000)), "what delays is never certain");
        assert!((0..1000).all(|_| dice.up_to(3) <= 3));
    }

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        let draw = |seed, stream| {
            let mut dice = Dice::new(seed, stream);
            (0..4).map(|_| dice.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
