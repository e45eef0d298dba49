//! RPC-over-RDMA version 1 on top (RFC 8166): calls and replies whole, whatever way their parts took.
//!
//! [`Rpc`] is a [`Sink`]. A call's chunks name memory of the caller; what the responder reads from it and
//! writes into it belongs to the call or to its reply. A read chunk says where in the message it belongs. A
//! write chunk does not: NFS has its place behind the length of what was read; for other programs it is
//! behind the last word of the reply that has its length, where XDR has the length of opaque data, or else
//! the end. [`Message::placed`] says which.
//!
//! Either side may call (RFC 8167). Private data (RFC 8797) says how long sends may be, and whether they may
//! invalidate keys.

mod assemble;
mod call;
pub(crate) mod header;
mod nfs;
mod parameters;

use std::collections::{BTreeMap, HashMap};

use self::assemble::{assemble_call, assemble_reply};
use self::call::Call;
pub use self::header::Segment;
use self::header::{Header, Procedure};
pub use self::parameters::Parameters;
use crate::Operation;
use crate::assemble::{Assembler, Content};
use crate::bytes::u32_at;
use crate::finding::{Finding, Topic};
use crate::operation::{Access, Connection, Kind, Placement, Side, Sink};

/// TCP and RDMA port of NFS over RDMA.
pub const NFS_RDMA_PORT: u16 = 20049;
/// Sends that may be something else before a connection counts as not RPC's.
const TRIALS: u32 = 4;
/// Calls of a connection that wait for their replies.
const MOST_CALLS: usize = 1 << 12;

/// A whole RPC message, or what there is of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message, with zeros where bytes are missing.
    pub bytes: Vec<u8>,
    /// Whether bytes are missing.
    pub incomplete: bool,
    /// The frame that carries its transport header.
    pub frame: u64,
    /// Its time, in nanoseconds since the epoch.
    pub time: u64,
    /// Bytes that came by chunks.
    pub by_chunks: u64,
    /// How the place of write chunks was found.
    pub placed: Placed,
}

/// How the place of write chunks in a reply was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placed {
    /// There is none, or the protocol says where it is.
    Exactly,
    /// Behind a word that has the chunk's length.
    BehindLength,
    /// At the end, for want of such a word.
    AtEnd,
}

/// A call and its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The connection.
    pub connection: u32,
    /// Who called.
    pub from: Side,
    /// The transaction's number.
    pub xid: u32,
    /// The call; `None`: it is not in the capture.
    pub call: Option<Message>,
    /// The reply; `None`: it is not in the capture.
    pub reply: Option<Message>,
}

/// Takes what [`Rpc`] finds.
pub trait RpcSink {
    /// A connection, which may carry RPC.
    fn connection(&mut self, connection: &Connection) {
        let _ = connection;
    }

    /// A call was answered, or will not be.
    fn exchange(&mut self, exchange: &Exchange);

    /// An error of the transport.
    fn finding(&mut self, finding: &Finding) {
        let _ = finding;
    }

    /// A connection is over, and all of its exchanges were reported.
    fn closed(&mut self, connection: u32) {
        let _ = connection;
    }
}

/// Memory of a caller: the caller, the key, whether it is read, and the address.
type Place = (Side, u32, bool, u64);

#[derive(Debug, Default)]
struct Transport {
    /// Sends that made no sense, until one did.
    trials: u32,
    known: bool,
    calls: HashMap<(Side, u32), Call>,
    /// Which call has memory from this place on in a segment, and in which.
    places: BTreeMap<Place, ((Side, u32), usize)>,
    /// What each side says of itself.
    parameters: [Option<Parameters>; 2],
    /// Calls that each side may have outstanding, as the other granted.
    granted: [Option<u32>; 2],
    outstanding: [u32; 2],
}

/// Follows the calls of a capture.
#[derive(Debug)]
pub struct Rpc<S> {
    /// Who is told.
    pub sink: S,
    transports: HashMap<u32, Transport>,
    contents: Assembler,
    calls: u64,
}

impl<S: RpcSink> Rpc<S> {
    /// Holds at most `memory` bytes of messages and chunks.
    pub fn new(sink: S, memory: usize) -> Self {
        Self { sink, transports: HashMap::new(), contents: Assembler::new(memory), calls: 0 }
    }

