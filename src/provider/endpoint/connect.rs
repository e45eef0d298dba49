//! Connecting, accepting, and the end of a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::abi::{CmOps, Errno, ErrorEvent, Event, Result, constants};
use rdma_verbs::{CompletionQueue, ConnectError, ConnectionEvent, Device};
use rstream_protocol::{Extension, Features};

use super::super::config::Config;
use super::super::connection::Connection;
use super::super::error::errno_of;
use super::super::event_queue::Source;
use super::super::link::Link;
use super::super::offer::{self, BadOffer, Peer};
use super::super::reason::{self, Reason};
use super::{Endpoint, Inner, State};

/// Which side of a connection attempt this is.
pub(super) enum Attempt {
    /// The peer's offer comes with its answer.
    Active,
    /// The peer's offer came with its request.
    Passive(Peer),
}

impl<D: Device> Endpoint<D> {
    fn start_connect(&self, inner: &mut Inner<D>, remote: SocketAddr, user_data: &[u8]) -> Result<()> {
        inner.enable(self)?;
        let config = Config::get();
        let (source, options) = (inner.source, inner.options);
        let target = inner.binding.as_ref().ok_or(Errno::ENOEQ)?.target();
        let State::Enabled(link) = &mut inner.state else { return Err(Errno::EOPBADSTATE) };
        let attributes = self.attributes();
        let features = offer::features(&attributes, self.force_iwarp);
        let invitation = if self.may_share() { link.invite(remote) } else { None };
        let extension = offer::extend(features, user_data, invitation.as_ref(), &attributes);
        let data = offer::encode(&link.offer(&options, Some(extension)))?;
        link.cq.connect(link.qp, remote, source, &data, &config.connect, target).map_err(errno_of)?;
        inner.start(Attempt::Active);
        Ok(())
    }

    fn start_accept(&self, inner: &mut Inner<D>, user_data: &[u8]) -> Result<()> {
        let request = self.request.as_ref().ok_or(Errno::EOPBADSTATE)?;
        inner.enable(self)?;
        let config = Config::get();
        let options = inner.options;
        let target = inner.binding.as_ref().ok_or(Errno::ENOEQ)?.target();
        let State::Enabled(link) = &mut inner.state else { return Err(Errno::EOPBADSTATE) };
        let peer = *request.peer();
        if !peer.is_extended() && !user_data.is_empty() {
            return Err(Errno::EINVAL);
        }
        let pending = request.take().ok_or(Errno::EINVAL)?;
        let mut features = offer::features(&self.attributes(), self.force_iwarp);
        // The answer takes a byte.
        let may_share = self.may_share() && user_data.len() < self.user_data_room();
        let invitation = peer.invitation().filter(|_| may_share);
        let shared = invitation.is_some_and(|invitation| link.visit(&pending, invitation));
        features.set(Features::SHARED_MEMORY, shared);
        let extension = peer.is_extended().then_some(Extension { features, user_data, invitation: &[] });
        let data = offer::encode(&link.offer(&options, extension))?;
        link.cq.accept(link.qp, pending, &data, &config.connect, target).map_err(errno_of)?;
        inner.start(Attempt::Passive(peer));
        Ok(())
    }

    /// Takes in the outcome of a connection attempt, if there is one.
    fn advance(&self, inner: &mut Inner<D>) {
        let State::Connecting(link, _) = &mut inner.state else { return };
        let Some(event) = link.cq.poll_event(link.qp) else { return };
        let State::Connecting(link, attempt) = std::mem::replace(&mut inner.state, State::Dead) else {
            return;
        };
        match event {
            ConnectionEvent::Established { private_data } => {
                let peer = match attempt {
                    Attempt::Passive(peer) => Ok((peer, Vec::new())),
                    Attempt::Active => offer::decode(&private_data),
                };
                match peer.and_then(|(peer, data)| Ok((self.connection(inner, *link, &peer)?, data))) {
                    Ok((connection, data)) => self.connected(inner, connection, data),
                    Err(why) => {
                        log::warn!(target: "ep_ctrl", "connection given up: {why}");
                        self.fail(inner, Reason::BadOffer.codes(), Vec::new());
                    }
                }
            }
            ConnectionEvent::Rejected { private_data } => {
                let (refusal, data) = offer::decode_refusal(&private_data);
                self.fail(inner, Reason::of_refusal(refusal).codes(), data);
            }
            ConnectionEvent::Failed(error) => {
                log::info!(target: "ep_ctrl", "connection attempt failed: {error}");
                self.fail(inner, reason::codes(&error), Vec::new());
            }
            ConnectionEvent::Disconnected | ConnectionEvent::Broken(_) => {
                self.fail(inner, reason::codes(&ConnectError::Closed), Vec::new());
            }
        }
    }

