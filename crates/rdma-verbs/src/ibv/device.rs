//! Devices: which exist, what they can do, and the faults of a whole device.

mod probe;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdma_sys as sys;

use super::cm::{Channel, Id, ReadDepths};
use super::library::{Library, library};
use super::queue_pair::SEND_SEGMENTS;
use super::siw;
use crate::process::Maker;
use crate::{
    BreakReason, DeviceAttributes, DeviceEvent, DeviceEventSender, DeviceEvents, Error, EventTarget,
    Interest, PrivateDataLimits, Result, Transport, WaitSet,
};
use probe::MAX_INLINE;

/// Entries of each send queue that are reserved for probes.
pub(super) const PROBE_ENTRIES: u32 = 1;

/// Bytes of private data that the connection manager carries for a consumer. InfiniBand's request has room
/// for 92 bytes, of which the addresses take 36. iWARP has more room than librdmacm's length field can
/// express (255), of which revision 2 of MPA takes 4.
const PRIVATE_DATA_INFINIBAND: PrivateDataLimits = PrivateDataLimits { request: 56, reply: 196, reject: 148 };
const PRIVATE_DATA_IWARP: PrivateDataLimits = PrivateDataLimits::same(251);

/// `struct ibv_async_event`. Its event type is an integer, because a newer library may report unknown types.
#[repr(C)]
pub(super) struct AsyncEvent {
    /// The object, or the number of the port.
    element: *mut c_void,
    event_type: c_uint,
}

/// Events of a device or a port that it reports to those who ask for them, and does nothing about.
const OTHERS: [sys::ibv_event_type; 5] = [
    sys::ibv_event_type::IBV_EVENT_LID_CHANGE,
    sys::ibv_event_type::IBV_EVENT_PKEY_CHANGE,
    sys::ibv_event_type::IBV_EVENT_SM_CHANGE,
    sys::ibv_event_type::IBV_EVENT_CLIENT_REREGISTER,
    sys::ibv_event_type::IBV_EVENT_GID_CHANGE,
];

/// The descriptor of a device's events, in a wait set.
struct Source {
    context: Arc<Context>,
    wait: Arc<WaitSet>,
}

impl Source {
    /// Handles the device's events. The descriptor of one that is gone wakes the caller without end on older kernels.
    fn handle_events(&self) {
        self.context.handle_events();
        if self.context.is_gone() {
            self.leave();
        }
    }

    fn leave(&self) {
        if let Err(error) = self.wait.remove(self.context.async_fd()) {
            log::debug!("{error}");
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.leave();
    }
}

/// An opened device.
pub(super) struct Context {
    /// A child of this process destroys nothing that was made from the context, because it shares the
    /// kernel's objects with its parent.
    pub(super) maker: Maker,
    pub(super) library: &'static Library,
    raw: NonNull<sys::ibv_context>,
    /// On soft iWARP: see [`siw`].
    placeholder: Option<NonNull<sys::ibv_cq>>,
    /// The kernel's name: `mlx5_0`, `rxe0`, `siw0`.
    pub(super) name: String,
    vendor: u32,
    pub(super) attributes: DeviceAttributes,
    max_segments: u32,
    /// Most RDMA reads that a queue pair may have outstanding.
    pub(super) max_reads: ReadDepths,
    /// Most inline bytes to ask for. Devices report no limit but refuse a queue pair that asks for too many,
    /// so this shrinks with each refusal.
    inline: AtomicUsize,
    /// A bit for each port that is down. All bits are set when the device is gone.
    down: AtomicU64,
    /// Those who asked for the events of the device.
    subscribers: DeviceEventSender,
}

// SAFETY: libibverbs allows any thread to call on a context and on what was made from it.
unsafe impl Send for Context {}
// SAFETY: as above; the mutable fields are atomics.
unsafe impl Sync for Context {}

/// The names of this host's devices.
pub(super) fn names() -> Vec<String> {
    let mut names = Vec::new();
    find_device(|device| {
        names.push(name_of(device));
        None::<()>
    });
    names
}

/// The name of the device that the connection manager binds an address to.
pub(super) fn name_by_address(address: SocketAddr) -> Option<String> {
    let id = Id::create(&Channel::open().ok()?).ok()?;
    id.bind(address).ok()?;
    id.device_name()
}

/// Calls `choose` on each device until it returns something.
fn find_device<T>(mut choose: impl FnMut(NonNull<sys::ibv_device>) -> Option<T>) -> Option<T> {
    let library = library().ok()?;
    let mut count: c_int = 0;
    // SAFETY: the count is written to a live integer.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return None;
    }
    let mut found = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries; it is freed below.
        let device = NonNull::new(unsafe { *list.add(at) });
        found = device.and_then(&mut choose);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list came from `ibv_get_device_list`, is freed once, and no entry is kept; an
    // opened device stays valid without it.
    unsafe { (library.ibv_free_device_list)(list) };
    found
}

