//! The captures that are checked in: what they hold, as their README says and as tshark counts, and what is
//! left of them when frames are missing.

mod wire;

use std::collections::HashMap;
use std::ops::Range;
use std::process::Command;

use rdmacap::rpc::{Exchange, Rpc, RpcSink};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{Access, Config, Finding, Kind, Known, Operation, Outcome, Session, Side, Topic};
use wire::fixture::{ALL, frames, path, read};
use wire::{Frame, Seen};

/// How often each kind of operation is there.
fn counts(seen: &Seen) -> Vec<(Kind, usize)> {
    let mut counts = Vec::new();
    for kind in [Kind::Send, Kind::Write, Kind::Read, Kind::CompareSwap, Kind::FetchAdd, Kind::Immediate] {
        let count = seen.operations.iter().filter(|operation| operation.kind == kind).count();
        if count > 0 {
            counts.push((kind, count));
        }
    }
    counts
}

/// rping's counting pattern for this round: a name, then letters that go around.
fn pattern(round: usize, length: usize) -> Vec<u8> {
    let start = format!("rdma-ping-{round}: ");
    let letters = (0..).map(|at| b'A' + ((round + at) % 58) as u8);
    let mut bytes: Vec<u8> = start.bytes().chain(letters).take(length - 1).collect();
    bytes.push(0);
    bytes
}

/// Reads and writes of rping carry its pattern, round for round.
fn check_rping(seen: &Seen, rounds: usize, length: usize) {
    assert_eq!(counts(seen), [(Kind::Send, 4 * rounds), (Kind::Write, rounds), (Kind::Read, rounds)]);
    for kind in [Kind::Read, Kind::Write] {
        check_rounds(seen, kind, 0..rounds, length);
    }
}

/// Those of one kind carry the pattern of these rounds.
fn check_rounds(seen: &Seen, kind: Kind, rounds: Range<usize>, length: usize) {
    let of_kind = seen.operations.iter().filter(|operation| operation.kind == kind);
    let contents: Vec<_> = of_kind.map(|operation| seen.content(operation.id, length as u64)).collect();
    let patterns: Vec<Vec<u8>> = rounds.map(|round| pattern(round, length)).collect();
    let patterns: Vec<_> = patterns.iter().map(|pattern| Some(&**pattern)).collect();
    assert!(contents == patterns, "{kind:?}: {:#?}", seen.operations);
}

#[test]
fn rping_over_siw_and_rxe() {
    for (name, rounds, length) in [
        ("siw-rping", 2, 2000),
        ("siw-rping-crc", 1, 10_000),
        ("rxe-rping", 2, 2000),
        ("rxe-rping-segments", 1, 10_000),
    ] {
        let seen = read(name);
        assert_eq!(seen.findings, [], "{name}");
        assert_eq!(seen.connections.len(), 1, "{name}");
        assert_eq!(seen.connections[0].service, Some(7174), "{name}");
        check_rping(&seen, rounds, length);
        let over = |operation: &Operation| matches!(operation.outcome, Outcome::Acked | Outcome::Answered);
        assert!(seen.operations.iter().all(over), "{name}");
    }
}

#[test]
fn losses_of_rxe_are_told_and_every_byte_is_there() {
    let seen = read("rxe-lossy");
    assert!(seen.has(Topic::NetworkLoss) && !seen.has(Topic::CaptureLoss), "{:?}", seen.findings);
    assert!(seen.operations.iter().any(|operation| operation.resent > 0));
    check_rping(&seen, 3, 6000);
}

#[test]
fn losses_of_siw_are_told_and_every_byte_is_there() {
    let seen = read("siw-lossy");
    assert!(seen.has(Topic::NetworkLoss) && !seen.has(Topic::CaptureLoss), "{:?}", seen.findings);
    assert_eq!(seen.connections[0].known, Known::Mpa);
    check_rping(&seen, 2, 6000);
    assert!(seen.operations.iter().all(|operation| operation.missing.is_empty()), "{:#?}", seen.operations);
}

