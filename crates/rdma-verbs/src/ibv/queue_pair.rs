//! A queue pair at its device: creating it, posting, and what its completions mean.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use rdma_sys as sys;
use sys::ibv_wc_status as status;

use super::cm::{Id, Reads};
use super::completion_queue::Queue;
use super::connection::State;
use super::device::{Context, OWN_SENDS, check, check_pointer};
use super::liveness::Liveness;
use super::memory::{Handle, Pd, Region};
use super::ring::{Posted, Ring};
use crate::{
    BreakReason, Cause, Completion, CompletionKind, CompletionStatus, ConnectionEvent, Error, QpCapabilities,
    QpId, Result,
};

/// Segments of one send that a queue pair asks for.
pub(super) const SEND_SEGMENTS: usize = 4;

/// The bit of a work request's id that says which queue it is of; the bits below hold the queue
/// pair's number and, in the lower half, the sequence number.
const RECEIVE: u64 = 1 << 63;

/// A queue pair, its connection, and what is posted on it.
pub(super) struct QueuePair {
    pub(super) number: QpId,
    raw: NonNull<sys::ibv_qp>,
    pub(super) granted: QpCapabilities,
    pub(super) segments: usize,
    /// Inline payload that came in too many slices, put together while it is posted.
    pub(super) joined: Vec<u8>,
    pub(super) sends: Ring,
    pub(super) receives: Ring,
    pub(super) state: State,
    pub(super) events: VecDeque<ConnectionEvent>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) liveness: Liveness,
    /// Whether a probe was answered since the last send: then the peer's host has everything.
    pub(super) probed: bool,
    /// The first flushed request that no connection event has explained yet.
    pub(super) flushed_at: Option<Instant>,
    /// Dropped after the queue pair is destroyed, as the connection manager asks for.
    pub(super) id: Option<Id>,
    /// On iWARP: the request is sent, and the kernel holds the queue pair until there is an outcome.
    pub(super) is_requesting: bool,
    pub(super) probe: Option<Arc<Region>>,
    pub(super) domain: Arc<Handle>,
    _queue: Arc<Queue>,
}