    fn connection(
        &self,
        inner: &Inner<D>,
        mut link: Link<D>,
        peer: &Peer,
    ) -> std::result::Result<Connection<D>, BadOffer> {
        link.meet(peer.shares_memory());
        let attributes = self.attributes();
        let longest = link.longest_message(peer.ring_size(), attributes.max_message);
        let (stream, format) = offer::agree(&inner.options, peer, &attributes, self.force_iwarp, longest)?;
        let longest_inject = peer.ring_size().min(inner.options.send_buffer) as usize;
        Ok(Connection::new(link, stream, format, peer.ring(), longest_inject))
    }

    /// Whether memory may be shared with a peer on this host.
    fn may_share(&self) -> bool {
        Config::get().shared_memory && !self.force_iwarp
    }

    fn connected(&self, inner: &mut Inner<D>, connection: Connection<D>, data: Vec<u8>) {
        inner.state = State::Connected(Box::new(connection));
        // Whichever call found it, the event queue is to look at the peer from now on, which is sooner than
        // the attempt would have ended.
        inner.set_deadline();
        if let Some(binding) = &inner.binding {
            binding.push(Event::Connected { fid: binding.fid(), data });
        }
    }

    fn fail(&self, inner: &Inner<D>, (err, prov_errno): (Errno, i32), err_data: Vec<u8>) {
        if let Some(binding) = &inner.binding {
            binding.push_error(ErrorEvent { fid: binding.fid(), err, prov_errno, err_data });
        }
    }
}

impl<D: Device> Inner<D> {
    /// Drives whatever state the endpoint is in.
    pub(super) fn progress(&mut self, endpoint: &Endpoint<D>) {
        endpoint.advance(self);
        if let State::Connected(connection) = &mut self.state {
            connection.progress();
        }
        self.after_call();
    }

    /// Goes from enabled to connecting, watched by the event queue.
    fn start(&mut self, attempt: Attempt) {
        if let State::Enabled(link) = std::mem::replace(&mut self.state, State::Dead) {
            self.state = State::Connecting(link, attempt);
        }
        self.set_deadline();
    }

    /// Tells the event queue when to drive the endpoint even if nothing happens.
    fn set_deadline(&self) {
        if let Some(binding) = &self.binding {
            binding.set_deadline(self.link().and_then(|link| link.cq.deadline(link.qp)));
        }
    }
}

impl<D: Device> Source for Endpoint<D> {
    fn drive(&self) {
        let mut inner = self.inner.lock();
        inner.progress(self);
        inner.set_deadline();
    }
}

impl<D: Device> CmOps for Endpoint<D> {
    fn setname(&self, address: SocketAddr) -> Result<()> {
        let mut inner = self.inner.lock();
        match inner.state {
            State::Open | State::Enabled(_) => inner.source = Some(address),
            _ => return Err(Errno::EOPBADSTATE),
        }
        Ok(())
    }

    fn getname(&self) -> Result<SocketAddr> {
        let inner = self.inner.lock();
        let bound = inner.link().and_then(|link| link.cq.local_address(link.qp));
        let unbound: IpAddr = match self.destination {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        Ok(bound.or(inner.source).unwrap_or(SocketAddr::new(unbound, 0)))
    }

    fn getpeer(&self) -> Result<SocketAddr> {
        let inner = self.inner.lock();
        let peer = inner.link().and_then(|link| link.cq.peer_address(link.qp));
        peer.ok_or(Errno::ENOTCONN)
    }

    fn connect(&self, remote: Option<SocketAddr>, user_data: &[u8]) -> Result<()> {
        let remote = remote.or(self.destination).ok_or(Errno::EINVAL)?;
        if user_data.len() > self.user_data_room() {
            return Err(Errno::EINVAL);
        }
        self.start_connect(&mut self.inner.lock(), remote, user_data)
    }

    fn accept(&self, user_data: &[u8]) -> Result<()> {
        if user_data.len() > self.user_data_room() {
            return Err(Errno::EINVAL);
        }
        self.start_accept(&mut self.inner.lock(), user_data)
    }

    fn shutdown(&self, flags: u64) -> Result<()> {
        if flags & !(constants::FI_SEND | constants::FI_RECV) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let mut inner = self.inner.lock();
        let State::Connected(connection) = &mut inner.state else { return Err(Errno::ENOTCONN) };
        match (flags & constants::FI_SEND != 0, flags & constants::FI_RECV != 0) {
            (true, false) => connection.stream.shut_send(),
            (false, true) => connection.stream.shut_recv(),
            (true, true) | (false, false) => {
                connection.close();
            }
        }
        connection.progress();
        inner.after_call();
        Ok(())
    }
}
