//! Remote memory as fast as it is written or read. A mark at the end of a slot shows whether the bytes
//! came: a write carries its number, and a read finds what the other side's memory was filled with.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Side;
use crate::job::{Job, Metric, Test};
use crate::measure::Clock;
use crate::measure::traffic::{chunk, rates};
use crate::transport::fabric::message::{FILL, Operation};

/// Bytes of a number.
const NUMBER: usize = size_of::<u64>();

/// The active side. The clock stops when the other side knows that all is done.
pub(super) fn ask(job: &Job, side: &mut Side) -> Result<Vec<(Metric, f64)>> {
    let reads = job.test == Test::Read;
    let operation = if reads { Operation::Read } else { Operation::Write };
    let window = side.shape.window as u64;
    let (calls, mut number) = (chunk(job), 0);
    let mut clock = Clock::start(job);
    while !clock.is_over(Instant::now(), number) {
        for _ in 0..calls {
            let slot = side.slot_of(number)?;
            if reads && number >= window {
                check_filling(side, slot)?;
            }
            number += 1;
            set_mark(side, slot, if reads { 0 } else { number });
            side.post(operation, slot, job.size)?;
        }
    }
    side.settle()?;
    if reads {
        (0..window.min(number) as usize).try_for_each(|slot| check_filling(side, slot))?;
    }
    side.messages.put(0, 0, &number.to_be_bytes());
    side.post(Operation::Send, 0, NUMBER)?;
    side.finish(0)?;
    Ok(rates(job, clock.rate(number) * job.size as f64))
}

/// The passive side: waits for the number of operations, then checks the last writes.
pub(super) fn look(job: &Job, side: &mut Side) -> Result<()> {
    let (slot, length) = side.arrival()?;
    ensure!(length == NUMBER, "a message of {length} bytes instead of a number");
    let mut bytes = [0; NUMBER];
    side.messages.get(slot, 0, &mut bytes);
    side.release(slot)?;
    let number = u64::from_be_bytes(bytes);
    let total = number * job.size as u64;
    if job.test == Test::Read {
        side.sent += total;
    } else {
        side.received += total;
        let window = side.shape.window as u64;
        for last in number.saturating_sub(window)..number {
            let slot = (last % window) as usize;
            ensure!(mark(side, slot) == shortened(side, last + 1), "the write {last} is not in its slot");
        }
    }
    let (_, length) = side.take()?;
    ensure!(length == 0, "a message of {length} bytes instead of the end");
    side.answer()
}

fn check_filling(side: &Side, slot: usize) -> Result<()> {
    ensure!(
        mark(side, slot) == shortened(side, u64::from_ne_bytes([FILL; NUMBER])),
        "a read brought nothing"
    );
    Ok(())
}

/// Where in a slot the mark begins.
fn place(side: &Side) -> usize {
    side.shape.size.saturating_sub(NUMBER)
}

/// As much of a number as a mark of this size has.
fn shortened(side: &Side, number: u64) -> u64 {
    let unused = NUMBER.saturating_sub(side.shape.size) * 8;
    number << unused >> unused
}

#[inline]
fn set_mark(side: &Side, slot: usize, number: u64) {
    let length = NUMBER.min(side.shape.size);
    side.messages.put(slot, place(side), &number.to_le_bytes()[..length]);
}

#[inline]
fn mark(side: &Side, slot: usize) -> u64 {
    let (mut bytes, length) = ([0; NUMBER], NUMBER.min(side.shape.size));
    side.messages.get(slot, place(side), &mut bytes[..length]);
    u64::from_le_bytes(bytes)
}
