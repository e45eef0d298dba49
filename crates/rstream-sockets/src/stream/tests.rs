use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::*;
use crate::bell::BELL;
use crate::kernel::{Kernel as _, Socket};

static CHUNK: [u8; 64 << 10] = [0; 64 << 10];

fn receive(socket: &TcpStream) -> Result<usize, Errno> {
    Socket::new(socket.as_fd(), true).receive(&mut [IoSliceMut::new(&mut [0])], false)
}

/// A peer that has mapped the rings and sends nothing by its own, and this side, which sends by its ring.
fn with_silent_peer(test: impl FnOnce(TcpStream, &Stream, &Stream, &Socket<'_>)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peers_socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = listener.accept().unwrap().0;
    let kernel = Socket::new(socket.as_fd(), false);
    let (stream, peer) = (Stream::new(Role::Passive, 0).unwrap(), Stream::new(Role::Active, 0).unwrap());
    let peers_kernel = Socket::new(peers_socket.as_fd(), true);
    peer.meet(&peers_kernel);
    stream.meet(&kernel);
    peer.count(Way::In, 0);
    peer.meet(&peers_kernel);
    stream.meet(&kernel);
    assert!(stream.has_rings() && stream.begin(&kernel).unwrap());
    assert!(peer.has_rings() && !peer.begin(&peers_kernel).unwrap());
    test(peers_socket, &peer, &stream, &kernel);
}

/// Fills the ring, and takes the bells.
fn fill(peers_socket: &TcpStream, stream: &Stream, kernel: &Socket<'_>) {
    while let Ok(Answer::Done(_)) = stream.send(kernel, &[IoSlice::new(&CHUNK)]) {}
    while receive(peers_socket) == Ok(1) {}
}

fn await_death(is_known: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(5);
    while !is_known() {
        assert!(Instant::now() < limit, "it waits for ever");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The kernel says no more than that the peer's output has ended.
#[test]
fn the_death_of_a_peer_that_never_used_its_ring_ends_a_wait_for_room() {
    for by_look in [false, true] {
        with_silent_peer(|peers_socket, _, stream, kernel| {
            fill(&peers_socket, stream, kernel);
            drop(peers_socket);
            await_death(|| match by_look {
                true => stream.look(kernel, true, true).unwrap().output == Some(true),
                false => stream.send(kernel, &[IoSlice::new(&CHUNK)]) == Ok(Answer::Kernel),
            });
        });
    }
}

#[test]
fn a_peer_that_has_ended_its_output_before_the_upgrade_reads_on() {
    with_silent_peer(|peers_socket, _, stream, kernel| {
        fill(&peers_socket, stream, kernel);
        peers_socket.shutdown(Shutdown::Write).unwrap();
        // The first second's bell is among those that were taken.
        let limit = Instant::now() + Duration::from_millis(1100);
        while Instant::now() < limit {
            assert_eq!(stream.send(kernel, &[IoSlice::new(&CHUNK)]), Ok(Answer::Wait));
            assert_eq!(stream.look(kernel, true, true).unwrap().output, Some(false));
        }
        // A bell in each second asked whether it is there.
        let bells = std::iter::from_fn(|| receive(&peers_socket).ok()).count();
        assert!((1..=2).contains(&bells), "{bells}");
        // Its kernel says nothing more when it dies.
        drop(peers_socket);
        await_death(|| stream.send(kernel, &[IoSlice::new(&CHUNK)]) == Ok(Answer::Kernel));
    });
}

/// Its kernel resets the connection for the bell, which nobody reads any more.
#[test]
fn a_bell_that_is_late_for_a_close_hides_no_end() {
    with_silent_peer(|peers_socket, peer, stream, kernel| {
        assert!(!peer.close(&Socket::new(peers_socket.as_fd(), true), || false));
        kernel.send(&[BELL]).unwrap();
        drop(peers_socket);
        let mut byte = [0];
        let got = stream.receive(kernel, &mut [IoSliceMut::new(&mut byte)], false, Then::Look);
        assert_eq!(got, Ok(Answer::Done(0)));
    });
}

/// Another thread has told the peer not to ring, before a third one led that waits for something else.
#[test]
fn a_thread_sleeps_behind_another_only_if_the_peer_has_to_ring() {
    with_silent_peer(|peers_socket, peer, stream, kernel| {
        // It begins to use its ring.
        peer.look(&Socket::new(peers_socket.as_fd(), true), false, false).unwrap();
        let turn = stream.turn();
        let mut byte = [0];
        let asked = stream.receive(kernel, &mut [IoSliceMut::new(&mut byte)], false, Then::Sleep);
        assert_eq!(asked, Ok(Answer::Wait));
        stream.disarm();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (led, leads) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                led.send(stream.wait(turn, true)).unwrap();
                let _ = stopped.recv();
            });
            assert_eq!(leads.recv().unwrap(), Ok(Wait::Kernel));
            assert_eq!(stream.wait(turn, false), Ok(Wait::Again));
            drop(stop);
        });
    });
}

/// A response on a connection of its own is over before a meeting would have paid.
#[test]
fn what_goes_one_way_meets_late() {
    let is_due =
        |stream: &Stream| stream.served.load(Ordering::Relaxed) >= stream.due.load(Ordering::Relaxed);
    let one_way = |count: usize, length: usize| {
        let stream = Stream::new(Role::Active, 8).unwrap();
        stream.count(Way::Out, 100);
        (0..count).for_each(|_| stream.count(Way::In, length));
        is_due(&stream)
    };
    assert!(!one_way(125, 8 << 10), "1 MB as ab reads it");
    assert!(!one_way(1, 5 << 20), "5 MiB by one sendfile");
    assert!(one_way(1, 6 << 20));
    assert!(one_way(300, 1), "a stream of small messages");

    let turns = Stream::new(Role::Active, 8).unwrap();
    for turn in 0..8 {
        assert!(!is_due(&turns), "after {turn} turns");
        turns.count(if turn % 2 == 0 { Way::Out } else { Way::In }, 100);
    }
    assert!(is_due(&turns));

    let never = Stream::new(Role::Active, u32::MAX).unwrap();
    (0..100).for_each(|_| never.count(Way::In, usize::MAX));
    assert!(!is_due(&never) && never.is_over());
}
