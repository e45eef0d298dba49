//! The FFI boundary from the side of C: fake objects, called through their raw tables.

mod calls;
mod completions;
mod counters;
mod events;
mod infos;
mod memory;
mod messages;
mod objects;
mod provider;
mod remote;
mod streams;
mod tagged;

use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;

/// Calls a slot of an object's table: `slot!(endpoint.msg.send(data, 3, ...))`.
macro_rules! slot {
    ($object:ident . $ops:ident . $slot:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: the tests hold live objects of this provider. They pass arguments that the slot's manual
        // allows, or invalid ones that the FFI boundary checks.
        #[allow(unused_unsafe, reason = "arguments may need it too")]
        unsafe { (*(*$object).$ops).$slot.unwrap()($object, $($argument),*) }
    }};
}
/// Calls a slot of `struct fi_ops`.
macro_rules! fid_slot {
    ($object:ident . $slot:ident ( $($argument:expr),* $(,)? )) => {{
        let fid = $object.cast::<crate::abi::sys::fid>();
        // SAFETY: as in `slot`.
        unsafe { (*(*fid).ops).$slot.unwrap()(fid, $($argument),*) }
    }};
}
pub(crate) use {fid_slot, slot};

/// A negated error number, as an `int` slot returns it.
fn int(errno: Errno) -> i32 {
    -errno.number()
}

/// A negated error number, as an `ssize_t` slot returns it.
fn size(errno: Errno) -> isize {
    -(errno.number() as isize)
}

#[derive(Default)]
struct Fabric;

impl Fid for Fabric {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl FabricOps for Fabric {
    fn domain(self: &Arc<Self>, _: InfoRef<'_>) -> Result<NewDomain> {
        Ok(New::domain(Arc::new(Domain::default())))
    }

    fn passive_ep(self: &Arc<Self>, _: InfoRef<'_>) -> Result<NewPassiveEndpoint> {
        Ok(New::passive_endpoint(Arc::new(Endpoint::default())))
    }

    fn eq_open(self: &Arc<Self>, attributes: EqAttr) -> Result<NewEventQueue> {
        if attributes.wait_obj == sys::FI_WAIT_SET {
            return Err(Errno::ENOSYS);
        }
        Ok(New::event_queue(Arc::new(Queue::default())))
    }

