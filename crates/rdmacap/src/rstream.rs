//! rstream on top: the two byte streams of a connection, and what breaks `docs/protocol.md`.
//!
//! [`Streams`] is a [`Sink`] that follows the connections whose handshake carries the connection data of
//! both sides. After a loss it goes on by the addresses of the writes, and judges no more what
//! the sides may do.

use std::collections::{HashMap, VecDeque};

use rstream_protocol::{Control, Features, Offer, Violation, Word, WordFormat, negotiate};

use crate::Operation;
use crate::assemble::{Assembler, Content};
use crate::context::Budget;
use crate::finding::{Finding, Topic};
use crate::operation::{Carrier, Connection, Kind, Outcome, Placement, Side, Sink};

/// What a connection of rstream agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// How words travel.
    pub words: WordFormat,
    /// Features that both sides named.
    pub features: Features,
    /// Bytes of each side's receive ring.
    pub rings: [u32; 2],
    /// Receives that each side posted.
    pub receives: [u16; 2],
}

/// What a direction said, once a word of it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// Bytes of data so far, holes included.
    pub bytes: u64,
    /// Data messages.
    pub messages: u64,
    /// Control messages.
    pub updates: u64,
    /// It said that it will write no more.
    pub end: bool,
    /// It said that it has closed.
    pub close: bool,
}

/// Takes what [`Streams`] finds. Every method does nothing by default.
pub trait StreamSink {
    /// Both sides' connection data was seen.
    fn opened(&mut self, connection: u32, agreed: &Agreed) {
        let _ = (connection, agreed);
    }

    /// Bytes that a side sent, from this offset of its stream on.
    fn data(&mut self, connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        let _ = (connection, from, offset, bytes);
    }

    /// Bytes that a side sent, and that the capture does not have.
    fn hole(&mut self, connection: u32, from: Side, offset: u64, length: u64) {
        let _ = (connection, from, offset, length);
    }

    /// A side's stream has gone on.
    fn told(&mut self, connection: u32, from: Side, told: &Told) {
        let _ = (connection, from, told);
    }

    /// A breach of the protocol.
    fn finding(&mut self, finding: &Finding) {
        let _ = finding;
    }
}

/// Follows the streams of a capture.
#[derive(Debug)]
pub struct Streams<S> {
    /// Who is told.
    pub sink: S,
    links: HashMap<u32, Link>,
    contents: Assembler,
}

/// Writes of a direction that wait for their words, and what each takes beside its bytes.
const MOST_WRITES: usize = 16;
const WRITE: usize = 128;

#[derive(Debug)]
struct Link {
    agreed: Agreed,
    /// Where each side's ring is.
    rings: [u64; 2],
    ways: [Way; 2],
    /// Packets are missing, or the protocol was broken: what the sides may do is not known.
    uncertain: bool,
    /// Packets are missing.
    lossy: bool,
    /// The first breach. That packets are missing may only show later, and would explain it.
    breach: Option<Finding>,
}

/// One direction: from a side into the other's ring.
#[derive(Debug, Default)]
struct Way {
    told: Told,
    /// Bytes that the other side freed, of those of `told`.
    freed: u64,
    /// Messages of all kinds, and receives returned for them.
    used: u64,
    returned: u64,
    /// Writes whose word has not come.
    writes: VecDeque<Write>,
}

#[derive(Debug)]
struct Write {
    address: u64,
    length: u64,
    content: Content,
}

impl<S: StreamSink> Streams<S> {
    /// Holds at most `memory` bytes of messages that are not whole.
    pub fn new(sink: S, memory: usize) -> Self {
        Self { sink, links: HashMap::new(), contents: Assembler::new(memory) }
    }

    fn open(&mut self, connection: &Connection) -> Option<()> {
        let [Some(request), Some(reply)] = &connection.private_data else { return None };
        let offers = [Offer::decode(request).ok()?, Offer::decode(reply).ok()?];
        let base = match connection.carrier {
            Carrier::Iwarp => WordFormat::Iwarp,
            Carrier::InfiniBand(_) => WordFormat::Immediate,
        };
        let named = offers[0].extension.map_or(Features::empty(), |extension| extension.features);
        let (words, features) = negotiate(named, &offers[1], base, false);
        let agreed = Agreed {
            words,
            features,
            rings: offers.map(|offer| offer.ring_size),
            receives: offers.map(|offer| offer.receives),
        };
        let rings = offers.map(|offer| offer.ring_address);
        let link =
            Link { agreed, rings, ways: Default::default(), uncertain: false, lossy: false, breach: None };
        self.links.insert(connection.id, link);
        self.sink.opened(connection.id, &agreed);
        if features.contains(Features::SHARED_MEMORY) {
            let text = "the sides agreed to share memory: after their first messages their bytes are not on the wire".to_owned();
            let (connection, frame) = (Some(connection.id), connection.frame);
            self.sink.finding(&Finding { topic: Topic::Partial, connection, frame, text });
        }
        Some(())
    }

