//! Connection attempts that succeed, and that fail.

use std::io::{IoSlice, Read as _, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::*;
use iwarp_wire::mpa::FrameKind;
use rdma_verbs::iwarp::{Config, Device};
use rdma_verbs::{
    ConnectError, ConnectOptions, ConnectionEvent, ConnectionRequest as _, Connections as _, Device as _,
    Error, EventTarget, Listener as _, Payload,
};

const SHORT: Duration = Duration::from_millis(150);

fn short() -> ConnectOptions {
    ConnectOptions { timeout: SHORT, ..OPTIONS }
}

/// [RFC 5044 4.4-5, 7.1-2, 7.1.1-8, 7.1.2-6, 7.1.2-11] [RFC 6581 6-3, 10-4]
#[test]
fn all_revisions_and_crc_settings_interoperate() {
    for address in [V4, V6] {
        for revisions in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            for crcs in [(false, false), (true, false), (false, true), (true, true)] {
                let active = config(revisions.0, crcs.0);
                let passive = config(revisions.1, crcs.1);
                let (mut a, mut b) = pair_with(active, passive, address);
                let bytes = pattern(1, 100_001);
                let to = b.remote(3);
                a.send_bytes(1, write(to), &bytes);
                a.send_bytes(2, SEND, b"hello");
                b.send_bytes(3, SEND, b"to you too");
                until(&mut a, &mut b, |a, b| a.end.completions.len() == 3 && b.end.completions.len() == 2);
                assert_eq!(b.read_ring(3, bytes.len()), bytes);
                assert_eq!(b.read_own(0, 5), b"hello");
                assert_eq!(a.read_own(0, 10), b"to you too");
            }
        }
    }
}

