//! The statistics of a connection.

use std::ops::AddAssign;

use rstream_protocol::Traffic;

use super::error::{Error, Result};

/// The calls that moved bytes in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls, peeks not counted.
    pub number: u64,
    /// Of these, calls that returned [`Error::WouldBlock`].
    pub waits: u64,
    /// Bytes moved.
    pub bytes: u64,
}

impl Calls {
    /// Counts a call by its outcome.
    #[inline]
    pub fn count(&mut self, outcome: &Result<usize>) {
        self.number += 1;
        match outcome {
            Ok(bytes) => self.bytes += *bytes as u64,
            Err(Error::WouldBlock) => self.waits += 1,
            Err(_) => {}
        }
    }
}

impl AddAssign for Calls {
    fn add_assign(&mut self, others: Self) {
        self.number += others.number;
        self.waits += others.waits;
        self.bytes += others.bytes;
    }
}

/// The statistics of a connection since it was established.
#[derive(Debug, Clone, Copy, Default)]
pub struct Statistics {
    /// Calls that send.
    pub sends: Calls,
    /// Calls that receive.
    pub receives: Calls,
    /// Messages of the protocol.
    pub traffic: Traffic,
    /// Messages of the peer that violated the protocol.
    pub refused: u64,
}
