//! The future of several operations.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::in_flight::{InFlight, Stage};
use super::{Lend, Work, output};
use crate::typed::endpoint::Handle;
use crate::typed::{Error, Failed, TrustedDevice};

/// Several operations that are posted together. It becomes their memory when all are done.
///
/// Nothing is posted before it is polled or waited for. Dropping it later does not take the operations back:
/// their memory goes back to its pool when they are done.
///
/// # Errors
/// [`Failed`], with the memory, if the device refused them, which are then not posted, or if one failed.
#[must_use = "nothing is posted before it is polled"]
pub struct Batch<'c, D: TrustedDevice, M: Lend, const N: usize> {
    handle: &'c Handle<D>,
    /// They have their memory before they are posted and when they are done.
    works: [Work<M>; N],
    stage: Stage<M, N>,
}

impl<'c, D: TrustedDevice, M: Lend, const N: usize> Batch<'c, D, M, N> {
    pub(in crate::typed) fn new(handle: &'c Handle<D>, works: [Work<M>; N]) -> Self {
        Self { handle, works, stage: Stage::New }
    }

    /// Waits until all are done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the batch.
    pub fn wait(self) -> Result<[M; N], Failed<[M; N]>> {
        self.handle.shard.block_on(self)
    }

    /// Posts what is not posted. Returns whether all is over, once. Tells why, if something failed.
    fn advance(&mut self, context: &mut Context<'_>, failure: &mut Option<Error>) -> bool {
        let Self { handle, works, stage } = self;
        handle.with(|core| {
            if let Stage::New = stage {
                *stage = match InFlight::post(handle, core, works) {
                    Ok(posted) => Stage::Posted(posted),
                    Err(error) => {
                        *failure = Some(error);
                        *stage = Stage::Over;
                        return true;
                    }
                };
            }
            let Stage::Posted(posted) = stage else { return false };
            let Poll::Ready(memory) = posted.poll(handle, core, context, failure) else { return false };
            for (work, memory) in works.iter_mut().zip(memory) {
                work.memory = memory;
            }
            *stage = Stage::Over;
            true
        })
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Future for Batch<'_, D, M, N> {
    type Output = Result<[M; N], Failed<[M; N]>>;

    /// After the outcome it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        if !self.advance(context, &mut failure) {
            return Poll::Pending;
        }
        let memory = self.works.each_mut().map(Work::take_memory);
        Poll::Ready(output(memory, failure))
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Drop for Batch<'_, D, M, N> {
    fn drop(&mut self) {
        self.stage.leave(self.handle);
    }
}
