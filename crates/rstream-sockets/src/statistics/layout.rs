//! What lies where in the file. It consists of 64-bit words in the machine's order; zeros are an unused one.
//!
//! The process that made the file is the only one that writes it. A reader takes nothing in it for granted.

use std::sync::atomic::{AtomicU64, Ordering};

/// "rstreamS", and the version of what follows.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"rstreamS");
pub(super) const VERSION: u64 = 1;

/// Connections that have a record at a time, and kinds that are told apart. The last kind is all others.
pub(super) const RECORDS: usize = 16 << 10;
pub(super) const KINDS: usize = 32;

/// The words of a text, filled up with zeros.
pub(super) const TEXT: usize = 8;
pub(super) type Text = [AtomicU64; TEXT];

/// The file.
#[repr(C)]
pub(super) struct Shared {
    pub(super) header: Header,
    pub(super) kinds: [Kind; KINDS],
    pub(super) records: [Record; RECORDS],
}

/// What is counted once a process.
#[repr(C, align(512))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    /// The process that made the file, by the number that it has for itself.
    pub(super) process: AtomicU64,
    /// One more than the number of the last record that was ever used.
    pub(super) used: AtomicU64,
    /// Connections that found no record.
    pub(super) uncounted: AtomicU64,
    /// Changes of the totals that have begun, and that have ended.
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
    pub(super) waits: Waits,
}

/// What waits for several descriptors (`poll`, `select`, `epoll_wait`) brought.
#[derive(Debug)]
#[repr(C)]
pub struct Waits {
    pub(super) looks_paid: AtomicU64,
    pub(super) looks_vain: AtomicU64,
    pub(super) sleeps: AtomicU64,
}

/// The total of the connections of a kind that are closed.
#[repr(C, align(256))]
pub(super) struct Kind {
    /// [`KIND_FREE`], [`KIND_CLAIMED`] while the text is written, [`KIND_USED`].
    pub(super) state: AtomicU64,
    /// The path, as [`Record::state`] has it.
    pub(super) path: AtomicU64,
    pub(super) reason: Text,
    pub(super) connections: AtomicU64,
    pub(super) counters: Counters,
}

pub(super) const KIND_FREE: u64 = 0;
pub(super) const KIND_CLAIMED: u64 = 1;
pub(super) const KIND_USED: u64 = 2;

/// A connection. The words up to `reason` are valid if `sequence` is even, and the same before and after
/// they are read; the counters always are.
#[repr(C, align(256))]
pub(crate) struct Record {
    pub(super) sequence: AtomicU64,
    /// The path, [`ACTIVE`] and [`HAS_ENDS`]. 0: the record is free.
    pub(super) state: AtomicU64,
    /// The addresses as IPv6, mapped where they are of IPv4; this side's first. Then both ports.
    pub(super) addresses: [AtomicU64; 4],
    pub(super) ports: AtomicU64,
    /// The peer's process, by the number that this process has for it. 0: it is unknown.
    pub(super) peer: AtomicU64,
    pub(super) reason: Text,
    pub(super) counters: Counters,
}

/// Paths, in the lowest bits of a state.
pub(super) const PATH: u64 = 3;
pub(super) const UNDECIDED: u64 = 1;
pub(super) const SHARED_MEMORY: u64 = 2;
pub(super) const TCP: u64 = 3;
/// This side called `connect`.
pub(super) const ACTIVE: u64 = 1 << 8;
pub(super) const HAS_ENDS: u64 = 1 << 9;

/// What the calls of a connection add to. Those of input are on a line of their own.
#[repr(C, align(64))]
pub(super) struct Counters([AtomicU64; COUNTERS]);

pub(super) const COUNTERS: usize = 16;