/// No handshake is there, and from the first frame on nothing is missing. The round that was going on had its
/// write before it, or its read.
#[test]
fn captures_that_begin_in_mid_stream_are_read_from_there() {
    for (name, sends, writes, reads) in [("siw-midstream", 4, 1..2, 1..2), ("rxe-midstream", 6, 0..2, 1..2)] {
        let seen = read(name);
        let [connection] = &seen.connections[..] else { panic!("{name}: {:#?}", seen.connections) };
        assert_eq!((connection.known, connection.frame), (Known::Guessed, 1), "{name}");
        assert!(seen.findings.iter().all(|finding| finding.topic == Topic::Partial), "{:?}", seen.findings);
        assert_eq!(
            counts(&seen),
            [(Kind::Send, sends), (Kind::Write, writes.len()), (Kind::Read, reads.len())],
            "{name}"
        );
        check_rounds(&seen, Kind::Write, writes, 10_000);
        check_rounds(&seen, Kind::Read, reads, 10_000);
        for operation in &seen.operations {
            assert!(matches!(operation.outcome, Outcome::Acked | Outcome::Answered), "{name}: {operation:?}");
        }
    }
}

/// Both sides have one queue pair number and begin with one packet number, and no handshake says who is who.
#[test]
fn numbers_wrap_around_without_a_handshake() {
    let seen = read("rxe-wrap");
    let known: Vec<_> =
        seen.connections.iter().map(|found| (found.known, found.ends.map(|end| end.number))).collect();
    assert_eq!(known, [(Known::Guessed, [Some(0x11); 2]), (Known::Guessed, [Some(0x12); 2])]);
    assert_eq!(counts(&seen), [(Kind::Write, 10), (Kind::Read, 5)]);
    for operation in &seen.operations {
        assert_eq!(
            (operation.length, operation.packets),
            (2100, 3 + u32::from(operation.kind == Kind::Read))
        );
        assert!(matches!(operation.outcome, Outcome::Acked | Outcome::Answered), "{operation:?}");
        assert!(seen.content(operation.id, 2100).is_some());
    }
    assert!(seen.findings.iter().all(|finding| finding.topic == Topic::Partial), "{:?}", seen.findings);
}

