//! The captures that are checked in, as frames.

use std::path::PathBuf;

use rdmacap::file::{Decoder, Item, Step};
use rdmacap::{Config, Session};

use super::{Frame, Seen};

/// The captures.
pub(crate) const ALL: [&str; 18] = [
    "embedded-copy",
    "embedded-copy-iwarp",
    "embedded-messages",
    "nfs-rxe",
    "nfs-siw",
    "rxe-atomics",
    "rxe-headers",
    "rxe-lossy",
    "rxe-midstream",
    "rxe-rping",
    "rxe-rping-segments",
    "rxe-wrap",
    "siw-lossy",
    "siw-midstream",
    "siw-perftest",
    "siw-rping",
    "siw-rping-crc",
    "siw-terminate",
];

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures")
}

pub(crate) fn path(name: &str) -> PathBuf {
    folder().join(name).with_extension("pcapng")
}

/// The frames of a file.
pub(crate) fn frames_of(file: &[u8]) -> Vec<Frame> {
    let (mut decoder, mut at, mut frames) = (Decoder::new(), 0, Vec::new());
    while let Step::Took(length, item) = decoder.step(&file[at..]).expect("a capture") {
        if let Some(Item::Record(record)) = item {
            assert_eq!(record.link, 1, "Ethernet");
            let (time, original_length) = (record.time, record.original_length);
            frames.push(Frame { time, original_length, bytes: record.bytes.to_vec() });
        }
        at += length;
    }
    assert_eq!(at, file.len(), "all of the file");
    frames
}

pub(crate) fn frames(name: &str) -> Vec<Frame> {
    frames_of(&std::fs::read(path(name)).expect("a file"))
}

/// What a session says of a capture.
pub(crate) fn read(name: &str) -> Seen {
    super::read(&frames(name))
}

/// Only that reading comes to an end.
pub(crate) fn read_somehow(link: u32, frames: &[Frame]) {
    let (mut session, mut seen) = (Session::new(Config::default()), Seen::default());
    for frame in frames {
        let Frame { time, ref bytes, original_length } = *frame;
        session.feed(&rdmacap::file::Record { time, link, original_length, bytes }, &mut seen);
    }
    session.finish(&mut seen);
}
