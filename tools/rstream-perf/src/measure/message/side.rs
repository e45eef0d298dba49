//! One side of a measurement of messages, whose calls wait.

use std::collections::VecDeque;

use anyhow::{Result, ensure};

use crate::job::{Metric, Outcome, Tally};
use crate::measure::end::Patience;
use crate::transport::fabric::message::{Completed, Messages, Operation, Shape};

pub(super) struct Side {
    pub(super) messages: Messages,
    pub(super) shape: Shape,
    patience: Patience,
    /// Messages that have arrived.
    arrived: VecDeque<Completed>,
    /// Operations other than receives that are not complete.
    outstanding: usize,
    /// Bytes.
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Side {
    pub(super) fn new(messages: Messages, shape: Shape) -> Self {
        let (patience, arrived) = (Patience::new(shape.sleeps), VecDeque::new());
        Self { messages, shape, patience, arrived, outstanding: 0, sent: 0, received: 0 }
    }

    /// The first slot to send from of an endpoint.
    pub(super) fn slot(&self, end: usize) -> usize {
        2 * end * self.shape.window
    }

    /// The endpoint of a slot.
    pub(super) fn end(&self, slot: usize) -> usize {
        slot / (2 * self.shape.window)
    }

    /// Begins an operation.
    #[inline]
    pub(super) fn post(&mut self, operation: Operation, slot: usize, length: usize) -> Result<()> {
        while !self.messages.post(operation, slot, length)? {
            if !self.messages.read()? {
                self.patience.wait(|| self.messages.sleep())?;
            }
        }
        match operation {
            Operation::Send | Operation::Write => self.sent += length as u64,
            Operation::Read => self.received += length as u64,
            Operation::Receive => return Ok(()),
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Waits for the next completion, and keeps it if it is a message.
    #[inline]
    fn progress(&mut self) -> Result<Option<Completed>> {
        loop {
            if let Some(completed) = self.messages.next()? {
                self.patience.restore();
                if completed.operation == Operation::Receive {
                    self.arrived.push_back(completed);
                    return Ok(None);
                }
                self.outstanding -= 1;
                return Ok(Some(completed));
            }
            self.patience.wait(|| self.messages.sleep())?;
        }
    }

    /// Waits for the next message: its slot and its length. The slot is to be released.
    #[inline]
    pub(super) fn arrival(&mut self) -> Result<(usize, usize)> {
        loop {
            if let Some(Completed { slot, length, .. }) = self.arrived.pop_front() {
                self.received += length as u64;
                return Ok((slot, length));
            }
            self.progress()?;
        }
    }

    /// Receives into a slot again.
    #[inline]
    pub(super) fn release(&mut self, slot: usize) -> Result<()> {
        self.post(Operation::Receive, slot, self.shape.size)
    }

    /// Waits for the next message, whose content is of no interest, and answers its endpoint and its length.
    #[inline]
    pub(super) fn take(&mut self) -> Result<(usize, usize)> {
        let (slot, length) = self.arrival()?;
        self.release(slot)?;
        Ok((self.end(slot), length))
    }

    /// The slot of an operation, the operations of the one endpoint being numbered: it waits for the one
    /// that had it before. Operations are complete in the order in which they began.
    #[inline]
    pub(super) fn slot_of(&mut self, number: u64) -> Result<usize> {
        let slot = (number % self.shape.window as u64) as usize;
        while self.outstanding >= self.shape.window {
            if let Some(completed) = self.progress()? {
                ensure!(completed.slot == slot, "operations were completed out of order");
            }
        }
        Ok(slot)
    }

    /// Waits until nothing but receives is outstanding.
    #[inline]
    pub(super) fn settle(&mut self) -> Result<()> {
        while self.outstanding > 0 {
            self.progress()?;
        }
        Ok(())
    }

    /// On the only connection: says that everything was sent, and waits for the answer behind `before`
    /// messages.
    pub(super) fn finish(&mut self, before: u64) -> Result<()> {
        self.post(Operation::Send, 0, 0)?;
        for _ in 0..=before {
            let (_, length) = self.take()?;
            ensure!(length == 0, "a message of {length} bytes instead of the end");
        }
        self.settle()
    }

    /// Answers the other side's end.
    pub(super) fn answer(&mut self) -> Result<()> {
        self.post(Operation::Send, 0, 0)?;
        self.settle()
    }

    pub(super) fn outcome(&self, metrics: Vec<(Metric, f64)>) -> Outcome {
        let tally = |bytes| Tally { bytes, checksum: 0 };
        Outcome { sent: tally(self.sent), received: tally(self.received), metrics }
    }
}