#[test]
fn atomics_of_rxe_count() {
    let seen = read("rxe-atomics");
    assert_eq!(seen.findings, []);
    let old: Vec<u64> = seen.operations.iter().filter_map(|operation| operation.atomic?.old).collect();
    assert_eq!(old.len(), 10);
    assert!(old.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{old:?}");
}

#[test]
fn headers_of_rxe_name_every_operation() {
    let seen = read("rxe-headers");
    assert_eq!(seen.findings, []);
    assert_eq!(seen.connections[0].known, Known::Cm);
    assert_eq!(counts(&seen), [(Kind::Send, 4), (Kind::Write, 1), (Kind::Read, 1)]);
    for operation in seen.operations.iter().filter(|operation| operation.kind != Kind::Send) {
        assert_eq!((operation.length, &*operation.missing), (10_000, &[][..]));
        assert_eq!(seen.there(operation.id).total() + operation.cut, 10_000);
    }
}

#[test]
fn a_terminate_names_the_read_that_it_is_about() {
    let seen = read("siw-terminate");
    let failed: Vec<&Operation> =
        seen.operations.iter().filter(|operation| operation.outcome.failed()).collect();
    assert_eq!(failed.len(), 1, "{:#?}", seen.operations);
    assert_eq!(failed[0].outcome, Outcome::Terminated("invalid STag".into()));
    assert_eq!(failed[0].kind, Kind::Read);
    assert!(seen.has(Topic::Terminate));
}

#[test]
fn perftest_over_siw() {
    let seen = read("siw-perftest");
    assert_eq!(seen.findings, []);
    assert_eq!(seen.connections.len(), 2);
    let writes: Vec<&Operation> =
        seen.operations.iter().filter(|operation| operation.kind == Kind::Write).collect();
    assert_eq!(writes.len(), 10);
    assert!(writes.iter().all(|write| write.length == 4096));
    // All into the same memory.
    assert!(writes.windows(2).all(|pair| pair[0].target == pair[1].target));
}

#[test]
fn messages_of_the_embedded_device_bring_data_of_64_bits() {
    let seen = read("embedded-messages");
    assert_eq!(seen.findings, []);
    let data = |kind| -> Vec<_> {
        let of_kind = seen.operations.iter().filter(move |operation| operation.kind == kind);
        of_kind.map(|operation| (operation.length, operation.immediate)).collect()
    };
    let all = Some(u64::MAX);
    // They are the first eight bytes of a send.
    let sends = [None, None, Some(77), Some(88), Some(99), None, all];
    assert_eq!(data(Kind::Send), sends.map(|data| (if data.is_some() { 18 } else { 10 }, data)));
    // The empty writes that open the two connections have none.
    let writes = [(0, None), (0, None), (1000, all), (5, Some(22)), (1000, Some(33)), (0, Some(44))];
    assert_eq!(data(Kind::Write), writes);
}

#[test]
fn reads_of_iwarp_have_both_ends() {
    let seen = read("siw-rping-crc");
    let of = |access| {
        let placed = seen.placements.iter().filter_map(move |placement| placement.memory);
        placed.filter(move |(_, found)| *found == access).map(|(target, _)| target)
    };
    let regions: HashMap<u32, String> =
        seen.regions.iter().map(|region| (region.id, region.host.to_string())).collect();
    assert!(of(Access::Read).all(|target| regions[&target.region] == "fd01::1"));
    assert!(of(Access::Filled).all(|target| regions[&target.region] == "fd01::2"));
    assert_eq!(of(Access::Read).count(), of(Access::Filled).count());
}

#[derive(Default)]
struct Collected {
    streams: [Vec<u8>; 2],
    ended: [bool; 2],
    findings: Vec<Finding>,
    holes: usize,
}

impl StreamSink for Collected {
    fn data(&mut self, _connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        let stream = &mut self.streams[from as usize];
        stream.resize(stream.len().max(offset as usize), 0);
        assert_eq!(stream.len(), offset as usize);
        stream.extend_from_slice(bytes);
    }

    fn hole(&mut self, _connection: u32, _from: Side, _offset: u64, _length: u64) {
        self.holes += 1;
    }

    fn told(&mut self, _connection: u32, from: Side, told: &rdmacap::rstream::Told) {
        self.ended[from as usize] = told.end;
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }
}

fn streams(frames: &[Frame]) -> Collected {
    let mut streams = Streams::new(Collected::default(), 1 << 20);
    let mut session = Session::new(Config::default());
    for frame in frames {
        let Frame { time, ref bytes, original_length } = *frame;
        session.feed(&rdmacap::file::Record { time, link: 1, original_length, bytes }, &mut streams);
    }
    session.finish(&mut streams);
    streams.sink
}

#[test]
fn streams_of_the_embedded_device_are_read_back() {
    let license = include_bytes!("../../../LICENSE-APACHE");
    for name in ["embedded-copy", "embedded-copy-iwarp"] {
        let found = streams(&frames(name));
        let sent = &found.streams[0];
        assert!(sent.windows(5000).any(|window| window == &license[..5000]), "{name}: {} bytes", sent.len());
        assert_eq!((found.streams[1].len(), found.ended), (24, [true, true]), "{name}");
        assert!(found.findings.is_empty() && found.holes == 0, "{name}: {:?}", found.findings);
    }
}

#[test]
fn a_stream_with_a_lost_frame_has_a_hole_and_no_breach() {
    for name in ["embedded-copy", "embedded-copy-iwarp"] {
        let all = frames(name);
        let whole = streams(&all).streams;
        let mut holes = 0;
        for left_out in 7..all.len() {
            let mut rest = all.clone();
            rest.remove(left_out);
            let found = streams(&rest);
            assert!(found.findings.is_empty(), "{name} without frame {}: {:?}", left_out + 1, found.findings);
            for (stream, whole) in found.streams.iter().zip(&whole) {
                assert!(stream.iter().zip(whole).all(|(found, sent)| found == sent || *found == 0));
            }
            holes += found.holes;
        }
        assert!(holes > 0, "{name}");
    }
}

/// Values of a field that tshark finds, each occurrence one. It does not guess what is on top.
fn tshark(name: &str, filter: &str, field: &str) -> Option<Vec<String>> {
    let guesses = ["rpcrdma_iwarp", "smb_direct_iwarp", "rpcrdma_infiniband", "smb_direct_infiniband"];
    let without = guesses.iter().flat_map(|guess| ["--disable-heuristic", guess]);
    let arguments: Vec<&str> =
        ["-o", "tcp.reassemble_out_of_order:TRUE"].into_iter().chain(without).collect();
    tshark_with(name, &arguments, filter, field)
}

fn tshark_with(name: &str, arguments: &[&str], filter: &str, field: &str) -> Option<Vec<String>> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(path(name))
        .args(arguments)
        .args(["-Y", filter, "-T", "fields", "-e", field])
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.split([',', '\n']).filter(|value| !value.is_empty()).map(str::to_owned).collect())
}

