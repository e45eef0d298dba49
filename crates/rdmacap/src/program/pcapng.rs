//! RPC messages as a capture of RPC over TCP, for the tools that read that: a TCP connection for each one
//! of RDMA, with its hosts and times, and the frames that a message came from as a comment.

use std::net::IpAddr;

use rdmacap::rpc::Message;
use rdmacap::{Connection, Side};

/// Port of NFS over TCP, by which tools know RPC.
const SERVER_PORT: u16 = 2049;
/// A port from which NFS clients call.
const CLIENT_PORT: u16 = 700;
/// Longest payload of a segment.
const SEGMENT: usize = 32_768;
/// Longest fragment of an RPC record (RFC 5531 11).
const LONGEST_RECORD: usize = 0x7fff_ffff;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PUSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// A packet, and when.
struct Packet {
    time: u64,
    bytes: Vec<u8>,
    comment: Option<String>,
}

/// The messages of a connection.
pub(crate) struct Conversation {
    hosts: [IpAddr; 2],
    /// Sequence numbers that come next.
    next: [u32; 2],
    packets: Vec<Packet>,
    id: u32,
    /// Messages, which are put in the order of their times at the end.
    messages: Vec<(u64, Side, u64, Vec<u8>)>,
}

impl Conversation {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self {
            hosts: connection.ends.map(|end| end.host),
            next: [0; 2],
            packets: Vec::new(),
            id: connection.id,
            messages: Vec::new(),
        }
    }

    pub(crate) fn message(&mut self, from: Side, message: &Message) {
        self.messages.push((message.time, from, message.frame, message.bytes.clone()));
    }

    /// The packets, with TCP's beginning and end.
    fn finish(mut self) -> Vec<Packet> {
        let mut messages = std::mem::take(&mut self.messages);
        messages.sort_by_key(|(time, ..)| *time);
        let begin = messages.first().map_or(0, |message| message.0);
        let end = messages.last().map_or(0, |message| message.0);
        self.segment(begin, Side::A, SYN, &[], None);
        self.segment(begin, Side::B, SYN | ACK, &[], None);
        self.segment(begin, Side::A, ACK, &[], None);
        for (time, from, frame, bytes) in messages {
            let mark = 0x8000_0000 | bytes.len().min(LONGEST_RECORD) as u32;
            let record = [&mark.to_be_bytes(), &*bytes].concat();
            for chunk in record.chunks(SEGMENT) {
                let comment = format!("connection {}, frame {frame}", self.id);
                self.segment(time, from, ACK | PUSH, chunk, Some(comment));
            }
        }
        self.segment(end, Side::A, ACK | FIN, &[], None);
        self.segment(end, Side::B, ACK | FIN, &[], None);
        self.segment(end, Side::A, ACK, &[], None);
        self.packets
    }

    fn segment(&mut self, time: u64, from: Side, flags: u8, payload: &[u8], comment: Option<String>) {
        let (here, there) = (from as usize, from.other() as usize);
        // A connection each, from ports of its own.
        let client = CLIENT_PORT.wrapping_sub(self.id as u16 % 512);
        let ports = if from == Side::A { [client, SERVER_PORT] } else { [SERVER_PORT, client] };
        let mut tcp: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        tcp.extend(self.next[here].to_be_bytes());
        tcp.extend(if flags & ACK != 0 { self.next[there] } else { 0 }.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let bytes = ip(self.hosts[here], self.hosts[there], &mut tcp);
        let takes = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.next[here] = self.next[here].wrapping_add(takes);
        self.packets.push(Packet { time, bytes, comment });
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

/// A pcapng file of conversations, in the order of their times.
pub(crate) fn merged(conversations: impl Iterator<Item = Conversation>) -> Vec<u8> {
    let mut packets: Vec<Packet> = conversations.flat_map(Conversation::finish).collect();
    packets.sort_by_key(|packet| packet.time);
    let mut file = Vec::new();
    block(&mut file, 0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes(), &[1, 0, 0, 0], &[0xff; 8]]);
    // Raw IP, with times in nanoseconds.
    block(&mut file, 1, &[&[101, 0, 0, 0, 0, 0, 0, 0], &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]]);
    for Packet { time, bytes, comment } in packets {
        let length = (bytes.len() as u32).to_le_bytes();
        let (high, low) = ((time >> 32) as u32, time as u32);
        let padding = &[0; 3][..bytes.len().wrapping_neg() % 4];
        let options = comment.map_or(Vec::new(), |text| {
            let mut option =
                [&1_u16.to_le_bytes()[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
            option.resize(option.len().next_multiple_of(4) + 4, 0);
            option
        });
        let times = [0, high, low].map(u32::to_le_bytes);
        block(&mut file, 6, &[times.as_flattened(), &length, &length, &bytes, padding, &options]);
    }
    file
}

fn block(file: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) {
    let length = 12 + parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    file.extend(kind.to_le_bytes());
    file.extend(length.to_le_bytes());
    parts.iter().for_each(|part| file.extend(*part));
    file.extend(length.to_le_bytes());
}
