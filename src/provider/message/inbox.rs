//! Endpoints with tags (`FI_TAGGED`): which receive of the application a message goes to.
//!
//! The peer sends each message as a header and a payload ([`rstream_protocol::tag`]). The queue pair has a receive for
//! the next header, and before it that of the payload that is to come, if any: the application's, or memory of the
//! inbox for a message that nobody has asked for. A message that this has no room for is *held*: its payload has no
//! receive, so the connection waits.

mod driving;
mod parts;

use std::collections::VecDeque;

use super::endpoint::Phase;
use super::operation;
use super::posting::buffer_of;
use crate::abi::{Place, ReceiveBuffer, Tags, UserContext, constants};
pub(super) use driving::InboxTasks;
pub(super) use parts::Parts;
use rdma_verbs::{Buffer, CompletionQueue, CompletionStatus};
use rstream_protocol::tag::{self, Header};

/// Places of operations that no endpoint has, in the ids of the two receives of the queue pair.
const HEADER: usize = u32::MAX as usize;
const PAYLOAD: usize = HEADER - 1;
/// Most memory for messages that nobody has asked for, and what each of them counts for besides its payload. In bytes.
const ROOM: usize = 1 << 20;
const OVERHEAD: usize = 256;
/// Number of receives that the queue pair has at most.
pub(super) const RECEIVES: u32 = 2;

/// See the module.
pub(super) struct Inbox {
    /// Receives without a message, in the order of their calls.
    receives: VecDeque<Receive>,
    /// Messages without a receive, in the order of arrival. Only the last one may not be whole.
    messages: VecDeque<Message>,
    header: ReceiveBuffer,
    /// Whose payload comes next.
    next: Option<Next>,
    /// Whether the receive of the next header is posted.
    expects_header: bool,
    /// Memory that the messages use.
    used: usize,
    /// How many messages were held.
    held: u64,
    /// Whether nothing more arrives.
    is_over: bool,
}

/// A receive of the application.
pub(super) struct Receive {
    /// Its place among the operations of the endpoint.
    pub(super) operation: usize,
    pub(super) tags: Option<Tags>,
    pub(super) places: Vec<Place>,
}

/// A message without a receive.
struct Message {
    header: Header,
    stage: Stage,
    fate: Fate,
}

/// How much of a message is there.
enum Stage {
    /// The header: there was no room for more.
    Held,
    /// Its payload goes here.
    Arriving(ReceiveBuffer),
    Whole(ReceiveBuffer),
}

/// What becomes of a message.
enum Fate {
    /// It waits for a receive.
    Open,
    /// Only the application's call with this context may have it.
    Claimed(UserContext),
    /// It goes to this receive when it is whole.
    Taken(Receive),
    /// It is dropped when it is whole.
    Dropped,
}

/// Where the payload that comes next goes.
enum Next {
    /// To a receive.
    Receive(Header, Receive),
    /// Nowhere.
    Nowhere(Header),
    /// To the last message.
    Message,
}

