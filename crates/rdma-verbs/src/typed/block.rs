//! Waiting in a plain thread.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Shard;
use super::TrustedDevice;
use super::core::Turn;
use crate::timer::timespec;
use crate::{Result, Signal, WaitSet};

/// How long a thread sleeps that cannot be woken, because the device or the system fails.
const PAUSE: Duration = Duration::from_millis(1);

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// What wakes a thread that sleeps on the descriptor of a shard.
struct Parker {
    state: AtomicU8,
    signal: Signal,
}

thread_local! {
    static PARKER: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

impl Parker {
    fn new() -> Result<Arc<Self>> {
        let set = Arc::new(WaitSet::new()?);
        let signal = set.signal(set.token());
        Ok(Arc::new(Self { state: AtomicU8::new(AWAKE), signal }))
    }

    /// Takes the parker of this thread. A future that waits inside another one gets a new one, and so does a
    /// child of `fork`, whose parent has this one. `None` if the system has no descriptors.
    fn take() -> Option<Arc<Self>> {
        let kept = PARKER.try_with(Cell::take).ok().flatten();
        kept.filter(|parker| !parker.signal.wait_set().is_inherited()).or_else(|| Self::new().ok())
    }

    /// Keeps a parker for the next wait of this thread.
    fn keep(self: Arc<Self>) {
        // If the thread is ending, there is none.
        let _ = PARKER.try_with(|parker| parker.set(Some(self)));
    }

    /// Sleeps until something wakes it, until the descriptor is readable, or until `deadline`.
    fn sleep(&self, shard: &impl AsFd, deadline: Option<Instant>) {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let set: &WaitSet = self.signal.wait_set();
            let mut sources = [PollFd::new(shard, PollFlags::IN), PollFd::new(set, PollFlags::IN)];
            let left = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
            match poll(&mut sources, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    log::warn!("cannot wait for a shard: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
        self.state.store(AWAKE, Ordering::Release);
        // A waker that found the thread asleep may also signal after this. Then the next sleep is short.
        self.signal.set(false);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.signal.set(true);
        }
    }
}

impl<D: TrustedDevice> Shard<D> {
    /// Runs a future in this thread and drives the shard meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Some(output) = self.run(future.as_mut(), None) {
                return output;
            }
        }
    }

    /// Like [`Shard::block_on`], until `deadline`. Returns `None` then; the future can go on.
    pub fn block_on_until<F: Future + Unpin>(&self, future: &mut F, deadline: Instant) -> Option<F::Output> {
        self.run(Pin::new(future), Some(deadline))
    }

    fn run<F: Future>(&self, mut future: Pin<&mut F>, deadline: Option<Instant>) -> Option<F::Output> {
        let parker = Parker::take();
        let waker = parker.as_ref().map_or_else(|| Waker::noop().clone(), |parker| Arc::clone(parker).into());
        let mut context = Context::from_waker(&waker);
        loop {
            let output = match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            };
            if output.is_some() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                parker.into_iter().for_each(Parker::keep);
                return output;
            }
            match (self.inner.turn(), &parker) {
                (Ok(Turn::Busy), _) => {}
                (Ok(Turn::Idle), Some(parker)) => parker.sleep(self, deadline),
                (Ok(Turn::Idle), None) => std::thread::sleep(PAUSE),
                (Err(error), _) => {
                    log::warn!("cannot drive a shard: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}
