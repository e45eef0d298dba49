//! Ground truth: devices carry random operations, and what a session makes of a capture of them is compared
//! with the memory of both sides. The embedded device has a tap in its TCP connection; what the simulated one
//! carries is put into packets of RoCE, with the bytes that were in memory then.

mod wire;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rdma_testkit::harness::{Joined, Pair, SEND, bytes, pattern, remote, segment};
use rdma_testkit::rigs::{IwarpRig, SimRig};
use rdma_verbs::{Access, Device, MemoryRegion, Operation, iwarp};
use rdmacap::{Kind, Outcome, Ranges, Severity};
use wire::iwarp::{Plan, Wire};
use wire::meant::{Meant, check_all};
use wire::{Dice, Frame, infiniband, read};

/// Passes one connection on to `to`. Answers where it listens, and what passes: who sent it, and the bytes.
fn tap(to: SocketAddr) -> (SocketAddr, Receiver<(usize, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let (active, _) = listener.accept().expect("a connection");
        let passive = TcpStream::connect(to).expect("the device listens");
        let ways = [(0, &active, &passive), (1, &passive, &active)].map(|(from, source, sink)| {
            let (mut source, mut sink) =
                (source.try_clone().expect("a copy"), sink.try_clone().expect("a copy"));
            let sender = sender.clone();
            thread::spawn(move || {
                let mut buffer = vec![0; 16_000];
                while let Ok(length @ 1..) = source.read(&mut buffer) {
                    // Kept before it goes on, so that it comes before its answer.
                    let _ = sender.send((from, buffer[..length].to_vec()));
                    if sink.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                let _ = sink.shutdown(std::net::Shutdown::Write);
            })
        });
        ways.into_iter().for_each(|way| way.join().expect("a thread"));
    });
    (address, receiver)
}

/// What passed the tap, as frames of a capture.
fn frames(passed: &Receiver<(usize, Vec<u8>)>, crc: bool) -> Vec<Frame> {
    let plan = Plan {
        seed: 0,
        operations: 0,
        checksums: crc,
        markers: false,
        mulpdu: 1400,
        mss: 16_000,
        aligned: true,
    };
    let mut wire = Wire::new(plan);
    wire.open_tcp();
    while let Ok((from, bytes)) = passed.recv() {
        wire.raw(from, &bytes);
        wire.acknowledge(1 - from);
    }
    wire.close();
    wire.frames.into_iter().map(|segment| segment.frame).collect()
}

/// Bytes of each region.
const SIZE: usize = 200_000;

/// What a device was asked to do, and what that made of its memory.
struct Truth {
    meants: Vec<Meant>,
    /// The passive side's region that is written, and the one that is read.
    regions: [Region; 2],
}

struct Region {
    key: u32,
    address: u64,
    /// Offsets that operations were about.
    touched: Ranges,
    /// The content when all was over.
    memory: Vec<u8>,
}

