//! What the processes that hold a connection share: a process and those that were forked from it.
//!
//! Each connection has a [`Slot`] in memory that stays shared over a fork. Positions and locks lie there. The
//! ends of the rings, which are addresses in a mapping, belong to the process: whoever has a direction's lock
//! brings its end to the shared position first.
//!
//! Slots lie in chunks, because a mapping for each would cost a system call. A chunk that has lived through a
//! fork gets no new connections, and is unmapped when its last one is gone: which of its places another
//! process still uses is unknown here. The memory itself lives as long as some process maps it.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

use rstream_ring::{Reader, ReaderState, Sleepers, Writer, WriterState};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::lock::{Busy, ForkLock, Locked};

/// One direction, as the processes share it. All zeros are one that nobody has used.
#[repr(C, align(64))]
pub(crate) struct Direction<S> {
    lock: ForkLock,
    state: UnsafeCell<S>,
}

/// Plain data of a direction.
///
/// # Safety
/// A value of all zeros is valid, and no value contains an address.
pub(crate) unsafe trait State: Copy + Send {}

/// How far a direction has gone from its ring back to the kernel. Zero is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Leaving {
    /// Not at all.
    No,
    /// This side wishes it: it neither reads nor writes until the peer has answered.
    Wished,
    /// The peer wishes it. What this side reads comes through the ring until the peer has left it; what it
    /// has written, and the peer has not read, is sent again.
    Granted,
    /// The kernel has the rest of the stream.
    Left,
}

/// The direction in which this side reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Input {
    /// Bytes of the stream that the kernel has given.
    pub(crate) taken: u64,
    /// Threads in a call of the kernel that receives.
    pub(crate) inside: u32,
    /// The last of them.
    pub(crate) inside_thread: u32,
    /// Calls that found nothing, in a row.
    pub(crate) empty: u32,
    /// When the last of them was, in nanoseconds.
    pub(crate) looked: u64,
    /// Whether its caller calls again and again until there is something.
    pub(crate) spins: bool,
    /// Whether a bell was asked for, and none was taken since.
    pub(crate) armed: bool,
    /// Whether `ring` is valid.
    pub(crate) joined: bool,
    /// An error that the kernel has reported to a call which could not pass it on.
    pub(crate) error: i32,
    /// Whether the kernel has reported the end of the stream.
    pub(crate) finished: bool,
    pub(crate) leaving: Leaving,
    /// When the peer was granted its wish to leave, in seconds.
    pub(crate) since: u64,
    pub(crate) ring: ReaderState,
}

/// The direction in which this side writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Output {
    /// Bytes of the stream that the kernel has taken.
    pub(crate) sent: u64,
    /// Threads in a call of the kernel that sends.
    pub(crate) inside: u32,
    /// Whether `ring` is valid.
    pub(crate) joined: bool,
    /// Whether the stream goes on in the ring.
    pub(crate) begun: bool,
    /// Whether this side has ended it.
    pub(crate) ended: bool,
    pub(crate) leaving: Leaving,
    /// While it leaves: the number of the next byte of the ring that is sent again.
    pub(crate) resent: u64,
    pub(crate) ring: WriterState,
}

// SAFETY: integers, booleans and an enumeration that has a zero, also in the ring's state.
unsafe impl State for Input {}
// SAFETY: as above.
unsafe impl State for Output {}

/// One direction, as this process has it.
pub(crate) struct Half<S, E> {
    /// Keeps `direction` valid.
    _slot: Arc<Slot>,
    direction: NonNull<Direction<S>>,
    end: OnceLock<UnsafeCell<E>>,
}

/// A direction whose lock is taken.
pub(crate) struct Held<'a, S, E> {
    half: &'a Half<S, E>,
    _locked: Locked<'a>,
}

// SAFETY: the pointer leads into memory that the slot keeps, with no tie to a thread, and the rest is `Send`.
unsafe impl<S: State, E: Send> Send for Half<S, E> {}
// SAFETY: state and end are reached only through `Held`, of which there is one at a time (`ForkLock`), so
// that threads which share a `Half` move both from one to the other, which `Send` allows.
unsafe impl<S: State, E: Send> Sync for Half<S, E> {}

impl<S: State, E> Half<S, E> {
    pub(crate) fn lock(&self) -> Result<Held<'_, S, E>, Busy> {
        // SAFETY: the direction is aligned and lies within a chunk that the slot keeps (see `Slot`). Its lock
        // is an atomic; the state, which a process may change meanwhile, is in an `UnsafeCell`.
        let direction = unsafe { self.direction.as_ref() };
        Ok(Held { half: self, _locked: direction.lock.lock()? })
    }

    /// Gives this process its end, once.
    pub(crate) fn set_end(&self, end: E) {
        let _ = self.end.set(UnsafeCell::new(end));
    }

    /// Whether this process has its end.
    #[inline]
    pub(crate) fn has_end(&self) -> bool {
        self.end.get().is_some()
    }
}

impl<S: State, E> Held<'_, S, E> {
    /// The shared state, and this process's end.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut S, Option<&mut E>) {
        // SAFETY: as in `Half::lock` for the direction. The lock is taken, and there is one `Held` for each
        // time that it is taken, here borrowed mutably: nothing else refers to the state or to the end. Any
        // bits that a forked process leaves are a state, because it runs this very code; zeros are one
        // (`State`).
        unsafe {
            let state = &mut *self.half.direction.as_ref().state.get();
            (state, self.half.end.get().map(|end| &mut *end.get()))
        }
    }
}

