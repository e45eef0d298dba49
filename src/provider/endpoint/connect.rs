//! Connecting, accepting, and the end of a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma_verbs::{ConnectError, Device};
use rstream_session::{Connection, Handshake, Outcome, Settings, StartError, Started, StreamQueuePair};

use crate::abi::{self, CmOps, Errno, ErrorEvent, Event, Result, constants};

use super::super::config::Config;
use super::super::domain::Domain;
use super::super::error::errno_of;
use super::super::event_queue::Source;
use super::super::reason::{self, Reason};
use super::{Endpoint, Inner, State};

impl<D: Device> Endpoint<D> {
    fn start_connect(&self, inner: &mut Inner<D>, remote: SocketAddr, user_data: &[u8]) -> Result<()> {
        inner.enable(self)?;
        let (settings, to) = (self.settings(inner), (remote, inner.source));
        let events = inner.binding.as_ref().ok_or(Errno::ENOEQ)?.target();
        let device = self.attributes();
        inner.start(|queue_pair| Handshake::connect(queue_pair, to, user_data, settings, device, events))
    }

    fn start_accept(&self, inner: &mut Inner<D>, user_data: &[u8]) -> Result<()> {
        let request = self.request.as_ref().ok_or(Errno::EOPBADSTATE)?;
        inner.enable(self)?;
        let settings = self.settings(inner);
        let events = inner.binding.as_ref().ok_or(Errno::ENOEQ)?.target();
        if !matches!(inner.state, State::Enabled(_)) {
            return Err(Errno::EOPBADSTATE);
        }
        let (&peer, _) = request.stream().ok_or(Errno::EINVAL)?;
        if !peer.is_extended() && !user_data.is_empty() {
            return Err(Errno::EINVAL);
        }
        let from = (request.take().ok_or(Errno::EINVAL)?, peer);
        let device = self.attributes();
        inner.start(|queue_pair| Handshake::accept(queue_pair, from, user_data, settings, device, events))
    }

    /// The settings of the stream.
    pub(super) fn settings(&self, inner: &Inner<D>) -> Settings {
        let config = Config::get();
        Settings {
            sizes: inner.sizes,
            force_iwarp: self.force_iwarp,
            share_memory: Domain::<D>::shares_memory(),
            connect: config.connect.clone(),
            at_cancellation_point: |body| abi::defer_cancellation(body),
        }
    }

    /// Handles the outcome of a connection attempt, if there is one.
    fn advance(&self, inner: &mut Inner<D>) {
        let handshake = match std::mem::replace(&mut inner.state, State::Closed) {
            State::Connecting(handshake) => handshake,
            other => {
                inner.state = other;
                return;
            }
        };
        match handshake.poll() {
            Err(handshake) => inner.state = State::Connecting(handshake),
            Ok(Outcome::Connected(connection, data)) => self.connected(inner, connection, data),
            Ok(Outcome::BadParameters(why)) => {
                log::warn!(target: "ep_ctrl", "connection given up: {why}");
                self.fail(inner, Reason::BadOffer.codes(), Vec::new());
            }
            Ok(Outcome::Rejected(reason, data)) => {
                self.fail(inner, Reason::of_refusal(reason).codes(), data);
            }
            Ok(Outcome::RejectedKind) => self.fail(inner, Reason::RejectedKind.codes(), Vec::new()),
            Ok(Outcome::Failed(error)) => {
                let unusual = matches!(error, ConnectError::Protocol(_));
                let level = if unusual { log::Level::Warn } else { log::Level::Info };
                log::log!(target: "ep_ctrl", level, "connection attempt failed: {error}");
                self.fail(inner, reason::codes(&error), Vec::new());
            }
        }
    }

    fn connected(&self, inner: &mut Inner<D>, connection: Box<Connection<D>>, data: Vec<u8>) {
        inner.state = State::Connected(connection);
        // From now on the event queue watches the peer, whose first deadline is earlier than that of the
        // attempt.
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
    /// Drives the endpoint in its present state.
    pub(super) fn progress(&mut self, endpoint: &Endpoint<D>) {
        self.armed = None;
        endpoint.advance(self);
        if let State::Connected(connection) = &mut self.state {
            connection.progress();
        }
        self.after_call();
    }

    /// Changes the state from enabled to connecting, and makes the event queue watch the attempt.
    fn start(&mut self, start: impl FnOnce(Box<StreamQueuePair<D>>) -> Started<D>) -> Result<()> {
        let queue_pair = match std::mem::replace(&mut self.state, State::Closed) {
            State::Enabled(queue_pair) => queue_pair,
            other => {
                self.state = other;
                return Err(Errno::EOPBADSTATE);
            }
        };
        match start(queue_pair) {
            Ok(handshake) => self.state = State::Connecting(handshake),
            Err((queue_pair, error)) => {
                self.state = State::Enabled(queue_pair);
                return Err(match error {
                    StartError::Device(error) => errno_of(error),
                    StartError::Parameters(_) => {
                        log::warn!(target: "ep_ctrl", "{error}");
                        Errno::EINVAL
                    }
                });
            }
        }
        self.set_deadline();
        Ok(())
    }

    /// Sets the time at which the event queue drives the endpoint even without an event.
    fn set_deadline(&self) {
        if let Some(binding) = &self.binding {
            binding.set_deadline(self.queue_pair().and_then(StreamQueuePair::deadline));
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
        let bound = inner.queue_pair().and_then(StreamQueuePair::local_address);
        let unbound: IpAddr = match self.destination {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        Ok(bound.or(inner.source).unwrap_or(SocketAddr::new(unbound, 0)))
    }

    fn getpeer(&self) -> Result<SocketAddr> {
        let inner = self.inner.lock();
        let peer = inner.queue_pair().and_then(StreamQueuePair::peer_address);
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
        inner.armed = None;
        let State::Connected(connection) = &mut inner.state else { return Err(Errno::ENOTCONN) };
        match (flags & constants::FI_SEND != 0, flags & constants::FI_RECV != 0) {
            (true, false) => connection.shut_send(),
            (false, true) => connection.shut_recv(),
            (true, true) | (false, false) => {
                connection.close();
            }
        }
        connection.progress();
        inner.after_call();
        Ok(())
    }
}