    fn take(&mut self, operation: &Operation) {
        let content = self.contents.take(operation.id);
        let Some(link) = self.links.get_mut(&operation.connection) else { return };
        let whole = operation.missing.is_empty() && operation.cut == 0;
        link.lossy |= !whole || operation.outcome == Outcome::Incomplete;
        link.uncertain |= link.lossy;
        let Self { sink, contents, .. } = self;
        let (connection, from, budget) = (operation.connection, operation.from, contents.budget());
        let mut out = Out { sink, connection, from, budget };
        if let Err(violation) = link.message(operation, content, &mut out) {
            link.uncertain = true;
            link.breach.get_or_insert_with(|| Finding {
                topic: Topic::UpperLayer,
                connection: Some(connection),
                frame: operation.frames.1,
                text: format!("{from} breaks the protocol of rstream: {violation}"),
            });
        }
    }
}

/// The way out, for one message.
struct Out<'s, S> {
    sink: &'s mut S,
    connection: u32,
    from: Side,
    budget: &'s Budget,
}

impl Way {
    /// Keeps a write until its word comes.
    fn keep(&mut self, mut write: Write, budget: &Budget) {
        if self.writes.len() == MOST_WRITES {
            self.next_write(budget);
        }
        if !budget.take(WRITE + write.content.bytes.len()) {
            write.content = Content::default();
            budget.owe(WRITE);
        }
        self.writes.push_back(write);
    }

    /// The write that waits for longest.
    fn next_write(&mut self, budget: &Budget) -> Option<Write> {
        let write = self.writes.pop_front()?;
        budget.give(WRITE + write.content.bytes.len());
        Some(write)
    }
}

impl Link {
    /// A message of either form.
    fn message<S: StreamSink>(
        &mut self,
        operation: &Operation,
        content: Content,
        out: &mut Out<'_, S>,
    ) -> Result<(), Violation> {
        let endings = self.agreed.features.contains(Features::END_OF_STREAM);
        let from = operation.from;
        let address = operation.target.map(|target| target.address);
        let length = operation.length;
        // A word has 32 bits, of which iWARP's immediate data has them in its lower half.
        let word = operation.immediate.map(|immediate| immediate as u32);
        match (self.agreed.words, operation.kind, word) {
            (WordFormat::Iwarp, Kind::Write, None) => {
                if length > 0 {
                    let write = Write { address: address.unwrap_or(0), length, content };
                    self.ways[from.index()].keep(write, out.budget);
                }
                Ok(())
            }
            (WordFormat::Iwarp, Kind::Send, None) => {
                self.use_receive(from)?;
                let Some(word) = content.start().first_chunk().map(|word| u32::from_le_bytes(*word)) else {
                    return Ok(());
                };
                match Word::decode(word, endings)? {
                    Word::Data { length: said } if length > 4 => {
                        if u64::from(said) != length - 4
                            || !self.agreed.features.contains(Features::SHORT_DATA)
                        {
                            let length = u32::try_from(length - 4).unwrap_or(u32::MAX);
                            return Err(Violation::NotItsData { word, length });
                        }
                        let bytes = content.start().get(4..).unwrap_or(&[]);
                        self.data(from, None, said.into(), bytes, bytes.len() as u64, out)
                    }
                    Word::Data { length } => {
                        let write = self.ways[from.index()].next_write(out.budget);
                        let write = write.filter(|write| write.length == u64::from(length));
                        if write.is_none() && !self.uncertain {
                            return Err(Violation::NotItsData { word, length: 0 });
                        }
                        let (address, content) = write.map(|write| (write.address, write.content)).unzip();
                        let content = content.unwrap_or_default();
                        let there = content.start();
                        self.data(from, address, length.into(), there, there.len() as u64, out)
                    }
                    Word::Control(_) if length > 4 => {
                        Err(Violation::NotItsData { word, length: (length - 4) as u32 })
                    }
                    Word::Control(control) => self.control(from, control, word, out),
                }
            }
            (WordFormat::Immediate, Kind::Write, Some(0)) => {
                self.use_receive(from)?;
                let there = content.start();
                self.data(from, address, length, there, there.len() as u64, out)
            }
            (WordFormat::Immediate, Kind::Write, Some(word)) => {
                Err(Violation::UnknownBits { word, unknown: word })
            }
            (WordFormat::Immediate, Kind::Immediate | Kind::Send, Some(word)) => {
                self.use_receive(from)?;
                self.control(from, Control::decode(word, endings)?, word, out)
            }
            // The empty write that opens a connection.
            (WordFormat::Immediate, Kind::Write, None) if length == 0 => Ok(()),
            (_, Kind::Read, _) => Ok(()),
            (_, _, word) if !self.uncertain => Err(Violation::WrongForm { word: word.unwrap_or(0) }),
            _ => Ok(()),
        }
    }

