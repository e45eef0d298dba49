//! Driving a shard in an async runtime.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::core::Turn;
use super::shard::Inner;
use super::{Result, Shard, TrustedDevice};
use crate::Error;

/// Turns of one poll, so that other tasks of the runtime get theirs.
const TURNS: usize = 32;

/// What a runtime knows of a descriptor.
pub trait Readiness {
    /// Ready if the descriptor became readable, or was found readable, since this was ready last. Pending:
    /// the task is woken when it becomes readable. An edge suffices.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A future that drives a shard: run it beside the futures that use the shard. It ends when every [`Shard`]
/// and every value that was made of it are dropped, and the connections among them have ended.
///
/// # Errors
/// Those of the device and of the runtime. Then it drives the shard no longer.
#[must_use = "it drives nothing before it is polled"]
pub struct Driver<D: TrustedDevice, R> {
    inner: Arc<Inner<D>>,
    readiness: R,
}

impl<D: TrustedDevice, R: Readiness> Driver<D, R> {
    /// A driver in the runtime of `readiness`, which is that of the descriptor.
    ///
    /// # Errors
    /// Those of `readiness`.
    pub fn new(shard: &Shard<D>, readiness: impl FnOnce(Descriptor) -> io::Result<R>) -> Result<Self> {
        let inner = Arc::clone(&shard.inner.0);
        let descriptor = Descriptor(Arc::clone(&inner.wait));
        let readiness = readiness(descriptor).map_err(Error::io("register a descriptor with a runtime"))?;
        Ok(Self { inner, readiness })
    }
}

impl<D: TrustedDevice, R: Readiness + Unpin> Future for Driver<D, R> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        for _ in 0..TURNS {
            if self.inner.turn()? == Turn::Busy {
                continue;
            }
            if self.inner.is_done() {
                // Another driver may have missed the end, because this one took the turn.
                self.inner.with(|core| core.kick.set(true));
                return Poll::Ready(Ok(()));
            }
            // The turn found the descriptor not readable, so the next event is an edge. If it has come since,
            // the runtime has noted it: then take another turn before sleeping.
            match self.readiness.poll_readable(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome.map_err(Error::io("wait for a descriptor"))?,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The descriptor of a shard, for a runtime to wait for.
#[derive(Clone)]
pub struct Descriptor(Arc<crate::WaitSet>);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Descriptor").field(&self.as_raw_fd()).finish()
    }
}
