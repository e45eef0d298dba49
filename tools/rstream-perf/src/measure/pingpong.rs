//! A message there and one back, each trip timed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::{Clock, End};
use crate::job::{Job, Metric};
use crate::transport::Stream;

/// Trips between two looks at whether the time is over.
const TRIPS: usize = 16;
/// The longest trip that is told from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The active side.
pub(super) fn ask<S: Stream>(job: &Job, end: &mut End<S>) -> Result<Vec<(Metric, f64)>> {
    let mut message = vec![0; job.size];
    let metrics = timed(job, || {
        end.send_all(&message)?;
        ensure!(end.receive_all(&mut message)?, "the other side ended first");
        Ok(())
    })?;
    end.finish(&mut message)?;
    Ok(metrics)
}

/// Makes trips until the time is over.
pub(super) fn timed(job: &Job, mut trip: impl FnMut() -> Result<()>) -> Result<Vec<(Metric, f64)>> {
    let mut trips = Histogram::<u32>::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS)?;
    let of_clock = cost_of_clock();
    let mut clock = Clock::start(job);
    let mut last = Instant::now();
    while !clock.is_over(last, 0) {
        let warm = clock.is_warm();
        for _ in 0..TRIPS {
            trip()?;
            let now = Instant::now();
            if warm {
                trips.saturating_record(nanoseconds(now - last).saturating_sub(of_clock));
            }
            last = now;
        }
    }
    let at = |quantile| trips.value_at_quantile(quantile) as f64 / 1e3;
    Ok(vec![(Metric::Median, at(0.5)), (Metric::Percentile99, at(0.99)), (Metric::Percentile999, at(0.999))])
}

/// The passive side.
pub(super) fn answer<S: Stream>(job: &Job, end: &mut End<S>) -> Result<()> {
    let mut message = vec![0; job.size];
    while end.receive_all(&mut message)? {
        end.send_all(&message)?;
    }
    end.stream.finish()
}

/// Nanoseconds that looking at the clock takes: not the stream's.
fn cost_of_clock() -> u64 {
    const LOOKS: u32 = 1000;
    let start = Instant::now();
    let last = (0..LOOKS).fold(start, |_, _| Instant::now());
    nanoseconds((last - start) / LOOKS)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
