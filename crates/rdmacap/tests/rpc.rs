//! RPC-over-RDMA: calls and replies by every way that their parts can take, over generated packets.

mod wire;

use iwarp_wire::rdmap::Opcode;
use rdmacap::file::Record;
use rdmacap::rpc::{Exchange, Parameters, Placed, Rpc, RpcSink, procedure};
use rdmacap::{Config, Finding, Session, Side};
use wire::Frame;
use wire::iwarp::{Plan, Wire};

const PLAN: Plan =
    Plan { seed: 0, operations: 0, checksums: true, markers: false, mulpdu: 1400, mss: 1448, aligned: true };

#[derive(Debug, Default)]
struct Found {
    exchanges: Vec<Exchange>,
    findings: Vec<Finding>,
}

impl RpcSink for Found {
    fn exchange(&mut self, exchange: &Exchange) {
        self.exchanges.push(exchange.clone());
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }
}

fn read(frames: &[Frame]) -> Found {
    let mut rpc = Rpc::new(Found::default(), 1 << 20);
    let mut session = Session::new(Config::default());
    for frame in frames {
        let Frame { time, ref bytes, original_length } = *frame;
        session.feed(&Record { time, link: 1, original_length, bytes }, &mut rpc);
    }
    session.finish(&mut rpc);
    rpc.sink
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Handle, length and offset as a segment has them.
fn segment(handle: u32, length: usize, offset: u64) -> Vec<u8> {
    words(&[handle, length as u32, (offset >> 32) as u32, offset as u32])
}

/// A call's own header: READ of NFS version 3.
fn call(xid: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[xid, 0, 2, 100_003, 3, 6, 0, 0, 0, 0]);
    bytes.extend(rest);
    bytes
}

fn reply(xid: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[xid, 1, 0, 0, 0, 0]);
    bytes.extend(rest);
    bytes
}

/// The transport's header: read segments with positions, write chunks, reply chunk.
fn header(
    xid: u32,
    nomsg: bool,
    reads: &[(u32, Vec<u8>)],
    writes: &[Vec<Vec<u8>>],
    chunk: Option<&[Vec<u8>]>,
) -> Vec<u8> {
    let mut bytes = words(&[xid, 1, 32, u32::from(nomsg)]);
    for (position, segment) in reads {
        bytes.extend(words(&[1, *position]));
        bytes.extend(segment);
    }
    bytes.extend(words(&[0]));
    let list = |segments: &[Vec<u8>]| [words(&[1, segments.len() as u32]), segments.concat()].concat();
    for segments in writes {
        bytes.extend(list(segments));
    }
    bytes.extend(words(&[0]));
    bytes.extend(chunk.map_or_else(|| words(&[0]), list));
    bytes
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 % 251) as u8).collect()
}

fn send(wire: &mut Wire, from: usize, bytes: &[u8]) {
    wire.untagged(from, Opcode::Send, 0, bytes);
}

fn finish(mut wire: Wire) -> Vec<Frame> {
    wire.acknowledge(0);
    wire.acknowledge(1);
    wire.close();
    wire.frames.into_iter().map(|segment| segment.frame).collect()
}

fn opened() -> Wire {
    let mut wire = Wire::new(PLAN);
    wire.open([b"", b""]);
    wire
}

