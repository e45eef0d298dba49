//! Messages as fast as they go over several connections in turn: half a window on each, which the receiver acknowledges
//! by a message without bytes. At most a window of each connection is not acknowledged.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Side;
use super::turns;
use crate::job::{Job, Metric};
use crate::measure::Clock;
use crate::measure::traffic::rates;
use crate::transport::fabric::message::Operation;

/// The active side. The clock stops when the other side has taken everything.
pub(super) fn give(job: &Job, side: &mut Side) -> Result<Vec<(Metric, f64)>> {
    let half = side.shape.window / 2;
    let mut acknowledged = vec![0; side.shape.ends];
    let (mut round, mut clock) = (0, Clock::start(job));
    while !clock.is_over(Instant::now(), side.sent) {
        for end in 0..side.shape.ends {
            await_acknowledgement(side, &mut acknowledged, end, round - 1)?;
            for slot in 0..half {
                side.post(Operation::Send, side.slot(end) + round as usize % 2 * half + slot, job.size)?;
            }
        }
        round += 1;
    }
    for end in 0..side.shape.ends {
        await_acknowledgement(side, &mut acknowledged, end, round)?;
    }
    let metrics = rates(job, clock.rate(side.sent));
    turns::finish(side)?;
    Ok(metrics)
}

/// Waits until so many rounds of an endpoint are acknowledged.
fn await_acknowledgement(side: &mut Side, acknowledged: &mut [i64], end: usize, rounds: i64) -> Result<()> {
    while acknowledged[end] < rounds {
        let (from, length) = side.take()?;
        ensure!(length == 0, "a message of {length} bytes instead of an acknowledgement");
        acknowledged[from] += 1;
    }
    Ok(())
}

/// The passive side.
pub(super) fn take(side: &mut Side) -> Result<()> {
    let (half, size) = (side.shape.window / 2, side.shape.size);
    let (mut taken, mut open) = (vec![0; side.shape.ends], side.shape.ends);
    while open > 0 {
        let (end, length) = side.take()?;
        if length == 0 {
            open -= 1;
        } else {
            ensure!(length == size, "a message of {length} bytes instead of {size}");
            taken[end] += 1;
        }
        if length == 0 || taken[end] % half == 0 {
            side.post(Operation::Send, side.slot(end), 0)?;
        }
    }
    side.settle()
}
