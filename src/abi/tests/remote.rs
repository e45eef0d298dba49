//! Remote memory access.

use libc::iovec;

use super::messages::{CONTEXT, Call, Messages, Rma, open_messages, piece, place};
use super::*;

const ADDRESS: u64 = 0x1000;
const KEY: u64 = 0xdead_beef_0000_0001;

fn remote(address: u64, length: u64, key: u64) -> RemotePiece {
    RemotePiece { address, length, key }
}

/// A call with one remote piece.
fn one(local: &[Place], data: Option<u64>) -> Rma {
    let length = local.iter().map(|place| place.len() as u64).sum();
    let remote = vec![remote(ADDRESS, length, KEY)];
    Rma { local: local.to_vec(), remote, data, flags: None, context: UserContext(CONTEXT) }
}

fn message(pieces: &[iovec], remote: &[sys::fi_rma_iov]) -> sys::fi_msg_rma {
    sys::fi_msg_rma {
        msg_iov: pieces.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: pieces.len(),
        addr: 0,
        rma_iov: remote.as_ptr(),
        rma_iov_count: remote.len(),
        context: CONTEXT,
        data: 9,
    }
}

fn target(addr: u64, len: usize) -> sys::fi_rma_iov {
    sys::fi_rma_iov { addr, len, key: KEY }
}

