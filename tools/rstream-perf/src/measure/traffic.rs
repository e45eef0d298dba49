//! Bytes of a stream as fast as they go, one way and both ways, and their content.

use std::time::Instant;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use super::content::{Checksum, Content, VERIFIED_BYTES};
use super::{Clock, End, Side, threads};
use crate::job::{Job, Metric, Outcome, Test};
use crate::transport::{Interest, Stream};

/// How many bytes pass at least between two looks at the clock, and how many calls at most.
const UNWATCHED_BYTES: usize = 1 << 16;
const UNWATCHED_CALLS: usize = 256;

/// The active side, one way. The clock stops when the other side has read everything and said so by ending
/// its direction.
pub(super) fn give<S: Stream>(job: &Job, end: &mut End<S>) -> Result<Vec<(Metric, f64)>> {
    let mut message = vec![0; job.size];
    let calls = chunk(job);
    let mut clock = Clock::start(job);
    while !clock.is_over(Instant::now(), end.sent) {
        for _ in 0..calls {
            end.send_all(&message)?;
        }
    }
    end.finish(&mut message)?;
    Ok(rates(job, clock.rate(end.sent)))
}

/// The passive side.
pub(super) fn take<S: Stream>(job: &Job, end: &mut End<S>) -> Result<()> {
    let mut buffer = vec![0; job.size];
    while end.receive_some(&mut buffer)? > 0 {}
    end.stream.finish()
}

/// The active side, both ways: sends until the time is over, and receives until the end.
pub(super) fn exchange<S: Stream>(job: &Job, end: &mut End<S>) -> Result<Vec<(Metric, f64)>> {
    let (mut clock, processor) = (Clock::start(job), Processor::start());
    both_ways(job, end, |bytes, _| clock.is_over(Instant::now(), bytes))?;
    let bytes = end.sent + end.received;
    let mut metrics = rates(job, clock.rate(bytes));
    metrics.push((Metric::ProcessorTime, processor.microseconds() / (bytes as f64 / 1e6)));
    metrics.extend(job.sleeps.then(|| (Metric::EmptyWakeUps, end.empty_wake_ups())));
    Ok(metrics)
}

/// The passive side: sends until the other has ended.
pub(super) fn exchange_back<S: Stream>(job: &Job, end: &mut End<S>) -> Result<()> {
    both_ways(job, end, |_, ended| ended)
}

/// Sends and receives. `enough` is told the bytes of both directions and whether the other side has ended,
/// and decides when this one does.
fn both_ways<S: Stream>(job: &Job, end: &mut End<S>, enough: impl FnMut(u64, bool) -> bool) -> Result<()> {
    if job.threads { threads::both_ways(job, end, enough) } else { in_turns(job, end, enough) }
}

/// Both ways in one thread.
fn in_turns<S: Stream>(job: &Job, end: &mut End<S>, mut enough: impl FnMut(u64, bool) -> bool) -> Result<()> {
    let (message, mut buffer) = (vec![0; job.size], vec![0; job.size]);
    let calls = chunk(job);
    let (mut offset, mut sends, mut receives) = (0, true, true);
    while sends || receives {
        for _ in 0..calls {
            let taken = if sends { end.stream.send(&message[offset..])? } else { None };
            let given = if receives { end.stream.receive(&mut buffer)? } else { None };
            offset = (offset + taken.unwrap_or(0)) % job.size;
            end.sent += taken.unwrap_or(0) as u64;
            end.received += given.unwrap_or(0) as u64;
            receives &= given != Some(0);
            if taken.is_some() || given.is_some() {
                end.transferred();
            }
            if taken.is_none() && given.is_none() {
                end.wait(if sends { Interest::Both } else { Interest::Receive })?;
            }
            if !receives {
                break;
            }
        }
        if sends && enough(end.sent + end.received, !receives) {
            sends = false;
            end.stream.finish()?;
        }
    }
    Ok(())
}

/// Either side: content of its own there while the other's comes, both summed up.
pub(super) fn verify<S: Stream>(job: &Job, end: &mut End<S>, side: Side) -> Result<Outcome> {
    let (mut message, mut buffer) = (vec![0; job.size], vec![0; job.size]);
    let mut content = Content::of(side);
    let (mut sent, mut received) = (Checksum::new(), Checksum::new());
    let start = Instant::now();
    let (mut offset, mut sends, mut receives) = (job.size, true, true);
    while sends || receives {
        if sends && offset == job.size {
            content.fill(&mut message);
            offset = 0;
        }
        let taken = if sends { end.stream.send(&message[offset..])? } else { None };
        let given = if receives { end.stream.receive(&mut buffer)? } else { None };
        if let Some(taken) = taken {
            sent.add(&message[offset..offset + taken]);
            offset += taken;
        }
        if let Some(given) = given {
            received.add(&buffer[..given]);
            receives = given > 0;
        }
        let enough = sent.0.bytes >= VERIFIED_BYTES || start.elapsed() >= job.duration();
        if sends && enough {
            sends = false;
            end.stream.finish()?;
        }
        if taken.is_none() && given.is_none() && receives {
            end.wait(if sends { Interest::Both } else { Interest::Receive })?;
        }
    }
    Ok(Outcome {
        sent: sent.0,
        received: received.0,
        metrics: vec![(Metric::Compared, sent.0.bytes as f64 / 1e6)],
    })
}

/// Calls between two looks at the clock.
pub(super) fn chunk(job: &Job) -> usize {
    (UNWATCHED_BYTES / job.size).clamp(1, UNWATCHED_CALLS)
}

/// Processor time of this process.
struct Processor(f64);

impl Processor {
    fn start() -> Self {
        Self(Self::total())
    }

    /// Since the start.
    fn microseconds(&self) -> f64 {
        Self::total() - self.0
    }

    fn total() -> f64 {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    }
}

/// First what the test is about.
pub(super) fn rates(job: &Job, per_second: f64) -> Vec<(Metric, f64)> {
    let bytes = (Metric::Throughput, per_second / 1e6);
    let messages = (Metric::MessageRate, per_second / job.size as f64);
    if let Test::Rate | Test::Spread = job.test { vec![messages, bytes] } else { vec![bytes, messages] }
}
