//! Data calls with tags.

use super::messages::*;
use super::*;

const TAGS: Tags = Tags { tag: 0x1234, ignore: 0xff };

#[test]
fn receives_arrive_with_their_tags() {
    let (endpoint, value) = open_messages();
    let mut bytes = [[0; 3], [0; 3]];
    let places = bytes.each_mut().map(|bytes| place(bytes));
    let pieces = bytes.each_mut().map(|bytes| piece(bytes));
    let (null, first) = (ptr::null_mut(), pieces[0].iov_base);
    let expected = |places, flags| Call::For(TAGS, Box::new(received(places, flags)));
    let Tags { tag, ignore } = TAGS;
    assert_eq!(slot!(endpoint.tagged.recv(first, 3, null, 0, tag, ignore, CONTEXT)), 0);
    assert_eq!(value.only(), expected(&places[..1], None));
    let call = slot!(endpoint.tagged.recvv(pieces.as_ptr(), ptr::null_mut(), 2, 0, tag, ignore, CONTEXT));
    assert_eq!((call, value.only()), (0, expected(&places, None)));
    let message = message(&pieces);
    assert_eq!(slot!(endpoint.tagged.recvmsg(&raw const message, sys::FI_CLAIM)), 0);
    assert_eq!(value.only(), expected(&places, Some(sys::FI_CLAIM)));
    // Who only looks has no buffers, whatever the message says.
    let message = sys::fi_msg_tagged { msg_iov: ptr::null(), iov_count: 9, ..message };
    for flags in [sys::FI_PEEK, sys::FI_CLAIM | sys::FI_DISCARD] {
        assert_eq!(slot!(endpoint.tagged.recvmsg(&raw const message, flags)), 0);
        assert_eq!(value.only(), expected(&[], Some(flags)));
    }
    assert_eq!(slot!(endpoint.tagged.recvmsg(&raw const message, sys::FI_CLAIM)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.tagged.recvmsg(ptr::null(), 0)), size(Errno::EINVAL));
    let call = slot!(endpoint.tagged.recv(first, 1 << 32, null, 0, tag, ignore, CONTEXT));
    assert_eq!(call, size(Errno::EMSGSIZE));
    assert!(!value.reached());
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn sends_arrive_with_their_tags() {
    let (endpoint, value) = open_messages();
    let mut bytes = [*b"abc", *b"def"];
    let places = bytes.each_mut().map(|bytes| place(bytes));
    let pieces = bytes.each_mut().map(|bytes| piece(bytes));
    let (null, first) = (ptr::null_mut(), pieces[0].iov_base);
    let expected = |call| Call::With(TAGS.tag, Box::new(call));
    let tag = TAGS.tag;
    assert_eq!(slot!(endpoint.tagged.send(first, 3, null, 0, tag, CONTEXT)), 0);
    assert_eq!(value.only(), expected(sent(&places[..1], None, None)));
    assert_eq!(slot!(endpoint.tagged.sendv(pieces.as_ptr(), ptr::null_mut(), 2, 0, tag, CONTEXT)), 0);
    assert_eq!(value.only(), expected(sent(&places, None, None)));
    assert_eq!(slot!(endpoint.tagged.senddata(first, 3, null, 9, 0, tag, CONTEXT)), 0);
    assert_eq!(value.only(), expected(sent(&places[..1], Some(9), None)));
    let message = message(&pieces);
    for (flags, data) in [(0, None), (sys::FI_REMOTE_CQ_DATA, Some(7))] {
        assert_eq!(slot!(endpoint.tagged.sendmsg(&raw const message, flags)), 0);
        assert_eq!(value.only(), expected(sent(&places, data, Some(flags))));
    }
    assert_eq!(slot!(endpoint.tagged.sendmsg(ptr::null(), 0)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.tagged.inject(first, 3, 0, tag)), 0);
    assert_eq!(value.only(), expected(Call::Inject(b"abc".to_vec(), None)));
    assert_eq!(slot!(endpoint.tagged.injectdata(first, 3, 9, 0, tag)), 0);
    assert_eq!(value.only(), expected(Call::Inject(b"abc".to_vec(), Some(9))));
    assert_eq!(slot!(endpoint.tagged.inject(ptr::null(), 1, 0, tag)), size(Errno::EINVAL));
    assert!(!value.reached());
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn ignored_bits_do_not_count() {
    assert!(TAGS.has(0x12ff) && TAGS.has(0x1234) && !TAGS.has(0x1334) && !TAGS.has(1 << 63 | 0x1234));
}

fn message(pieces: &[libc::iovec]) -> sys::fi_msg_tagged {
    let (msg_iov, iov_count) = (pieces.as_ptr(), pieces.len());
    let Tags { tag, ignore } = TAGS;
    let desc = ptr::null_mut();
    sys::fi_msg_tagged { msg_iov, desc, iov_count, addr: 0, tag, ignore, context: CONTEXT, data: 7 }
}
