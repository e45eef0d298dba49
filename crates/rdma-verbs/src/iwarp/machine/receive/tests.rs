use super::*;
use crate::iwarp::region::ProtectionDomain;
use crate::{Buffer, Place};
use iwarp_wire::ddp::{UNTAGGED, Untagged};
use iwarp_wire::mpa;

/// [RFC 5041 4.3-8]
#[test]
fn numbers_of_messages_wrap_to_zero() {
    let mut receiver = Receiver::new(QpId(0), Rules::Verbs, ReceiveSource::new(4, None));
    (receiver.send_sequence, receiver.read_sequence) = (u32::MAX, u32::MAX);
    let mut regions = RegionCache::new(ProtectionDomain::default());
    receiver.post(&[RecvRequest { id: 0, buffer: Buffer::Empty }; 4], &mut regions).unwrap();
    let mut reads = Reads::default();
    reads.responder_resources = 4;
    let mut completions = Vec::new();
    let mut feed = |opcode: Opcode, queue, sequence, payload: &[u8]| {
        let header = Untagged { last: true, ulp: opcode.control(), ulp_word: 0, queue, sequence, offset: 0 };
        let mut bytes = [0; UNTAGGED];
        header.emit(&mut bytes);
        let length = ((UNTAGGED + payload.len()) as u16).to_be_bytes();
        let fpdu = [&length[..], &bytes, payload, &[0; mpa::CRC]].concat();
        receiver.feed(&fpdu, &mut reads, &mut regions, &mut completions)
    };
    for sequence in [u32::MAX, 0, 1] {
        feed(Opcode::Send, rdmap::SEND_QUEUE, sequence, b"").unwrap();
        feed(Opcode::ReadRequest, rdmap::READ_QUEUE, sequence, &[0; rdmap::READ_REQUEST]).unwrap();
    }
    assert!(feed(Opcode::Send, rdmap::SEND_QUEUE, u32::MAX, b"").is_err());
    assert_eq!(completions.len(), 3);
}

/// [RFC 5041 5.2-2]
#[test]
fn a_message_ends_where_its_offset_does() {
    let feed = |begun: u32, payload: &[u8]| {
        let mut receiver = Receiver::new(QpId(0), Rules::Messages, ReceiveSource::new(1, None));
        receiver.message = begun;
        let mut regions = RegionCache::new(ProtectionDomain::default());
        let places = [Place::leaked(4)];
        let receive = RecvRequest { id: 0, buffer: Buffer::Places(&places) };
        receiver.post(&[receive], &mut regions).unwrap();
        let ulp = Opcode::Send.control();
        let header = Untagged { last: true, ulp, ulp_word: 0, queue: 0, sequence: 1, offset: begun };
        let mut bytes = [0; UNTAGGED];
        header.emit(&mut bytes);
        let length = ((UNTAGGED + payload.len()) as u16).to_be_bytes();
        let fpdu = [&length[..], &bytes, payload, &[0; mpa::CRC]].concat();
        let mut completions = Vec::new();
        let fed = receiver.feed(&fpdu, &mut Reads::default(), &mut regions, &mut completions);
        fed.map(|()| completions.iter().map(|done| (done.length, done.status)).collect::<Vec<_>>())
    };
    assert_eq!(feed(u32::MAX - 4, b"").unwrap(), [(u32::MAX - 4, CompletionStatus::Truncated)]);
    assert_eq!(feed(u32::MAX - 4, b"1234").unwrap(), [(u32::MAX, CompletionStatus::Truncated)]);
    let too_long = Violation::TooLong { length: u64::from(u32::MAX) + 4, room: u32::MAX };
    assert_eq!(feed(u32::MAX - 4, b"12345678"), Err(too_long.into()));
}
