//! Exchanges of RoCE made by hand: what went wrong is told in the words of the InfiniBand Architecture, and
//! belongs to the operation that it is about.

mod wire;

use rdmacap::file::Record;
use rdmacap::{Config, Finding, Kind, Known, Operation, Outcome, Session, Side, Topic};
use wire::infiniband::{NUMBERS, Plan, Tagged, aeth, handshake, packet, run};
use wire::meant::check_all;
use wire::{Frame, Seen, read};

const PMTU: usize = 1024;
/// With which numbers the sides begin.
const PSNS: [u32; 2] = [0x100, 0x200];

const SEND_ONLY: u8 = 4;
const WRITE_FIRST: u8 = 6;
const WRITE_MIDDLE: u8 = 7;
const WRITE_LAST: u8 = 8;
const WRITE_ONLY: u8 = 10;
const READ_REQUEST: u8 = 12;
const READ_FIRST: u8 = 13;
const READ_LAST: u8 = 15;
const READ_ONLY: u8 = 16;
const ACKNOWLEDGE: u8 = 17;

/// A talk that begins with a handshake; each packet comes a microsecond after the one before.
struct Talk {
    frames: Vec<Frame>,
    time: u64,
}

impl Talk {
    fn new() -> Self {
        let frames = handshake(PSNS, PMTU).into_iter().map(|tagged| tagged.frame).collect();
        Self { frames, time: 100_000 }
    }

    /// A packet of side `from`, with the number so many behind the requester's first.
    fn put(&mut self, from: usize, opcode: u8, psn: u32, headers: &[u8], data: &[u8]) -> &mut Self {
        self.time += 1000;
        // Requests have their side's numbers, answers the other's.
        let side = if matches!(opcode, 13..=18) { 1 - from } else { from };
        let psn = PSNS[side] + psn;
        self.frames.push(packet(self.time, from, opcode, NUMBERS[1 - from], psn, headers, data));
        self
    }

    fn wait(&mut self, nanoseconds: u64) -> &mut Self {
        self.time += nanoseconds;
        self
    }

    fn read(&self) -> Seen {
        read(&self.frames)
    }
}

/// The address, key and length of a write or read.
fn reth(length: usize) -> Vec<u8> {
    [&0x7000_u64.to_be_bytes()[..], &0x55_u32.to_be_bytes(), &(length as u32).to_be_bytes()].concat()
}

fn texts(seen: &Seen, topic: Topic) -> Vec<&str> {
    seen.findings.iter().filter(|finding| finding.topic == topic).map(|finding| &*finding.text).collect()
}

#[test]
fn naks_end_the_operation_that_they_refuse() {
    for (syndrome, reason) in [
        (0x61, "invalid-request"),
        (0x62, "remote-access"),
        (0x63, "remote-operational"),
        (0x64, "invalid-rd-request"),
    ] {
        let mut talk = Talk::new();
        talk.put(0, SEND_ONLY, 0, &[], b"before").put(0, WRITE_ONLY, 1, &reth(6), b"wrong!");
        talk.put(0, SEND_ONLY, 2, &[], b"behind").put(1, ACKNOWLEDGE, 1, &aeth(syndrome), &[]);
        let seen = talk.read();
        let outcomes: Vec<_> = seen.operations.iter().map(|operation| operation.outcome.clone()).collect();
        assert_eq!(outcomes, [Outcome::Implied, Outcome::Nak(reason), Outcome::Unknown]);
        assert_eq!(texts(&seen, Topic::Refused), [format!("b refused the write of frame 4: {reason}")]);
    }
}

#[test]
fn a_receiver_that_is_not_ready_says_when_it_may_be() {
    // 0.01 ms, 491.52 ms and, for code 0, the longest.
    for (code, wait) in [(1, 10_u64), (31, 491_520), (0, 655_360)] {
        let mut talk = Talk::new();
        talk.put(0, SEND_ONLY, 0, &[], b"early").put(1, ACKNOWLEDGE, 0, &aeth(0x20 | code), &[]);
        let seen = talk.read();
        assert_eq!(seen.operations[0].outcome, Outcome::NotReady);
        let text = format!("b was not ready for packet 0x000100, and asks for {wait} us");
        assert_eq!(texts(&seen, Topic::NotReady), [text]);
        // Later it is.
        talk.wait(wait * 1000).put(0, SEND_ONLY, 0, &[], b"early");
        let seen = talk.put(1, ACKNOWLEDGE, 0, &aeth(0x1f), &[]).read();
        assert_eq!((&seen.operations[0].outcome, seen.operations[0].resent), (&Outcome::Acked, 1));
        assert_eq!(
            texts(&seen, Topic::NotReady)[1],
            "a sent a packet again, after the receiver was not ready"
        );
    }
}

