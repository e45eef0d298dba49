//! A connection that is being established.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::{AnyDevice, Device, EventTarget, Interest, Timer, WaitSet};
use rstream_protocol::RefusalReason;
use rstream_session::{Connection, Handshake, Outcome, Peer, Settings, Started, StreamQueuePair, refusal};

use super::core::{Core, Descriptors};
use super::error::{of_attempt, of_device, of_reject, of_reject_of_kind, of_start};
use super::options::Options;
use rdma_verbs::ConnectionRequest as _;

/// The device's request of a peer.
pub(super) type DeviceRequest = <AnyDevice as Device>::Request;

/// A connection attempt of either side. The descriptor of the later stream becomes readable when to poll it.
pub(super) struct Attempt {
    /// `None` once it is over.
    handshake: Option<Box<Handshake<AnyDevice>>>,
    descriptors: Descriptors,
    /// Expires at the deadline of the handshake. It is in the set of the descriptor.
    timer: Timer,
    deadline: Option<Instant>,
    /// What the stream needs to know beside its connection.
    peer_data: Vec<u8>,
    linger: std::time::Duration,
}

impl Attempt {
    /// Starts to connect.
    pub(super) fn connect(options: &Options, address: SocketAddr) -> io::Result<Self> {
        let settings = options.settings()?;
        let (descriptors, queue_pair) = open(options, &settings)?;
        let events = EventTarget::new(&descriptors.shown);
        let (to, device) = ((address, options.source()), options.device.attributes());
        let started = Handshake::connect(queue_pair, to, &options.data, settings, device, events);
        Self::begun(options, descriptors, started, Vec::new())
    }

    /// Starts to accept a peer that sent `peer_data`, and answers with `data`.
    pub(super) fn accept(
        options: &Options,
        (request, peer): (DeviceRequest, Peer),
        peer_data: Vec<u8>,
        data: &[u8],
    ) -> io::Result<Self> {
        let settings = options.settings()?;
        let (descriptors, queue_pair) = match open(options, &settings) {
            Ok(opened) => opened,
            Err(error) => {
                request.reject(&refusal(RefusalReason::Resources, &[]).unwrap_or_default());
                return Err(error);
            }
        };
        let events = EventTarget::new(&descriptors.shown);
        let (from, device) = ((request, peer), options.device.attributes());
        let data = if peer.is_extended() { data } else { &[] };
        let started = Handshake::accept(queue_pair, from, data, settings, device, events);
        Self::begun(options, descriptors, started, peer_data)
    }

    fn begun(
        options: &Options,
        descriptors: Descriptors,
        started: Started<AnyDevice>,
        peer_data: Vec<u8>,
    ) -> io::Result<Self> {
        let handshake = started.map_err(|(_, error)| of_start(error))?;
        let timer = Timer::new().map_err(of_device)?;
        let shown = &descriptors.shown;
        shown.add(timer.as_fd(), shown.token(), Interest::Read).map_err(of_device)?;
        let (handshake, linger) = (Some(handshake), options.linger);
        let mut attempt = Self { handshake, descriptors, timer, deadline: None, peer_data, linger };
        attempt.set_timer()?;
        Ok(attempt)
    }

    /// The set that becomes readable when to poll.
    pub(super) fn descriptor(&self) -> &Arc<WaitSet> {
        &self.descriptors.shown
    }

    /// Waits until the attempt is to be polled.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.descriptor().wait(None, &mut Vec::new()).map_err(of_device).map(drop)
    }

    /// Drives the attempt. `None`: it continues.
    pub(super) fn poll(&mut self) -> Option<io::Result<Core>> {
        match self.handshake.take()?.poll() {
            Err(handshake) => {
                self.handshake = Some(handshake);
                self.set_timer().err().map(Err)
            }
            Ok(Outcome::Connected(connection, data)) => Some(self.finish(connection, data)),
            Ok(Outcome::Rejected(reason, data)) => Some(Err(of_reject(reason, data))),
            Ok(Outcome::RejectedKind) => Some(Err(of_reject_of_kind())),
            Ok(Outcome::Failed(error)) => Some(Err(of_attempt(error))),
            Ok(Outcome::BadParameters(why)) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, why))),
        }
    }

    fn finish(&mut self, connection: Box<Connection<AnyDevice>>, data: Vec<u8>) -> io::Result<Core> {
        self.timer.set(None).map_err(of_device)?;
        if !data.is_empty() {
            self.peer_data = data;
        }
        Core::new(connection, self.descriptors.clone(), std::mem::take(&mut self.peer_data), self.linger)
    }

    /// An expired timer is readable until it is set again.
    fn set_timer(&mut self) -> io::Result<()> {
        let deadline = self.handshake.as_ref().and_then(|handshake| handshake.queue_pair().deadline());
        if deadline != self.deadline {
            self.deadline = deadline;
            self.timer.set(deadline).map_err(of_device)?;
        }
        Ok(())
    }
}

/// The descriptors of a stream, and its queue pair.
fn open(
    options: &Options,
    settings: &Settings,
) -> io::Result<(Descriptors, Box<StreamQueuePair<AnyDevice>>)> {
    let descriptors = Descriptors::new().map_err(of_device)?;
    let mut queue_pair = StreamQueuePair::open(&options.device, settings).map_err(of_device)?;
    queue_pair.attach(Arc::clone(&descriptors.sleep)).map_err(of_device)?;
    Ok((descriptors, Box::new(queue_pair)))
}