fn no_device() -> Error {
    Error::Io { what: "open RDMA device", source: io::Error::from_raw_os_error(libc::ENODEV) }
}

/// The name of a device.
pub(super) fn name_of(device: NonNull<sys::ibv_device>) -> String {
    // SAFETY: the device is valid: it is in a list that is not freed yet, or it is open. Its name is an array
    // that ends with a zero byte.
    let name = unsafe { CStr::from_ptr((&raw const (*device.as_ptr()).name).cast()) };
    name.to_string_lossy().into_owned()
}

impl Context {
    /// The device of this name. It is opened once for the whole process.
    pub(super) fn open(name: &str) -> Result<Arc<Self>> {
        static OPEN: Mutex<BTreeMap<String, Weak<Context>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock();
        // A new device may have the name of one that is gone.
        if let Some(context) = open.get(name).and_then(Weak::upgrade)
            && context.maker.is_this_process()
            && context.fault(0) != Some(BreakReason::DeviceGone)
        {
            return Ok(context);
        }
        let context = Self::open_new(name)?;
        open.insert(name.to_owned(), Arc::downgrade(&context));
        Ok(context)
    }

    fn open_new(name: &str) -> Result<Arc<Self>> {
        let library = library().map_err(|error| {
            log::info!("rdma-core cannot be loaded: {error}");
            no_device()
        })?;
        find_device(|device| {
            if name_of(device) != name {
                return None;
            }
            // SAFETY: the device is in a list that is freed after this call.
            NonNull::new(unsafe { (library.ibv_open_device)(device.as_ptr()) })
        })
        .ok_or_else(no_device)
        .and_then(|raw| Self::query(library, raw, name))
        .map(Arc::new)
    }

