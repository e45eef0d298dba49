//! Generated operations over iWARP, through networks and captures that lose, repeat, reorder and cut: what
//! is reported is what was meant, or says honestly what is missing.

mod wire;

use std::process::Command;

use rdmacap::{Finding, Kind, Known, Operation, Outcome, Ranges, Topic};
use wire::iwarp::{Plan, Segment, Sent, run};
use wire::{Dice, Frame, Seen, meant, read};

const PLAN: Plan =
    Plan { seed: 0, operations: 25, checksums: true, markers: false, mulpdu: 1400, mss: 1448, aligned: true };
const SEEDS: u64 = 8;

fn frames(segments: &[Segment]) -> Vec<Frame> {
    segments.iter().map(|segment| segment.frame.clone()).collect()
}

/// The empty sends that the generator has in between are none of these.
fn check_all(seen: &Seen, sent: &[Sent]) {
    let is_filler = |kind, length: u64, invalidate: Option<u32>| {
        kind == Kind::Send && length == 0 && invalidate.is_none()
    };
    let meants = sent.iter().map(|sent| &sent.meant);
    let meants = meants.filter(|meant| !is_filler(meant.kind, meant.bytes.len() as u64, meant.invalidate));
    meant::check_all(seen, meants, |operation| {
        !is_filler(operation.kind, operation.length, operation.invalidate)
    });
}

/// All ways in which the streams can look.
fn plans() -> impl Iterator<Item = Plan> {
    (0..SEEDS).flat_map(|seed| {
        [true, false].into_iter().flat_map(move |checksums| {
            [true, false].into_iter().flat_map(move |markers| {
                [(1400, 1448), (1400, 100), (60_000, 16_000), (300, 8000)].into_iter().map(
                    move |(mulpdu, mss)| Plan {
                        seed,
                        checksums,
                        markers,
                        mulpdu,
                        mss,
                        aligned: seed % 2 == 0,
                        ..PLAN
                    },
                )
            })
        })
    })
}

#[test]
fn what_was_meant_is_reported() {
    for plan in plans().filter(|plan| plan.seed < 10) {
        let (segments, sent) = run(&plan);
        let seen = read(&frames(&segments));
        assert_eq!(seen.findings, [], "{plan:?}");
        assert_eq!(seen.connections.len(), 1);
        assert_eq!(seen.connections[0].known, Known::Mpa);
        assert_eq!(seen.connections[0].private_data[0].as_deref(), Some(&b"private"[..]));
        check_all(&seen, &sent);
        let open = |operation: &&Operation| operation.took.is_none();
        assert_eq!(seen.operations.iter().find(open), None);
    }
}

/// The generator has markers and checksums where tshark expects them. With this seed no marker is right
/// behind an FPDU: tshark 4.0 counts such a one to that FPDU, not to the next (RFC 5044 4.3).
#[test]
fn tshark_agrees_with_the_generator() {
    for markers in [true, false] {
        let (segments, _) = run(&Plan { markers, operations: 60, seed: 1, ..PLAN });
        let file = std::env::temp_dir().join(format!("rdmacap-{}-{markers}.pcap", std::process::id()));
        std::fs::write(&file, wire::pcap(&frames(&segments))).expect("a file");
        let output = Command::new("tshark").args(["-n", "-V", "-r"]).arg(&file).output();
        std::fs::remove_file(&file).expect("the file");
        let Ok(output) = output else {
            eprintln!("skipped: no tshark");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.matches("(Good CRC32)").count() > 100);
        assert_eq!(text.matches("(Bad CRC32").count(), 0);
        assert_eq!(text.matches("    Markers").count() > 10, markers);
    }
}

