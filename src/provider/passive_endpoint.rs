//! The passive endpoint: listens, and queues an `FI_CONNREQ` event for each connection request.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::abi::{
    AnyFid, CmOps, Control, EndpointOps, Errno, Event, Fid, FidHandle, Info, InfoRef, OptionOut, Result,
};
use rdma_verbs::{ConnectionRequest, Device, Listener};
use rstream_protocol::{Hello, RefusalReason, hello};
use rstream_session::{Peer, Sizes, refusal, user_data_room};

use super::children::Child;
use super::config::Config;
use super::error::errno_of;
use super::event_queue::{Binding, Source};
use super::fabric::Fabric;
use super::info;
use super::message;
use super::options;
use super::request::{PeerEndpoint, Request, Requests};

/// Connection requests that may wait for the application unless `FI_BACKLOG` sets another number.
const DEFAULT_BACKLOG: u32 = 1024;
/// Maximum number of requests that one call takes. The descriptor stays readable for the others.
const ROUND: usize = 16;
/// Number of requests whose handles stay valid after their peers have left.
const KEPT: usize = 1024;

/// An open passive endpoint.
pub(super) struct PassiveEndpoint<D: Device> {
    fabric: Arc<Fabric<D>>,
    device: D,
    /// The info that it was opened with, from which those of connection requests are made.
    info: Info,
    handle: OnceLock<FidHandle>,
    inner: Mutex<Inner<D>>,
}

struct Inner<D: Device> {
    sizes: Sizes,
    address: SocketAddr,
    backlog: u32,
    binding: Option<Binding>,
    listener: Option<D::Listener>,
    requests: Requests<D>,
    membership: Option<Child>,
}

impl<D: Device> PassiveEndpoint<D> {
    /// Opens a passive endpoint as `info` describes it; without an address in it, on all of IPv4.
    pub(super) fn open(fabric: Arc<Fabric<D>>, info: InfoRef<'_>) -> Result<Arc<Self>> {
        let device = fabric.device(info)?;
        let sizes = if message::info::is_of_messages(info) {
            Sizes::DEFAULT
        } else {
            options::with_depths_of(Sizes::DEFAULT, info, &device.attributes())?
        };
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let membership = Some(fabric.children().join());
        Ok(Arc::new(Self {
            info: info.to_owned()?,
            handle: OnceLock::new(),
            inner: Mutex::new(Inner {
                sizes,
                address: info.src_addr()?.unwrap_or(any),
                backlog: DEFAULT_BACKLOG,
                binding: None,
                listener: None,
                requests: Requests::default(),
                membership,
            }),
            fabric,
            device,
        }))
    }

    /// Whether it listens for message endpoints.
    fn is_of_messages(&self) -> bool {
        message::info::is_of_messages(self.info.as_ref())
    }

    /// Decodes a peer's connection data. Returns the kind of its endpoint and the application's bytes, or why
    /// the request is refused and the private data of the reply.
    fn read_connection_data(
        &self,
        inner: &Inner<D>,
        data: &[u8],
    ) -> std::result::Result<(PeerEndpoint, Vec<u8>), (String, Vec<u8>)> {
        if self.is_of_messages() {
            let tags = message::info::has_tags(self.info.as_ref());
            return match Hello::decode(data) {
                Some(hello) if hello.tags == tags => {
                    let number = message::rxm::number_in_request(hello.user_data);
                    Ok((PeerEndpoint::Messages { tags, number }, hello.user_data.to_vec()))
                }
                Some(_) => Err(("one side has tags".to_owned(), self.hello(&[]))),
                None => Err(("not the data of a message endpoint".to_owned(), self.hello(&[]))),
            };
        }
        match Peer::decode(data) {
            Ok((peer, user_data)) => Ok((PeerEndpoint::Stream(peer, inner.sizes), user_data)),
            Err(why) => Err((why.to_string(), why.refusal())),
        }
    }

    /// The connection data of a message endpoint of its kind.
    fn hello(&self, user_data: &[u8]) -> Vec<u8> {
        Hello { tags: message::info::has_tags(self.info.as_ref()), user_data }.encode()
    }

    /// Maximum number of bytes of the application's connection data.
    fn user_data_room(&self) -> usize {
        let attributes = self.device.attributes();
        if self.is_of_messages() {
            hello::room(attributes.private_data.least())
        } else {
            user_data_room(&attributes)
        }
    }

