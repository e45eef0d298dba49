use super::*;

fn parameters(revision: u8, crc: bool) -> Parameters {
    Parameters { revision, crc, initiator_depth: 3, responder_resources: 5 }
}

/// Feeds `bytes` in pieces of `size`, never more than is wanted. Returns the number of bytes that are
/// left.
fn ask(bytes: &[u8], size: usize) -> (Result<Option<Request>, HandshakeError>, usize) {
    let mut responder = Responder::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(responder.wanted()).min(rest.len()));
        rest = later;
        match responder.feed(now) {
            Ok(None) => {}
            outcome => return (outcome, rest.len()),
        }
    }
    (Ok(None), 0)
}

/// The same for a complete reply.
fn hear(initiator: &mut Initiator, mut reply: &[u8], size: usize) -> Reply {
    loop {
        let (now, later) = reply.split_at(size.min(initiator.wanted()));
        reply = later;
        if let Some(reply) = initiator.feed(now).unwrap() {
            return reply;
        }
    }
}

/// [RFC 5044 4.4-6, 7.1-1, 7.1.1-7, 7.1.1-8, 7.1.2-1, 7.1.2-6, 7.1.2-8, 7.1.2-19]
/// [RFC 6581 6-3, 9.1-2, 9.1-3, 10-1, 10-2, 10-4]
#[test]
fn both_sides_agree_in_pieces_of_every_size() {
    for revision in [1, 2] {
        for (crc, crc_of_peer) in [(false, false), (false, true), (true, false), (true, true)] {
            let (_, mut request) = Initiator::new(parameters(revision, crc), b"question");
            let end = request.len();
            request.extend_from_slice(b"what follows stays");
            for size in 1..=end {
                let (mut initiator, _) = Initiator::new(parameters(revision, crc), b"question");
                let (asked, left) = ask(&request, size);
                let asked = asked.unwrap().unwrap();
                assert_eq!((left, &asked.private_data[..]), (18, &b"question"[..]));
                let peer = Parameters { initiator_depth: 9, ..parameters(2, crc_of_peer) };
                let (reply, passive) = asked.accept(&peer, b"reply");
                let reply = hear(&mut initiator, &reply, size);
                let Reply::Accepted { agreement, private_data } = reply else { panic!("{reply:?}") };
                assert_eq!(private_data, b"reply");
                assert_eq!((agreement.side, passive.side), (Side::Active, Side::Passive));
                assert_eq!((agreement.crc, passive.crc), (crc || crc_of_peer, crc || crc_of_peer));
                // Revision 2 negotiates the number of reads, revision 1 does not.
                let reads =
                    |agreement: &Agreement| (agreement.initiator_depth, agreement.responder_resources);
                assert_eq!(reads(&agreement), (3, 5));
                assert_eq!(reads(&passive), (if revision == 2 { 5 } else { 9 }, 5));
            }
        }
    }
}

/// [RFC 5044 7.1.2-2]
#[test]
fn every_truncated_frame_wants_more() {
    for revision in [1, 2] {
        let (_, request) = Initiator::new(parameters(revision, false), b"question");
        let (asked, _) = ask(&request, request.len());
        let (reply, _) = asked.unwrap().unwrap().accept(&parameters(revision, false), b"reply");
        for length in 0..request.len() {
            assert_eq!(ask(&request[..length], 600), (Ok(None), 0));
        }
        for length in 0..reply.len() {
            let (mut initiator, _) = Initiator::new(parameters(revision, false), b"question");
            let (first, second) = reply[..length].split_at(length.min(FRAME_HEADER));
            assert_eq!(initiator.feed(first), Ok(None));
            assert_eq!(initiator.feed(second), Ok(None));
            assert!(initiator.wanted() > 0);
        }
    }
}

/// [RFC 6581 9.2-3, 9.2-4, 9.2-5, 9.2-6, 9.2-7, 9.2-11, 9.2-12, 9.2-13]
#[test]
fn ready_to_receive_is_chosen_from_what_was_offered() {
    let flags = |bits: u16| [(bits >> 8) as u8, bits as u8];
    // Flags A and B, then C and D, of the request; flags A, B, C, D of the reply.
    for (first, second, expected) in [
        (0x0000, 0xc000, (false, false, false, false)),
        (0x8000, 0x8000, (true, false, true, false)),
        (0x8000, 0xc000, (true, false, true, false)),
        (0x8000, 0x4000, (true, false, false, true)),
        (0xc000, 0x0000, (true, false, true, false)),
    ] {
        let (_, mut request) = Initiator::new(parameters(2, false), b"");
        request[20..22].copy_from_slice(&flags(first | 7));
        request[22..24].copy_from_slice(&flags(second | 7));
        let asked = ask(&request, 600).0.unwrap().unwrap();
        let (reply, _) = asked.accept(&parameters(2, false), b"");
        let reply = Enhanced::parse(*reply[20..].first_chunk().unwrap());
        let chosen = (reply.peer_to_peer, reply.rtr_send, reply.rtr_write, reply.rtr_read);
        assert_eq!(chosen, expected, "{first:#x} {second:#x}");
        assert_eq!((reply.ird, reply.ord), (5, 3));
    }
}

