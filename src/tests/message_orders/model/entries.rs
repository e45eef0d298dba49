//! The entries of completion queues: each is that of the operation that has to end next.

use super::{CANARY, Expected, Kind, Model, Operation};
use crate::abi::{Errno, sys};
use crate::tests::application::Entry;
use crate::tests::arena::Piece;

impl Model<'_> {
    /// An entry of a side's completion queue.
    pub(in super::super) fn entry(&mut self, side: usize, entry: &Entry) {
        if entry.flags & sys::FI_REMOTE_WRITE != 0 {
            return self.remote_write(side, entry);
        }
        let context = entry.context;
        let operation = self.operations.get(context.wrapping_sub(1)).expect("an operation that was posted");
        assert!(!operation.has_ended, "{entry:?} is reported twice");
        assert_eq!(operation.side, side);
        let flags = match operation.kind {
            Kind::Recv => sys::FI_RECV | sys::FI_MSG,
            Kind::Send => sys::FI_SEND | sys::FI_MSG,
            Kind::Write => sys::FI_RMA | sys::FI_WRITE,
            Kind::Read => sys::FI_RMA | sys::FI_READ,
        };
        let data = if operation.kind == Kind::Recv { sys::FI_REMOTE_CQ_DATA } else { 0 };
        assert_eq!(entry.flags & !data, flags);
        match (operation.kind, entry.failure) {
            (Kind::Recv, None | Some((Errno::ETRUNC, _))) => self.received(entry),
            (_, None) => self.done(context),
            (_, Some((error, _))) => self.failed(context, error),
        }
    }

    /// A receive took a message.
    fn received(&mut self, entry: &Entry) {
        let Operation { party, side, is_cancelled, is_reported, memory, .. } = self.of(entry.context);
        assert!(!is_cancelled && (is_reported || entry.failure.is_some()), "{entry:?}");
        self.consume(entry.context);
        let at = party.unwrap_or_else(|| self.receiver(side, entry));
        let Some(Expected::Message { bytes, data }) = self.parties[at].incoming.pop_front() else {
            panic!("{entry:?} without a message");
        };
        // A shared receive that a message of a closed endpoint took is posted again, with some of its bytes.
        let may_be_used =
            party.is_none() && self.parties.iter().skip(side).step_by(2).any(|one| one.is_closed);
        self.check_message(if may_be_used { memory.part(0, entry.length) } else { memory }, &bytes);
        let fits = bytes.len().min(memory.length);
        let excess = bytes.len() - fits;
        assert_eq!(entry.length, fits);
        assert_eq!(entry.failure, (excess > 0).then_some((Errno::ETRUNC, excess)));
        if entry.failure.is_none() {
            let found = (entry.flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(entry.data);
            assert_eq!(found, data);
            self.seen.received += 1;
        } else {
            assert!(!self.is_infiniband, "there the application avoids it");
            self.seen.truncated += 1;
        }
        let tally = &mut self.parties[at].tally;
        tally.receives += u64::from(party.is_none());
        tally.failed_receives += u64::from(excess > 0);
        self.seen.received_shared += u64::from(party.is_none());
        self.retire(entry.context);
    }

    /// The endpoint of a side that the message of a shared receive was for.
    fn receiver(&self, side: usize, entry: &Entry) -> usize {
        let found = self.arena.read(self.of(entry.context).memory.part(0, entry.length));
        let is_for = |at: &usize| match self.parties[*at].incoming.front() {
            Some(Expected::Message { bytes, .. }) => bytes.starts_with(&found),
            _ => false,
        };
        (side..self.parties.len()).step_by(2).find(is_for).expect("a message that was sent")
    }

    /// The memory of a receive holds what fits of a message, and nothing behind that.
    fn check_message(&self, memory: Piece, bytes: &[u8]) {
        let found = self.arena.read(memory);
        let fits = bytes.len().min(found.len());
        assert!(found[..fits] == bytes[..fits], "the message is another one");
        assert!(found[fits..].iter().all(|&byte| byte == CANARY), "something is behind the message");
    }

    /// Removes the receive that a message took. It is the oldest one, apart from those whose success was not
    /// reported.
    fn consume(&mut self, context: usize) {
        let Operation { party, side, .. } = self.of(context);
        let Some(at) = party else {
            assert_eq!(self.common[side].pop_front(), Some(context), "the oldest receive");
            return;
        };
        self.settle_receives(at, Some(context));
        assert_eq!(self.parties[at].receives.pop_front(), Some(context), "the oldest receive");
    }

    /// The receives before `context` ended unseen: each has taken a message.
    fn settle_receives(&mut self, at: usize, context: Option<usize>) {
        while let Some(&oldest) = self.parties[at].receives.front()
            && Some(oldest) != context
        {
            let Operation { is_reported, memory, .. } = self.of(oldest);
            assert!(!is_reported, "receive {oldest} is passed over");
            let Some(Expected::Message { bytes, .. }) = self.parties[at].incoming.pop_front() else {
                panic!("receive {oldest} took no message");
            };
            assert!(bytes.len() <= memory.length, "receive {oldest} is too short");
            self.check_message(memory, &bytes);
            self.parties[at].receives.pop_front();
            self.retire(oldest);
            self.seen.unseen += 1;
        }
    }

    /// A write of the peer that carried data.
    fn remote_write(&mut self, side: usize, entry: &Entry) {
        let flags = sys::FI_REMOTE_WRITE | sys::FI_RMA | sys::FI_REMOTE_CQ_DATA;
        assert_eq!((entry.flags, entry.failure), (flags, None));
        let at = (entry.data & 3) as usize ^ 1;
        assert_eq!(at % 2, side);
        if self.is_infiniband {
            let operation = self.of(entry.context);
            assert!(operation.kind == Kind::Recv && !operation.is_cancelled && !operation.has_ended);
            self.consume(entry.context);
            self.retire(entry.context);
        } else {
            assert_eq!(entry.context, 0);
            // Messages before it may have been received unseen.
            while let (Some(Expected::Message { .. }), Some(&oldest)) =
                (self.parties[at].incoming.front(), self.parties[at].receives.front())
            {
                let next = self.parties[at].receives.get(1).copied();
                assert!(!self.of(oldest).is_reported, "receive {oldest} is passed over");
                self.settle_receives(at, next);
            }
        }
        let Some(Expected::Written { length, data }) = self.parties[at].incoming.pop_front() else {
            panic!("{entry:?} without a write");
        };
        assert_eq!((entry.length, entry.data), (length, data));
        let tally = &mut self.parties[at].tally;
        tally.receives -= u64::from(self.is_infiniband && !self.shares[side]);
        tally.remote_writes += 1;
        self.seen.remote_writes += 1;
    }

    /// An operation that sends succeeded.
    fn done(&mut self, context: usize) {
        let Operation { party, is_reported, kind, memory, fetches, is_wrong, delivers, .. } =
            self.of(context);
        // Over iWARP a write succeeds before the peer refuses it.
        let is_refused = is_wrong && (self.is_infiniband || kind == Kind::Read);
        assert!(is_reported && !is_refused);
        let at = party.expect("an operation of an endpoint");
        self.settle_sends(at, context);
        if kind == Kind::Read {
            assert_eq!(self.arena.read(memory), fetches, "what a read brought");
        }
        assert!(delivers == 0 || self.is_written(at, delivers), "{delivers} writes are not delivered");
        self.seen.sent += u64::from(kind == Kind::Send);
        self.seen.accessed += u64::from(kind != Kind::Send);
        self.retire(context);
    }

    /// Removes an operation that sends from its queue. Those before it ended unseen.
    fn settle_sends(&mut self, at: usize, context: usize) {
        while let Some(oldest) = self.parties[at].sends.pop_front()
            && oldest != context
        {
            assert!(!self.of(oldest).is_reported, "operation {oldest} is passed over");
            self.retire(oldest);
            self.seen.unseen += 1;
        }
    }

    /// The end of a connection cancels receives. What sends has the same error in all of an endpoint's operations, which
    /// says whether the peer ended the connection.
    fn check_flushed(&mut self, at: usize, kind: Kind, error: Errno) {
        if kind == Kind::Recv {
            return assert_eq!(error, Errno::ECANCELED);
        }
        let (own, peer) = (&self.parties[at], &self.parties[at ^ 1]);
        let by_peer = peer.has_shut || peer.is_closed || self.may_break;
        let by_itself = own.has_shut || own.is_closed || self.may_break || self.is_refused(at);
        assert!(error == Errno::ECONNRESET && by_peer || error == Errno::ECANCELED && by_itself, "{error:?}");
        let first = *self.parties[at].flushed.get_or_insert(error);
        assert_eq!(error, first, "one end has one reason");
    }

    /// Whether an access that the peer refuses may have ended the connection of `at`.
    fn is_refused(&self, at: usize) -> bool {
        let is_of_it = |one: &Operation| one.party.is_some_and(|party| party / 2 == at / 2);
        self.operations.iter().any(|one| one.is_wrong && is_of_it(one))
    }

    fn failed(&mut self, context: usize, error: Errno) {
        let Operation { party, kind, is_cancelled, is_wrong, .. } = self.of(context);
        let at = party.expect("a shared receive does not end with a connection");
        let tally = &mut self.parties[at].tally;
        *(if kind == Kind::Recv { &mut tally.failed_receives } else { &mut tally.failed_sends }) += 1;
        if is_cancelled {
            assert_eq!(error, Errno::ECANCELED);
            return self.retire(context);
        }
        assert!(self.may_fail(at), "{error:?} without a reason");
        if error == Errno::EACCES {
            assert!(is_wrong, "the key is right");
            self.seen.refused += 1;
        } else {
            self.check_flushed(at, kind, error);
            self.seen.flushed += 1;
        }
        let party = &mut self.parties[at];
        match kind {
            // A close reports what is left in any order.
            _ if party.is_closed => {
                let queue = if kind == Kind::Recv { &mut party.receives } else { &mut party.sends };
                queue.retain(|&other| other != context);
            }
            Kind::Recv => self.consume(context),
            _ => self.settle_sends(at, context),
        }
        self.retire(context);
    }
}