/// What is counted of a connection: the place of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Bytes taken from the ring, and calls that took some.
    RingReceivedBytes = 0,
    /// See above.
    RingReceivedCalls = 1,
    /// Bytes of the stream that the kernel gave, and calls of the kernel.
    TcpReceivedBytes = 2,
    /// See above.
    TcpReceivedCalls = 3,
    /// Times that bells of the peer were taken, each of which may have been several.
    BellsTaken = 4,
    /// Looks before a sleep that made it needless.
    LooksPaid = 5,
    /// Looks before a sleep that found nothing.
    LooksVain = 6,
    /// Sleeps of calls that send or receive.
    Sleeps = 7,
    /// Bytes put into the ring, and calls that put some.
    RingSentBytes = 8,
    /// See above.
    RingSentCalls = 9,
    /// Bytes of the stream that the kernel took, and calls of the kernel.
    TcpSentBytes = 10,
    /// See above.
    TcpSentCalls = 11,
    /// Bells rung for the peer.
    BellsRung = 12,
    /// Bytes of the ring of output that are in use now. It is no count.
    Window = 13,
}

impl Counter {
    /// All, in the order of their words.
    pub const ALL: [Self; 14] = [
        Self::RingReceivedBytes,
        Self::RingReceivedCalls,
        Self::TcpReceivedBytes,
        Self::TcpReceivedCalls,
        Self::BellsTaken,
        Self::LooksPaid,
        Self::LooksVain,
        Self::Sleeps,
        Self::RingSentBytes,
        Self::RingSentCalls,
        Self::TcpSentBytes,
        Self::TcpSentCalls,
        Self::BellsRung,
        Self::Window,
    ];

    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RingReceivedBytes => "ring_received_bytes",
            Self::RingReceivedCalls => "ring_received_calls",
            Self::TcpReceivedBytes => "tcp_received_bytes",
            Self::TcpReceivedCalls => "tcp_received_calls",
            Self::BellsTaken => "bells_taken",
            Self::LooksPaid => "looks_paid",
            Self::LooksVain => "looks_vain",
            Self::Sleeps => "sleeps",
            Self::RingSentBytes => "ring_sent_bytes",
            Self::RingSentCalls => "ring_sent_calls",
            Self::TcpSentBytes => "tcp_sent_bytes",
            Self::TcpSentCalls => "tcp_sent_calls",
            Self::BellsRung => "bells_rung",
            Self::Window => "window",
        }
    }
}

impl Counters {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; COUNTERS])
    }

    #[inline]
    pub(super) fn word(&self, counter: Counter) -> &AtomicU64 {
        &self.0[counter as usize]
    }

    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    pub(super) fn load(&self) -> [u64; COUNTERS] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }

    /// Adds what a closed connection has counted.
    pub(super) fn add(&self, counts: &[u64; COUNTERS]) {
        for (at, (word, &count)) in self.0.iter().zip(counts).enumerate() {
            if at != Counter::Window as usize {
                word.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

impl Record {
    pub(super) const fn new(state: u64) -> Self {
        Self {
            sequence: AtomicU64::new(0),
            state: AtomicU64::new(state),
            addresses: [const { AtomicU64::new(0) }; 4],
            ports: AtomicU64::new(0),
            peer: AtomicU64::new(0),
            reason: [const { AtomicU64::new(0) }; TEXT],
            counters: Counters::new(),
        }
    }
}

impl Waits {
    pub(super) const fn new() -> Self {
        Self { looks_paid: AtomicU64::new(0), looks_vain: AtomicU64::new(0), sleeps: AtomicU64::new(0) }
    }
}

/// Puts a text into words. What is too long is cut.
pub(super) fn store_text(words: &Text, text: &str) {
    let mut bytes = [0; TEXT * 8];
    let fits = |&at: &usize| text.is_char_boundary(at);
    let length = (0..=bytes.len().min(text.len())).rev().find(fits).unwrap_or(0);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

/// The bytes of a text, with the zeros behind it.
pub(super) fn load_text(words: &Text) -> [u8; TEXT * 8] {
    let mut bytes = [0; TEXT * 8];
    for (word, bytes) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    bytes
}

const _: () = assert!(size_of::<Header>() == 512 && size_of::<Kind>() == 256 && size_of::<Record>() == 256);
const _: () = assert!(std::mem::offset_of!(Record, counters) == 128);
