//! Registering memory and closing it again, which concerns one side alone.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Side;
use crate::job::{Job, Metric};
use crate::measure::Clock;

/// Regions that are open at a time.
const REGIONS: usize = 64;

/// The active side.
pub(super) fn ask(job: &Job, side: &mut Side) -> Result<Vec<(Metric, f64)>> {
    let mut regions = Vec::with_capacity(REGIONS);
    let (mut registering, mut closing, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    let mut clock = Clock::start(job);
    loop {
        let start = Instant::now();
        if clock.is_over(start, count) {
            break;
        }
        for number in 1..=REGIONS {
            regions.push(side.messages.register(job.size, number)?);
        }
        let registered = Instant::now();
        regions.clear();
        if clock.is_warm() {
            registering += registered - start;
            closing += registered.elapsed();
            count += REGIONS as u64;
        }
    }
    side.finish(0)?;
    let of_one = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
    Ok(vec![(Metric::Registering, of_one(registering)), (Metric::Closing, of_one(closing))])
}
