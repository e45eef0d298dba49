//! Two processes, one forked from the other, that share a segment.

mod common;

use std::io::{IoSlice, IoSliceMut};

use common::{fork, pair, sleep_until_notified};
use rstream_ring::{Error, Notifier, Notify as _, Reader, RingSizes, Segment, Writer, arm, prepare};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The byte with this number, in a pattern that no ring's size divides.
fn byte(number: usize) -> u8 {
    (number % 251) as u8
}

/// Writes all of `range`, in calls of `length`, sleeping when there is no room.
fn send(writer: &mut Writer, notifier: &Notifier, range: std::ops::Range<usize>, length: usize) {
    let mut next = range.start;
    while next < range.end {
        let bytes: Vec<u8> = (next..range.end.min(next + length)).map(byte).collect();
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let taken = writer.write(&[IoSlice::new(first), IoSlice::new(second)], notifier).unwrap();
        next += taken;
        if taken == 0 && !arm(notifier, None, Some((writer, 1))) {
            sleep_until_notified(notifier);
        }
    }
}

/// Reads until the end or `most` bytes, sleeping when there is nothing, and checks each. Returns how many
/// there were.
fn receive(reader: &mut Reader, notifier: &Notifier, from: usize, most: usize, length: usize) -> usize {
    let (mut next, mut buffer) = (from, vec![0; length]);
    while next < from + most {
        let wanted = length.min(from + most - next);
        let (first, second) = buffer[..wanted].split_at_mut(wanted / 2);
        match reader.read(&mut [IoSliceMut::new(first), IoSliceMut::new(second)], notifier).unwrap() {
            Some(0) => break,
            Some(given) => {
                for (offset, found) in buffer[..given].iter().enumerate() {
                    assert_eq!(*found, byte(next + offset), "byte {}", next + offset);
                }
                next += given;
            }
            None => {
                if !arm(notifier, Some(reader), None) {
                    sleep_until_notified(notifier);
                }
            }
        }
    }
    next - from
}

#[test]
fn every_byte_arrives_both_ways() {
    prepare();
    for (sizes, length) in
        [((1, 3), 7), ((1000, 4096), 64), ((20_001, 65_536), 50_000), ((1 << 19, 1 << 19), 64 << 10)]
    {
        let total = if sizes.0 == 1 { 300 } else { 3_000_000 };
        let (ours, theirs) = pair(RingSizes { output: sizes.0, input: sizes.1 });
        let child = fork(|| {
            let mut end = theirs.map();
            assert_eq!(receive(&mut end.input, &end.notifier, 0, usize::MAX / 2, length), total);
            send(&mut end.output, &end.notifier, 0..total, length);
            end.output.end(&end.notifier);
        });
        let mut end = ours.map();
        send(&mut end.output, &end.notifier, 0..total, length);
        end.output.end(&end.notifier);
        assert_eq!(receive(&mut end.input, &end.notifier, 0, usize::MAX / 2, length), total);
        child.join();
    }
}

#[test]
fn a_killed_peer_leaves_what_it_wrote() {
    let (ours, theirs) = pair(RingSizes { output: 100, input: 100 });
    let child = fork(|| {
        let mut end = theirs.map();
        send(&mut end.output, &end.notifier, 0..100, 10);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    });
    let mut end = ours.map();
    assert_eq!(receive(&mut end.input, &end.notifier, 0, 100, 30), 100);
    assert_eq!(child.wait().terminating_signal(), Some(9));
    while !end.notifier.has_ended() {
        sleep_until_notified(&end.notifier);
        end.notifier.take();
    }
    assert_eq!(
        end.input.read(&mut [IoSliceMut::new(&mut [0])], &end.notifier),
        Ok(None),
        "it never said the end"
    );
    end.output.write(&[IoSlice::new(&[0; 200])], &end.notifier).unwrap();
}

#[test]
fn a_forked_process_goes_on_with_its_parents_end() {
    let (ours, theirs) = pair(RingSizes { output: 64, input: 50 });
    let (mut end, mut peer) = (ours.map(), theirs.map());
    send(&mut peer.output, &peer.notifier, 0..30, 30);
    assert_eq!(receive(&mut end.input, &end.notifier, 0, 13, 13), 13);
    send(&mut end.output, &end.notifier, 0..40, 40);
    let child = fork(|| {
        assert_eq!(receive(&mut end.input, &end.notifier, 13, 1000, 10), 87);
        send(&mut end.output, &end.notifier, 40..500, 9);
        end.output.end(&end.notifier);
    });
    send(&mut peer.output, &peer.notifier, 30..100, 7);
    peer.output.end(&peer.notifier);
    assert_eq!(receive(&mut peer.input, &peer.notifier, 0, 1000, 11), 500);
    child.join();
}

/// The system would end a process that makes a longer file than it may.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    fork(|| {
        let most = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: Some(20_000), maximum: most }).unwrap();
        assert!(Segment::create(RingSizes { output: 4096, input: 8192 }).is_ok());
        let refused = Segment::create(RingSizes { output: 8192, input: 8193 });
        assert!(matches!(refused, Err(Error::Io { what: "ftruncate", .. })));
    })
    .join();
}

/// Short messages at the peer's pace: the reader polls, and sleeps now and then.
#[test]
fn who_polls_and_then_sleeps_is_woken() {
    prepare();
    let (ours, theirs) = pair(RingSizes { output: 4096, input: 4096 });
    const TRIPS: usize = 20_000;
    let child = fork(|| {
        let mut end = theirs.map();
        assert_eq!(receive(&mut end.input, &end.notifier, 0, TRIPS, 1), TRIPS);
    });
    let mut end = ours.map();
    for number in 0..TRIPS {
        send(&mut end.output, &end.notifier, number..number + 1, 1);
        if number % 700 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    child.join();
}
