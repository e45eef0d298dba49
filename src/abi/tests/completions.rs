//! Completions in C's layout.

use std::mem::{MaybeUninit, offset_of};

use super::*;

/// A completion queue that is filled by its test, and panics on demand.
#[derive(Default)]
pub(super) struct Completions {
    entries: Mutex<VecDeque<Completion>>,
    errors: Mutex<VecDeque<CompletionError>>,
    /// Threshold and timeout of each waiting read.
    waits: Mutex<Vec<(usize, Option<Duration>)>>,
    signals: AtomicUsize,
    panics: AtomicBool,
}

impl Fid for Completions {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl CqOps for Completions {
    fn read(&self, out: &mut CompletionsOut<'_>) -> Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "told to");
        let mut entries = self.entries.lock();
        if entries.is_empty() {
            return Err(if self.errors.lock().is_empty() { Errno::EAGAIN } else { Errno::EAVAIL });
        }
        while let Some(entry) = entries.front() {
            let had_room = out.has_room();
            assert_eq!(out.push(entry), had_room);
            if !had_room {
                break;
            }
            entries.pop_front();
        }
        Ok(())
    }

    fn sread(&self, out: &mut CompletionsOut<'_>, threshold: usize, timeout: Option<Duration>) -> Result<()> {
        self.waits.lock().push((threshold, timeout));
        self.read(out)
    }

    fn readerr(&self) -> Result<CompletionError> {
        self.errors.lock().pop_front().ok_or(Errno::EAGAIN)
    }

