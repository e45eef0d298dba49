//! What the calls on message endpoints have to bring about. [`entries`] checks what they report.
//!
//! Every operation ends once: with the bytes, length, data, flags and context that it must have, or with an
//! error that has a reason. Nothing touches its memory afterwards. An operation whose success is not reported
//! ends unseen; a later entry of its endpoint shows that it has ended.

mod entries;

use std::collections::VecDeque;

use rdma_verbs::Transport;

use super::{Setting, WINDOW, WRITABLE};
use crate::abi::Errno;
use crate::tests::arena::{Arena, Piece};

/// Content of memory before its operation is posted, and after it has ended.
pub(super) const CANARY: u8 = 0xee;
/// Number of bytes that distinguish a message.
pub(super) const MARK: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Recv,
    Send,
    Write,
    Read,
}

/// An operation that was posted. Its context is its number, from 1 on.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) side: usize,
    /// Its endpoint; `None`: a shared receive.
    pub(super) party: Option<usize>,
    pub(super) memory: Piece,
    /// Whether its success is reported.
    pub(super) is_reported: bool,
    /// Whether the peer has to refuse it.
    pub(super) is_wrong: bool,
    /// The bytes that a read brings.
    pub(super) fetches: Vec<u8>,
    /// Number of writes of its endpoint that have been delivered when it succeeds.
    pub(super) delivers: usize,
    pub(super) is_cancelled: bool,
    pub(super) has_ended: bool,
}

/// An expected delivery from the peer.
#[derive(Debug)]
pub(super) enum Expected {
    Message { bytes: Vec<u8>, data: Option<u64> },
    Written { length: usize, data: u64 },
}

/// An endpoint.
#[derive(Debug, Default)]
pub(super) struct Party {
    /// The connection attempt has had its outcome.
    pub(super) has_answer: bool,
    /// The application shut the endpoint down.
    pub(super) has_shut: bool,
    pub(super) is_closed: bool,
    /// The end was reported.
    pub(super) is_over: bool,
    /// Operations that have not ended, oldest first: those that send, and those that receive.
    sends: VecDeque<usize>,
    receives: VecDeque<usize>,
    incoming: VecDeque<Expected>,
    /// The error of what sends and was outstanding when the connection ended.
    flushed: Option<Errno>,
    /// The writes of this endpoint: offset in the peer's region, and bytes.
    pub(super) writes: Vec<(usize, Vec<u8>)>,
    pub(super) tally: Tally,
}

/// Numbers of operations of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Those that send and have a context, and those that have none.
    pub(super) sends: u64,
    pub(super) injected: u64,
    failed_sends: u64,
    /// Receives that have or will have ended, except those that writes with data take.
    receives: u64,
    failed_receives: u64,
    /// Reads of at least one byte, each remote piece by itself.
    pub(super) reads: u64,
    /// Remote pieces of writes by a wrong key. One of no bytes is not refused.
    pub(super) wrong_writes: u64,
    /// Writes of the peer with data.
    remote_writes: u64,
}

pub(super) struct Model<'a> {
    pub(super) arena: &'a mut Arena,
    pub(super) seen: &'a mut Seen,
    pub(super) is_infiniband: bool,
    /// Whether a connection may break at any time.
    may_break: bool,
    /// Memory of the sides' regions, and its first content.
    pub(super) windows: [Piece; 2],
    originals: [Vec<u8>; 2],
    pub(super) parties: Vec<Party>,
    pub(super) operations: Vec<Operation>,
    /// By side: the posted shared receives, oldest first.
    common: [VecDeque<usize>; 2],
    shares: [bool; 2],
    /// By connection: whether something was done that ends it.
    has_ended: Vec<bool>,
    messages: u32,
}

/// What all runs together have seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    received: u64,
    received_shared: u64,
    unseen: u64,
    truncated: u64,
    sent: u64,
    accessed: u64,
    remote_writes: u64,
    cancelled: u64,
    flushed: u64,
    refused: u64,
    ends: u64,
    /// Entries that woke the application.
    pub(super) woken: u64,
}

