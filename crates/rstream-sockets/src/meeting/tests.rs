use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;
use crate::bell::BELL;
use crate::delays::Delays;
use crate::kernel::{Counts, Socket};
use crate::stream::{Answer, Then};

/// A bell may be received while another thread joins: the peer begins as soon as the segment is mapped.
#[test]
fn a_bell_before_the_join_is_no_byte_of_the_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peers_socket = listener.accept().unwrap().0;
    let kernel = Socket::new(socket.as_fd(), true);
    let peers_kernel = Socket::new(peers_socket.as_fd(), false);
    let (stream, peer) = (Stream::new(Role::Active, 0).unwrap(), Stream::new(Role::Passive, 0).unwrap());
    // One listens, the other offers.
    stream.meet(&kernel);
    peer.meet(&peers_kernel);

    // As in `meet_now`, with time between the two steps.
    let mut meeting = stream.meeting.lock().unwrap();
    let meeter = Meeter::new(&stream.meeter);
    let Meeting::Listening(mut listener, _) = std::mem::replace(&mut *meeting, Meeting::Over("")) else {
        panic!("it does not listen");
    };
    let connected = listener.accept(kernel.ends().unwrap(), SIZES).unwrap().unwrap();

    let sent = peer.send(&peers_kernel, &[IoSlice::new(b"x")]);
    assert_eq!(sent, Ok(Answer::Done(1)));
    let (tell, is_told) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            let received = kernel.receive(buffers, false);
            assert_eq!((received, buffers[0][0]), (Ok(1), BELL));
            stream.lock_input().unwrap().parts().0.inside += 1;
            tell.send(stream.received(&kernel, buffers, received, false)).unwrap();
        });
        assert_eq!(is_told.recv_timeout(Duration::from_millis(50)).ok(), None);
        stream.join(&kernel, connected);
        *meeting = Meeting::Joined;
        drop((meeter, meeting));
        assert_eq!(is_told.recv(), Ok(Ok(None)));
    });
    let mut byte = [0];
    let received = stream.receive(&kernel, &mut [IoSliceMut::new(&mut byte)], false, Then::Return);
    assert_eq!((received, byte), (Ok(Answer::Done(1)), *b"x"));
}

/// A socket of the kernel that counts how often it is asked what it has counted.
struct Asked<'a>(Socket<'a>, Cell<u32>);

impl Kernel for Asked<'_> {
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.0.send(bytes)
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        self.0.receive(buffers, peek)
    }

    fn obstacle(&self) -> Option<&'static str> {
        self.0.obstacle()
    }

    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.0.ends()
    }

    fn counts(&self) -> Option<Counts> {
        self.1.set(self.1.get() + 1);
        self.0.counts()
    }

    fn delay(&self, delays: Delays) -> Result<Delays, Errno> {
        self.0.delay(delays)
    }

    fn end_output(&self) {
        self.0.end_output();
    }

    fn has_input(&self) -> bool {
        self.0.has_input()
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn has_failed(&self) -> bool {
        self.0.has_failed()
    }
}

/// A side that waits for its peer looks with each of its calls: that has to be cheap.
#[test]
fn looks_that_find_nobody_ask_for_no_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peers_socket = listener.accept().unwrap().0;
    let kernel = Asked(Socket::new(socket.as_fd(), true), Cell::new(0));
    let peers_kernel = Socket::new(peers_socket.as_fd(), false);
    let (stream, peer) = (Stream::new(Role::Active, 0).unwrap(), Stream::new(Role::Passive, 0).unwrap());
    stream.meet(&kernel);
    assert_eq!(kernel.1.replace(0), 1);
    for _ in 0..10 {
        assert!(stream.meet_now(&kernel));
    }
    assert_eq!(kernel.1.get(), 0);
    assert!(matches!(*stream.meeting.lock().unwrap(), Meeting::Listening(_, 10)));

    peer.meet(&peers_kernel);
    assert!(stream.meet_now(&kernel));
    assert_eq!(kernel.1.get(), 1);
    assert!(matches!(*stream.meeting.lock().unwrap(), Meeting::Joined));
}
