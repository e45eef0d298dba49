//! A queue pair of the device: its creation, its states, and its completions.

mod handle;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

pub(super) use handle::Handle;
use rdma_sys as sys;
use sys::ibv_wc_status as status;

use super::cm::{Id, Parameters, ReadDepths};
use super::completion_queue::Queue;
use super::connection::State;
use super::device::{Context, PROBE_ENTRIES};
use super::liveness::Liveness;
use super::memory::{Pd, PdHandle, Region};
use super::outstanding::{Outstanding, Posted};
use super::shared_queue::SharedQueue;
use crate::{
    BreakReason, Cause, Completion, CompletionKind, CompletionStatus, ConnectionEvent, QpCapabilities, QpId,
    Result, SrqId, WaitSet,
};

/// Most segments of one send.
pub(super) const SEND_SEGMENTS: usize = 4;

/// The bit of a work request's id that marks a receive. The other bits of the upper half hold the queue
/// pair's number, and the lower half holds the sequence number.
const RECEIVE: u64 = 1 << 63;

/// What a queue pair is for.
pub(super) enum Purpose {
    /// What the verbs say, with receives of its own or shared ones.
    Any(Option<Arc<SharedQueue>>),
    /// Messages, to receives of its own or to shared ones.
    Messages(Option<Arc<SharedQueue>>),
}

/// The highest number of a queue pair that leaves room for the marks in the ids of work requests.
pub(super) const LAST_NUMBER: u32 = (1 << 30) - 1;

/// A queue pair, its connection, and its outstanding requests.
pub(super) struct QueuePair {
    pub(super) number: QpId,
    /// Dropped before what it uses. `None` once the device is gone and the connection has ended.
    handle: Option<Handle>,
    /// The number by which the peer's device addresses the queue pair.
    wire_number: u32,
    pub(super) granted: QpCapabilities,
    pub(super) segments: usize,
    /// Most places of a request: 0 unless the queue pair is one for messages.
    pub(super) most_places: usize,
    /// Whether the consumer has disconnected a queue pair for messages: further ones to shared receives are
    /// dropped.
    pub(super) drops_shared: bool,
    /// Requests posted since the last one that was signaled.
    pub(super) silent: u32,
    /// Has the receives of a queue pair that has none of its own.
    pub(super) shared: Option<Arc<SharedQueue>>,
    /// Buffer that joins inline payload of too many slices while it is posted.
    pub(super) joined: Vec<u8>,
    pub(super) sends: Outstanding,
    pub(super) receives: Outstanding,
    pub(super) state: State,
    pub(super) events: VecDeque<ConnectionEvent>,
    /// See [`MessageQueues::peer_ended`](crate::MessageQueues::peer_ended).
    pub(super) peer_ended: bool,
    /// The wait set of the event target, which has the connection's channel.
    pub(super) event_set: Option<Arc<WaitSet>>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) liveness: Liveness,
    /// Whether a probe completed since the last send. If so, the peer's host has acknowledged everything.
    pub(super) probed: bool,
    /// When the first request was flushed. The connection event that gives the reason may come later.
    pub(super) flushed_at: Option<Instant>,
    /// Dropped after the queue pair is destroyed, as the connection manager requires.
    pub(super) id: Option<Id>,
    /// On iWARP: the connection request is sent, and the kernel holds the queue pair until there is an
    /// outcome.
    pub(super) is_requesting: bool,
    pub(super) probe: Option<Arc<Region>>,
    pub(super) domain: Arc<PdHandle>,
}

impl QueuePair {
    /// Creates a queue pair, to which receives can be posted.
    pub(super) fn create(
        number: QpId,
        pd: &Pd,
        queue: &Arc<Queue>,
        wanted: QpCapabilities,
        purpose: Purpose,
    ) -> Result<Self> {
        let context = &pd.handle().context;
        let (most_places, shared) = match purpose {
            Purpose::Any(shared) => (0, shared),
            Purpose::Messages(shared) => (context.attributes.max_places, shared),
        };
        let segments = context.send_segments();
        let (handle, cap) = context.with_inline(wanted.inline, |inline| {
            let wanted = QpCapabilities { inline, ..wanted };
            Handle::create(pd, queue, wanted, shared.as_deref(), (segments, most_places))
        })?;
        let is_shared = shared.is_some();
        let max_reads = context.max_reads;
        let qp = Self {
            number,
            wire_number: handle.wire_number(),
            handle: Some(handle),
            granted: QpCapabilities {
                // Devices grant more, which nobody has asked for.
                send_depth: cap.max_send_wr.saturating_sub(PROBE_ENTRIES).min(wanted.send_depth.max(1)),
                recv_depth: if is_shared { 0 } else { cap.max_recv_wr.min(wanted.recv_depth.max(1)) },
                inline: cap.max_inline_data as usize,
                initiator_depth: wanted.initiator_depth.max(1).min(max_reads.initiator),
                responder_resources: wanted.responder_resources.max(1).min(max_reads.responder),
            },
            segments: segments as usize,
            most_places,
            drops_shared: false,
            silent: 0,
            shared,
            joined: Vec::new(),
            sends: Outstanding::new(cap.max_send_wr),
            receives: Outstanding::new(if is_shared { 0 } else { cap.max_recv_wr }),
            state: State::Idle,
            events: VecDeque::new(),
            peer_ended: false,
            event_set: None,
            local: None,
            peer: None,
            liveness: Liveness::default(),
            probed: true,
            flushed_at: None,
            id: None,
            is_requesting: false,
            probe: pd.probe().cloned(),
            domain: Arc::clone(pd.handle()),
        };
        qp.initialize()?;
        Ok(qp)
    }

