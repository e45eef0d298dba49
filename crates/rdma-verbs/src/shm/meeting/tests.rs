use std::io::IoSlice;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::shm::{Message, Next};
use crate::{Operation, Payload, RemoteAddress, SendRequest};

const ACTIVE: &str = "127.0.0.1:1000";
const PASSIVE: &str = "127.0.0.1:2000";

fn ends() -> (SocketAddr, SocketAddr) {
    (ACTIVE.parse().unwrap(), PASSIVE.parse().unwrap())
}

fn swapped((own, peers): (SocketAddr, SocketAddr)) -> (SocketAddr, SocketAddr) {
    (peers, own)
}

fn target(key: u32) -> Target {
    Target { key, memory: Memory::zeroed(20_000).unwrap() }
}

fn open() -> (Meeting, Invitation) {
    Meeting::open(target(1), ends().1).expect("a place to meet on this host")
}

/// Both ends, and the memory of the passive one.
fn channels() -> (Channel, Channel, Target) {
    let (meeting, invitation) = open();
    let passive_target = target(2);
    let passive = Channel::visit(&invitation, &passive_target, swapped(ends())).unwrap();
    (meeting.attend(ends(), false).unwrap(), passive, passive_target)
}

fn write(offset: u64, bytes: &[u8], key: u32) -> bool {
    let (mut active, mut passive, memory) = channels();
    let operation = Operation::Write { remote: RemoteAddress { key, address: offset }, immediate: Some(9) };
    let slices = [IoSlice::new(bytes)];
    let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(&slices) };
    let posted = active.post(&[request], 10_000, 0);
    if posted {
        let (length, immediate) = (bytes.len() as u32, Some(9));
        assert_eq!(passive.next(0), Next::Message(Message::Write { offset, length, immediate }));
        let mut found = vec![0; bytes.len()];
        memory.memory.read(offset, &mut found).unwrap();
        assert_eq!(found, bytes);
        passive.take();
    }
    assert_eq!(passive.next(0), Next::Nothing);
    posted
}

#[test]
fn bytes_arrive_in_the_peers_memory() {
    assert!(write(0, b"hello", 2) && write(19_995, b"hello", 2) && write(20_000, b"", 2));
}

#[test]
fn what_does_not_lie_in_the_peers_memory_takes_the_stream() {
    assert!(!write(19_996, b"hello", 2), "beyond its end");
    assert!(!write(u64::MAX - 2, b"hello", 2), "around the end of all addresses");
    assert!(!write(0, b"hello", 3), "another key");
    assert!(!write(0, &[0; 10_001], 2), "longer than what is taken inline");
}

#[test]
fn the_passive_side_waits_until_the_active_side_has_joined() {
    let (meeting, invitation) = open();
    let mut passive = Channel::visit(&invitation, &target(2), swapped(ends())).unwrap();
    let operation = Operation::Send { immediate: Some(1), invalidate: None, solicited: false };
    let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(&[]) };
    assert!(!passive.post(&[request], 0, 0));
    let mut active = meeting.attend(ends(), false).unwrap();
    assert!(passive.post(&[request], 0, 0));
    assert_eq!(active.next(0), Next::Message(Message::Send { immediate: 1 }));
}

#[test]
fn what_was_sent_before_by_the_stream_comes_first() {
    let (mut active, mut passive, _) = channels();
    let operation = Operation::Send { immediate: Some(1), invalidate: None, solicited: false };
    let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(&[]) };
    assert!(active.post(&[request], 0, 100));
    assert_eq!(passive.next(0), Next::Stream(100));
    assert_eq!(passive.next(99), Next::Stream(1));
    assert_eq!(passive.next(100), Next::Message(Message::Send { immediate: 1 }));
}

#[test]
fn who_sleeps_is_notified() {
    let (mut active, mut passive, _) = channels();
    let operation = Operation::Send { immediate: Some(1), invalidate: None, solicited: false };
    let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(&[]) };
    let is_notified = |channel: &Channel| {
        let mut polled = [PollFd::from_borrowed_fd(channel.notifier(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(active.post(&[request], 0, 0) && !is_notified(&passive), "it does not sleep");
    assert!(passive.arm(), "something is there");
    passive.take();
    assert!(!passive.arm());
    assert!(active.post(&[request], 0, 0) && is_notified(&passive));
    assert!(
        passive.arm() && !is_notified(&passive),
        "it has taken the notification, and one message is there"
    );
    drop(active);
    assert!(is_notified(&passive) && !passive.is_alone());
    passive.arm();
    assert!(passive.is_alone(), "nobody notifies any more");
}

#[test]
fn a_peer_on_another_host_is_not_invited() {
    for remote in ["192.0.2.1:1000", "[2001:db8::1]:1000"] {
        assert!(Meeting::open(target(1), remote.parse().unwrap()).is_none(), "{remote}");
    }
}

#[test]
fn who_does_not_hold_this_connection_shares_nothing() {
    let others = ("127.0.0.1:1001".parse().unwrap(), ends().1);
    let (meeting, invitation) = open();
    assert!(Channel::visit(&invitation, &target(2), swapped(others)).is_some());
    assert!(meeting.attend(ends(), false).is_none(), "a proxy's connection");
    let (meeting, invitation) = open();
    let mut guessed = invitation;
    guessed.0[size_of::<Name>()] ^= 1;
    assert!(Channel::visit(&guessed, &target(2), swapped(ends())).is_some());
    assert!(meeting.attend(ends(), false).is_none(), "a wrong secret");
}

#[test]
fn a_stranger_before_the_peer_does_no_harm() {
    let (meeting, invitation) = open();
    let (name, ..) = invitation.parse().unwrap();
    let stranger = unix_socket().unwrap();
    net::connect(&stranger, &address(name).unwrap()).unwrap();
    net::send(&stranger, b"hello", SendFlags::NOSIGNAL).unwrap();
    let passive = Channel::visit(&invitation, &target(2), swapped(ends()));
    assert!(passive.is_some() && meeting.attend(ends(), false).is_some());
}

#[test]
fn nobody_came() {
    assert!(open().0.attend(ends(), false).is_none());
    let (meeting, invitation) = open();
    drop(meeting);
    assert!(Channel::visit(&invitation, &target(2), swapped(ends())).is_none(), "nobody there");
}

#[test]
fn memory_of_the_heap_is_not_shared() {
    let (_meeting, invitation) = open();
    let small = Target { key: 2, memory: Memory::zeroed(100).unwrap() };
    assert!(Channel::visit(&invitation, &small, swapped(ends())).is_none());
}
