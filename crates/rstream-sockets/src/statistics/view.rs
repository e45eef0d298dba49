//! What a reader learns from a file.

use std::net::SocketAddr;
use std::sync::atomic::{Ordering, fence};

use super::layout::{
    ACTIVE, COUNTERS, Counter, KIND_USED, KINDS, PATH, SHARED_MEMORY, Shared, TCP, TEXT, load_text,
};
use super::memory::View;
use super::process::used;

/// Attempts to read totals that do not change meanwhile.
const ATTEMPTS: u32 = 1000;

/// The path of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path<'a> {
    /// It goes by TCP so far, for this reason. An empty one: it was not used enough.
    Undecided(&'a str),
    /// Both sides share memory.
    SharedMemory,
    /// It stays on TCP, for this reason.
    Tcp(&'a str),
}

/// A connection that is open, as the process counts it that has it.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The number of its record, which no other open connection of the process has.
    pub number: usize,
    /// This side called `connect`.
    pub is_active: bool,
    /// The addresses, this side's first, if they are known.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// The peer's process, by the number that this process has for it.
    pub peer: Option<u32>,
    path: u64,
    reason: [u8; TEXT * 8],
    counters: [u64; COUNTERS],
}

/// The total of all connections, open and closed, that had a path for a reason.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Those that are open.
    pub open: u64,
    /// Those that are closed.
    pub closed: u64,
    path: u64,
    reason: [u8; TEXT * 8],
    counters: [u64; COUNTERS],
}

/// What a process has counted, but for its connections.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its number, for itself.
    pub process: u64,
    /// Connections that found no record.
    pub uncounted: u64,
    /// Waits for several descriptors: looks that paid, looks that did not, sleeps.
    pub waits: [u64; 3],
    kinds: [Option<Kind>; KINDS],
}

fn path_of(path: u64, reason: &[u8; TEXT * 8]) -> Path<'_> {
    match path {
        SHARED_MEMORY => Path::SharedMemory,
        TCP => Path::Tcp(text(reason)),
        _ => Path::Undecided(text(reason)),
    }
}

/// Text up to the first zero. What is no text is left out: it may go to a terminal.
fn text(bytes: &[u8]) -> &str {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    if text.chars().any(char::is_control) { "" } else { text }
}

impl Connection {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> Path<'_> {
        path_of(self.path, &self.reason)
    }

    /// What was counted.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

impl Kind {
    /// The path of these connections.
    #[must_use]
    pub fn path(&self) -> Path<'_> {
        path_of(self.path, &self.reason)
    }

    /// What was counted.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    fn add(&mut self, counters: &[u64; COUNTERS]) {
        for (sum, count) in self.counters.iter_mut().zip(counters) {
            *sum = sum.wrapping_add(*count);
        }
    }
}

impl View {
    /// The process that made the file.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.shared().header.process.load(Ordering::Relaxed)
    }

    /// The connections that are open.
    pub fn connections(&self) -> impl Iterator<Item = Connection> {
        connections(self.shared())
    }

    /// All that the process has counted.
    #[must_use]
    pub fn totals(&self) -> Process {
        totals(self.shared())
    }
}

pub(super) fn connections(shared: &Shared) -> impl Iterator<Item = Connection> {
    used(shared).iter().enumerate().filter_map(|(number, record)| {
        let facts = record.read()?;
        Some(Connection {
            number,
            is_active: facts.state & ACTIVE != 0,
            ends: facts.ends(),
            peer: u32::try_from(facts.peer).ok().filter(|&peer| peer != 0),
            path: facts.state & PATH,
            reason: facts.reason,
            counters: record.counters.load(),
        })
    })
}

/// The totals, of a time at which no connection was being closed, if there was one.
pub(super) fn totals(shared: &Shared) -> Process {
    let header = &shared.header;
    for _ in 0..ATTEMPTS {
        // In this order: a change that is seen in part was seen to begin and not to end.
        let ended = header.ended.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let process = totals_now(shared);
        fence(Ordering::SeqCst);
        if header.begun.load(Ordering::SeqCst) == ended {
            return process;
        }
    }
    totals_now(shared)
}

fn totals_now(shared: &Shared) -> Process {
    let header = &shared.header;
    let mut kinds = std::array::from_fn(|at| {
        let kind = &shared.kinds[at];
        (kind.state.load(Ordering::Acquire) == KIND_USED).then(|| Kind {
            open: 0,
            closed: kind.connections.load(Ordering::Relaxed),
            path: kind.path.load(Ordering::Relaxed) & PATH,
            reason: load_text(&kind.reason),
            counters: kind.counters.load(),
        })
    });
    for connection in connections(shared) {
        add(&mut kinds, &connection);
    }
    let waits = [&header.waits.looks_paid, &header.waits.looks_vain, &header.waits.sleeps];
    Process {
        process: header.process.load(Ordering::Relaxed),
        uncounted: header.uncounted.load(Ordering::Relaxed),
        waits: waits.map(|word| word.load(Ordering::Relaxed)),
        kinds,
    }
}

fn add(kinds: &mut [Option<Kind>; KINDS], connection: &Connection) {
    let is_of = |kind: &Kind| (kind.path, &kind.reason) == (connection.path, &connection.reason);
    let found = kinds.iter().position(|kind| kind.as_ref().is_none_or(is_of));
    let kind = kinds[found.unwrap_or(KINDS - 1)].get_or_insert(Kind {
        open: 0,
        closed: 0,
        path: connection.path,
        reason: connection.reason,
        counters: [0; COUNTERS],
    });
    kind.open += 1;
    kind.add(&connection.counters);
}

impl Process {
    /// The kinds of connections that there were.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter().flatten()
    }

    /// A sum over all connections, open and closed.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.kinds().fold(0, |sum, kind| sum.wrapping_add(kind.count(counter)))
    }

    /// Connections: open, and closed.
    #[must_use]
    pub fn connections(&self) -> (u64, u64) {
        self.kinds().fold((0, 0), |(open, closed), kind| (open + kind.open, closed + kind.closed))
    }
}