#[test]
fn all_ways_of_chunks_give_whole_messages() {
    let mut wire = opened();
    // Inline.
    let (call_1, reply_1) = (call(1, &data(40)), reply(1, &data(20)));
    send(&mut wire, 0, &[header(1, false, &[], &[], None), call_1.clone()].concat());
    send(&mut wire, 1, &[header(1, false, &[], &[], None), reply_1.clone()].concat());
    // Two read segments at one position, with padding behind them and more of the message.
    let written = data(5002);
    let before = call(2, &words(&[5002]));
    let position = before.len() as u32;
    let reads = [(position, segment(0x51, 3000, 0x1000)), (position, segment(0x52, 2002, 0x8000))];
    send(&mut wire, 0, &[header(2, false, &reads, &[], None), before.clone(), words(&[77])].concat());
    wire.read(1, (0x51, 0x1000), (0x91, 0), &written[..3000]);
    wire.read(1, (0x52, 0x8000), (0x92, 0), &written[3000..]);
    let reply_2 = reply(2, &words(&[0]));
    send(&mut wire, 1, &[header(2, false, &[], &[], None), reply_2.clone()].concat());
    // A write chunk of two segments, not all of it used, and its place behind the length.
    let (call_3, result) = (call(3, &data(8)), data(3001));
    let offered = [segment(0x61, 2000, 0x2000), segment(0x62, 2000, 0x9000)].to_vec();
    send(&mut wire, 0, &[header(3, false, &[], &[offered], None), call_3].concat());
    wire.write(1, 0x61, 0x2000, &result[..2000]);
    wire.write(1, 0x62, 0x9000, &result[2000..]);
    let used = [segment(0x61, 2000, 0x2000), segment(0x62, 1001, 0x9000)].to_vec();
    let short = reply(3, &words(&[0, 3001, 1, 3001]));
    send(&mut wire, 1, &[header(3, false, &[], &[used], None), short.clone(), words(&[9])].concat());
    // A call and a reply that are too long to be inline.
    let (call_4, reply_4) = (call(4, &data(4000)), reply(4, &data(6000)));
    let reads = [(0, segment(0x71, call_4.len(), 0x3000))];
    let chunk = [segment(0x72, 8000, 0xf_0000_0000)];
    send(&mut wire, 0, &header(4, true, &reads, &[], Some(&chunk)));
    wire.read(1, (0x71, 0x3000), (0x93, 0), &call_4);
    wire.write(1, 0x72, 0xf_0000_0000, &reply_4);
    let chunk = [segment(0x72, reply_4.len(), 0xf_0000_0000)];
    send(&mut wire, 1, &header(4, true, &[], &[], Some(&chunk)));

    let found = read(&finish(wire));
    assert_eq!(found.findings, []);
    let bytes = |exchange: &Exchange| {
        let (call, reply) = (exchange.call.as_ref().unwrap(), exchange.reply.as_ref().unwrap());
        assert!(!call.incomplete && !reply.incomplete, "{exchange:?}");
        assert_eq!(exchange.from, Side::A);
        (call.bytes.clone(), reply.bytes.clone())
    };
    let [first, second, third, fourth] = &found.exchanges[..] else { panic!("{:?}", found.exchanges) };
    assert_eq!(bytes(first), (call_1, reply_1));
    let padded = [&written[..], &[0, 0]].concat();
    assert_eq!(bytes(second), ([before, padded, words(&[77])].concat(), reply_2));
    let whole = [short, result, vec![0; 3], words(&[9])].concat();
    assert_eq!(bytes(third).1, whole);
    assert_eq!(third.reply.as_ref().unwrap().placed, Placed::BehindLength);
    assert_eq!(bytes(fourth), (call_4, reply_4));
    assert_eq!(procedure(&fourth.call.as_ref().unwrap().bytes), Some((100_003, 3, 6)));
}

/// The messages of the only exchange, both whole.
fn both(found: &Found) -> (&Exchange, &[u8], &[u8]) {
    assert_eq!(found.findings, []);
    let [exchange] = &found.exchanges[..] else { panic!("{:?}", found.exchanges) };
    let (call, reply) = (exchange.call.as_ref().unwrap(), exchange.reply.as_ref().unwrap());
    assert!(!call.incomplete && !reply.incomplete, "{exchange:?}");
    (exchange, &call.bytes, &reply.bytes)
}

