//! What was seen of the processes of this host, at one time.

use std::collections::HashMap;
use std::net::SocketAddr;

use rstream_sockets::statistics::{Connection, Counter, Process};

/// All processes that count something and may be read.
pub(crate) struct Sight {
    pub(crate) processes: Vec<Seen>,
    /// Processes that may not be read.
    pub(crate) hidden: Vec<u32>,
}

/// A process.
pub(crate) struct Seen {
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The number of its network namespace, in which its addresses are valid.
    pub(crate) network: String,
    pub(crate) totals: Process,
    pub(crate) connections: Vec<Connection>,
}

/// The process at the other end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Peer<'a> {
    pub(crate) pid: u32,
    pub(crate) program: &'a str,
}

/// The process that has an end of a connection: by the namespace, and the addresses of the end, the own
/// first.
pub(crate) type Ends<'a> = HashMap<(&'a str, SocketAddr, SocketAddr), &'a Seen>;

impl Sight {
    /// Whose the ends are that were seen.
    pub(crate) fn ends(&self) -> Ends<'_> {
        let mut ends = Ends::new();
        for seen in &self.processes {
            for (own, peers) in seen.connections.iter().filter_map(|connection| connection.ends) {
                ends.insert((seen.network.as_str(), own, peers), seen);
            }
        }
        ends
    }

    /// The processes that were asked for: all if none was.
    pub(crate) fn wanted<'a>(&'a self, processes: &'a [u32]) -> impl Iterator<Item = &'a Seen> {
        self.processes.iter().filter(|seen| processes.is_empty() || processes.contains(&seen.pid))
    }
}

impl Seen {
    /// The process at the other end, if it was seen.
    pub(crate) fn peer<'a>(&self, connection: &Connection, ends: &Ends<'a>) -> Option<Peer<'a>> {
        let (own, peers) = connection.ends?;
        let found = ends.get(&(self.network.as_str(), peers, own))?;
        Some(Peer { pid: found.pid, program: &found.program })
    }
}

/// Bytes, or calls, in one direction, whichever way they went.
pub(crate) const RECEIVED: [Counter; 2] = [Counter::RingReceivedBytes, Counter::TcpReceivedBytes];
pub(crate) const SENT: [Counter; 2] = [Counter::RingSentBytes, Counter::TcpSentBytes];
pub(crate) const CALLS: [Counter; 4] =
    [Counter::RingReceivedCalls, Counter::RingSentCalls, Counter::TcpReceivedCalls, Counter::TcpSentCalls];