    /// Moves the new queue pair to the state Init, in which receives can be posted. The connection sets the
    /// final port.
    fn initialize(&self) -> Result<()> {
        use sys::ibv_qp_attr_mask as mask;
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        attributes.qp_access_flags = REMOTE_RIGHTS;
        attributes.port_num = 1;
        let mut which = mask::IBV_QP_STATE | mask::IBV_QP_ACCESS_FLAGS;
        if !self.is_iwarp() {
            which = which | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        }
        self.modify(&mut attributes, which.0 as i32)
    }

    /// Moves the queue pair to a later state, with the connection manager's attributes and at most these read depths.
    /// Until the manager has sent the reply, it has those of the request.
    pub(super) fn move_to(&self, state: sys::ibv_qp_state::Type, reads: ReadDepths) -> Result<()> {
        let Some(id) = &self.id else { return Ok(()) };
        let (mut attributes, mut mask) = id.queue_pair_attributes(state)?;
        if state == sys::ibv_qp_state::IBV_QPS_INIT {
            attributes.qp_access_flags = REMOTE_RIGHTS;
            mask |= sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as i32;
        }
        if state == sys::ibv_qp_state::IBV_QPS_RTR && self.most_places > 0 {
            attributes.min_rnr_timer = RNR_TIMER;
            mask |= sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
        }
        attributes.max_dest_rd_atomic = attributes.max_dest_rd_atomic.min(reads.responder);
        attributes.max_rd_atomic = attributes.max_rd_atomic.min(reads.initiator);
        self.modify(&mut attributes, mask)
    }

    /// Moves the queue pair to the state Error, which flushes its outstanding requests.
    pub(super) fn fail_requests(&self) {
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        if let Err(error) = self.modify(&mut attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32) {
            log::debug!("{error}");
        }
    }

    fn modify(&self, attributes: &mut sys::ibv_qp_attr, mask: i32) -> Result<()> {
        self.handle.as_ref().map_or(Ok(()), |handle| handle.modify(attributes, mask))
    }

    /// Destroys the device's part, because the device is gone. The connection has ended, so nothing is posted any more.
    pub(super) fn release_device(&mut self) {
        self.handle = None;
    }

    /// Whether it is the queue pair of a parent of this process.
    pub(super) fn is_inherited(&self) -> bool {
        !self.context().maker.is_this_process()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.context().attributes.transport == crate::Transport::Iwarp
    }

    pub(super) fn shared_number(&self) -> Option<SrqId> {
        self.shared.as_ref().map(|shared| shared.number)
    }

