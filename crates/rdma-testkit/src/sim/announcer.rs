//! Wake-ups for connection events.

use std::os::fd::AsFd;

use rdma_verbs::{EventTarget, Interest, Result, Signal, WaitSet};

/// Makes one [`EventTarget`] report its token. The target's wait set is shared with others, so
/// every queue pair and listener has a small set of its own inside it; when this value goes, its
/// descriptor is closed and so leaves the target.
#[derive(Debug)]
pub(super) struct Announcer {
    own: WaitSet,
}

impl Announcer {
    pub(super) fn new(target: &EventTarget) -> Result<Self> {
        let own = WaitSet::new()?;
        target.wait.add(own.as_fd(), target.token, Interest::Read)?;
        Ok(Self { own })
    }

    /// Says that there is (or is not) something to ask for.
    pub(super) fn set(&self, pending: bool) {
        if let Err(error) = self.own.signal(Signal::Owner, pending) {
            log::error!("wake-up for a connection event is lost: {error}");
        }
    }
}
