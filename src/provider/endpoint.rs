//! The active endpoint: one stream.
//!
//! One lock covers everything that an endpoint owns on its device. Calls are short, and release the lock
//! between two looks while they spin. So a sender and a receiver in two threads delay each other by one look
//! at most. In shared memory, calls that only move bytes do without it ([`Direct`]).
//!
//! | file | part |
//! |---|---|
//! | `mod` | opening, binding, options, descriptor, closing |
//! | `connect` | from a new endpoint to a connection, and its end |
//! | `data` | the calls that move bytes |

mod callers;
mod connect;
mod data;

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::abi::{
    AnyFid, Control, EndpointOps, Errno, Event, Fid, FidHandle, InfoRef, OptionOut, Result, Stats, StatsOps,
};
use rdma_verbs::process::Maker;
use rdma_verbs::{Device, Signal, WaitSet};
use rstream_session::{Connection, Direct, Handshake, Linger, Sizes, StreamQueuePair, user_data_room};

use super::children::Child;
use super::config::Config;
use super::domain::Domain;
use super::error::errno_of;
use super::event_queue::Binding;
use super::request::Request;
use super::{info, options, stats, wait};
use callers::Callers;

/// How long an armed descriptor is relied on.
const ARMED: Duration = Duration::from_millis(1);

/// An open endpoint.
pub(super) struct Endpoint<D: Device> {
    domain: Arc<Domain<D>>,
    /// Whether control words are in the format of iWARP (`FI_PROTO_IWARP`).
    force_iwarp: bool,
    /// The peer that the info names, for `fi_connect` without one.
    destination: Option<SocketAddr>,
    /// The connection request that this endpoint was opened for.
    request: Option<Arc<Request<D>>>,
    handle: OnceLock<FidHandle>,
    maker: Maker,
    inner: Mutex<Inner<D>>,
    /// From when the stream is in shared memory.
    direct: OnceLock<Direct>,
    /// Notified by each call. A call that yields to another thread waits for it.
    called: Condvar,
}

struct Inner<D: Device> {
    sizes: Sizes,
    /// Address to bind before connecting.
    source: Option<SocketAddr>,
    binding: Option<Binding>,
    /// Makes the endpoint's descriptor readable, which is there from the first `FI_GETWAIT` on.
    wait: Option<Signal>,
    /// When the descriptor was armed last, if no call has used the connection since.
    armed: Option<Instant>,
    state: State<D>,
    callers: Callers,
    /// Whether `FI_SHUTDOWN` was queued.
    shutdown_reported: bool,
    /// Counts the endpoint as open in its domain.
    membership: Option<Child>,
}

enum State<D: Device> {
    /// Opened. Options may change.
    Open,
    /// Enabled: it has its memory and its queue pair.
    Enabled(Box<StreamQueuePair<D>>),
    /// A connection attempt is under way.
    Connecting(Box<Handshake<D>>),
    /// Connected, or the connection has ended.
    Connected(Box<Connection<D>>),
    /// The attempt failed, or the endpoint is closed.
    Closed,
}

impl<D: Device> Endpoint<D> {
    /// Opens an endpoint as `info` describes it.
    pub(super) fn open(domain: Arc<Domain<D>>, info: InfoRef<'_>) -> Result<Arc<Self>> {
        let request = match info.handle() {
            Some(handle) => Some(handle.downcast::<Request<D>>().ok_or(Errno::EINVAL)?),
            None => None,
        };
        let inherited = match &request {
            Some(request) => request.stream().ok_or(Errno::EINVAL)?.1,
            None => Sizes::DEFAULT,
        };
        if !info::describes_endpoint(info) {
            return Err(Errno::ENODATA);
        }
        let attributes = domain.device().attributes();
        let sizes = options::with_depths_of(inherited, info, &attributes)?;
        let (source, destination) = (info.src_addr()?, info.dest_addr()?);
        if request.as_ref().is_some_and(|request| !request.claim()) {
            return Err(Errno::EINVAL);
        }
        Ok(Arc::new(Self {
            force_iwarp: info::forces_iwarp(info),
            destination,
            request,
            handle: OnceLock::new(),
            maker: Maker::this_process(),
            inner: Mutex::new(Inner {
                sizes,
                source,
                binding: None,
                wait: None,
                armed: None,
                state: State::Open,
                callers: Callers::default(),
                shutdown_reported: false,
                membership: Some(domain.children().join()),
            }),
            direct: OnceLock::new(),
            called: Condvar::new(),
            domain,
        }))
    }

