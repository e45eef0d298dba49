//! The calls that post operations, with chosen arguments, and the cancellation of receives.

use super::model::{self, CANARY, Expected, Kind, Operation};
use super::{LONGEST, Run, WINDOW, WRITABLE, WRONG_KEY};
use crate::abi::{Errno, Result, sys};
use crate::tests::application::Call;
use crate::tests::arena::Piece;

impl Run<'_> {
    /// A piece of up to four parts, which holds the canary.
    fn parts(&mut self, length: usize) -> (Piece, Vec<Piece>) {
        let whole = self.model.arena.take(length);
        self.model.arena.fill(whole, CANARY);
        let (mut parts, mut from) = (Vec::new(), 0);
        let number = 1 + self.random.up_to(3);
        for at in 1..=number {
            let left = length - from;
            let length = if at == number { left } else { self.random.up_to(left) };
            parts.push(whole.part(from, length));
            from += length;
        }
        (whole, parts)
    }

    /// Pieces of the peer's region, one after the other from `offset` on.
    fn remote(&mut self, key: u64, mut offset: usize, length: usize) -> Vec<sys::fi_rma_iov> {
        let (mut pieces, mut left) = (Vec::new(), length);
        let number = 1 + self.random.up_to(2);
        for at in 1..=number {
            let length = if at == number { left } else { self.random.up_to(left) };
            pieces.push(sys::fi_rma_iov { addr: offset as u64, len: length, key });
            (offset, left) = (offset + length, left - length);
        }
        pieces
    }

    fn length(&mut self) -> usize {
        let most = self.random.pick(&[0, 16, 64, LONGEST]);
        self.random.up_to(most)
    }

    /// Length of a message to `at`. It has to be long enough to be unique, if the peer could not tell by
    /// other means who has sent it.
    fn message_length(&mut self, to: usize) -> usize {
        let length = self.length();
        if self.is_ambiguous(to) { length.max(model::MARK) } else { length }
    }

    /// Whether the receives of `at` are shared with another endpoint.
    fn is_ambiguous(&self, at: usize) -> bool {
        self.sides[at % 2].shared.is_some() && self.setting.connections > 1
    }

    /// Data for the completion of the peer, which says who has sent it.
    fn data(&mut self, at: usize) -> u64 {
        let most = if self.model.is_infiniband { u32::MAX as usize } else { usize::MAX };
        (self.random.up_to(most >> 2) << 2 | at) as u64
    }

    /// Some of the flags of an operation of `at` that sends `length` bytes.
    fn flags(&mut self, at: usize, length: usize) -> u64 {
        let mut flags = 0;
        let inject = if length <= self.inject { 250 } else { 0 };
        // After the end, a fence still waits for reads.
        let fence = if self.model.parties[at].is_over { 0 } else { 60 };
        for (flag, thousandths) in [
            (sys::FI_INJECT, inject),
            (sys::FI_COMPLETION, 500),
            (sys::FI_MORE, 200),
            (sys::FI_DELIVERY_COMPLETE, 100),
            (sys::FI_FENCE, fence),
        ] {
            flags |= if self.random.happens(thousandths) { flag } else { 0 };
        }
        flags
    }

    /// Checks the answer of a call on an endpoint, or on a shared receive context. Returns whether the call
    /// was taken.
    #[track_caller]
    fn is_taken(&self, at: Option<usize>, answer: Result<()>) -> bool {
        match (answer, at) {
            (Ok(()), _) => return true,
            (Err(Errno::EAGAIN), None) => {}
            (Err(Errno::EAGAIN), Some(at)) => assert!(!self.model.parties[at].is_over, "it never comes"),
            (Err(error), at) => {
                assert!(
                    error == Errno::ENOTCONN && at.is_some_and(|at| self.model.may_fail(at)),
                    "{error:?}"
                );
            }
        }
        false
    }

    /// The same for a call with an operation that uses this memory.
    #[track_caller]
    fn is_posted(&mut self, at: Option<usize>, memory: Piece, answer: Result<()>) -> bool {
        let is_taken = self.is_taken(at, answer);
        if !is_taken {
            self.model.arena.give_back(memory);
        }
        is_taken
    }

    pub(super) fn receive(&mut self, at: usize, must_be_reported: bool) {
        let side = &self.sides[at % 2];
        let (Some(endpoint), is_shared) = (side.shared.or(self.endpoints[at]), side.shared.is_some()) else {
            return;
        };
        let short = self.length();
        let length = match self.random.up_to(3) {
            // A message that is too long breaks the connection there.
            0 if !self.model.is_infiniband => short,
            _ => LONGEST,
        };
        let length = if is_shared { length.max(model::MARK) } else { length };
        let (whole, local) = self.parts(length);
        let asks = is_shared || must_be_reported || self.random.happens(500);
        let flags = if asks { sys::FI_COMPLETION } else { 0 };
        let context = self.model.next_context();
        let call = Call { local: &local, remote: &[], data: 0, flags, context };
        let answer = endpoint.receive(self.model.arena, &call);
        let party = if is_shared { None } else { Some(at) };
        if self.is_posted(party, whole, answer) {
            let is_reported = asks || !self.setting.is_selective[1];
            let receive = Operation::new(Kind::Recv, at % 2, party, whole);
            self.model.posted(Operation { is_reported, ..receive });
        }
    }

    pub(super) fn send(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints[at] else { return };
        let length = self.message_length(at ^ 1);
        let (whole, local) = self.parts(length);
        let bytes = self.model.compose(length);
        self.model.arena.write(whole, &bytes);
        let data = self.random.happens(500).then(|| self.data(at));
        let flags = self.flags(at, length) | if data.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        let context = self.model.next_context();
        let call = Call { local: &local, remote: &[], data: data.unwrap_or(1), flags, context };
        let answer = endpoint.send(self.model.arena, &call);
        if self.is_posted(Some(at), whole, answer) {
            self.model.sent(at, Expected::Message { bytes, data });
            self.posted(Operation::new(Kind::Send, at % 2, Some(at), whole), flags);
        }
    }

    /// Records an operation that sends. Its bytes are free at once if they were injected.
    fn posted(&mut self, mut operation: Operation, flags: u64) {
        let at = operation.party.expect("an operation of an endpoint");
        operation.is_reported = flags & sys::FI_COMPLETION != 0 || !self.setting.is_selective[0];
        if flags & sys::FI_INJECT != 0 {
            self.model.arena.fill(operation.memory, CANARY);
        }
        if flags & sys::FI_FENCE != 0 {
            self.model.check_reads(at);
        }
        if flags & sys::FI_DELIVERY_COMPLETE != 0 {
            operation.delivers = self.model.parties[at].writes.len();
        }
        self.model.posted(operation);
    }

    pub(super) fn inject(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints[at] else { return };
        let length = self.message_length(at ^ 1);
        if length > self.inject {
            return;
        }
        let bytes = self.model.compose(length);
        let data = self.random.happens(500).then(|| self.data(at));
        let answer = endpoint.inject(&bytes, data);
        if self.is_taken(Some(at), answer) {
            self.model.parties[at].tally.injected += 1;
            self.model.sent(at, Expected::Message { bytes, data });
        }
    }

    /// Writes to the peer's region or, if it `is_wrong`, by a wrong key, which breaks the connection.
    pub(super) fn write(&mut self, at: usize, is_wrong: bool) {
        let Some(endpoint) = self.endpoints[at] else { return };
        let length = self.length().max(usize::from(is_wrong));
        let (whole, local) = self.parts(length);
        let bytes = self.model.compose(length);
        self.model.arena.write(whole, &bytes);
        let offset = self.writable(at, length);
        let key = if is_wrong { WRONG_KEY } else { self.sides[(at % 2) ^ 1].key };
        let remote = self.remote(key, offset, length);
        let data = self.random.happens(300).then(|| self.data(at));
        let flags = self.flags(at, length) | if data.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        let context = self.model.next_context();
        let call = Call { local: &local, remote: &remote, data: data.unwrap_or(1), flags, context };
        let answer = endpoint.write(self.model.arena, &call);
        if self.is_posted(Some(at), whole, answer) {
            if is_wrong {
                self.model.ends(at);
                self.model.parties[at].tally.wrong_writes += remote.len() as u64;
            } else {
                let lengths = remote.iter().map(|piece| piece.len);
                self.model.written(at, offset, &bytes, lengths, data);
            }
            let write = Operation::new(Kind::Write, at % 2, Some(at), whole);
            self.posted(Operation { is_wrong, ..write }, flags);
        }
    }

    pub(super) fn inject_write(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints[at] else { return };
        let length = self.length();
        if length > self.inject {
            return;
        }
        let (bytes, offset) = (self.model.compose(length), self.writable(at, length));
        let data = self.random.happens(300).then(|| self.data(at));
        let key = self.sides[(at % 2) ^ 1].key;
        let to = sys::fi_rma_iov { addr: offset as u64, len: length, key };
        let answer = endpoint.inject_write(&bytes, to, data);
        if self.is_taken(Some(at), answer) {
            self.model.parties[at].tally.injected += 1;
            self.model.written(at, offset, &bytes, [length], data);
        }
    }

    /// A place in the part of the peer's region that `at` writes to.
    fn writable(&mut self, at: usize, length: usize) -> usize {
        at / 2 * WRITABLE + self.random.up_to(WRITABLE - length)
    }

    /// Reads from the part of the peer's region that does not change or, if `is_wrong`, by a wrong key, which
    /// breaks the connection.
    pub(super) fn read(&mut self, at: usize, is_wrong: bool) {
        let Some(endpoint) = self.endpoints[at] else { return };
        let length = self.length().max(usize::from(is_wrong));
        let (whole, local) = self.parts(length);
        let offset = WINDOW / 2 + self.random.up_to(WINDOW / 2 - length);
        let key = if is_wrong { WRONG_KEY } else { self.sides[(at % 2) ^ 1].key };
        let remote = self.remote(key, offset, length);
        let flags = self.flags(at, length) & !sys::FI_INJECT;
        let context = self.model.next_context();
        let call = Call { local: &local, remote: &remote, data: 0, flags, context };
        let answer = endpoint.read(self.model.arena, &call);
        if self.is_posted(Some(at), whole, answer) {
            let fetches = self.model.region((at % 2) ^ 1, offset, length);
            let read = Operation::new(Kind::Read, at % 2, Some(at), whole);
            self.posted(Operation { is_wrong, fetches, ..read }, flags);
            self.model.parties[at].tally.reads += remote.iter().filter(|piece| piece.len > 0).count() as u64;
            if is_wrong {
                self.model.ends(at);
            }
        }
    }

    pub(super) fn cancel(&mut self, at: usize) {
        let context = self.random.up_to(self.model.next_context() - 1);
        let Some(operation) = self.model.operations.get(context.wrapping_sub(1)) else { return };
        let (shared, is_shared) = (self.sides[operation.side].shared, operation.party.is_none());
        let Some(endpoint) = (if is_shared { shared } else { self.endpoints[at] }) else { return };
        let of = if is_shared { None } else { Some(at) };
        match endpoint.cancel(context) {
            Ok(()) => self.model.cancelled(of, context),
            Err(error) => {
                assert_eq!(error, Errno::ENOENT);
                assert!(!self.model.must_cancel(of, context), "operation {context} waits for a message");
            }
        }
    }
}
