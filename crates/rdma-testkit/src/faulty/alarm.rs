//! A wake-up of our own beside the wrapped device's.

use std::os::fd::AsFd;
use std::sync::Arc;

use rdma_verbs::{Interest, Result, Signal, Token, WaitSet};

/// A small wait set inside another one. The wrapped device signals the outer set itself; this way
/// the two do not take each other's signal back. It leaves the outer set when it is dropped.
#[derive(Debug)]
pub(super) struct Alarm {
    own: WaitSet,
}

impl Alarm {
    pub(super) fn new(outer: &Arc<WaitSet>, token: Token) -> Result<Self> {
        let own = WaitSet::new()?;
        outer.add(own.as_fd(), token, Interest::Read)?;
        Ok(Self { own })
    }

    /// Switches the wake-up on or off.
    pub(super) fn set(&self, on: bool) {
        if let Err(error) = self.own.signal(Signal::Owner, on) {
            log::error!("wake-up of a faulty device is lost: {error}");
        }
    }
}
