use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;
use crate::bell::BELL;
use crate::kernel::Socket;
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
