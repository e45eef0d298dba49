//! A message there and one back on each connection, again and again.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Side;
use crate::job::Job;
use crate::measure::Clock;
use crate::transport::fabric::message::Operation;

/// The active side: a message there and one back on each connection.
#[inline]
pub(super) fn round(side: &mut Side, size: usize) -> Result<()> {
    for end in 0..side.shape.ends {
        side.post(Operation::Send, side.slot(end), size)?;
    }
    for _ in 0..side.shape.ends {
        let (_, length) = side.take()?;
        ensure!(length == size, "{length} bytes came back of {size}");
    }
    side.settle()
}

/// The active side: rounds until the time is over. Answers the messages of a second.
pub(super) fn ask(job: &Job, side: &mut Side) -> Result<f64> {
    let mut clock = Clock::start(job);
    let mut messages = 0;
    while !clock.is_over(Instant::now(), messages) {
        round(side, job.size)?;
        messages += job.connections as u64;
    }
    let rate = clock.rate(messages);
    finish(side)?;
    Ok(rate)
}

/// The active side: ends every connection. A connection that the other side closes fails the receives that it
/// has, so none is posted again.
pub(super) fn finish(side: &mut Side) -> Result<()> {
    for end in 0..side.shape.ends {
        side.post(Operation::Send, side.slot(end), 0)?;
    }
    for _ in 0..side.shape.ends {
        let (_, length) = side.arrival()?;
        ensure!(length == 0, "{length} bytes came back of none");
    }
    side.settle()
}

/// The passive side: sends back as much as comes, until every connection has ended.
pub(super) fn answer(side: &mut Side) -> Result<()> {
    let mut open = side.shape.ends;
    while open > 0 {
        let (end, length) = side.take()?;
        // The other side has received what left this slot before.
        side.post(Operation::Send, side.slot(end), length)?;
        open -= usize::from(length == 0);
    }
    side.settle()
}
