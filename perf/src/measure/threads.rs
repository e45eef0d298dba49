//! Both ways at once with two threads on each side: one sends while the other receives on the same stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::traffic::{Processor, both_ways_figures, chunk};
use super::{Clock, End};
use crate::job::{Job, Metric};
use crate::transport::Stream;

/// The active side: sends until the time is over, and receives until the end.
pub(super) fn exchange<S: Stream>(job: &Job, end: &mut End<S>) -> Result<Vec<(Metric, f64)>> {
    let (mut clock, processor) = (Clock::start(job), Processor::start());
    both_ways(job, end, |bytes, _| clock.is_over(Instant::now(), bytes))?;
    Ok(both_ways_figures(job, end, &clock, &processor))
}

/// The passive side: sends until the other has ended.
pub(super) fn exchange_back<S: Stream>(job: &Job, end: &mut End<S>) -> Result<()> {
    both_ways(job, end, |_, ended| ended)
}

/// Sends in this thread and receives in another. `enough` is told the bytes of both directions and whether the
/// other side has ended, and decides when this one does.
fn both_ways<S: Stream>(
    job: &Job,
    end: &mut End<S>,
    mut enough: impl FnMut(u64, bool) -> bool,
) -> Result<()> {
    let mut receiving = End::new(end.stream.twin()?, job.sleeps);
    let (received, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| -> Result<()> {
            let mut buffer = vec![0; job.size];
            while receiving.receive_some(&mut buffer)? > 0 {
                received.store(receiving.received, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
            Ok(())
        });
        let message = vec![0; job.size];
        while !enough(end.sent + received.load(Ordering::Relaxed), ended.load(Ordering::Relaxed)) {
            for _ in 0..chunk(job) {
                end.send_all(&message)?;
            }
        }
        end.stream.finish()?;
        receiver.join().map_err(|_| anyhow!("the receiving thread panicked"))?
    })?;
    end.join(&receiving);
    Ok(())
}