    /// Wraps an open context and queries its attributes.
    fn query(library: &'static Library, raw: NonNull<sys::ibv_context>, name: &str) -> Result<Self> {
        let mut context = Self {
            maker: Maker::this_process(),
            library,
            raw,
            placeholder: None,
            name: name.to_owned(),
            vendor: 0,
            attributes: DeviceAttributes {
                name: "ibv",
                transport: Transport::InfiniBand,
                immediate: u32::BITS as u8,
                max_places: 0,
                max_inline: 0,
                max_inline_depth: 0,
                max_send_depth: 0,
                max_recv_depth: 0,
                max_srq_depth: 0,
                max_completions: 0,
                max_any_depth: 0,
                private_data: PRIVATE_DATA_INFINIBAND,
                max_message: 0,
                private_read_sinks: true,
            },
            max_segments: 1,
            max_reads: ReadDepths { initiator: 0, responder: 0 },
            inline: AtomicUsize::new(MAX_INLINE),
            down: AtomicU64::new(0),
            subscribers: DeviceEventSender::default(),
        };
        set_nonblocking(context.async_fd())?;
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut device: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure is live and as large as the header says.
        check("ibv_query_device", unsafe { (library.ibv_query_device)(raw.as_ptr(), &raw mut device) })?;
        // SAFETY: the context was opened by the caller just now.
        context.placeholder = unsafe { siw::occupy_invalid_offset(library, raw, &device) }?;
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut port: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure is live. The exported function writes only the fields of
        // the structure's first version, which is all that is read here. Ports count from 1.
        check("ibv_query_port", unsafe { (library.ibv_query_port)(raw.as_ptr(), 1, &raw mut port) })?;
        // SAFETY: an open context's device is valid.
        let transport = unsafe { (*(*raw.as_ptr()).device).transport_type };

        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let reads = |value: c_int| u8::try_from(value).unwrap_or(u8::MAX);
        context.vendor = device.vendor_id;
        context.max_segments = number(device.max_sge).max(1);
        context.max_reads = ReadDepths {
            initiator: reads(device.max_qp_init_rd_atom),
            responder: reads(device.max_qp_rd_atom),
        };
        let attributes = &mut context.attributes;
        attributes.max_completions = number(device.max_cqe);
        if transport == sys::ibv_transport_type::IBV_TRANSPORT_IWARP {
            attributes.transport = Transport::Iwarp;
            attributes.immediate = 0;
            attributes.private_data = PRIVATE_DATA_IWARP;
            attributes.private_read_sinks = false;
        } else {
            let most = context.max_segments.min(number(device.max_sge_rd).max(1));
            attributes.max_places = SEND_SEGMENTS.min(most as usize);
            if device.max_srq > 0 && number(device.max_srq_sge) >= attributes.max_places as u32 {
                attributes.max_srq_depth = number(device.max_srq_wr).min(attributes.max_completions / 2);
            }
        }
        // One completion queue has room for both queues of a queue pair.
        let depth = number(device.max_qp_wr).min(attributes.max_completions / 2);
        attributes.max_send_depth = depth.saturating_sub(PROBE_ENTRIES);
        attributes.max_recv_depth = depth;
        attributes.max_message = port.max_msg_sz.into();
        Ok(context)
    }

    /// What the device can do.
    pub(super) fn attributes(self: &Arc<Self>) -> DeviceAttributes {
        let probed =
            self.probed().inspect_err(|error| log::info!("{}: {error}", self.name)).unwrap_or_default();
        DeviceAttributes {
            max_inline: probed.inline,
            max_inline_depth: probed.inline_depth,
            max_any_depth: probed.max_depth,
            ..self.attributes.clone()
        }
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// Whether it is a soft iWARP.
    pub(super) fn is_soft_iwarp(&self) -> bool {
        self.placeholder.is_some()
    }

    /// The fault of the device or of this port, if there is one. Handles the device's events first.
    pub(super) fn fault(&self, port: u8) -> Option<BreakReason> {
        self.handle_events();
        match self.down.load(Ordering::Relaxed) {
            0 => None,
            u64::MAX => Some(BreakReason::DeviceGone),
            down if down & port_bit(port) != 0 => Some(BreakReason::PortDown),
            _ => None,
        }
    }

    /// The device's events from now on. Whoever reads its descriptor passes them to all.
    pub(super) fn events(self: &Arc<Self>, target: &EventTarget) -> Result<DeviceEvents> {
        self.check_present()?;
        let source = Source { context: Arc::clone(self), wait: Arc::clone(&target.wait) };
        target.wait.add(self.async_fd(), target.token, Interest::Read)?;
        Ok(self.subscribers.subscribe(target).found_by(move || source.handle_events()))
    }

    fn handle_events(&self) {
        while self.handle_event() {}
    }

    /// Notes that the device is gone, and tells those who asked for its events, once.
    pub(super) fn set_gone(&self) {
        if self.down.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            probe::forget(&self.name);
            log::warn!("{}: the device has failed or is being removed", self.name);
            self.subscribers.send(DeviceEvent::Gone);
        }
    }

