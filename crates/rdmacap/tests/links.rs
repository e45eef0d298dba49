//! The same traffic behind every link, in tunnels, and on every fabric is the same to whoever reads it.

mod wire;

use rdmacap::file::Record;
use rdmacap::{Config, Encapsulation, Operation, Session, Topic};
use wire::links::{ALL, Carrier, FABRICS, Fabric, carry, iwarp_ipv6, on_fabric};
use wire::{Frame, Seen, infiniband, iwarp};

const ROCE: infiniband::Plan = infiniband::Plan {
    seed: 5,
    operations: 40,
    pmtu: 1024,
    psns: [0x10, 0xff_fff0],
    handshake: true,
    network_loss: None,
    not_ready: None,
    unreliable: false,
};
const IWARP: iwarp::Plan = iwarp::Plan {
    seed: 5,
    operations: 40,
    checksums: true,
    markers: false,
    mulpdu: 1400,
    mss: 1448,
    aligned: true,
};

fn roce() -> Vec<Frame> {
    infiniband::run(&ROCE).0.into_iter().map(|tagged| tagged.frame).collect()
}

fn iwarp_frames() -> Vec<Frame> {
    iwarp::run(&IWARP).0.into_iter().map(|segment| segment.frame).collect()
}

fn read(frames: &[Frame], wrap: impl Fn(&Frame) -> (u32, Vec<u8>)) -> Seen {
    let (mut session, mut seen) = (Session::new(Config::default()), Seen::default());
    for frame in frames {
        let (link, bytes) = wrap(frame);
        let record = Record { time: frame.time, link, original_length: bytes.len() as u32, bytes: &bytes };
        session.feed(&record, &mut seen);
    }
    session.finish(&mut seen);
    seen
}

/// Operations and their bytes are the same.
fn check_same(seen: &Seen, expected: &Seen, context: &str) {
    let shown = |operation: &Operation| {
        // Which region a place is in is told apart by hosts, which have other names here.
        let place = operation.target.map(|target| (target.key, target.address));
        (operation.kind, operation.frames, operation.length, place, operation.outcome.clone())
    };
    assert_eq!(seen.findings, expected.findings, "{context}");
    let [found, expected_operations] = [seen, expected].map(|seen| seen.operations.iter().map(shown));
    assert!(found.eq(expected_operations), "{context}: {:?}", seen.operations);
    assert_eq!(seen.contents, expected.contents, "{context}");
    assert_eq!(seen.operations.is_empty(), expected.operations.is_empty());
}

#[test]
fn links_and_tunnels_change_nothing() {
    for frames in [roce(), iwarp_frames()] {
        let expected = read(&frames, |frame| (1, frame.bytes.clone()));
        assert!(expected.operations.len() >= 40 && expected.findings.is_empty());
        for how in ALL {
            let seen = read(&frames, |frame| carry(how, &frame.bytes));
            check_same(&seen, &expected, &format!("{how:?}"));
        }
    }
}

#[test]
fn fabrics_change_nothing() {
    let frames = roce();
    let expected = read(&frames, |frame| (1, frame.bytes.clone()));
    for fabric in FABRICS {
        let seen = read(&frames, |frame| on_fabric(fabric, &frame.bytes));
        check_same(&seen, &expected, &format!("{fabric:?}"));
        let carrier = match fabric {
            Fabric::RoceV2Ipv6 => Encapsulation::RoceV2,
            Fabric::RoceV1 => Encapsulation::RoceV1,
            _ => Encapsulation::InfiniBand,
        };
        assert_eq!(seen.connections[0].carrier, rdmacap::Carrier::InfiniBand(carrier));
    }
    let frames = iwarp_frames();
    let expected = read(&frames, |frame| (1, frame.bytes.clone()));
    let seen = read(&frames, |frame| (1, iwarp_ipv6(frame)));
    check_same(&seen, &expected, "iWARP over IPv6");
}