#[test]
fn losses_and_changes_of_order_in_the_network_change_nothing() {
    for plan in plans().filter(|plan| plan.seed < 10) {
        let (segments, sent) = run(&plan);
        let mut dice = Dice::new(plan.seed + 1000);
        let mut late: Vec<(usize, Frame)> = Vec::new();
        let mut result = Vec::new();
        for (at, segment) in segments.iter().enumerate() {
            late.retain(|(due, frame)| {
                if *due == at {
                    result.push(frame.clone());
                }
                *due > at
            });
            // What answers it cannot come before it.
            let answers =
                |frame: &Frame| frame.bytes[29] != segment.frame.bytes[29] && segment.carries.is_some();
            result.extend(late.extract_if(.., |(_, frame)| answers(frame)).map(|(_, frame)| frame));
            match dice.below(10) {
                // It comes some frames later.
                0 if at > 4 && segment.carries.is_some() => {
                    late.push((at + 1 + dice.below(6) as usize, segment.frame.clone()));
                }
                1 if at > 4 => {
                    result.push(segment.frame.clone());
                    result.push(segment.frame.clone());
                }
                _ => result.push(segment.frame.clone()),
            }
        }
        result.extend(late.into_iter().map(|(_, frame)| frame));
        let seen = read(&result);
        let never = [Topic::CaptureLoss, Topic::Protocol, Topic::Differs];
        assert!(!never.iter().any(|topic| seen.has(*topic)), "{plan:?} {:#?}", seen.findings);
        check_all(&seen, &sent);
    }
}

/// The bytes of each stream that are in these frames.
fn captured(segments: &[&Segment]) -> [Ranges; 2] {
    let mut there = [Ranges::default(), Ranges::default()];
    for (from, range) in segments.iter().filter_map(|segment| segment.carries.as_ref()) {
        there[*from].insert(range.start, range.end);
    }
    there
}

/// Which operation was meant: each has memory of its own, and what sends carry says whose it is.
fn owner(seen: &Seen, operation: &Operation) -> Option<u32> {
    match operation.target {
        _ if operation.atomic.is_some() => None,
        Some(target) => u32::try_from((target.address - 0x7f00_0000_0000) >> 20).ok(),
        None => seen.owner(operation.id),
    }
}

/// No byte is wrong. With checksums, every FPDU that was captured whole is found.
fn check_lossy(seen: &Seen, sent: &[Sent], there: &[Ranges; 2], plan: &Plan) {
    let mut found: std::collections::HashMap<u32, Ranges> = Default::default();
    for operation in &seen.operations {
        let known = seen.there(operation.id);
        for (start, end) in &operation.missing {
            assert!(known.missing(*start, *end).eq([(*start, *end)]), "missing and there: {operation:?}");
        }
        let Some(id) = owner(seen, operation) else { continue };
        let meant = &sent[id as usize - 1].meant;
        assert_eq!(operation.kind, meant.kind);
        // What has lost its beginning counts from where it begins.
        let content = &meant.bytes;
        let skip = match operation.target {
            Some(target) => target.address.wrapping_sub(meant.address),
            None => 0,
        };
        assert!(skip <= content.len() as u64, "{operation:?} {meant:?}");
        assert!(seen.agrees(operation.id, &content[skip as usize..]), "{operation:?} {meant:?}");
        let of = found.entry(id).or_default();
        for (start, end) in known.iter() {
            assert!(of.insert(start + skip, end + skip), "a byte comes once");
        }
    }
    for Sent { meant, fpdus } in sent {
        let reported = found.remove(&meant.id).unwrap_or_default();
        let mut captured = Ranges::default();
        for (from, place, bytes) in fpdus {
            if there[*from].contains(place.start, place.end) {
                captured.insert(bytes.start, bytes.end);
                let whole = reported.contains(bytes.start, bytes.end);
                let response = meant.kind == Kind::Read;
                let certain = plan.checksums && !plan.markers && !response && bytes.end - bytes.start >= 16;
                assert!(
                    whole || !certain,
                    "{bytes:?} of {meant:?} was captured and is not reported: {plan:?}"
                );
            } else {
                assert!(
                    place.clone().any(|at| there[*from].contains(at, at + 1)) || {
                        !reported.iter().any(|range| range.0 < bytes.end && range.1 > bytes.start)
                    }
                );
            }
        }
    }
}

#[test]
fn what_the_capture_lost_is_missing_and_nothing_else() {
    for plan in plans() {
        let (segments, sent) = run(&plan);
        let mut dice = Dice::new(plan.seed + 2000);
        let kept: Vec<&Segment> = segments
            .iter()
            .enumerate()
            .filter(|(at, _)| *at < 5 || !dice.once_in(15))
            .map(|kept| kept.1)
            .collect();
        let frames: Vec<Frame> = kept.iter().map(|segment| segment.frame.clone()).collect();
        let seen = read(&frames);
        let there = captured(&kept);
        let lost = segments.iter().filter(|segment| segment.carries.is_some()).count()
            - kept.iter().filter(|segment| segment.carries.is_some()).count();
        assert_eq!(lost > 0, seen.has(Topic::CaptureLoss), "{plan:?} {lost} {:?}", seen.findings);
        check_lossy(&seen, &sent, &there, &plan);
    }
}