    /// Notes that the device is gone if the kernel says so by this errno, which is EIO then. Returns whether it does.
    pub(super) fn note_errno(&self, errno: Option<i32>) -> bool {
        let says_so = errno == Some(libc::EIO);
        if says_so {
            self.set_gone();
        }
        says_so
    }

    /// Notes that a port is up again. Returns whether the device is there.
    fn set_active(&self, port: u8) -> bool {
        let update = |down| (down != u64::MAX).then_some(down & !port_bit(port));
        self.down.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok()
    }

    /// The error of calls for which the device has to be there.
    pub(super) fn check_present(&self) -> Result<()> {
        if self.is_gone() { Err(no_device()) } else { Ok(()) }
    }

    /// Whether the device is known to be gone.
    pub(super) fn is_gone(&self) -> bool {
        self.down.load(Ordering::Relaxed) == u64::MAX
    }

    /// Handles one event of the device. Returns whether there was one.
    fn handle_event(&self) -> bool {
        let mut event = AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: the context is open; the event is live and has the layout of the C structure. The
        // descriptor does not block.
        if unsafe { (self.library.ibv_get_async_event)(self.raw(), &raw mut event) } != 0 {
            self.note_errno(io::Error::last_os_error().raw_os_error());
            return false;
        }
        use sys::ibv_event_type as kind;
        let port = u8::try_from(event.element as usize & 0xff).unwrap_or(0);
        let is = |known: kind| event.event_type == known as c_uint;
        if is(kind::IBV_EVENT_DEVICE_FATAL) {
            self.set_gone();
        } else if is(kind::IBV_EVENT_PORT_ERR) {
            log::warn!("{}: port {port} is down", self.name);
            self.down.fetch_or(port_bit(port), Ordering::Relaxed);
            self.subscribers.send(DeviceEvent::PortDown(port));
        } else if is(kind::IBV_EVENT_PORT_ACTIVE) && self.set_active(port) {
            self.subscribers.send(DeviceEvent::PortActive(port));
        } else if OTHERS.iter().any(|&known| is(known)) {
            self.subscribers.send(DeviceEvent::Other(event.event_type as i32));
        } else {
            // For each event of a queue pair there is a completion or a connection event, which is handled.
            log::debug!("{}: asynchronous event {}", self.name, event.event_type);
        }
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        true
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the context is, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.maker.is_this_process() {
            return;
        }
        if let Some(queue) = self.placeholder {
            // SAFETY: the queue was made from this context, is destroyed once, and no queue pair uses it.
            unsafe { (self.library.ibv_destroy_cq)(queue.as_ptr()) };
        }
        // SAFETY: the context is open and closed once. Everything else that was made from it is destroyed,
        // because it holds `self`.
        unsafe { (self.library.ibv_close_device)(self.raw()) };
    }
}

/// The bit of a port in [`Context::down`]. Ports above 62 share one.
fn port_bit(port: u8) -> u64 {
    1 << port.min(62)
}

/// Converts the result of a function that returns an errno.
#[inline]
pub(super) fn check(what: &'static str, result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(failure(what, result)) }
}

#[cold]
fn failure(what: &'static str, result: c_int) -> Error {
    let source = match result {
        // Some functions return -1 and set errno.
        -1 => io::Error::last_os_error(),
        errno => io::Error::from_raw_os_error(errno.abs()),
    };
    Error::Io { what, source }
}

/// Converts the result of a function that returns a pointer, or null and sets errno.
pub(super) fn check_pointer<T>(what: &'static str, result: *mut T) -> Result<NonNull<T>> {
    NonNull::new(result).ok_or_else(|| Error::Io { what, source: io::Error::last_os_error() })
}

/// Makes a descriptor nonblocking.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(Error::io("fcntl"))?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(Error::io("fcntl"))
}