/// Has the active side write, read and send at random.
fn work<D: Device>(pair: &mut Pair<D>, joined: Joined, dice: &mut Dice) -> Truth {
    let window = pair.passive.region(SIZE, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let store = pair.passive.region(SIZE, Access::REMOTE_READ);
    let source = pair.active.region(SIZE, Access::empty());
    let target = pair.active.region(SIZE, Access::LOCAL_WRITE);
    source.memory().write(0, &pattern(SIZE, 5)).unwrap();
    store.memory().write(0, &pattern(SIZE, 6)).unwrap();
    let (mut touched, mut meants) = ([Ranges::default(), Ranges::default()], Vec::new());
    for id in 1..=60 {
        let most = if dice.once_in(3) { 60_000 } else { 300 };
        let length = 1 + dice.below(most) as usize;
        let [here, there] = [0; 2].map(|_| dice.below((SIZE - length) as u64) as usize);
        let (start, end) = (there as u64, (there + length) as u64);
        let mut meant = match dice.below(3) {
            0 => {
                let operation = Operation::Write { remote: remote(&window, there), immediate: None };
                pair.active.post(joined.active, id, operation, &[segment(&source, here, length)]);
                touched[0].insert(start, end);
                let (key, address) = (window.remote_key(), remote(&window, there).address);
                let bytes = bytes(&source)[here..here + length].to_vec();
                Meant { key, address, ..Meant::plain(id as u32, 0, Kind::Write, bytes) }
            }
            1 => {
                let operation = Operation::Read { remote: remote(&store, there) };
                pair.active.post(joined.active, id, operation, &[segment(&target, here, length)]);
                touched[1].insert(start, end);
                let (key, address) = (store.remote_key(), remote(&store, there).address);
                Meant { key, address, ..Meant::plain(id as u32, 0, Kind::Read, Vec::new()) }
            }
            _ => {
                pair.active.post(joined.active, id, SEND, &[]);
                pair.at_passive();
                pair.passive.post_empty_receives(joined.passive, 1);
                Meant::plain(id as u32, 0, Kind::Send, Vec::new())
            }
        };
        assert_eq!(pair.at_active().id, id);
        if meant.kind == Kind::Read {
            // What arrived is what travelled.
            meant.bytes = bytes(&target)[here..here + length].to_vec();
        }
        meants.push(meant);
    }
    // The last write has landed once a send behind it was received.
    pair.active.post(joined.active, 100, SEND, &[]);
    pair.at_passive();
    meants.push(Meant::plain(100, 0, Kind::Send, Vec::new()));
    let [written, looked_at] = touched;
    let region = |region: &D::Mr, touched| Region {
        key: region.remote_key(),
        address: region.address(),
        touched,
        memory: bytes(region),
    };
    Truth { regions: [region(&window, written), region(&store, looked_at)], meants }
}

/// The regions of a capture are the memory, and its operations those that were asked for.
fn compare(truth: &Truth, frames: &[Frame], context: &str) {
    let seen = read(frames);
    let mut contents = [vec![0; SIZE], vec![0; SIZE]];
    let mut found = [Ranges::default(), Ranges::default()];
    for operation in &seen.operations {
        let Some(target) = operation.target else { continue };
        let at =
            truth.regions.iter().position(|region| target.key == region.key).expect("one of the regions");
        let offset = (target.address - truth.regions[at].address) as usize;
        let content = seen.content(operation.id, operation.length).expect("all of it");
        contents[at][offset..offset + content.len()].copy_from_slice(content);
        found[at].insert(offset as u64, (offset + content.len()) as u64);
    }
    for (at, region) in truth.regions.iter().enumerate() {
        assert_eq!(found[at], region.touched, "{context}");
        for (start, end) in region.touched.iter() {
            let range = start as usize..end as usize;
            assert!(contents[at][range.clone()] == region.memory[range], "{context}");
        }
    }
    // The empty write that opens a connection of the embedded device comes on top.
    let opens = |operation: &rdmacap::Operation| operation.kind == Kind::Write && operation.length == 0;
    check_all(&seen, truth.meants.iter(), |operation| !opens(operation));
    let open = |operation: &&rdmacap::Operation| operation.outcome == Outcome::Unknown;
    assert_eq!(seen.operations.iter().find(open), None);
    let is_wrong = |finding: &&rdmacap::Finding| finding.topic.severity() != Severity::Note;
    assert_eq!(seen.findings.iter().find(is_wrong), None);
}

#[test]
fn regions_of_the_capture_are_the_memory_of_the_embedded_device() {
    for seed in 0..6 {
        let crc = seed % 2 == 0;
        let mut pair = Pair::new(&IwarpRig(iwarp::Config { crc, ..iwarp::Config::default() }));
        let (address, passed) = tap(pair.address);
        pair.address = address;
        let joined = pair.join_with_receives();
        let truth = work(&mut pair, joined, &mut Dice::new(seed));
        drop(pair);
        compare(&truth, &frames(&passed, crc), &format!("seed {seed}"));
    }
}

#[test]
fn regions_of_the_capture_are_the_memory_of_the_simulated_device() {
    for seed in 0..20 {
        let mut pair = Pair::new(&SimRig::infiniband());
        let joined = pair.join_with_receives();
        let truth = work(&mut pair, joined, &mut Dice::new(seed + 100));
        let plan = infiniband::Plan {
            seed,
            operations: 0,
            pmtu: [256, 1024, 4096][seed as usize % 3],
            psns: [0xff_ffe0, 7],
            handshake: true,
            network_loss: None,
            not_ready: None,
            unreliable: false,
        };
        let frames: Vec<Frame> =
            infiniband::transmit(&plan, &truth.meants).into_iter().map(|tagged| tagged.frame).collect();
        compare(&truth, &frames, &format!("seed {seed}"));
    }
}
