//! The connection manager (`rdma_cm`): event channels and identifiers as owned values.
//!
//! Every queue pair and listener has its own channel, so that its descriptor can be a source of the wait set
//! that receives its events. No call blocks, with one exception: soft iWARP opens its TCP connection inside
//! `rdma_connect`.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys as sys;
use socket2::{SockAddr, SockAddrStorage};

use super::device::{check, check_pointer, name_of, set_nonblocking};
use super::library::{Library, library};
use crate::process::Maker;
use crate::{Error, Result};

pub(super) use sys::rdma_cm_event_type as kind;

/// An event channel.
pub(super) struct Channel {
    maker: Maker,
    library: &'static Library,
    raw: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm allows any thread to read events from a channel.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An identifier (`rdma_cm_id`): a listener, or one end of a connection.
pub(super) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm ties an identifier to no thread; `Id` is the only handle to it.
unsafe impl Send for Id {}

/// An event, copied and acknowledged.
pub(super) struct Event {
    pub(super) kind: kind::Type,
    /// 0, a negative errno, or the reason of a reject.
    pub(super) status: c_int,
    pub(super) private_data: Vec<u8>,
    /// The depths that the peer proposes, from this side's point of view.
    pub(super) reads: ReadDepths,
    /// With a connection request: the new identifier.
    pub(super) request: Option<Id>,
}

/// The numbers of RDMA reads that may be outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// Reads that this side issues.
    pub(super) initiator: u8,
    /// Reads of the peer that this side serves.
    pub(super) responder: u8,
}

impl Channel {
    pub(super) fn open() -> Result<Arc<Self>> {
        let unsupported = |_| Error::Unsupported("connection manager: rdma-core cannot be loaded");
        let library = library().map_err(unsupported)?;
        // SAFETY: no requirements.
        let raw =
            check_pointer("rdma_create_event_channel", unsafe { (library.rdma_create_event_channel)() })?;
        let channel = Self { maker: Maker::this_process(), library, raw };
        set_nonblocking(channel.as_fd())?;
        Ok(Arc::new(channel))
    }

