//! RPC-over-RDMA: calls and replies by every way that their parts can take, over generated packets.

mod wire;

use iwarp_wire::rdmap::Opcode;
use rdmacap::file::Record;
use rdmacap::rpc::{Exchange, Placed, Rpc, RpcSink, procedure};
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
            assert!(reply.placed != Placed::AtEnd, "{name}");
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
