//! What endpoints are opened from: info, fabric, domain and event queue.

use std::ffi::CString;
use std::net::SocketAddr;
use std::ptr;

use anyhow::{Context, Result, bail};

use super::object::{Info, Object, check, error_text};
use super::sys;

/// The interface that is asked for, the oldest that the provider serves.
const API: u32 = 1 << 16 | 17;
/// Local memory that providers may want registered, and keys and addresses that they may choose.
const REGISTRATION: i32 =
    (sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY) as i32;
/// How long a connection may take.
const PATIENCE_MS: i32 = 20_000;

/// Fields are closed from the first to the last.
pub(super) struct Opened {
    queue: Object<sys::fid_eq>,
    domain: Object<sys::fid_domain>,
    fabric: Object<sys::fid_fabric>,
    info: Info,
}

/// What endpoints are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) provider: &'static str,
    pub(super) endpoint: u32,
    pub(super) caps: u64,
}

/// Bytes that come with a connection, one side's for the other.
pub(super) type ConnectionData = [u8; 16];

/// What an event queue told.
pub(super) enum Event {
    /// Somebody wants to connect; an endpoint opened from this can accept.
    Request(Info, ConnectionData),
    /// With data on the side that asked.
    Connected(ConnectionData),
}

/// An event and the data behind it.
#[repr(C)]
struct Entry {
    event: sys::fi_eq_cm_entry,
    data: ConnectionData,
}

impl Opened {
    /// The first device that the provider names for an address, the other side's or, with FI_SOURCE, our own.
    pub(super) fn at(wanted: Wanted, address: SocketAddr, flags: u64) -> Result<Self> {
        let info = find(wanted, address, flags)
            .with_context(|| format!("looking for a device for {}", address.ip()))?;
        // SAFETY: the info is whole; the call stores a fabric that is ours.
        let fabric = unsafe {
            Object::open("fi_fabric", |fabric| {
                sys::fi_fabric((*info.pointer()).fabric_attr, fabric, ptr::null_mut())
            })?
        };
        // SAFETY: fabric and info are whole; the call stores a domain that is ours.
        let domain = unsafe {
            Object::open("fi_domain", |domain| {
                sys::fi_domain(fabric.pointer(), info.pointer(), domain, ptr::null_mut())
            })?
        };
        // SAFETY: every field may be zero.
        let mut wait: sys::fi_eq_attr = unsafe { std::mem::zeroed() };
        wait.wait_obj = sys::FI_WAIT_UNSPEC;
        // SAFETY: the fabric is open, the attributes live until the call returns; it stores a queue that is
        // ours.
        let queue = unsafe {
            Object::open("fi_eq_open", |queue| {
                sys::fi_eq_open(fabric.pointer(), &raw mut wait, queue, ptr::null_mut())
            })?
        };
        Ok(Self { queue, domain, fabric, info })
    }

    pub(super) fn fabric(&self) -> *mut sys::fid_fabric {
        self.fabric.pointer()
    }

    pub(super) fn domain(&self) -> *mut sys::fid_domain {
        self.domain.pointer()
    }

    pub(super) fn info(&self) -> &Info {
        &self.info
    }

    /// An active endpoint bound to the event queue, from our own info or a request's.
    pub(super) fn endpoint(&self, info: &Info) -> Result<Object<sys::fid_ep>> {
        // SAFETY: domain and info are whole; the endpoint is ours.
        let endpoint = unsafe {
            Object::open("fi_endpoint", |endpoint| {
                sys::fi_endpoint(self.domain.pointer(), info.pointer(), endpoint, ptr::null_mut())
            })?
        };
        // SAFETY: both are open, and the queue stays so: who holds the endpoint holds `self`.
        check("fi_ep_bind", unsafe { sys::fi_ep_bind(endpoint.pointer(), self.queue.fid(), 0) })?;
        Ok(endpoint)
    }