    fn send(&mut self, operation: &Operation, content: Content) {
        let (id, from) = (operation.connection, operation.from);
        let Some(transport) = self.transports.get_mut(&id) else { return };
        let start = content.start();
        let header = Header::parse(start).filter(|header| header.is_plausible(start, transport.known));
        let Some(header) = header else {
            transport.trials += 1;
            if !transport.known && transport.trials > TRIALS {
                self.transports.remove(&id);
            }
            return;
        };
        transport.known = true;
        let inline = start.get(header.length..).unwrap_or(&[]);
        let direction = u32_at(inline, 4).filter(|_| header.procedure == Procedure::Message);
        let is_call = match (direction, header.procedure) {
            (Some(direction), _) => direction == 0,
            (None, Procedure::NoMessage) => header.reads.iter().any(|(position, _)| *position == 0),
            _ => false,
        };
        self.check(operation, &header);
        match header.procedure {
            Procedure::Message | Procedure::NoMessage if is_call => self.call(operation, header, content),
            Procedure::Message | Procedure::NoMessage => self.reply(operation, &header, &content),
            Procedure::Done => {}
            Procedure::Error(code) => {
                let what = if code == 1 { "its version" } else { "its chunks" };
                let text =
                    format!("{from} refused the RPC-over-RDMA header of call {:#x}: {what}", header.xid);
                self.finding(id, operation.frames.1, text);
                self.end(id, (from.other(), header.xid), None);
            }
        }
    }

    /// Whether a send keeps to what both sides said of themselves.
    fn check(&mut self, operation: &Operation, header: &Header) {
        let (id, from, to) = (operation.connection, operation.from, operation.from.other());
        let Some(transport) = self.transports.get(&id) else { return };
        let of = |side: Side| transport.parameters[side as usize];
        let limit = of(from).zip(of(to)).map(|(from, to)| from.sends.min(to.receives));
        let mut texts = Vec::new();
        if let Some(limit) = limit.filter(|limit| operation.length > u64::from(*limit)) {
            texts.push(format!("{from} sent {} bytes inline, of {limit} agreed", operation.length));
        }
        if let Some(key) = operation.invalidate {
            if of(to).is_some_and(|parameters| !parameters.invalidation) {
                texts.push(format!("{from} invalidated key {key:#x}, which {to} does not support"));
            }
            let call = transport.calls.get(&(to, header.xid));
            let names = |call: &Call| call.fillings.iter().any(|filling| filling.segment.handle == key);
            if call.is_some_and(|call| !names(call)) {
                texts.push(format!(
                    "{from} invalidated key {key:#x}, which call {:#x} does not name",
                    header.xid
                ));
            }
        }
        for text in texts {
            self.finding(id, operation.frames.1, text);
        }
    }

    fn call(&mut self, operation: &Operation, header: Header, content: Content) {
        let (id, name) = (operation.connection, (operation.from, header.xid));
        // The same number again: the earlier call was never answered.
        self.end(id, name, None);
        self.calls += 1;
        let (mut call, takes) = Call::new(header, content, operation.length, self.calls);
        (call.frame, call.time) = (operation.frames.1, operation.time);
        while self.transports.get(&id).is_some_and(|transport| transport.calls.len() >= MOST_CALLS)
            || !self.contents.budget().take(takes)
        {
            if !self.end_oldest(id) {
                // Other connections have the whole bound.
                self.sink.exchange(&exchange(id, name, Some(&call), None));
                return;
            }
        }
        let Some(transport) = self.transports.get_mut(&id) else { return };
        let reads = call.header.reads.len();
        for (at, filling) in call.fillings.iter().enumerate() {
            let place = (name.0, filling.segment.handle, at < reads, filling.segment.offset);
            if filling.segment.length > 0 {
                transport.places.insert(place, (name, at));
            }
        }
        let frame = call.frame;
        transport.calls.insert(name, call);
        let side = name.0 as usize;
        transport.outstanding[side] += 1;
        let outstanding = transport.outstanding[side];
        if let Some(granted) = transport.granted[side].filter(|granted| outstanding > *granted) {
            let text = format!("{} has {outstanding} calls outstanding, of {granted} granted", name.0);
            self.finding(id, frame, text);
        }
    }

    /// Gives up the call of a connection that waits for longest.
    fn end_oldest(&mut self, connection: u32) -> bool {
        let calls = self.transports.get(&connection).map(|transport| &transport.calls);
        let oldest = calls.into_iter().flatten().min_by_key(|(_, call)| call.order).map(|(name, _)| *name);
        if let Some(oldest) = oldest {
            self.end(connection, oldest, None);
        }
        oldest.is_some()
    }