#[test]
fn reads_and_writes_of_one_remote_piece() {
    let (endpoint, value) = open_messages();
    let (mut first, mut second) = (*b"abc", *b"defgh");
    let places = [place(&mut first), place(&mut second)];
    let pieces = [piece(&mut first), piece(&mut second)];
    let (vector, null) = (pieces.as_ptr(), ptr::null_mut());
    let buffer = first.as_mut_ptr().cast::<c_void>();
    assert_eq!(slot!(endpoint.rma.read(buffer, 3, null, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Read(one(&places[..1], None)));
    assert_eq!(slot!(endpoint.rma.readv(vector, ptr::null_mut(), 2, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Read(one(&places, None)));
    assert_eq!(slot!(endpoint.rma.write(buffer, 3, null, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Write(one(&places[..1], None)));
    assert_eq!(slot!(endpoint.rma.writev(vector, ptr::null_mut(), 2, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Write(one(&places, None)));
    assert_eq!(slot!(endpoint.rma.writedata(buffer, 3, null, 9, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Write(one(&places[..1], Some(9))));
    assert_eq!(slot!(endpoint.rma.inject(buffer, 3, 0, ADDRESS, KEY)), 0);
    assert_eq!(value.only(), Call::InjectWrite(b"abc".to_vec(), remote(ADDRESS, 3, KEY), None));
    assert_eq!(slot!(endpoint.rma.injectdata(buffer, 3, 9, 0, ADDRESS, KEY)), 0);
    assert_eq!(value.only(), Call::InjectWrite(b"abc".to_vec(), remote(ADDRESS, 3, KEY), Some(9)));
    assert_eq!(slot!(endpoint.rma.write(null, 0, null, 0, ADDRESS, KEY, CONTEXT)), 0);
    assert_eq!(value.only(), Call::Write(one(&[], None)), "no bytes");
    value.full.store(true, Ordering::Relaxed);
    assert_eq!(slot!(endpoint.rma.read(buffer, 3, null, 0, ADDRESS, KEY, CONTEXT)), size(Errno::EAGAIN));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn memory_of_nonsense() {
    let (endpoint, value) = open_messages();
    let (null, descriptors, mut byte) = (ptr::null_mut(), ptr::null_mut(), 0_u8);
    let base = (&raw mut byte).cast::<c_void>();
    for (base, length, errno) in [(null, 1, Errno::EINVAL), (base, 1 << 32, Errno::EMSGSIZE)] {
        let piece = iovec { iov_base: base, iov_len: length };
        let vector = &raw const piece;
        let results = [
            slot!(endpoint.rma.read(base, length, null, 0, ADDRESS, KEY, CONTEXT)),
            slot!(endpoint.rma.readv(vector, descriptors, 1, 0, ADDRESS, KEY, CONTEXT)),
            slot!(endpoint.rma.write(base, length, null, 0, ADDRESS, KEY, CONTEXT)),
            slot!(endpoint.rma.writev(vector, descriptors, 1, 0, ADDRESS, KEY, CONTEXT)),
            slot!(endpoint.rma.writedata(base, length, null, 9, 0, ADDRESS, KEY, CONTEXT)),
        ];
        assert_eq!(results, [size(errno); 5]);
    }
    for length in [1, usize::MAX] {
        assert_eq!(slot!(endpoint.rma.inject(null, length, 0, ADDRESS, KEY)), size(Errno::EINVAL));
        assert_eq!(slot!(endpoint.rma.injectdata(null, length, 9, 0, ADDRESS, KEY)), size(Errno::EINVAL));
    }
    let pieces = [iovec { iov_base: base, iov_len: 1 }; MESSAGE_IOV_LIMIT + 1];
    let (vector, count) = (pieces.as_ptr(), pieces.len());
    for result in [
        slot!(endpoint.rma.readv(vector, descriptors, count, 0, ADDRESS, KEY, CONTEXT)),
        slot!(endpoint.rma.writev(vector, descriptors, count, 0, ADDRESS, KEY, CONTEXT)),
        slot!(endpoint.rma.writev(ptr::null(), descriptors, 1, 0, ADDRESS, KEY, CONTEXT)),
    ] {
        assert_eq!(result, size(Errno::EINVAL));
    }
    assert!(!value.reached(), "what is refused does not reach it");
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

/// Makes both calls that take a message, and returns their result and what reached the provider.
fn both(message: *const sys::fi_msg_rma, flags: u64) -> (isize, Option<Rma>) {
    let (endpoint, value) = open_messages();
    let arrived = |value: &Messages| match value.reached().then(|| value.only()) {
        Some(Call::Read(call) | Call::Write(call)) => Some(call),
        other => {
            assert!(other.is_none());
            None
        }
    };
    let read = (slot!(endpoint.rma.readmsg(message, flags)), arrived(&value));
    let write = (slot!(endpoint.rma.writemsg(message, flags)), arrived(&value));
    assert_eq!(read, write);
    assert_eq!(fid_slot!(endpoint.close()), 0);
    read
}

#[test]
fn messages_scatter_on_both_sides() {
    let mut bytes = [0; 6];
    let (place, piece) = (place(&mut bytes), piece(&mut bytes));
    let targets = [target(1, 4), target(2, 0), target(3, 8)];
    let remotes = vec![remote(1, 4, KEY), remote(2, 0, KEY), remote(3, 8, KEY)];
    let pieces = [piece, piece];
    let message = message(&pieces, &targets);
    for (flags, data) in [(0, None), (sys::FI_REMOTE_CQ_DATA, Some(9))] {
        let expected = Rma {
            local: vec![place; 2],
            remote: remotes.clone(),
            data,
            flags: Some(flags),
            context: UserContext(CONTEXT),
        };
        assert_eq!(both(&raw const message, flags), (0, Some(expected)));
    }
}

#[test]
fn messages_of_nonsense() {
    let mut bytes = [0; 6];
    let piece = piece(&mut bytes);
    let refused = |pieces: &[iovec], targets: &[sys::fi_rma_iov]| {
        assert_eq!(both(&message(pieces, targets), 0), (size(Errno::EINVAL), None), "{targets:?}");
    };
    assert_eq!(both(ptr::null(), 0), (size(Errno::EINVAL), None));
    refused(&[piece], &[]);
    refused(&[piece], &[target(0, 5)]);
    refused(&[piece], &[target(0, 7)]);
    refused(&[piece], &[target(0, usize::MAX), target(0, 7)]);
    refused(&[piece; MESSAGE_IOV_LIMIT + 1], &[target(0, 30)]);
    refused(&[piece], &[target(0, 6), target(0, 0), target(0, 0), target(0, 0), target(0, 0)]);
    let (pieces, targets) = ([piece], [target(0, 6)]);
    let null = sys::fi_msg_rma { rma_iov: ptr::null(), ..message(&pieces, &targets) };
    assert_eq!(both(&raw const null, 0), (size(Errno::EINVAL), None));
    let null = sys::fi_msg_rma { msg_iov: ptr::null(), ..message(&pieces, &targets) };
    assert_eq!(both(&raw const null, 0), (size(Errno::EINVAL), None));
}

#[test]
fn streams_have_no_remote_access() {
    let (endpoint, _) = open_endpoint();
    let null = ptr::null_mut();
    assert_eq!(slot!(endpoint.rma.read(null, 0, null, 0, 0, 0, null)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.rma.inject(null, 0, 0, 0, 0)), size(Errno::ENOSYS));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}
