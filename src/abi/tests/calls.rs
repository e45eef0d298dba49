//! Calls other than data calls: null pointers, addresses, options, opening.

use super::*;

#[test]
fn opening_gives_objects_and_refuses_nulls() {
    let fabric = open_fabric();
    let mut info = Info::new().unwrap();
    let raw = info.as_ptr();
    let mut domain = ptr::null_mut();
    assert_eq!(slot!(fabric.ops.domain(raw, &raw mut domain, context())), 0);
    assert_eq!(slot!(fabric.ops.domain(ptr::null_mut(), &raw mut domain, context())), int(Errno::EINVAL));
    assert_eq!(slot!(fabric.ops.domain(raw, ptr::null_mut(), context())), int(Errno::EINVAL));

    let mut endpoint = ptr::null_mut();
    assert_eq!(slot!(domain.ops.endpoint(raw, &raw mut endpoint, context())), 0);
    assert_eq!(slot!(domain.ops.endpoint(raw, ptr::null_mut(), context())), int(Errno::EINVAL));
    info.set_caps(sys::FI_RMA);
    let before = endpoint;
    assert_eq!(slot!(domain.ops.endpoint(raw, &raw mut endpoint, context())), int(Errno::ENODATA));
    assert_eq!(endpoint, before, "nothing is written then");

    let mut passive = ptr::null_mut();
    assert_eq!(slot!(fabric.ops.passive_ep(raw, &raw mut passive, context())), 0);
    assert_eq!(slot!(passive.cm.listen()), int(Errno::ENOSYS));

    let null = ptr::null_mut();
    assert_eq!(slot!(domain.ops.av_open(null, null.cast(), null.cast())), int(Errno::ENOSYS));
    assert_eq!(slot!(fabric.ops.wait_open(ptr::null_mut(), ptr::null_mut())), int(Errno::ENOSYS));

    for object in [passive.cast(), endpoint.cast(), domain.cast(), fabric.cast::<sys::fid>()] {
        assert_eq!(fid_slot!(object.close()), 0);
    }
}

