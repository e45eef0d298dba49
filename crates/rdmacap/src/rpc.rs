//! RPC-over-RDMA version 1 on top (RFC 8166): calls and replies whole, whatever way their parts took.
//!
//! [`Rpc`] is a [`Sink`]. A call's chunks name memory of the caller; what the responder reads from it and
//! writes into it belongs to the call or to its reply. A read chunk says where in the message it belongs. A
//! write chunk does not: its place is behind the last word of the reply that has its length, where XDR has
//! the length of opaque data, or else the end; [`Message::placed`] says which.

use std::collections::{BTreeMap, HashMap};

use crate::Operation;
use crate::assemble::{Assembler, Content};
use crate::bytes::{u32_at, u64_at};
use crate::operation::{Access, Connection, Finding, Kind, Placement, Side, Sink, Topic};

/// TCP and RDMA port of NFS over RDMA.
const NFS_RDMA_PORT: u16 = 20049;
const VERSION: u32 = 1;
/// Sends that may be something else before a connection counts as not RPC's.
const TRIALS: u32 = 4;
/// Calls of a connection that wait for their replies.
const MOST_CALLS: usize = 1 << 12;
/// Segments of a header.
const MOST_SEGMENTS: usize = 1 << 10;

/// Part of a chunk: memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The key.
    pub handle: u32,
    /// Its length in bytes.
    pub length: u32,
    /// Its address.
    pub offset: u64,
}

/// What a header says the message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Procedure {
    /// The RPC message follows, as far as no chunk has it.
    Message,
    /// A chunk has all of it.
    NoMessage,
    Done,
    /// The header was refused: its version, or its chunks.
    Error(u32),
}

/// A transport header (RFC 8166 4).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    xid: u32,
    credits: u32,
    procedure: Procedure,
    /// Segments to read, with their positions.
    reads: Vec<(u32, Segment)>,
    writes: Vec<Vec<Segment>>,
    reply: Option<Vec<Segment>>,
    /// Bytes of the header.
    length: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut at = 0;
        let mut word = || {
            at += 4;
            u32_at(bytes, at - 4)
        };
        let (xid, version, credits, code) = (word()?, word()?, word()?, word()?);
        let procedure = match (version, code) {
            (VERSION, 0 | 2) => Procedure::Message,
            (VERSION, 1) => Procedure::NoMessage,
            (VERSION, 3) => Procedure::Done,
            (VERSION, 4) => Procedure::Error(word()?),
            _ => return None,
        };
        let mut header =
            Self { xid, credits, procedure, reads: Vec::new(), writes: Vec::new(), reply: None, length: 0 };
        if matches!(procedure, Procedure::Message | Procedure::NoMessage) {
            if code == 2 {
                // Alignment and threshold of a padded message.
                word()?;
                word()?;
            }
            header.lists(bytes, &mut at)?;
        }
        header.length = at;
        Some(header)
    }

    fn lists(&mut self, bytes: &[u8], at: &mut usize) -> Option<()> {
        let mut segments = 0;
        let mut flag = |at: &mut usize| {
            *at += 4;
            segments += 1;
            u32_at(bytes, *at - 4)
                .filter(|flag| *flag <= 1 && segments <= MOST_SEGMENTS)
                .map(|flag| flag == 1)
        };
        let segment = |at: &mut usize| {
            let found = Segment {
                handle: u32_at(bytes, *at)?,
                length: u32_at(bytes, *at + 4)?,
                offset: u64_at(bytes, *at + 8)?,
            };
            *at += 16;
            Some(found)
        };
        let chunk = |at: &mut usize| {
            let count = u32_at(bytes, *at)? as usize;
            *at += 4;
            (count <= MOST_SEGMENTS).then_some(())?;
            (0..count).map(|_| segment(at)).collect::<Option<Vec<Segment>>>()
        };
        while flag(at)? {
            let position = u32_at(bytes, *at)?;
            *at += 4;
            self.reads.push((position, segment(at)?));
        }
        while flag(at)? {
            self.writes.push(chunk(at)?);
        }
        if flag(at)? {
            self.reply = Some(chunk(at)?);
        }
        Some(())
    }
}

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
        let header = Header::parse(start).filter(|header| plausible(header, start, transport.known));
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

/// Whether a header may be one: on a connection that is known for it, or because the message behind it
/// agrees.
fn plausible(header: &Header, bytes: &[u8], known: bool) -> bool {
    let inline = bytes.get(header.length..).unwrap_or(&[]);
    match header.procedure {
        Procedure::Message => {
            u32_at(inline, 0) == Some(header.xid) && u32_at(inline, 4).is_some_and(|direction| direction <= 1)
        }
        Procedure::NoMessage => inline.is_empty() && (!header.reads.is_empty() || header.reply.is_some()),
        Procedure::Done | Procedure::Error(_) => known,
    }
}

