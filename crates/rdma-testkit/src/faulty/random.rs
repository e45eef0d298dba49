//! The random generator: splitmix64, which is small and good enough to choose faults.

/// Highest probability of a fault that delays, in thousandths, so that progress is certain.
const MAX_DELAY_PROBABILITY: u16 = 900;

/// A seeded sequence of decisions.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// The sequence number `stream` of a seed. The sequences of one seed are independent.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self { state: seed };
        let mut random = Self { state: mixer.next() ^ stream };
        random.state = random.next();
        random
    }

    /// Whether something happens that has this probability in thousandths.
    pub(super) fn happens(&mut self, thousandths: u16) -> bool {
        thousandths > 0 && self.below(1000) < u64::from(thousandths)
    }

    /// Like [`Random::happens`], for faults that delay.
    pub(super) fn delays(&mut self, thousandths: u16) -> bool {
        self.happens(thousandths.min(MAX_DELAY_PROBABILITY))
    }

    /// A number from 0 to `most`.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        let bound = (most as u64).saturating_add(1);
        usize::try_from(self.below(bound)).unwrap_or(most)
    }

    /// A number below `bound`, which is not 0. The bias of the remainder is negligible.
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
        let mut random = Random { state: 0 };
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn probabilities_hold() {
        let mut random = Random::new(7, 0);
        assert!(!(0..1000).any(|_| random.happens(0)));
        assert!((0..1000).all(|_| random.happens(1000)));
        let hits = (0..100_000).filter(|_| random.happens(250)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!((0..1000).any(|_| !random.delays(1000)), "a delay is never certain");
        assert!((0..1000).all(|_| random.up_to(3) <= 3));
    }

    #[test]
    fn seeds_and_streams_differ_and_repeat() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..4).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