    fn reply(&mut self, operation: &Operation, header: &Header, content: &Content) {
        let id = operation.connection;
        let caller = operation.from.other();
        let Some(transport) = self.transports.get_mut(&id) else { return };
        transport.granted[caller as usize] = Some(header.credits);
        let call = transport.calls.get(&(caller, header.xid));
        let reply = assemble_reply(operation, header, content, call);
        self.end(id, (caller, header.xid), Some(reply));
    }

    /// Reports an exchange, whose call is forgotten.
    fn end(&mut self, connection: u32, name: (Side, u32), reply: Option<Message>) {
        let Some(transport) = self.transports.get_mut(&connection) else { return };
        let call = transport.calls.remove(&name);
        if call.is_none() && reply.is_none() {
            return;
        }
        if let Some(call) = &call {
            let outstanding = &mut transport.outstanding[name.0 as usize];
            *outstanding = outstanding.saturating_sub(1);
            let reads = call.header.reads.len();
            for (at, filling) in call.fillings.iter().enumerate() {
                let place = (name.0, filling.segment.handle, at < reads, filling.segment.offset);
                if transport.places.get(&place) == Some(&(name, at)) {
                    transport.places.remove(&place);
                }
            }
            call.release(self.contents.budget());
        }
        self.sink.exchange(&exchange(connection, name, call.as_ref(), reply));
    }

    fn finding(&mut self, connection: u32, frame: u64, text: String) {
        self.sink.finding(&Finding { topic: Topic::UpperLayer, connection: Some(connection), frame, text });
    }

    /// Bytes that the responder of a call moved from or into the caller's memory.
    fn moved(&mut self, placement: &Placement, bytes: &[u8]) {
        let Some((target, access)) = placement.memory else { return };
        let Some(transport) = self.transports.get_mut(&placement.connection) else { return };
        let read = match access {
            Access::Read => true,
            Access::Written => false,
            Access::Filled | Access::Found => return,
        };
        let caller = placement.from.other();
        let name = |address| (caller, target.key, read, address);
        let found = transport.places.range(name(0)..=name(target.address)).next_back();
        let Some(((.., start), (call, at))) = found else { return };
        let filling = transport.calls.get_mut(call).and_then(|call| call.fillings.get_mut(*at));
        let offset = target.address - start;
        let fits = |length: u32| offset.saturating_add(bytes.len() as u64) <= u64::from(length);
        if let Some(filling) = filling.filter(|filling| fits(filling.segment.length)) {
            filling.content.put(offset, bytes, self.contents.budget());
        }
    }
}

fn exchange(
    connection: u32,
    (from, xid): (Side, u32),
    call: Option<&Call>,
    reply: Option<Message>,
) -> Exchange {
    Exchange { connection, from, xid, call: call.map(assemble_call), reply }
}

impl<S: RpcSink> Sink for Rpc<S> {
    fn connection(&mut self, connection: &Connection) {
        self.sink.connection(connection);
        let parameters = connection.private_data.each_ref().map(|data| Parameters::parse(data.as_deref()?));
        let known = connection.service == Some(NFS_RDMA_PORT) || parameters.iter().any(Option::is_some);
        self.transports.insert(connection.id, Transport { known, parameters, ..Transport::default() });
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if placement.memory.is_some() {
            self.moved(placement, bytes);
        } else if self.transports.contains_key(&placement.connection) {
            self.contents.bytes(placement, bytes);
        }
    }

    fn sent(&mut self, operation: &Operation) {
        let content = self.contents.take(operation.id);
        if operation.kind == Kind::Send && operation.length > 0 {
            self.send(operation, content);
        }
    }

    fn ended(&mut self, operation: &Operation) {
        self.contents.take(operation.id);
    }

    fn closed(&mut self, connection: u32) {
        let calls = self.transports.get(&connection).map(|transport| &transport.calls);
        let mut rest: Vec<_> = calls.into_iter().flatten().map(|(name, call)| (call.order, *name)).collect();
        rest.sort_unstable();
        for (_, name) in rest {
            self.end(connection, name, None);
        }
        self.transports.remove(&connection);
        self.sink.closed(connection);
    }
}

/// What a call asks for (RFC 5531): program, version and procedure.
#[must_use]
pub fn procedure(call: &[u8]) -> Option<(u32, u32, u32)> {
    let is_call = u32_at(call, 4)? == 0 && u32_at(call, 8)? == 2;
    is_call.then_some((u32_at(call, 12)?, u32_at(call, 16)?, u32_at(call, 20)?))
}
