//! What the responder sends: acknowledgements, NAKs and responses.

use super::pieces::{Early, Pending, Response};
use super::{Cause, MOST_EARLY, ORPHAN, Requests, START, WINDOW};
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::{Access, Kind, Outcome, Placement, Target};
use crate::roce::packet::{Opcode, Packet, Syndrome};

impl Requests {
    /// A packet of the responder.
    pub(in crate::roce) fn answer(&mut self, packet: &Packet<'_>, context: &mut Context<'_>) {
        self.packets += 1;
        // Nothing was asked for yet: this number may be the first that is.
        let next = self.next.unwrap_or(START + u64::from(packet.psn));
        let psn = self.unwrap(packet.psn, next);
        match packet.opcode {
            Opcode::Acknowledge => self.acknowledgement(psn, packet, context),
            Opcode::Other(_) => {}
            // The capture cut what it found.
            Opcode::AtomicAcknowledge if packet.original.is_none() => {}
            opcode => {
                let response = Response {
                    ends: matches!(opcode, Opcode::ReadResponse(part) if part.ends()),
                    original: packet.original,
                    payload: packet.payload,
                    length: packet.length,
                };
                if !self.respond(psn, &response, context) {
                    self.keep_response(psn, &response, context);
                }
            }
        }
        self.flush(false, context);
        self.pay(context);
    }

    /// A response; answers whether its request is there.
    fn respond(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) -> bool {
        match response.original {
            Some(original) => self.atomic_response(psn, original, context),
            None => self.read_response(psn, response, context),
        }
    }

    /// Keeps a response in case its request is only captured later.
    fn keep_response(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) {
        if psn < self.done {
            return;
        }
        if self.early.len() == MOST_EARLY || !context.budget.take(ORPHAN + response.payload.len()) {
            self.forget_early(context);
            return;
        }
        let &Response { ends, original, payload, length } = response;
        let (payload, frame, time) = (payload.to_vec(), context.frame, context.time);
        self.early.push((psn, Early { ends, original, payload, length, frame, time }));
    }

    /// Takes the responses that came before this request.
    pub(super) fn take_early(&mut self, at: usize, context: &mut Context<'_>) {
        let now = (context.frame, context.time);
        let (first, last) = (self.pending[at].first, self.pending[at].last);
        let mut inside = |(psn, _): &mut (u64, Early)| *psn >= first && last.is_none_or(|last| *psn <= last);
        let taken: Vec<(u64, Early)> = self.early.extract_if(.., &mut inside).collect();
        for (psn, early) in taken {
            context.budget.give(ORPHAN + early.payload.len());
            (context.frame, context.time) = (early.frame, early.time);
            let Early { ends, original, ref payload, length, .. } = early;
            self.respond(psn, &Response { ends, original, payload, length }, context);
        }
        (context.frame, context.time) = now;
    }

    /// The requests of early responses will not come.
    pub(super) fn forget_early(&mut self, context: &mut Context<'_>) {
        for (_, early) in std::mem::take(&mut self.early) {
            context.budget.give(ORPHAN + early.payload.len());
            let text = format!("a response to {} whose request is not in the capture", self.from);
            context.finding(Topic::Partial, Some(self.connection), text);
        }
    }

    fn acknowledgement(&mut self, psn: u64, packet: &Packet<'_>, context: &mut Context<'_>) {
        let now = (context.time, self.packets);
        match packet.syndrome {
            Some(Syndrome::Ack) => {
                // The requester has sent these packets, although the capture does not have them.
                if psn >= self.next.unwrap_or(psn) && psn < self.next.unwrap_or(psn) + WINDOW {
                    self.next = Some(psn + 1);
                }
                self.acknowledge_before(psn + 1, context);
                if let Some(pending) = self.at(psn).map(|at| &mut self.pending[at])
                    && pending.over == Some((Outcome::Implied, now.0, now.1))
                    && !pending.is_answered_by_data()
                {
                    pending.over = Some((Outcome::Acked, now.0, now.1));
                    pending.operation.frames.1 = pending.operation.frames.1.max(context.frame);
                }
            }
            Some(Syndrome::NotReady(wait)) => {
                self.acknowledge_before(psn, context);
                self.cause = Some(Cause::NotReady);
                if let Some(pending) = self.at(psn).map(|at| &mut self.pending[at]) {
                    pending.not_ready += 1;
                }
                let (other, psn) = (self.from.other(), packet.psn);
                let text = format!("{other} was not ready for packet {psn:#08x}, and asks for {wait} us");
                context.finding(Topic::NotReady, Some(self.connection), text);
            }
            Some(Syndrome::Sequence) => {
                self.acknowledge_before(psn, context);
                self.cause = Some(Cause::Sequence);
                let text = format!("{} has not seen packet {:#08x}", self.from.other(), packet.psn);
                context.finding(Topic::NetworkLoss, Some(self.connection), text);
            }
            Some(Syndrome::Refused(reason)) => {
                self.acknowledge_before(psn, context);
                let found = self.at(psn).map(|at| &mut self.pending[at]).filter(|found| found.contains(psn));
                let about = found.map_or(String::new(), |pending| {
                    pending.over = Some((Outcome::Nak(reason), now.0, now.1));
                    pending.operation.frames.1 = context.frame;
                    format!(" the {} of frame {}", pending.operation.kind.name(), pending.operation.frames.0)
                });
                let text = format!("{} refused{about}: {reason}", self.from.other());
                context.finding(Topic::Refused, Some(self.connection), text);
            }
            Some(Syndrome::Reserved) | None => {}
        }
    }