#[test]
fn data_of_nfs_is_where_nfs_has_it() {
    // READ of version 3: the length again behind the data would mislead.
    let mut wire = opened();
    let (result, behind) = (data(3001), words(&[3001]));
    let offered = [segment(0x61, 4000, 0x2000)].to_vec();
    send(&mut wire, 0, &[header(3, false, &[], &[offered], None), call(3, &data(8))].concat());
    wire.write(1, 0x61, 0x2000, &result);
    let short = reply(3, &words(&[0, 0, 3001, 1, 3001]));
    let used = [segment(0x61, 3001, 0x2000)].to_vec();
    send(&mut wire, 1, &[header(3, false, &[], &[used], None), short.clone(), behind.clone()].concat());
    let found = read(&finish(wire));
    let (exchange, _, bytes) = both(&found);
    assert_eq!(bytes, [&short[..], &result, &[0; 3], &behind].concat());
    assert_eq!(exchange.reply.as_ref().unwrap().placed, Placed::Exactly);
}

/// COMPOUND of version 4 with two reads of the same length, in a reply that is too long to be inline: write
/// chunks of several segments and a reply chunk together.
#[test]
fn write_chunks_and_a_reply_chunk_go_together() {
    let mut wire = opened();
    let results = [data(2000), (0..2000).map(|at| (at % 13) as u8).collect::<Vec<u8>>()];
    let compound = words(&[4, 0, 2, 100_003, 4, 1, 0, 0, 0, 0, 0, 1, 0, 3]);
    let offered =
        [vec![segment(0x61, 1200, 0x1000), segment(0x62, 1200, 0x9000)], vec![segment(0x63, 4000, 0x1000)]];
    let chunk = [segment(0x64, 4000, 0x5000)];
    send(&mut wire, 0, &[header(4, false, &[], &offered, Some(&chunk)), compound.clone()].concat());
    wire.write(1, 0x61, 0x1000, &results[0][..1200]);
    wire.write(1, 0x62, 0x9000, &results[0][1200..]);
    wire.write(1, 0x63, 0x1000, &results[1]);
    // PUTFH, READ, READ; then something long.
    let parts =
        [words(&[4, 1, 0, 0, 0, 0, 0, 0, 3, 22, 0, 25, 0, 0, 2000]), words(&[25, 0, 1, 2000]), data(1500)];
    let short = parts.concat();
    wire.write(1, 0x64, 0x5000, &short);
    let used =
        [vec![segment(0x61, 1200, 0x1000), segment(0x62, 800, 0x9000)], vec![segment(0x63, 2000, 0x1000)]];
    let chunk = [segment(0x64, short.len(), 0x5000)];
    send(&mut wire, 1, &header(4, true, &[], &used, Some(&chunk)));
    let found = read(&finish(wire));
    let (exchange, asked, bytes) = both(&found);
    assert_eq!(asked, compound);
    let [before, between, behind] = &parts;
    assert_eq!(bytes, [&before[..], &results[0], between, &results[1], behind].concat());
    let reply = exchange.reply.as_ref().unwrap();
    assert_eq!((reply.placed, reply.by_chunks), (Placed::Exactly, 4000 + short.len() as u64));
}

/// All of a call by a chunk, with data by another in its middle.
#[test]
fn a_long_call_has_its_data_in_the_middle() {
    let mut wire = opened();
    let (before, written, behind) = (call(5, &data(2000)), data(601), data(40));
    let rest = [&before[..], &behind].concat();
    let reads =
        [(0, segment(0x71, rest.len(), 0x3000)), (before.len() as u32, segment(0x71, written.len(), 0x8000))];
    send(&mut wire, 0, &header(5, true, &reads, &[], None));
    // The same key for all memory, as where it is registered once.
    wire.read(1, (0x71, 0x8000), (0x91, 0), &written);
    wire.read(1, (0x71, 0x3000), (0x92, 0), &rest);
    send(&mut wire, 1, &[header(5, false, &[], &[], None), reply(5, &[])].concat());
    let found = read(&finish(wire));
    assert_eq!(both(&found).1, [&before[..], &written, &[0; 3], &behind].concat());
}

