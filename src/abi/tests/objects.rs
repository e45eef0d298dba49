//! Objects: opening, closing, naming, poisoning.

use std::sync::Barrier;

use super::header::rstream_endpoint_ops;
use super::*;

/// Every function of a table; the first word is its size.
fn slots<T>(table: *const T) -> Vec<usize> {
    let words = size_of::<T>() / size_of::<usize>();
    // SAFETY: op tables are a `size_t` and function pointers, all of a word's size.
    let words = unsafe { std::slice::from_raw_parts(table.cast::<usize>(), words) };
    assert_eq!(words[0], size_of::<T>(), "a table says its size");
    words[1..].to_vec()
}

#[test]
fn no_slot_is_null() {
    let fabric = open_fabric();
    let domain = New::domain(Arc::new(Domain::default())).hand_out(ptr::null_mut());
    let queue = New::event_queue(Arc::new(Queue::default())).hand_out(ptr::null_mut());
    let passive = New::passive_endpoint(Arc::new(Endpoint::default())).hand_out(ptr::null_mut());
    let (endpoint, _) = open_endpoint();
    let (messages, _) = messages::open_messages();
    let receiver = New::shared_receive(Arc::new(messages::Receiver::default())).hand_out(ptr::null_mut());
    let completions = Arc::new(completions::Completions::default());
    let completions = New::completion_queue(completions).hand_out(ptr::null_mut());
    let counter = New::counter(Arc::new(counters::Counter::default())).hand_out(ptr::null_mut());
    let region = New::memory_region(Arc::new(memory::Region::default()), 7, 0).hand_out(ptr::null_mut());
    // SAFETY: all are live objects of this test.
    unsafe {
        let of_endpoint = |endpoint: *mut sys::fid_ep| {
            [
                slots((*endpoint).ops),
                slots((*endpoint).cm),
                slots((*endpoint).msg),
                slots((*endpoint).rma),
                slots((*endpoint).tagged),
                slots((*endpoint).atomic),
                slots((*endpoint).collective),
                slots((*endpoint).fid.ops),
            ]
        };
        let tables = [
            slots((*fabric).ops),
            slots((*domain).ops),
            slots((*domain).mr),
            slots((*queue).ops),
            slots((*passive).ops),
            slots((*passive).cm),
            slots((*completions).ops),
            slots((*counter).ops),
            slots((*region).fid.ops),
        ];
        let endpoints = [endpoint, messages, receiver].map(of_endpoint);
        assert!(tables.iter().chain(endpoints.iter().flatten()).flatten().all(|&slot| slot != 0));
    }
    let endpoints = [endpoint, messages, receiver].map(|endpoint| endpoint.cast());
    let others = [region.cast(), counter.cast(), completions.cast(), passive.cast(), queue.cast()];
    for object in endpoints.into_iter().chain(others).chain([domain.cast(), fabric.cast::<sys::fid>()]) {
        assert_eq!(fid_slot!(object.close()), 0);
    }
}

/// ofi_rxm asks a domain for interfaces of libfabric's own providers, and takes no other answer for a no.
#[test]
fn a_domain_has_no_further_ops() {
    let (domain, _) = open_domain(0x10011);
    let mut ops = ptr::null_mut();
    let name = c"ofix_flow_ctrl_v1".as_ptr();
    assert_eq!(fid_slot!(domain.ops_open(name, 0, &raw mut ops, ptr::null_mut())), int(Errno::ENOSYS));
    assert_eq!(fid_slot!(domain.ops_set(name, 0, ptr::null_mut(), ptr::null_mut())), int(Errno::ENOSYS));
    assert!(ops.is_null());
    assert_eq!(fid_slot!(domain.close()), 0);
}