    /// For `fi_trywait`: whether a call would return something now. Otherwise the descriptor becomes readable
    /// for the next event.
    pub(super) fn must_not_wait(&self) -> Result<bool> {
        let mut inner = self.inner.lock();
        if inner.is_quiet() {
            return Ok(false);
        }
        inner.progress(self);
        let State::Connected(connection) = &mut inner.state else { return Ok(false) };
        let mut armed = false;
        if !connection.is_ready() {
            armed = !connection.arm().map_err(errno_of)?;
            if !armed {
                connection.progress();
            }
        }
        let ready = connection.is_ready();
        inner.after_call();
        inner.armed = armed.then(Instant::now);
        Ok(ready)
    }

    /// Ends the stream, and waits as long as [`Linger`] allows until the peer's host has everything. The lock
    /// is released between two looks: a thread that reads the event queue may have found the endpoint there
    /// just before, and must not wait for the linger time.
    fn linger(&self) {
        let mut inner = self.inner.lock();
        inner.binding = None;
        let mut linger = Linger::since(inner.close_stream(), Config::get().linger);
        while inner.has_output() {
            drop(inner);
            let goes_on = linger.wait();
            inner = self.inner.lock();
            if !goes_on {
                log::warn!(target: "ep_ctrl", "closed before the peer took everything");
                inner.give_up();
                break;
            }
        }
    }

    fn attributes(&self) -> rdma_verbs::DeviceAttributes {
        self.domain.device().attributes()
    }

    /// Maximum number of bytes of the user's connection data that the device allows.
    fn user_data_room(&self) -> usize {
        user_data_room(&self.attributes())
    }
}

impl<D: Device> Inner<D> {
    /// Creates the queue pair and posts the receives.
    fn enable(&mut self, endpoint: &Endpoint<D>) -> Result<()> {
        match self.state {
            State::Open => {}
            State::Enabled(_) => return Ok(()),
            State::Connecting(_) => return Err(Errno::EALREADY),
            State::Connected(_) => return Err(Errno::EISCONN),
            State::Closed => return Err(Errno::EOPBADSTATE),
        }
        if self.binding.is_none() {
            return Err(Errno::ENOEQ);
        }
        let settings = endpoint.settings(self);
        let mut queue_pair = StreamQueuePair::open(endpoint.domain.device(), &settings).map_err(errno_of)?;
        if let Some(wait) = &self.wait {
            queue_pair.attach(Arc::clone(wait.wait_set())).map_err(errno_of)?;
        }
        self.state = State::Enabled(Box::new(queue_pair));
        Ok(())
    }

    /// The endpoint's descriptor, created on first use.
    fn descriptor(&mut self) -> Result<&Arc<WaitSet>> {
        if self.wait.is_none() {
            let wait = Arc::new(WaitSet::new().map_err(errno_of)?);
            self.attach(&wait).map_err(errno_of)?;
            self.wait = Some(wait.signal(wait.token()));
            // The device signals only what arrives after this point.
            if let State::Connected(connection) = &mut self.state {
                connection.progress();
            }
        }
        self.wait.as_ref().map(Signal::wait_set).ok_or(Errno::EIO)
    }

    fn attach(&mut self, wait: &Arc<WaitSet>) -> rdma_verbs::Result<()> {
        match &mut self.state {
            State::Enabled(queue_pair) => queue_pair.attach(Arc::clone(wait)),
            State::Connecting(handshake) => handshake.queue_pair_mut().attach(Arc::clone(wait)),
            State::Connected(connection) => connection.attach(Arc::clone(wait)),
            State::Open | State::Closed => Ok(()),
        }
    }

    fn queue_pair(&self) -> Option<&StreamQueuePair<D>> {
        match &self.state {
            State::Enabled(queue_pair) => Some(queue_pair),
            State::Connecting(handshake) => Some(handshake.queue_pair()),
            State::Connected(connection) => Some(connection.queue_pair()),
            State::Open | State::Closed => None,
        }
    }