/// A peer that does not follow the protocol.
struct Violation(&'static str);

impl Inbox {
    /// `None` if there is no memory.
    pub(super) fn new() -> Option<Self> {
        // It fits.
        let header = ReceiveBuffer::new(tag::LENGTH as u32)?;
        let (receives, messages) = (VecDeque::new(), VecDeque::new());
        Some(Self {
            receives,
            messages,
            header,
            next: None,
            expects_header: false,
            used: 0,
            held: 0,
            is_over: false,
        })
    }

    /// How many messages had to wait in the connection.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Whether one does now.
    fn is_holding(&self) -> bool {
        self.messages.back().is_some_and(|message| matches!(message.stage, Stage::Held))
    }

    /// Whether the end of the connection is found only by its event: no receive is posted whose completion would say so.
    fn awaits_end(&self) -> bool {
        self.is_holding() || self.is_over
    }

    /// Whether the queue pair has no receive.
    pub(super) fn is_idle(&self) -> bool {
        self.next.is_none() && !self.expects_header
    }

    /// Posts the receive of the next header.
    pub(super) fn expect_header<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>) {
        let place = self.header.place();
        self.expects_header = parts.post(HEADER, buffer_of(place.as_slice()));
        self.is_over |= !self.expects_header;
        self.end_if_over(parts);
    }

    /// Ends it if nothing more arrives behind the payload that comes next.
    fn end_if_over<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>) {
        if self.is_over && self.next.is_none() {
            self.end(parts);
        }
    }

    /// Takes a header that has arrived.
    fn take_header<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        status: CompletionStatus,
        length: usize,
    ) -> Result<(), Violation> {
        self.expects_header = false;
        match status {
            CompletionStatus::Success | CompletionStatus::Truncated => {}
            _ => {
                self.end(parts);
                return Ok(());
            }
        }
        let bytes = self.header.bytes().get(..length).ok_or(Violation("a header that is too long"))?;
        let header = Header::decode(bytes).ok_or(Violation("what is no header"))?;
        if let Some(receive) = self
            .receives
            .iter()
            .position(|receive| receive.takes(&header))
            .and_then(|at| self.receives.remove(at))
        {
            self.expect(parts, header, receive);
            return Ok(());
        }
        self.messages.push_back(Message { header, stage: Stage::Held, fate: Fate::Open });
        self.make_room(parts);
        self.held += u64::from(self.is_holding());
        Ok(())
    }

    /// Has the payload of this message, the last whose header has arrived, go to a receive.
    fn expect<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>, header: Header, receive: Receive) {
        if header.length == 0 {
            parts.finish(receive.operation, &header, None);
            return self.expect_header(parts);
        }
        let is_posted = parts.post(PAYLOAD, buffer_of(&receive.places));
        self.expect_next(parts, is_posted, Next::Receive(header, receive));
    }

    /// The receive for a payload is posted, or is not because the connection has ended.
    fn expect_next<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>, is_posted: bool, next: Next) {
        self.next = Some(next);
        if is_posted {
            return self.expect_header(parts);
        }
        self.is_over = true;
        // It does not matter what the peer has announced.
        let _ = self.take_payload(parts, CompletionStatus::Flushed, 0);
    }

    /// Receives the payload of the last message, if that is held and there is room for it now.
    fn make_room<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>) {
        if !self.is_holding() {
            return;
        }
        let Some(last) = self.messages.back_mut() else { return };
        let cost = last.cost();
        if self.used + cost > ROOM {
            return;
        }
        let Some(buffer) = ReceiveBuffer::new(last.header.length) else { return };
        self.used += cost;
        if last.header.length == 0 {
            last.stage = Stage::Whole(buffer);
            return self.expect_header(parts);
        }
        let is_posted = parts.post(PAYLOAD, buffer_of(buffer.place().as_slice()));
        last.stage = Stage::Arriving(buffer);
        self.expect_next(parts, is_posted, Next::Message);
    }

    /// Takes a payload that has arrived.
    fn take_payload<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        status: CompletionStatus,
        length: usize,
    ) -> Result<(), Violation> {
        let (header, next) = match self.next.take() {
            None => return Ok(()),
            Some(Next::Message) => match self.messages.pop_back() {
                None => return Ok(()),
                Some(message) => (message.header, Err(message)),
            },
            Some(Next::Receive(header, receive)) => (header, Ok(Some(receive))),
            Some(Next::Nowhere(header)) => (header, Ok(None)),
        };
        let (failure, outcome) = match status {
            CompletionStatus::Success | CompletionStatus::Truncated if length == header.length as usize => {
                (None, Ok(()))
            }
            CompletionStatus::Success | CompletionStatus::Truncated => (
                Some(CompletionStatus::RemoteOperation),
                Err(Violation("a payload of another length than its header says")),
            ),
            failure => (Some(failure), Ok(())),
        };
        match next {
            Ok(receive) => {
                receive.inspect(|receive| parts.finish(receive.operation, &header, failure));
            }
            Err(message) => self.finish_message(parts, message, failure),
        }
        self.end_if_over(parts);
        outcome
    }

    /// A message that nobody had asked for is whole, or never will be.
    fn finish_message<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        message: Message,
        failure: Option<CompletionStatus>,
    ) {
        let cost = message.cost();
        match message {
            Message { header, fate: Fate::Taken(receive), stage: Stage::Arriving(buffer) } => {
                self.used -= cost;
                match failure {
                    None => parts.deliver(&receive, &header, buffer.bytes()),
                    Some(_) => parts.finish(receive.operation, &header, failure),
                }
            }
            Message {
                header,
                fate: fate @ (Fate::Open | Fate::Claimed(_)),
                stage: Stage::Arriving(buffer),
            } if failure.is_none() => {
                self.messages.push_back(Message { header, fate, stage: Stage::Whole(buffer) });
            }
            _ => self.used -= cost,
        }
    }

    /// Nothing more arrives: the receives without a message are cancelled.
    pub(super) fn end<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>) {
        self.is_over = true;
        if let Some(message) = self.messages.pop_back_if(|last| matches!(last.stage, Stage::Held))
            && message.header.length == 0
            && let Some(nothing) = ReceiveBuffer::new(0)
        {
            // It is whole.
            self.used += message.cost();
            self.messages.push_back(Message { stage: Stage::Whole(nothing), ..message });
        }
        for receive in std::mem::take(&mut self.receives) {
            parts.cancel(receive.operation);
        }
    }

    /// Takes a receive of the application. Returns it if there is no message for it and nothing more arrives.
    pub(super) fn post<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        receive: Receive,
    ) -> Result<(), Receive> {
        let takes = |message: &Message| matches!(message.fate, Fate::Open) && receive.takes(&message.header);
        match self.messages.iter().position(takes) {
            Some(at) => self.give(parts, at, receive),
            None if self.is_over || parts.link.phase == Phase::Over => return Err(receive),
            None => self.receives.push_back(receive),
        }
        Ok(())
    }

    /// Gives the message at this place to a receive.
    pub(super) fn give<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>, at: usize, receive: Receive) {
        let Some(message) = self.messages.get_mut(at) else { return };
        if let Stage::Arriving(_) = message.stage {
            message.fate = Fate::Taken(receive);
            return;
        }
        let Some(message) = self.messages.remove(at) else { return };
        match message.stage {
            Stage::Whole(ref buffer) => {
                parts.deliver(&receive, &message.header, buffer.bytes());
                self.used -= message.cost();
                self.make_room(parts);
            }
            _ => self.expect(parts, message.header, receive),
        }
    }

    /// Drops a message.
    fn discard<C: CompletionQueue>(&mut self, parts: &mut Parts<'_, C>, at: usize) {
        let Some(message) = self.messages.get_mut(at) else { return };
        if let Stage::Arriving(_) = message.stage {
            message.fate = Fate::Dropped;
            return;
        }
        let Some(message) = self.messages.remove(at) else { return };
        match message {
            Message { stage: Stage::Whole(_), .. } => {
                self.used -= message.cost();
                self.make_room(parts);
            }
            Message { header: Header { length: 0, .. }, .. } => self.expect_header(parts),
            Message { header, .. } => {
                let is_posted = parts.post(PAYLOAD, Buffer::Empty);
                self.expect_next(parts, is_posted, Next::Nowhere(header));
            }
        }
    }

    /// Reports the oldest message with such a tag, or that there is none (`FI_PEEK`). `flags` may claim or discard it.
    pub(super) fn peek<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        tags: Tags,
        context: UserContext,
        flags: u64,
    ) {
        let takes =
            |message: &Message| matches!(message.fate, Fate::Open) && takes(Some(tags), &message.header);
        let Some(at) = self.messages.iter().position(takes) else {
            return parts.report(operation::no_message(context, tags.tag));
        };
        let header = self.messages[at].header;
        parts.report_message(&header, context);
        if flags & constants::FI_DISCARD != 0 {
            self.discard(parts, at);
        } else if flags & constants::FI_CLAIM != 0 {
            self.messages[at].fate = Fate::Claimed(context);
        }
    }

    /// The place of the message that was claimed with this context.
    pub(super) fn claimed(&self, context: UserContext) -> Option<usize> {
        self.messages.iter().position(|message| matches!(message.fate, Fate::Claimed(by) if by == context))
    }

    /// Drops a claimed message, and reports that.
    pub(super) fn discard_claimed<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        at: usize,
        context: UserContext,
    ) {
        parts.report_message(&self.messages[at].header, context);
        self.discard(parts, at);
    }

    /// Cancels a receive with this context that has no message. Returns whether there was one.
    pub(super) fn cancel<C: CompletionQueue>(
        &mut self,
        parts: &mut Parts<'_, C>,
        context: UserContext,
    ) -> bool {
        let operations = &parts.link.operations;
        let has = |receive: &Receive| {
            operations.get(receive.operation).is_some_and(|operation| operation.context == context)
        };
        let Some(receive) = self.receives.iter().position(has).and_then(|at| self.receives.remove(at)) else {
            return false;
        };
        parts.cancel(receive.operation);
        true
    }
}

fn takes(tags: Option<Tags>, header: &Header) -> bool {
    match (tags, header.tag) {
        (None, None) => true,
        (Some(tags), Some(tag)) => tags.has(tag),
        _ => false,
    }
}

impl Receive {
    fn takes(&self, header: &Header) -> bool {
        takes(self.tags, header)
    }
}

impl Message {
    /// What it counts for, in bytes.
    fn cost(&self) -> usize {
        self.header.length as usize + OVERHEAD
    }
}
