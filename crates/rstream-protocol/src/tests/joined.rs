//! Ten thousand seeds of [`crate::pair`].

use crate::pair::{Choose, run};

/// Splitmix64: small, and good enough to decide what happens next.
struct Seeded(u64);

impl Choose for Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Names the seed if the test fails while it runs.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} failed; replay it alone with RSTREAM_TEST_SEED={}", self.0, self.0);
        }
    }
}

fn run_seed(seed: u64) {
    let _named = Named(seed);
    let mut choose = Seeded(seed);
    // Short runs end in the middle of things, long ones wrap small rings many times.
    let steps = choose.pick(&[10, 100, 400, 1500]);
    run(&mut choose, steps);
}

#[test]
fn two_joined_streams_keep_every_promise() {
    match std::env::var("RSTREAM_TEST_SEED") {
        Ok(seed) => run_seed(seed.parse().expect("RSTREAM_TEST_SEED is a decimal number")),
        // Miri is a thousand times slower.
        Err(_) => (0..if cfg!(miri) { 10 } else { 10_000 }).for_each(run_seed),
    }
}