// SAFETY: libibverbs ties a queue pair to no thread; `QueuePair` is the only handle to it.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair that can take receives.
    pub(super) fn create(number: QpId, pd: &Pd, queue: &Arc<Queue>, wanted: QpCapabilities) -> Result<Self> {
        let context = &pd.handle().context;
        let segments = (SEND_SEGMENTS as u32).min(context.max_segments);
        let mut created = Err(Error::Unsupported("queue pair of that size"));
        for inline in context.inline_sizes(wanted.inline) {
            // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
            let mut request: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            request.send_cq = queue.raw();
            request.recv_cq = queue.raw();
            request.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            request.cap.max_send_wr = wanted.send_depth.max(1) + OWN_SENDS;
            request.cap.max_recv_wr = wanted.recv_depth.max(1);
            request.cap.max_send_sge = segments;
            request.cap.max_recv_sge = 1;
            request.cap.max_inline_data = inline as u32;
            // SAFETY: domain and queue are valid, and the queue pair will hold both; the request is live.
            // Those of different devices are refused.
            let raw = unsafe { (context.library.ibv_create_qp)(pd.handle().raw(), &raw mut request) };
            created = check_pointer("ibv_create_qp", raw).map(|raw| (raw, request.cap));
            if created.is_ok() {
                if inline < wanted.inline {
                    context.limit_inline(inline);
                }
                break;
            }
        }
        let (raw, cap) = created?;
        let reads = context.max_reads;
        let qp = Self {
            number,
            raw,
            granted: QpCapabilities {
                send_depth: cap.max_send_wr.saturating_sub(OWN_SENDS),
                recv_depth: cap.max_recv_wr,
                inline: cap.max_inline_data as usize,
                initiator_depth: wanted.initiator_depth.max(1).min(reads.0),
                responder_resources: wanted.responder_resources.max(1).min(reads.1),
            },
            segments: segments as usize,
            joined: Vec::new(),
            sends: Ring::new(cap.max_send_wr),
            receives: Ring::new(cap.max_recv_wr),
            state: State::Idle,
            events: VecDeque::new(),
            local: None,
            peer: None,
            liveness: Liveness::default(),
            probed: true,
            flushed_at: None,
            id: None,
            is_requesting: false,
            probe: pd.probe().cloned(),
            domain: Arc::clone(pd.handle()),
            _queue: Arc::clone(queue),
        };
        qp.initialize()?;
        Ok(qp)
    }

    /// Takes the new queue pair to the state in which receives can be posted. The port is that of the
    /// connection later.
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

    /// Takes the queue pair to a later state, with the attributes that the connection manager knows.
    pub(super) fn raise(&self, state: sys::ibv_qp_state::Type) -> Result<()> {
        let Some(id) = &self.id else { return Ok(()) };
        let (mut attributes, mut mask) = id.queue_pair_attributes(state)?;
        if state == sys::ibv_qp_state::IBV_QPS_INIT {
            attributes.qp_access_flags = REMOTE_RIGHTS;
            mask |= sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as i32;
        }
        self.modify(&mut attributes, mask)
    }

    /// Ends all work: what is posted comes back flushed.
    pub(super) fn fail_requests(&self) {
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
        if let Err(error) = self.modify(&mut attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32) {
            log::debug!("{error}");
        }
    }

    fn modify(&self, attributes: &mut sys::ibv_qp_attr, mask: i32) -> Result<()> {
        // SAFETY: the queue pair is valid; the attributes are live and only read.
        let answer = unsafe { (self.context().library.ibv_modify_qp)(self.raw(), attributes, mask) };
        check("ibv_modify_qp", answer)
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

    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// The number that the peer's device knows it by.
    pub(super) fn wire_number(&self) -> u32 {
        // SAFETY: the queue pair is valid, and its number does not change.
        unsafe { (*self.raw()).qp_num }
    }

    pub(super) fn reads(&self) -> Reads {
        Reads { initiator: self.granted.initiator_depth, responder: self.granted.responder_resources }
    }

    /// Send entries that the consumer may use now.
    pub(super) fn send_room(&self) -> u32 {
        // One entry stays for a probe; while one is under way it has its entry.
        let own = if self.liveness.probing() { 0 } else { OWN_SENDS };
        (self.granted.send_depth + OWN_SENDS).saturating_sub(self.sends.outstanding() + own)
    }

    /// The id of the next work request of a queue.
    pub(super) fn work_id(&self, receive: bool, sequence: u32) -> u64 {
        let queue = if receive { RECEIVE } else { 0 };
        queue | u64::from(self.number.0) << 32 | u64::from(sequence)
    }

    /// What a completion of this queue pair tells the consumer, if anything.
    pub(super) fn take(&mut self, done: &sys::ibv_wc) -> Option<Completion> {
        let receive = done.wr_id & RECEIVE != 0;
        let ring = if receive { &mut self.receives } else { &mut self.sends };
        let posted = ring.complete(done.wr_id as u32)?;
        if posted == Posted::Probe {
            self.probed = self.sends.outstanding() == 0;
        }
        let status = completion_status(done.status, receive);
        let succeeded = status == CompletionStatus::Success;
        if succeeded {
            self.liveness.heard(posted == Posted::Probe);
        } else {
            self.take_failure(status, done.status);
        }
        let Posted::User { id, kind, signaled } = posted else { return None };
        if succeeded && !signaled {
            return None;
        }
        let mut completion = Completion { qp: self.number, id, kind, status, ..Completion::EMPTY };
        if succeeded && receive {
            let has = |flag: sys::ibv_wc_flags| done.wc_flags & flag.0 != 0;
            if done.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
                completion.kind = CompletionKind::RecvWrite;
            }
            completion.length = done.byte_len;
            if has(sys::ibv_wc_flags::IBV_WC_WITH_IMM) {
                // SAFETY: the flag says which of the two it is; both are plain 32 bits.
                let word = unsafe { done.imm_data_invalidated_rkey_union.imm_data };
                completion.immediate = Some(u32::from_be(word).into());
            } else if has(sys::ibv_wc_flags::IBV_WC_WITH_INV) {
                // SAFETY: as above.
                let key = unsafe { done.imm_data_invalidated_rkey_union.invalidated_rkey };
                completion.invalidated = Some(key);
            }
        }
        Some(completion)
    }

    /// What a failed request says about the connection.
    fn take_failure(&mut self, status: CompletionStatus, code: status::Type) {
        let cause = Cause::Request { status, code };
        self.lose(match status {
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

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: the queue pair is valid and destroyed once.
        let answer = unsafe { (self.context().library.ibv_destroy_qp)(self.raw()) };
        if let Err(error) = check("ibv_destroy_qp", answer) {
            log::warn!("{error}");
        }
    }
}

/// The queue pair's number in a work request's id.
pub(super) fn number_of(work_id: u64) -> u32 {
    (work_id & !RECEIVE).wrapping_shr(32) as u32
}

/// What peers may do with regions that grant it.
const REMOTE_RIGHTS: u32 =
    sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;

/// What the device's number for the end of a request means.
fn completion_status(code: status::Type, receive: bool) -> CompletionStatus {
    match code {
        status::IBV_WC_SUCCESS => CompletionStatus::Success,
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