    /// Accepts endpoints and event queues.
    fn trywait(&self, fids: &[AnyFid]) -> Result<()> {
        let known = |fid: &AnyFid| fid.downcast::<Endpoint>().is_some() || fid.downcast::<Queue>().is_some();
        if fids.iter().all(known) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// A domain that records how its objects are opened.
#[derive(Default)]
struct Domain {
    asked: Mutex<Vec<String>>,
    /// The memory of the region opened last.
    registered: Mutex<Vec<MemoryPiece>>,
}

impl Domain {
    fn note(&self, what: String) {
        self.asked.lock().push(what);
    }

    fn last(&self) -> String {
        self.asked.lock().last().cloned().unwrap_or_default()
    }
}

impl Fid for Domain {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl DomainOps for Domain {
    fn endpoint(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewEndpoint> {
        if info.caps() & !sys::FI_MSG != 0 {
            return Err(Errno::ENODATA);
        }
        Ok(New::stream_endpoint(Arc::new(Endpoint::default())))
    }

    fn srx_context(self: &Arc<Self>, attributes: Option<RxAttr<'_>>) -> Result<NewSharedReceive> {
        self.note(format!("srx_context {:?}", attributes.map(RxAttr::size)));
        Ok(New::shared_receive(Arc::new(messages::Receiver::default())))
    }

    fn cq_open(self: &Arc<Self>, attributes: CqAttr) -> Result<NewCompletionQueue> {
        self.note(format!("{attributes:?}"));
        if attributes.wait_obj == sys::FI_WAIT_SET {
            return Err(Errno::ENOSYS);
        }
        Ok(New::completion_queue(Arc::new(completions::Completions::default())))
    }

    fn cntr_open(self: &Arc<Self>, attributes: CntrAttr) -> Result<NewCounter> {
        self.note(format!("{attributes:?}"));
        if attributes.wait_obj == sys::FI_WAIT_SET {
            return Err(Errno::ENOSYS);
        }
        Ok(New::counter(Arc::new(counters::Counter::default())))
    }

    /// The requested key is the key; [`memory::TAKEN`] is in use.
    fn register(self: &Arc<Self>, registration: Registration<'_>) -> Result<NewMemoryRegion> {
        let Registration { pieces, access, offset, requested_key, flags } = registration;
        self.note(format!("register {access} {offset} {requested_key} {flags}"));
        if requested_key == memory::TAKEN {
            return Err(Errno::ENOKEY);
        }
        *self.registered.lock() = pieces.to_vec();
        Ok(New::memory_region(Arc::new(memory::Region::default()), requested_key, 33))
    }
}

/// An endpoint that records its calls, and panics or fails on demand.
#[derive(Default)]
struct Endpoint {
    handle: OnceLock<FidHandle>,
    asked: Mutex<Vec<String>>,
    panics: AtomicBool,
    /// Counts dropped values.
    dropped: Arc<AtomicUsize>,
}

impl Endpoint {
    fn note(&self, what: String) {
        self.asked.lock().push(what);
        assert!(!self.panics.load(Ordering::Relaxed), "told to");
    }

    fn last(&self) -> String {
        self.asked.lock().last().cloned().unwrap_or_default()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Fid for Endpoint {
    fn opened(&self, handle: FidHandle) {
        self.handle.set(handle).expect("once");
    }

    fn close(&self) -> Result<()> {
        self.note("close".into());
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        self.note(format!("bind {flags}"));
        other.downcast::<Lone<0>>().map(drop).ok_or(Errno::EINVAL)
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        self.note(format!("control {command:?}"));
        match command {
            Control::GetWait(descriptor) => *descriptor = 77,
            Control::GetWaitObj(kind) => *kind = sys::FI_WAIT_FD,
            Control::Enable | Control::Backlog(_) => {}
            Control::Other(_) => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }
}

impl EndpointOps for Endpoint {
    fn setopt(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        self.note(format!("setopt {level} {name} {value:?}"));
        Ok(())
    }

    fn getopt(&self, _: i32, _: i32, out: &mut OptionOut<'_>) -> Result<()> {
        out.put(b"option")
    }
}

impl CmOps for Endpoint {
    fn setname(&self, address: SocketAddr) -> Result<()> {
        self.note(format!("setname {address}"));
        Ok(())
    }

    fn getname(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn getpeer(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0x1234)))
    }

    fn connect(&self, remote: Option<SocketAddr>, param: &[u8]) -> Result<()> {
        self.note(format!("connect {remote:?} {param:?}"));
        Ok(())
    }

    fn reject(&self, handle: AnyFid, param: &[u8]) -> Result<()> {
        let request = handle.downcast::<&str>().ok_or(Errno::EINVAL)?;
        self.note(format!("reject {request} {param:?}"));
        Ok(())
    }

    fn shutdown(&self, flags: u64) -> Result<()> {
        self.note(format!("shutdown {flags}"));
        Ok(())
    }
}

impl StatsOps for Endpoint {
    fn stats(&self) -> Result<Stats> {
        Ok(Stats { bytes_sent: 1, bytes_written: 11, ..Stats::default() })
    }
}

impl StreamOps for Endpoint {
    fn send(&self, data: &[IoSlice<'_>], flags: u64) -> Result<usize> {
        self.note(format!("send {:?} {flags}", data.iter().map(|slice| slice.len()).collect::<Vec<_>>()));
        match data.iter().map(|slice| slice.len()).sum() {
            0 => Err(Errno::EAGAIN),
            length => Ok(length),
        }
    }

    fn inject(&self, data: &[u8]) -> Result<usize> {
        self.note(format!("inject {data:?}"));
        Ok(data.len())
    }

    /// Fills each piece with its number.
    fn recv(&self, data: &mut [IoSliceMut<'_>], flags: u64) -> Result<usize> {
        self.note(format!("recv {:?} {flags}", data.iter().map(|slice| slice.len()).collect::<Vec<_>>()));
        for (number, slice) in data.iter_mut().enumerate() {
            slice.fill(number as u8 + 1);
        }
        Ok(data.iter().map(|slice| slice.len()).sum())
    }
}

/// An event queue that its test fills.
#[derive(Default)]
struct Queue {
    events: Mutex<VecDeque<Event>>,
    errors: Mutex<VecDeque<ErrorEvent>>,
    timeout: Mutex<Option<Duration>>,
}

impl Fid for Queue {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl EqOps for Queue {
    fn read(&self, out: &mut EventOut<'_>) -> Result<usize> {
        out.deliver(&mut self.events.lock())
    }

    fn sread(&self, out: &mut EventOut<'_>, timeout: Option<Duration>) -> Result<usize> {
        *self.timeout.lock() = timeout;
        out.deliver(&mut self.events.lock())
    }

    fn write(&self, number: u32, entry: &[u8]) -> Result<()> {
        self.events.lock().push_back(Event::User { number, entry: entry.to_vec() });
        Ok(())
    }

    fn readerr(&self, out: &mut ErrorOut<'_>) -> Result<usize> {
        out.deliver(&mut self.errors.lock())
    }

    fn strerror(&self, _: i32) -> &'static CStr {
        c"it broke"
    }
}

/// An object of a type that only one test uses. The address of a closed object may be reused for an object of
/// another test, but not for one of this type.
#[derive(Default)]
struct Lone<const TEST: usize> {
    busy: AtomicBool,
    /// Counts dropped values.
    dropped: Arc<AtomicUsize>,
}

impl<const TEST: usize> Fid for Lone<TEST> {
    fn close(&self) -> Result<()> {
        if self.busy.load(Ordering::Relaxed) { Err(Errno::EBUSY) } else { Ok(()) }
    }
}

impl<const TEST: usize> FabricOps for Lone<TEST> {}

impl<const TEST: usize> Drop for Lone<TEST> {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// The fid of a new fabric, as an application has it.
fn open_fabric() -> *mut sys::fid_fabric {
    New::fabric(Arc::new(Fabric)).hand_out(ptr::null_mut())
}

/// The fid of a new domain, as an application of API `version` has it, and its value.
fn open_domain(version: u32) -> (*mut sys::fid_domain, Arc<Domain>) {
    let (fabric, info) = (open_fabric(), Info::new().unwrap());
    let mut domain = ptr::null_mut();
    // SAFETY: a live fabric of this test; libfabric writes the field in the same way.
    unsafe { (*fabric).api_version = version };
    assert_eq!(slot!(fabric.ops.domain(info.as_ptr(), &raw mut domain, context())), 0);
    assert_eq!(fid_slot!(fabric.close()), 0);
    (domain, AnyFid(domain.cast()).downcast().unwrap())
}

/// The fid of a new endpoint, as an application has it, and its value.
fn open_endpoint() -> (*mut sys::fid_ep, Arc<Endpoint>) {
    let value = Arc::new(Endpoint::default());
    (New::stream_endpoint(Arc::clone(&value)).hand_out(context()), value)
}

/// A context of an application.
fn context() -> *mut c_void {
    ptr::without_provenance_mut(0xc0ffee)
}