#[test]
fn event_queues_are_opened_as_asked() {
    let fabric = open_fabric();
    let mut queue = ptr::null_mut();
    assert_eq!(slot!(fabric.ops.eq_open(ptr::null_mut(), &raw mut queue, context())), int(Errno::EINVAL));
    let mut attributes = sys::fi_eq_attr {
        size: 0,
        flags: 0,
        wait_obj: sys::FI_WAIT_SET,
        signaling_vector: 0,
        wait_set: ptr::null_mut(),
    };
    let asked = &raw mut attributes;
    assert_eq!(slot!(fabric.ops.eq_open(asked, &raw mut queue, context())), int(Errno::ENOSYS));
    // SAFETY: an object of this test, and no reference to it is in use.
    unsafe { (*asked).wait_obj = sys::FI_WAIT_FD };
    assert_eq!(slot!(fabric.ops.eq_open(asked, &raw mut queue, context())), 0);
    assert_eq!(fid_slot!(queue.close()), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
}

#[test]
fn a_null_fid_is_invalid_in_every_kind_of_slot() {
    let (endpoint, _) = open_endpoint();
    let queue = New::event_queue(Arc::new(Queue::default())).hand_out(ptr::null_mut());
    let null = ptr::null_mut();
    // SAFETY: the tables are of live objects; the fid that is passed is checked.
    unsafe {
        let (ops, cm, msg) = ((*endpoint).fid.ops, (*endpoint).cm, (*endpoint).msg);
        assert_eq!((*ops).close.unwrap()(null), int(Errno::EINVAL));
        assert_eq!((*ops).bind.unwrap()(null, null, 0), int(Errno::EINVAL));
        assert_eq!((*cm).shutdown.unwrap()(ptr::null_mut(), 0), int(Errno::EINVAL));
        assert_eq!((*msg).inject.unwrap()(ptr::null_mut(), ptr::null(), 0, 0), size(Errno::EINVAL));
        let strerror = (*(*queue).ops).strerror.unwrap();
        assert!(strerror(ptr::null_mut(), 0, ptr::null(), ptr::null_mut(), 0).is_null());
    }
    assert_eq!(fid_slot!(queue.close()), 0);
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn control_decodes_its_argument() {
    let (endpoint, value) = open_endpoint();
    let mut number = 9_i32;
    let argument = (&raw mut number).cast();
    let control = |command: u32, argument| fid_slot!(endpoint.control(command as i32, argument));
    assert_eq!(control(sys::FI_GETWAIT, argument), 0);
    assert_eq!(number, 77);
    assert_eq!(control(sys::FI_GETWAITOBJ, argument), 0);
    assert_eq!(number as u32, sys::FI_WAIT_FD);
    assert_eq!(control(sys::FI_BACKLOG, argument), 0);
    assert_eq!(value.last(), format!("control Backlog({})", sys::FI_WAIT_FD));
    for command in [sys::FI_GETWAIT, sys::FI_GETWAITOBJ, sys::FI_BACKLOG] {
        assert_eq!(control(command, ptr::null_mut()), int(Errno::EINVAL));
    }
    assert_eq!(control(sys::FI_ENABLE, ptr::null_mut()), 0);
    assert_eq!(control(sys::FI_ALIAS, ptr::null_mut()), int(Errno::ENOSYS));
    assert_eq!(fid_slot!(endpoint.control(-1, ptr::null_mut())), int(Errno::ENOSYS));
    assert_eq!(value.last(), "control Other(-1)");
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

/// Reads an address into a buffer of `room` bytes. Returns the result, the length and the bytes written.
fn address_of(endpoint: *mut sys::fid_ep, peer: bool, room: usize) -> (i32, usize, [u8; 32]) {
    let (mut bytes, mut length) = ([0xee_u8; 32], room);
    let (out, length_out) = (bytes.as_mut_ptr().cast::<c_void>(), &raw mut length);
    let answer = if peer {
        slot!(endpoint.cm.getpeer(out, length_out))
    } else {
        // SAFETY: a live endpoint of this test.
        unsafe { (*(*endpoint).cm).getname.unwrap()(endpoint.cast(), out, length_out) }
    };
    (answer, length, bytes)
}

#[test]
fn addresses_fill_what_there_is_room_for() {
    let (endpoint, _) = open_endpoint();
    let v4 = [2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut v6 = [0; 28];
    v6[0] = libc::AF_INET6 as u8;
    v6[2..4].copy_from_slice(&[0x12, 0x34]);
    v6[23] = 1;
    for (peer, full) in [(false, &v4[..]), (true, &v6[..])] {
        for room in 0..=32 {
            let (answer, length, bytes) = address_of(endpoint, peer, room);
            let count = room.min(full.len());
            assert_eq!(answer, if room < full.len() { int(Errno::ETOOSMALL) } else { 0 }, "{room}");
            assert_eq!(length, full.len());
            assert_eq!(bytes[..count], full[..count]);
            assert_eq!(bytes[count..], [0xee; 32][count..], "nothing beyond");
        }
    }
    let mut length = 5;
    let null = ptr::null_mut();
    assert_eq!(slot!(endpoint.cm.getpeer(null, &raw mut length)), int(Errno::EINVAL));
    assert_eq!(slot!(endpoint.cm.getpeer(null, ptr::null_mut())), int(Errno::EINVAL));
    assert_eq!(length, 5);
    length = 0;
    assert_eq!(slot!(endpoint.cm.getpeer(null, &raw mut length)), int(Errno::ETOOSMALL));
    assert_eq!(length, 28);
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn addresses_are_read_and_checked() {
    let (endpoint, value) = open_endpoint();
    let setname = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        // SAFETY: a live endpoint of this test; the bytes are readable.
        unsafe { (*(*endpoint).cm).setname.unwrap()(endpoint.cast(), bytes.as_mut_ptr().cast(), bytes.len()) }
    };
    let v4 = [2, 0, 0x30, 0x39, 10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(setname(&v4), 0);
    assert_eq!(value.last(), "setname 10.1.2.3:12345");
    assert_eq!(setname(&[&v4[..], &[0; 12]].concat()), 0, "more than it needs");
    for short in 1..16 {
        assert_eq!(setname(&v4[..short]), int(Errno::EINVAL), "{short}");
    }
    assert_eq!(setname(&[10; 27]), int(Errno::EINVAL), "AF_INET6 is 28 bytes");
    assert_eq!(setname(&[1; 64]), int(Errno::EINVAL), "another family");
    assert_eq!(value.asked.lock().len(), 2, "what is refused does not reach it");

    let remote = v4.as_ptr().cast();
    assert_eq!(slot!(endpoint.cm.connect(remote, b"hi".as_ptr().cast(), 2)), 0);
    assert_eq!(value.last(), "connect Some(10.1.2.3:12345) [104, 105]");
    assert_eq!(slot!(endpoint.cm.connect(ptr::null(), ptr::null(), 0)), 0);
    assert_eq!(value.last(), "connect None []");
    assert_eq!(slot!(endpoint.cm.connect(remote, ptr::null(), 1)), int(Errno::EINVAL));
    assert_eq!(slot!(endpoint.cm.connect([9_u8; 32].as_ptr().cast(), ptr::null(), 0)), int(Errno::EINVAL));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn options_come_and_go_by_pointer() {
    let (endpoint, value) = open_endpoint();
    let fid = endpoint.cast::<sys::fid>();
    // SAFETY: a live endpoint of this test; pointers are null or valid.
    unsafe {
        let ops = (*endpoint).ops;
        let set = |value, length| (*ops).setopt.unwrap()(fid, 0, 4, value, length);
        assert_eq!(set([7_u8, 8].as_ptr().cast(), 2), 0);
        assert_eq!(value.last(), "setopt 0 4 [7, 8]");
        assert_eq!(set(ptr::null(), 2), int(Errno::EINVAL));
        assert_eq!(set([0_u8; 2].as_ptr().cast(), usize::MAX), int(Errno::EINVAL));

        let (mut bytes, mut length) = ([0_u8; 8], 8);
        let get = |value, length| (*ops).getopt.unwrap()(fid, 0, 4, value, length);
        assert_eq!(get(bytes.as_mut_ptr().cast(), &raw mut length), 0);
        assert_eq!((&bytes, length), (b"option\0\0", 6));
        length = 5;
        assert_eq!(get(bytes.as_mut_ptr().cast(), &raw mut length), int(Errno::ETOOSMALL));
        assert_eq!(length, 6);
        assert_eq!(get(ptr::null_mut(), &raw mut length), int(Errno::EINVAL));
        assert_eq!(get(bytes.as_mut_ptr().cast(), ptr::null_mut()), int(Errno::EINVAL));
    }
    assert_eq!(fid_slot!(endpoint.close()), 0);
}
