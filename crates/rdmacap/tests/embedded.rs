//! Ground truth: the embedded device carries random operations, a tap in its TCP connection keeps what
//! passes, and what a session makes of that is compared with the memory of both sides.

mod wire;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rdma_testkit::harness::{Pair, SEND, bytes, pattern, remote, segment};
use rdma_testkit::rigs::IwarpRig;
use rdma_verbs::{Access, MemoryRegion, Operation, iwarp};
use rdmacap::{Config, Kind, Outcome, Ranges, Session};
use wire::iwarp::{Plan, Wire};
use wire::{Dice, Frame, Seen};

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

#[test]
fn regions_of_the_capture_are_the_memory_of_the_devices() {
    for seed in 0..6 {
        let crc = seed % 2 == 0;
        let (mut dice, mut pair) =
            (Dice::new(seed), Pair::new(&IwarpRig(iwarp::Config { crc, ..iwarp::Config::default() })));
        let (address, passed) = tap(pair.address);
        pair.address = address;
        let joined = pair.join_with_receives();
        let size = 200_000;
        let window = pair.passive.region(size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
        let store = pair.passive.region(size, Access::REMOTE_READ);
        let (source, target) =
            (pair.active.region(size, Access::empty()), pair.active.region(size, Access::LOCAL_WRITE));
        source.memory().write(0, &pattern(size, 5)).unwrap();
        store.memory().write(0, &pattern(size, 6)).unwrap();
        let (mut written, mut read) = (Ranges::default(), Ranges::default());
        let mut counts: HashMap<Kind, usize> = HashMap::new();
        for id in 0..60 {
            let most = if dice.once_in(3) { 60_000 } else { 300 };
            let length = 1 + dice.below(most) as usize;
            let [here, there] = [0; 2].map(|_| dice.below((size - length) as u64) as usize);
            let (start, end) = (there as u64, (there + length) as u64);
            let kind = match dice.below(3) {
                0 => {
                    let operation = Operation::Write { remote: remote(&window, there), immediate: None };
                    pair.active.post(joined.active, id, operation, &[segment(&source, here, length)]);
                    written.insert(start, end);
                    Kind::Write
                }
                1 => {
                    let operation = Operation::Read { remote: remote(&store, there) };
                    pair.active.post(joined.active, id, operation, &[segment(&target, here, length)]);
                    read.insert(start, end);
                    Kind::Read
                }
                _ => {
                    pair.active.post(joined.active, id, SEND, &[]);
                    pair.at_passive();
                    pair.passive.post_empty_receives(joined.passive, 1);
                    Kind::Send
                }
            };
            *counts.entry(kind).or_default() += 1;
            assert_eq!(pair.at_active().id, id);
        }
        // The last write has landed once a send behind it was received.
        pair.active.post(joined.active, 100, SEND, &[]);
        pair.at_passive();
        *counts.entry(Kind::Send).or_default() += 1;
        let memory = [bytes(&window), bytes(&store)];
        let bases = [&window, &store].map(|region| (region.remote_key(), region.address()));
        drop(pair);

        let mut seen = Seen::default();
        let (mut session, frames) = (Session::new(Config::default()), frames(&passed, crc));
        let mut contents = [vec![0; size], vec![0; size]];
        let mut found = [Ranges::default(), Ranges::default()];
        for frame in &frames {
            let Frame { time, bytes, original_length } = frame;
            let (time, original_length) = (*time, *original_length);
            session.feed(&rdmacap::file::Record { time, link: 1, original_length, bytes }, &mut seen);
        }
        session.finish(&mut seen);
        for operation in &seen.operations {
            let Some(target) = operation.target else { continue };
            let at = bases.iter().position(|base| target.key == base.0).expect("one of the regions");
            let offset = (target.address - bases[at].1) as usize;
            let content = seen.content(operation.id, operation.length).expect("all of it");
            contents[at][offset..offset + content.len()].copy_from_slice(content);
            found[at].insert(offset as u64, (offset + content.len()) as u64);
        }
        assert_eq!(found, [written.clone(), read.clone()], "seed {seed}");
        for (at, ranges) in [&written, &read].into_iter().enumerate() {
            for &(start, end) in ranges.as_slice() {
                let range = start as usize..end as usize;
                assert!(contents[at][range.clone()] == memory[at][range], "seed {seed}");
            }
        }
        // The empty write that opens the connection comes on top.
        *counts.entry(Kind::Write).or_default() += 1;
        for (kind, count) in counts {
            let of_kind = seen.operations.iter().filter(|operation| operation.kind == kind);
            assert_eq!(of_kind.count(), count, "seed {seed}: {kind:?}");
        }
        let open = |operation: &&rdmacap::Operation| operation.outcome == Outcome::Unknown;
        assert_eq!(seen.operations.iter().find(open), None);
        let errors =
            seen.findings.iter().filter(|finding| finding.topic.severity() != rdmacap::Severity::Note);
        assert_eq!(errors.collect::<Vec<_>>(), Vec::<&rdmacap::Finding>::new());
    }
}