    /// Queues an event for a request, or rejects the request.
    fn queue_request(&self, inner: &mut Inner<D>, request: D::Request) {
        let Some(binding) = &inner.binding else { return };
        let (peer, user_data) = match self.read_connection_data(inner, request.private_data()) {
            Ok(decoded) => decoded,
            Err((why, reply)) => {
                log::warn!(target: "ep_ctrl", "connection from {} refused: {why}", request.peer_address());
                return request.reject(&reply);
            }
        };
        let (local, remote) = (request.local_address(), request.peer_address());
        let request = Request::<D>::new(request, peer);
        let sizes = (!self.is_of_messages()).then_some(&inner.sizes);
        let mut info = match info::for_request(&self.info, local, remote, sizes) {
            Ok(info) => info,
            Err(error) => {
                log::warn!(target: "ep_ctrl", "connection from {remote} dropped: {error}");
                return;
            }
        };
        request.name(|handle| info.set_handle(handle.as_fid()));
        // Requests whose events were not read are among the last.
        inner.requests.remember(&request, KEPT.max(inner.backlog as usize));
        binding.push(Event::ConnReq { fid: binding.fid(), info, data: user_data });
    }
}

impl<D: Device> Source for PassiveEndpoint<D> {
    fn drive(&self) {
        let mut inner = self.inner.lock();
        let waiting = inner.binding.as_ref().map_or(0, Binding::unread);
        let room = (inner.backlog as usize).saturating_sub(waiting);
        for _ in 0..room.min(ROUND) {
            let Some(request) = inner.listener.as_mut().and_then(Listener::poll) else { break };
            self.queue_request(&mut inner, request);
        }
        if let Some(binding) = &inner.binding {
            binding.set_deadline(inner.listener.as_ref().and_then(Listener::deadline));
        }
    }
}

impl<D: Device> Fid for PassiveEndpoint<D> {
    fn opened(&self, handle: FidHandle) {
        // Called once, before any other call.
        let _ = self.handle.set(handle);
    }

    fn close(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.listener = None;
        for event in inner.binding.take().iter().flat_map(Binding::take_unread) {
            if let Event::ConnReq { info, .. } = event {
                let request = info.as_ref().handle().and_then(|handle| handle.downcast::<Request<D>>());
                request.inspect(|request| request.abandon());
            }
        }
        let requests = std::mem::take(&mut inner.requests);
        self.fabric.orphans.lock().adopt(requests, Config::get().connect.timeout);
        inner.membership = None;
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let fid = *self.handle.get().ok_or(Errno::EINVAL)?;
        Binding::make(&mut self.inner.lock().binding, other, flags, self, fid)
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        let Control::Backlog(backlog) = command else { return Err(Errno::ENOSYS) };
        let mut inner = self.inner.lock();
        if inner.listener.is_some() {
            return Err(Errno::EOPBADSTATE);
        }
        inner.backlog = u32::try_from(backlog).ok().filter(|&backlog| backlog > 0).ok_or(Errno::EINVAL)?;
        Ok(0)
    }
}

impl<D: Device> EndpointOps for PassiveEndpoint<D> {
    fn setopt(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        if self.is_of_messages() {
            return Err(Errno::ENOPROTOOPT);
        }
        let mut inner = self.inner.lock();
        let open = inner.listener.is_none();
        options::set(&mut inner.sizes, (level, name), value, open, &self.device.attributes())
    }

    fn getopt(&self, level: i32, name: i32, out: &mut OptionOut<'_>) -> Result<()> {
        if self.is_of_messages() {
            return message::endpoint::getopt(level, name, out, self.user_data_room());
        }
        options::get(&self.inner.lock().sizes, (level, name), out, self.user_data_room())
    }
}

impl<D: Device> CmOps for PassiveEndpoint<D> {
    fn setname(&self, address: SocketAddr) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.listener.is_some() {
            return Err(Errno::EOPBADSTATE);
        }
        inner.address = address;
        Ok(())
    }

    fn getname(&self) -> Result<SocketAddr> {
        let inner = self.inner.lock();
        Ok(inner.listener.as_ref().map_or(inner.address, Listener::local_address))
    }

    fn listen(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.listener.is_some() {
            return Err(Errno::EOPBADSTATE);
        }
        let target = inner.binding.as_ref().ok_or(Errno::ENOEQ)?.target();
        let connect = &Config::get().connect;
        let listener = self.device.listen(inner.address, inner.backlog, connect, target);
        inner.listener = Some(listener.map_err(errno_of)?);
        Ok(())
    }

    fn reject(&self, handle: AnyFid, user_data: &[u8]) -> Result<()> {
        let request = handle.downcast::<Request<D>>().ok_or(Errno::EINVAL)?;
        if user_data.len() > self.user_data_room() {
            return Err(Errno::EINVAL);
        }
        let data = if self.is_of_messages() {
            self.hello(user_data)
        } else {
            refusal(RefusalReason::Application, user_data).map_err(|_| Errno::EINVAL)?
        };
        if request.reject(&data) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