impl Seen {
    /// The orders reach everything.
    pub(super) fn check(&self, runs: u64) {
        let Self { received, received_shared, unseen, truncated, sent, accessed, .. } = *self;
        let often = [received, sent, accessed, self.flushed];
        assert!(often.iter().all(|&count| count > 2 * runs), "{self:?}");
        let rare = [received_shared, unseen, truncated, self.remote_writes, self.cancelled, self.ends];
        assert!(rare.iter().all(|&count| count > runs / 4), "{self:?}");
        assert!([self.refused, self.woken].iter().all(|&count| count > runs / 100), "{self:?}");
    }
}

impl Operation {
    pub(super) fn new(kind: Kind, side: usize, party: Option<usize>, memory: Piece) -> Self {
        Self {
            kind,
            side,
            party,
            memory,
            is_reported: true,
            is_wrong: false,
            fetches: Vec::new(),
            delivers: 0,
            is_cancelled: false,
            has_ended: false,
        }
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(arena: &'a mut Arena, seen: &'a mut Seen, setting: &Setting) -> Self {
        let windows = [arena.take(WINDOW), arena.take(WINDOW)];
        let originals = [0_u32, 1].map(|side| content(u32::MAX - side, WINDOW));
        windows.iter().zip(&originals).for_each(|(&window, bytes)| arena.write(window, bytes));
        Self {
            arena,
            seen,
            is_infiniband: setting.config.transport == Transport::InfiniBand,
            may_break: setting.plans.iter().any(|plan| plan.break_connection > 0),
            windows,
            originals,
            parties: (0..2 * setting.connections).map(|_| Party::default()).collect(),
            operations: Vec::new(),
            common: Default::default(),
            shares: setting.shares,
            has_ended: vec![false; setting.connections],
            messages: 0,
        }
    }

    /// The context of the operation that is posted next.
    pub(super) fn next_context(&self) -> usize {
        self.operations.len() + 1
    }

    /// Bytes that no other message has, if they are [`MARK`] at least.
    pub(super) fn compose(&mut self, length: usize) -> Vec<u8> {
        self.messages += 1;
        content(self.messages, length)
    }

    /// Records an operation that was posted.
    pub(super) fn posted(&mut self, operation: Operation) {
        let context = self.next_context();
        let queue = match (operation.party, operation.kind) {
            (None, _) => &mut self.common[operation.side],
            (Some(at), Kind::Recv) => {
                self.parties[at].tally.receives += 1;
                &mut self.parties[at].receives
            }
            (Some(at), _) => {
                self.parties[at].tally.sends += 1;
                &mut self.parties[at].sends
            }
        };
        queue.push_back(context);
        self.operations.push(operation);
    }

    /// Records a message of `at` to its peer.
    pub(super) fn sent(&mut self, at: usize, message: Expected) {
        self.parties[at ^ 1].incoming.push_back(message);
    }

    /// Records a write of `at`, in requests of these lengths, of which the last one carries the data.
    pub(super) fn written(
        &mut self,
        at: usize,
        mut offset: usize,
        mut bytes: &[u8],
        lengths: impl IntoIterator<Item = usize>,
        data: Option<u64>,
    ) {
        let mut last = 0;
        for length in lengths {
            let (now, later) = bytes.split_at(length);
            self.parties[at].writes.push((offset, now.to_vec()));
            (offset, bytes, last) = (offset + length, later, length);
        }
        if let Some(data) = data {
            self.sent(at, Expected::Written { length: last, data });
        }
    }

    /// The first content of a part of a side's region.
    pub(super) fn region(&self, side: usize, offset: usize, length: usize) -> Vec<u8> {
        self.originals[side][offset..offset + length].to_vec()
    }

    /// Records that something ends the connection of `at`.
    pub(super) fn ends(&mut self, at: usize) {
        self.has_ended[at / 2] = true;
    }

    pub(super) fn has_ended(&self, at: usize) -> bool {
        self.has_ended[at / 2]
    }

    /// Whether operations of `at` may fail because of its connection.
    pub(super) fn may_fail(&self, at: usize) -> bool {
        self.may_break || self.has_ended(at)
    }

    /// The end of the connection of `at` was reported.
    pub(super) fn shut(&mut self, at: usize) {
        assert!(self.may_fail(at), "nobody ended the connection");
        self.ends(at);
        let party = &mut self.parties[at];
        assert!(!party.is_over && !party.is_closed, "the end is reported once, and not after a close");
        (party.is_over, party.has_answer) = (true, true);
        self.seen.ends += 1;
    }

    /// Records that an operation has ended: from now on, nothing may access its memory.
    fn retire(&mut self, context: usize) {
        let operation = &mut self.operations[context - 1];
        operation.has_ended = true;
        let memory = operation.memory;
        self.arena.fill(memory, CANARY);
    }

    fn of(&self, context: usize) -> Operation {
        self.operations[context - 1].clone()
    }

    /// `fi_cancel` found the operation.
    pub(super) fn cancelled(&mut self, at: Option<usize>, context: usize) {
        let Operation { party, kind, side, has_ended, is_cancelled, .. } = self.of(context);
        assert_eq!((party, kind, has_ended, is_cancelled), (at, Kind::Recv, false, false));
        let queue = match party {
            Some(at) => &mut self.parties[at].receives,
            None => &mut self.common[side],
        };
        queue.retain(|&other| other != context);
        self.operations[context - 1].is_cancelled = true;
        if party.is_none() {
            // There is no queue for its entry.
            self.retire(context);
        }
        self.seen.cancelled += 1;
    }

    /// The shared receives of a side that have not ended.
    pub(super) fn shared_receives(&self, side: usize) -> Vec<usize> {
        self.common[side].iter().copied().collect()
    }

    /// Whether the operation is a receive that no message can have reached.
    pub(super) fn must_cancel(&self, at: Option<usize>, context: usize) -> bool {
        let Operation { party, kind, side, has_ended, is_cancelled, .. } = self.of(context);
        if (party, kind, has_ended, is_cancelled) != (at, Kind::Recv, false, false) {
            return false;
        }
        match party {
            Some(at) => self.parties[at].incoming.is_empty() && !self.may_fail(at),
            None => (side..self.parties.len()).step_by(2).all(|at| self.parties[at].incoming.is_empty()),
        }
    }

    /// Everything of an endpoint has ended, as far as its end is reported.
    pub(super) fn check_ended(&self, at: usize) {
        let party = &self.parties[at];
        let left = party.sends.iter().chain(&party.receives).find(|&&context| self.of(context).is_reported);
        assert_eq!(left, None, "it is not reported");
    }

    /// The endpoint is closed, and its entries are read.
    pub(super) fn closed(&mut self, at: usize) {
        self.check_ended(at);
        let party = &mut self.parties[at];
        party.incoming.clear();
        let mut left = std::mem::take(&mut party.sends);
        left.append(&mut party.receives);
        left.into_iter().for_each(|context| self.retire(context));
    }

    fn has_unseen(&self, queue: &VecDeque<usize>) -> bool {
        queue.iter().any(|&context| !self.of(context).is_reported)
    }

    fn has_reported(&self, queue: &VecDeque<usize>) -> bool {
        queue.iter().any(|&context| self.of(context).is_reported)
    }

    /// Number of deliveries to `at` that take a receive.
    fn messages_to(&self, at: usize) -> usize {
        let takes = |expected: &&Expected| self.is_infiniband || matches!(expected, Expected::Message { .. });
        self.parties[at].incoming.iter().filter(takes).count()
    }

    /// Whether all that has to come for `at` has come.
    pub(super) fn is_finished(&self, at: usize) -> bool {
        let party = &self.parties[at];
        if self.has_ended(at) {
            return party.is_over && !self.has_reported(&party.sends) && !self.has_reported(&party.receives);
        }
        party.incoming.is_empty() && !self.has_reported(&party.sends) && !self.has_unseen(&party.receives)
    }

    /// Whether messages may wait for a receive.
    pub(super) fn lacks_receives(&self, at: usize) -> bool {
        let party = &self.parties[at];
        let messages = self.messages_to(at);
        // What breaks a connection may have to wait as well.
        let is_ending = self.has_ended(at) && !party.is_over;
        if self.shares[at % 2] {
            return (is_ending || messages > 0) && self.common[at % 2].is_empty();
        }
        let last = party.receives.back();
        let is_unseen = last.is_some_and(|&context| !self.of(context).is_reported);
        let is_short = messages > party.receives.len() || is_ending && party.receives.is_empty();
        !party.is_over && (is_unseen || is_short)
    }

    /// Whether receives that are not reported may wait for messages.
    pub(super) fn lacks_messages(&self, at: usize) -> bool {
        let receives = &self.parties[at].receives;
        !self.has_ended(at) && self.has_unseen(receives) && self.messages_to(at) < receives.len()
    }

    pub(super) fn state(&self, at: usize) -> String {
        let list = |queue: &VecDeque<usize>| -> Vec<_> {
            queue.iter().map(|&context| (context, self.of(context).kind)).collect()
        };
        let Party { sends, receives, incoming, .. } = &self.parties[at];
        let common = &self.common[at % 2];
        format!("endpoint {at}: {:?}, {:?}, shared {common:?}, {incoming:?}", list(sends), list(receives))
    }

    /// The regions hold what was written: all of it, if the connection stands.
    pub(super) fn check_windows(&self) {
        for (at, party) in self.parties.iter().enumerate() {
            let least = if self.has_ended(at) { 0 } else { party.writes.len() };
            assert!(self.is_written(at, least), "what {at} wrote is not there");
        }
        for (&window, original) in self.windows.iter().zip(&self.originals) {
            assert_eq!(self.arena.read(window)[WINDOW / 2..], original[WINDOW / 2..]);
        }
    }

    /// Whether the peer's region holds the writes of `at`, in order: at least the first `least`.
    fn is_written(&self, at: usize, least: usize) -> bool {
        let side = (at % 2) ^ 1;
        let area = at / 2 * WRITABLE..(at / 2 + 1) * WRITABLE;
        let found = &self.arena.read(self.windows[side])[area.clone()];
        let mut image = self.originals[side].clone();
        let writes = &self.parties[at].writes;
        (0..=writes.len()).any(|number| {
            if let Some((offset, bytes)) = number.checked_sub(1).map(|last| &writes[last]) {
                image[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            number >= least && found == &image[area.clone()]
        })
    }

    /// The reads of `at` have brought their bytes, if their entries are read or not.
    pub(super) fn check_reads(&self, at: usize) {
        for &context in &self.parties[at].sends {
            let Operation { kind, memory, fetches, .. } = self.of(context);
            assert!(kind != Kind::Read || self.arena.read(memory) == fetches, "a fence is passed");
        }
    }

    /// How many accesses to memory of `at` are counted, or at most if its connection ends before they are done.
    pub(super) fn accesses_to(&self, at: usize) -> u64 {
        let peer = &self.parties[at ^ 1];
        match self.is_infiniband {
            true => self.parties[at].tally.remote_writes,
            false => peer.writes.len() as u64 + peer.tally.wrong_writes + peer.tally.reads,
        }
    }

    /// The counters of a closed endpoint have counted everything once, as far as it has ended.
    pub(super) fn check_tally(&self, at: usize, [sends, receives, accesses]: [(u64, u64); 3]) {
        let tally = &self.parties[at].tally;
        let (least, most) = (tally.sends, tally.sends + tally.injected);
        assert!((least..=most).contains(&(sends.0 + sends.1)), "{sends:?} {tally:?}");
        assert!(
            (tally.failed_sends..=tally.failed_sends + tally.injected).contains(&sends.1),
            "{sends:?} {tally:?}"
        );
        assert_eq!(receives, (tally.receives - tally.failed_receives, tally.failed_receives));
        assert!((tally.remote_writes..=self.accesses_to(at)).contains(&accesses.0), "{accesses:?} {tally:?}");
        assert_eq!(accesses.1, 0);
    }

    /// Nothing has touched memory of operations after they had ended.
    pub(super) fn check_untouched(&self) {
        for (at, operation) in self.operations.iter().enumerate() {
            let is_blank = self.arena.read(operation.memory).iter().all(|&byte| byte == CANARY);
            assert!(is_blank, "memory of operation {} is touched: {operation:?}", at + 1);
        }
    }
}

/// Bytes that begin with a number.
fn content(number: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(number);
    let rest = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    number.to_le_bytes().into_iter().chain(rest).take(length).collect()
}
