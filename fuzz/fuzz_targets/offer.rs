//! Connection data, of streams and of message endpoints, and refusals: any bytes are read or refused, what
//! was read is written back the same, and two offers that were read either make streams on both sides or on
//! none.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rstream_protocol::{
    Features, Hello, Offer, Refusal, RefusalReason, Setup, Stream, WordFormat, hello, negotiate, tag::Header,
};

fuzz_target!(|data: &[u8]| {
    let refusal = Refusal::decode(data);
    let bytes = refusal.encode().expect("what was read can be written");
    assert_eq!(Refusal::decode(&bytes), refusal);
    if refusal.reason != RefusalReason::Application {
        assert!(data.starts_with(&bytes));
    }

    if let Some(hello) = Hello::decode(data) {
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        // What follows is padding.
        assert!(data.starts_with(&bytes));
    }
    // No application has more to send.
    let sent = &data[..data.len().min(hello::USER_DATA_MAX)];
    let hello = Hello { tags: data.len() % 2 == 1, user_data: sent };
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));

    if let Some(header) = Header::decode(data) {
        assert_eq!(header.encode()[..], *data);
    }

    let Ok(offer) = Offer::decode(data) else { return };
    let bytes = offer.encode().expect("what was read can be written");
    assert_eq!(Offer::decode(&bytes), Ok(offer));
    assert_eq!(bytes[1..24], data[1..24]);

    for base in [WordFormat::Immediate, WordFormat::Iwarp] {
        let (words, features) = negotiate(Features::all(), &offer, base, false);
        let ours = Setup {
            local_ring: 32_768,
            local_receives: 384,
            peer_ring: offer.ring_size,
            peer_receives: offer.receives,
            send_ring: 32_768,
            send_depth: 384,
            max_message: 1 << 30,
            words,
            features,
        };
        let mut stream = Stream::new(ours).expect("an offer that was read is one to work with");
        let sendable = stream.sendable().expect("nothing has ended");
        let mut sent = 0;
        while let Some(message) = stream.next_write(sendable - sent) {
            sent += message.length as usize;
            assert!(message.remote_offset + u64::from(message.length) <= u64::from(offer.ring_size));
        }
        assert_eq!(sent, sendable);
    }
});