    /// All operations that end before `psn` are over, if only because a later one is.
    pub(super) fn acknowledge_before(&mut self, psn: u64, context: &mut Context<'_>) {
        let now = (context.time, self.packets);
        let outcome = if self.unreliable { Outcome::Unknown } else { Outcome::Implied };
        self.acknowledged = self.acknowledged.max(psn);
        let mut follower = u64::MAX;
        for pending in self.pending.iter_mut().rev() {
            // An operation without its last packet ends before the next one begins.
            let end = pending.last.map_or(follower, |last| last + 1);
            follower = pending.first;
            if end > psn {
                continue;
            }
            if pending.over.is_some() {
                break;
            }
            pending.over = Some((outcome.clone(), now.0, now.1));
        }
    }

    /// Whether the responder serves as many requests at a time as have been asked for, up to now that the
    /// first of them is answered.
    fn check_depth(&mut self, first: usize, context: &mut Context<'_>) {
        let Some(serves) = self.serves.map(usize::from).filter(|_| !self.exceeded) else { return };
        let open = self.pending.range(first..).filter(|pending| pending.is_answered_by_data());
        let asked = open.filter(|pending| pending.over.is_none()).take(serves + 1).count();
        if asked > serves {
            self.exceeded = true;
            let (from, other) = (self.from, self.from.other());
            let text = format!("{from} has more than {serves} reads outstanding, which {other} serves");
            context.finding(Topic::Protocol, Some(self.connection), text);
        }
    }

    fn read_response(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) -> bool {
        let (connection, packets) = (self.connection, self.packets);
        let &Response { ends, payload, length, .. } = response;
        let fits =
            |found: &Pending| found.operation.kind == Kind::Read && found.contains(psn) && found.headed;
        let Some(at) = self.at(psn).filter(|at| fits(&self.pending[*at])) else { return false };
        if !ends && !self.is_full(length, context) {
            return true;
        }
        let pmtu = self.pmtu;
        let pending = &mut self.pending[at];
        if pmtu == 0 && psn > pending.first {
            // The place of this packet is not known.
            return true;
        }
        if pending.last.is_none() && pmtu > 0 {
            pending.last = Some(pending.first + pending.operation.length.div_ceil(pmtu).max(1) - 1);
        }
        let index = psn - pending.first;
        let last = pending.last;
        let offset = index * pmtu;
        if offset + length as u64 > pending.operation.length {
            let text = format!("a read of {} bytes is answered by more", pending.operation.length);
            context.finding(Topic::Protocol, Some(connection), text);
            return true;
        }
        if pending.answered.contains(index, index + 1) {
            pending.operation.resent += 1;
            self.repeated("a read response", context);
            return true;
        }
        self.check_depth(at, context);
        let pending = &mut self.pending[at];
        let before = pending.weight();
        pending.answered.insert(index, index + 1);
        pending.recharge(before, context.budget);
        let operation = &mut pending.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(context.frame);
        operation.cut += (length - payload.len()) as u64;
        let (first, id) = (pending.first, operation.id);
        let memory = operation
            .target
            .map(|target| (Target { address: target.address.wrapping_add(offset), ..target }, Access::Read));
        if pending.packets().is_some_and(|packets| pending.answered.contains(0, packets)) {
            pending.over = Some((Outcome::Answered, context.time, packets));
        }
        if let Some(after) = last.map(|last| last + 1).filter(|after| *after > self.next.unwrap_or(0)) {
            self.next = Some(after);
        }
        let (from, frame) = (self.from, context.frame);
        context.bytes(&Placement { operation: id, connection, from, offset, memory, frame }, payload);
        self.acknowledge_before(first, context);
        true
    }

    fn atomic_response(&mut self, psn: u64, original: u64, context: &mut Context<'_>) -> bool {
        let (connection, packets) = (self.connection, self.packets);
        let fits = |found: &Pending| {
            found.first == psn && matches!(found.operation.kind, Kind::CompareSwap | Kind::FetchAdd)
        };
        let Some(at) = self.at(psn).filter(|at| fits(&self.pending[*at])) else { return false };
        if self.pending[at].answered.contains(0, 1) {
            self.pending[at].operation.resent += 1;
            self.repeated("an atomic response", context);
            return true;
        }
        self.check_depth(at, context);
        let pending = &mut self.pending[at];
        pending.answered.insert(0, 1);
        pending.over = Some((Outcome::Answered, context.time, packets));
        let operation = &mut pending.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(context.frame);
        if let Some(atomic) = &mut operation.atomic {
            atomic.old = Some(original);
        }
        let (id, from, frame) = (operation.id, self.from, context.frame);
        let memory = operation.target.map(|target| (target, Access::Found));
        let placement = Placement { operation: id, connection, from, offset: 0, memory, frame };
        context.bytes(&placement, &original.to_be_bytes());
        self.acknowledge_before(psn, context);
        true
    }
}
