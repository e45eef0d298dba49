//! A lock that the thread which uses it most takes without a fence.
//!
//! To take an ordinary lock is an atomic read-modify-write, which makes the processor wait until the peer's
//! cache lines that it wrote before are its own. For a short message that takes longer than everything else.
//! So the lock has an owner: the thread that took it many times in a row. The owner says with a plain store
//! that it is inside, and looks whether it still is the owner. Another thread ends the ownership first, makes
//! the full fence for both ([`heavy`]), and waits until the owner is outside.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crate::sync::{
    AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, UnsafeCell, heavy, is_prepared, light, pause, sleep,
};

/// Times in a row that a thread takes a lock before it becomes the owner, at first. Each end of an ownership
/// doubles it, so that threads which take turns pay for few.
const TURNS: u32 = if cfg!(loom) { 1 } else { 64 };
/// Most of them. The fence of one end of an ownership costs no more than so many plain ones.
const MOST_TURNS: u32 = 1 << 14;

/// Most threads that are the owner at one time or another. Further ones take turns.
const OWNERS: usize = if cfg!(loom) { 2 } else { 4 };

/// A thread of this process. A new thread may be equal to one that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread(usize);

impl Thread {
    const NONE: usize = 0;

    /// The calling thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        // SAFETY: it asks for nothing and always succeeds. It is not 0, because it is the address of the
        // C library's description of the thread. The address of a thread-local variable would do as well, but
        // in a shared library that is a search.
        Self(unsafe { libc::pthread_self() } as usize)
    }
}

/// Mutual exclusion, at next to no cost for a thread that takes it again and again. A thread that takes it
/// while it has it waits for ever.
pub struct OwnedLock<T> {
    /// Which of `owners` owns the lock, if one does.
    current: AtomicUsize,
    owners: [Owner; OWNERS],
    /// Taken by all but the owner.
    turns: Mutex<Turns>,
    value: UnsafeCell<T>,
}

/// A thread that owned the lock at some time, and may own it now. One that lost the ownership may still be
/// about to find that, and to say for a moment that it is inside. So no other thread ever gets its place.
struct Owner {
    /// The [`Thread`] while it owns the lock, else [`Thread::NONE`]. Changes only under `turns`.
    thread: AtomicUsize,
    /// Whether it has the lock as its owner.
    inside: AtomicBool,
}

/// Who took a lock otherwise than as its owner.
struct Turns {
    last: usize,
    /// How often in a row.
    count: u32,
    /// From how many on a thread becomes the owner.
    enough: u32,
    /// The thread of each place in `owners`, or [`Thread::NONE`].
    places: [usize; OWNERS],
}

/// The lock is taken.
pub struct OwnedGuard<'a, T> {
    lock: &'a OwnedLock<T>,
    taken: Taken<'a>,
    /// Stays in its thread.
    thread: PhantomData<*mut T>,
}

