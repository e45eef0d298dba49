//! Events and errors in C's layout.

use std::mem::{MaybeUninit, offset_of};

use super::*;

/// Length of an entry without data.
const ENTRY: usize = 16;

/// An event queue of an application of API `version`, and its value.
fn open_queue(version: u32) -> (*mut sys::fid_eq, Arc<Queue>) {
    let value = Arc::new(Queue::default());
    let mut new = New::event_queue(Arc::clone(&value));
    new.state().api_version = version;
    (new.hand_out(ptr::null_mut()), value)
}

fn handle() -> FidHandle {
    FidHandle { fid: ptr::without_provenance_mut(0xf1d), context: context() }
}

/// Reads into a buffer of `room` bytes. Returns the result, the event's number and the bytes written.
fn read(queue: *mut sys::fid_eq, room: usize, flags: u64) -> (isize, u32, [u8; 64]) {
    let (mut number, mut bytes) = (u32::MAX, [0xee; 64]);
    let answer = slot!(queue.ops.read(&raw mut number, bytes.as_mut_ptr().cast(), room, flags));
    (answer, number, bytes)
}

/// The two pointers that an entry begins with.
fn pointers(bytes: &[u8; 64]) -> (usize, usize) {
    let word = |at: usize| usize::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

#[test]
fn an_event_needs_room_for_its_entry_and_its_data_is_cut() {
    let (queue, value) = open_queue(0x10011);
    assert_eq!(read(queue, 64, 0).0, size(Errno::EAGAIN));
    let connected = || Event::Connected { fid: handle(), data: b"hello".to_vec() };
    value.events.lock().push_back(connected());
    for room in 0..ENTRY {
        let (answer, number, bytes) = read(queue, room, 0);
        assert_eq!((answer, number, bytes), (size(Errno::ETOOSMALL), u32::MAX, [0xee; 64]), "{room}");
    }
    for room in ENTRY..ENTRY + 8 {
        if value.events.lock().is_empty() {
            value.events.lock().push_back(connected());
        }
        let (answer, number, bytes) = read(queue, room, 0);
        let count = room.min(ENTRY + 5);
        assert_eq!((answer, number), (count as isize, sys::FI_CONNECTED));
        assert_eq!(pointers(&bytes), (0xf1d, 0));
        assert_eq!(bytes[ENTRY..count], b"hello"[..count - ENTRY]);
        assert_eq!(bytes[count..], [0xee; 64][count..], "nothing beyond");
        assert!(value.events.lock().is_empty());
    }
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn peeking_leaves_the_event_and_other_flags_are_refused() {
    let (queue, value) = open_queue(0x10011);
    value.events.lock().push_back(Event::Shutdown { fid: handle() });
    for _ in 0..2 {
        let (answer, number, bytes) = read(queue, 64, sys::FI_PEEK);
        assert_eq!((answer, number), (ENTRY as isize, sys::FI_SHUTDOWN));
        assert_eq!(pointers(&bytes), (0xf1d, 0));
    }
    assert_eq!(read(queue, 64, sys::FI_PEEK | 1).0, size(Errno::EBADFLAGS));
    assert_eq!(read(queue, 64, 0).0, ENTRY as isize);
    assert_eq!(read(queue, 64, 0).0, size(Errno::EAGAIN));
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn null_pointers_are_invalid() {
    let (queue, value) = open_queue(0x10011);
    value.events.lock().push_back(Event::Shutdown { fid: handle() });
    let (mut number, null) = (0, ptr::null_mut());
    assert_eq!(slot!(queue.ops.read(&raw mut number, null, 64, 0)), size(Errno::EINVAL));
    assert_eq!(slot!(queue.ops.read(&raw mut number, null, 0, 0)), size(Errno::ETOOSMALL));
    assert_eq!(
        slot!(queue.ops.read(ptr::null_mut(), [0_u8; 64].as_mut_ptr().cast(), 64, 0)),
        size(Errno::EINVAL)
    );
    assert_eq!(slot!(queue.ops.readerr(ptr::null_mut(), 0)), size(Errno::EINVAL));
    assert_eq!(value.events.lock().len(), 1);
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn a_request_hands_its_info_over() {
    let (queue, value) = open_queue(0x10011);
    let request = ConnectionHandle::new(Arc::new("request".to_owned()));
    let mut info = Info::new().unwrap();
    info.set_handle(request.as_fid());
    let raw = info.as_ptr();
    value.events.lock().push_back(Event::ConnReq { fid: handle(), info, data: b"x".to_vec() });
    let (answer, number, bytes) = read(queue, 64, sys::FI_PEEK);
    assert_eq!((answer, number, pointers(&bytes)), (17, sys::FI_CONNREQ, (0xf1d, raw.addr())));
    assert_eq!(read(queue, 64, 0).0, 17);
    // This test owns the info now, as an application would; its handle still refers to the request.
    // SAFETY: the read passed ownership of the info to this test.
    unsafe {
        assert!(AnyFid((*raw).handle).downcast::<String>().is_some());
        sys::fi_freeinfo(raw);
    }
    assert_eq!(fid_slot!(queue.close()), 0);
}

/// Writes an event of the application.
fn write(queue: *mut sys::fid_eq, number: u32, entry: &[u8], flags: u64) -> isize {
    slot!(queue.ops.write(number, entry.as_ptr().cast(), entry.len(), flags))
}

#[test]
fn an_event_of_the_application_comes_back_unchanged() {
    let (queue, value) = open_queue(0x10011);
    let notice = sys::fi_eq_entry { fid: ptr::null_mut(), context: context(), data: 7 };
    let (raw, length) = (&raw const notice, size_of::<sys::fi_eq_entry>());
    assert_eq!(slot!(queue.ops.write(sys::FI_NOTIFY, raw.cast(), length, 0)), length as isize);
    value.events.lock().push_back(Event::Shutdown { fid: handle() });
    assert_eq!(write(queue, u32::MAX, b"abc", 0), 3);
    for room in 0..length {
        assert_eq!(read(queue, room, 0), (size(Errno::ETOOSMALL), u32::MAX, [0xee; 64]), "{room}");
    }
    for flags in [sys::FI_PEEK, sys::FI_PEEK, 0] {
        let (answer, number, bytes) = read(queue, 64, flags);
        assert_eq!((answer, number), (length as isize, sys::FI_NOTIFY));
        assert_eq!(pointers(&bytes), (0, context().addr()));
        assert_eq!(bytes[16..24], 7_u64.to_ne_bytes());
        assert_eq!(bytes[24..], [0xee; 40]);
    }
    assert_eq!(read(queue, 64, 0).1, sys::FI_SHUTDOWN, "in the order of the queue");
    let mut bytes = [0xee; 64];
    let mut number = 0;
    let target = bytes.as_mut_ptr().cast();
    assert_eq!(slot!(queue.ops.sread(&raw mut number, target, 3, -1, sys::FI_PEEK)), 3);
    assert_eq!(slot!(queue.ops.sread(&raw mut number, target, 3, -1, 0)), 3);
    assert_eq!((number, &bytes[..4]), (u32::MAX, &b"abc\xee"[..]));
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn events_of_nonsense_are_not_written() {
    let (queue, value) = open_queue(0x10011);
    let longest = [7; USER_EVENT_LIMIT + 1];
    assert_eq!(write(queue, 1, &longest, 0), size(Errno::EINVAL));
    assert_eq!(slot!(queue.ops.write(1, longest.as_ptr().cast(), usize::MAX, 0)), size(Errno::EINVAL));
    assert_eq!(slot!(queue.ops.write(1, ptr::null(), 1, 0)), size(Errno::EINVAL));
    assert_eq!(write(queue, 1, b"a", sys::FI_PEEK), size(Errno::EBADFLAGS));
    assert!(value.events.lock().is_empty());
    assert_eq!(write(queue, 1, &longest[1..], 0), USER_EVENT_LIMIT as isize);
    assert_eq!(slot!(queue.ops.write(2, ptr::null(), 0, 0)), 0, "an event without an entry");
    let written = std::mem::take(&mut *value.events.lock());
    assert!(written.iter().all(|event| event.fid().is_none()));
    let lengths = written.iter().map(|event| match event {
        Event::User { number, entry } => (*number, entry.len()),
        other => panic!("{other:?}"),
    });
    assert!(lengths.eq([(1, USER_EVENT_LIMIT), (2, 0)]));
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn time_outs_are_milliseconds_or_for_ever() {
    let (queue, value) = open_queue(0x10011);
    let (mut number, mut bytes) = (0, [0_u8; 64]);
    for (timeout, expected) in
        [(0, Some(Duration::ZERO)), (1500, Some(Duration::from_millis(1500))), (-1, None)]
    {
        *value.timeout.lock() = Some(Duration::MAX);
        let answer = slot!(queue.ops.sread(&raw mut number, bytes.as_mut_ptr().cast(), 64, timeout, 0));
        assert_eq!((answer, *value.timeout.lock()), (size(Errno::EAGAIN), expected));
    }
    assert_eq!(fid_slot!(queue.close()), 0);
}

/// Reads an error into an entry with the given `err_data` and `err_data_size`.
fn read_error(
    queue: *mut sys::fid_eq,
    buffer: *mut u8,
    room: usize,
    flags: u64,
) -> (isize, sys::fi_eq_err_entry) {
    let mut entry = MaybeUninit::<sys::fi_eq_err_entry>::zeroed();
    let raw = entry.as_mut_ptr();
    // SAFETY: the entry is a local variable.
    unsafe {
        (*raw).err_data = buffer.cast();
        (*raw).err_data_size = room;
    }
    let answer = slot!(queue.ops.readerr(raw, flags));
    // SAFETY: zeroed first, and all values are valid.
    (answer, unsafe { entry.assume_init() })
}

fn rejected(data: &[u8]) -> ErrorEvent {
    ErrorEvent { fid: handle(), err: Errno::ECONNREFUSED, prov_errno: 3, err_data: data.to_vec() }
}

#[test]
fn error_data_goes_to_the_caller_or_stays_with_the_queue() {
    let (queue, value) = open_queue(0x10005);
    let null = ptr::null_mut();
    assert_eq!(read_error(queue, null, 0, 0).0, size(Errno::EAGAIN));
    value.errors.lock().extend([rejected(b"reason"), rejected(b"reason"), rejected(b"")]);

    let (answer, entry) = read_error(queue, null, 0, sys::FI_PEEK);
    assert_eq!(answer, size_of::<sys::fi_eq_err_entry>() as isize);
    assert_eq!((entry.fid.addr(), entry.context, entry.data), (0xf1d, context(), 0));
    assert_eq!((entry.err, entry.prov_errno), (libc::ECONNREFUSED, 3));
    assert_eq!(value.errors.lock().len(), 3);
    let (_, entry) = read_error(queue, null, 0, 0);
    assert_eq!(entry.err_data_size, 6);
    // SAFETY: the queue keeps the data until the next error is read.
    assert_eq!(unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), 6) }, b"reason");

    let mut buffer = [0xee_u8; 8];
    let (_, entry) = read_error(queue, buffer.as_mut_ptr(), 4, 0);
    assert_eq!((entry.err_data.addr(), entry.err_data_size), (buffer.as_ptr().addr(), 4));
    assert_eq!(&buffer, b"reas\xee\xee\xee\xee");

    let (_, entry) = read_error(queue, null, 0, 0);
    assert_eq!((entry.err_data, entry.err_data_size), (null.cast(), 0));
    assert_eq!(read_error(queue, null, 0, sys::FI_MORE).0, size(Errno::EBADFLAGS));
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn old_applications_have_no_size_of_error_data() {
    let (queue, value) = open_queue(0x10004);
    value.errors.lock().push_back(rejected(b"reason"));
    let mut buffer = [0xee_u8; 8];
    let (answer, entry) = read_error(queue, buffer.as_mut_ptr(), 8, 0);
    assert_eq!(answer, offset_of!(sys::fi_eq_err_entry, err_data_size) as isize);
    assert_eq!((entry.err_data_size, buffer), (8, [0xee; 8]), "not touched, not used");
    // SAFETY: the queue keeps the data until the next error is read.
    assert_eq!(unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), 6) }, b"reason");
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn the_queue_learns_the_api_version_from_its_fabric() {
    let fabric = open_fabric();
    // SAFETY: a live fabric of this test; libfabric writes the field in the same way.
    unsafe { (*fabric).api_version = 0x10005 };
    let mut attributes = sys::fi_eq_attr {
        size: 0,
        flags: 0,
        wait_obj: sys::FI_WAIT_NONE,
        signaling_vector: 0,
        wait_set: ptr::null_mut(),
    };
    let mut queue = ptr::null_mut();
    assert_eq!(slot!(fabric.ops.eq_open(&raw mut attributes, &raw mut queue, context())), 0);
    let value = AnyFid(queue.cast()).downcast::<Queue>().unwrap();
    value.errors.lock().push_back(rejected(b"reason"));
    let (_, entry) = read_error(queue, ptr::null_mut(), 0, 0);
    assert_eq!(entry.err_data_size, 6);
    assert_eq!(fid_slot!(queue.close()), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
}

#[test]
fn texts_go_into_the_callers_buffer_if_there_is_one() {
    let (queue, _) = open_queue(0x10011);
    let mut buffer = [0xee_u8; 16];
    let room = buffer.as_mut_ptr().cast();
    // SAFETY: texts are NUL-terminated.
    unsafe {
        let text = slot!(queue.ops.strerror(1, ptr::null(), ptr::null_mut(), 9));
        assert_eq!(CStr::from_ptr(text), c"it broke");
        let text = slot!(queue.ops.strerror(1, ptr::null(), room, 0));
        assert_eq!(CStr::from_ptr(text), c"it broke");
        assert_eq!(buffer, [0xee; 16]);
        let text = slot!(queue.ops.strerror(1, ptr::null(), room, 5));
        assert_eq!((text.cast_mut(), CStr::from_ptr(text)), (room, c"it b"));
        assert_eq!(buffer[5], 0xee);
        slot!(queue.ops.strerror(1, ptr::null(), room, 16));
        assert_eq!(&buffer[..9], b"it broke\0");
    }
    assert_eq!(fid_slot!(queue.close()), 0);
}
