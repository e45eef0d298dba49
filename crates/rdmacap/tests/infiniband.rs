//! Generated operations over RoCE, through networks and captures that lose, repeat, reorder and cut: what
//! is reported is what was meant, or says honestly what is missing.

mod wire;

use std::collections::{HashMap, HashSet};

use rdmacap::{Kind, Operation, Outcome, Topic};
use wire::infiniband::{Plan, Tagged, numbers, run};
use wire::meant::{Meant, check_all};
use wire::{Dice, Frame, Seen, payload, read};

const PLAN: Plan = Plan {
    seed: 0,
    operations: 30,
    pmtu: 1024,
    psns: [0x10, 0xff_fff0],
    handshake: true,
    network_loss: None,
    not_ready: None,
    unreliable: false,
};
const SEEDS: u64 = 60;

fn frames(tagged: &[Tagged]) -> Vec<Frame> {
    tagged.iter().map(|tagged| tagged.frame.clone()).collect()
}

#[test]
fn what_was_meant_is_reported() {
    for seed in 0..SEEDS {
        for handshake in [true, false] {
            let plan = Plan { seed, handshake, pmtu: [256, 1024, 4096][seed as usize % 3], ..PLAN };
            let (tagged, meants) = run(&plan);
            let seen = read(&frames(&tagged));
            assert_eq!(seen.connections.len(), 1, "{:?}", seen.connections);
            if handshake {
                assert_eq!(seen.findings, []);
                check_all(&seen, meants.iter(), |_| true);
                let open = |operation: &&Operation| {
                    operation.took.is_none() || operation.outcome == Outcome::Unknown
                };
                assert_eq!(seen.operations.iter().find(open), None);
            } else {
                // Which side is called first depends on who begins.
                let swapped = seen.connections[0].ends[0].host.to_string() == "10.0.0.2";
                let mut meants = meants;
                meants.iter_mut().for_each(|meant| meant.from ^= usize::from(swapped));
                check_all(&seen, meants.iter(), |_| true);
            }
        }
    }
}

/// Packets that say no.
fn naks(tagged: &[Tagged]) -> usize {
    // Ethernet, IPv4 and UDP, then the opcode and, behind the base header, the syndrome.
    tagged.iter().filter(|tagged| tagged.frame.bytes[42] == 17 && tagged.frame.bytes[54] != 0x1f).count()
}

#[test]
fn losses_in_the_network_are_told_and_change_nothing() {
    for seed in 0..SEEDS {
        let plan = Plan { seed, network_loss: Some(4), not_ready: Some(5), ..PLAN };
        let (tagged, meants) = run(&plan);
        let seen = read(&frames(&tagged));
        check_all(&seen, meants.iter(), |_| true);
        assert!(!seen.has(Topic::CaptureLoss) && !seen.has(Topic::Protocol), "{:#?}", seen.findings);
        let tells = seen.has(Topic::NetworkLoss) || seen.has(Topic::NotReady);
        assert_eq!(naks(&tagged) > 0, tells, "seed {seed}");
    }
}

#[test]
fn copies_and_small_changes_of_order_change_nothing() {
    for seed in 0..SEEDS {
        let (tagged, meants) = run(&Plan { seed, ..PLAN });
        let mut dice = Dice::new(seed + 1000);
        let mut frames = frames(&tagged);
        // The handshake stays in front.
        for at in 2..frames.len() - 1 {
            if dice.once_in(10) {
                frames.swap(at, at + 1);
            }
        }
        for _ in 0..5 {
            let at = 2 + dice.below(frames.len() as u64 - 3) as usize;
            frames.insert(at + 1, frames[at].clone());
        }
        let seen = read(&frames);
        check_all(&seen, meants.iter(), |_| true);
    }
}