    /// The device's queue pair, for posting: valid until the connection has ended.
    #[inline]
    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.handle.as_ref().map_or(std::ptr::null_mut(), Handle::raw)
    }

    pub(super) fn wire_number(&self) -> u32 {
        self.wire_number
    }

    /// What the connection manager has to know of it.
    pub(super) fn parameters(&self) -> Parameters {
        let reads = ReadDepths {
            initiator: self.granted.initiator_depth,
            responder: self.granted.responder_resources,
        };
        Parameters { number: self.wire_number, reads, is_shared: self.shared.is_some() }
    }

    /// Most completions of it that the device's queue may hold, but for those of shared receives.
    pub(super) fn completions(&self) -> u32 {
        (self.granted.send_depth + PROBE_ENTRIES).saturating_add(self.granted.recv_depth)
    }

    /// Free entries of the send queue that the consumer may use.
    pub(super) fn send_room(&self) -> u32 {
        // One entry is reserved for a probe. An outstanding probe has it already.
        let reserved = if self.liveness.probing() { 0 } else { PROBE_ENTRIES };
        (self.granted.send_depth + PROBE_ENTRIES).saturating_sub(self.sends.outstanding() + reserved)
    }

    /// The id of a work request.
    pub(super) fn work_id(&self, receive: bool, sequence: u32) -> u64 {
        let queue = if receive { RECEIVE } else { 0 };
        queue | u64::from(self.number.0) << 32 | u64::from(sequence)
    }

    /// Handles a work completion of this queue pair. Returns the consumer's completion, if there is one.
    pub(super) fn take(&mut self, work: &sys::ibv_wc) -> Option<Completion> {
        let receive = work.wr_id & RECEIVE != 0;
        let outstanding = if receive { &mut self.receives } else { &mut self.sends };
        let posted = outstanding.complete(work.wr_id as u32)?;
        if posted == Posted::Probe {
            self.probed = self.sends.outstanding() == 0;
        }
        let status = completion_status(work.status, receive);
        let succeeded = status == CompletionStatus::Success;
        if succeeded {
            self.liveness.heard(posted == Posted::Probe);
        } else {
            self.take_failure(status, work.status);
        }
        let Posted::User { id, kind, signaled } = posted else { return None };
        if succeeded && receive {
            return Some(self.received(id, work));
        }
        if succeeded && !signaled {
            return None;
        }
        Some(Completion { qp: self.number, id, kind, status, ..Completion::EMPTY })
    }

    /// Handles the completion of a shared receive that a message of this queue pair took. Returns whether the
    /// receive is complete. If the message ended with its connection, or is dropped, the receive is to be
    /// posted again.
    pub(super) fn take_shared(&mut self, work: &sys::ibv_wc) -> bool {
        match completion_status(work.status, true) {
            CompletionStatus::Success => self.liveness.heard(false),
            status => self.take_failure(status, work.status),
        }
        work.status != status::IBV_WC_WR_FLUSH_ERR && !self.drops_shared
    }

    /// The completion of a receive with this id.
    pub(super) fn received(&self, id: u64, work: &sys::ibv_wc) -> Completion {
        let status = completion_status(work.status, true);
        let kind = CompletionKind::Recv;
        let mut completion = Completion { qp: self.number, id, kind, status, ..Completion::EMPTY };
        if status == CompletionStatus::Success {
            let has = |flag: sys::ibv_wc_flags| work.wc_flags & flag.0 != 0;
            if work.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
                completion.kind = CompletionKind::RecvWrite;
            }
            completion.length = work.byte_len;
            if has(sys::ibv_wc_flags::IBV_WC_WITH_IMM) {
                // SAFETY: the flag selects the field of the union; both fields are 32-bit integers.
                let word = unsafe { work.imm_data_invalidated_rkey_union.imm_data };
                completion.immediate = Some(u32::from_be(word).into());
            } else if has(sys::ibv_wc_flags::IBV_WC_WITH_INV) {
                // SAFETY: as above.
                let key = unsafe { work.imm_data_invalidated_rkey_union.invalidated_rkey };
                completion.invalidated = Some(key);
            }
        }
        completion
    }

    /// Breaks the connection for a failed request, unless the request was only flushed.
    #[cold]
    fn take_failure(&mut self, status: CompletionStatus, code: status::Type) {
        let cause = Cause::Request { status, code };
        self.break_with(match status {
            CompletionStatus::Flushed => {
                self.flushed_at.get_or_insert_with(Instant::now);
                return;
            }
            CompletionStatus::Truncated => BreakReason::Protocol(cause),
            CompletionStatus::LocalAccess | CompletionStatus::LocalOperation => BreakReason::Local(cause),
            CompletionStatus::RemoteAccess | CompletionStatus::RemoteOperation => {
                BreakReason::Terminated(cause)
            }
            CompletionStatus::Unanswered => BreakReason::Vanished,
            _ => BreakReason::Reset,
        });
    }
}

/// The queue pair's number in a work request's id.
pub(super) fn number_of(work_id: u64) -> u32 {
    (work_id & !RECEIVE).wrapping_shr(32) as u32
}

/// How long a peer whose message found no receive waits before it sends it again: the code of 0.64 ms
/// (InfiniBand Architecture Specification, table "Encoding for RNR NAK Timer Field").
const RNR_TIMER: u8 = 12;

/// Remote access that the queue pair allows; each region restricts it further.
const REMOTE_RIGHTS: u32 =
    sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;

/// The status for the device's status code.
#[inline]
fn completion_status(code: status::Type, receive: bool) -> CompletionStatus {
    // Not among the others, so that the usual one costs no table.
    if code == status::IBV_WC_SUCCESS { CompletionStatus::Success } else { failure_status(code, receive) }
}

/// The status for the device's status code of a request that failed.
#[cold]
fn failure_status(code: status::Type, receive: bool) -> CompletionStatus {
    match code {
        status::IBV_WC_WR_FLUSH_ERR => CompletionStatus::Flushed,
        status::IBV_WC_LOC_LEN_ERR if receive => CompletionStatus::Truncated,
        status::IBV_WC_LOC_PROT_ERR | status::IBV_WC_LOC_ACCESS_ERR => CompletionStatus::LocalAccess,
        status::IBV_WC_LOC_LEN_ERR | status::IBV_WC_LOC_QP_OP_ERR => CompletionStatus::LocalOperation,
        status::IBV_WC_REM_ACCESS_ERR => CompletionStatus::RemoteAccess,
        status::IBV_WC_REM_INV_REQ_ERR | status::IBV_WC_REM_OP_ERR | status::IBV_WC_REM_INV_RD_REQ_ERR => {
            CompletionStatus::RemoteOperation
        }
        status::IBV_WC_RNR_RETRY_EXC_ERR => CompletionStatus::ReceiverNotReady,
        status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RESP_TIMEOUT_ERR => CompletionStatus::Unanswered,
        _ => CompletionStatus::DeviceFailed,
    }
}
