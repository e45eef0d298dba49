//! Data calls of byte streams.

use super::*;

/// A vector of pieces of these lengths, all of one buffer.
fn pieces(buffer: &mut [u8], lengths: &[usize]) -> Vec<libc::iovec> {
    let mut rest = buffer;
    let mut pieces = Vec::new();
    for &length in lengths {
        let (piece, tail) = rest.split_at_mut(length);
        pieces.push(libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: length });
        rest = tail;
    }
    pieces
}

/// A message of these pieces.
fn message(pieces: *const libc::iovec, count: usize) -> sys::fi_msg {
    sys::fi_msg {
        msg_iov: pieces,
        desc: ptr::null_mut(),
        iov_count: count,
        addr: 0,
        context: ptr::null_mut(),
        data: 0,
    }
}

#[test]
fn single_buffers() {
    let (endpoint, value) = open_endpoint();
    let mut buffer = [0_u8; 4];
    let (data, null) = (buffer.as_mut_ptr().cast::<c_void>(), ptr::null_mut());
    assert_eq!(slot!(endpoint.msg.send(data, 4, null, 0, null)), 4);
    assert_eq!(value.last(), "send [4] 0");
    assert_eq!(slot!(endpoint.msg.send(null, 0, null, 0, null)), size(Errno::EAGAIN));
    assert_eq!(value.last(), "send [0] 0");
    assert_eq!(slot!(endpoint.msg.recv(data, 3, null, 0, null)), 3);
    assert_eq!(value.last(), "recv [3] 0");
    assert_eq!(slot!(endpoint.msg.inject(data, 4, 0)), 4);
    assert_eq!(value.last(), "inject [1, 1, 1, 0]");

    let asked = value.asked.lock().len();
    assert_eq!(slot!(endpoint.msg.send(null, 1, null, 0, null)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.recv(null, 1, null, 0, null)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.inject(null, 1, 0)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.send(data, usize::MAX, null, 0, null)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.recv(data, usize::MAX, null, 0, null)), size(Errno::EINVAL));
    assert_eq!(value.asked.lock().len(), asked, "what is refused does not reach it");
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn vectors_up_to_the_limit() {
    let (endpoint, value) = open_endpoint();
    let mut buffer = [0_u8; 64];
    for count in 0..=IOV_LIMIT + 1 {
        let lengths: Vec<usize> = (0..count).collect();
        let total: usize = lengths.iter().sum();
        buffer.fill(0);
        let pieces = pieces(&mut buffer, &lengths);
        let (first, null) = (pieces.as_ptr(), ptr::null_mut());
        let sent = slot!(endpoint.msg.sendv(first, ptr::null_mut(), count, 0, null));
        let received = slot!(endpoint.msg.recvv(first, ptr::null_mut(), count, 0, null));
        if count > IOV_LIMIT {
            assert_eq!((sent, received), (size(Errno::EINVAL), size(Errno::EINVAL)));
            continue;
        }
        assert_eq!(sent, if total == 0 { size(Errno::EAGAIN) } else { total as isize });
        assert_eq!(received, total as isize);
        assert_eq!(value.last(), format!("recv {lengths:?} 0"));
        let filled: Vec<u8> = lengths.iter().flat_map(|&length| vec![length as u8 + 1; length]).collect();
        assert_eq!(buffer[..total], filled);
    }
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn vectors_of_nonsense() {
    let (endpoint, value) = open_endpoint();
    let mut buffer = [0_u8; 8];
    let good = pieces(&mut buffer, &[4])[0];
    let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let null = libc::iovec { iov_base: ptr::null_mut(), iov_len: 1 };
    let huge = libc::iovec { iov_len: isize::MAX as usize, ..good };
    let call = |pieces: &[libc::iovec]| {
        let (first, count) = (pieces.as_ptr(), pieces.len());
        let sent = slot!(endpoint.msg.sendv(first, ptr::null_mut(), count, 0, ptr::null_mut()));
        let received = slot!(endpoint.msg.recvv(first, ptr::null_mut(), count, 0, ptr::null_mut()));
        assert_eq!(sent, received);
        sent
    };
    assert_eq!(call(&[empty, good, empty]), 4);
    assert_eq!(value.last(), "recv [0, 4, 0] 0");
    let asked = value.asked.lock().len();
    assert_eq!(call(&[good, null]), size(Errno::EINVAL));
    assert_eq!(call(&[huge, good]), size(Errno::EINVAL), "no count could answer it");
    assert_eq!(call(&[huge, huge, huge]), size(Errno::EINVAL), "the sum overflows");
    assert_eq!(
        slot!(endpoint.msg.sendv(ptr::null(), ptr::null_mut(), 1, 0, ptr::null_mut())),
        size(Errno::EINVAL)
    );
    assert_eq!(value.asked.lock().len(), asked, "what is refused does not reach it");
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn messages_carry_flags() {
    let (endpoint, value) = open_endpoint();
    let mut buffer = [0_u8; 8];
    let vector = pieces(&mut buffer, &[3, 5]);
    let both = message(vector.as_ptr(), 2);
    assert_eq!(slot!(endpoint.msg.sendmsg(&raw const both, sys::FI_MORE)), 8);
    assert_eq!(value.last(), format!("send [3, 5] {}", sys::FI_MORE));
    assert_eq!(slot!(endpoint.msg.recvmsg(&raw const both, sys::FI_PEEK)), 8);
    assert_eq!(value.last(), format!("recv [3, 5] {}", sys::FI_PEEK));
    let none = message(ptr::null(), 0);
    assert_eq!(slot!(endpoint.msg.recvmsg(&raw const none, sys::FI_PEEK)), 0);
    assert_eq!(value.last(), format!("recv [] {}", sys::FI_PEEK), "no vector is told from an empty one");
    assert_eq!(slot!(endpoint.msg.recvmsg(ptr::null(), 0)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.sendmsg(ptr::null(), 0)), size(Errno::EINVAL));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}