#[test]
fn tshark_counts_the_same_in_roce() {
    for name in ALL.into_iter().filter(|name| name.contains("rxe")) {
        let Some(opcodes) = tshark(name, "infiniband.bth.destqp != 1", "infiniband.bth.opcode") else {
            eprintln!("skipped: no tshark");
            return;
        };
        let seen = read(name);
        let of = |codes: &[&str]| opcodes.iter().filter(|code| codes.contains(&code.as_str())).count();
        let kinds: HashMap<Kind, usize> = counts(&seen).into_iter().collect();
        let count = |kind| kinds.get(&kind).copied().unwrap_or(0);
        let again: u32 = seen.operations.iter().map(|operation| operation.resent).sum();
        for (kind, codes) in [
            // Sends with and without immediate, and those that invalidate.
            (Kind::Send, &["0", "4", "5", "23"][..]),
            (Kind::Write, &["6", "10", "11"]),
            (Kind::Read, &["12"]),
            (Kind::FetchAdd, &["20"]),
        ] {
            let counted = of(codes);
            assert!((count(kind)..=count(kind) + again as usize).contains(&counted), "{name}: {kind:?}");
        }
        let packets: u32 = seen.operations.iter().map(|operation| operation.packets).sum();
        let data = opcodes.len() - of(&["17"]);
        if again > 0 {
            // What came again names its memory again, and may come when its operation is over.
            assert!((packets + again) as usize <= data && packets as usize + 4 >= data, "{name}");
            continue;
        }
        assert_eq!(packets as usize, data, "{name}");
        let lengths = tshark(name, "infiniband.reth", "infiniband.reth.dmalen").expect("tshark");
        let asked: u64 = lengths.iter().map(|length| length.parse::<u64>().expect("a length")).sum();
        let named = seen
            .operations
            .iter()
            .filter(|operation| operation.target.is_some() && operation.atomic.is_none());
        assert_eq!(named.map(|operation| operation.length).sum::<u64>(), asked, "{name}");
    }
}

