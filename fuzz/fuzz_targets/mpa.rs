//! Bytes of a peer in the handshake, on both sides, in pieces that the input chooses: the first
//! byte picks the side and the revision, the second the length of the pieces.

#![no_main]

use iwarp_wire::mpa::{Enhanced, FRAME_HEADER, Frame, FrameKind};
use libfuzzer_sys::fuzz_target;
use rdma_verbs::iwarp::handshake::{Initiator, Parameters, Reply, Responder};

fuzz_target!(|data: &[u8]| {
    let [choice, size, bytes @ ..] = data else { return };
    let parameters = Parameters {
        revision: choice % 2 + 1,
        crc: choice & 2 != 0,
        initiator_depth: 4,
        responder_resources: 4,
    };
    if choice & 4 == 0 {
        active(parameters, bytes, usize::from(*size) + 1);
    } else {
        passive(parameters, bytes, usize::from(*size) + 1);
    }
    codecs(bytes);
});

fn active(parameters: Parameters, mut bytes: &[u8], size: usize) {
    let (mut initiator, request) = Initiator::new(parameters, b"private");
    assert!(request.len() > FRAME_HEADER);
    while !bytes.is_empty() {
        let wanted = initiator.wanted();
        assert!(wanted > 0);
        let (now, later) = bytes.split_at(wanted.min(size).min(bytes.len()));
        match initiator.feed(now) {
            Ok(None) => bytes = later,
            Ok(Some(Reply::Accepted { agreement, private_data })) => {
                assert!(private_data.len() <= 512 && agreement.initiator_depth <= 4);
                assert!(agreement.crc || !parameters.crc);
                return;
            }
            Ok(Some(Reply::Rejected { private_data })) => return assert!(private_data.len() <= 512),
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}

fn passive(parameters: Parameters, mut bytes: &[u8], size: usize) {
    let mut responder = Responder::default();
    while !bytes.is_empty() {
        let wanted = responder.wanted();
        assert!(wanted > 0);
        let (now, later) = bytes.split_at(wanted.min(size).min(bytes.len()));
        match responder.feed(now) {
            Ok(None) => bytes = later,
            Ok(Some(request)) => {
                let (reply, agreement) = request.accept(&parameters, b"yes");
                answer(parameters, &reply, false);
                answer(parameters, &request.reject(b"no"), true);
                assert!(agreement.initiator_depth <= 4);
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                if let Some(refusal) = responder.refusal() {
                    answer(parameters, &refusal, true);
                }
                return;
            }
        }
    }
}

/// A reply of ours is one that our own active side of that revision understands.
fn answer(parameters: Parameters, reply: &[u8], refused: bool) {
    let frame = Frame::parse(reply.first_chunk().unwrap(), FrameKind::Reply).unwrap();
    assert_eq!(frame.reject, refused);
    if frame.enhanced || frame.revision == 1 {
        let (mut initiator, _) = Initiator::new(Parameters { revision: frame.revision, ..parameters }, b"");
        let mut rest = reply;
        loop {
            let (now, later) = rest.split_at(initiator.wanted());
            match initiator.feed(now) {
                Ok(None) => rest = later,
                // A peer that asked for no peer-to-peer model offered no opening message either.
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

fn codecs(bytes: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        if let Some(header) = bytes.first_chunk::<FRAME_HEADER>()
            && let Ok(frame) = Frame::parse(header, kind)
        {
            let mut again = [0; FRAME_HEADER];
            frame.emit(&mut again);
            assert_eq!(Frame::parse(&again, kind), Ok(frame));
        }
    }
    if let Some(parameters) = bytes.first_chunk() {
        assert_eq!(Enhanced::parse(*parameters).emit(), *parameters);
    }
}
