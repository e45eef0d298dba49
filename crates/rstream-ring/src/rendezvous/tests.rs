use rustix::fs::{MemfdFlags, memfd_create};

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
    let stranger = unix_socket().unwrap();
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
    let segment = Segment::create(peers(SIZES)).unwrap();
    send(late.as_fd(), &rendezvous.hello(ends()), segment.as_fd()).unwrap();
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
    let rendezvous = Rendezvous { name: [0x11; 8], secret: [0x22; 16] };
    assert_eq!(format!("{rendezvous:?}"), "Rendezvous(1111111111111111)");
}