#[test]
fn tshark_counts_the_same_in_iwarp() {
    // Without the handshake it knows no iWARP.
    for name in ALL.into_iter().filter(|name| !name.contains("rxe") && *name != "siw-midstream") {
        let Some(opcodes) = tshark(name, "iwarp_ddp_rdmap", "iwarp_rdma.opcode") else {
            eprintln!("skipped: no tshark");
            return;
        };
        let seen = read(name);
        let segments: u32 = seen.operations.iter().map(|operation| operation.packets).sum();
        let terminates = opcodes.iter().filter(|code| *code == "0x07").count();
        assert_eq!(segments as usize + terminates, opcodes.len(), "{name}");
        assert_eq!(terminates, usize::from(seen.has(Topic::Terminate)), "{name}");
        if terminates > 0 {
            // What was refused was not carried.
            continue;
        }
        let lengths = tshark(name, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength").expect("tshark");
        let ulpdus: usize = lengths.iter().map(|length| length.parse::<usize>().expect("a length")).sum();
        // Headers of 14 bytes with a key, else of 18, and the bodies of requests and immediates.
        let tagged = opcodes.iter().filter(|code| ["0x00", "0x02"].contains(&code.as_str())).count();
        let bodies = opcodes.iter().map(|code| match code.as_str() {
            "0x01" => 28,
            "0x08" => 8,
            _ => 0,
        });
        let headers = 14 * tagged + 18 * (opcodes.len() - tagged) + bodies.sum::<usize>();
        let carried: u64 = seen.operations.iter().map(|operation| operation.length).sum();
        assert_eq!(carried as usize + headers, ulpdus, "{name}");
    }
}

#[derive(Default)]
struct Messages(Vec<(u64, u32)>);

impl RpcSink for Messages {
    fn exchange(&mut self, exchange: &Exchange) {
        let frames = [&exchange.call, &exchange.reply].map(|message| message.as_ref().expect("both").frame);
        self.0.extend(frames.map(|frame| (frame, exchange.xid)));
    }
}

#[test]
fn tshark_finds_the_same_calls_and_replies() {
    for name in ["nfs-siw", "nfs-rxe"] {
        let Some(numbers) = tshark_with(name, &[], "rpcordma", "frame.number") else {
            eprintln!("skipped: no tshark");
            return;
        };
        let xids = tshark_with(name, &[], "rpcordma", "rpcordma.xid").expect("tshark");
        let xids = xids.iter().map(|xid| u32::from_str_radix(&xid[2..], 16).expect("a number"));
        let expected: Vec<(u64, u32)> =
            numbers.iter().map(|number| number.parse().expect("a number")).zip(xids).collect();
        let mut rpc = Rpc::new(Messages::default(), 1 << 20);
        let mut session = Session::new(Config::default());
        for frame in frames(name) {
            let Frame { time, ref bytes, original_length } = frame;
            session.feed(&rdmacap::file::Record { time, link: 1, original_length, bytes }, &mut rpc);
        }
        session.finish(&mut rpc);
        let mut found = rpc.sink.0;
        found.sort_unstable();
        assert_eq!(found, expected, "{name}");
    }
}

/// Whether what there is of an operation is what the whole capture has of one.
fn is_part(seen: &Seen, operation: &Operation, whole: &Seen) -> bool {
    // Without the handshake nobody knows that marks say what immediate data belong to.
    let is_like = |candidate: &&Operation| {
        let is_its = operation.kind == Kind::Immediate && candidate.immediate == operation.immediate;
        candidate.kind == operation.kind || is_its
    };
    whole.operations.iter().filter(is_like).any(|candidate| {
        let content = whole.contents.get(&candidate.id).map_or(&[][..], |content| &content.0);
        let skip = match (operation.target, candidate.target) {
            (Some(target), Some(found)) if target.key == found.key => {
                target.address.wrapping_sub(found.address) as usize
            }
            (None, _) => 0,
            _ => return false,
        };
        skip <= content.len() && seen.agrees(operation.id, &content[skip..])
    })
}

#[test]
fn no_byte_is_wrong_when_a_frame_is_missing_or_the_capture_begins_late() {
    for name in ALL {
        let all = frames(name);
        let whole = read(name);
        let check = |frames: &[Frame], context: &str| {
            let seen = wire::read(frames);
            for operation in &seen.operations {
                assert!(is_part(&seen, operation, &whole), "{name}, {context}: {operation:?}");
            }
            seen
        };
        for at in 0..all.len() {
            let mut rest = all.clone();
            rest.remove(at);
            check(&rest, &format!("without frame {}", at + 1));
            check(&all[at..], &format!("from frame {} on", at + 1));
            check(&all[..at], &format!("up to frame {at}"));
        }
        for snaplen in 54..=256 {
            let cut: Vec<Frame> = all.iter().map(|frame| frame.cut(snaplen)).collect();
            let seen = check(&cut, &format!("{snaplen} bytes of each frame"));
            // What is cut is no loss.
            assert!(!seen.has(Topic::CaptureLoss), "{name}, {snaplen} bytes: {:?}", seen.findings);
        }
    }
}