#[test]
fn what_comes_again_is_counted_by_its_cause_and_compared() {
    let mut talk = Talk::new();
    talk.put(0, SEND_ONLY, 0, &[], b"one").put(0, SEND_ONLY, 1, &[], b"two");
    talk.put(1, ACKNOWLEDGE, 0, &aeth(0x60), &[]).put(0, SEND_ONLY, 0, &[], b"one");
    let seen = talk.put(0, SEND_ONLY, 1, &[], b"two").put(1, ACKNOWLEDGE, 1, &aeth(0x1f), &[]).read();
    let again = "a sent a packet again, after a NAK for a missing packet";
    assert_eq!(texts(&seen, Topic::NetworkLoss), ["b has not seen packet 0x000100", again, again]);
    assert!(!seen.has(Topic::Differs));
    assert_eq!(seen.operations.iter().map(|operation| operation.resent).sum::<u32>(), 2);
    // Without a NAK, and with other bytes.
    let mut talk = Talk::new();
    talk.put(0, SEND_ONLY, 0, &[], b"one").wait(1 << 30).put(0, SEND_ONLY, 0, &[], b"two");
    let seen = talk.put(1, ACKNOWLEDGE, 0, &aeth(0x1f), &[]).read();
    let again = "a sent a packet again, without a NAK: a timeout, or a copy that the network made";
    assert_eq!(texts(&seen, Topic::NetworkLoss), [again]);
    assert_eq!(texts(&seen, Topic::Differs), ["packet 0x000100 of a came again with other bytes"]);
    assert_eq!(seen.content(seen.operations[0].id, 3), Some(&b"one"[..]));
}

#[test]
fn a_read_that_is_asked_for_again_from_its_middle_is_one_read() {
    let data = wire::payload(1, 3 * PMTU);
    let mut talk = Talk::new();
    talk.put(0, READ_REQUEST, 0, &reth(3 * PMTU), &[]).put(1, READ_FIRST, 0, &aeth(0x1f), &data[..PMTU]);
    // The rest is lost. From there on again, with what is left of it.
    let mut moved = reth(2 * PMTU);
    moved[..8].copy_from_slice(&(0x7000 + PMTU as u64).to_be_bytes());
    talk.wait(1 << 30).put(0, READ_REQUEST, 1, &moved, &[]);
    talk.put(1, READ_FIRST, 1, &aeth(0x1f), &data[PMTU..2 * PMTU]);
    let seen = talk.put(1, READ_LAST, 2, &aeth(0x1f), &data[2 * PMTU..]).read();
    assert_eq!(seen.operations.len(), 1);
    let operation = &seen.operations[0];
    assert_eq!((operation.length, operation.resent), (3 * PMTU as u64, 1));
    assert_eq!(operation.outcome, Outcome::Answered);
    assert_eq!(seen.content(operation.id, operation.length), Some(&*data));
    assert_eq!(texts(&seen, Topic::NetworkLoss).len(), 1);
}

#[test]
fn congestion_is_told_by_connection() {
    let mut talk = Talk::new();
    talk.put(0, SEND_ONLY, 0, &[], b"marked").put(1, ACKNOWLEDGE, 0, &aeth(0x1f), &[]);
    // Congestion experienced, in a field that the invariant CRC leaves out.
    let marked = talk.frames.len() - 2;
    talk.frames[marked].bytes[15] |= 3;
    talk.time += 1000;
    talk.frames.push(packet(talk.time, 1, 0x81, NUMBERS[0], 0, &[0; 16], &[]));
    let seen = talk.read();
    assert_eq!(
        texts(&seen, Topic::Congestion),
        ["b notified a of congestion", "2 packets with a mark of congestion"]
    );
    assert_eq!(seen.operations[0].outcome, Outcome::Acked);
}