    /// The next event of the identifiers on this channel, if there is one.
    pub(super) fn next_event(self: &Arc<Self>) -> Option<Event> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is open and its descriptor does not block; the event is written to a live
        // pointer.
        if unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                log::warn!("rdma_get_cm_event: {error}");
            }
            return None;
        }
        // SAFETY: the call succeeded, so the event is valid until it is acknowledged below.
        let event = unsafe { &*raw };
        // SAFETY: an event of an identifier of port space TCP has connection parameters; an event that
        // carries none has zeros there.
        let parameters = unsafe { &event.param.conn };
        let private_data = if parameters.private_data.is_null() {
            Vec::new()
        } else {
            let length = usize::from(parameters.private_data_len);
            // SAFETY: the event holds `private_data_len` bytes of private data.
            unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), length) }.to_vec()
        };
        let request = (event.event == kind::RDMA_CM_EVENT_CONNECT_REQUEST)
            .then(|| NonNull::new(event.id))
            .flatten()
            .map(|raw| Id { raw, channel: Arc::clone(self) });
        let copy = Event {
            kind: event.event,
            status: event.status,
            private_data,
            reads: ReadDepths {
                initiator: parameters.initiator_depth,
                responder: parameters.responder_resources,
            },
            request,
        };
        log::debug!("connection manager event {}, status {}", copy.kind, copy.status);
        // SAFETY: the event came from `rdma_get_cm_event`, is acknowledged once and not used afterwards.
        unsafe { (self.library.rdma_ack_cm_event)(raw) };
        Some(copy)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.maker.is_this_process() {
            return;
        }
        // SAFETY: the channel is destroyed once, after every identifier on it, because each identifier holds
        // the channel.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl Id {
    pub(super) fn create(channel: &Arc<Channel>) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let (context, space) = (std::ptr::null_mut(), sys::rdma_port_space::RDMA_PS_TCP);
        // SAFETY: the channel is open, and the identifier will hold it; the result is written to a live
        // pointer.
        let result =
            unsafe { (channel.library.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, context, space) };
        check("rdma_create_id", result)?;
        Ok(Self { raw: check_pointer("rdma_create_id", raw)?, channel: Arc::clone(channel) })
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    fn library(&self) -> &'static Library {
        self.channel.library
    }

    /// Moves its events to another channel.
    pub(super) fn migrate(&mut self, channel: &Arc<Channel>) -> Result<()> {
        // SAFETY: both are valid. The call waits until every event of this identifier that was read is
        // acknowledged, which `next_event` does before it returns.
        let result = unsafe { (self.library().rdma_migrate_id)(self.raw.as_ptr(), channel.raw.as_ptr()) };
        check("rdma_migrate_id", result)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: the identifier is valid; the address is live and complete, and only read.
        let result =
            unsafe { (self.library().rdma_bind_addr)(self.raw.as_ptr(), address.as_ptr().cast_mut().cast()) };
        check("rdma_bind_addr", result)
    }

    pub(super) fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is valid.
        check("rdma_listen", unsafe { (self.library().rdma_listen)(self.raw.as_ptr(), backlog) })
    }

    /// Starts to resolve the address `remote`.
    pub(super) fn resolve_address(&self, remote: SocketAddr, timeout: Duration) -> Result<()> {
        let remote = SockAddr::from(remote);
        let (source, timeout) = (std::ptr::null_mut(), milliseconds(timeout));
        // SAFETY: the identifier is valid; the address is live and complete, and only read. A null source
        // stands for the bound address, or for any address.
        let result = unsafe {
            let remote = remote.as_ptr().cast_mut().cast();
            (self.library().rdma_resolve_addr)(self.raw.as_ptr(), source, remote, timeout)
        };
        check("rdma_resolve_addr", result)
    }

    /// Starts to resolve the route, once the address is resolved.
    pub(super) fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: the identifier is valid.
        let result = unsafe { (self.library().rdma_resolve_route)(self.raw.as_ptr(), milliseconds(timeout)) };
        check("rdma_resolve_route", result)
    }

    /// Sends the connection request for a queue pair.
    pub(super) fn connect(&self, pair: &Parameters, private_data: &[u8]) -> Result<()> {
        let mut parameters = pair.raw(private_data);
        // SAFETY: the identifier is valid; the parameters and the private data that they point to are live,
        // and copied by the call.
        let result = unsafe { (self.library().rdma_connect)(self.raw.as_ptr(), &raw mut parameters) };
        check("rdma_connect", result)
    }

    /// Accepts a connection request for a queue pair.
    pub(super) fn accept(&self, pair: &Parameters, private_data: &[u8]) -> Result<()> {
        let mut parameters = pair.raw(private_data);
        // SAFETY: as for `connect`.
        let result = unsafe { (self.library().rdma_accept)(self.raw.as_ptr(), &raw mut parameters) };
        check("rdma_accept", result)
    }

    /// On InfiniBand, tells the passive side that the active side's queue pair is ready.
    pub(super) fn establish(&self) -> Result<()> {
        // SAFETY: the identifier is valid.
        check("rdma_establish", unsafe { (self.library().rdma_establish)(self.raw.as_ptr()) })
    }

    /// Refuses a connection request.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        // SAFETY: the identifier is valid; `length` is at most the length of the private data.
        let result =
            unsafe { (self.library().rdma_reject)(self.raw.as_ptr(), private_data.as_ptr().cast(), length) };
        check("rdma_reject", result)
    }

    /// Ends the connection, or confirms that the peer did.
    pub(super) fn disconnect(&self) {
        // SAFETY: the identifier is valid. The call fails if the connection has ended already.
        let result = unsafe { (self.library().rdma_disconnect)(self.raw.as_ptr()) };
        if let Err(error) = check("rdma_disconnect", result) {
            log::debug!("{error}");
        }
    }

    /// The attributes that move a queue pair of this connection to `state`, and the mask of those that are
    /// set.
    pub(super) fn queue_pair_attributes(
        &self,
        state: sys::ibv_qp_state::Type,
    ) -> Result<(sys::ibv_qp_attr, c_int)> {
        // SAFETY: the structure consists of integers, for which all zeros are valid.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier is valid; both results are written to live places of the right type.
        let result = unsafe {
            (self.library().rdma_init_qp_attr)(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        };
        check("rdma_init_qp_attr", result)?;
        Ok((attributes, mask))
    }

    /// The name of the device that the address or the route leads to, once known.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the identifier is valid, and so are the context that it points to, if any, and its device.
        let device =
            unsafe { (*self.raw.as_ptr()).verbs.as_ref() }.and_then(|verbs| NonNull::new(verbs.device));
        device.map(name_of)
    }

    /// The port of the device, once known; 0 before.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: the identifier is valid.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid; the union is a socket address of any family, all zeros
        // while there is none.
        decode(unsafe { &(*self.raw.as_ptr()).route.addr.src_addr_union.src_storage })
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        decode(unsafe { &(*self.raw.as_ptr()).route.addr.dst_addr_union.dst_storage })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.channel.maker.is_this_process() {
            return;
        }
        // SAFETY: the identifier is destroyed once. The call waits until every event of this identifier that
        // was read is acknowledged, which `next_event` does before it returns.
        let result = unsafe { (self.library().rdma_destroy_id)(self.raw.as_ptr()) };
        if let Err(error) = check("rdma_destroy_id", result) {
            log::warn!("{error}");
        }
    }
}

/// The IPv4 or IPv6 address in `storage`, if there is one.
fn decode(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let mut copy = SockAddrStorage::zeroed();
    // SAFETY: `SockAddrStorage` wraps a `sockaddr_storage`.
    unsafe { *copy.view_as() = *storage };
    let length = copy.size_of();
    // SAFETY: the storage is initialized over its whole length, and its family field gives its type.
    unsafe { SockAddr::new(copy, length) }.as_socket()
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// The parameters of a connection that depend on its queue pair.
pub(super) struct Parameters {
    /// The number by which the peer's device addresses the queue pair.
    pub(super) number: u32,
    pub(super) reads: ReadDepths,
    /// Whether its receives are shared.
    pub(super) is_shared: bool,
}

impl Parameters {
    /// For `rdma_connect` and `rdma_accept`. Both retry counts have their maximum, which means without end
    /// for the receiver that is not ready: messages wait for a receive.
    fn raw(&self, private_data: &[u8]) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.reads.responder,
            initiator_depth: self.reads.initiator,
            flow_control: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: self.is_shared.into(),
            qp_num: self.number,
        }
    }
}
