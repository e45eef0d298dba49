//! Content: a window of messages there, one back, a window of writes, which the other side looks at, and of
//! reads of the same memory; then all of it again.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Side;
use crate::job::{Job, Metric, Outcome};
use crate::measure::Side as Role;
use crate::measure::content::{Checksum, Content, VERIFIED_BYTES};
use crate::transport::fabric::message::Operation;

/// Sums of what went both ways.
struct Comparison<'a> {
    side: &'a mut Side,
    content: Content,
    buffer: Vec<u8>,
    sent: Checksum,
    received: Checksum,
}

pub(super) fn active(job: &Job, side: &mut Side) -> Result<Outcome> {
    let start = Instant::now();
    let mut all = Comparison::new(job, side, Role::Active);
    while all.sent.0.bytes == 0 || all.sent.0.bytes < VERIFIED_BYTES && start.elapsed() < job.duration() {
        all.give(Operation::Send)?;
        for _ in 0..all.side.shape.window {
            ensure!(all.receive()?, "the other side ended first");
        }
        all.give(Operation::Write)?;
        all.side.finish(0)?;
        all.read()?;
    }
    all.side.finish(0)?;
    let compared = all.sent.0.bytes as f64 / 1e6;
    Ok(all.outcome(vec![(Metric::Compared, compared)]))
}

pub(super) fn passive(job: &Job, side: &mut Side) -> Result<Outcome> {
    let mut all = Comparison::new(job, side, Role::Passive);
    while all.receive()? {
        for _ in 1..all.side.shape.window {
            ensure!(all.receive()?, "the other side ended within a window");
        }
        all.give(Operation::Send)?;
        ensure!(!all.receive()?, "a message instead of the end of the writes");
        all.look();
        all.side.answer()?;
    }
    all.side.answer()?;
    Ok(all.outcome(Vec::new()))
}

impl<'a> Comparison<'a> {
    fn new(job: &Job, side: &'a mut Side, role: Role) -> Self {
        let buffer = vec![0; job.size];
        Self { side, content: Content::of(role), buffer, sent: Checksum::new(), received: Checksum::new() }
    }

    /// Sends, or writes, a window of fresh content.
    fn give(&mut self, operation: Operation) -> Result<()> {
        for slot in 0..self.side.shape.window {
            self.content.fill(&mut self.buffer);
            self.sent.add(&self.buffer);
            self.side.messages.put(slot, 0, &self.buffer);
            self.side.post(operation, slot, self.buffer.len())?;
        }
        self.side.settle()
    }

    /// Receives a message. False if it has no bytes.
    fn receive(&mut self) -> Result<bool> {
        let (slot, length) = self.side.arrival()?;
        self.side.messages.get(slot, 0, &mut self.buffer[..length]);
        self.received.add(&self.buffer[..length]);
        self.side.release(slot)?;
        Ok(length > 0)
    }

    /// Reads the other side's slots, which it has looked at.
    fn read(&mut self) -> Result<()> {
        for slot in 0..self.side.shape.window {
            self.side.messages.put(slot, 0, &vec![0; self.buffer.len()]);
            self.side.post(Operation::Read, slot, self.buffer.len())?;
        }
        self.side.settle()?;
        for slot in 0..self.side.shape.window {
            self.side.messages.get(slot, 0, &mut self.buffer);
            self.received.add(&self.buffer);
        }
        Ok(())
    }

    /// Looks at what the other side has written here and reads next.
    fn look(&mut self) {
        for slot in 0..self.side.shape.window {
            self.side.messages.get(slot, 0, &mut self.buffer);
            self.received.add(&self.buffer);
            self.sent.add(&self.buffer);
        }
    }

    fn outcome(&self, metrics: Vec<(Metric, f64)>) -> Outcome {
        Outcome { sent: self.sent.0, received: self.received.0, metrics }
    }
}