#[test]
fn reads_beyond_what_the_responder_serves_are_told() {
    let answer = |talk: &mut Talk, psn| {
        talk.put(1, READ_ONLY, psn, &aeth(0x1f), b"data");
    };
    let mut talk = Talk::new();
    talk.put(0, READ_REQUEST, 0, &reth(4), &[]);
    answer(&mut talk, 0);
    talk.put(0, READ_REQUEST, 1, &reth(4), &[]).put(0, READ_REQUEST, 2, &reth(4), &[]);
    answer(&mut talk, 1);
    answer(&mut talk, 2);
    let seen = talk.read();
    assert_eq!(seen.connections[0].reads, [Some(1); 2]);
    assert_eq!(texts(&seen, Topic::Protocol), ["a has more than 1 reads outstanding, which b serves"]);
    // An answer that the capture lost is no such thing.
    let mut talk = Talk::new();
    for psn in 0..6 {
        talk.put(0, READ_REQUEST, psn, &reth(4), &[]);
        if psn != 2 {
            answer(&mut talk, psn);
        }
    }
    let seen = talk.read();
    assert_eq!(texts(&seen, Topic::Protocol), <[&str; 0]>::default());
    assert!(seen.has(Topic::CaptureLoss));
}

#[test]
fn packets_say_how_long_packets_are() {
    // The handshake says 1024, and full packets have 256.
    let data = wire::payload(1, 600);
    let write = |first: usize, middle: usize| {
        let mut talk = Talk::new();
        talk.put(0, WRITE_FIRST, 0, &reth(600), &data[..first]);
        talk.put(0, WRITE_MIDDLE, 1, &[], &data[first..first + middle]);
        talk.put(0, WRITE_LAST, 2, &[], &data[first + middle..]);
        talk.put(1, ACKNOWLEDGE, 2, &aeth(0x1f), &[]).read()
    };
    let seen = write(256, 256);
    assert_eq!(seen.findings.iter().filter(|finding| finding.topic == Topic::Protocol).count(), 0);
    assert_eq!(seen.content(seen.operations[0].id, 600), Some(&*data));
    // One that is neither is not placed.
    let seen = write(256, 100);
    assert!(texts(&seen, Topic::Protocol)[0].contains("a packet of 100 bytes is not its message's last"));
    assert!(seen.agrees(seen.operations[0].id, &data));
    assert!(!seen.operations[0].missing.is_empty());
    // More than was said.
    let mut talk = Talk::new();
    let seen = talk.put(0, WRITE_ONLY, 0, &reth(4), b"too long").read();
    assert_eq!(texts(&seen, Topic::Protocol), ["a write of 4 bytes carries 8"]);
    assert_eq!(seen.there(seen.operations[0].id).total(), 0);
}

#[test]
fn unreliable_connections_are_read_without_acknowledgements() {
    for seed in 0..20 {
        let plan = Plan {
            seed,
            operations: 30,
            pmtu: PMTU,
            psns: [0xff_fff0, 5],
            handshake: true,
            network_loss: None,
            not_ready: None,
            unreliable: true,
        };
        let (tagged, meants) = run(&plan);
        let seen = read(&tagged.into_iter().map(|tagged| tagged.frame).collect::<Vec<_>>());
        check_all(&seen, meants.iter(), |_| true);
        assert_eq!(seen.findings, []);
        assert!(seen.operations.iter().all(|operation| operation.outcome == Outcome::Unknown));
    }
}

/// A datagram from one queue pair to another.
fn datagram(time: u64, from: usize, numbers: (u32, u32), data: &[u8], immediate: Option<u32>) -> Frame {
    let mut headers = [&0x1122_3344_u32.to_be_bytes()[..], &numbers.0.to_be_bytes()].concat();
    headers.extend(immediate.into_iter().flat_map(u32::to_be_bytes));
    let opcode = if immediate.is_some() { 0x65 } else { 0x64 };
    packet(time, from, opcode, numbers.1, 9, &headers, data)
}

