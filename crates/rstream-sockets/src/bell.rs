//! How one side wakes the other: by a byte of the TCP connection.
//!
//! Once a direction goes through its ring, each byte of it that goes through TCP is a bell. It says nothing
//! but that there is something to look for, and it wakes a reader in whatever call of the kernel it sleeps.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering};

use rstream_ring::Notify;
use rustix::io::Errno;

use crate::kernel::Kernel;
use crate::stream::Stream;

/// The byte: the ASCII character BEL.
pub(crate) const BELL: u8 = 7;

/// Calls that take bells, at once: a peer that rings for ever holds nobody.
const TAKEN: usize = 16;

/// Rings the peer's bell, if this side may.
pub(crate) struct Bell<'a, K> {
    kernel: &'a K,
    stream: &'a Stream,
}

impl<'a, K: Kernel> Bell<'a, K> {
    pub(crate) fn new(kernel: &'a K, stream: &'a Stream) -> Self {
        Self { kernel, stream }
    }
}

impl<K: Kernel> Notify for Bell<'_, K> {
    fn notify(&self) {
        // Before and after this side's output goes through its ring, a byte would be one of the stream. The
        // peer does not count on bells then.
        let words = self.stream.words();
        let may_ring = words.begun.load(Ordering::Relaxed) != 0;
        // A socket without room has bytes that wake the peer. That the connection broke shows elsewhere.
        if may_ring && self.kernel.send(&[BELL]).is_ok() {
            words.rung.fetch_add(1, Ordering::Relaxed);
            self.stream.count_bell();
        }
    }

    /// Bells are taken by [`take_bells`], which also finds the end of the connection.
    fn take(&self) -> bool {
        false
    }
}

/// Takes the bells that are there from a socket that holds nothing else, counts them, and returns whether
/// there were any. `Some(false)`: the stream has ended.
///
/// # Errors
/// What the kernel says; [`Errno::PROTO`] if there is something else.
pub(crate) fn take_bells(kernel: &impl Kernel, taken_bells: &AtomicU64) -> Result<Option<bool>, Errno> {
    let mut taken = None;
    for _ in 0..TAKEN {
        let mut bytes = [0; 64];
        match kernel.receive(&mut [IoSliceMut::new(&mut bytes)], false) {
            Ok(0) => return Ok(Some(false)),
            Ok(length) if are_bells(&bytes[..length]) => {
                taken_bells.fetch_add(length as u64, Ordering::Relaxed);
                taken = Some(true);
            }
            Ok(_) => return Err(Errno::PROTO),
            Err(Errno::AGAIN) => return Ok(taken),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Takes bells until `last` were taken in all, from a socket that holds bytes of the stream behind them.
/// Returns whether that is so. If there are more than are taken at once, it is not yet.
///
/// # Errors
/// As [`take_bells`].
pub(crate) fn take_last_bells(
    kernel: &impl Kernel,
    taken_bells: &AtomicU64,
    last: u64,
) -> Result<bool, Errno> {
    for _ in 0..TAKEN {
        let missing = last.checked_sub(taken_bells.load(Ordering::Relaxed)).ok_or(Errno::PROTO)?;
        let mut bytes = [0; 64];
        let most = usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
        if most == 0 {
            return Ok(true);
        }
        match kernel.receive(&mut [IoSliceMut::new(&mut bytes[..most])], false) {
            // A peer that is gone has left nothing else.
            Ok(0) => return Ok(true),
            Ok(length) if are_bells(&bytes[..length]) => {
                taken_bells.fetch_add(length as u64, Ordering::Relaxed);
            }
            Ok(_) => return Err(Errno::PROTO),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

pub(crate) fn are_bells(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == BELL)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::SocketAddr;

    use super::*;
    use crate::delays::Delays;
    use crate::kernel::Counts;

    /// The socket of a peer that rings for ever.
    #[derive(Default)]
    struct Ringing {
        calls: Cell<usize>,
    }

    impl Kernel for Ringing {
        fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
            Ok(bytes.len())
        }

        fn receive(&self, buffers: &mut [IoSliceMut<'_>], _: bool) -> Result<usize, Errno> {
            self.calls.set(self.calls.get() + 1);
            buffers.iter_mut().for_each(|buffer| buffer.fill(BELL));
            Ok(buffers.iter().map(|buffer| buffer.len()).sum())
        }

        fn obstacle(&self) -> Option<&'static str> {
            None
        }

        fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
            None
        }

        fn counts(&self) -> Option<Counts> {
            None
        }

        fn delay(&self, delays: Delays) -> Result<Delays, Errno> {
            Ok(delays)
        }

        fn end_output(&self) {}

        fn has_input(&self) -> bool {
            true
        }

        fn has_ended(&self) -> bool {
            false
        }

        fn has_failed(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_peer_that_rings_for_ever_holds_nobody() {
        let (kernel, taken) = (Ringing::default(), AtomicU64::new(0));
        assert_eq!(take_bells(&kernel, &taken), Ok(Some(true)));
        assert_eq!(kernel.calls.get(), TAKEN);
        // It says that its bytes go on after more bells than anybody rings.
        assert_eq!(take_last_bells(&kernel, &taken, 1 << 20), Ok(false));
        assert_eq!(kernel.calls.get(), 2 * TAKEN);
        // Those of an honest one are taken at once.
        let last = taken.load(Ordering::Relaxed) + 3;
        assert_eq!(take_last_bells(&kernel, &taken, last), Ok(true));
        assert_eq!(taken.load(Ordering::Relaxed), last);
    }
}
