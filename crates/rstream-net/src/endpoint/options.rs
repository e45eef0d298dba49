//! How streams and listeners are made.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use rdma_verbs::{AnyDevice, ConnectOptions, Device, DeviceAttributes, iwarp};
use rstream_protocol::LEAST_RECEIVES;
use rstream_session::{Settings, Sizes, prepare, run, user_data_room};

use super::attempt::Attempt;
use super::error::of_device;
use super::{Listener, Stream};

/// The options of a stream that connects, or of a listener and the streams that it accepts. The defaults are
/// those of the libfabric provider.
#[derive(Clone)]
pub struct Options {
    pub(super) device: AnyDevice,
    sizes: Sizes,
    pub(super) data: Vec<u8>,
    source: Option<SocketAddr>,
    shares_memory: bool,
    pub(super) connect: ConnectOptions,
    pub(super) linger: Duration,
    pub(super) backlog: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: iwarp::Device::default().into(),
            sizes: Sizes::DEFAULT,
            data: Vec::new(),
            source: None,
            shares_memory: true,
            connect: ConnectOptions { timeout: Duration::from_secs(10), keepalive: Duration::from_secs(30) },
            linger: Duration::from_secs(5),
            backlog: 1024,
        }
    }
}

impl Options {
    /// The defaults: the embedded device, rings of 32 KiB, and queues of 384 messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The device. [`devices`](super::devices) lists those of this machine, and both ends need devices of one
    /// transport.
    #[must_use]
    pub fn device(mut self, device: impl Into<AnyDevice>) -> Self {
        self.device = device.into();
        self
    }

    /// Bytes of the send ring and of the receive ring, at least 1. In shared memory the receive ring of the
    /// peer is what there is to send to.
    #[must_use]
    pub fn rings(mut self, send: u32, receive: u32) -> Self {
        (self.sizes.send_buffer, self.sizes.recv_buffer) = (send, receive);
        self
    }

    /// Entries of the send queue and of the receive queue, in messages, at least 3.
    #[must_use]
    pub fn depths(mut self, send: u16, receive: u16) -> Self {
        (self.sizes.send_depth, self.sizes.recv_depth) = (send, receive);
        self
    }

    /// Connection data for the peer, which has it as [`Stream::peer_data`]: that of the request if the stream
    /// connects, else that of the reply. A peer that speaks the first version of the protocol gets none.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = data.into();
        self
    }

    /// Bytes of connection data that the device has room for, in each direction and in a reject.
    #[must_use]
    pub fn data_room(&self) -> usize {
        user_data_room(&self.device.attributes())
    }

    /// The local address from which to connect.
    #[must_use]
    pub fn local_addr(mut self, address: SocketAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Whether the embedded device may share memory with a peer on the same host. It may by default.
    #[must_use]
    pub fn share_memory(mut self, share: bool) -> Self {
        self.shares_memory = share;
        self
    }

    /// How long a connection attempt may take; 10 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect.timeout = limit;
        self
    }

    /// Silence after which a peer's host is probed; 30 s by default. One that vanished is noticed within twice
    /// this time by calls that are made or that wait.
    #[must_use]
    pub fn keepalive(mut self, silence: Duration) -> Self {
        self.connect.keepalive = silence;
        self
    }

    /// How long dropping a stream waits for the peer's host to take what was written; 5 s by default. All
    /// streams of the process draw on one allowance of that length.
    #[must_use]
    pub fn linger(mut self, limit: Duration) -> Self {
        self.linger = limit;
        self
    }

    /// Requests that may wait for [`Listener::accept`]; 1024 by default.
    #[must_use]
    pub fn backlog(mut self, requests: u32) -> Self {
        self.backlog = requests;
        self
    }

    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::connect`]; [`Rejected`](super::Rejected) if the peer did so;
    /// [`InvalidInput`](ErrorKind::InvalidInput) for sizes or data that the device does not have;
    /// [`InvalidData`](ErrorKind::InvalidData) if the peer speaks another protocol.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<Stream> {
        first(address.to_socket_addrs()?, |address| {
            let mut attempt = Attempt::connect(self, address)?;
            loop {
                if let Some(outcome) = attempt.poll() {
                    return outcome.map(Stream::new);
                }
                attempt.wait()?;
            }
        })
    }

    /// Listens at the first of the addresses that can be had.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::bind`]; [`InvalidInput`](ErrorKind::InvalidInput) for sizes or data
    /// that the device does not have.
    pub fn bind(&self, address: impl ToSocketAddrs) -> io::Result<Listener> {
        self.settings()?;
        first(address.to_socket_addrs()?, |address| Listener::new(self.clone(), address))
    }

    /// The settings of the session, if the device can have these sizes and this data.
    pub(super) fn settings(&self) -> io::Result<Settings> {
        let attributes = self.device.attributes();
        self.check(&attributes)?;
        let share_memory = self.shares_memory && matches!(self.device, AnyDevice::Embedded(_));
        if share_memory {
            prepare();
        }
        Ok(Settings {
            sizes: self.sizes,
            force_iwarp: false,
            share_memory,
            connect: self.connect.clone(),
            at_cancellation_point: run,
        })
    }

    pub(super) fn source(&self) -> Option<SocketAddr> {
        self.source
    }

    fn check(&self, device: &DeviceAttributes) -> io::Result<()> {
        let Sizes { send_buffer, recv_buffer, send_depth, recv_depth } = self.sizes;
        let (least, data) = (LEAST_RECEIVES.into(), u32::try_from(self.data.len()).unwrap_or(u32::MAX));
        for (what, value, least, most) in [
            ("send ring", send_buffer, 1, u32::MAX),
            ("receive ring", recv_buffer, 1, u32::MAX),
            ("send depth", send_depth.into(), least, Sizes::most_sends(device)),
            ("receive depth", recv_depth.into(), least, device.max_recv_depth),
            ("connection data", data, 0, user_data_room(device) as u32),
            ("backlog", self.backlog, 1, u32::MAX),
        ] {
            if !(least..=most).contains(&value) {
                let (value, least, most) = (value.into(), least.into(), most.into());
                return Err(of_device(rdma_verbs::Error::OutOfRange { what, value, least, most }));
            }
        }
        Ok(())
    }
}

/// The first outcome that is no error, or the last error.
fn first<T>(
    addresses: impl Iterator<Item = SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut outcome = Err(io::Error::new(ErrorKind::InvalidInput, "there is no address"));
    for address in addresses {
        outcome = attempt(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
