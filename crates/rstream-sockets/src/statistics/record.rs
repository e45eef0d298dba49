//! How a connection counts, and how it says what it is.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::layout::{ACTIVE, Counter, HAS_ENDS, PATH, Record, SHARED_MEMORY, TCP, TEXT, UNDECIDED, Waits};
use super::layout::{load_text, store_text};
use super::view::Path;

/// Attempts to change a record that another thread changes, or that this one changes further up its stack.
const ATTEMPTS: u32 = 10_000;

/// What counts whether it paid to look before a sleep.
pub trait Looks {
    /// A look has ended.
    fn count(&self, has_paid: bool);
}

impl Looks for Record {
    fn count(&self, has_paid: bool) {
        self.add(if has_paid { Counter::LooksPaid } else { Counter::LooksVain });
    }
}

impl Looks for Waits {
    fn count(&self, has_paid: bool) {
        let word = if has_paid { &self.looks_paid } else { &self.looks_vain };
        word.fetch_add(1, Ordering::Relaxed);
    }
}

impl Waits {
    /// A thread sleeps.
    pub fn count_sleep(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds to a word that only one thread changes at a time: those of a direction are changed under its lock.
#[inline]
fn grow(word: &AtomicU64, by: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Record {
    /// So many bytes went into the ring. The caller has the lock of the direction, here and below.
    #[inline]
    pub(crate) fn sent_by_ring(&self, length: usize) {
        grow(self.counters.word(Counter::RingSentBytes), length as u64);
        grow(self.counters.word(Counter::RingSentCalls), 1);
    }

    #[inline]
    pub(crate) fn received_by_ring(&self, length: usize) {
        grow(self.counters.word(Counter::RingReceivedBytes), length as u64);
        grow(self.counters.word(Counter::RingReceivedCalls), 1);
    }

    pub(crate) fn sent_by_tcp(&self, length: usize) {
        grow(self.counters.word(Counter::TcpSentBytes), length as u64);
        grow(self.counters.word(Counter::TcpSentCalls), 1);
    }

    pub(crate) fn received_by_tcp(&self, length: usize) {
        grow(self.counters.word(Counter::TcpReceivedBytes), length as u64);
        grow(self.counters.word(Counter::TcpReceivedCalls), 1);
    }

    /// Counts what any thread may do at any time.
    pub(crate) fn add(&self, counter: Counter) {
        self.counters.word(counter).fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of the ring that are in use from now on.
    pub(crate) fn set_window(&self, window: usize) {
        self.counters.word(Counter::Window).store(window as u64, Ordering::Relaxed);
    }

    /// A new connection counts here.
    pub(super) fn begin(&self, is_active: bool, path: Path<'_>) {
        self.change(|| {
            self.counters.clear();
            self.addresses.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.peer.store(0, Ordering::Relaxed);
            self.store_path(path, if is_active { ACTIVE } else { 0 });
        });
    }

    /// Nobody counts here any more.
    pub(super) fn end(&self) {
        self.change(|| self.state.store(0, Ordering::Relaxed));
    }

    pub(super) fn set_path(&self, path: Path<'_>) {
        self.change(|| self.store_path(path, self.state.load(Ordering::Relaxed) & !PATH));
    }

    fn store_path(&self, path: Path<'_>, rest: u64) {
        let code = match path {
            Path::Undecided(_) => UNDECIDED,
            Path::SharedMemory => SHARED_MEMORY,
            Path::Tcp(_) => TCP,
        };
        let reason = match path {
            Path::Undecided(reason) | Path::Tcp(reason) => reason,
            Path::SharedMemory => "",
        };
        store_text(&self.reason, reason);
        self.state.store(code | rest, Ordering::Relaxed);
    }

    /// The peer's process, if it has a number here.
    pub(crate) fn set_peer(&self, process: Option<u32>) {
        self.change(|| self.peer.store(process.unwrap_or(0).into(), Ordering::Relaxed));
    }

    #[inline]
    pub(super) fn has_ends(&self) -> bool {
        self.state.load(Ordering::Relaxed) & HAS_ENDS != 0
    }

    pub(super) fn set_ends(&self, (own, peers): (SocketAddr, SocketAddr)) {
        let [first, second] = [own, peers].map(|end| words_of(end.ip()));
        self.change(|| {
            for (word, value) in self.addresses.iter().zip(first.into_iter().chain(second)) {
                word.store(value, Ordering::Relaxed);
            }
            self.ports.store(u64::from(own.port()) << 16 | u64::from(peers.port()), Ordering::Relaxed);
            self.state.store(self.state.load(Ordering::Relaxed) | HAS_ENDS, Ordering::Relaxed);
        });
    }

    /// Changes words that belong together. A signal handler that interrupts a change gives up: nothing that
    /// it does then is shown.
    fn change(&self, act: impl FnOnce()) {
        for _ in 0..ATTEMPTS {
            let before = self.sequence.load(Ordering::Relaxed);
            let odd = before | 1;
            if before != odd
                && self.sequence.compare_exchange(before, odd, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                // Who sees any of what follows sees the odd number afterwards.
                fence(Ordering::Release);
                act();
                self.sequence.store(odd.wrapping_add(1), Ordering::Release);
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// What it says of itself, if it is in use and is not changed meanwhile.
    pub(super) fn read(&self) -> Option<Facts> {
        for _ in 0..ATTEMPTS {
            let before = self.sequence.load(Ordering::Acquire);
            let facts = Facts {
                state: self.state.load(Ordering::Relaxed),
                addresses: std::array::from_fn(|at| self.addresses[at].load(Ordering::Relaxed)),
                ports: self.ports.load(Ordering::Relaxed),
                peer: self.peer.load(Ordering::Relaxed),
                reason: load_text(&self.reason),
            };
            // In this order: what was read is no newer than the number.
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return Some(facts).filter(|facts| facts.state & PATH != 0);
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// What a record says of its connection: words that belong together.
pub(super) struct Facts {
    pub(super) state: u64,
    pub(super) addresses: [u64; 4],
    pub(super) ports: u64,
    pub(super) peer: u64,
    pub(super) reason: [u8; TEXT * 8],
}

impl Facts {
    /// The addresses, this side's first.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let [a, b, c, d] = self.addresses;
        let end = |high, low, port: u64| SocketAddr::new(ip_of(high, low), port as u16);
        (self.state & HAS_ENDS != 0).then(|| (end(a, b, self.ports >> 16), end(c, d, self.ports)))
    }
}

fn words_of(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn ip_of(high: u64, low: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))).to_canonical()
}
