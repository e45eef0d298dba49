use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;

use super::*;

const SIZES: RingSizes = RingSizes { output: 100, input: 50 };

fn ends() -> (SocketAddr, SocketAddr) {
    ("127.0.0.1:1000".parse().unwrap(), "127.0.0.1:2000".parse().unwrap())
}

fn swapped<T>((own, peers): (T, T)) -> (T, T) {
    (peers, own)
}

fn peers(sizes: RingSizes) -> RingSizes {
    RingSizes { output: sizes.input, input: sizes.output }
}

/// A listening side, and what the other side has to know.
fn listening() -> (Listener, Rendezvous) {
    let rendezvous = Rendezvous::new(ends().1).expect("the peer is on this host");
    (rendezvous.listen().unwrap(), Rendezvous::from_bytes(&rendezvous.to_bytes()).unwrap())
}

/// A process that connects without being the peer.
fn stranger(rendezvous: Rendezvous) -> OwnedFd {
    let stranger = unix_socket(Keeps::Always).unwrap();
    net::connect(&stranger, &rendezvous.address().unwrap()).unwrap();
    stranger
}

fn refusal<T>(outcome: Result<Option<T>>) -> Error {
    outcome.err().expect("an error")
}

#[test]
fn two_sides_share_their_rings() {
    let (mut listener, rendezvous) = listening();
    assert!(listener.accept(ends(), SIZES).unwrap().is_none());
    let mut other = rendezvous.connect(swapped(ends()), peers(SIZES)).unwrap().unwrap();
    assert!(!other.output.is_mapped_by_peer());
    let mut one = listener.accept(ends(), SIZES).unwrap().unwrap();
    assert!(other.output.is_mapped_by_peer() && one.output.is_mapped_by_peer());
    assert_eq!(one.output.write(&[IoSlice::new(&[7; 200])], &one.notifier), Ok(100));
    assert_eq!(other.output.write(&[IoSlice::new(&[8; 200])], &other.notifier), Ok(50));
    let mut bytes = [0; 100];
    assert_eq!(other.input.read(&mut [IoSliceMut::new(&mut bytes)], &other.notifier), Ok(Some(100)));
    assert_eq!(one.input.readable(), Ok(50));
    assert_eq!(bytes, [7; 100]);
}

#[test]
fn a_peer_that_does_not_listen_can_be_asked_again() {
    let rendezvous = Rendezvous::new(ends().1).unwrap();
    assert!(rendezvous.connect(swapped(ends()), SIZES).unwrap().is_none());
    let mut listener = rendezvous.listen().unwrap();
    assert!(rendezvous.connect(swapped(ends()), peers(SIZES)).unwrap().is_some());
    assert!(listener.accept(ends(), SIZES).unwrap().is_some());
    drop(listener);
    assert!(rendezvous.connect(swapped(ends()), SIZES).unwrap().is_none());
}

#[test]
fn peers_on_other_hosts_are_not_met() {
    for remote in ["192.0.2.1:1000", "[2001:db8::1]:1000"] {
        let remote = remote.parse().unwrap();
        assert!(Rendezvous::new(remote).is_none(), "{remote}");
        let outcome = listening().1.connect((ends().0, remote), SIZES);
        assert!(matches!(refusal(outcome), Error::NoPeer(_)));
    }
}

#[test]
fn only_the_peer_of_this_connection_is_accepted() {
    let (mut listener, rendezvous) = listening();
    let others = ("127.0.0.1:1001".parse().unwrap(), ends().1);
    let _proxy = rendezvous.connect(swapped(others), peers(SIZES)).unwrap().unwrap();
    let guessed = Rendezvous { secret: [1; 16], ..rendezvous };
    let _guess = guessed.connect(swapped(ends()), peers(SIZES)).unwrap().unwrap();
    assert!(listener.accept(ends(), SIZES).unwrap().is_none());
    let _peer = rendezvous.connect(swapped(ends()), peers(SIZES)).unwrap().unwrap();
    assert!(listener.accept(ends(), SIZES).unwrap().is_some());
}

#[test]
fn strangers_do_no_harm_until_there_are_too_many() {
    let (mut listener, rendezvous) = listening();
    let mut strangers = vec![stranger(rendezvous), stranger(rendezvous)];
    net::send(&strangers[1], b"hello", SendFlags::NOSIGNAL).unwrap();
    assert!(listener.accept(ends(), SIZES).unwrap().is_none());
    let _peer = rendezvous.connect(swapped(ends()), peers(SIZES)).unwrap().unwrap();
    assert!(listener.accept(ends(), SIZES).unwrap().is_some());
    strangers.extend([stranger(rendezvous), stranger(rendezvous)]);
    assert!(matches!(refusal(listener.accept(ends(), SIZES)), Error::NoPeer(_)));
}

