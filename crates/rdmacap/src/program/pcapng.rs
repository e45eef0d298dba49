//! RPC messages as a capture of RPC over TCP, for the tools that read that: a TCP connection for each one
//! of RDMA, with its hosts and times, and the frame that a message came from as a comment.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;

use rdmacap::rpc::Message;
use rdmacap::{Connection, Side};

/// Port of NFS over TCP, by which tools know RPC.
const SERVER_PORT: u16 = 2049;
/// Ports from which NFS clients call, from the highest on.
const CLIENT_PORT: u16 = 1023;
const CLIENT_PORTS: u32 = 512;
/// Longest payload of a segment.
const SEGMENT: usize = 32_768;
/// Longest fragment of an RPC record (RFC 5531 11).
const LONGEST_RECORD: usize = 0x7fff_ffff;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// A file that is being written. What is written is in the order of its times, as far as memory reaches.
pub(crate) struct Capture {
    file: BufWriter<File>,
    conversations: HashMap<u32, Conversation>,
    /// What was not written, by its time, and what came first of one time.
    waiting: BTreeMap<(u64, u64), Waiting>,
    count: u64,
    /// Bytes that wait, and the most that may.
    held: usize,
    most: usize,
}

/// A TCP connection.
struct Conversation {
    hosts: [IpAddr; 2],
    /// Port of the active side.
    port: u16,
    /// Sequence numbers that come next.
    next: [u32; 2],
    begun: bool,
    /// Time of its last message.
    last: u64,
}

struct Waiting {
    connection: u32,
    /// `None`: the connection ends.
    message: Option<(Side, u64, Vec<u8>)>,
}

/// What something takes that waits, beside its bytes.
const WAITING: usize = 128;

impl Capture {
    /// Begins a file; `memory`: for messages that wait for those before them.
    pub(crate) fn create(path: &Path, memory: usize) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        block(&mut file, 0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes(), &[1, 0, 0, 0], &[0xff; 8]])?;
        // Raw IP, with times in nanoseconds.
        block(&mut file, 1, &[&[101, 0, 0, 0, 0, 0, 0, 0], &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]])?;
        let (conversations, waiting) = (HashMap::new(), BTreeMap::new());
        Ok(Self { file, conversations, waiting, count: 0, held: 0, most: memory })
    }

    pub(crate) fn opened(&mut self, connection: &Connection) {
        let hosts = connection.ends.map(|end| end.host);
        let port = CLIENT_PORT - (connection.id % CLIENT_PORTS) as u16;
        let conversation = Conversation { hosts, port, next: [0; 2], begun: false, last: 0 };
        self.conversations.insert(connection.id, conversation);
    }

    pub(crate) fn message(&mut self, connection: u32, from: Side, message: &Message) -> io::Result<()> {
        let Some(conversation) = self.conversations.get_mut(&connection) else { return Ok(()) };
        conversation.last = conversation.last.max(message.time);
        let told = Some((from, message.frame, message.bytes.clone()));
        self.wait(message.time, Waiting { connection, message: told });
        while self.held > self.most {
            self.write_earliest()?;
        }
        Ok(())
    }

    pub(crate) fn closed(&mut self, connection: u32) {
        if let Some(conversation) = self.conversations.get(&connection) {
            self.wait(conversation.last, Waiting { connection, message: None });
        }
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            self.write_earliest()?;
        }
        self.file.flush()
    }

    fn wait(&mut self, time: u64, waiting: Waiting) {
        self.held += waiting.weight();
        self.count += 1;
        self.waiting.insert((time, self.count), waiting);
    }

    fn write_earliest(&mut self) -> io::Result<()> {
        let Some(((time, _), waiting)) = self.waiting.pop_first() else { return Ok(()) };
        self.held -= waiting.weight();
        let Waiting { connection, message } = waiting;
        let Some(conversation) = self.conversations.get_mut(&connection) else { return Ok(()) };
        let (packets, comment) = match &message {
            Some((from, frame, bytes)) => {
                (conversation.record(*from, bytes), format!("connection {connection}, frame {frame}"))
            }
            None => (conversation.end(), format!("connection {connection} ends")),
        };
        if message.is_none() {
            self.conversations.remove(&connection);
        }
        packets.iter().try_for_each(|packet| write_packet(&mut self.file, time, packet, &comment))
    }
}