/// The words of a connection that need no lock. Zeros are those of a new one.
#[repr(C, align(64))]
pub(crate) struct Words {
    /// Processes that hold the connection, if there has been more than one: their numbers, and 0.
    pub(crate) holders: [AtomicU32; HOLDERS],
    /// Processes that are being forked, or that found no place above.
    pub(crate) unknown: AtomicU32,
    /// Threads that sleep: the leader in the kernel.
    pub(crate) sleepers: Sleepers,
    /// Not 0: all output goes to the ring.
    pub(crate) begun: AtomicU32,
    /// Not 0: the peer's goes to its ring.
    pub(crate) peer_begun: AtomicU32,
    /// Not 0: the peer's process is gone. Output goes to the kernel, which knows what to answer.
    pub(crate) peer_gone: AtomicU32,
    /// Not 0: a call has received the end of the stream. The peer may have closed the connection.
    pub(crate) peer_ended: AtomicU32,
    /// When a bell last asked whether the peer is there, in seconds.
    pub(crate) asked: AtomicU64,
    /// Not 0: the connection broke, with this error.
    pub(crate) broken: AtomicU32,
    /// How far it has gone back to the kernel: see [`LEAVING`].
    pub(crate) back: AtomicU32,
    /// How the application wants what it sends to be delayed, see [`Delays`](crate::Delays).
    pub(crate) delays: AtomicU32,
    /// Bells that this side has rung, and taken.
    pub(crate) rung: AtomicU64,
    pub(crate) taken_bells: AtomicU64,
}

/// In the word `back`: the sides have begun to go back.
pub(crate) const LEAVING: u32 = 1;
/// All output goes to the kernel again.
pub(crate) const OUTPUT_LEFT: u32 = 2;
/// So does all input.
pub(crate) const INPUT_LEFT: u32 = 4;

/// Processes of one connection that are told apart.
pub(crate) const HOLDERS: usize = 6;

/// A connection's place in shared memory.
pub(crate) struct Slot {
    chunk: Arc<Chunk>,
    index: usize,
}

/// Places of connections, in one mapping.
struct Chunk {
    base: NonNull<u8>,
    /// How many forks there had been when it was made.
    made: u32,
    free: Mutex<Vec<usize>>,
}

/// Bytes of a slot: a page holds four, so that it costs no more than its connection's descriptor does in the
/// kernel.
const SLOT: usize = 1024;
const SLOTS: usize = 64;
const LENGTH: usize = SLOT * SLOTS;

/// Where the parts of a slot are.
const INPUT: usize = 0;
const OUTPUT: usize = 384;
const WORDS: usize = 768;

/// The chunk that new connections go to.
static CURRENT: Mutex<Option<Arc<Chunk>>> = Mutex::new(None);
/// Forks of this process and of its ancestors.
static FORKS: AtomicU32 = AtomicU32::new(0);

// SAFETY: the memory may be used and unmapped by any thread; what lies in it is reached by `Slot` only.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Slot {
    /// A place for a new connection.
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let forks = FORKS.load(Ordering::Acquire);
        // A thread of a process that was forked may find the lock taken for ever.
        let mut current = match CURRENT.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Self::of(&Chunk::new(forks)?).ok_or(Errno::NOMEM),
        };
        let known = current.as_ref().filter(|chunk| chunk.made == forks).and_then(Self::of);
        if let Some(slot) = known {
            return Ok(slot);
        }
        let chunk = current.insert(Chunk::new(forks)?);
        Self::of(chunk).ok_or(Errno::NOMEM)
    }

    fn of(chunk: &Arc<Chunk>) -> Option<Arc<Self>> {
        let index = chunk.free.try_lock().ok()?.pop()?;
        // SAFETY: `index` is below `SLOTS`, so that the slot is within the mapping. It is nobody's: it was in
        // the list of free ones, and no fork has copied its last owner since (`Slot::drop`).
        unsafe { chunk.base.add(index * SLOT).write_bytes(0, SLOT) };
        Some(Arc::new(Self { chunk: Arc::clone(chunk), index }))
    }

    pub(crate) fn words(&self) -> &Words {
        // SAFETY: the words are within the slot and aligned (see the constants), and consist of atomics.
        unsafe { self.at(WORDS).cast::<Words>().as_ref() }
    }

    pub(crate) fn input(self: &Arc<Self>) -> Half<Input, Reader> {
        self.half(INPUT)
    }

    pub(crate) fn output(self: &Arc<Self>) -> Half<Output, Writer> {
        self.half(OUTPUT)
    }

    fn half<S: State, E>(self: &Arc<Self>, offset: usize) -> Half<S, E> {
        Half { _slot: Arc::clone(self), direction: self.at(offset).cast(), end: OnceLock::new() }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: slot and offset are within the mapping, see `SLOTS` and `SLOT`.
        unsafe { self.chunk.base.add(self.index * SLOT + offset) }
    }
}

const _: () = assert!(size_of::<Direction<Input>>() <= OUTPUT - INPUT && OUTPUT.is_multiple_of(64));
const _: () = assert!(size_of::<Direction<Output>>() <= WORDS - OUTPUT && WORDS.is_multiple_of(64));
const _: () = assert!(size_of::<Words>() <= SLOT - WORDS);

impl Drop for Slot {
    fn drop(&mut self) {
        // After a fork the other process may use it still: then the place stays unused.
        if self.chunk.made == FORKS.load(Ordering::Acquire)
            && let Ok(mut free) = self.chunk.free.try_lock()
        {
            free.push(self.index);
        }
    }
}

impl Chunk {
    fn new(forks: u32) -> Result<Arc<Self>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a free place, so that the mapping touches no memory in use.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(Self { base, made: forks, free: Mutex::new((0..SLOTS).rev().collect()) }))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; the slots, which lead into it, are gone, since each keeps the
        // chunk.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), LENGTH) };
    }
}

/// To be called before a fork: places that are in use now are never used again.
pub(crate) fn before_fork() {
    FORKS.fetch_add(1, Ordering::Release);
}
