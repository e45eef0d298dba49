//! How fast captures are read: megabytes of file a second of one processor's time, for each carrier, with and
//! without checksums, and for captures of headers. `cargo bench -p rdmacap`; with a folder, the files are
//! left there.

#[path = "../tests/wire/mod.rs"]
mod wire;

use std::time::Duration;

use rdmacap::file::{Decoder, Item, Step};
use rdmacap::{Config, Operation, Session, Sink};
use wire::{Frame, infiniband, iwarp};

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn ended(&mut self, operation: &Operation) {
        self.0 += operation.length;
    }
}

fn roce(snaplen: usize) -> Vec<u8> {
    let plan = infiniband::Plan {
        seed: 1,
        operations: 20_000,
        pmtu: 4096,
        psns: [1, 2],
        handshake: true,
        network_loss: None,
        not_ready: None,
        unreliable: false,
    };
    let frames = infiniband::run(&plan).0.into_iter();
    file(frames.enumerate().map(|(at, tagged)| if at < 2 { tagged.frame } else { tagged.frame.cut(snaplen) }))
}

fn iwarp(checksums: bool, snaplen: usize) -> Vec<u8> {
    let plan = iwarp::Plan {
        seed: 1,
        operations: 20_000,
        checksums,
        markers: false,
        mulpdu: 8900,
        mss: 8948,
        aligned: true,
    };
    let frames = iwarp::run(&plan).0.into_iter();
    file(
        frames
            .enumerate()
            .map(|(at, segment)| if at < 5 { segment.frame } else { segment.frame.cut(snaplen) }),
    )
}

fn file(frames: impl Iterator<Item = Frame>) -> Vec<u8> {
    wire::pcap(&frames.collect::<Vec<_>>())
}

/// Time that this process has had a processor. What else runs does not count.
fn processor_time() -> Duration {
    let said = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let nanoseconds = said.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

fn main() {
    let folder = std::env::args().nth(1).filter(|argument| !argument.starts_with("--"));
    let icrc = Config::default();
    let plain = Config { check_icrc: false, ..icrc };
    let whole = usize::MAX;
    for (name, file, config) in [
        ("roce, invariant CRC checked", roce(whole), icrc),
        ("roce, not checked", roce(whole), plain),
        ("roce, headers", roce(128), icrc),
        ("iwarp, CRC32c", iwarp(true, whole), icrc),
        ("iwarp, no CRC", iwarp(false, whole), icrc),
        ("iwarp, headers", iwarp(false, 128), icrc),
    ] {
        // A gigabyte in all.
        let rounds = (1 << 30) / file.len() + 1;
        let begin = processor_time();
        let (mut frames, mut count) = (0, Count::default());
        for _ in 0..rounds {
            let (mut decoder, mut session, mut at) = (Decoder::new(), Session::new(config), 0);
            while let Ok(Step::Took(length, item)) = decoder.step(&file[at..]) {
                if let Some(Item::Record(record)) = item {
                    session.feed(&record, &mut count);
                }
                at += length;
            }
            frames += session.frames();
            session.finish(&mut count);
        }
        let seconds = (processor_time() - begin).as_secs_f64();
        let megabytes = (rounds * file.len()) as f64 / 1e6;
        println!(
            "{name:<30} {megabytes:>6.0} MB {:>6.0} MB/s {:>6.2} million frames/s, {:>6.0} MB/s of payload",
            megabytes / seconds,
            frames as f64 / seconds / 1e6,
            count.0 as f64 / 1e6 / seconds
        );
        if let Some(folder) = &folder {
            let path = format!("{folder}/{}.pcap", name.replace([',', ' '], "-"));
            std::fs::write(path, file).expect("a file");
        }
    }
}