impl Waiting {
    fn weight(&self) -> usize {
        WAITING + self.message.as_ref().map_or(0, |(_, _, bytes)| bytes.len())
    }
}

impl Conversation {
    /// A message as a record of RPC, with TCP's beginning in front of the first.
    fn record(&mut self, from: Side, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let begin = [(Side::A, SYN), (Side::B, SYN | ACK), (Side::A, ACK)];
            packets.extend(begin.map(|(from, flags)| self.segment(from, flags, &[])));
        }
        let mark = 0x8000_0000 | bytes.len().min(LONGEST_RECORD) as u32;
        let record = [&mark.to_be_bytes(), bytes].concat();
        packets.extend(record.chunks(SEGMENT).map(|chunk| self.segment(from, ACK | PUSH, chunk)));
        packets
    }

    /// TCP's end.
    fn end(&mut self) -> Vec<Vec<u8>> {
        let end = [(Side::A, ACK | FIN), (Side::B, ACK | FIN), (Side::A, ACK)];
        let begun = self.begun;
        let flags = end.into_iter().filter(|_| begun);
        flags.map(|(from, flags)| self.segment(from, flags, &[])).collect()
    }

    fn segment(&mut self, from: Side, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (here, there) = (from as usize, from.other() as usize);
        let ports = if from == Side::A { [self.port, SERVER_PORT] } else { [SERVER_PORT, self.port] };
        let mut tcp: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        tcp.extend(self.next[here].to_be_bytes());
        tcp.extend(if flags & ACK != 0 { self.next[there] } else { 0 }.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let takes = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.next[here] = self.next[here].wrapping_add(takes);
        ip(self.hosts[here], self.hosts[there], &mut tcp)
    }
}

/// A packet of IP around a TCP segment, both with their checksums.
fn ip(source: IpAddr, destination: IpAddr, tcp: &mut [u8]) -> Vec<u8> {
    let length = tcp.len() as u16;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let addresses = [source.octets(), destination.octets()].concat();
            checksum_tcp(&addresses, tcp);
            let mut header = vec![0x45, 0];
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            header.extend(addresses);
            let sum = checksum([&*header].into_iter());
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [&*header, tcp].concat()
        }
        _ => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let addresses = [octets(source), octets(destination)].concat();
            checksum_tcp(&addresses, tcp);
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([6, 64]);
            header.extend(addresses);
            [&*header, tcp].concat()
        }
    }
}

fn checksum_tcp(addresses: &[u8], tcp: &mut [u8]) {
    let pseudo = [[0, 6], (tcp.len() as u16).to_be_bytes()].concat();
    let sum = checksum([addresses, &pseudo, tcp].into_iter());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of IP, of parts of which each but the last is of even length.
fn checksum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u16 {
    let words = parts
        .flat_map(|part| part.chunks(2))
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn write_packet(file: &mut impl Write, time: u64, bytes: &[u8], comment: &str) -> io::Result<()> {
    let length = (bytes.len() as u32).to_le_bytes();
    let padding = |length: usize| &[0; 3][..length.wrapping_neg() % 4];
    let times = [0, (time >> 32) as u32, time as u32].map(u32::to_le_bytes);
    let option = [1_u16, comment.len() as u16].map(u16::to_le_bytes);
    let packet = [times.as_flattened(), &length, &length, bytes, padding(bytes.len())];
    let comment = [option.as_flattened(), comment.as_bytes(), padding(comment.len()), &[0; 4]];
    block(file, 6, &[&packet[..], &comment].concat())
}

fn block(file: &mut impl Write, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
    let length = (12 + parts.iter().map(|part| part.len()).sum::<usize>() as u32).to_le_bytes();
    file.write_all(&kind.to_le_bytes())?;
    file.write_all(&length)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.write_all(&length)
}
