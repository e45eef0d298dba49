//! Registration of memory.

use libc::iovec;

use super::messages::piece;
use super::*;

/// A key that is in use.
pub(super) const TAKEN: u64 = 13;

/// A memory region that records its calls.
#[derive(Default)]
pub(super) struct Region {
    asked: Mutex<Vec<String>>,
}

impl Fid for Region {
    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        self.asked.lock().push(format!("bind {flags}"));
        other.downcast::<counters::Counter>().map(drop).ok_or(Errno::EINVAL)
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        self.asked.lock().push(format!("{command:?}"));
        if command == Control::Enable { Ok(0) } else { Err(Errno::ENOSYS) }
    }
}

/// The arguments of a registration, as the provider notes them.
const NOTED: &str = "register 4096 0 77 5";

fn mr_attr(pieces: &[iovec]) -> sys::fi_mr_attr {
    // SAFETY: an all-zero structure is valid: nothing is set.
    let mut attributes: sys::fi_mr_attr = unsafe { std::mem::zeroed() };
    let raw = &raw mut attributes;
    // SAFETY: the structure begins with the vectors in every version of the headers.
    unsafe { raw.cast::<*const iovec>().write(pieces.as_ptr()) };
    sys::fi_mr_attr {
        iov_count: pieces.len(),
        access: sys::FI_REMOTE_READ,
        requested_key: 77,
        context: context(),
        ..attributes
    }
}

/// Registers by `fi_mr_regattr`.
fn register(
    domain: *mut sys::fid_domain,
    attributes: *const sys::fi_mr_attr,
    flags: u64,
) -> (i32, *mut sys::fid_mr) {
    let mut region = ptr::null_mut();
    // SAFETY: a live domain of this test.
    let regattr = unsafe { (*(*domain).mr).regattr.unwrap() };
    // SAFETY: as above; the attributes are null or valid during the call.
    let result = unsafe { regattr(domain.cast(), attributes, flags, &raw mut region) };
    (result, region)
}

/// Registers by `fi_mr_regv`.
fn register_vector(
    domain: *mut sys::fid_domain,
    pieces: *const iovec,
    count: usize,
) -> (i32, *mut sys::fid_mr) {
    let mut region = ptr::null_mut();
    // SAFETY: a live domain of this test.
    let regv = unsafe { (*(*domain).mr).regv.unwrap() };
    // SAFETY: as above; the vectors are valid during the call.
    let result = unsafe {
        regv(domain.cast(), pieces, count, sys::FI_REMOTE_READ, 0, 77, 5, &raw mut region, context())
    };
    (result, region)
}

/// Registers by `fi_mr_reg` with this key.
fn register_bytes(
    domain: *mut sys::fid_domain,
    base: *const c_void,
    length: usize,
    key: u64,
) -> (i32, *mut sys::fid_mr) {
    let mut region = ptr::null_mut();
    // SAFETY: a live domain of this test.
    let reg = unsafe { (*(*domain).mr).reg.unwrap() };
    // SAFETY: as above; the memory outlives the region.
    let result = unsafe {
        reg(domain.cast(), base, length, sys::FI_REMOTE_READ, 0, key, 5, &raw mut region, context())
    };
    (result, region)
}

/// The bytes that were registered last, each piece from its address on.
fn registered(domain: &Domain) -> Vec<(u64, Vec<u8>)> {
    let content = |piece: &MemoryPiece| {
        let mut bytes = vec![0; piece.memory.len()];
        piece.memory.read(0, &mut bytes).unwrap();
        (piece.address, bytes)
    };
    domain.registered.lock().iter().map(content).collect()
}

/// A buffer, its vector, and what is registered with them.
fn two_pieces(first: &mut [u8], second: &mut [u8]) -> ([iovec; 2], [(u64, Vec<u8>); 2]) {
    let content = |bytes: &[u8]| (bytes.as_ptr().addr() as u64, bytes.to_vec());
    let contents = [content(first), content(second)];
    ([piece(first), piece(second)], contents)
}

#[test]
fn each_call_lends_memory_and_gives_a_region() {
    let (domain, value) = open_domain(0x10011);
    let (mut first, mut second) = (*b"abc", *b"defgh");
    let (pieces, content) = two_pieces(&mut first, &mut second);
    let (vector, attributes) = (pieces.as_ptr(), mr_attr(&pieces));
    let check = |(result, region): (i32, *mut sys::fid_mr), expected: &[(u64, Vec<u8>)]| {
        assert_eq!(result, 0);
        assert_eq!(value.last(), NOTED);
        assert_eq!(registered(&value), expected);
        // SAFETY: a live object of this test.
        let (class, given, key, descriptor) =
            unsafe { ((*region).fid.fclass, (*region).fid.context, (*region).key, (*region).mem_desc) };
        assert_eq!((class, given, key), (sys::FI_CLASS_MR as usize, context(), 77));
        assert_eq!(descriptor.addr(), 33);
        assert_eq!(fid_slot!(region.close()), 0);
        assert!(AnyFid(region.cast()).downcast::<Region>().is_none());
    };
    check(register_bytes(domain, pieces[0].iov_base, 3, 77), &content[..1]);
    check(register_vector(domain, vector, 1), &content[..1]);
    check(register_vector(domain, vector, 2), &content);
    check(register(domain, &raw const attributes, 5), &content);
    check(register_bytes(domain, ptr::null(), 0, 77), &[(0, vec![])]);
    assert_eq!(fid_slot!(domain.close()), 0);
}