#[test]
fn ops_are_opened_by_name() {
    let (endpoint, _) = open_endpoint();
    let mut ops = ptr::null_mut();
    let open = |name: &CStr, ops| fid_slot!(endpoint.ops_open(name.as_ptr(), 0, ops, ptr::null_mut()));
    assert_eq!(open(c"rstream_endpoint_op", &raw mut ops), int(Errno::ENOSYS));
    assert_eq!(open(c"rstream_endpoint_ops", &raw mut ops), 0);
    let ops: *const rstream_endpoint_ops = ops.cast();
    // SAFETY: the table that `fi_open_ops` returned, valid as long as the endpoint.
    let stats = unsafe { (*ops).stats }.unwrap();
    for size in [0, 8, size_of::<Stats>(), size_of::<Stats>() + 8] {
        let mut out = [0xee_u8; size_of::<Stats>() + 16];
        // SAFETY: a live endpoint of this test, and a buffer of at least `size` bytes.
        assert_eq!(unsafe { stats(endpoint, out.as_mut_ptr().cast(), size) }, 0);
        let mut wanted = [0; size_of::<Stats>() + 16];
        wanted[..8].copy_from_slice(&1_u64.to_ne_bytes());
        wanted[size_of::<Stats>() - 8..size_of::<Stats>()].copy_from_slice(&11_u64.to_ne_bytes());
        wanted[size..].fill(0xee);
        assert_eq!(out, wanted, "{size}");
    }
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn what_nobody_implements_answers_enosys() {
    let (endpoint, _) = open_endpoint();
    let (null, iov) = (ptr::null_mut(), ptr::null());
    assert_eq!(slot!(endpoint.msg.senddata(null, 0, null, 0, 0, null)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.msg.injectdata(null, 0, 0, 0)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.rma.writev(iov, ptr::null_mut(), 0, 0, 0, 0, null)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.tagged.inject(null, 0, 0, 0)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.atomic.writevalid(0, 0, ptr::null_mut())), int(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.collective.barrier(0, null)), size(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.cm.join(null, 0, ptr::null_mut(), null)), int(Errno::ENOSYS));
    assert_eq!(slot!(endpoint.ops.tx_size_left()), size(Errno::ENOSYS));
    // This endpoint does not implement it: the trait's default.
    assert_eq!(slot!(endpoint.cm.accept(null, 0)), int(Errno::ENOSYS));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn an_object_knows_its_fid_and_context() {
    let (endpoint, value) = open_endpoint();
    let handle = *value.handle.get().unwrap();
    assert_eq!((handle.fid, handle.context), (endpoint.cast(), context()));
    // SAFETY: a live object of this test.
    assert_eq!(unsafe { ((*endpoint).fid.context, (*endpoint).fid.fclass) }, (context(), 3));
    assert!(AnyFid(endpoint.cast()).is(handle));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn closing_frees_once() {
    let value = Arc::new(Lone::<1>::default());
    let fabric = New::fabric(Arc::clone(&value)).hand_out(ptr::null_mut());
    let dropped = Arc::clone(&value.dropped);
    value.busy.store(true, Ordering::Relaxed);
    assert_eq!(fid_slot!(fabric.close()), int(Errno::EBUSY));
    assert!(AnyFid(fabric.cast()).downcast::<Lone<1>>().is_some(), "still open");
    value.busy.store(false, Ordering::Relaxed);
    drop(value);
    // SAFETY: a live object of this test; its table is static.
    let ops = unsafe { (*fabric).fid.ops };
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    // SAFETY: the table is static; the shim looks the closed fid up and does not dereference it.
    assert_eq!(unsafe { (*ops).close.unwrap()(fabric.cast()) }, int(Errno::EINVAL));
    assert!(AnyFid(fabric.cast()).downcast::<Lone<1>>().is_none());
}

/// A fabric whose `close` waits, as a lingering one does, and then returns a preset result.
#[derive(Default)]
struct Slow {
    inside: AtomicUsize,
    together: AtomicUsize,
    busy: AtomicBool,
    dropped: Arc<AtomicUsize>,
}

impl Fid for Slow {
    fn close(&self) -> Result<()> {
        self.together.fetch_max(self.inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if self.busy.load(Ordering::SeqCst) { Err(Errno::EBUSY) } else { Ok(()) }
    }
}

impl FabricOps for Slow {}

impl Drop for Slow {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn one_of_several_that_close_at_once_does() {
    const THREADS: usize = 4;
    for round in 0..200 {
        let value = Arc::new(Slow::default());
        let busy = round % 4 == 0;
        value.busy.store(busy, Ordering::SeqCst);
        let fabric = New::fabric(Arc::clone(&value)).hand_out(ptr::null_mut());
        // SAFETY: a live object of this test; its table is static.
        let close = unsafe { (*(*fabric).fid.ops).close.unwrap() };
        let (start, address) = (Barrier::new(THREADS), fabric.expose_provenance());
        let answers = std::thread::scope(|scope| {
            let race = || {
                start.wait();
                // SAFETY: the shim looks the fid up before it dereferences it.
                unsafe { close(ptr::with_exposed_provenance_mut(address)) }
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(race)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let count = |answer| answers.iter().filter(|&&given| given == answer).count();
        assert_eq!(value.together.load(Ordering::SeqCst), 1, "one at a time: {answers:?}");
        assert_eq!(count(0), usize::from(!busy), "{answers:?}");
        assert_eq!(count(0) + count(int(Errno::EBUSY)) + count(int(Errno::EINVAL)), THREADS, "{answers:?}");
        if busy {
            value.busy.store(false, Ordering::SeqCst);
            assert_eq!(fid_slot!(fabric.close()), 0, "it stayed open");
        }
        let dropped = Arc::clone(&value.dropped);
        drop(value);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn an_object_that_is_not_handed_out_is_dropped() {
    let value = Arc::new(Lone::<2>::default());
    let dropped = Arc::clone(&value.dropped);
    drop(New::fabric(value));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn only_live_objects_of_the_right_type_can_be_named() {
    let (endpoint, value) = open_endpoint();
    let fabric = open_fabric();
    let target = New::fabric(Arc::new(Lone::<0>::default())).hand_out(ptr::null_mut());
    let mut foreign = sys::fid { fclass: 13, context: ptr::null_mut(), ops: ptr::null_mut() };
    let foreign = &raw mut foreign;

    assert_eq!(fid_slot!(endpoint.bind(target.cast(), 5)), 0);
    assert_eq!(value.last(), "bind 5");
    assert_eq!(fid_slot!(endpoint.bind(fabric.cast(), 0)), int(Errno::EINVAL), "another type");
    assert_eq!(fid_slot!(endpoint.bind(foreign, 0)), int(Errno::EINVAL), "not ours");
    assert_eq!(fid_slot!(endpoint.bind(ptr::null_mut(), 0)), int(Errno::EINVAL));
    assert_eq!(fid_slot!(target.close()), 0);
    assert_eq!(fid_slot!(endpoint.bind(target.cast(), 0)), int(Errno::EINVAL), "closed");
    assert_eq!(fid_slot!(endpoint.close()), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
}

#[test]
fn trywait_looks_every_fid_up() {
    let (endpoint, _) = open_endpoint();
    let fabric = open_fabric();
    let queue = New::event_queue(Arc::new(Queue::default())).hand_out(ptr::null_mut());
    let mut fids = [endpoint.cast(), queue.cast(), fabric.cast::<sys::fid>()];
    assert_eq!(slot!(fabric.ops.trywait(fids.as_mut_ptr(), 2)), 0);
    assert_eq!(slot!(fabric.ops.trywait(fids.as_mut_ptr(), 3)), int(Errno::EINVAL));
    assert_eq!(slot!(fabric.ops.trywait(fids.as_mut_ptr(), -1)), int(Errno::EINVAL));
    assert_eq!(slot!(fabric.ops.trywait(ptr::null_mut(), 1)), int(Errno::EINVAL));
    assert_eq!(slot!(fabric.ops.trywait(ptr::null_mut(), 0)), 0);
    fids[2] = ptr::null_mut();
    assert_eq!(slot!(fabric.ops.trywait(fids.as_mut_ptr(), 3)), int(Errno::EINVAL));
    assert_eq!(fid_slot!(queue.close()), 0);
    assert_eq!(fid_slot!(endpoint.close()), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
}

#[test]
fn a_panic_poisons_the_object_and_nothing_else() {
    let (endpoint, value) = open_endpoint();
    let (other, _) = open_endpoint();
    let dropped = Arc::clone(&value.dropped);
    let send = |endpoint: *mut sys::fid_ep| {
        slot!(endpoint.msg.send(c"abc".as_ptr().cast(), 3, ptr::null_mut(), 0, ptr::null_mut()))
    };
    assert_eq!(send(endpoint), 3);
    value.panics.store(true, Ordering::Relaxed);
    assert_eq!(send(endpoint), size(Errno::EIO));
    value.panics.store(false, Ordering::Relaxed);

    let asked = value.asked.lock().len();
    assert_eq!(send(endpoint), size(Errno::EIO));
    assert_eq!(slot!(endpoint.cm.shutdown(0)), int(Errno::EIO));
    assert_eq!(value.asked.lock().len(), asked, "later calls do not reach it");
    assert_eq!(send(other), 3);

    drop(value);
    assert_eq!(fid_slot!(endpoint.close()), 0, "it can be let go");
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert_eq!(fid_slot!(other.close()), 0);
}

#[test]
fn connection_handles_name_their_value_while_they_live() {
    let (passive, value) = {
        let value = Arc::new(Endpoint::default());
        (New::passive_endpoint(Arc::clone(&value)).hand_out(ptr::null_mut()), value)
    };
    let handle = ConnectionHandle::new(Arc::new("request"));
    let fid = handle.as_fid().0;
    assert_eq!(slot!(passive.cm.reject(fid, b"no".as_ptr().cast(), 2)), 0);
    assert_eq!(value.last(), "reject request [110, 111]");
    // SAFETY: the handle is live, and its close slot returns an error.
    assert_eq!(unsafe { (*(*fid).ops).close.unwrap()(fid) }, int(Errno::ENOSYS));
    drop(handle);
    assert_eq!(slot!(passive.cm.reject(fid, ptr::null(), 0)), int(Errno::EINVAL));
    assert_eq!(slot!(passive.cm.reject(ptr::null_mut(), ptr::null(), 0)), int(Errno::EINVAL));
    assert_eq!(fid_slot!(passive.close()), 0);
}
