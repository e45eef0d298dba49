//! Whatever a peer sends to a stream is taken or refused; what is readable and sendable stays
//! within the rings, and after a refusal nothing changes any more.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rstream_protocol::{Arrival, Features, Setup, Stream, WordFormat};

/// A little stream over rings of other sizes than any power of two.
fn setup(choice: u8) -> Setup {
    let iwarp = choice & 1 != 0;
    Setup {
        local_ring: 1000,
        local_receives: if choice & 4 != 0 { 3 } else { 20 },
        peer_ring: if choice & 8 != 0 { 77 } else { 3_000_000 },
        peer_receives: if choice & 16 != 0 { 4 } else { 700 },
        send_ring: 5000,
        send_depth: 8,
        max_message: 4000,
        words: if iwarp { WordFormat::Iwarp } else { WordFormat::Immediate },
        features: if choice & 2 != 0 { Features::END_OF_STREAM | Features::SHORT_DATA } else { Features::empty() },
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, operations)) = data.split_first() else { return };
    let setup = setup(choice);
    let mut stream = Stream::new(setup).expect("sizes that work");
    for operation in operations.chunks_exact(6) {
        let word = u32::from_le_bytes([operation[1], operation[2], operation[3], operation[4]]);
        let arrival = match operation[0] {
            0 => Arrival::Word(word),
            1 => Arrival::Control { immediate: word },
            2 => Arrival::Write { immediate: 0, length: word },
            3 => Arrival::Write { immediate: word, length: operation[5].into() },
            4 => {
                stream.consume(word as usize);
                continue;
            }
            5 => {
                while let Some(message) = stream.next_write(word as usize) {
                    assert!(message.length > 0 && message.length <= setup.max_message);
                    assert!(u64::from(message.length) + message.remote_offset <= setup.peer_ring.into());
                    assert!(message.length + message.local_offset <= setup.send_ring);
                }
                continue;
            }
            6 => {
                while stream.next_control().is_some() {}
                continue;
            }
            7 => {
                stream.on_sent(u64::from(word) << 24 | u64::from(operation[5]));
                continue;
            }
            8 => Arrival::WordWithData { word, length: operation[5].into() },
            _ => match operation[5] {
                0 => {
                    stream.shut_send();
                    continue;
                }
                1 => {
                    stream.shut_recv();
                    continue;
                }
                2 => {
                    stream.close();
                    continue;
                }
                _ => return,
            },
        };
        let before = (stream.readable(), stream.sendable());
        let outcome = stream.on_arrival(arrival);
        assert!(stream.readable() <= setup.local_ring as usize);
        assert!(stream.span(0, usize::MAX).length as usize <= stream.readable());
        assert!(stream.sendable().is_ok_and(|n| n <= setup.send_ring as usize) || stream.sendable().is_err());
        if outcome.is_err() {
            assert!(stream.is_over() && stream.sendable().is_err());
            assert_eq!(stream.readable(), before.0, "nothing of a refused message is taken");
            assert_eq!(stream.on_arrival(arrival), Ok(()), "told once");
            assert_eq!(stream.next_control(), None);
        }
    }
});