#[test]
fn datagrams_are_sends_between_the_queue_pairs_that_they_name() {
    let frames = [
        datagram(1, 0, (0x21, 0x22), b"question", None),
        datagram(2, 1, (0x22, 0x21), b"answer", Some(7)),
        // The same number at another queue pair.
        datagram(3, 0, (0x23, 0x22), b"other", None),
        datagram(4, 0, (0x21, 0x22), b"question 2", None).cut(64),
    ];
    let seen = read(&frames);
    assert_eq!(seen.findings, []);
    let ends: Vec<_> =
        seen.connections.iter().map(|found| (found.known, found.end(Side::A), found.end(Side::B))).collect();
    let end = |host, number| format!("10.0.0.{host}:{number}");
    assert_eq!(
        ends,
        [
            (Known::Datagrams, end(1, "0x21"), end(2, "0x22")),
            (Known::Datagrams, end(1, "0x23"), end(2, "0x22"))
        ]
    );
    let told = |operation: &Operation| {
        (operation.connection, operation.from, operation.length, operation.immediate, operation.cut)
    };
    let operations: Vec<_> = seen.operations.iter().map(told).collect();
    assert_eq!(
        operations,
        [
            (1, Side::A, 8, None, 0),
            (1, Side::B, 6, Some(7), 0),
            (2, Side::A, 5, None, 0),
            (1, Side::A, 10, None, 8)
        ]
    );
    assert!(
        seen.operations.iter().all(|operation| operation.kind == Kind::Send && operation.missing.is_empty())
    );
    assert_eq!(seen.content(seen.operations[1].id, 6), Some(&b"answer"[..]));
    assert_eq!(seen.closed, [1, 2]);
}

/// A capture of one direction, or of queue pairs whose numbers are too near to each other.
#[test]
fn queue_pairs_belong_together_if_somebody_says_so() {
    let plan = Plan {
        seed: 3,
        operations: 20,
        pmtu: PMTU,
        psns: [0x10, 0x20],
        handshake: false,
        network_loss: None,
        not_ready: None,
        unreliable: false,
    };
    let (tagged, meants) = run(&plan);
    let one_way: Vec<Tagged> = tagged.into_iter().filter(|tagged| tagged.frame.bytes[29] == 1).collect();
    let frames: Vec<Frame> = one_way.into_iter().map(|tagged| tagged.frame).collect();
    let known = |pair: Option<(u32, u32)>| {
        let (mut session, mut seen) = (Session::new(Config::default()), Seen::default());
        pair.into_iter().for_each(|(a, b)| session.pair(a, b));
        for frame in &frames {
            let Frame { time, ref bytes, original_length } = *frame;
            session.feed(&Record { time, link: 1, original_length, bytes }, &mut seen);
        }
        session.finish(&mut seen);
        seen
    };
    let seen = known(None);
    assert_eq!((seen.connections[0].known, seen.connections[0].ends[0].number), (Known::OneSided, None));
    for pair in [(NUMBERS[0], NUMBERS[1]), (NUMBERS[1], NUMBERS[0])] {
        let seen = known(Some(pair));
        assert_eq!(seen.connections.len(), 1);
        assert_eq!(seen.connections[0].known, Known::Told);
        assert_eq!(seen.connections[0].ends.map(|end| end.number), NUMBERS.map(Some));
        // The requests of this way, and the answers that it has to those of the other.
        let own = meants.iter().filter(|meant| meant.from == 0).count();
        assert_eq!(seen.operations.iter().filter(|operation| operation.from == Side::A).count(), own);
    }
    assert_eq!(known(Some((0x77, 0x78))).connections[0].known, Known::OneSided);
}

#[test]
fn a_number_that_is_used_again_is_another_connection_and_its_keys_name_other_memory() {
    let mut talk = Talk::new();
    let write = |talk: &mut Talk| {
        talk.put(0, WRITE_ONLY, 0, &reth(4), b"data").put(1, ACKNOWLEDGE, 0, &aeth(0x1f), &[]);
    };
    write(&mut talk);
    // The same numbers, asked for once more.
    talk.frames.extend(Talk::new().frames);
    write(&mut talk);
    let seen = talk.read();
    assert_eq!(seen.connections.iter().map(|found| found.known).collect::<Vec<_>>(), [Known::Cm; 2]);
    let epochs: Vec<_> = seen.regions.iter().map(|region| (region.key, region.epoch)).collect();
    assert_eq!(epochs, [(0x55, 1), (0x55, 2)]);
    let is_other: &dyn Fn(&&Finding) -> bool = &|finding| finding.topic != Topic::Partial;
    assert_eq!(seen.findings.iter().find(is_other), None);
}