#[test]
fn a_capture_that_begins_in_the_middle_is_read_from_there() {
    for plan in plans().filter(|plan| !plan.markers && plan.mulpdu < 60_000) {
        let (segments, sent) = run(&Plan { operations: 40, ..plan });
        let mut dice = Dice::new(plan.seed + 3000);
        let skip = 5 + dice.below(segments.len() as u64 / 3) as usize;
        let kept: Vec<&Segment> = segments.iter().skip(skip).collect();
        let frames: Vec<Frame> = kept.iter().map(|segment| segment.frame.clone()).collect();
        let mut seen = read(&frames);
        assert_eq!(seen.connections.len(), 1, "{plan:?}");
        assert_eq!(seen.connections[0].known, Known::Guessed);
        assert!(seen.has(Topic::Partial));
        // Who is called the first side is whoever was seen first.
        let swapped = seen.connections[0].ends[0].host.to_string() == "10.0.0.2";
        if swapped {
            seen.operations.iter_mut().for_each(|operation| operation.from = operation.from.other());
        }
        check_lossy(&seen, &sent, &captured(&kept), &plan);
        let whole = seen.operations.iter().filter(|operation| operation.outcome != Outcome::Incomplete);
        assert!(whole.count() > 10, "{plan:?}");
    }
}

#[test]
fn a_capture_of_headers_tells_the_operations() {
    for plan in plans().filter(|plan| plan.aligned && plan.mss > plan.mulpdu && !plan.markers) {
        let (segments, sent) = run(&plan);
        for snaplen in [110, 128] {
            let cut: Vec<Frame> = segments
                .iter()
                .enumerate()
                .map(|(at, segment)| if at < 5 { segment.frame.clone() } else { segment.frame.cut(snaplen) })
                .collect();
            let seen = read(&cut);
            assert!(!seen.has(Topic::CaptureLoss) && !seen.has(Topic::Protocol), "{:#?}", seen.findings);
            for operation in &seen.operations {
                assert!(operation.missing.is_empty(), "{operation:?}");
                let Some(id) = seen.owner(operation.id).filter(|_| operation.atomic.is_none()) else {
                    continue;
                };
                let meant = &sent[id as usize - 1].meant;
                assert_eq!((operation.kind, operation.length), (meant.kind, meant.bytes.len() as u64));
                assert!(seen.agrees(operation.id, &meant.bytes));
                assert_eq!(seen.there(operation.id).total() + operation.cut, operation.length);
            }
            let named = seen.operations.iter().filter(|operation| operation.atomic.is_none());
            let count =
                named.filter(|operation| operation.length > 0 || operation.immediate.is_some()).count();
            let meants = sent.iter().map(|sent| &sent.meant).filter(|meant| !meant.is_atomic());
            let meant = meants.filter(|meant| !meant.bytes.is_empty() || meant.immediate.is_some());
            assert_eq!(count, meant.count());
        }
    }
}

/// Of several FPDUs in a segment only the first is known, which is said.
#[test]
fn a_capture_of_headers_says_that_it_may_lack_operations() {
    let (segments, _) = run(&Plan { mulpdu: 300, mss: 8000, aligned: false, ..PLAN });
    let cut: Vec<Frame> = segments.iter().map(|segment| segment.frame.cut(128)).collect();
    let seen = read(&cut);
    let errors = seen.findings.iter().filter(|finding| finding.topic != Topic::Cut);
    assert_eq!(errors.collect::<Vec<_>>(), <[&Finding; 0]>::default());
    assert!(seen.has(Topic::Cut));
}

#[test]
fn a_changed_bit_is_a_bad_checksum() {
    let (segments, _) = run(&PLAN);
    let mut frames = frames(&segments);
    let at = frames.iter().position(|frame| frame.bytes.len() > 500).expect("a long segment");
    frames[at].bytes[400] ^= 4;
    let seen = read(&frames);
    assert_eq!(seen.findings.iter().filter(|finding| finding.topic == Topic::Checksum).count(), 1);
}