/// Depths that an active side negotiates from this reply.
fn negotiated(reply: Enhanced) -> Result<(u8, u8), HandshakeError> {
    let (mut initiator, _) = Initiator::new(parameters(2, false), b"");
    let reply = emit(FrameKind::Reply, 2, false, false, Some(reply), b"");
    initiator.feed(&reply[..FRAME_HEADER])?;
    match initiator.feed(&reply[FRAME_HEADER..])? {
        Some(Reply::Accepted { agreement, .. }) => {
            Ok((agreement.initiator_depth, agreement.responder_resources))
        }
        reply => panic!("{reply:?}"),
    }
}

const REPLY: Enhanced =
    Enhanced { peer_to_peer: true, rtr_send: false, rtr_write: true, rtr_read: false, ird: 3, ord: 5 };

/// [RFC 6581 9.1-4, 9.1-9, 9.1-11]
#[test]
fn the_active_side_follows_the_depths_of_the_reply() {
    assert_eq!(negotiated(REPLY), Ok((3, 5)));
    assert_eq!(negotiated(Enhanced { ird: 2, ord: 9, ..REPLY }), Ok((2, 9)));
    assert_eq!(negotiated(Enhanced { ird: 9, ord: 1, ..REPLY }), Ok((3, 5)));
    let unstated = Enhanced { ird: Enhanced::UNSTATED, ord: Enhanced::UNSTATED, ..REPLY };
    assert_eq!(negotiated(unstated), Ok((3, 5)));
    let many = Enhanced { ord: 256, ..REPLY };
    assert_eq!(negotiated(many), Err(HandshakeError::Ird { asked: 256, most: 255 }));
}

/// [RFC 6581 9.2-13]
#[test]
fn without_peer_to_peer_the_other_flags_mean_nothing() {
    let none = Enhanced { rtr_write: false, ..REPLY };
    assert_eq!(negotiated(none), Err(HandshakeError::Rtr));
    for rtr_read in [false, true] {
        let flags = Enhanced { peer_to_peer: false, rtr_send: true, rtr_read, ..none };
        assert_eq!(negotiated(flags), Ok((3, 5)));
    }
}

/// [RFC 6581 9.1-3, 9.1-8, 9.1-10]
#[test]
fn a_depth_that_was_not_stated_is_left_alone() {
    for (ird, ord, reply) in [(0x3fff, 1, (5, 0x3fff)), (1, 0x3fff, (0x3fff, 1))] {
        let (_, mut request) = Initiator::new(parameters(2, false), b"");
        request[20..].copy_from_slice(
            &Enhanced { peer_to_peer: true, rtr_send: false, rtr_write: true, rtr_read: false, ird, ord }
                .emit(),
        );
        let asked = ask(&request, 600).0.unwrap().unwrap();
        let (bytes, agreement) = asked.accept(&parameters(2, false), b"");
        let said = Enhanced::parse(*bytes[20..].first_chunk().unwrap());
        assert_eq!((said.ird, said.ord), reply);
        assert_eq!(agreement.responder_resources, 5);
        assert_eq!(agreement.initiator_depth, if ird == 0x3fff { 3 } else { 1 });
    }
}

/// [RFC 6581 10-1]
#[test]
fn a_refusal_answers_only_what_is_a_frame() {
    let mut responder = Responder::default();
    assert!(responder.feed(b"GET").is_err());
    assert_eq!(responder.refusal(), None);
    let mut responder = Responder::default();
    let (_, mut request) = Initiator::new(parameters(2, false), b"");
    request[16] |= 0x80;
    assert_eq!(responder.feed(&request[..20]), Ok(None));
    assert_eq!(responder.feed(&request[20..]), Err(HandshakeError::Markers));
    let refusal = responder.refusal().unwrap();
    let frame = Frame::parse(refusal.first_chunk().unwrap(), FrameKind::Reply).unwrap();
    assert!(frame.reject && !frame.markers && frame.enhanced);
    assert_eq!(refusal[FRAME_HEADER..], request[FRAME_HEADER..]);
}
