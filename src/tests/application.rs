//! The calls of an application, with their arguments and results as Rust values. A call that must succeed
//! panics if it fails.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr;

use libc::iovec;

use super::arena::{Arena, Piece};
use crate::abi::tests::{fid_slot, slot};
use crate::abi::{Errno, Info, NewFabric, Result, sys};

/// An entry of a completion queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The number that the operation was posted with; 0: none.
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) length: usize,
    pub(super) data: u64,
    /// Why the operation failed, and how many bytes its buffer had no room for.
    pub(super) failure: Option<(Errno, usize)>,
}

/// An event of an event queue.
#[derive(Debug)]
pub(super) enum Event {
    /// A request, with the info for its endpoint, which [`Domain::answer`] frees.
    Request(*mut sys::fi_info),
    Connected(Endpoint),
    Shutdown(Endpoint),
    Failed(Endpoint),
}

/// A call of a message endpoint that posts an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) local: &'a [Piece],
    /// Of remote access: pieces of the peer's memory.
    pub(super) remote: &'a [sys::fi_rma_iov],
    pub(super) data: u64,
    pub(super) flags: u64,
    pub(super) context: usize,
}

/// Declares handles of objects.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $raw:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub(super) struct $name(*mut sys::$raw);

            impl $name {
                pub(super) fn close(self) {
                    let object = self.0;
                    assert_eq!(fid_slot!(object.close()), 0);
                }
            }
        )*
    };
}

handles! {
    Fabric: fid_fabric;
    Domain: fid_domain;
    EventQueue: fid_eq;
    CompletionQueue: fid_cq;
    Counter: fid_cntr;
    Region: fid_mr;
    Listener: fid_pep;
    /// An endpoint or a shared receive context.
    Endpoint: fid_ep;
}

const NULL: *mut c_void = ptr::null_mut();

/// Panics unless a call succeeded.
#[track_caller]
fn check(answer: i32) {
    assert!(answer == 0, "{:?}", Errno::new(-answer));
}

fn outcome(answer: isize) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(Errno::new(-answer as i32)) }
}

/// Whether a descriptor is readable.
pub(super) fn is_readable(descriptor: c_int) -> bool {
    let mut ready = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, and no wait.
    unsafe { libc::poll(&raw mut ready, 1, 0) == 1 }
}