    /// A passive endpoint bound to the event queue.
    pub(super) fn passive_endpoint(&self) -> Result<Object<sys::fid_pep>> {
        // SAFETY: fabric and info are whole; the endpoint is ours.
        let passive = unsafe {
            Object::open("fi_passive_ep", |passive| {
                sys::fi_passive_ep(self.fabric.pointer(), self.info.pointer(), passive, ptr::null_mut())
            })?
        };
        // SAFETY: as for active endpoints.
        check("fi_pep_bind", unsafe { sys::fi_pep_bind(passive.pointer(), self.queue.fid(), 0) })?;
        Ok(passive)
    }

    /// Waits for the next event of connecting. Ends of earlier connections are passed over.
    pub(super) fn event(&self) -> Result<Event> {
        loop {
            let mut kind = 0;
            // SAFETY: every field may be zero.
            let mut entry: Entry = unsafe { std::mem::zeroed() };
            let size = size_of_val(&entry);
            // SAFETY: the queue is open, and at most `size` bytes are written to the entry.
            let got = unsafe {
                let entry = (&raw mut entry).cast();
                sys::fi_eq_sread(self.queue.pointer(), &raw mut kind, entry, size, PATIENCE_MS, 0)
            };
            match (got, kind) {
                (..0, _) => bail!("connecting: {}", self.error(got as i32)),
                (_, sys::FI_CONNREQ) => {
                    // SAFETY: the info of a request belongs to who reads the event.
                    let info = unsafe { Info::own(entry.event.info)? };
                    return Ok(Event::Request(info, entry.data));
                }
                (_, sys::FI_CONNECTED) => return Ok(Event::Connected(entry.data)),
                (_, sys::FI_SHUTDOWN) => {}
                _ => bail!("event {kind} was not expected"),
            }
        }
    }

    /// The text of what `fi_eq_sread` answered, or of the error that is queued.
    fn error(&self, answer: i32) -> String {
        // SAFETY: every field may be zero; no room for data is offered.
        let mut entry: sys::fi_eq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open, and the entry is a whole one.
        let got = unsafe { sys::fi_eq_readerr(self.queue.pointer(), &raw mut entry, 0) };
        error_text(if got > 0 { -entry.err } else { answer })
    }
}

fn find(wanted: Wanted, address: SocketAddr, flags: u64) -> Result<Info> {
    let node = CString::new(address.ip().to_string())?;
    let service = CString::new(address.port().to_string())?;
    let provider = CString::new(wanted.provider)?;
    // SAFETY: a fresh info, or null.
    let hints = unsafe { Info::own(sys::fi_allocinfo())? };
    let mut found = ptr::null_mut();
    // SAFETY: `fi_allocinfo` makes an info with all its attributes. The name of the provider is taken back
    // before the hints are freed, which would free it otherwise; the strings live until the call returns.
    let answer = unsafe {
        let fields = &mut *hints.pointer();
        fields.caps = wanted.caps;
        (*fields.ep_attr).type_ = wanted.endpoint;
        (*fields.domain_attr).threading = sys::FI_THREAD_SAFE;
        // Nobody has a thread that makes progress behind the measurement.
        (*fields.domain_attr).data_progress = sys::FI_PROGRESS_MANUAL;
        (*fields.domain_attr).mr_mode = REGISTRATION;
        (*fields.fabric_attr).prov_name = provider.as_ptr().cast_mut();
        let answer = sys::fi_getinfo(API, node.as_ptr(), service.as_ptr(), flags, fields, &raw mut found);
        (*fields.fabric_attr).prov_name = ptr::null_mut();
        answer
    };
    if answer == -sys::FI_ENODATA {
        bail!("libfabric finds no {} provider (is librstream_fi.so in FI_PROVIDER_PATH?)", wanted.provider);
    }
    check("fi_getinfo", answer)?;
    // SAFETY: what `fi_getinfo` gave is whole and ours.
    unsafe { Info::own(found) }
}
