//! Connecting, accepting, and the end of a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::endpoint::{Endpoint, Phase};
use super::engine::State;
use super::inbox::Inbox;
use super::rxm;
use crate::abi::{CmOps, Errno, ErrorEvent, Event, Result, constants};
use crate::provider::config::Config;
use crate::provider::error::errno_of;
use crate::provider::event_queue::Source;
use crate::provider::reason::{self, Reason};
use rdma_verbs::{BreakReason, ConnectionEvent, Connections as _, Device};
use rstream_protocol::Hello;

impl<D: Device> State<D> {
    /// Takes in what happened to the connection of the endpoint at this index.
    pub(super) fn advance(&mut self, at: usize) {
        while let Some(qp) = self.links.get(at).map(|link| link.qp)
            && let Some(event) = self.cq.poll_event(qp)
        {
            if !matches!(event, ConnectionEvent::Established { .. }) {
                // Completions are reported before the end of their connection.
                self.drain();
            }
            let refused = match event {
                ConnectionEvent::Established { private_data } => self.established(at, &private_data),
                ConnectionEvent::Rejected { private_data } => {
                    // A listener for such endpoints rejects with their data.
                    Some(match self.hello(at, &private_data) {
                        Some(data) => (Reason::Rejected.codes(), data),
                        None => (Reason::RejectedKind.codes(), Vec::new()),
                    })
                }
                ConnectionEvent::Failed(error) => {
                    log::info!(target: "ep_ctrl", "connection attempt failed: {error}");
                    Some((reason::codes(&error), Vec::new()))
                }
                ConnectionEvent::Disconnected => {
                    // The system of a process that is killed does that, too.
                    if let Some(peer) = self.cq.peer_address(qp) {
                        log::info!(target: "ep_ctrl", "{peer} has ended the connection");
                    }
                    self.shut(at);
                    None
                }
                ConnectionEvent::Broken(reason) => {
                    if let Some(link) = self.links.get_mut(at) {
                        link.statistics.refused |= matches!(reason, BreakReason::Protocol(_));
                    }
                    self.shut(at);
                    None
                }
            };
            if let (Some((codes, err_data)), Some(link)) = (refused, self.links.get_mut(at)) {
                let (err, prov_errno) = codes;
                link.phase = Phase::Over;
                link.binding.push_error(ErrorEvent { fid: link.binding.fid(), err, prov_errno, err_data });
            }
        }
        if let Some(link) = self.links.get(at) {
            link.binding.set_deadline(self.cq.deadline(link.qp));
        }
    }

    /// The application's bytes in connection data of an endpoint of the same kind; `None`: it is not of one.
    fn hello(&self, at: usize, private_data: &[u8]) -> Option<Vec<u8>> {
        let tags = self.links.get(at)?.inbox.is_some();
        let hello = Hello::decode(private_data).filter(|hello| hello.tags == tags)?;
        Some(hello.user_data.to_vec())
    }

    /// Handles an established connection. Returns the reason to give it up, if the peer's data is not that of
    /// a message endpoint of the same kind.
    fn established(&mut self, at: usize, private_data: &[u8]) -> Option<((Errno, i32), Vec<u8>)> {
        let data = self.hello(at, private_data);
        let link = self.links.get_mut(at)?;
        let data = match data {
            Some(data) => data,
            // The passive side gets none.
            None if link.is_passive => Vec::new(),
            None => {
                self.cq.abort(link.qp);
                return Some((Reason::BadOffer.codes(), Vec::new()));
            }
        };
        if let (Some(headers), false) = (&mut link.headers, link.is_passive) {
            headers.number = rxm::number_in_reply(&data);
        }
        link.phase = Phase::Connected;
        link.binding.push(Event::Connected { fid: link.binding.fid(), data });
        None
    }

    /// The connection has ended: says so once.
    pub(super) fn shut(&mut self, at: usize) {
        if let Some(link) = self.links.get_mut(at)
            && std::mem::replace(&mut link.phase, Phase::Over) != Phase::Over
        {
            link.binding.push(Event::Shutdown { fid: link.binding.fid() });
        }
        self.with_inbox(at, Inbox::end);
    }
}