/// The bytes of segments, as many as were used of each.
fn gather<'a>(fillings: impl Iterator<Item = (&'a Filling, u32)>) -> (Vec<u8>, bool) {
    let (mut bytes, mut incomplete) = (Vec::new(), false);
    for (filling, used) in fillings {
        let (start, used) = (bytes.len(), used as usize);
        let content = &filling.content;
        let there = &content.bytes[..content.bytes.len().min(used)];
        incomplete |= !content.is_whole(used as u64);
        bytes.extend_from_slice(there);
        if content.is_whole(used as u64) {
            bytes.resize(start + used, 0);
        }
    }
    (bytes, incomplete)
}

/// Zeros up to a multiple of four, which XDR has and chunks leave out.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn assemble_call(call: &Call) -> Message {
    let inline = call.inline.bytes.get(call.header.length..).unwrap_or(&[]);
    let mut incomplete = !call.inline.is_whole(call.inline_length);
    let mut positions: BTreeMap<u32, Vec<&Filling>> = BTreeMap::new();
    for ((position, _), filling) in call.header.reads.iter().zip(&call.fillings) {
        positions.entry(*position).or_default().push(filling);
    }
    let (mut bytes, mut taken, mut by_chunks) = (Vec::new(), 0, 0);
    for (position, fillings) in positions {
        // Positions count in the message as it was before chunks were taken out.
        let before = (position as usize).saturating_sub(bytes.len()).min(inline.len() - taken);
        bytes.extend_from_slice(&inline[taken..taken + before]);
        taken += before;
        let (chunk, lacks) = gather(fillings.into_iter().map(|filling| (filling, filling.segment.length)));
        incomplete |= lacks;
        by_chunks += chunk.len() as u64;
        bytes.extend(chunk);
        if position > 0 {
            pad(&mut bytes);
        }
    }
    bytes.extend_from_slice(&inline[taken..]);
    let &Call { frame, time, .. } = call;
    Message { bytes, incomplete, frame, time, by_chunks, placed: Placed::Exactly }
}

fn assemble_reply(operation: &Operation, header: &Header, content: &Content, call: Option<&Call>) -> Message {
    let inline = content.bytes.get(header.length..).unwrap_or(&[]);
    let mut message = Message {
        bytes: inline.to_vec(),
        incomplete: !content.is_whole(operation.length),
        frame: operation.frames.1,
        time: operation.time,
        by_chunks: 0,
        placed: Placed::Exactly,
    };
    let used: Vec<&Segment> = header.writes.iter().flatten().chain(header.reply.iter().flatten()).collect();
    let Some(call) = call else {
        message.incomplete |= used.iter().any(|segment| segment.length > 0);
        return message;
    };
    // The reply repeats the call's chunks, with the lengths that were used.
    let mut fillings = call.fillings[call.header.reads.len()..].iter();
    for chunk in &header.writes {
        let (bytes, lacks) = gather(fillings.by_ref().zip(chunk.iter().map(|segment| segment.length)));
        message.incomplete |= lacks;
        message.by_chunks += bytes.len() as u64;
        if !bytes.is_empty() {
            place_chunk(&mut message, bytes);
        }
    }
    let skipped: usize = call.header.writes.iter().skip(header.writes.len()).map(Vec::len).sum();
    if let Some(chunk) = &header.reply {
        let fillings = fillings.skip(skipped).zip(chunk.iter().map(|segment| segment.length));
        let (bytes, lacks) = gather(fillings);
        message.incomplete |= lacks;
        if header.procedure == Procedure::NoMessage {
            message.by_chunks += bytes.len() as u64;
            message.bytes = bytes;
        }
    }
    message
}

/// Puts the data of a write chunk where XDR most probably has it.
fn place_chunk(message: &mut Message, mut chunk: Vec<u8>) {
    let length = chunk.len() as u32;
    let behind = message.bytes.chunks_exact(4).rposition(|word| u32_at(word, 0) == Some(length));
    pad(&mut chunk);
    let (at, placed) = match behind {
        Some(word) => (word * 4 + 4, Placed::BehindLength),
        None => (message.bytes.len(), Placed::AtEnd),
    };
    message.bytes.splice(at..at, chunk);
    if message.placed != Placed::AtEnd {
        message.placed = placed;
    }
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
