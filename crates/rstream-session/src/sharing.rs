//! When and how a connection between two processes of one host comes to share memory.
//!
//! A short connection does not pay for a segment. So both sides count their calls that move data. Once a side
//! has counted [`CALLS`] or [`BYTES`], the one that connected listens at the rendezvous of which it told the
//! other, and the other goes there. Until both have the segment, and if anything fails, the connection stays
//! on its queue pair.

use std::net::SocketAddr;

use rstream_ring::{Connected, Listener, Rendezvous, Result, RingSizes};

/// Calls that move data, and bytes, before memory is shared. By then they have cost about as much as a
/// segment does.
const CALLS: u64 = 8;
const BYTES: u64 = 64 << 10;
/// Most calls between two looks for the peer, of the side that listens.
const LONGEST_PAUSE: u64 = 64;
/// Looks for the peer before the side that listens gives up.
const LOOKS: u32 = 64;

/// What one side has left to do before it shares memory.
pub(crate) struct Attempt {
    step: Step,
    sizes: RingSizes,
    /// Calls and bytes so far.
    calls: u64,
    bytes: u64,
    /// Calls and bytes from which the step is due.
    due: (u64, u64),
}

/// The next step.
enum Step {
    /// To listen at the rendezvous.
    Listen(Rendezvous),
    /// To accept the peer there. `looks`: how often it was not there.
    Accept { listener: Listener, looks: u32 },
    /// To connect to the peer there.
    Connect(Rendezvous),
}

impl Attempt {
    /// Of the side that told its peer of the rendezvous.
    pub(crate) fn to_listen(rendezvous: Rendezvous, sizes: RingSizes) -> Self {
        Self { step: Step::Listen(rendezvous), sizes, calls: 0, bytes: 0, due: (CALLS, BYTES) }
    }

    /// Of the side that was told.
    pub(crate) fn to_connect(rendezvous: Rendezvous, sizes: RingSizes) -> Self {
        Self { step: Step::Connect(rendezvous), ..Self::to_listen(rendezvous, sizes) }
    }

    /// Counts a call that moved so many bytes. Returns whether the next step is due.
    #[inline]
    pub(crate) fn is_due_after(&mut self, bytes: usize) -> bool {
        self.calls += 1;
        self.bytes += bytes as u64;
        self.calls >= self.due.0 || self.bytes >= self.due.1
    }

    /// Takes the next step. `ends` are the addresses of the connection, this side's first. `None`: there are
    /// more to take, later.
    ///
    /// # Errors
    /// Why memory is not shared.
    #[cold]
    pub(crate) fn step(&mut self, ends: (SocketAddr, SocketAddr)) -> Result<Option<Connected>> {
        let (connected, pause) = match &mut self.step {
            Step::Listen(rendezvous) => {
                let listener = rendezvous.listen()?;
                self.step = Step::Accept { listener, looks: 0 };
                (None, 1)
            }
            Step::Accept { listener, looks } => {
                *looks += 1;
                let connected = listener.accept(ends, self.sizes)?;
                if connected.is_none() && *looks >= LOOKS {
                    return Err(rstream_ring::Error::NoPeer("nobody came"));
                }
                (connected, (1 << (*looks).min(31)).min(LONGEST_PAUSE))
            }
            // The peer may have counted fewer calls. The pauses grow, so a peer that never listens costs
            // little.
            Step::Connect(rendezvous) => (rendezvous.connect(ends, self.sizes)?, self.calls),
        };
        self.due = (self.calls + pause, self.bytes.saturating_mul(2).max(BYTES));
        Ok(connected)
    }
}