/// [RFC 5044 7.1.1-14, 7.1.2-4, 7.1.2-14]
#[test]
fn private_data_keeps_its_length() {
    for revision in [1, 2] {
        let most = Device::new(config(revision, false)).unwrap().attributes().private_data.least();
        assert_eq!(most, if revision == 1 { 255 } else { 251 });
        for length in [0, 1, 4, most - 1, most] {
            for refuse in [false, true] {
                let (mut a, mut b) = (Side::new(config(revision, false)), Side::new(Config::default()));
                let (mut listener, wait) = listen(Config::default(), V4);
                a.connect(listener.local_address(), &pattern(1, length));
                while a.end.cq.peer_address(a.qp).is_none() && listener.local_address().port() == 0 {}
                let request = loop {
                    assert_eq!(a.end.cq.poll_event(a.qp), None);
                    if let Some(request) = listener.poll() {
                        break request;
                    }
                    wait.wait(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
                };
                assert_eq!(request.private_data(), pattern(1, length));
                let private_data = pattern(2, most - length);
                if refuse {
                    request.reject(&private_data);
                    assert_eq!(a.event(), ConnectionEvent::Rejected { private_data });
                } else {
                    b.accept(request, &private_data);
                    assert_eq!(a.event(), ConnectionEvent::Established { private_data });
                }
            }
        }
        let mut a = Side::new(config(revision, false));
        let (listener, _) = listen(Config::default(), V4);
        let too_long = vec![0; most + 1];
        let outcome = a.end.cq.connect(a.qp, listener.local_address(), None, &too_long, &OPTIONS, a.target());
        assert!(matches!(outcome, Err(Error::OutOfRange { value, .. }) if value == too_long.len() as u64));
        a.connect(listener.local_address(), b"");
    }
}

/// [RFC 5044 7.1.1-16, 7.1.2-18] [RFC 6581 10-1]
#[test]
fn a_request_with_the_longest_private_data_is_parsed() {
    let (mut listener, wait) = listen(Config::default(), V4);
    let mut peer = Peer::dial(listener.local_address());
    let private_data = pattern(1, 508);
    peer.0.write_all(&request(FrameKind::Request, 2, 0, &private_data)).unwrap();
    let request = next_request(&mut listener, &wait);
    assert_eq!(request.private_data(), private_data);
    request.reject(b"no");
    let (frame, answer) = peer.read_frame(FrameKind::Reply);
    assert!(frame.reject && frame.enhanced && frame.revision == 2);
    assert_eq!(answer[4..], *b"no");
    assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_request_whose_peer_left_holds_no_socket() {
    let (mut listener, wait) = listen(Config::default(), V4);
    let ask = || {
        let mut peer = Peer::dial(listener.local_address());
        peer.0.write_all(&request(FrameKind::Request, 2, 0, b"")).unwrap();
        peer
    };
    let (first, second) = (ask(), ask());
    let requests = [next_request(&mut listener, &wait), next_request(&mut listener, &wait)];
    assert!(!requests[0].has_left() && !requests[1].has_left());
    drop(first);
    while !requests[0].has_left() {
        assert!(wait.wait(Some(Duration::from_secs(5)), &mut Vec::new()).unwrap());
        assert!(listener.poll().is_none());
    }
    assert!(!requests[1].has_left());
    assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap(), "reported once");
    let [left, present] = requests;
    let mut b = Side::new(Config::default());
    b.accept(left, b"");
    // There is no socket that could wake the caller, so the deadline does.
    assert!(b.end.cq.deadline(b.qp).is_some_and(|deadline| deadline <= Instant::now()));
    assert_eq!(b.event(), ConnectionEvent::Failed(ConnectError::Closed));
    assert_eq!(b.end.cq.deadline(b.qp), None);
    // After the accept the listener does not watch the socket any more.
    Side::new(Config::default()).accept(present, b"");
    drop(second);
    assert!(!wait.wait(Some(Duration::from_millis(50)), &mut Vec::new()).unwrap());
}

#[test]
fn a_poll_accepts_a_bounded_number_of_connections() {
    let (mut listener, wait) = listen_with(Config::default(), V4, 64, &OPTIONS);
    let peers: Vec<_> = (0..40).map(|_| Peer::dial(listener.local_address())).collect();
    let mut calls = 0;
    while wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap() {
        assert!(listener.poll().is_none());
        calls += 1;
    }
    assert_eq!(calls, 3, "16 at a time");
    drop(peers);
}

#[test]
fn connecting_without_a_listener_is_refused() {
    for address in [V4, V6] {
        let listener = std::net::TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut a = Side::new(Config::default());
        a.connect(address, b"");
        assert_eq!(a.event(), ConnectionEvent::Failed(ConnectError::Refused));
        assert_eq!(a.end.cq.poll_event(a.qp), None);
    }
}

#[test]
fn addresses_are_reported() {
    let local = "127.0.0.2:0".parse().unwrap();
    let (mut a, mut b) = (Side::new(Config::default()), Side::new(Config::default()));
    let (mut listener, wait) = listen(Config::default(), V4);
    assert_ne!(listener.local_address().port(), 0);
    let target = a.target();
    a.end.cq.connect(a.qp, listener.local_address(), Some(local), b"", &OPTIONS, target).unwrap();
    assert_eq!(a.end.cq.poll_event(a.qp), None);
    let request = next_request(&mut listener, &wait);
    assert_eq!(request.local_address(), listener.local_address());
    assert_eq!(request.peer_address().ip(), local.ip());
    let peer = request.peer_address();
    b.accept(request, b"");
    assert!(matches!(a.event(), ConnectionEvent::Established { .. }));
    assert_eq!(a.end.cq.local_address(a.qp), Some(peer));
    assert_eq!(b.end.cq.peer_address(b.qp), Some(peer));
    assert_eq!(a.end.cq.peer_address(a.qp), b.end.cq.local_address(b.qp));
}

#[test]
fn connections_within_a_host_use_reno() {
    for address in [V4, V6] {
        let (a, b) = pair_with(Config::default(), Config::default(), address);
        for side in [&a, &b] {
            let port = side.end.cq.local_address(side.qp).unwrap().port();
            let filter = ["state", "established", "sport", "=", &format!(":{port}")];
            let shown = match Command::new("ss").arg("-Htni").args(filter).output() {
                Ok(output) => String::from_utf8(output.stdout).unwrap(),
                Err(error) => {
                    println!("skipped connections_within_a_host_use_reno: ss: {error}");
                    return;
                }
            };
            assert!(shown.split_whitespace().any(|word| word == "reno"), "{shown}");
        }
    }
}

#[test]
fn a_wildcard_listener_of_ipv6_serves_both_families() {
    let (listener, _) = listen(Config::default(), "[::]:0");
    let port = listener.local_address().port();
    for address in ["127.0.0.1", "::1"] {
        Peer::dial(std::net::SocketAddr::new(address.parse().unwrap(), port));
    }
}

/// [RFC 5044 7.1.2-21]
#[test]
fn a_silent_passive_side_times_out() {
    let silent = std::net::TcpListener::bind(V4).unwrap();
    let mut a = Side::new(Config::default());
    let target = a.target();
    a.end.cq.connect(a.qp, silent.local_addr().unwrap(), None, b"", &short(), target).unwrap();
    let deadline = a.end.cq.deadline(a.qp).unwrap();
    assert_eq!(a.end.cq.poll_event(a.qp), None);
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    assert_eq!(a.end.cq.poll_event(a.qp), Some(ConnectionEvent::Failed(ConnectError::TimedOut(150))));
    assert_eq!(a.end.cq.deadline(a.qp), None);
}

#[test]
fn a_passive_side_that_closes_fails_the_attempt_at_once() {
    let mut a = Side::new(Config::default());
    let (peer, ..) = Peer::passive(&mut a);
    drop(peer);
    assert_eq!(a.event(), ConnectionEvent::Failed(ConnectError::Closed));
}

#[test]
fn dropping_a_request_closes_the_connection() {
    let mut a = Side::new(Config::default());
    let (mut listener, wait) = listen(Config::default(), V4);
    a.connect(listener.local_address(), b"");
    assert_eq!(a.end.cq.poll_event(a.qp), None);
    drop(next_request(&mut listener, &wait));
    assert_eq!(a.event(), ConnectionEvent::Failed(ConnectError::Closed));
}

/// [RFC 5044 7.1.1-4, 7.1.1-13, 7.1.1-15, 7.1.2-8, 7.1.2-9, 7.1.2-13, 7.1.2-15, 8-3]
/// [RFC 6581 9.1-5, 9.1-6, 9.2-9, 9.2-10]
#[test]
fn invalid_replies_fail_the_attempt() {
    let reply = |revision, flags| request(FrameKind::Reply, revision, flags, b"");
    let reply_of_length = |length: u16| {
        let mut frame = reply(2, 0);
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame
    };
    let mut no_rtr = reply(2, 0);
    no_rtr[22] = 0x40;
    let mut many_reads = reply(2, 0);
    many_reads[22..24].copy_from_slice(&[0x81, 0]);
    let cases = [
        (b"HTTP/1.1 400 Bad".to_vec(), "not an MPA Reply frame", None),
        (reply(2, 0x80), "requires MPA markers", None),
        (reply(1, 0), "reply of MPA revision 1 without its parameters to a request of revision 2", None),
        (reply(3, 0), "MPA revision 3 instead of 1 to 2", None),
        (request(FrameKind::Request, 2, 0, b""), "not an MPA Reply frame", None),
        (reply_of_length(513), "513 bytes of private data", None),
        (no_rtr, "no ready-to-receive", Some((2, 0, 7))),
        (many_reads, "wants 256 reads at a time, at most 255", Some((2, 0, 6))),
    ];
    for (bytes, text, terminate) in cases {
        let mut a = Side::new(Config::default());
        let (mut peer, frame, _) = Peer::passive(&mut a);
        assert!(frame.enhanced && !frame.markers && !frame.crc);
        peer.0.write_all(&bytes).unwrap();
        let event = a.event();
        let ConnectionEvent::Failed(ConnectError::Protocol(reason)) = &event else { panic!("{event:?}") };
        assert!(reason.to_string().contains(text), "{reason}");
        if let Some(terminate) = terminate {
            assert_eq!(peer.read_terminate(), terminate);
        }
        drop(a);
        // Nothing else arrives but the end, or a reset because of unread bytes.
        assert!(matches!(peer.0.read(&mut [0]), Ok(0) | Err(_)));
    }
}

/// [RFC 5044 7.1.1-2, 7.1.1-13, 7.1.1-15, 7.1.2-2, 7.1.2-3, 7.1.2-17, 7.1.2-20, 8-3]
#[test]
fn invalid_requests_are_dropped() {
    let mut long = request(FrameKind::Request, 2, 0, b"");
    long[18..20].copy_from_slice(&513_u16.to_be_bytes());
    let cases = [
        request(FrameKind::Reply, 2, 0, b""),
        request(FrameKind::Request, 0, 0, b""),
        request(FrameKind::Request, 3, 0, b""),
        long,
    ];
    for bytes in cases {
        let (mut listener, wait) = listen(Config::default(), V4);
        let mut peer = Peer::dial(listener.local_address());
        peer.0.write_all(&bytes).unwrap();
        serve(&mut listener, &wait, Duration::from_millis(30));
        assert!(matches!(peer.0.read(&mut [0]), Ok(0) | Err(_)), "{bytes:x?} was answered");
    }
}

/// [RFC 5044 7.1.2-10]
#[test]
fn a_rejected_active_side_does_not_close_the_connection() {
    let mut a = Side::new(Config::default());
    let (mut peer, ..) = Peer::passive(&mut a);
    peer.0.write_all(&request(FrameKind::Reply, 2, 0x20, b"no")).unwrap();
    assert_eq!(a.event(), ConnectionEvent::Rejected { private_data: b"no".to_vec() });
    peer.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let nothing = peer.0.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

/// [RFC 5040 6.1-3, 6.1-4] [RFC 5044 7.1.2-1]
/// [RFC 6581 5-1, 6-2, 6-4, 9.1-4, 9.1-9, 9.1-11, 9.2-1, 9.2-2, 9.2-8]
#[test]
fn reads_are_limited_by_the_depths_of_the_reply() {
    for (ird, ord, expected) in [(2, 9, "2 reads"), (0x3fff, 0x3fff, "all"), (0, 0, "none")] {
        let mut a = Side::new(Config::default());
        let (mut peer, _, parameters) = Peer::passive(&mut a);
        // Peer-to-peer mode with an empty Write, 4 reads each way, then the consumer's data.
        assert_eq!(parameters, [&[0x80, 4, 0x80, 4][..], b"user"].concat());
        let mut reply = request(FrameKind::Reply, 2, 0, b"");
        reply[20..22].copy_from_slice(&(0x8000_u16 | ird).to_be_bytes());
        reply[22..24].copy_from_slice(&(0x8000_u16 | ord).to_be_bytes());
        peer.0.write_all(&reply).unwrap();
        assert!(matches!(a.event(), ConnectionEvent::Established { .. }));
        assert_eq!(peer.read_fpdu()[..2], [0xc1, 0x40], "the empty Write");
        let remote = rdma_verbs::RemoteAddress { key: 1, address: 0 };
        let mut outcome = Ok(());
        for id in 0..5 {
            let segment = [a.segment(id * 8, 8)];
            let read = rdma_verbs::Operation::Read { remote };
            outcome = a.try_send(id, read, rdma_verbs::Payload::Segments(&segment));
        }
        peer.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut requests = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = peer.0.read(&mut buffer) {
            requests.extend_from_slice(&buffer[..count]);
        }
        match expected {
            "none" => assert!(matches!(outcome, Err(Error::Unsupported(_)))),
            "all" => assert_eq!(requests.len(), 4 * 52),
            _ => assert_eq!(requests.len(), 2 * 52),
        }
    }
}

#[test]
fn a_peer_that_requires_markers_is_rejected() {
    let (mut listener, wait) = listen(Config::default(), V4);
    let mut peer = Peer::dial(listener.local_address());
    peer.0.write_all(&request(FrameKind::Request, 1, 0x80, b"")).unwrap();
    serve(&mut listener, &wait, Duration::from_millis(30));
    let (frame, private_data) = peer.read_frame(FrameKind::Reply);
    assert!(frame.reject && private_data.is_empty());
    assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
}

/// Polls a listener for some time, and asserts that it returns no request.
fn serve(listener: &mut rdma_verbs::iwarp::Listener, wait: &rdma_verbs::WaitSet, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        assert!(listener.poll().is_none());
        wait.wait(Some(Duration::from_millis(5)), &mut Vec::new()).unwrap();
    }
}

/// [RFC 5044 7.1.1-2, 7.1.2-16, 7.1.2-21]
#[test]
fn garbage_is_closed_at_once_and_silence_at_the_deadline() {
    let (mut listener, wait) = listen_with(Config::default(), V4, 16, &short());
    let mut garbage = Peer::dial(listener.local_address());
    let mut late = Peer::dial(listener.local_address());
    let mut silent = Peer::dial(listener.local_address());
    garbage.0.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    late.0.write_all(b"MPA ID Re").unwrap();
    serve(&mut listener, &wait, Duration::from_millis(30));
    assert!(matches!(garbage.0.read(&mut [0]), Ok(0) | Err(_)), "the connection was not closed");
    let deadline = listener.deadline().expect("a handshake is pending");
    assert!(deadline <= Instant::now() + SHORT);
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(30));
    assert!(listener.poll().is_none());
    assert_eq!(listener.deadline(), None);
    assert_eq!(silent.0.read(&mut [0]).unwrap(), 0);
    assert!(matches!(late.0.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn a_silent_peer_delays_no_other_peer() {
    let (mut listener, wait) = listen(Config::default(), V4);
    let silent: Vec<_> = (0..5).map(|_| Peer::dial(listener.local_address())).collect();
    let mut slow = Peer::dial(listener.local_address());
    let mut quick = Peer::dial(listener.local_address());
    let bytes = request(FrameKind::Request, 2, 0, b"slow");
    slow.0.write_all(&bytes[..10]).unwrap();
    quick.0.write_all(&request(FrameKind::Request, 2, 0, b"quick")).unwrap();
    assert_eq!(next_request(&mut listener, &wait).private_data(), b"quick");
    for byte in &bytes[10..] {
        slow.0.write_all(std::slice::from_ref(byte)).unwrap();
        if let Some(request) = listener.poll() {
            assert_eq!(request.private_data(), b"slow");
            return;
        }
    }
    assert_eq!(next_request(&mut listener, &wait).private_data(), b"slow");
    drop(silent);
}

#[test]
fn silent_peers_do_not_fill_the_backlog() {
    let (mut listener, wait) = listen_with(Config::default(), V4, 2, &OPTIONS);
    let _silent = [Peer::dial(listener.local_address()), Peer::dial(listener.local_address())];
    serve(&mut listener, &wait, Duration::from_millis(20));
    // Pending handshakes do not keep the wait set readable.
    assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap());
    let mut third = Peer::dial(listener.local_address());
    third.0.write_all(&request(FrameKind::Request, 2, 0, b"third")).unwrap();
    assert_eq!(next_request(&mut listener, &wait).private_data(), b"third");
}

#[test]
fn requests_that_are_ready_keep_the_listener_readable() {
    let (mut listener, wait) = listen(Config::default(), V4);
    let mut peers: Vec<_> = (0..3).map(|_| Peer::dial(listener.local_address())).collect();
    for peer in &mut peers {
        peer.0.write_all(&request(FrameKind::Request, 2, 0, b"")).unwrap();
    }
    let mut requests = Vec::new();
    while requests.len() < 3 {
        let mut ready = Vec::new();
        wait.wait(Some(LIMIT), &mut ready).unwrap();
        assert_eq!(ready.len(), 1, "the listener's token");
        requests.extend(listener.poll());
    }
    assert!(listener.poll().is_none());
    assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap());
}

#[test]
fn a_queue_pair_connects_once() {
    let (mut a, mut b) = pair();
    let (mut listener, wait) = listen(Config::default(), V4);
    let target = a.target();
    let again = a.end.cq.connect(a.qp, listener.local_address(), None, b"", &OPTIONS, target);
    assert!(matches!(again, Err(Error::BadState { state: "connected", what: "connect" })));
    let mut peer = Peer::dial(listener.local_address());
    peer.0.write_all(&request(FrameKind::Request, 2, 0, b"")).unwrap();
    let request = next_request(&mut listener, &wait);
    let target: EventTarget = b.target();
    let again = b.end.cq.accept(b.qp, request, b"", &OPTIONS, target);
    assert!(matches!(again, Err(Error::BadState { .. })));
}

/// A request that announces a first frame.
fn promise() -> Vec<u8> {
    let mut promise = request(FrameKind::Request, 2, 0, b"");
    // The first flag of the parameters of revision 2: peer-to-peer (RFC 6581, section 9).
    promise[iwarp_wire::mpa::FRAME_HEADER] |= 0x80;
    promise
}

#[test]
fn established_waits_for_the_announced_first_frame() {
    let mut b = Side::new(Config::default());
    let (mut listener, wait) = listen(Config::default(), V4);
    let mut peer = Peer::dial(listener.local_address());
    peer.0.write_all(&promise()).unwrap();
    b.accept(next_request(&mut listener, &wait), b"");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        assert_eq!(b.end.cq.poll_event(b.qp), None);
    }
    peer.0.write_all(&tagged(0, true, 0, 0, b"")).unwrap();
    assert_eq!(b.event(), ConnectionEvent::Established { private_data: Vec::new() });
}

/// What is posted then goes out, also if no call follows.
#[test]
fn an_established_side_has_taken_the_announced_first_frame() {
    let mut b = Side::new(Config::default());
    let (mut listener, wait) = listen(Config::default(), V4);
    let mut peer = Peer::dial(listener.local_address());
    // The frame is there when the reply is sent.
    peer.0.write_all(&[promise(), tagged(0, true, 0, 0, b"")].concat()).unwrap();
    b.accept(next_request(&mut listener, &wait), b"");
    let established = ConnectionEvent::Established { private_data: Vec::new() };
    assert_eq!(b.end.cq.poll_event(b.qp), Some(established));
    b.send(1, SEND, Payload::Inline(&[IoSlice::new(b"hello")]));
    peer.read_frame(FrameKind::Reply);
    peer.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(peer.read_fpdu().ends_with(b"hello"));
}
