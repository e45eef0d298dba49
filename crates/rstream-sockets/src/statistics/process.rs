//! What this process counts: which records are in use, and the totals of closed connections.
//!
//! All of this is done without a lock, because a fork, or a signal handler, may come at any time.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use super::layout::{KIND_CLAIMED, KIND_FREE, KIND_USED, KINDS, PATH, RECORDS, Record, Shared, Waits};
use super::layout::{TCP, load_text};
use super::memory::Own;

static OWN: Own = Own::none();
/// Whether the system has refused a file.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// A bit for each record that is in use.
static USED: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];
/// Where a free one may be.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The records of connections that go on without this library, by their descriptor: one more than the number
/// of the record.
static LEFT: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
const DESCRIPTORS: usize = 64 << 10;
/// One more than the highest descriptor that was ever left.
static LEFT_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Waits of a process without a file.
static NO_WAITS: Waits = Waits::new();

/// Where this process counts its waits for several descriptors.
pub fn waits() -> &'static Waits {
    OWN.get().map_or(&NO_WAITS, |shared| &shared.header.waits)
}

/// This process's own file.
pub(super) fn own() -> Option<&'static Shared> {
    OWN.get()
}

/// A record that nobody uses.
pub(super) fn take_record() -> Option<&'static Record> {
    if IS_REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    let Ok(shared) = OWN.get().map_or_else(|| OWN.make(), Ok) else {
        IS_REFUSED.store(true, Ordering::Relaxed);
        return None;
    };
    let first = NEXT.load(Ordering::Relaxed);
    for at in (first..USED.len()).chain(0..first) {
        let mut word = USED[at].load(Ordering::Relaxed);
        while word != u64::MAX {
            let bit = word.trailing_ones() as usize;
            let before = USED[at].fetch_or(1 << bit, Ordering::AcqRel);
            if before & 1 << bit == 0 {
                let number = at * 64 + bit;
                NEXT.store(at, Ordering::Relaxed);
                shared.header.used.fetch_max(number as u64 + 1, Ordering::Relaxed);
                return Some(&shared.records[number]);
            }
            word = before;
        }
    }
    shared.header.uncounted.fetch_add(1, Ordering::Relaxed);
    None
}

/// The number of a record of this process's file.
fn number_of(record: &Record) -> Option<usize> {
    let first = OWN.get()?.records.as_ptr() as usize;
    let offset = (std::ptr::from_ref(record) as usize).checked_sub(first)?;
    Some(offset / size_of::<Record>()).filter(|&number| number < RECORDS)
}

/// The record is free, before anything was counted.
pub(super) fn discard_record(record: &Record) {
    record.end();
    give_back(record);
}

fn give_back(record: &Record) {
    if let Some(number) = number_of(record) {
        USED[number / 64].fetch_and(!(1 << (number % 64)), Ordering::AcqRel);
        NEXT.fetch_min(number / 64, Ordering::Relaxed);
    }
}

/// The connection is closed: what it has counted goes to its kind.
pub(super) fn close_record(record: &Record) {
    // A record of another file is a process's that this one was forked from.
    let (Some(shared), Some(_)) = (OWN.get(), number_of(record)) else { return };
    let path = record.state.load(Ordering::Relaxed) & PATH;
    shared.header.begun.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let kind = kind(shared, path, record);
    kind.connections.fetch_add(1, Ordering::Relaxed);
    kind.counters.add(&record.counters.load());
    record.end();
    fence(Ordering::SeqCst);
    shared.header.ended.fetch_add(1, Ordering::SeqCst);
    give_back(record);
}

/// The kind of a record. The last one is that of all others.
fn kind<'a>(shared: &'a Shared, path: u64, record: &Record) -> &'a super::layout::Kind {
    let reason = load_text(&record.reason);
    let (last, others) = (&shared.kinds[KINDS - 1], &shared.kinds[..KINDS - 1]);
    for kind in others {
        if kind.state.load(Ordering::Acquire) == KIND_FREE
            && kind
                .state
                .compare_exchange(KIND_FREE, KIND_CLAIMED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            kind.path.store(path, Ordering::Relaxed);
            for (to, from) in kind.reason.iter().zip(&record.reason) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            kind.state.store(KIND_USED, Ordering::Release);
            return kind;
        }
        if kind.state.load(Ordering::Acquire) == KIND_USED
            && kind.path.load(Ordering::Relaxed) == path
            && load_text(&kind.reason) == reason
        {
            return kind;
        }
    }
    last.path.store(TCP, Ordering::Relaxed);
    last.state.store(KIND_USED, Ordering::Release);
    last
}

/// The connection goes on without this library.
pub(super) fn leave_record(record: &Record, descriptor: i32) {
    let place = usize::try_from(descriptor).ok().and_then(|at| Some((at, LEFT.get(at)?)));
    let (Some((at, place)), Some(number)) = (place, number_of(record)) else { return close_record(record) };
    LEFT_LENGTH.fetch_max(at + 1, Ordering::AcqRel);
    close_number(place.swap(number as u32 + 1, Ordering::AcqRel));
}

/// Whether a connection went on by this descriptor without this library.
#[inline]
pub fn is_left(descriptor: i32) -> bool {
    let place = usize::try_from(descriptor).ok().and_then(|at| LEFT.get(at));
    place.is_some_and(|place| place.load(Ordering::Relaxed) != 0)
}

/// The descriptors for which [`is_left`] holds.
pub fn left() -> impl Iterator<Item = i32> {
    let length = LEFT_LENGTH.load(Ordering::Acquire).min(DESCRIPTORS);
    (0..length as i32).filter(|&descriptor| is_left(descriptor))
}

/// To be called when a descriptor is closed, or is another file's: the connection that went on by it without
/// this library has ended.
pub fn close_left(descriptor: i32) {
    if let Some(place) = usize::try_from(descriptor).ok().and_then(|at| LEFT.get(at)) {
        close_number(place.swap(0, Ordering::AcqRel));
    }
}

fn close_number(left: u32) {
    if let Some(number) = left.checked_sub(1)
        && let Some(shared) = OWN.get()
    {
        close_record(&shared.records[number as usize]);
    }
}

/// In a process that was forked: it has counted nothing.
pub(crate) fn forget() {
    IS_REFUSED.store(false, Ordering::Relaxed);
    if OWN.get().is_none() {
        return;
    }
    OWN.forget();
    USED.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    NEXT.store(0, Ordering::Relaxed);
    let left = &LEFT[..LEFT_LENGTH.swap(0, Ordering::AcqRel).min(DESCRIPTORS)];
    left.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}

/// The records that were ever used: to look at others would only cost memory.
pub(super) fn used(shared: &Shared) -> &[Record] {
    let most = usize::try_from(shared.header.used.load(Ordering::Acquire)).unwrap_or(RECORDS);
    &shared.records[..most.min(RECORDS)]
}
