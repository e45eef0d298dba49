//! The move of a connection from its queue pair to rings in shared memory.
//!
//! Each direction moves by itself, once, when both sides have mapped its ring. The ring says how many bytes
//! went through the queue pair, so the reader takes these first. Until the device has sent them all, calls
//! that move bytes drive it.

use rdma_verbs::{Connections, Device};

use super::drive::Breach;
use super::rings::{Rings, Wanted};
use super::{Connection, Sharing};
use crate::error::Result;

impl<D: Device> Connection<D> {
    /// After a call on the queue pair: takes the next step towards shared memory, if one is due.
    #[inline]
    pub(super) fn after_queue_pair_call(&mut self, outcome: &Result<usize>) {
        match &mut self.sharing {
            Sharing::Attempt(attempt) => {
                if let Ok(bytes) = outcome
                    && attempt.is_due_after(*bytes)
                {
                    (self.at_cancellation_point)(&mut || self.attempt());
                }
            }
            Sharing::Rings(_) => self.move_to_rings(),
            Sharing::Never => {}
        }
    }

    #[cold]
    fn attempt(&mut self) {
        let ends = self.queue_pair.local_address().zip(self.queue_pair.peer_address());
        let (Sharing::Attempt(attempt), Some(ends)) = (&mut self.sharing, ends) else { return };
        match attempt.step(ends) {
            Ok(None) => {}
            Ok(Some(connected)) => {
                log::debug!("memory is shared between {} and {}", ends.0, ends.1);
                let wanted = if self.stream.takes_input() { Wanted::All } else { Wanted::Next(0) };
                self.sharing = Sharing::Rings(Box::new(Rings::new(connected, self.longest_inject, wanted)));
                match self.watch_rings() {
                    Ok(()) => self.move_to_rings(),
                    // The peer may have moved its output already, so there is no way back.
                    Err(error) => {
                        log::warn!("connection ended, nothing would wake it for shared memory: {error}");
                        self.abort();
                    }
                }
            }
            Err(error) => {
                log::info!("no memory is shared between {} and {}: {error}", ends.0, ends.1);
                self.sharing = Sharing::Never;
            }
        }
    }

    /// Moves each direction that can be moved.
    fn move_to_rings(&mut self) {
        if !self.sends_to_ring() {
            self.move_output();
        }
        self.move_input();
    }

    /// Sends to the ring from now on, if the peer can read it.
    fn move_output(&mut self) {
        let Sharing::Rings(rings) = &mut self.sharing else { return };
        if rings.output().ring.is_mapped_by_peer() && self.stream.send_state().is_ok() {
            rings.output().ring.set_base(self.stream.sent_bytes());
            rings.sends = true;
            self.release_held();
        }
    }

    /// Drives the device until it has sent what went through the queue pair.
    pub(super) fn drain_if_due(&mut self) {
        if !matches!(&self.sharing, Sharing::Rings(rings) if rings.drains) {
            return;
        }
        self.progress();
        let flushed = self.queue_pair.cq.flushed(self.queue_pair.qp);
        let has_ended = self.stream.send_state().is_err();
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drains = !(flushed && (rings.sends || has_ended));
        }
    }

    /// Receives from the ring from now on, if it has bytes and those of the queue pair were read. Returns
    /// whether input comes from the ring.
    pub(super) fn move_input(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        if rings.receives || rings.broken || self.stream.readable() > 0 {
            return rings.receives;
        }
        let readable = rings.input().ring.readable();
        match readable {
            Ok(0) => {}
            Ok(_) => {
                let (base, moved) = (rings.input().ring.base(), self.stream.received_bytes());
                rings.receives = base == moved;
                if base < moved {
                    self.end_for_ring(&Breach::RingBegins { base, moved });
                }
            }
            Err(error) => self.end_for_ring(&error.into()),
        }
        self.receives_from_ring()
    }
}
