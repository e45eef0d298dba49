//! A stream whose calls wait: by asking again at once, or by sleeping.

use std::thread::yield_now;

use anyhow::{Result, bail};

use crate::job::{Metric, Outcome, Tally};
use crate::transport::{Interest, Stream};

/// How to go on after calls that did nothing.
pub(super) struct Patience {
    sleeps: bool,
    /// How often it was asked for nothing, one time after the other.
    vain: u32,
    /// The sleeps among them but the first.
    empty_wake_ups: u64,
}

/// Who has asked so often for nothing lets others run: the other side may be waiting for this processor. On a
/// quiet machine nobody asks so often.
const IN_VAIN: u32 = 2000;

impl Patience {
    pub(super) fn new(sleeps: bool) -> Self {
        Self { sleeps, vain: 0, empty_wake_ups: 0 }
    }

    #[inline]
    pub(super) fn wait(&mut self, sleep: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.sleeps {
            self.empty_wake_ups += u64::from(self.vain);
            self.vain = 1;
            return sleep();
        }
        self.vain += 1;
        if self.vain == IN_VAIN {
            self.vain = 0;
            yield_now();
        }
        Ok(())
    }

    /// After a call that did something.
    #[inline]
    pub(super) fn restore(&mut self) {
        self.vain = 0;
    }
}

pub(super) struct End<S> {
    pub(super) stream: S,
    patience: Patience,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Calls that moved bytes.
    transfers: u64,
}

impl<S: Stream> End<S> {
    pub(super) fn new(stream: S, sleeps: bool) -> Self {
        Self { stream, patience: Patience::new(sleeps), sent: 0, received: 0, transfers: 0 }
    }

    /// After a call that did nothing.
    #[inline]
    pub(super) fn wait(&mut self, until: Interest) -> Result<()> {
        self.patience.wait(|| S::sleep(std::slice::from_ref(&self.stream), until))
    }

    #[inline]
    pub(super) fn send_all(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            match self.stream.send(data)? {
                Some(taken) => {
                    data = &data[taken..];
                    self.sent += taken as u64;
                    self.transferred();
                }
                None => self.wait(Interest::Send)?,
            }
        }
        Ok(())
    }

    /// What the next receive gives, 0 at the end.
    #[inline]
    pub(super) fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(given) = self.stream.receive(buffer)? {
                self.received += given as u64;
                self.transferred();
                return Ok(given);
            }
            self.wait(Interest::Receive)?;
        }
    }

    /// Fills the buffer. False if the stream ended before its first byte.
    #[inline]
    pub(super) fn receive_all(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.receive_some(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => bail!("the stream ended within a message"),
                given => filled += given,
            }
        }
        Ok(true)
    }

    /// After a call that moved bytes.
    #[inline]
    pub(super) fn transferred(&mut self) {
        self.transfers += 1;
        self.patience.restore();
    }

    /// Takes over what another thread did on the same stream.
    pub(super) fn join(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.transfers += other.transfers;
        self.patience.empty_wake_ups += other.patience.empty_wake_ups;
    }

    /// Empty wake-ups for each call that moved bytes.
    pub(super) fn empty_wake_ups(&self) -> f64 {
        self.patience.empty_wake_ups as f64 / self.transfers.max(1) as f64
    }

    /// Ends this direction and waits until the other side has ended its own.
    pub(super) fn finish(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.stream.finish()?;
        while self.receive_some(buffer)? > 0 {}
        Ok(())
    }

    pub(super) fn outcome(&self, metrics: Vec<(Metric, f64)>) -> Outcome {
        let tally = |bytes| Tally { bytes, checksum: 0 };
        Outcome { sent: tally(self.sent), received: tally(self.received), metrics }
    }
}
