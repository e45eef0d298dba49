//! What ends a request: responses of the other side, and Terminate.

use iwarp_wire::ddp::{Header, Tagged};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{About, AtomicResponse, ReadRequest, Terminate};

use super::super::framing::Fpdu;
use super::{Asked, Operations, Payload, Pending, place};
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::{Access, Kind, Outcome, Placement, Side};

impl Operations {
    /// Answers whether its read is known.
    pub(super) fn read_response(
        &mut self,
        side: Side,
        tagged: &Tagged,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        let (requester, connection) = (side.other(), self.connection);
        let half = &mut self.halves[requester.index()];
        let fits = |pending: &Pending| match pending.asked {
            Asked::Read(request) if pending.over.is_none() => {
                let offset = tagged.offset.wrapping_sub(request.sink_offset);
                let end = offset.checked_add(payload.length as u64);
                // Segments come in order: one that goes back is of another response into the same place.
                let known = pending.got.iter().next_back().map_or(0, |(_, end)| end);
                let inside = offset >= known && end.is_some_and(|end| end <= u64::from(request.length));
                (request.sink_stag == tagged.stag && inside || request.length == 0 && payload.length == 0)
                    .then_some(offset)
            }
            _ => None,
        };
        let first = half.first_outstanding();
        let mut waiting = half.pending.range(first..).zip(first..);
        let Some((found, offset)) = waiting.find_map(|(pending, at)| Some((at, fits(pending)?))) else {
            return false;
        };
        // Responses come in the order of the requests: what comes no more was not captured.
        for earlier in half.pending.range_mut(first..found).filter(|earlier| earlier.is_outstanding()) {
            earlier.over = Some((Outcome::Implied, context.time));
        }
        self.check_depth(requester, found, context);
        let pending = &mut self.halves[requester.index()].pending[found];
        let offset = if payload.length == 0 { 0 } else { offset };
        let operation = &mut pending.operation;
        let mut placement = Placement {
            operation: operation.id,
            connection,
            from: requester,
            offset,
            memory: None,
            frame: 0,
        };
        let at = |target: Option<crate::Target>, access| {
            target.map(|target| {
                (crate::Target { address: target.address.wrapping_add(offset), ..target }, access)
            })
        };
        let (source, sink) = (at(operation.target, Access::Read), at(operation.sink, Access::Filled));
        pending.add(payload, fpdu, offset, context.budget);
        if tagged.last {
            pending.over = Some((Outcome::Answered, context.time));
        }
        placement.memory = source;
        place(&placement, payload, fpdu, context);
        if sink.is_some() {
            placement.memory = sink;
            place(&placement, payload, fpdu, context);
        }
        self.flush(requester, false, context);
        true
    }

    /// Whether the responder serves as many requests at a time as have been asked for, up to now that the
    /// first of them is answered.
    fn check_depth(&mut self, requester: Side, first: usize, context: &mut Context<'_>) {
        let responder = requester.other();
        let half = &mut self.halves[requester.index()];
        let Some(serves) = self.serves[responder.index()].map(usize::from).filter(|_| !half.exceeded) else {
            return;
        };
        let open = half.pending.range(first..).filter(|pending| pending.is_outstanding());
        let asked = open.take(serves + 1).count();
        if asked > serves {
            half.exceeded = true;
            let text =
                format!("{requester} has more than {serves} reads outstanding, which {responder} serves");
            context.finding(Topic::Protocol, Some(self.connection), text);
        }
    }

    /// Answers whether its atomic operation is known.
    pub(super) fn atomic_response(
        &mut self,
        side: Side,
        response: AtomicResponse,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        let (requester, connection) = (side.other(), self.connection);
        let asked = Asked::Atomic { id: response.id };
        let half = &mut self.halves[requester.index()];
        let found = half.pending.iter().position(|pending| pending.asked == asked && pending.over.is_none());
        let Some(found) = found else { return false };
        self.check_depth(requester, found, context);
        let pending = &mut self.halves[requester.index()].pending[found];
        pending.over = Some((Outcome::Answered, context.time));
        pending.got.insert(0, 8);
        pending.operation.frames.1 = fpdu.frames.1;
        pending.operation.packets += 1;
        if let Some(atomic) = &mut pending.operation.atomic {
            atomic.old = Some(response.original);
        }
        let placement = Placement {
            operation: pending.operation.id,
            connection,
            from: requester,
            offset: 0,
            memory: pending.operation.target.map(|target| (target, Access::Found)),
            frame: fpdu.frames.1,
        };
        context.bytes(&placement, &response.original.to_be_bytes());
        self.flush(requester, false, context);
        true
    }

    pub(super) fn terminate(
        &mut self,
        side: Side,
        payload: &[u8],
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let Some(terminate) = payload.first_chunk().map(Terminate::parse) else { return };
        let about = About::parse(payload);
        let quoted = about.head.get(mpa::FPDU_LENGTH_FIELD..).and_then(|head| Header::parse(head).ok());
        let request = about.request.map(ReadRequest::parse);
        let is_it = |pending: &Pending| {
            let target = pending.operation.target;
            match (quoted, pending.asked) {
                // Nothing but in the middle of its response.
                (None, Asked::Read(_)) => pending.is_outstanding() && pending.got.total() > 0,
                (Some(Header::Tagged(tagged)), Asked::Nothing) => target.is_some_and(|target| {
                    let at = tagged.offset.wrapping_sub(target.address);
                    target.key == tagged.stag && at < pending.operation.length
                }),
                (Some(Header::Untagged(_)), Asked::Read(asked)) => {
                    request.is_none_or(|quoted| quoted == asked)
                }
                (Some(Header::Untagged(quoted)), Asked::Nothing) => {
                    pending.operation.kind == Kind::Send && quoted.queue == 0
                }
                _ => false,
            }
        };
        let half = &mut self.halves[side.other().index()];
        let text = terminate.to_string();
        let mut failed = String::new();
        if let Some(found) = half.pending.iter().rposition(is_it) {
            let pending = &mut half.pending[found];
            pending.over = Some((Outcome::Terminated(terminate.meaning().to_owned()), context.time));
            pending.operation.frames.1 = fpdu.frames.1;
            failed = format!(
                ", about the {} of frame {}",
                pending.operation.kind.name(),
                pending.operation.frames.0
            );
        }
        let text = format!("{side} terminated the connection: {text}{failed}");
        context.finding(Topic::Terminate, Some(self.connection), text);
    }
}
