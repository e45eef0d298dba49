//! Everything as JSON, on one line.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use rstream_sockets::statistics::{Counter, Path};
use serde::Serialize;

use crate::model::{Ends, Seen, Sight};
use crate::rate::{Rate, Rates};

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    /// Processes that may not be read.
    hidden: usize,
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    program: &'a str,
    open: u64,
    closed: u64,
    uncounted: u64,
    waits: Waits,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    kinds: Vec<Kind<'a>>,
    connections: Vec<Connection<'a>>,
}

#[derive(Serialize)]
struct Waits {
    looks_paid: u64,
    looks_vain: u64,
    sleeps: u64,
}

#[derive(Serialize)]
struct Kind<'a> {
    path: &'static str,
    reason: Option<&'a str>,
    open: u64,
    closed: u64,
    #[serde(flatten)]
    counters: Counters,
}

#[derive(Serialize)]
struct Connection<'a> {
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    role: &'static str,
    peer: Option<Peer<'a>>,
    path: &'static str,
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    #[serde(flatten)]
    counters: Counters,
}

#[derive(Serialize)]
struct Peer<'a> {
    pid: u32,
    /// Unknown if the process was not seen.
    program: Option<&'a str>,
}

type Counters = BTreeMap<&'static str, u64>;

fn counters(count: impl Fn(Counter) -> u64) -> Counters {
    Counter::ALL.into_iter().map(|counter| (counter.name(), count(counter))).collect()
}

fn path(path: Path<'_>) -> (&'static str, Option<&str>) {
    match path {
        Path::Undecided("") => ("undecided", None),
        Path::Undecided(reason) => ("undecided", Some(reason)),
        Path::SharedMemory => ("shm", None),
        Path::Tcp(reason) => ("tcp", Some(reason)),
    }
}

/// # Errors
/// None that is known: the types can all be written.
pub(crate) fn text(sight: &Sight, wanted: &[u32], rates: Option<&Rates>) -> io::Result<String> {
    let ends = sight.ends();
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        hidden: sight.hidden.len(),
        processes: sight.wanted(wanted).map(|seen| process(seen, &ends, rates)).collect(),
    };
    Ok(serde_json::to_string(&document)? + "\n")
}

fn process<'a>(seen: &'a Seen, ends: &Ends<'a>, rates: Option<&Rates>) -> Process<'a> {
    let (open, closed) = seen.totals.connections();
    let [looks_paid, looks_vain, sleeps] = seen.totals.waits;
    let kind = |kind: &'a rstream_sockets::statistics::Kind| {
        let (path, reason) = path(kind.path());
        let mut counters = counters(|counter| kind.count(counter));
        // A sum of windows says nothing.
        counters.remove(Counter::Window.name());
        Kind { path, reason, open: kind.open, closed: kind.closed, counters }
    };
    let connection = |connection: &'a rstream_sockets::statistics::Connection| {
        let (path, reason) = path(connection.path());
        let found =
            seen.peer(connection, ends).map(|peer| Peer { pid: peer.pid, program: Some(peer.program) });
        Connection {
            local: connection.ends.map(|ends| ends.0),
            remote: connection.ends.map(|ends| ends.1),
            role: if connection.is_active { "connect" } else { "listen" },
            peer: found.or(connection.peer.map(|pid| Peer { pid, program: None })),
            path,
            reason,
            rate: rates.and_then(|rates| rates.connection(seen, connection)),
            counters: counters(|counter| connection.count(counter)),
        }
    };
    Process {
        pid: seen.pid,
        program: &seen.program,
        open,
        closed,
        uncounted: seen.totals.uncounted,
        waits: Waits { looks_paid, looks_vain, sleeps },
        rate: rates.and_then(|rates| rates.process(seen)),
        kinds: seen.totals.kinds().map(kind).collect(),
        connections: seen.connections.iter().map(connection).collect(),
    }
}
