//! Posting: from requests to chains of work requests.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use rdma_sys as sys;

use super::connection::State;
use super::device::check;
use super::memory::Region;
use super::queue_pair::{QueuePair, SEND_SEGMENTS};
use super::ring::Posted;
use crate::{
    Buffer, CompletionKind, Error, MemoryRegion as _, Operation, Payload, RecvRequest, RemoteAddress, Result,
    Segment, SendRequest,
};

/// Most work requests handed to the device in one call.
const CHAIN: usize = 16;

/// Sends of one message: a write and what announces it. A chain with room for more is more to clear.
const SHORT_CHAIN: usize = 2;

/// Bytes from which on soft iWARP sends pages as they are.
const PAGE: usize = 4096;

const NO_PIECE: sys::ibv_sge = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };

impl QueuePair {
    /// Posts receives: all or none, or the connection breaks.
    pub(super) fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        if matches!(self.state, State::Closing | State::Ended) {
            return Err(Error::BadState { state: self.state.name(), what: "post_recv" });
        }
        if requests.iter().any(|request| matches!(request.buffer, Buffer::Places(_))) {
            return Err(NO_PLACES);
        }
        let (depth, used) = (self.granted.recv_depth, self.receives.outstanding());
        require_room(depth, depth.saturating_sub(used), requests.len())?;
        let before = self.receives.posted();
        let posted = requests.chunks(CHAIN).try_for_each(|chunk| self.post_receives(chunk));
        self.all_or_none(posted, self.receives.posted() == before)
    }

    /// Posts at most [`CHAIN`] receives; of a refused one those before it.
    fn post_receives(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        let mut pieces = [NO_PIECE; CHAIN];
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_recv_wr; CHAIN] = unsafe { std::mem::zeroed() };
        let first = self.receives.next();
        let mut next = std::ptr::null_mut();
        for (at, request) in requests.iter().enumerate().rev() {
            let work = &mut chain[at];
            work.wr_id = self.work_id(true, first.wrapping_add(at as u32));
            work.next = next;
            let buffer = match request.buffer {
                Buffer::Segment(segment) => Some(segment),
                Buffer::Empty | Buffer::Places(_) => self.nowhere(),
            };
            if let Some(buffer) = buffer {
                pieces[at] = piece(buffer);
                work.sg_list = &raw mut pieces[at];
                work.num_sge = 1;
            }
            next = work;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is valid; the chain and its pieces are live and copied by the call. The
        // device checks the pieces against regions, which keep their memory.
        let posted = check("ibv_post_recv", unsafe { sys::ibv_post_recv(self.raw(), next, &raw mut bad) });
        for request in &requests[..taken(&posted, &chain[..requests.len()], bad)] {
            self.receives.push(Posted::User { id: request.id, kind: CompletionKind::Recv, signaled: true });
        }
        posted
    }

    /// Posts sends: all or none, or the connection breaks.
    pub(super) fn post_send(&mut self, requests: &[SendRequest<'_>]) -> Result<()> {
        if !matches!(self.state, State::Established) {
            return Err(Error::BadState { state: self.state.name(), what: "post_send" });
        }
        require_room(self.granted.send_depth, self.send_room(), requests.len())?;
        requests.iter().try_for_each(|request| self.check_send(request))?;
        let before = self.sends.posted();
        let posted = if requests.len() <= SHORT_CHAIN {
            self.post_sends::<SHORT_CHAIN>(requests)
        } else {
            requests.chunks(CHAIN).try_for_each(|chunk| self.post_sends::<CHAIN>(chunk))
        };
        self.all_or_none(posted, self.sends.posted() == before)
    }

    /// What posting a list answers. A refusal of which there are not `none` posted breaks the connection.
    fn all_or_none(&mut self, posted: Result<()>, none: bool) -> Result<()> {
        if let Err(error) = &posted
            && !none
        {
            self.give_up(error);
        }
        posted
    }

    fn check_send(&self, request: &SendRequest<'_>) -> Result<()> {
        let immediate = match request.operation {
            Operation::Send { immediate, .. } | Operation::Write { immediate, .. } => immediate,
            Operation::Read { .. } => None,
        };
        let bits = u32::from(self.context().attributes.immediate);
        if immediate.is_some_and(|data| bits == 0 || data.checked_shr(bits).unwrap_or(0) > 0) {
            return Err(Error::Unsupported("such immediate data"));
        }
        let is_read = matches!(request.operation, Operation::Read { .. });
        match request.payload {
            Payload::Inline(_) if is_read => Err(Error::Unsupported("read into inline payload")),
            Payload::Inline(_) if request.payload.len() > self.granted.inline => {
                Err(Error::InlineTooLong { length: request.payload.len(), limit: self.granted.inline })
            }
            Payload::Segments(segments) if segments.len() > if is_read { 1 } else { self.segments } => {
                let most = if is_read { 1 } else { self.segments as u64 };
                Err(Error::OutOfRange {
                    what: "number of segments",
                    value: segments.len() as u64,
                    least: 0,
                    most,
                })
            }
            Payload::Places(_) => Err(NO_PLACES),
            Payload::Inline(_) | Payload::Segments(_) => Ok(()),
        }
    }

    /// Posts at most `N` sends; of a refused one those before it.
    fn post_sends<const N: usize>(&mut self, requests: &[SendRequest<'_>]) -> Result<()> {
        let mut pieces = [[NO_PIECE; SEND_SEGMENTS]; N];
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_send_wr; N] = unsafe { std::mem::zeroed() };
        let first = self.sends.next();
        // Reserved at once, so that it stays in place while the chain points there.
        self.joined.clear();
        self.joined.reserve(requests.iter().map(|request| self.length_to_join(request)).sum());
        for (at, request) in requests.iter().enumerate() {
            let work = &mut chain[at];
            work.wr_id = self.work_id(false, first.wrapping_add(at as u32));
            let place = &mut pieces[at][..self.segments];
            let (used, flags) = match request.payload {
                Payload::Inline(slices) => {
                    let used = inline_pieces(slices, place, &mut self.joined);
                    (used, sys::ibv_send_flags::IBV_SEND_INLINE)
                }
                Payload::Segments(segments) => {
                    place.iter_mut().zip(segments).for_each(|(place, segment)| *place = piece(*segment));
                    (segments.len(), sys::ibv_send_flags(0))
                }
                // Refused before.
                Payload::Places(_) => (0, sys::ibv_send_flags(0)),
            };
            if used > 0 {
                work.sg_list = place.as_mut_ptr();
                work.num_sge = used as i32;
                work.send_flags = flags.0;
            }
            if request.signaled || self.must_be_copied(request) {
                work.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            describe(work, request.operation);
        }
        let (taken, posted) = self.hand_over(&mut chain[..requests.len()]);
        self.probed = false;
        for request in &requests[..taken] {
            let &SendRequest { id, signaled, operation, .. } = request;
            self.sends.push(Posted::User { id, kind: kind_of(operation), signaled });
        }
        posted
    }

    /// Whether the device has to be asked for a completion although nobody wants it. Soft iWARP gives pages
    /// of a long request that is not to be signaled to TCP as they are, and TCP may send them after a later
    /// request's completion has said that they can be used again. It copies what is signaled, which is also
    /// faster: the checksum behind pages is a TCP segment of its own.
    fn must_be_copied(&self, request: &SendRequest<'_>) -> bool {
        self.is_iwarp() && matches!(request.payload, Payload::Segments(_)) && request.payload.len() >= PAGE
    }

    /// Bytes of a request's inline payload that must be put together, because it is in more slices
    /// than a request has pieces.
    fn length_to_join(&self, request: &SendRequest<'_>) -> usize {
        match request.payload {
            Payload::Inline(slices) if slices.len() > self.segments => request.payload.len(),
            Payload::Inline(_) | Payload::Segments(_) | Payload::Places(_) => 0,
        }
    }

    /// Posts a request that completes only when the peer's host has answered: on InfiniBand an empty
    /// write, which is acknowledged, on iWARP an empty read.
    pub(super) fn post_probe(&mut self) {
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_send_wr; 1] = unsafe { std::mem::zeroed() };
        let mut target = self.nowhere().map(piece);
        let [work] = &mut chain;
        work.wr_id = self.work_id(false, self.sends.next());
        work.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let remote = RemoteAddress { key: 0, address: 0 };
        match &mut target {
            Some(target) => {
                describe(work, Operation::Read { remote });
                work.sg_list = target;
                work.num_sge = 1;
            }
            None => describe(work, Operation::Write { remote, immediate: None }),
        }
        match self.hand_over(&mut chain).1 {
            Ok(()) => {
                self.sends.push(Posted::Probe);
                self.liveness.probe_posted(Instant::now());
            }
            Err(error) => log::debug!("{error}"),
        }
    }

    /// No bytes of a region, where a piece of memory must be named: on iWARP, whose kernel side takes
    /// no receive without one, and for the target of a read.
    fn nowhere(&self) -> Option<Segment> {
        let segment =
            |region: &Arc<Region>| Segment { key: region.local_key(), address: region.address(), length: 0 };
        self.probe.as_ref().map(segment)
    }

    /// Links the work requests and posts them; answers how many the device took, and whether it refused one.
    fn hand_over(&mut self, chain: &mut [sys::ibv_send_wr]) -> (usize, Result<()>) {
        let mut next = std::ptr::null_mut();
        for work in chain.iter_mut().rev() {
            work.next = next;
            next = work;
        }
        if next.is_null() {
            return (0, Ok(()));
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is valid; the chain and its pieces are live and copied by the call, and
        // so is the payload of inline requests. Other payload is named by keys that the device checks
        // against regions, which keep their memory.
        let posted = check("ibv_post_send", unsafe { sys::ibv_post_send(self.raw(), next, &raw mut bad) });
        (taken(&posted, chain, bad), posted)
    }
}

/// How many requests of a chain the device took: all, or those before the `bad` one.
fn taken<W>(posted: &Result<()>, chain: &[W], bad: *const W) -> usize {
    match posted {
        Ok(()) => chain.len(),
        Err(_) => chain.iter().position(|work| std::ptr::eq(work, bad)).unwrap_or(0),
    }
}

/// Names the bytes of `slices` in `place`; answers how many pieces that takes. What has more slices
/// than there is place is put together in `joined`, which has room for it.
fn inline_pieces(slices: &[IoSlice<'_>], place: &mut [sys::ibv_sge], joined: &mut Vec<u8>) -> usize {
    let piece =
        |bytes: &[u8]| sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
    if slices.len() > place.len() {
        let start = joined.len();
        slices.iter().for_each(|slice| joined.extend_from_slice(slice));
        place[0] = piece(&joined[start..]);
        return 1;
    }
    let filled = slices.iter().filter(|slice| !slice.is_empty());
    place.iter_mut().zip(filled).map(|(place, slice)| *place = piece(slice)).count()
}

const NO_PLACES: Error = Error::Unsupported("memory that is not registered");

fn require_room(depth: u32, room: u32, asked: usize) -> Result<()> {
    if asked > room as usize { Err(Error::QueueFull { depth, room, asked }) } else { Ok(()) }
}

/// Immediate data, of at most 32 bits, as it goes on the wire.
fn word_of(immediate: u64) -> u32 {
    (immediate as u32).to_be()
}

fn piece(segment: Segment) -> sys::ibv_sge {
    sys::ibv_sge { addr: segment.address, length: segment.length, lkey: segment.key }
}

fn kind_of(operation: Operation) -> CompletionKind {
    match operation {
        Operation::Send { .. } => CompletionKind::Send,
        Operation::Write { .. } => CompletionKind::Write,
        Operation::Read { .. } => CompletionKind::Read,
    }
}

/// Says in a work request what to do.
fn describe(work: &mut sys::ibv_send_wr, operation: Operation) {
    use sys::ibv_wr_opcode as opcode;
    let mut target = None;
    work.opcode = match operation {
        Operation::Send { immediate, invalidate, solicited } => {
            if solicited {
                work.send_flags |= sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
            }
            match (immediate, invalidate) {
                (Some(data), _) => {
                    work.imm_data_invalidated_rkey_union.imm_data = word_of(data);
                    opcode::IBV_WR_SEND_WITH_IMM
                }
                (None, Some(key)) => {
                    work.imm_data_invalidated_rkey_union.invalidated_rkey = key;
                    opcode::IBV_WR_SEND_WITH_INV
                }
                (None, None) => opcode::IBV_WR_SEND,
            }
        }
        Operation::Write { remote, immediate } => {
            target = Some(remote);
            match immediate {
                Some(data) => {
                    work.imm_data_invalidated_rkey_union.imm_data = word_of(data);
                    opcode::IBV_WR_RDMA_WRITE_WITH_IMM
                }
                None => opcode::IBV_WR_RDMA_WRITE,
            }
        }
        Operation::Read { remote } => {
            target = Some(remote);
            opcode::IBV_WR_RDMA_READ
        }
    };
    if let Some(remote) = target {
        work.wr.rdma = sys::rdma_t { remote_addr: remote.address, rkey: remote.key };
    }
}