fn context_of(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

impl Fabric {
    pub(super) fn open(new: NewFabric) -> Self {
        Self(new.hand_out(NULL))
    }

    pub(super) fn domain(self, info: &Info) -> Domain {
        let (fabric, mut domain) = (self.0, ptr::null_mut());
        check(slot!(fabric.ops.domain(info.as_ptr(), &raw mut domain, NULL)));
        Domain(domain)
    }

    /// `fi_trywait`: whether the application may sleep on the descriptor of the queue.
    pub(super) fn may_sleep(self, queue: CompletionQueue) -> bool {
        let (fabric, mut fids) = (self.0, [queue.0.cast::<sys::fid>()]);
        match outcome(slot!(fabric.ops.trywait(fids.as_mut_ptr(), 1)) as isize) {
            Err(Errno::EAGAIN) => false,
            other => other.is_ok() || panic!("{other:?}"),
        }
    }

    pub(super) fn event_queue(self) -> EventQueue {
        let (fabric, mut queue) = (self.0, ptr::null_mut());
        // SAFETY: all zeros is a valid value of the attributes.
        let mut attributes: sys::fi_eq_attr = unsafe { zeroed() };
        check(slot!(fabric.ops.eq_open(&raw mut attributes, &raw mut queue, NULL)));
        EventQueue(queue)
    }

    pub(super) fn listen(self, info: &Info, queue: EventQueue) -> Listener {
        let (fabric, mut listener) = (self.0, ptr::null_mut());
        check(slot!(fabric.ops.passive_ep(info.as_ptr(), &raw mut listener, NULL)));
        check(fid_slot!(listener.bind(queue.0.cast(), 0)));
        check(slot!(listener.cm.listen()));
        Listener(listener)
    }
}

impl Domain {
    /// Opens a completion queue, with a descriptor if it `has_wait`.
    pub(super) fn completion_queue(self, has_wait: bool) -> CompletionQueue {
        let (domain, mut queue) = (self.0, ptr::null_mut());
        // SAFETY: all zeros is a valid value of the attributes.
        let mut attributes: sys::fi_cq_attr = unsafe { zeroed() };
        attributes.format = sys::FI_CQ_FORMAT_DATA;
        attributes.wait_obj = if has_wait { sys::FI_WAIT_FD } else { sys::FI_WAIT_NONE };
        check(slot!(domain.ops.cq_open(&raw mut attributes, &raw mut queue, NULL)));
        CompletionQueue(queue)
    }

    pub(super) fn counter(self) -> Counter {
        let (domain, mut counter) = (self.0, ptr::null_mut());
        // SAFETY: all zeros is a valid value of the attributes.
        let mut attributes: sys::fi_cntr_attr = unsafe { zeroed() };
        (attributes.events, attributes.wait_obj) = (sys::FI_CNTR_EVENTS_COMP, sys::FI_WAIT_NONE);
        check(slot!(domain.ops.cntr_open(&raw mut attributes, &raw mut counter, NULL)));
        Counter(counter)
    }

    pub(super) fn endpoint(self, info: &Info) -> Endpoint {
        self.open(info.as_ptr())
    }

    /// Opens the endpoint for a request.
    pub(super) fn answer(self, request: *mut sys::fi_info) -> Endpoint {
        let endpoint = self.open(request);
        // SAFETY: an info of the event queue, which belongs to its reader.
        unsafe { sys::fi_freeinfo(request) };
        endpoint
    }

    fn open(self, info: *mut sys::fi_info) -> Endpoint {
        let (domain, mut endpoint) = (self.0, ptr::null_mut());
        check(slot!(domain.ops.endpoint(info, &raw mut endpoint, NULL)));
        Endpoint(endpoint)
    }

    pub(super) fn shared_receive(self, depth: usize) -> Endpoint {
        let (domain, mut shared) = (self.0, ptr::null_mut());
        // SAFETY: all zeros is a valid value of the attributes.
        let mut attributes: sys::fi_rx_attr = unsafe { zeroed() };
        attributes.size = depth;
        check(slot!(domain.ops.srx_ctx(&raw mut attributes, &raw mut shared, NULL)));
        Endpoint(shared)
    }

    pub(super) fn region(self, arena: &Arena, piece: Piece, key: u64) -> Region {
        let mut region = ptr::null_mut();
        let (base, access) = (arena.address(piece).cast(), sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE);
        // SAFETY: a live domain. The memory stays, and nothing else uses it but within calls of the test.
        check(unsafe {
            let reg = (*(*self.0).mr).reg.unwrap();
            reg(self.0.cast(), base, piece.length, access, 0, key, 0, &raw mut region, NULL)
        });
        Region(region)
    }
}

impl Listener {
    /// Its address, as [`Endpoint::connect`] takes it.
    pub(super) fn address(self) -> libc::sockaddr_storage {
        // SAFETY: all zeros is a valid address.
        let mut address: libc::sockaddr_storage = unsafe { zeroed() };
        let mut length = size_of_val(&address);
        // SAFETY: a live listener, and room for so many bytes.
        check(unsafe {
            let getname = (*(*self.0).cm).getname.unwrap();
            getname(self.0.cast(), (&raw mut address).cast(), &raw mut length)
        });
        address
    }
}

impl Endpoint {
    pub(super) fn bind(self, queue: EventQueue, completions: CompletionQueue, is_selective: [bool; 2]) {
        let endpoint = self.0;
        check(fid_slot!(endpoint.bind(queue.0.cast(), 0)));
        for (direction, is_selective) in [sys::FI_TRANSMIT, sys::FI_RECV].into_iter().zip(is_selective) {
            let selective = if is_selective { sys::FI_SELECTIVE_COMPLETION } else { 0 };
            check(fid_slot!(endpoint.bind(completions.0.cast(), direction | selective)));
        }
    }

    pub(super) fn count(self, counter: Counter, operations: u64) {
        let endpoint = self.0;
        check(fid_slot!(endpoint.bind(counter.0.cast(), operations)));
    }

    pub(super) fn share(self, shared: Self) {
        let endpoint = self.0;
        check(fid_slot!(endpoint.bind(shared.0.cast(), 0)));
    }

    pub(super) fn enable(self) {
        let endpoint = self.0;
        check(fid_slot!(endpoint.control(sys::FI_ENABLE as i32, NULL)));
    }

    pub(super) fn connect(self, address: &libc::sockaddr_storage) {
        let (endpoint, address) = (self.0, ptr::from_ref(address).cast());
        check(slot!(endpoint.cm.connect(address, NULL, 0)));
    }

    pub(super) fn accept(self) {
        let endpoint = self.0;
        check(slot!(endpoint.cm.accept(NULL, 0)));
    }

    pub(super) fn shut_down(self) -> Result<()> {
        let endpoint = self.0;
        outcome(slot!(endpoint.cm.shutdown(0)) as isize)
    }

    pub(super) fn cancel(self, context: usize) -> Result<()> {
        // SAFETY: a live endpoint.
        outcome(unsafe { (*(*self.0).ops).cancel.unwrap()(self.0.cast(), context_of(context)) })
    }

    pub(super) fn receive(self, arena: &Arena, call: &Call<'_>) -> Result<()> {
        let endpoint = self.0;
        with_message(arena, call, |message| outcome(slot!(endpoint.msg.recvmsg(message, call.flags))))
    }

    pub(super) fn send(self, arena: &Arena, call: &Call<'_>) -> Result<()> {
        let endpoint = self.0;
        with_message(arena, call, |message| outcome(slot!(endpoint.msg.sendmsg(message, call.flags))))
    }

    pub(super) fn read(self, arena: &Arena, call: &Call<'_>) -> Result<()> {
        let endpoint = self.0;
        with_access(arena, call, |access| outcome(slot!(endpoint.rma.readmsg(access, call.flags))))
    }

    pub(super) fn write(self, arena: &Arena, call: &Call<'_>) -> Result<()> {
        let endpoint = self.0;
        with_access(arena, call, |access| outcome(slot!(endpoint.rma.writemsg(access, call.flags))))
    }

    /// `fi_inject` or, with data, `fi_injectdata`.
    pub(super) fn inject(self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        let (endpoint, base, length) = (self.0, bytes.as_ptr().cast(), bytes.len());
        outcome(match data {
            Some(data) => slot!(endpoint.msg.injectdata(base, length, data, 0)),
            None => slot!(endpoint.msg.inject(base, length, 0)),
        })
    }

    /// `fi_inject_write` or, with data, `fi_inject_writedata`.
    pub(super) fn inject_write(self, bytes: &[u8], to: sys::fi_rma_iov, data: Option<u64>) -> Result<()> {
        let (endpoint, base, length) = (self.0, bytes.as_ptr().cast(), bytes.len());
        outcome(match data {
            Some(data) => slot!(endpoint.rma.injectdata(base, length, data, 0, to.addr, to.key)),
            None => slot!(endpoint.rma.inject(base, length, 0, to.addr, to.key)),
        })
    }
}

fn with_message<R>(arena: &Arena, call: &Call<'_>, post: impl FnOnce(*const sys::fi_msg) -> R) -> R {
    let pieces: Vec<iovec> = call.local.iter().map(|&piece| arena.vector(piece)).collect();
    post(&sys::fi_msg {
        msg_iov: pieces.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: pieces.len(),
        addr: 0,
        context: context_of(call.context),
        data: call.data,
    })
}

fn with_access<R>(arena: &Arena, call: &Call<'_>, post: impl FnOnce(*const sys::fi_msg_rma) -> R) -> R {
    let pieces: Vec<iovec> = call.local.iter().map(|&piece| arena.vector(piece)).collect();
    post(&sys::fi_msg_rma {
        msg_iov: pieces.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: pieces.len(),
        addr: 0,
        rma_iov: call.remote.as_ptr(),
        rma_iov_count: call.remote.len(),
        context: context_of(call.context),
        data: call.data,
    })
}

impl CompletionQueue {
    /// Its descriptor.
    pub(super) fn descriptor(self) -> c_int {
        let (queue, mut descriptor) = (self.0, -1);
        let place: *mut c_int = &raw mut descriptor;
        check(fid_slot!(queue.control(sys::FI_GETWAIT as i32, place.cast())));
        descriptor
    }

    /// The next entry, if there is one.
    pub(super) fn read(self) -> Option<Entry> {
        let (queue, mut entry) = (self.0, MaybeUninit::<sys::fi_cq_data_entry>::uninit());
        let count = slot!(queue.ops.read(entry.as_mut_ptr().cast(), 1));
        if count == 1 {
            // SAFETY: the call wrote one entry.
            let sys::fi_cq_data_entry { op_context, flags, len, data, .. } = unsafe { entry.assume_init() };
            return Some(Entry { context: op_context.addr(), flags, length: len, data, failure: None });
        }
        match outcome(count) {
            Err(Errno::EAGAIN) => return None,
            other => assert_eq!(other, Err(Errno::EAVAIL)),
        }
        // SAFETY: all zeros is a valid value of the entry.
        let mut error: sys::fi_cq_err_entry = unsafe { zeroed() };
        assert_eq!(slot!(queue.ops.readerr(&raw mut error, 0)), 1);
        Some(Entry {
            context: error.op_context.addr(),
            flags: error.flags,
            length: error.len,
            data: error.data,
            failure: Some((Errno::new(error.err), error.olen)),
        })
    }
}

impl Counter {
    /// Number of successes and of errors.
    pub(super) fn read(self) -> (u64, u64) {
        let counter = self.0;
        (slot!(counter.ops.read()), slot!(counter.ops.readerr()))
    }
}

impl EventQueue {
    /// The next event, if there is one.
    pub(super) fn read(self) -> Option<Event> {
        // SAFETY: all zeros is a valid value of the entry.
        let (queue, mut entry): (_, sys::fi_eq_cm_entry) = (self.0, unsafe { zeroed() });
        let (mut number, room) = (0, size_of_val(&entry));
        let length = slot!(queue.ops.read(&raw mut number, (&raw mut entry).cast(), room, 0));
        let endpoint = Endpoint(entry.fid.cast());
        match outcome(length.min(0)) {
            Ok(()) if number == sys::FI_CONNREQ => Some(Event::Request(entry.info)),
            Ok(()) if number == sys::FI_CONNECTED => Some(Event::Connected(endpoint)),
            Ok(()) if number == sys::FI_SHUTDOWN => Some(Event::Shutdown(endpoint)),
            Ok(()) => panic!("event {number}"),
            Err(Errno::EAGAIN) => None,
            Err(error) => {
                assert_eq!(error, Errno::EAVAIL);
                // SAFETY: all zeros is a valid value of the entry.
                let mut entry: sys::fi_eq_err_entry = unsafe { zeroed() };
                assert!(slot!(queue.ops.readerr(&raw mut entry, 0)) > 0);
                Some(Event::Failed(Endpoint(entry.fid.cast())))
            }
        }
    }
}