enum Taken<'a> {
    AsOwner(&'a Owner),
    InTurn(MutexGuard<'a, Turns>),
}

impl Owner {
    /// Ends the ownership, and waits until the thread is outside.
    fn end(&self) {
        self.thread.store(Thread::NONE, Ordering::Relaxed);
        if !heavy() {
            // This process was forbidden the call since it became possible. The owner's store becomes visible
            // within much less time than this.
            sleep(1000);
        }
        for look in 0.. {
            if !self.inside.load(Ordering::Acquire) {
                break;
            }
            pause(look);
        }
    }
}

// SAFETY: the value is reached through a guard only, and `OwnedLock::lock_as` gives out one at a time. So a
// lock that threads share moves the value from one to the other, which `T: Send` allows.
unsafe impl<T: Send> Sync for OwnedLock<T> {}

impl<T> OwnedLock<T> {
    /// A lock without an owner.
    pub fn new(value: T) -> Self {
        let owner = |_| Owner { thread: AtomicUsize::new(Thread::NONE), inside: AtomicBool::new(false) };
        let places = [Thread::NONE; OWNERS];
        Self {
            current: AtomicUsize::new(0),
            owners: std::array::from_fn(owner),
            turns: Mutex::new(Turns { last: Thread::NONE, count: 0, enough: TURNS, places }),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock.
    #[inline]
    pub fn lock(&self) -> OwnedGuard<'_, T> {
        self.lock_as(Thread::current())
    }

    #[inline]
    pub(crate) fn lock_as(&self, Thread(me): Thread) -> OwnedGuard<'_, T> {
        let owner = self.owner();
        if owner.thread.load(Ordering::Relaxed) == me && !owner.inside.load(Ordering::Relaxed) {
            owner.inside.store(true, Ordering::Relaxed);
            light();
            if owner.thread.load(Ordering::Relaxed) == me {
                return OwnedGuard { lock: self, taken: Taken::AsOwner(owner), thread: PhantomData };
            }
            owner.inside.store(false, Ordering::Release);
        }
        self.take_turn(me)
    }

    #[inline]
    fn owner(&self) -> &Owner {
        &self.owners[self.current.load(Ordering::Relaxed) % OWNERS]
    }

    #[cold]
    fn take_turn(&self, me: usize) -> OwnedGuard<'_, T> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if self.owner().thread.load(Ordering::Relaxed) != Thread::NONE {
            self.owner().end();
            turns.enough = (2 * turns.enough).min(MOST_TURNS);
        }
        turns.count = if turns.last == me { turns.count.saturating_add(1) } else { 1 };
        turns.last = me;
        OwnedGuard { lock: self, taken: Taken::InTurn(turns), thread: PhantomData }
    }

    /// Makes the thread whose turn it is the owner, if there is a place for it.
    #[cold]
    fn begin_ownership(&self, turns: &mut Turns) {
        let me = turns.last;
        if let Some(place) = turns.places.iter().position(|&thread| thread == me || thread == Thread::NONE) {
            turns.places[place] = me;
            self.owners[place].thread.store(me, Ordering::Relaxed);
            self.current.store(place, Ordering::Relaxed);
        }
    }

    #[cfg(not(loom))]
    #[inline]
    fn value(&self) -> *mut T {
        self.value.get()
    }

    /// Loom watches that no other thread looks meanwhile.
    #[cfg(loom)]
    fn value(&self) -> *mut T {
        self.value.with_mut(|value| value)
    }
}

impl<T> Deref for OwnedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is taken, so nothing else refers to the value; the guard lends it as itself is
        // lent.
        unsafe { &*self.lock.value() }
    }
}

impl<T> DerefMut for OwnedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.lock.value() }
    }
}

impl<T> Drop for OwnedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.taken {
            Taken::AsOwner(owner) => owner.inside.store(false, Ordering::Release),
            Taken::InTurn(turns) if turns.count >= turns.enough && is_prepared() => {
                self.lock.begin_ownership(turns);
            }
            Taken::InTurn(_) => {}
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::PREPARED;

    /// A thread that becomes the owner and one that ends that: each finds what the other left, and no two are
    /// inside at once.
    #[test]
    fn an_owner_and_another_thread_exclude_each_other() {
        PREPARED.set(true);
        loom::model(|| {
            let lock = Arc::new(OwnedLock::new(0));
            let takes = |lock: &OwnedLock<u32>, thread| {
                for _ in 0..3 {
                    let mut count = lock.lock_as(Thread(thread));
                    let before = *count;
                    *count = before + 1;
                }
            };
            let other = Arc::clone(&lock);
            let other = thread::spawn(move || takes(&other, 2));
            takes(&lock, 1);
            other.join().unwrap();
            assert_eq!(*lock.lock_as(Thread(1)), 6);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::prepare;

    fn becomes_owner<T>(lock: &OwnedLock<T>, most: u32) -> bool {
        (0..most).any(|_| matches!(lock.lock().taken, Taken::AsOwner(_)))
    }

    #[test]
    fn a_thread_that_takes_it_often_becomes_the_owner() {
        assert!(prepare());
        let lock = &OwnedLock::new(());
        assert!(!becomes_owner(lock, TURNS));
        assert!(becomes_owner(lock, 1));
        // One turn of another thread ends that, and makes the next ownership rarer.
        thread::scope(|scope| scope.spawn(move || assert!(!becomes_owner(lock, 1))).join().unwrap());
        assert!(!becomes_owner(lock, 2 * TURNS));
        assert!(becomes_owner(lock, 1));
    }

    #[test]
    fn threads_exclude_each_other() {
        assert!(prepare());
        let rounds = if cfg!(miri) { 100 } else { 200_000 };
        let lock = &OwnedLock::new([0_u64; 2]);
        thread::scope(|scope| {
            for pauses in [0, 1000, 17_000] {
                scope.spawn(move || {
                    for round in 1..=rounds {
                        let mut counts = lock.lock();
                        counts[0] += 1;
                        assert_eq!(counts[0], counts[1] + 1);
                        counts[1] += 1;
                        drop(counts);
                        if pauses > 0 && round % pauses == 0 {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [3 * rounds; 2]);
    }
}