#[test]
fn memory_of_nonsense() {
    let (domain, value) = open_domain(0x10011);
    let (mut bytes, null) = ([0; 3], ptr::null_mut());
    let good = piece(&mut bytes);
    let missing = iovec { iov_base: null, iov_len: 1 };
    let huge = iovec { iov_len: isize::MAX as usize + 1, ..good };
    let refused = (int(Errno::EINVAL), ptr::null_mut());
    for piece in [missing, huge] {
        let pieces = [good, piece];
        assert_eq!(register_bytes(domain, piece.iov_base, piece.iov_len, 77), refused);
        assert_eq!(register_vector(domain, &raw const piece, 1), refused);
        assert_eq!(register_vector(domain, pieces.as_ptr(), 2), refused);
        assert_eq!(register(domain, &mr_attr(&pieces), 5), refused);
    }
    let many = [good; MESSAGE_IOV_LIMIT + 1];
    for count in [0, MESSAGE_IOV_LIMIT + 1, usize::MAX] {
        assert_eq!(register_vector(domain, many.as_ptr(), count), refused);
        let attributes = sys::fi_mr_attr { iov_count: count, ..mr_attr(&many) };
        assert_eq!(register(domain, &raw const attributes, 5), refused);
    }
    assert_eq!(register_vector(domain, ptr::null(), 1), refused);
    assert_eq!(register(domain, ptr::null(), 5), refused);
    // SAFETY: a live domain of this test.
    let reg = unsafe { (*(*domain).mr).reg.unwrap() };
    // SAFETY: as above; a null pointer for the result is checked.
    let result = unsafe { reg(domain.cast(), good.iov_base, 3, 0, 0, 77, 0, ptr::null_mut(), context()) };
    assert_eq!(result, int(Errno::EINVAL));
    assert!(value.asked.lock().is_empty(), "what is refused does not reach it");

    assert_eq!(register_bytes(domain, good.iov_base, 3, TAKEN), (int(Errno::ENOKEY), ptr::null_mut()));
    let (result, region) = register_vector(domain, many.as_ptr(), MESSAGE_IOV_LIMIT);
    assert_eq!(result, 0);
    assert_eq!(registered(&value).len(), MESSAGE_IOV_LIMIT);
    assert_eq!(fid_slot!(region.close()), 0);
    assert_eq!(fid_slot!(domain.close()), 0);
}

#[test]
fn attributes_are_read_as_far_as_the_application_has_them() {
    let mut bytes = [0; 3];
    let pieces = [piece(&mut bytes)];
    let plain = mr_attr(&pieces);
    let with_key = sys::fi_mr_attr { auth_key_size: 8, ..plain };
    let with_device = sys::fi_mr_attr { iface: sys::FI_HMEM_CUDA, ..plain };
    for (version, key, device) in [
        (0x10004, 0, 0),
        (0x10005, int(Errno::EINVAL), 0),
        (0x10009, int(Errno::EINVAL), 0),
        (0x1000a, int(Errno::EINVAL), int(Errno::ENOSYS)),
        (0x20006, int(Errno::EINVAL), int(Errno::ENOSYS)),
    ] {
        let (domain, value) = open_domain(version);
        for (attributes, expected) in [(plain, 0), (with_key, key), (with_device, device)] {
            value.asked.lock().clear();
            let (result, region) = register(domain, &raw const attributes, 5);
            assert_eq!(result, expected, "{version:x}");
            assert_eq!(value.asked.lock().len(), usize::from(result == 0));
            if result == 0 {
                assert_eq!(fid_slot!(region.close()), 0);
            }
        }
        let unsupported = (int(Errno::ENOSYS), ptr::null_mut());
        assert_eq!(register(domain, &raw const plain, sys::FI_MR_DMABUF), unsupported);
        assert_eq!(fid_slot!(domain.close()), 0);
    }
}

#[test]
fn regions_are_bound_and_enabled_but_not_raw() {
    let (domain, value) = open_domain(0x10011);
    let counter = New::counter(Arc::new(counters::Counter::default())).hand_out(ptr::null_mut());
    let mut byte = 0_u8;
    let (result, region) = register_bytes(domain, (&raw mut byte).cast(), 1, 77);
    assert_eq!((result, value.last().as_str()), (0, NOTED));
    assert_eq!(fid_slot!(region.bind(counter.cast(), sys::FI_REMOTE_WRITE)), 0);
    assert_eq!(fid_slot!(region.bind(domain.cast(), 0)), int(Errno::EINVAL));
    let control = |command: u32| fid_slot!(region.control(command as i32, ptr::null_mut()));
    assert_eq!(control(sys::FI_ENABLE), 0);
    assert_eq!(control(sys::FI_GET_RAW_MR), int(Errno::ENOSYS));
    assert_eq!(control(sys::FI_REFRESH), int(Errno::ENOSYS));
    let region_value: Arc<Region> = AnyFid(region.cast()).downcast().unwrap();
    let asked = region_value.asked.lock().clone();
    assert_eq!(asked[..2], [format!("bind {}", sys::FI_REMOTE_WRITE), "bind 0".into()]);
    assert_eq!(asked[2..], ["Enable".into(), format!("Other({})", sys::FI_GET_RAW_MR), "Other(14)".into()]);
    for command in [sys::FI_MAP_RAW_MR, sys::FI_UNMAP_KEY, sys::FI_FLUSH_WORK] {
        assert_eq!(fid_slot!(domain.control(command as i32, ptr::null_mut())), int(Errno::ENOSYS));
    }
    for object in [region.cast(), counter.cast(), domain.cast::<sys::fid>()] {
        assert_eq!(fid_slot!(object.close()), 0);
    }
}
