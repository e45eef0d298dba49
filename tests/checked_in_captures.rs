//! The captures in `tests/fixtures/captures` contain what their README says. tshark decodes them.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use support::tshark::{checksums, packets, values};

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name).with_extension("pcapng")
}

/// How often each value of a field occurs.
fn counted(file: &Path, filter: &str, field: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for value in values(file, filter, field) {
        *counts.entry(value).or_default() += 1;
    }
    counts
}

/// Checks iWARP connections: their handshakes, their RDMAP operations, and their CRCs if they are on.
fn check_iwarp(name: &str, crc: bool, operations: &[(&str, usize)]) {
    let file = capture(name);
    assert_eq!(packets(&file, "_ws.malformed || _ws.unreassembled || iwarp_mpa.bad_length"), 0);
    assert_eq!(packets(&file, "tcp.analysis.lost_segment"), 0);
    let revisions = values(&file, "iwarp_mpa.req || iwarp_mpa.rep", "iwarp_mpa.rev");
    assert!(revisions.len() >= 2 && revisions.iter().all(|revision| revision == "2"), "{revisions:?}");
    let expected: BTreeMap<String, usize> =
        operations.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect();
    assert_eq!(counted(&file, "iwarp_ddp_rdmap", "iwarp_rdma.opcode"), expected, "{name}");
    let segments = operations.iter().map(|(_, count)| count).sum();
    assert_eq!(checksums(&file), (if crc { segments } else { 0 }, 0), "{name}");
}

/// Checks a RoCE v2 connection: its connection management, and the operations of its reliable queue pair.
fn check_roce(name: &str, operations: &[(&str, usize)]) {
    let file = capture(name);
    assert_eq!(packets(&file, "_ws.malformed"), 0);
    assert_eq!(packets(&file, "!(udp.dstport == 4791 && infiniband)"), 0);
    // Connection request, reply and ready to use, then disconnect request and reply.
    let attributes = values(&file, "infiniband.mad", "infiniband.mad.attributeid");
    assert_eq!(attributes.len(), 5, "{attributes:?}");
    for attribute in ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"] {
        assert!(attributes.iter().any(|seen| seen == attribute), "{attribute} in {attributes:?}");
    }
    let expected: BTreeMap<String, usize> =
        operations.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect();
    assert_eq!(counted(&file, "!infiniband.mad", "infiniband.bth.opcode"), expected, "{name}");
}

const WRITE: &str = "0x00";
const READ_REQUEST: &str = "0x01";
const READ_RESPONSE: &str = "0x02";
const SEND: &str = "0x03";
const IMMEDIATE: &str = "0x08";

#[test]
fn soft_iwarp() {
    check_iwarp("siw-rping", false, &[(WRITE, 2), (READ_REQUEST, 2), (READ_RESPONSE, 2), (SEND, 8)]);
    check_iwarp("siw-rping-crc", true, &[(WRITE, 2), (READ_REQUEST, 1), (READ_RESPONSE, 2), (SEND, 4)]);
}

#[test]
fn embedded_iwarp() {
    check_iwarp("embedded-copy", false, &[(WRITE, 5), (IMMEDIATE, 6)]);
    check_iwarp("embedded-copy-iwarp", true, &[(WRITE, 5), (SEND, 6)]);
    check_iwarp("embedded-messages", false, &[(WRITE, 6), (SEND, 7), (IMMEDIATE, 4)]);
}

#[test]
fn soft_roce() {
    // Opcodes: 4 send only, 17 acknowledge, 12 read request. Read responses 13 to 16 and writes 6, 7, 8 and
    // 10 are first, middle, last and only packets.
    check_roce("rxe-rping", &[("4", 8), ("10", 2), ("12", 2), ("16", 2), ("17", 10)]);
    check_roce(
        "rxe-rping-segments",
        &[("4", 4), ("6", 1), ("7", 1), ("8", 1), ("12", 1), ("13", 1), ("14", 1), ("15", 1), ("17", 5)],
    );
}

/// Numbers of packets that wrap around, without a handshake.
#[test]
fn soft_roce_around_the_highest_number() {
    let file = capture("rxe-wrap");
    assert_eq!(packets(&file, "_ws.malformed || infiniband.mad"), 0);
    // First, middle and last of ten writes and of the responses to five reads; acknowledgements.
    let expected = [("6", 10), ("7", 10), ("8", 10), ("12", 5), ("13", 5), ("14", 5), ("15", 5), ("17", 10)];
    let expected = expected.map(|(code, count)| (code.to_owned(), count)).into();
    assert_eq!(counted(&file, "infiniband", "infiniband.bth.opcode"), expected);
    let numbers = values(&file, "infiniband", "infiniband.bth.psn");
    assert!(numbers.contains(&"16777215".to_owned()) && numbers.contains(&"0".to_owned()));
}
