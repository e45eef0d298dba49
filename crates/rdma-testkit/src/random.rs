//! Seeded random decisions, and tests that run with many seeds.

use std::env;

/// Highest probability of a fault that delays, in thousandths, so that progress is certain.
const MAX_DELAY_PROBABILITY: u16 = 900;

/// A seeded sequence of decisions: splitmix64, which is small and good enough to choose faults.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence number `stream` of a seed. The sequences of one seed are independent.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self { state: seed };
        let mut random = Self { state: mixer.next() ^ stream };
        random.state = random.next();
        random
    }

    /// Whether something happens that has this probability in thousandths.
    pub fn happens(&mut self, thousandths: u16) -> bool {
        thousandths > 0 && self.below(1000) < u64::from(thousandths)
    }

    /// Like [`Random::happens`], for faults that delay.
    pub(crate) fn delays(&mut self, thousandths: u16) -> bool {
        self.happens(thousandths.min(MAX_DELAY_PROBABILITY))
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: usize) -> usize {
        let bound = (most as u64).saturating_add(1);
        usize::try_from(self.below(bound)).unwrap_or(most)
    }

    /// One of these values.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.up_to(values.len() - 1)]
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

/// Runs `test` with each seed below `number`, or below `RSTREAM_TEST_SEEDS`, or only with
/// `RSTREAM_TEST_SEED`, if the environment has such a variable. Names the seed that fails.
///
/// # Panics
/// If such a variable holds anything but a number.
pub fn for_each_seed(number: u64, mut test: impl FnMut(u64)) {
    let variable = |name| {
        let value = env::var(name).ok()?;
        Some(value.parse().unwrap_or_else(|_| panic!("{name} is a decimal number")))
    };
    let seeds = match variable("RSTREAM_TEST_SEED") {
        Some(seed) => seed..=seed,
        None => 0..=variable("RSTREAM_TEST_SEEDS").unwrap_or(number).saturating_sub(1),
    };
    for seed in seeds {
        let _named = Named(seed);
        test(seed);
    }
}

/// Names a seed if the test fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed; replay it alone with RSTREAM_TEST_SEED={0}", self.0);
        }
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