#[test]
fn what_the_capture_lost_is_missing_and_nothing_else() {
    for seed in 0..4 * SEEDS {
        let (tagged, meants) = run(&Plan { seed, ..PLAN });
        let mut dice = Dice::new(seed + 2000);
        let mut lost: HashMap<u32, HashSet<usize>> = HashMap::new();
        let mut kept = Vec::new();
        for (at, tagged) in tagged.iter().enumerate() {
            if at >= 2 && dice.once_in(12) {
                if let Some((id, number)) = tagged.of {
                    lost.entry(id).or_default().insert(number);
                }
            } else {
                kept.push(tagged.frame.clone());
            }
        }
        let seen = read(&kept);
        assert_eq!(seen.findings.iter().filter(|finding| finding.topic == Topic::Protocol).count(), 0);
        if !lost.is_empty() {
            let says = seen.operations.iter().any(|operation| {
                !operation.missing.is_empty()
                    || operation.outcome == Outcome::Incomplete
                    || operation.outcome == Outcome::Unknown
            });
            let tells = [Topic::CaptureLoss, Topic::Partial].iter().any(|topic| seen.has(*topic));
            assert!(says || tells, "seed {seed}");
        }
        check_lossy(&seen, &meants, &lost);
    }
}

/// No byte is wrong; what came is there, as far as it is certain where it belongs; what did not come is
/// missing.
fn check_lossy(seen: &Seen, meants: &[Meant], lost: &HashMap<u32, HashSet<usize>>) {
    let mut reported = HashSet::new();
    for operation in &seen.operations {
        let there = seen.there(operation.id);
        for (start, end) in &operation.missing {
            assert!(there.missing(*start, *end).eq([(*start, *end)]), "missing and there: {operation:?}");
        }
        if operation.atomic.is_some() {
            continue;
        }
        let Some(id) = seen.owner(operation.id) else { continue };
        let meant = &meants[id as usize - 1];
        assert!(seen.agrees(operation.id, &meant.bytes), "{operation:?}");
        assert_eq!((operation.kind, operation.from as usize), (meant.kind, meant.from));
        assert!(reported.insert(id), "two operations made of one");
        let mut expected = rdmacap::Ranges::default();
        let none = HashSet::new();
        let gone = lost.get(&id).unwrap_or(&none);
        for number in (0..numbers(meant, 1024)).filter(|number| !gone.contains(number)) {
            let start = number * 1024;
            expected.insert(start as u64, (start + 1024).min(meant.bytes.len()) as u64);
        }
        let certain = meant.kind != Kind::Send || gone.len() <= 1;
        if certain && !gone.contains(&0) || gone.is_empty() {
            assert_eq!(there, expected, "{operation:?}\n{meant:?}\n{gone:?}");
            if meant.kind != Kind::Send {
                let holes: Vec<(u64, u64)> = there.missing(0, meant.bytes.len() as u64).collect();
                assert_eq!(operation.missing, holes, "{operation:?}");
            }
        }
    }
    // Nothing that came whole is left out.
    for meant in meants.iter().filter(|meant| !lost.contains_key(&meant.id)) {
        let found = meant.bytes.len() < 8 || meant.is_atomic();
        assert!(found || reported.contains(&meant.id), "{meant:?} is not reported");
    }
}

#[test]
fn a_capture_of_headers_tells_the_operations() {
    for seed in 0..SEEDS {
        let (tagged, meants) = run(&Plan { seed, ..PLAN });
        for snaplen in [100, 128, 256] {
            let cut: Vec<Frame> = tagged.iter().map(|tagged| tagged.frame.cut(snaplen)).collect();
            // The connection manager's messages are whole, as a filter would have them.
            let cut = [&frames(&tagged[..2]), &cut[2..]].concat();
            let seen = read(&cut);
            assert_eq!(seen.operations.len(), meants.len());
            for operation in &seen.operations {
                assert!(operation.missing.is_empty());
                let there = seen.there(operation.id).total();
                if operation.atomic.is_none() {
                    assert_eq!(there + operation.cut, operation.length);
                }
                let Some(id) = seen.owner(operation.id).filter(|_| operation.atomic.is_none()) else {
                    continue;
                };
                assert!(seen.agrees(operation.id, &payload(id, operation.length as usize)));
            }
        }
    }
}

#[test]
fn a_changed_bit_is_a_bad_checksum() {
    let (tagged, _) = run(&PLAN);
    let mut frames = frames(&tagged);
    let at = frames.iter().position(|frame| frame.bytes.len() > 500).expect("a long packet");
    frames[at].bytes[400] ^= 4;
    let seen = read(&frames);
    assert_eq!(seen.findings.iter().filter(|finding| finding.topic == Topic::Checksum).count(), 1);
    assert!(seen.has(Topic::CaptureLoss));
}