    /// Ends every call: queues an event if the connection is over, and makes the descriptor readable exactly
    /// if a call would return something now.
    fn after_call(&mut self) {
        let State::Connected(connection) = &self.state else { return };
        if !self.shutdown_reported && connection.is_over() {
            self.shutdown_reported = true;
            if let Some(binding) = &self.binding {
                binding.push(Event::Shutdown { fid: binding.fid() });
            }
        }
        if let Some(wait) = &self.wait {
            wait.set(connection.is_ready());
        }
    }

    /// Whether the descriptor shows whatever comes, and shows nothing. Then nobody has to look before a
    /// sleep. That is not relied on for long, because a thread that does nothing but sleep drives the
    /// connection by its looks.
    fn is_quiet(&self) -> bool {
        self.armed.is_some_and(|armed| armed.elapsed() < ARMED)
            && self.connection().is_some_and(Connection::is_armed)
            && self.wait.as_ref().is_some_and(|wait| !wait.wait_set().is_readable())
    }

    fn connection(&self) -> Option<&Connection<D>> {
        match &self.state {
            State::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    /// The connection, also one that has ended.
    fn connected(&mut self) -> Result<&mut Connection<D>> {
        match &mut self.state {
            State::Connected(connection) => Ok(connection),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Writes the connection's statistics to the log.
    fn report(&self) {
        let Some(connection) = self.connection() else { return };
        let queue_pair = connection.queue_pair();
        if let (Some(local), Some(peer)) = (queue_pair.local_address(), queue_pair.peer_address()) {
            let stats = stats::of(connection.statistics());
            log::info!(target: "ep_ctrl", "{local} to {peer}: {}", stats::Line(stats));
        }
    }

    /// Closes both directions of the stream, if there is one. Returns when they were closed.
    fn close_stream(&mut self) -> Instant {
        match &mut self.state {
            State::Connected(connection) => connection.close(),
            _ => Instant::now(),
        }
    }

    /// Stops waiting. The peer still gets the bytes that the device has, and the end of the stream.
    fn give_up(&mut self) {
        if let State::Connected(connection) = &mut self.state {
            connection.disconnect();
        }
    }

    /// For an endpoint that is closing: whether the peer's host has not received everything yet.
    fn has_output(&mut self) -> bool {
        let State::Connected(connection) = &mut self.state else { return false };
        connection.progress();
        !connection.is_flushed()
    }
}

impl<D: Device> StatsOps for Endpoint<D> {
    fn stats(&self) -> Result<Stats> {
        Ok(self.inner.lock().connection().map(Connection::statistics).map_or_else(Stats::default, stats::of))
    }
}

impl<D: Device> Fid for Endpoint<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;

    fn opened(&self, handle: FidHandle) {
        // Called once, before any other call.
        let _ = self.handle.set(handle);
    }

    fn close(&self) -> Result<()> {
        // After a fork, only the process that opened the endpoint ends the connection.
        if self.maker.is_this_process() {
            self.linger();
            self.inner.lock().report();
        }
        let mut inner = self.inner.lock();
        inner.binding = None;
        inner.state = State::Closed;
        inner.membership = None;
        drop(inner);
        if let Some(request) = &self.request {
            request.abandon();
        }
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let fid = *self.handle.get().ok_or(Errno::EINVAL)?;
        Binding::make(&mut self.inner.lock().binding, other, flags, self, fid)
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        match command {
            Control::Enable => self.inner.lock().enable(self).map(|()| 0),
            command => wait::control(command, || {
                let mut inner = self.inner.lock();
                let fd = inner.descriptor()?.as_fd().as_raw_fd();
                inner.after_call();
                Ok(fd)
            }),
        }
    }
}

impl<D: Device> EndpointOps for Endpoint<D> {
    fn setopt(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        let open = matches!(inner.state, State::Open);
        options::set(&mut inner.sizes, (level, name), value, open, &self.attributes())
    }

    fn getopt(&self, level: i32, name: i32, out: &mut OptionOut<'_>) -> Result<()> {
        options::get(&self.inner.lock().sizes, (level, name), out, self.user_data_room())
    }
}