impl<D: Device> Endpoint<D> {
    /// Begins a connection attempt.
    fn start(
        &self,
        user_data: &[u8],
        begin: impl FnOnce(&mut State<D>, rdma_verbs::QpId, &[u8], rdma_verbs::EventTarget) -> Result<()>,
    ) -> Result<()> {
        if user_data.len() > self.engine.limits.user_data {
            return Err(Errno::EINVAL);
        }
        let at = self.enable()?;
        self.engine.with(|state| {
            let link = state.link(at)?;
            match link.phase {
                Phase::Idle => {}
                Phase::Connecting => return Err(Errno::EALREADY),
                Phase::Connected => return Err(Errno::EISCONN),
                Phase::Over => return Err(Errno::EOPBADSTATE),
            }
            let (qp, target) = (link.qp, link.binding.target());
            begin(state, qp, &Hello { tags: self.tags, user_data }.encode(), target)?;
            let link = state.link(at)?;
            link.phase = Phase::Connecting;
            let qp = link.qp;
            let deadline = state.cq.deadline(qp);
            state.link(at)?.binding.set_deadline(deadline);
            Ok(())
        })
    }
}

impl<D: Device> Source for Endpoint<D> {
    fn drive(&self) {
        let Ok(at) = self.link() else { return };
        self.engine.with(|state| {
            state.advance(at);
            if self.tags {
                // The inbox takes one message after the other. The end is behind the last one.
                state.drain();
                state.advance(at);
            } else {
                state.drive();
            }
        });
    }
}

impl<D: Device> CmOps for Endpoint<D> {
    fn setname(&self, address: SocketAddr) -> Result<()> {
        let mut setup = self.setup.lock();
        if self
            .link
            .get()
            .is_some_and(|&at| self.engine.lock().link(at).is_ok_and(|link| link.phase != Phase::Idle))
        {
            return Err(Errno::EOPBADSTATE);
        }
        setup.source = Some(address);
        Ok(())
    }

    fn getname(&self) -> Result<SocketAddr> {
        let bound = self.link().ok().and_then(|at| {
            let mut state = self.engine.lock();
            let qp = state.link(at).ok()?.qp;
            state.cq.local_address(qp)
        });
        let unbound: IpAddr = match self.destination {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        Ok(bound.or(self.setup.lock().source).unwrap_or(SocketAddr::new(unbound, 0)))
    }

    fn getpeer(&self) -> Result<SocketAddr> {
        let at = self.link().map_err(|_| Errno::ENOTCONN)?;
        let mut state = self.engine.lock();
        let qp = state.link(at)?.qp;
        state.cq.peer_address(qp).ok_or(Errno::ENOTCONN)
    }

    fn connect(&self, remote: Option<SocketAddr>, user_data: &[u8]) -> Result<()> {
        let remote = remote.or(self.destination).ok_or(Errno::EINVAL)?;
        let source = self.setup.lock().source;
        self.start(user_data, |state, qp, hello, target| {
            let options = &Config::get().connect;
            state.cq.connect(qp, remote, source, hello, options, target).map_err(errno_of)
        })
    }

    fn accept(&self, user_data: &[u8]) -> Result<()> {
        let request = self.request.as_ref().ok_or(Errno::EOPBADSTATE)?;
        self.start(user_data, |state, qp, hello, target| {
            let request = request.take().ok_or(Errno::EINVAL)?;
            state.cq.accept(qp, request, hello, &Config::get().connect, target).map_err(errno_of)
        })
    }

    fn shutdown(&self, flags: u64) -> Result<()> {
        if flags & !(constants::FI_SEND | constants::FI_RECV) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let at = self.link().map_err(|_| Errno::ENOTCONN)?;
        self.engine.with(|state| {
            if state.link(at)?.phase == Phase::Connecting {
                // Whoever reads no events is connected as well.
                state.advance(at);
            }
            let link = state.link(at)?;
            if link.phase != Phase::Connected {
                return Err(Errno::ENOTCONN);
            }
            let qp = link.qp;
            state.drain();
            state.cq.disconnect(qp);
            state.drain();
            state.shut(at);
            Ok(())
        })
    }
}