/// Options before and behind routing change nothing, nor does the header of a fragment that is the whole.
#[test]
fn extension_headers_of_ipv6_change_nothing() {
    let frames = iwarp_frames();
    let expected = read(&frames, |frame| (1, iwarp_ipv6(frame)));
    let with = |headers: &[[u8; 8]], last: fn(&mut Vec<u8>)| {
        read(&frames, |frame| {
            let bytes = iwarp_ipv6(frame);
            let length = u16::from_be_bytes([bytes[18], bytes[19]]) + 8 * headers.len() as u16;
            let mut result = [&bytes[..18], &length.to_be_bytes(), &[headers[0][0], bytes[21]]].concat();
            result.extend(&bytes[22..54]);
            let nexts = headers[1..].iter().map(|header| header[0]).chain([6]);
            headers.iter().zip(nexts).for_each(|(header, next)| {
                result.extend([next]);
                result.extend(&header[1..]);
            });
            result.extend(&bytes[54..]);
            last(&mut result);
            (1, result)
        })
    };
    // What each is stands where what follows it will be.
    let [hops, routing, options] =
        [[0, 0, 1, 4, 0, 0, 0, 0], [43, 0, 4, 0, 0, 0, 0, 0], [60, 0, 1, 4, 0, 0, 0, 0]];
    let whole = [44, 0, 0, 0, 1, 2, 3, 4];
    for headers in
        [&[hops][..], &[hops, options, routing, options], &[whole], &[hops, routing, whole, options]]
    {
        check_same(&with(headers, |_| ()), &expected, &format!("{headers:?}"));
    }
    // More fragments follow; it is not the first.
    for change in [|bytes: &mut Vec<u8>| bytes[57] |= 1, |bytes: &mut Vec<u8>| bytes[56] |= 1] {
        let seen = with(&[whole], change);
        assert!(seen.operations.is_empty() && seen.has(Topic::Fragment));
    }
}

/// The invariant CRC covers other headers on each fabric.
#[test]
fn a_changed_bit_is_a_bad_checksum_on_each_fabric() {
    let frames = roce();
    let at = frames.iter().position(|frame| frame.bytes.len() > 500).expect("a long packet");
    for fabric in [Fabric::RoceV2Ipv6, Fabric::RoceV1] {
        let change = |place: fn(usize) -> usize| {
            read(&frames, |frame| {
                let (link, mut bytes) = on_fabric(fabric, &frame.bytes);
                if frame == &frames[at] {
                    let place = place(bytes.len());
                    bytes[place] ^= 4;
                }
                (link, bytes)
            })
        };
        // The payload; the source address; and the hop limit, which routers change.
        assert!(change(|length| length - 100).has(Topic::Checksum), "{fabric:?}");
        assert!(change(|_| 14 + 12).has(Topic::Checksum), "{fabric:?}");
        assert!(!change(|_| 14 + 7).has(Topic::Checksum), "{fabric:?}");
    }
}

#[test]
fn tunnels_end_somewhere_and_fragments_are_counted() {
    let frames = roce();
    let deep = |levels| {
        read(&frames, |frame| {
            let wrap = |bytes: Vec<u8>, _| carry(Carrier::Vxlan, &bytes).1;
            (1, (0..levels).fold(frame.bytes.clone(), wrap))
        })
    };
    assert!(!deep(4).operations.is_empty());
    assert!(deep(5).operations.is_empty());
    let seen = read(&frames, |frame| {
        let mut bytes = frame.bytes.clone();
        // More fragments follow.
        bytes[20] |= 0x20;
        (1, bytes)
    });
    assert!(seen.operations.is_empty() && seen.has(Topic::Fragment));
}

/// Every beginning of every form: what is cut is passed over, or known as far as it goes.
#[test]
fn frames_that_are_cut_anywhere_are_read() {
    let frames = [&roce()[..8], &iwarp_frames()[..8]].concat();
    for how in ALL {
        for length in 0..120 {
            read(&frames, |frame| {
                let (link, bytes) = carry(how, &frame.bytes);
                (link, bytes[..bytes.len().min(length)].to_vec())
            });
        }
    }
    for fabric in FABRICS {
        for length in 0..120 {
            read(&roce()[..8], |frame| {
                let (link, bytes) = on_fabric(fabric, &frame.bytes);
                (link, bytes[..bytes.len().min(length)].to_vec())
            });
        }
    }
}