    fn signal(&self) -> Result<()> {
        self.signals.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn strerror(&self, prov_errno: i32) -> &'static CStr {
        if prov_errno == 3 { c"it broke" } else { c"unknown" }
    }
}

fn attributes() -> sys::fi_cq_attr {
    sys::fi_cq_attr {
        size: 12,
        flags: sys::FI_AFFINITY,
        format: sys::FI_CQ_FORMAT_UNSPEC,
        wait_obj: sys::FI_WAIT_FD,
        signaling_vector: 1,
        wait_cond: sys::FI_CQ_COND_NONE,
        wait_set: ptr::null_mut(),
    }
}

/// A completion queue with these attributes in a domain of an application of API `version`, and its value.
fn open_queue(version: u32, mut asked: sys::fi_cq_attr) -> (*mut sys::fid_cq, Arc<Completions>) {
    let (domain, _) = open_domain(version);
    let mut queue = ptr::null_mut();
    assert_eq!(slot!(domain.ops.cq_open(&raw mut asked, &raw mut queue, context())), 0);
    assert_eq!(fid_slot!(domain.close()), 0);
    (queue, AnyFid(queue.cast()).downcast().unwrap())
}

/// A queue of this format.
fn open_format(format: u32) -> (*mut sys::fid_cq, Arc<Completions>) {
    open_queue(0x10011, sys::fi_cq_attr { format, ..attributes() })
}

fn completion(number: usize) -> Completion {
    let context = UserContext::numbered(0x100 + number);
    Completion { context, flags: sys::FI_RECV | sys::FI_MSG, length: 5 + number, data: 9, tag: 11 }
}

/// The words of the longest entry for [`completion`]: shorter entries begin with the same.
fn words(number: usize) -> [u64; 6] {
    [0x100 + number as u64, sys::FI_RECV | sys::FI_MSG, 5 + number as u64, 0, 9, 11]
}

const FORMATS: [(u32, usize); 5] = [
    (sys::FI_CQ_FORMAT_UNSPEC, 1),
    (sys::FI_CQ_FORMAT_CONTEXT, 1),
    (sys::FI_CQ_FORMAT_MSG, 3),
    (sys::FI_CQ_FORMAT_DATA, 5),
    (sys::FI_CQ_FORMAT_TAGGED, 6),
];

#[test]
fn entries_have_the_layout_of_their_format() {
    for (format, length) in FORMATS {
        let (queue, value) = open_format(format);
        for room in 0..4 {
            value.entries.lock().clear();
            value.entries.lock().extend((0..3).map(completion));
            let mut buffer = [0xeeee_eeee_eeee_eeee_u64; 4 * 6];
            let taken = slot!(queue.ops.read(buffer.as_mut_ptr().cast(), room));
            assert_eq!(taken, room.min(3) as isize, "format {format}");
            let expected: Vec<u64> =
                (0..room.min(3)).flat_map(|number| words(number)[..length].to_vec()).collect();
            assert_eq!(buffer[..expected.len()], expected, "format {format}");
            assert!(buffer[expected.len()..].iter().all(|&word| word == 0xeeee_eeee_eeee_eeee));
            assert_eq!(value.entries.lock().len(), 3 - room.min(3));
        }
        assert_eq!(fid_slot!(queue.close()), 0);
    }
}

/// The same layouts by the names of the fields, as C has them.
#[test]
fn entries_have_the_fields_of_their_structures() {
    macro_rules! read {
        ($format:ident, $entry:ident) => {{
            let (queue, value) = open_format(sys::$format);
            value.entries.lock().push_back(completion(0));
            // One byte beyond the start: a buffer may have any alignment.
            let mut buffer = [0_u8; 64];
            let target = buffer[1..].as_mut_ptr();
            assert_eq!(slot!(queue.ops.read(target.cast(), 1)), 1);
            assert_eq!(fid_slot!(queue.close()), 0);
            // SAFETY: the buffer has an entry there, and any bytes are a valid one.
            unsafe { target.cast::<sys::$entry>().read_unaligned() }
        }};
    }
    let Completion { context: UserContext(context), flags, length, data, tag } = completion(0);
    let entry = read!(FI_CQ_FORMAT_CONTEXT, fi_cq_entry);
    assert_eq!(entry.op_context, context);
    let entry = read!(FI_CQ_FORMAT_MSG, fi_cq_msg_entry);
    assert_eq!((entry.op_context, entry.flags, entry.len), (context, flags, length));
    let entry = read!(FI_CQ_FORMAT_DATA, fi_cq_data_entry);
    assert_eq!((entry.op_context, entry.flags, entry.len), (context, flags, length));
    assert_eq!((entry.buf, entry.data), (ptr::null_mut(), data));
    let entry = read!(FI_CQ_FORMAT_TAGGED, fi_cq_tagged_entry);
    assert_eq!((entry.op_context, entry.flags, entry.len), (context, flags, length));
    assert_eq!((entry.buf, entry.data, entry.tag), (ptr::null_mut(), data, tag));
}

#[test]
fn buffers_of_nonsense() {
    let (queue, value) = open_format(sys::FI_CQ_FORMAT_TAGGED);
    let mut buffer = [0_u64; 6];
    let (null, room) = (ptr::null_mut(), buffer.as_mut_ptr().cast::<c_void>());
    assert_eq!(slot!(queue.ops.read(null, 0)), size(Errno::EAGAIN), "no room, and nothing to read");
    value.entries.lock().push_back(completion(0));
    assert_eq!(slot!(queue.ops.read(null, 0)), 0);
    assert_eq!(slot!(queue.ops.read(room, 0)), 0);
    assert_eq!(slot!(queue.ops.read(null, 1)), size(Errno::EINVAL));
    // The length of the last one overflows to less than the buffer has.
    for count in [usize::MAX, isize::MAX as usize / 6, usize::MAX / size_of::<sys::fi_cq_tagged_entry>() + 1]
    {
        assert_eq!(slot!(queue.ops.read(room, count)), size(Errno::EINVAL), "{count}");
        assert_eq!(slot!(queue.ops.sread(room, count, ptr::null(), 0)), size(Errno::EINVAL), "{count}");
    }
    assert!(value.waits.lock().is_empty(), "what is refused does not reach it");
    assert_eq!(value.entries.lock().len(), 1);
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn source_addresses_are_not_available() {
    let (queue, value) = open_format(sys::FI_CQ_FORMAT_CONTEXT);
    let mut buffer = [0_u64; 4];
    for waits in [false, true] {
        value.entries.lock().extend((0..2).map(completion));
        let mut sources = [7; 4];
        let (target, addresses) = (buffer.as_mut_ptr().cast::<c_void>(), sources.as_mut_ptr());
        let read = || {
            if waits {
                slot!(queue.ops.sreadfrom(target, 4, addresses, ptr::null(), 0))
            } else {
                slot!(queue.ops.readfrom(target, 4, addresses))
            }
        };
        assert_eq!(read(), 2);
        assert_eq!(sources, [u64::MAX, u64::MAX, 7, 7]);
        assert_eq!(read(), size(Errno::EAGAIN));
        assert_eq!(sources, [u64::MAX, u64::MAX, 7, 7]);
    }
    value.entries.lock().push_back(completion(0));
    assert_eq!(slot!(queue.ops.readfrom(buffer.as_mut_ptr().cast(), 4, ptr::null_mut())), 1);
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn waiting_reads_have_a_timeout_and_perhaps_a_threshold() {
    let second = Some(Duration::from_secs(1));
    let threshold = sys::FI_CQ_COND_THRESHOLD;
    for (wait_cond, condition, count, milliseconds, expected) in [
        (sys::FI_CQ_COND_NONE, 3, 8, 1000, (1, second)),
        (threshold, 3, 8, 1000, (3, second)),
        (threshold, 9, 8, 0, (8, Some(Duration::ZERO))),
        (threshold, 0, 8, -1, (1, None)),
        (threshold, 3, 0, i32::MIN, (1, None)),
    ] {
        let (queue, value) = open_queue(0x10011, sys::fi_cq_attr { wait_cond, ..attributes() });
        let mut buffer = [0_u64; 8];
        let (target, condition) = (buffer.as_mut_ptr().cast(), ptr::without_provenance(condition));
        let result = slot!(queue.ops.sread(target, count, condition, milliseconds));
        assert_eq!((result, value.waits.lock().pop()), (size(Errno::EAGAIN), Some(expected)));
        assert_eq!(slot!(queue.ops.signal()), 0);
        assert_eq!(value.signals.load(Ordering::Relaxed), 1);
        assert_eq!(fid_slot!(queue.close()), 0);
    }
}

#[test]
fn queues_are_opened_as_asked() {
    let (domain, value) = open_domain(0x10011);
    let mut queue = ptr::null_mut();
    let mut open = |mut asked: sys::fi_cq_attr| {
        let result = slot!(domain.ops.cq_open(&raw mut asked, &raw mut queue, context()));
        if result == 0 {
            assert_eq!(fid_slot!(queue.close()), 0);
        }
        result
    };
    assert_eq!(open(attributes()), 0);
    let expected = CqAttr { size: 12, flags: sys::FI_AFFINITY, wait_obj: sys::FI_WAIT_FD };
    assert_eq!(value.last(), format!("{expected:?}"));
    assert_eq!(open(sys::fi_cq_attr { wait_obj: sys::FI_WAIT_SET, ..attributes() }), int(Errno::ENOSYS));

    let asked = value.asked.lock().len();
    assert_eq!(open(sys::fi_cq_attr { format: 5, ..attributes() }), int(Errno::EINVAL));
    let odd = sys::fi_cq_attr { wait_cond: 2, ..attributes() };
    assert_eq!(open(odd), int(Errno::EINVAL));
    let mut wanted = attributes();
    let raw = &raw mut wanted;
    assert_eq!(slot!(domain.ops.cq_open(raw, ptr::null_mut(), context())), int(Errno::EINVAL));
    assert_eq!(value.asked.lock().len(), asked, "what is refused does not reach it");
    assert_eq!(open(sys::fi_cq_attr { wait_obj: sys::FI_WAIT_NONE, ..odd }), 0, "the condition is ignored");

    assert_eq!(slot!(domain.ops.cq_open(ptr::null_mut(), &raw mut queue, context())), 0);
    assert_eq!(value.last(), format!("{:?}", CqAttr::default()));
    // SAFETY: a live object of this test.
    let (class, given) = unsafe { ((*queue).fid.fclass, (*queue).fid.context) };
    assert_eq!((class, given), (sys::FI_CLASS_CQ as usize, context()));
    assert_eq!(fid_slot!(queue.close()), 0);
    assert_eq!(fid_slot!(domain.close()), 0);
}

/// An entry with what libfabric 1.20 appended to it.
#[repr(C)]
struct LongEntry {
    entry: MaybeUninit<sys::fi_cq_err_entry>,
    source: u64,
}

/// Reads an error into an entry of bytes 0xee with the given `err_data` and `err_data_size`.
fn read_error(queue: *mut sys::fid_cq, err_data: *mut u8, room: usize) -> (isize, LongEntry) {
    let mut long = LongEntry { entry: MaybeUninit::uninit(), source: 7 };
    let raw = long.entry.as_mut_ptr();
    // SAFETY: the entry is a local variable.
    unsafe {
        raw.cast::<u8>().write_bytes(0xee, size_of::<sys::fi_cq_err_entry>());
        (*raw).err_data = err_data.cast();
        (*raw).err_data_size = room;
    }
    (slot!(queue.ops.readerr((&raw mut long).cast(), 0)), long)
}

impl LongEntry {
    fn get(&self) -> &sys::fi_cq_err_entry {
        // SAFETY: every byte was written (`read_error`), and any bytes are a valid entry.
        unsafe { self.entry.assume_init_ref() }
    }
}

fn failed(err_data: &[u8]) -> CompletionError {
    let (err, err_data) = (Errno::ETRUNC, err_data.to_vec());
    CompletionError { completion: completion(0), excess: 11, err, prov_errno: 3, err_data }
}

#[test]
fn errors_have_their_fields() {
    let (queue, value) = open_queue(0x10013, attributes());
    assert_eq!(read_error(queue, ptr::null_mut(), 0).0, size(Errno::EAGAIN));
    value.errors.lock().push_back(failed(b""));
    let mut buffer = [0_u64; 8];
    assert_eq!(slot!(queue.ops.read(buffer.as_mut_ptr().cast(), 8)), size(Errno::EAVAIL));
    assert_eq!(slot!(queue.ops.readerr(ptr::null_mut(), 0)), size(Errno::EINVAL));
    let entry = buffer.as_mut_ptr().cast();
    assert_eq!(slot!(queue.ops.readerr(entry, sys::FI_PEEK)), size(Errno::EBADFLAGS));
    assert_eq!(value.errors.lock().len(), 1, "what is refused changes nothing");
    let (result, long) = read_error(queue, ptr::null_mut(), 0);
    let entry = long.get();
    assert_eq!(result, 1);
    assert_eq!((entry.op_context.addr(), entry.flags, entry.len), (0x100, sys::FI_RECV | sys::FI_MSG, 5));
    assert_eq!((entry.buf, entry.data, entry.tag, entry.olen), (ptr::null_mut(), 9, 11, 11));
    assert_eq!((entry.err, entry.prov_errno), (sys::FI_ETRUNC as i32, 3));
    assert_eq!((entry.err_data, entry.err_data_size), (ptr::null_mut(), 0));
    assert_eq!(long.source, 7, "1.19 does not have it");
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn later_applications_have_a_source_address() {
    // Headers may have the field already.
    let source = offset_of!(sys::fi_cq_err_entry, err_data_size) + size_of::<usize>();
    for (version, expected) in [(0x10013, None), (0x10014, Some(u64::MAX)), (0x20006, Some(u64::MAX))] {
        let (queue, value) = open_queue(version, attributes());
        value.errors.lock().push_back(failed(b""));
        let (_, mut long) = read_error(queue, ptr::null_mut(), 0);
        // SAFETY: within the local value; the word was written by `read_error`.
        let word = unsafe { (&raw mut long).byte_add(source).cast::<u64>().read() };
        let before = if source == size_of::<sys::fi_cq_err_entry>() { 7 } else { 0xeeee_eeee_eeee_eeee };
        assert_eq!(word, expected.unwrap_or(before), "{version:x}");
        assert_eq!(fid_slot!(queue.close()), 0);
    }
}

#[test]
fn error_data_goes_to_the_caller_or_stays_with_the_queue() {
    let (queue, value) = open_queue(0x10005, attributes());
    value.errors.lock().extend([failed(b"reason"), failed(b"reason"), failed(b"")]);
    let (_, long) = read_error(queue, ptr::null_mut(), 0);
    let entry = long.get();
    assert_eq!(entry.err_data_size, 6);
    // SAFETY: the queue keeps the data until the next error is read.
    assert_eq!(unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), 6) }, b"reason");
    let mut buffer = [0xee_u8; 8];
    let (_, long) = read_error(queue, buffer.as_mut_ptr(), 4);
    assert_eq!((long.get().err_data.addr(), long.get().err_data_size), (buffer.as_ptr().addr(), 4));
    assert_eq!(&buffer, b"reas\xee\xee\xee\xee");
    let (_, long) = read_error(queue, buffer.as_mut_ptr(), 8);
    assert_eq!((long.get().err_data_size, &buffer), (0, b"reas\xee\xee\xee\xee"));
    assert_eq!(fid_slot!(queue.close()), 0);

    let (queue, value) = open_queue(0x10004, attributes());
    value.errors.lock().push_back(failed(b"reason"));
    let (_, long) = read_error(queue, buffer.as_mut_ptr(), 8);
    assert_eq!(long.get().err_data_size, 8, "1.4 does not have it");
    // SAFETY: as above.
    assert_eq!(unsafe { std::slice::from_raw_parts(long.get().err_data.cast::<u8>(), 6) }, b"reason");
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn texts_go_into_the_callers_buffer_if_there_is_one() {
    let (queue, _) = open_format(0);
    let mut buffer = [0xee_u8; 8];
    let room = buffer.as_mut_ptr().cast();
    // SAFETY: texts are NUL-terminated.
    unsafe {
        let text = slot!(queue.ops.strerror(3, ptr::null(), ptr::null_mut(), 0));
        assert_eq!(CStr::from_ptr(text), c"it broke");
        let text = slot!(queue.ops.strerror(4, ptr::null(), room, 5));
        assert_eq!((text.cast_mut(), CStr::from_ptr(text)), (room, c"unkn"));
        assert_eq!(buffer[5], 0xee);
    }
    assert_eq!(fid_slot!(queue.close()), 0);
}

#[test]
fn a_panic_poisons_the_queue() {
    let (queue, value) = open_format(0);
    let mut buffer = [0_u64; 8];
    let mut read = || slot!(queue.ops.read(buffer.as_mut_ptr().cast(), 8));
    value.panics.store(true, Ordering::Relaxed);
    assert_eq!(read(), size(Errno::EIO));
    value.panics.store(false, Ordering::Relaxed);
    value.entries.lock().push_back(completion(0));
    assert_eq!(read(), size(Errno::EIO));
    assert_eq!(slot!(queue.ops.signal()), int(Errno::EIO));
    // SAFETY: the table is of a live object; the fid that is passed is checked.
    let read = unsafe { (*(*queue).ops).read.unwrap() };
    // SAFETY: as above.
    assert_eq!(unsafe { read(ptr::null_mut(), ptr::null_mut(), 0) }, size(Errno::EINVAL));
    assert_eq!(fid_slot!(queue.close()), 0);
}