#[test]
fn either_side_may_call() {
    let mut wire = opened();
    // One number for calls of both sides, at a time.
    for from in 0..2 {
        send(&mut wire, from, &[header(7, false, &[], &[], None), call(7, &data(8 + from))].concat());
    }
    for from in 0..2 {
        let answer = reply(7, &data(20 + from));
        send(&mut wire, 1 - from, &[header(7, false, &[], &[], None), answer].concat());
    }
    let found = read(&finish(wire));
    assert_eq!(found.findings, []);
    for (exchange, (from, at)) in found.exchanges.iter().zip([(Side::A, 0), (Side::B, 1)]) {
        assert_eq!(exchange.from, from);
        assert_eq!(exchange.call.as_ref().unwrap().bytes, call(7, &data(8 + at)));
        assert_eq!(exchange.reply.as_ref().unwrap().bytes, reply(7, &data(20 + at)));
    }
}

#[test]
fn old_forms_of_the_header_are_read() {
    let mut wire = opened();
    send(&mut wire, 0, &[header(1, false, &[], &[], None), call(1, &[])].concat());
    // RDMA_MSGP: alignment and threshold in front of the lists.
    let padded = [words(&[1, 1, 32, 2, 4096, 1024, 0, 0, 0]), reply(1, &data(12))].concat();
    send(&mut wire, 1, &padded);
    // RDMA_DONE, of which nothing follows.
    send(&mut wire, 0, &words(&[1, 1, 32, 3]));
    let found = read(&finish(wire));
    assert_eq!(both(&found).2, reply(1, &data(12)));
}

/// Private data of RFC 8797.
fn parameters(invalidation: bool, sends: u8, receives: u8) -> Vec<u8> {
    [&[0xf6, 0xab, 0x0e, 0x18, 1, u8::from(invalidation)], &[sends, receives][..]].concat()
}

#[test]
fn private_data_says_what_sends_may_do() {
    let talk = |talk: fn(&mut Wire)| {
        let mut wire = Wire::new(PLAN);
        // Sends of 4096 and 1024 bytes, receives of 2048 and 4096.
        wire.open([&parameters(true, 3, 1), &parameters(false, 0, 3)]);
        talk(&mut wire);
        let found = read(&finish(wire));
        found.findings.into_iter().map(|finding| finding.text).collect::<Vec<_>>()
    };
    let clean = talk(|wire| {
        let offered = [segment(0x61, 100, 0x2000)];
        send(wire, 0, &[header(1, false, &[], &[], Some(&offered)), call(1, &data(3000))].concat());
        let answer = [header(1, false, &[], &[], Some(&offered)), reply(1, &data(800))].concat();
        wire.untagged(1, Opcode::SendInvalidate, 0x61, &answer);
    });
    assert_eq!(clean, <[&str; 0]>::default());
    let long = talk(|wire| {
        send(wire, 0, &[header(1, false, &[], &[], None), call(1, &data(5000))].concat());
        send(wire, 1, &[header(1, false, &[], &[], None), reply(1, &data(1100))].concat());
    });
    assert_eq!(
        long,
        ["a sent 5068 bytes inline, of 4096 agreed", "b sent 1152 bytes inline, of 1024 agreed"]
    );
    let invalidated = talk(|wire| {
        let offered = [segment(0x61, 100, 0x2000)];
        let message = [header(1, false, &[], &[], Some(&offered)), call(1, &[])].concat();
        wire.untagged(0, Opcode::SendInvalidate, 0x99, &message);
        let answer = [header(1, false, &[], &[], Some(&offered)), reply(1, &[])].concat();
        wire.untagged(1, Opcode::SendInvalidate, 0x62, &answer);
    });
    assert_eq!(
        invalidated,
        [
            "a invalidated key 0x99, which b does not support",
            "b invalidated key 0x62, which call 0x1 does not name"
        ]
    );
    assert_eq!(Parameters::parse(&parameters(true, 3, 1)[..7]), None);
    assert_eq!(Parameters::parse(&[0; 8]), None);
}