#[test]
fn a_peer_that_says_who_it_is_later_is_accepted_then() {
    let (mut listener, rendezvous) = listening();
    let late = stranger(rendezvous);
    assert!(listener.accept(ends(), SIZES).unwrap().is_none());
    say_hello(&late, rendezvous, ends());
    assert!(listener.accept(ends(), SIZES).unwrap().is_some());
}

#[test]
fn files_that_are_no_segment_are_refused() {
    let (mut listener, rendezvous) = listening();
    let peer = stranger(rendezvous);
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    send(peer.as_fd(), &rendezvous.hello(ends()), file.as_fd()).unwrap();
    assert!(matches!(refusal(listener.accept(ends(), SIZES)), Error::NoSegment(_)));
}

#[test]
fn the_secret_is_not_printed() {
    let rendezvous = Rendezvous { name: [0x11; 8], secret: [0x22; 16], keeps: Keeps::Always };
    assert_eq!(format!("{rendezvous:?}"), "Rendezvous(1111111111111111)");
}

#[test]
fn the_ends_of_a_connection_meet_without_a_word() {
    let (active, passive) = ("127.0.0.1:2001".parse().unwrap(), "127.0.0.1:2002".parse().unwrap());
    let rendezvous = Rendezvous::of_connection(active, passive).unwrap();
    assert!(rendezvous == Rendezvous::of_connection(active, passive).unwrap());
    assert!(rendezvous != Rendezvous::of_connection(passive, active).unwrap());
    let mut listener = rendezvous.listen().unwrap();
    assert!(rendezvous.connect((passive, active), SIZES).unwrap().is_some());
    assert!(listener.accept((active, passive), peers(SIZES)).unwrap().is_some());
    assert!(Rendezvous::of_connection(active, "192.0.2.1:1".parse().unwrap()).is_none());
}

/// Runs it as this user, in a thread of its own: for the kernel threads have users, not processes.
fn as_user<T: Send>(user: u32, run: impl FnOnce() -> T + Send) -> T {
    let change = || set_thread_uid(Uid::from_raw(user)).expect("it could be this user before");
    thread::scope(|scope| scope.spawn(|| (change(), run()).1).join().unwrap())
}

#[test]
fn another_user_is_met_if_the_socket_is_his() {
    const PEER: u32 = 12345;
    const STRANGER: u32 = 12346;
    let can_be = |user| thread::spawn(move || set_thread_uid(Uid::from_raw(user)).is_ok()).join().unwrap();
    if ![PEER, STRANGER].into_iter().all(can_be) {
        // Root of a user namespace may have no user but itself.
        let text = b"skipped another_user_is_met_if_the_socket_is_his: only root can be two users\n";
        std::io::stderr().write_all(text).unwrap();
        return;
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let passive = tcp.local_addr().unwrap();
    let client = as_user(PEER, || TcpStream::connect(passive).unwrap());
    let active = client.local_addr().unwrap();
    let _server = tcp.accept().unwrap();
    let rendezvous = Rendezvous::of_connection(active, passive).unwrap();
    let connect = || rendezvous.connect((passive, active), SIZES);

    let squatter = as_user(STRANGER, || rendezvous.listen().unwrap());
    assert!(matches!(refusal(connect()), Error::NoPeer(_)));
    drop(squatter);

    let mut listener = as_user(PEER, || rendezvous.listen().unwrap());
    let _stranger = as_user(STRANGER, || stranger_with_segment(rendezvous, (active, passive)));
    let accept = |listener: &mut Listener| listener.accept((active, passive), peers(SIZES));
    assert!(matches!(refusal(as_user(PEER, || accept(&mut listener))), Error::NoPeer(_)));
    assert!(connect().unwrap().is_some());
    assert!(as_user(PEER, || accept(&mut listener)).unwrap().is_some());

    // A stream's rendezvous is for one user, whose secret it is.
    let rendezvous = Rendezvous::new(passive).unwrap();
    let _listener = as_user(PEER, || rendezvous.listen().unwrap());
    assert!(matches!(refusal(rendezvous.connect((passive, active), SIZES)), Error::NoPeer(_)));
}

/// A stranger who says what the peer would say.
fn stranger_with_segment(rendezvous: Rendezvous, ends: (SocketAddr, SocketAddr)) -> OwnedFd {
    let stranger = stranger(rendezvous);
    say_hello(&stranger, rendezvous, ends);
    stranger
}

fn say_hello(socket: &OwnedFd, rendezvous: Rendezvous, ends: (SocketAddr, SocketAddr)) {
    let segment = Segment::create(peers(SIZES)).unwrap();
    send(socket.as_fd(), &rendezvous.hello(ends), segment.as_fd()).unwrap();
}
