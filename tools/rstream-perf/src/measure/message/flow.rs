//! Messages as fast as they go, with flow control: the receiver acknowledges each half window by a message
//! without bytes, and at most a window is not acknowledged. So a message always finds a receive.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Side;
use crate::job::{Job, Metric};
use crate::measure::Clock;
use crate::measure::traffic::{chunk, rates};
use crate::transport::fabric::message::Operation;

/// The active side. The clock stops when the other side has taken everything.
pub(super) fn give(job: &Job, side: &mut Side) -> Result<Vec<(Metric, f64)>> {
    let (window, half) = (side.shape.window as u64, half(side));
    let (mut number, mut acknowledged) = (0, 0);
    let calls = chunk(job);
    let mut clock = Clock::start(job);
    while !clock.is_over(Instant::now(), side.sent) {
        for _ in 0..calls {
            if number - acknowledged * half == window {
                side.take()?;
                acknowledged += 1;
            }
            let slot = side.slot_of(number)?;
            side.post(Operation::Send, slot, job.size)?;
            number += 1;
        }
    }
    side.finish(number / half - acknowledged)?;
    Ok(rates(job, clock.rate(side.sent)))
}

/// The passive side.
pub(super) fn take(side: &mut Side) -> Result<()> {
    let (half, size) = (half(side), side.shape.size);
    let mut number = 0;
    loop {
        let (_, length) = side.take()?;
        if length == 0 {
            return side.answer();
        }
        ensure!(length == size, "a message of {length} bytes instead of {size}");
        number += 1;
        if number % half == 0 {
            side.post(Operation::Send, 0, 0)?;
        }
    }
}

fn half(side: &Side) -> u64 {
    side.shape.window as u64 / 2
}
