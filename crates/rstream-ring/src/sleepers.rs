//! Which thread of a side sleeps for the peer's notifications.
//!
//! A notification ends one sleep, and does not say for whom it is. So of the threads that sleep for one
//! connection, in all processes that have it, one *leads*: it sleeps where notifications arrive, and only it
//! takes them. The others *follow*: they sleep behind it until it has woken.
//!
//! A side has a lock for its input. Under this lock its threads take notifications, and tell the peer that
//! none is needed, and only while no other thread leads. A thread that is about to sleep first leads, or
//! finds another that does, and then looks under the same lock whether a notification is still to come for
//! it. Whoever takes that, or does without, does so before this look, which then finds it; or finds the
//! leader.

use crate::Reader;
use crate::sync::{AtomicU32, Ordering, fence};

#[cfg(all(test, loom))]
mod models;

/// What the threads of a side share that sleep for it. It may lie in memory that processes share; all zeros
/// are a side that nobody sleeps for.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sleepers {
    /// The thread that sleeps where notifications arrive, 0 if none does.
    leader: AtomicU32,
    /// Counts what may interest the threads that sleep behind it.
    turn: AtomicU32,
    /// How many these are.
    followers: AtomicU32,
}

/// How a thread sleeps that had nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// Where notifications arrive. Then [`Sleepers::woken`].
    Leading,
    /// Behind the leader: [`Sleepers::follow`].
    Following,
    /// Not at all: something may have changed.
    Not,
}

/// What the system knows of threads.
pub trait Threads {
    /// The number of the calling thread, neither 0 nor `u32::MAX`.
    fn current(&self) -> u32;

    /// Whether a thread with this number runs.
    fn is_alive(&self, thread: u32) -> bool;

    /// Ends the sleeps of all threads that sleep until this word changes, see [`Sleepers::follow`].
    fn wake(&self, word: &AtomicU32);
}

/// In place of the leader's number: one of several threads, it is not known which.
const SOME: u32 = u32::MAX;

/// A thread that sleeps behind the leader. It counts as long as it does, also when its sleep is unwound.
struct Follower<'a>(&'a AtomicU32);

impl<'a> Follower<'a> {
    fn new(followers: &'a AtomicU32) -> Self {
        followers.fetch_add(1, Ordering::Relaxed);
        Self(followers)
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sleepers {
    /// To be asked before a thread looks for something to do, for [`Sleepers::begin`].
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire)
    }

    /// How the calling thread sleeps, which had nothing to do since `turn`. `is_asked` takes the lock of the
    /// input, and says whether the peer still has to notify for what this thread waits for.
    ///
    /// # Errors
    /// Those of `is_asked`.
    pub fn begin<E>(
        &self,
        threads: &impl Threads,
        turn: u32,
        is_asked: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Sleep, E> {
        let leads = self.lead(threads);
        let relies_on_peer = is_asked().map(|is_asked| is_asked && self.turn() == turn);
        if leads && !matches!(relies_on_peer, Ok(true)) {
            self.woken(threads);
        }
        Ok(match (relies_on_peer?, leads) {
            (false, _) => Sleep::Not,
            (true, true) => Sleep::Leading,
            (true, false) => Sleep::Following,
        })
    }

    /// Makes the calling thread the leader, if no other thread is. Then nobody else takes notifications,
    /// until [`Sleepers::woken`].
    #[must_use]
    pub fn lead(&self, threads: &impl Threads) -> bool {
        let (leader, own) = (self.leader.load(Ordering::Acquire), threads.current());
        leader == own
            || !is_others(leader, threads)
                && self.leader.compare_exchange(leader, own, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether another thread leads.
    #[inline]
    #[must_use]
    pub fn is_led(&self, threads: &impl Threads) -> bool {
        is_others(self.leader.load(Ordering::Acquire), threads)
    }

    /// The leader has woken, and leads no more.
    pub fn woken(&self, threads: &impl Threads) {
        self.leader.store(0, Ordering::Release);
        self.wake_followers(threads);
    }

    /// [`Sleepers::woken`], if the calling thread leads.
    pub fn stop_leading(&self, threads: &impl Threads) {
        if self.leader.load(Ordering::Acquire) == threads.current() {
            self.woken(threads);
        }
    }

    /// Has the threads look again that sleep behind the leader.
    pub fn wake_followers(&self, threads: &impl Threads) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        // A follower counts itself before it looks at the turn.
        fence(Ordering::SeqCst);
        if self.followers.load(Ordering::Relaxed) > 0 {
            threads.wake(&self.turn);
        }
    }

    /// Sleeps behind the leader, by `sleep`: it sleeps as long as this word has the value of the thread's
    /// turn, or until [`Threads::wake`].
    pub fn follow<T>(&self, sleep: impl FnOnce(&AtomicU32) -> T) -> T {
        let _follower = Follower::new(&self.followers);
        fence(Ordering::SeqCst);
        sleep(&self.turn)
    }

    /// Takes notifications by `take`, which returns what it took, unless another thread leads: that would
    /// sleep on, and whoever sleeps behind it too. To be called under the input's lock.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn take<T, E>(
        &self,
        threads: &impl Threads,
        take: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        if self.is_led(threads) {
            return Ok(None);
        }
        let taken = take()?;
        if taken.is_some() {
            self.wake_followers(threads);
        }
        Ok(taken)
    }

    /// Tells the peer that nobody needs a notification of input, unless another thread leads. To be called
    /// under the input's lock.
    pub fn silence(&self, threads: &impl Threads, reader: &mut Reader) {
        if !self.is_led(threads) {
            reader.disarm();
        }
    }

    /// To be called under the input's lock when threads sleep where notifications arrive that did not come
    /// here by [`Sleepers::begin`], and each time that one of them wakes: as long as there are any, they
    /// lead. `inside` says how many there are, `last` which of them began last.
    pub fn hand_on(&self, threads: &impl Threads, inside: u32, last: u32) {
        let own = threads.current();
        let leader = self.leader.load(Ordering::Acquire);
        if inside > 0 && (leader == 0 || leader == own) {
            // Which of several has come out is not noted, but for the last one that went in.
            self.leader.store(if last == own { SOME } else { last }, Ordering::Release);
        } else if inside == 0 && (leader == own || leader == SOME) {
            self.leader.store(0, Ordering::Release);
        }
        // What it took may have been for any of them.
        self.wake_followers(threads);
    }
}

/// Whether a thread other than the caller is the leader with this number.
#[inline]
fn is_others(leader: u32, threads: &impl Threads) -> bool {
    leader == SOME || leader != 0 && leader != threads.current() && threads.is_alive(leader)
}