    /// A message takes a receive of the other side.
    fn use_receive(&mut self, from: Side) -> Result<(), Violation> {
        let posted = self.agreed.receives[from.other().index()];
        let way = &mut self.ways[from.index()];
        way.used += 1;
        if !self.uncertain && way.used - way.returned > u64::from(posted) {
            return Err(Violation::NoReceive { posted });
        }
        Ok(())
    }

    fn data<S: StreamSink>(
        &mut self,
        from: Side,
        address: Option<u64>,
        length: u64,
        bytes: &[u8],
        there: u64,
        out: &mut Out<'_, S>,
    ) -> Result<(), Violation> {
        let ring = self.agreed.rings[from.other().index()];
        let place = self.rings[from.other().index()];
        let uncertain = self.uncertain;
        let way = &mut self.ways[from.index()];
        let size = u64::from(ring);
        let index = way.told.bytes % size;
        let said = u32::try_from(length).unwrap_or(u32::MAX);
        let window = size.saturating_sub(way.told.bytes - way.freed.min(way.told.bytes));
        if !uncertain {
            if length == 0 {
                return Err(Violation::EmptyData);
            }
            if way.told.end || way.told.close {
                return Err(Violation::DataAfterEnd { length: said });
            }
            if length > window {
                return Err(Violation::BeyondWindow { length: said, window: window as u32 });
            }
            if length > size - index {
                return Err(Violation::OverWrap { length: said, index: index as u32, ring });
            }
        }
        // The address says where it belongs, whatever is missing before it.
        let found = address.map(|address| address.wrapping_sub(place)).filter(|found| *found < size);
        if let Some(skipped) = found.map(|found| (found + size - index) % size).filter(|skipped| *skipped > 0)
        {
            out.sink.hole(out.connection, from, way.told.bytes, skipped);
            way.told.bytes += skipped;
            self.uncertain = true;
        }
        if !bytes.is_empty() {
            out.sink.data(out.connection, from, way.told.bytes, bytes);
        }
        if there < length {
            out.sink.hole(out.connection, from, way.told.bytes + there, length - there);
        }
        way.told.bytes += length;
        way.told.messages += 1;
        out.sink.told(out.connection, out.from, &way.told);
        Ok(())
    }

    fn control<S: StreamSink>(
        &mut self,
        from: Side,
        control: Control,
        word: u32,
        out: &mut Out<'_, S>,
    ) -> Result<(), Violation> {
        let other = &mut self.ways[from.other().index()];
        let outstanding = other.told.bytes.saturating_sub(other.freed);
        let receives = other.used.saturating_sub(other.returned);
        if !self.uncertain {
            if u64::from(control.bytes) > outstanding {
                let outstanding = outstanding as u32;
                return Err(Violation::ExcessBytes { freed: control.bytes, outstanding });
            }
            if u64::from(control.receives) > receives {
                let outstanding = receives as u16;
                return Err(Violation::ExcessReceives { freed: control.receives, outstanding });
            }
        }
        other.freed += u64::from(control.bytes);
        other.returned += u64::from(control.receives);
        let told = &mut self.ways[from.index()].told;
        if told.close || (told.end && control.end) {
            return Err(Violation::EndedTwice { word });
        }
        told.updates += 1;
        told.end |= control.end;
        told.close |= control.close;
        out.sink.told(out.connection, out.from, told);
        Ok(())
    }
}

impl<S: StreamSink> Sink for Streams<S> {
    fn connection(&mut self, connection: &Connection) {
        self.open(connection);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if self.links.contains_key(&placement.connection) {
            self.contents.bytes(placement, bytes);
        }
    }

    fn sent(&mut self, operation: &Operation) {
        self.take(operation);
    }

    fn ended(&mut self, operation: &Operation) {
        // Bytes that came after the operation was reported as sent.
        self.contents.take(operation.id);
    }

    fn finding(&mut self, finding: &Finding) {
        if matches!(finding.topic, Topic::CaptureLoss | Topic::GaveUp | Topic::Checksum)
            && let Some(link) = finding.connection.and_then(|connection| self.links.get_mut(&connection))
        {
            (link.lossy, link.uncertain) = (true, true);
        }
    }

    fn closed(&mut self, connection: u32) {
        let Some(mut link) = self.links.remove(&connection) else { return };
        for way in &mut link.ways {
            while way.next_write(self.contents.budget()).is_some() {}
        }
        if let Some(breach) = link.breach.filter(|_| !link.lossy) {
            self.sink.finding(&breach);
        }
    }
}
