use std::time::Instant;

use super::*;
use crate::iwarp::halves::HALVED;

/// Two ends of one connection on this host.
fn connected() -> (Socket, Socket) {
    let keepalive = Duration::from_secs(40);
    let listening = listen("127.0.0.1:0".parse().unwrap(), 1, keepalive).unwrap();
    let (mut client, refused) = Socket::connect(bound_address(listening.as_fd()).unwrap(), None).unwrap();
    assert_eq!(refused, None);
    assert!(has_waiting_peer(listening.as_fd()));
    let (accepted, _) = accept(listening.as_fd(), keepalive).unwrap();
    client.stay_on_host();
    (client, accepted)
}

#[test]
fn halves_are_the_same_stream() {
    let bytes: Vec<u8> = (0..HALVED.end as u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let (mut here, there) = connected();
    let mut arrived = vec![0; 2 * bytes.len()];
    for length in [HALVED.start, HALVED.start + 1, 65_600, HALVED.end - 1] {
        for cuts in [&[][..], &[0], &[20, 64_768], &[length / 2], &[1, 2, 3, 4, 5, 6, length - 1]] {
            let ends = cuts.iter().copied().chain([length]);
            let pieces: Vec<_> =
                ends.scan(0, |at, end| Some(Source::from(&bytes[std::mem::replace(at, end)..end]))).collect();
            // Nobody receives until the socket takes no more.
            let mut taken = 0;
            let full = loop {
                here.expect_answer();
                match here.transmit_from_memory(&pieces) {
                    Taken::Bytes(count) if count == length => taken += length,
                    Taken::Bytes(count) => break count,
                    other => panic!("{other:?}"),
                }
            };
            let mut seen = 0;
            while seen < taken + full {
                let Ok(count @ 1..) = there.receive(&mut arrived) else { continue };
                for (at, byte) in (seen..).zip(&arrived[..count]) {
                    assert_eq!(*byte, bytes[at % length], "{length}, {cuts:?}: byte {at}");
                }
                seen += count;
            }
        }
    }
}

#[test]
fn what_is_kept_leaves_when_it_is_pushed() {
    let bytes = [7; 16384];
    let (mut here, there) = connected();
    let mut arrived = [0; 2 * 16384];
    let mut receive_all = |mut seen: usize| {
        while seen < 20 + bytes.len() {
            seen += there.receive(&mut arrived).unwrap_or(0);
        }
        assert_eq!((seen, there.receive(&mut arrived)), (20 + bytes.len(), Err(Errno::AGAIN)));
    };
    // The system sends it by itself after 200 ms.
    let was_prompt = (0..10).any(|_| {
        let since = Instant::now();
        here.keep(true);
        assert_eq!(here.transmit(&[IoSlice::new(&bytes[..20])], false), Taken::Bytes(20));
        assert_eq!(here.transmit_from_memory(&[Source::from(&bytes[..])]), Taken::Bytes(bytes.len()));
        here.keep(false);
        let early = there.receive(&mut [0; 2 * 16384]).unwrap_or(0);
        let is_prompt = since.elapsed() < Duration::from_millis(100);
        assert!(early == 0 || !is_prompt);
        here.push();
        receive_all(early);
        is_prompt
    });
    assert!(was_prompt);
    // Output that is not kept takes along what is.
    here.keep(true);
    assert_eq!(here.transmit_from_memory(&[Source::from(&bytes[..])]), Taken::Bytes(bytes.len()));
    here.keep(false);
    assert_eq!(here.transmit(&[IoSlice::new(&bytes[..20])], false), Taken::Bytes(20));
    assert!(!here.has_kept);
    receive_all(0);
}

#[test]
fn memory_is_not_kept_in_a_network() {
    let bytes = [7; 16384];
    let (_client, mut accepted) = connected();
    accepted.keep(true);
    assert_eq!(accepted.transmit_from_memory(&[Source::from(&bytes[..])]), Taken::Bytes(bytes.len()));
    assert!(!accepted.has_kept);
    assert_eq!(accepted.transmit(&[IoSlice::new(&bytes)], false), Taken::Bytes(bytes.len()));
    assert!(accepted.has_kept);
}

#[test]
fn what_is_accepted_is_tuned() {
    let (_client, mut accepted) = connected();
    let settings = |socket: &Socket| {
        let socket = socket.as_fd();
        assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        (sockopt::tcp_keepidle(socket).unwrap().as_secs(), sockopt::tcp_keepintvl(socket).unwrap().as_secs())
    };
    assert_eq!(settings(&accepted), (20, 5));
    accepted.tune(Duration::from_secs(80)).unwrap();
    assert_eq!(settings(&accepted), (40, 10));
}