#[test]
fn what_is_missing_of_a_message_is_said() {
    let mut wire = opened();
    let offered = [segment(0x61, 2000, 0x2000)].to_vec();
    send(&mut wire, 0, &[header(3, false, &[], std::slice::from_ref(&offered), None), call(3, &[])].concat());
    wire.write(1, 0x61, 0x2000, &data(2000));
    let lost = wire.frames.len() - 1;
    send(&mut wire, 1, &[header(3, false, &[], &[offered], None), reply(3, &words(&[2000]))].concat());
    send(&mut wire, 0, &[header(4, false, &[], &[], None), call(4, &[])].concat());
    let mut frames = finish(wire);
    frames.remove(lost);
    let found = read(&frames);
    let [third, fourth] = &found.exchanges[..] else { panic!("{:?}", found.exchanges) };
    assert!(third.reply.as_ref().unwrap().incomplete);
    assert!(fourth.call.is_some() && fourth.reply.is_none());
}

#[test]
fn errors_and_calls_beyond_the_credits_are_found() {
    let mut wire = opened();
    let none = |xid| header(xid, false, &[], &[], None);
    send(&mut wire, 0, &[none(1), call(1, &[])].concat());
    let one_credit = [words(&[1, 1, 1, 0, 0, 0, 0]), reply(1, &[])].concat();
    send(&mut wire, 1, &one_credit);
    send(&mut wire, 0, &[none(2), call(2, &[])].concat());
    send(&mut wire, 0, &[none(3), call(3, &[])].concat());
    // RDMA_ERROR, ERR_CHUNK.
    send(&mut wire, 1, &words(&[2, 1, 1, 4, 2]));
    let found = read(&finish(wire));
    let texts: Vec<&str> = found.findings.iter().map(|finding| &*finding.text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("2 calls outstanding, of 1 granted"), "{texts:?}");
    assert!(texts[1].contains("refused the RPC-over-RDMA header of call 0x2: its chunks"), "{texts:?}");
    assert_eq!(found.exchanges.len(), 3);
}

/// NFS as Linux has it: a mount, a file read, one written, and a folder listed.
#[test]
fn nfs_of_linux_is_whole() {
    for name in ["nfs-siw", "nfs-rxe"] {
        let found = read(&wire::fixture::frames(name));
        assert_eq!(found.findings, [], "{name}");
        assert!(found.exchanges.len() > 20, "{name}: {}", found.exchanges.len());
        let license = include_bytes!("../../../LICENSE-APACHE");
        let has = |bytes: &[u8], data: &[u8]| bytes.windows(data.len()).any(|window| window == data);
        let (mut read, mut written) = (0, 0);
        for exchange in &found.exchanges {
            let (call, reply) = (exchange.call.as_ref().unwrap(), exchange.reply.as_ref().unwrap());
            assert!(!call.incomplete && !reply.incomplete, "{name}: {exchange:?}");
            assert_eq!(procedure(&call.bytes).map(|asked| asked.0), Some(100_003), "{name}");
            assert_eq!(reply.placed, Placed::Exactly, "{name}");
            read += usize::from(has(&reply.bytes, &license[..11_000]));
            written += usize::from(has(&call.bytes, &license[..9001]));
        }
        assert_eq!((read, written), (1, 1), "{name}");
    }
}

#[test]
fn other_protocols_are_not_taken_for_rpc() {
    let mut wire = opened();
    for at in 0..20 {
        send(&mut wire, at % 2, &data(16 + at));
    }
    let found = read(&finish(wire));
    assert!(found.exchanges.is_empty() && found.findings.is_empty());
}
