//! What an endpoint counts, for [`StatsOps`].

use super::endpoint::Endpoint;
use super::engine::State;
use super::operation::{Kind, Operation};
use crate::abi::{Result, Stats, StatsOps};
use crate::provider::stats::Line;
use rdma_verbs::{CompletionStatus, Connections as _, Device, MessageQueues as _, SendRequest};
use rstream_protocol::tag;

/// Statistics of a connection. What the peer reads and writes is not among them.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    /// By [`Kind`], without tags. What is sent, written and read counts when it is posted, and a receive when it is filled.
    moved: [Moved; 4],
    /// Receives that were too short.
    truncated: u64,
    /// Calls that sent, wrote or read nothing, and have to come again.
    pub(super) waits: u64,
    /// Whether the peer has violated a protocol.
    pub(super) refused: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Moved {
    operations: u64,
    bytes: u64,
}

impl Statistics {
    /// Counts an operation that is posted with these requests.
    #[inline(always)]
    pub(super) fn posted(&mut self, kind: Kind, requests: &[SendRequest<'_>]) {
        self.add(kind, bytes_of(requests));
    }

    /// The same for one that was counted and is refused.
    #[cold]
    pub(super) fn not_posted(&mut self, kind: Kind, requests: &[SendRequest<'_>]) {
        let moved = &mut self.moved[kind.untagged() as usize];
        moved.operations -= 1;
        moved.bytes -= bytes_of(requests) as u64;
    }

    /// Counts a receive that is complete, by the length of the message.
    pub(super) fn received(&mut self, receive: &Operation, length: usize) {
        match receive.failure {
            None => self.add(receive.kind, length),
            Some(CompletionStatus::Truncated) => {
                self.add(receive.kind, length.min(receive.room as usize));
                self.truncated += 1;
            }
            Some(_) => {}
        }
    }

    fn add(&mut self, kind: Kind, bytes: usize) {
        let moved = &mut self.moved[kind.untagged() as usize];
        moved.operations += 1;
        moved.bytes += bytes as u64;
    }
}

#[inline(always)]
fn bytes_of(requests: &[SendRequest<'_>]) -> usize {
    match requests {
        // The usual operation costs no loop.
        [one] => one.payload.len(),
        several => several.iter().map(|request| request.payload.len()).sum(),
    }
}

/// The statistics of the endpoint at this index, as the application reads them.
fn stats<D: Device>(state: &mut State<D>, at: usize) -> Option<Stats> {
    let qp = state.links.get(at)?.qp;
    let stalls = state.cq.stalls(qp);
    let link = state.links.get(at)?;
    let Statistics { moved, truncated, waits, refused } = &link.statistics;
    let [sends, receives, writes, reads] =
        [Kind::Send, Kind::Recv, Kind::Write, Kind::Read].map(|kind| moved[kind as usize]);
    // With tags each message has a header, and its payload nearly always finds no receive at first.
    let header = link.inbox.as_ref().map_or(0, |_| tag::LENGTH as u64);
    let stalls = link.inbox.as_ref().map_or(stalls, |inbox| inbox.held());
    Some(Stats {
        bytes_sent: sends.bytes - header * sends.operations,
        bytes_received: receives.bytes,
        send_calls: sends.operations + writes.operations + reads.operations + waits,
        send_waits: *waits,
        messages_sent: sends.operations,
        messages_received: receives.operations,
        refused: u64::from(*refused),
        stalls,
        truncated: *truncated,
        reads: reads.operations,
        bytes_read: reads.bytes,
        writes: writes.operations,
        bytes_written: writes.bytes,
        ..Stats::default()
    })
}

/// Writes the statistics of the endpoint at this index to the log, if it was connected.
pub(super) fn report<D: Device>(state: &mut State<D>, at: usize) {
    let Some(stats) = stats(state, at) else { return };
    let Some(qp) = state.links.get(at).map(|link| link.qp) else { return };
    if let (Some(local), Some(peer)) = (state.cq.local_address(qp), state.cq.peer_address(qp)) {
        log::info!(target: "ep_ctrl", "{local} to {peer}: {}", Line(stats));
    }
}

impl<D: Device> StatsOps for Endpoint<D> {
    fn stats(&self) -> Result<Stats> {
        let Ok(at) = self.link() else { return Ok(Stats::default()) };
        Ok(stats(&mut self.engine.lock(), at).unwrap_or_default())
    }
}
