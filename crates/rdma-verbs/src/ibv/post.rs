//! Posting: converts requests to chains of work requests.

use std::array;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use rdma_sys as sys;

use super::connection::State;
use super::device::check;
use super::memory::Region;
use super::outstanding::Posted;
use super::queue_pair::{QueuePair, SEND_SEGMENTS};
use crate::{
    Buffer, CompletionKind, Error, MemoryRegion as _, Operation, Payload, Place, RecvRequest, RemoteAddress,
    Result, Segment, SendRequest,
};

/// Most work requests posted to the device in one call. One request, or the two of a stream message (a write and
/// the send that announces it), have shorter chains, which take less time to clear.
const CHAIN: usize = 16;

/// Payload from this length on soft iWARP sends without a copy, if the request is unsignaled.
const PAGE: usize = 4096;

pub(super) const NO_PIECE: sys::ibv_sge = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };

impl QueuePair {
    /// Posts all of the receives, or none. If the device takes only a part of them, the connection breaks.
    pub(super) fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        if matches!(self.state, State::Closing | State::Ended) {
            return Err(self.refusal("post_recv"));
        }
        if self.shared.is_some() {
            return Err(Error::BadState { state: "using a shared receive queue", what: "post_recv" });
        }
        let (depth, used) = (self.granted.recv_depth, self.receives.outstanding());
        let room = depth.saturating_sub(used);
        // The usual call costs no loop and no room for several requests. The device takes one or none, so nothing breaks.
        if let [one] = requests {
            self.check_recv(one)?;
            require_room(depth, room, 1)?;
            return self.post_receives::<1, SEND_SEGMENTS>(array::from_ref(one));
        }
        requests.iter().try_for_each(|request| self.check_recv(request))?;
        require_room(depth, room, requests.len())?;
        self.post_several_receives(requests)
    }

    #[inline(never)]
    fn post_several_receives(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        let before = self.receives.posted();
        let posted = if self.most_places > 0 {
            requests.iter().try_for_each(|one| self.post_receives::<1, SEND_SEGMENTS>(array::from_ref(one)))
        } else {
            requests.chunks(CHAIN).try_for_each(|chunk| self.post_receives::<CHAIN, 1>(chunk))
        };
        self.all_or_none(posted, self.receives.posted() == before)
    }

    /// The error of a request that the state of the connection does not allow.
    #[cold]
    fn refusal(&self, what: &'static str) -> Error {
        Error::BadState { state: self.state.name(), what }
    }

    fn check_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        match request.buffer {
            Buffer::Places(places) => check_places(places, self.most_places, true, u32::MAX.into()),
            Buffer::Empty | Buffer::Segment(_) => Ok(()),
        }
    }

    /// Posts at most `N` receives of at most `S` pieces: if the device refuses one, those before it.
    #[inline(always)]
    fn post_receives<const N: usize, const S: usize>(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        let mut pieces = [[NO_PIECE; S]; N];
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_recv_wr; N] = unsafe { std::mem::zeroed() };
        let first = self.receives.next();
        let mut next = std::ptr::null_mut();
        for (at, request) in requests.iter().enumerate().rev() {
            let work = &mut chain[at];
            work.wr_id = self.work_id(true, first.wrapping_add(at as u32));
            work.next = next;
            let list = &mut pieces[at][..];
            let used = match request.buffer {
                Buffer::Places(places) => fill(list, places.iter().map(Place::segment)),
                Buffer::Segment(segment) => fill(list, Some(segment)),
                Buffer::Empty => fill(list, self.empty_segment()),
            };
            if used > 0 {
                work.sg_list = list.as_mut_ptr();
                work.num_sge = used as i32;
            }
            next = work;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is valid; the chain and its scatter list are live and copied by the call.
        // The device checks the list against registered regions, which hold their memory.
        let posted = check("ibv_post_recv", unsafe { sys::ibv_post_recv(self.raw(), next, &raw mut bad) });
        if posted.is_err() {
            let taken = taken(&chain[..requests.len()], bad);
            self.note_receives(&requests[..taken]);
            return posted;
        }
        self.note_receives(requests);
        Ok(())
    }

    /// Adds receives that the device has taken to the outstanding requests.
    #[inline(always)]
    fn note_receives(&mut self, requests: &[RecvRequest<'_>]) {
        for request in requests {
            self.receives.push(Posted::User { id: request.id, kind: CompletionKind::Recv, signaled: true });
        }
    }

    /// Posts all of the sends, or none. If the device takes only a part of them, the connection breaks.
    #[inline(always)]
    pub(super) fn post_send(&mut self, requests: &[SendRequest<'_>]) -> Result<()> {
        if !matches!(self.state, State::Established) {
            return Err(self.refusal("post_send"));
        }
        require_room(self.granted.send_depth, self.send_room(), requests.len())?;
        // As for receives.
        if let [one] = requests {
            self.check_send(one)?;
            return self.post_sends::<1>(array::from_ref(one));
        }
        self.post_several_sends(requests)
    }

    #[inline(never)]
    fn post_several_sends(&mut self, requests: &[SendRequest<'_>]) -> Result<()> {
        requests.iter().try_for_each(|request| self.check_send(request))?;
        let before = self.sends.posted();
        let posted = match requests {
            [_, _] => self.post_sends::<2>(requests),
            _ => requests.chunks(CHAIN).try_for_each(|chunk| self.post_sends::<CHAIN>(chunk)),
        };
        self.all_or_none(posted, self.sends.posted() == before)
    }

    /// Breaks the connection if posting failed and not `none` of the requests were posted.
    #[inline(always)]
    fn all_or_none(&mut self, posted: Result<()>, none: bool) -> Result<()> {
        // `inspect_err` would copy the outcome even if there is no error.
        let Err(error) = posted else { return Ok(()) };
        if !none {
            self.fail_post(&error);
        }
        Err(error)
    }

    #[inline(always)]
    fn check_send(&self, request: &SendRequest<'_>) -> Result<()> {
        let immediate = match request.operation {
            Operation::Send { immediate, .. } | Operation::Write { immediate, .. } => immediate,
            Operation::Read { .. } => None,
        };
        let is_too_long = |data: u64| {
            let bits = u32::from(self.context().attributes.immediate);
            bits == 0 || data.checked_shr(bits).unwrap_or(0) > 0
        };
        if immediate.is_some_and(is_too_long) {
            return Err(Error::Unsupported("such immediate data"));
        }
        request.payload.check_fence(request.operation)?;
        let is_read = matches!(request.operation, Operation::Read { .. });
        match request.payload {
            Payload::Fenced(_) if self.most_places > 0 => Err(Error::Unsupported("fenced messages")),
            Payload::Fenced(segments) if segments.len() > self.segments => {
                Err(too_many(segments.len(), self.segments))
            }
            Payload::Inline(_) if is_read => Err(Error::Unsupported("read into inline payload")),
            Payload::Inline(_) => {
                let (length, limit) = (request.payload.len(), self.granted.inline);
                if length > limit { Err(Error::InlineTooLong { length, limit }) } else { Ok(()) }
            }
            Payload::Segments(segments) if segments.len() > if is_read { 1 } else { self.segments } => {
                Err(too_many(segments.len(), if is_read { 1 } else { self.segments }))
            }
            Payload::Places(places) => {
                let max_message = self.context().attributes.max_message;
                check_places(places, self.most_places, !self.is_copied(request), max_message)
            }
            Payload::Segments(_) | Payload::Fenced(_) => Ok(()),
        }
    }

    /// Posts at most `N` sends: if the device refuses one, those before it.
    #[inline(always)]
    fn post_sends<const N: usize>(&mut self, requests: &[SendRequest<'_>]) -> Result<()> {
        let mut pieces = [[NO_PIECE; SEND_SEGMENTS]; N];
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_send_wr; N] = unsafe { std::mem::zeroed() };
        let first = self.sends.next();
        let to_join = requests.iter().map(|request| self.length_to_join(request)).sum();
        if to_join > 0 {
            // Reserved in one step, so that the buffer does not move while the chain points into it.
            self.joined.clear();
            self.joined.reserve(to_join);
        }
        for (at, request) in requests.iter().enumerate() {
            let work = &mut chain[at];
            work.wr_id = self.work_id(false, first.wrapping_add(at as u32));
            let place = &mut pieces[at][..self.segments];
            let (used, flags) = match request.payload {
                Payload::Inline(slices) => {
                    let used = inline_pieces(slices, place, &mut self.joined);
                    (used, sys::ibv_send_flags::IBV_SEND_INLINE)
                }
                Payload::Segments(segments) => (fill(place, segments.iter().copied()), NO_FLAG),
                Payload::Fenced(segments) => {
                    (fill(place, segments.iter().copied()), sys::ibv_send_flags::IBV_SEND_FENCE)
                }
                Payload::Places(places) => {
                    let flag =
                        if self.is_copied(request) { sys::ibv_send_flags::IBV_SEND_INLINE } else { NO_FLAG };
                    (fill(place, places.iter().map(Place::segment)), flag)
                }
            };
            if used > 0 {
                work.sg_list = place.as_mut_ptr();
                work.num_sge = used as i32;
            }
            if used > 0 || flags == sys::ibv_send_flags::IBV_SEND_FENCE {
                work.send_flags = flags.0;
            }
            self.silent += 1;
            if request.signaled || self.must_be_signaled(request) {
                work.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
                self.silent = 0;
            }
            set_operation(work, request.operation);
        }
        self.probed = false;
        if let Err((taken, error)) = self.post_chain(&mut chain[..requests.len()]) {
            self.note_sends(&requests[..taken]);
            return Err(error);
        }
        self.note_sends(requests);
        Ok(())
    }

    /// Adds sends that the device has taken to the outstanding requests.
    #[inline(always)]
    fn note_sends(&mut self, requests: &[SendRequest<'_>]) {
        for &SendRequest { id, signaled, operation, .. } in requests {
            self.sends.push(Posted::User { id, kind: kind_of(operation), signaled });
        }
    }

    /// Whether the request must be signaled although the consumer wants no completion.
    ///
    /// Soft iWARP hands the pages of a long unsignaled request to TCP without a copy. TCP may then send them
    /// after the completion of a later request, when the consumer may already change them. Soft iWARP copies
    /// the payload of a signaled request, which is also faster: after uncopied pages the checksum takes a TCP
    /// segment of its own.
    ///
    /// A queue pair for messages signals a part of its requests, so that the entries of the others become
    /// free.
    fn must_be_signaled(&self, request: &SendRequest<'_>) -> bool {
        if self.is_iwarp() {
            let is_uncopied = matches!(request.payload, Payload::Segments(_) | Payload::Fenced(_));
            return is_uncopied && request.payload.len() >= PAGE;
        }
        self.most_places > 0 && self.silent >= self.granted.send_depth / 4
    }

    /// Whether the device takes the payload from these places while the request is posted.
    fn is_copied(&self, request: &SendRequest<'_>) -> bool {
        let is_read = matches!(request.operation, Operation::Read { .. });
        !is_read && request.payload.len() <= self.granted.inline
    }

    /// Length of a request's inline payload if it must be joined, because it has more slices than a work
    /// request has segments. Otherwise 0.
    fn length_to_join(&self, request: &SendRequest<'_>) -> usize {
        match request.payload {
            Payload::Inline(slices) if slices.len() > self.segments => request.payload.len(),
            Payload::Inline(_) | Payload::Segments(_) | Payload::Fenced(_) | Payload::Places(_) => 0,
        }
    }

    /// Posts a probe, a request that completes only when the peer's host has acknowledged it: on InfiniBand
    /// an empty write, on iWARP an empty read.
    pub(super) fn post_probe(&mut self) {
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut chain: [sys::ibv_send_wr; 1] = unsafe { std::mem::zeroed() };
        let mut target = self.empty_segment().map(piece);
        let [work] = &mut chain;
        work.wr_id = self.work_id(false, self.sends.next());
        work.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let remote = RemoteAddress { key: 0, address: 0 };
        match &mut target {
            Some(target) => {
                set_operation(work, Operation::Read { remote });
                work.sg_list = target;
                work.num_sge = 1;
            }
            None => set_operation(work, Operation::Write { remote, immediate: None }),
        }
        match self.post_chain(&mut chain) {
            Ok(()) => {
                self.sends.push(Posted::Probe);
                self.liveness.probe_posted(Instant::now());
            }
            Err((_, error)) => log::debug!("{error}"),
        }
    }

    /// On iWARP, a segment of length 0: its kernel driver takes no receive and no read without a segment.
    fn empty_segment(&self) -> Option<Segment> {
        let segment =
            |region: &Arc<Region>| Segment { key: region.local_key(), address: region.address(), length: 0 };
        self.probe.as_ref().map(segment)
    }

    /// Links the work requests and posts them. If the device refuses one, returns how many it took, and its error.
    #[inline(always)]
    fn post_chain(&mut self, chain: &mut [sys::ibv_send_wr]) -> std::result::Result<(), (usize, Error)> {
        let mut next = std::ptr::null_mut();
        for work in chain.iter_mut().rev() {
            work.next = next;
            next = work;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is valid; the chain, its gather lists and the inline payload are live and
        // copied by the call. The device checks the keys of other payload against registered regions, which
        // hold their memory.
        let result = unsafe { sys::ibv_post_send(self.raw(), next, &raw mut bad) };
        check("ibv_post_send", result).map_err(|error| (taken(chain, bad), error))
    }
}

/// How many requests of a chain the device took if it refused the one at `bad`: those before it.
#[cold]
fn taken<W>(chain: &[W], bad: *const W) -> usize {
    chain.iter().position(|work| std::ptr::eq(work, bad)).unwrap_or(0)
}

/// Fills the gather list `place` with `slices` and returns its length. If there are more slices than `place`
/// has room for, they are joined in `joined`, whose capacity suffices.
#[inline(always)]
fn inline_pieces(slices: &[IoSlice<'_>], place: &mut [sys::ibv_sge], joined: &mut Vec<u8>) -> usize {
    let piece =
        |bytes: &[u8]| sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
    if slices.len() > place.len() {
        let start = joined.len();
        slices.iter().for_each(|slice| joined.extend_from_slice(slice));
        place[0] = piece(&joined[start..]);
        return 1;
    }
    if let ([slice], [place, ..]) = (slices, &mut *place) {
        // The usual payload costs no loop.
        *place = piece(slice);
        return usize::from(!slice.is_empty());
    }
    let filled = slices.iter().filter(|slice| !slice.is_empty());
    place.iter_mut().zip(filled).map(|(place, slice)| *place = piece(slice)).count()
}

const NO_FLAG: sys::ibv_send_flags = sys::ibv_send_flags(0);

fn too_many(count: usize, most: usize) -> Error {
    Error::OutOfRange { what: "number of segments", value: count as u64, least: 0, most: most as u64 }
}

/// Refuses places if there are more than `most`, if one has no key although it needs one, or if they are longer
/// than `max_length` together.
pub(super) fn check_places(places: &[Place], most: usize, need_keys: bool, max_length: u64) -> Result<()> {
    if places.len() > most {
        return Err(too_many(places.len(), most));
    }
    let mut value = 0;
    for place in places {
        value += place.len() as u64;
        let Segment { key, address, length } = place.segment();
        if need_keys && key == 0 && length > 0 {
            return Err(Error::BadSegment { key, address, length, why: "it is in no registered region" });
        }
    }
    if value > max_length {
        return Err(Error::OutOfRange { what: "message length", value, least: 0, most: max_length });
    }
    Ok(())
}

/// Fills the first entries of a scatter or gather list, which is long enough. Returns how many.
pub(super) fn fill(list: &mut [sys::ibv_sge], segments: impl IntoIterator<Item = Segment>) -> usize {
    list.iter_mut().zip(segments).map(|(entry, segment)| *entry = piece(segment)).count()
}

pub(super) fn require_room(depth: u32, room: u32, asked: usize) -> Result<()> {
    if asked > room as usize { Err(Error::QueueFull { depth, room, asked }) } else { Ok(()) }
}

/// Immediate data, of 32 bits at most, in network order.
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

/// Sets the operation of a work request.
fn set_operation(work: &mut sys::ibv_send_wr, operation: Operation) {
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
