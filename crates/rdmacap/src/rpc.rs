//! RPC-over-RDMA version 1 on top (RFC 8166): calls and replies whole, whatever way their parts took.
//!
//! [`Rpc`] is a [`Sink`]. A call's chunks name memory of the caller; what the responder reads from it and
//! writes into it belongs to the call or to its reply. A read chunk says where in the message it belongs. A
//! write chunk does not: its place is behind the last word of the reply that has its length, where XDR has
//! the length of opaque data, or else the end; [`Message::placed`] says which.

mod assemble;
mod header;

use std::collections::HashMap;

use self::assemble::{assemble_call, assemble_reply};
pub use self::header::Segment;
use self::header::{Header, Procedure};
use crate::Operation;
use crate::assemble::{Assembler, Content};
use crate::bytes::u32_at;
use crate::operation::{Access, Connection, Finding, Kind, Placement, Side, Sink, Topic};

/// TCP and RDMA port of NFS over RDMA.
const NFS_RDMA_PORT: u16 = 20049;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// There is none, or chunks say where they belong.
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
    /// A call was answered, or will not be.
    fn exchange(&mut self, exchange: &Exchange);

    /// An error of the transport.
    fn finding(&mut self, finding: &Finding) {
        let _ = finding;
    }
}

/// A segment of a call, and what came of it.
#[derive(Debug)]
struct Filling {
    segment: Segment,
    content: Content,
}

#[derive(Debug)]
struct Call {
    header: Header,
    inline: Content,
    inline_length: u64,
    frame: u64,
    time: u64,
    /// Read segments, then those of write chunks and of the reply chunk.
    fillings: Vec<Filling>,
    order: u64,
}

#[derive(Debug, Default)]
struct Transport {
    /// Sends that made no sense, until one did.
    trials: u32,
    known: bool,
    calls: HashMap<(Side, u32), Call>,
    /// Which calls' segments a key is in.
    keys: HashMap<u32, Vec<(Side, u32)>>,
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
    /// Bytes that may still be held of chunks.
    left: usize,
    calls: u64,
}

impl<S: RpcSink> Rpc<S> {
    /// Holds at most `memory` bytes of messages, and as many of chunks.
    pub fn new(sink: S, memory: usize) -> Self {
        Self { sink, transports: HashMap::new(), contents: Assembler::new(memory), left: memory, calls: 0 }
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

    fn call(&mut self, operation: &Operation, header: Header, content: Content) {
        let (id, name) = (operation.connection, (operation.from, header.xid));
        // The same number again: the earlier call was never answered.
        self.end(id, name, None);
        let Some(transport) = self.transports.get_mut(&id) else { return };
        if transport.calls.len() >= MOST_CALLS {
            let oldest = transport.calls.iter().min_by_key(|(_, call)| call.order).map(|(name, _)| *name);
            if let Some(oldest) = oldest {
                self.end(id, oldest, None);
            }
        }
        let Some(transport) = self.transports.get_mut(&id) else { return };
        let reads = header.reads.iter().map(|(_, segment)| *segment);
        let written = header.writes.iter().flatten().chain(header.reply.iter().flatten()).copied();
        let fillings: Vec<Filling> =
            reads.chain(written).map(|segment| Filling { segment, content: Content::default() }).collect();
        for filling in &fillings {
            let users = transport.keys.entry(filling.segment.handle).or_default();
            if !users.contains(&name) {
                users.push(name);
            }
        }
        self.calls += 1;
        let (frame, time) = (operation.frames.1, operation.time);
        let (inline_length, order) = (operation.length, self.calls);
        transport
            .calls
            .insert(name, Call { header, inline: content, inline_length, frame, time, fillings, order });
        let side = name.0 as usize;
        transport.outstanding[side] += 1;
        let outstanding = transport.outstanding[side];
        if let Some(granted) = transport.granted[side].filter(|granted| outstanding > *granted) {
            let text = format!("{} has {outstanding} calls outstanding, of {granted} granted", name.0);
            self.finding(id, frame, text);
        }
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
        let outstanding = &mut transport.outstanding[name.0 as usize];
        *outstanding = outstanding.saturating_sub(u32::from(call.is_some()));
        for filling in call.iter().flat_map(|call| &call.fillings) {
            self.left += filling.content.bytes.len();
            if let Some(users) = transport.keys.get_mut(&filling.segment.handle) {
                users.retain(|user| *user != name);
                if users.is_empty() {
                    transport.keys.remove(&filling.segment.handle);
                }
            }
        }
        let call = call.map(|call| assemble_call(&call));
        self.sink.exchange(&Exchange { connection, from: name.0, xid: name.1, call, reply });
    }

    fn finding(&mut self, connection: u32, frame: u64, text: String) {
        self.sink.finding(&Finding { topic: Topic::UpperLayer, connection: Some(connection), frame, text });
    }

    /// Bytes that the responder of a call moved from or into the caller's memory.
    fn moved(&mut self, placement: &Placement, bytes: &[u8]) {
        let Some((target, access)) = placement.memory else { return };
        let Some(transport) = self.transports.get_mut(&placement.connection) else { return };
        if !matches!(access, Access::Written | Access::Read) {
            return;
        }
        let caller = placement.from.other();
        let Transport { keys, calls, .. } = transport;
        for name in keys.get(&target.key).into_iter().flatten().filter(|name| name.0 == caller) {
            let Some(call) = calls.get_mut(name) else { continue };
            let reads = call.header.reads.len();
            for (at, filling) in call.fillings.iter_mut().enumerate() {
                if filling.segment.handle == target.key && (at < reads) == (access == Access::Read) {
                    fill(filling, target.address, bytes, &mut self.left);
                }
            }
        }
    }
}

/// Puts bytes at an address into a segment, as far as they are inside of it.
fn fill(filling: &mut Filling, address: u64, bytes: &[u8], left: &mut usize) {
    let Filling { segment, content } = filling;
    let Some(start) = address.checked_sub(segment.offset) else { return };
    let end = start.saturating_add(bytes.len() as u64);
    if end > u64::from(segment.length) {
        return;
    }
    let (from, to) = (start as usize, end as usize);
    let grows = to.saturating_sub(content.bytes.len());
    let Some(rest) = left.checked_sub(grows) else {
        content.dropped = true;
        return;
    };
    *left = rest;
    if grows > 0 {
        content.bytes.resize(to, 0);
    }
    content.bytes[from..to].copy_from_slice(bytes);
    content.there.insert(start, end);
}

impl<S: RpcSink> Sink for Rpc<S> {
    fn connection(&mut self, connection: &Connection) {
        let known = connection.service == Some(NFS_RDMA_PORT);
        self.transports.insert(connection.id, Transport { known, ..Transport::default() });
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
        let Some(transport) = self.transports.get(&connection) else { return };
        let mut rest: Vec<_> = transport.calls.iter().map(|(name, call)| (call.order, *name)).collect();
        rest.sort_unstable();
        for (_, name) in rest {
            self.end(connection, name, None);
        }
        self.transports.remove(&connection);
    }
}

/// What a call asks for (RFC 5531): program, version and procedure.
#[must_use]
pub fn procedure(call: &[u8]) -> Option<(u32, u32, u32)> {
    let is_call = u32_at(call, 4)? == 0 && u32_at(call, 8)? == 2;
    is_call.then_some((u32_at(call, 12)?, u32_at(call, 16)?, u32_at(call, 20)?))
}
