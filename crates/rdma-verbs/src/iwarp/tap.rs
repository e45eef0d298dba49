//! A capture of the bytes that the embedded device sends and receives. It needs no privileges: the device
//! writes a pcap file, with made-up headers of TCP and IP around the bytes of each connection.
//!
//! The packets show the calls of the device on its sockets: they show neither retransmissions of TCP nor its
//! delays. A packet from the peer acknowledges the bytes that the system reports as acknowledged when the
//! device receives it.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::Mutex;
use rustix::io::{Errno, retry_on_intr};

use crate::descriptor::Descriptor;

static CAPTURE: OnceLock<Capture> = OnceLock::new();

/// The file; `None` once a write to it has failed.
#[derive(Debug)]
struct Capture(Mutex<Option<Descriptor>>);

/// Captures into a file what connections of this process send and receive from now on. Only the user may read
/// the file, because it contains memory of applications, and keys to more of it.
///
/// # Errors
/// The file exists or cannot be written, or the process captures already.
pub fn capture_to(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    let file = Descriptor::from(OwnedFd::from(file));
    // Version 2.4, times in nanoseconds, packets without a link's header.
    let header = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, u32::MAX, 101].map(u32::to_le_bytes);
    write_all(&file, header.as_flattened())?;
    CAPTURE.set(Capture(Mutex::new(Some(file)))).map_err(|_| Errno::EXIST.into())
}

impl Capture {
    /// Writes a record. If the file has no room for it, the capture ends in the middle of the record.
    /// Connections continue.
    fn write(&self, record: &[u8]) {
        let mut file = self.0.lock();
        if let Some(Err(error)) = file.as_ref().map(|file| write_all(file, record)) {
            log::warn!("iwarp: the capture ends before its connections do: {error}");
            *file = None;
        }
    }
}

/// Writes by system calls of its own, because the C library's `write` is a cancellation point (see [`Descriptor`]).
fn write_all(file: &Descriptor, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match retry_on_intr(|| rustix::io::write(file.as_fd(), bytes))? {
            0 => return Err(Errno::NOSPC),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// Longest payload of a packet.
const SEGMENT: usize = 32 << 10;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RESET: u8 = 0x04;
const ACK: u8 = 0x10;

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

/// One connection in the capture. All owners of the socket share it.
#[derive(Debug)]
pub(super) struct Tap {
    capture: &'static Capture,
    /// Whether this side requested the connection.
    active: bool,
    /// Addresses of this side and of the peer, set before the first packet.
    ends: OnceLock<[SocketAddr; 2]>,
    /// Numbers of bytes so far.
    sent: AtomicU32,
    received: AtomicU32,
    /// Whether this side and the peer have sent their last packet.
    ended: [AtomicBool; 2],
}

impl Tap {
    /// A connection; `None` without a capture.
    pub(super) fn new(active: bool) -> Option<Box<Self>> {
        let capture = CAPTURE.get()?;
        let (sent, received, ended) = Default::default();
        Some(Box::new(Self { capture, active, ends: OnceLock::new(), sent, received, ended }))
    }

    /// Records that the first `count` bytes of these pieces were sent.
    pub(super) fn sent(
        &self,
        ends: impl FnOnce() -> Option<[SocketAddr; 2]>,
        pieces: &[IoSlice<'_>],
        count: usize,
    ) {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).take(count).collect();
        self.begin(ends);
        for chunk in bytes.chunks(SEGMENT) {
            self.packet(Side::Here, ACK, chunk, 0);
            self.sent.fetch_add(chunk.len() as u32, Relaxed);
        }
    }

    /// Records received bytes; none: the end of the stream. `unacknowledged`: number of sent bytes that the
    /// peer has not acknowledged yet.
    pub(super) fn received(
        &self,
        ends: impl FnOnce() -> Option<[SocketAddr; 2]>,
        bytes: &[u8],
        unacknowledged: usize,
    ) {
        self.begin(ends);
        if bytes.is_empty() {
            self.end(Side::There, FIN);
        }
        for chunk in bytes.chunks(SEGMENT) {
            self.packet(Side::There, ACK, chunk, unacknowledged as u32);
            self.received.fetch_add(chunk.len() as u32, Relaxed);
        }
    }

    /// Records that this side sends no more.
    pub(super) fn finished(&self) {
        self.end(Side::Here, FIN);
    }

    /// Records that this side resets the connection.
    pub(super) fn reset(&self) {
        self.end(Side::Here, RESET);
    }

    /// Writes TCP's handshake, once.
    fn begin(&self, ends: impl FnOnce() -> Option<[SocketAddr; 2]>) {
        if self.ends.get().is_some() {
            return;
        }
        let Some(ends) = ends() else { return };
        if self.ends.set(ends).is_ok() {
            let (first, second) =
                if self.active { (Side::Here, Side::There) } else { (Side::There, Side::Here) };
            for (from, flags) in [(first, SYN), (second, SYN | ACK), (first, ACK)] {
                self.packet(from, flags, &[], 0);
            }
        }
    }

    fn end(&self, from: Side, flag: u8) {
        if !self.ended[from as usize].swap(true, Relaxed) {
            self.packet(from, ACK | flag, &[], 0);
        }
    }

    /// Writes a packet. `unacknowledged`: number of bytes of this side that the packet does not acknowledge.
    fn packet(&self, from: Side, flags: u8, payload: &[u8], unacknowledged: u32) {
        let Some([here, there]) = self.ends.get() else { return };
        // The first byte of each direction has sequence number 1. SYN has number 0.
        let [sent, received] = [&self.sent, &self.received].map(|count| count.load(Relaxed).wrapping_add(1));
        let (source, destination, sequence, acknowledgement) = match from {
            Side::Here => (here, there, sent, received),
            Side::There => (there, here, received, sent.wrapping_sub(unacknowledged)),
        };
        let sequence = sequence.wrapping_sub(u32::from(flags & SYN != 0));
        let acknowledgement = if flags & ACK == 0 { 0 } else { acknowledgement };
        let tcp = 20 + payload.len();
        let network = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let length = ((20 + tcp) as u16).to_be_bytes();
                let rest = [0, 0, 0x40, 0, 64, 6, 0, 0];
                [&[0x45, 0][..], &length, &rest, &source.octets(), &destination.octets()].concat()
            }
            (source, destination) => {
                let [source, destination] = [source, destination].map(|address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                });
                [&[0x60, 0, 0, 0][..], &(tcp as u16).to_be_bytes(), &[6, 64], &source, &destination].concat()
            }
        };
        let ports = [source.port(), destination.port()].map(u16::to_be_bytes);
        let numbers = [sequence, acknowledgement].map(u32::to_be_bytes);
        let rest = [0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let length = (network.len() + tcp) as u32;
        let header = [time.as_secs() as u32, time.subsec_nanos(), length, length].map(u32::to_le_bytes);
        let headers = [header.as_flattened(), &network, ports.as_flattened(), numbers.as_flattened(), &rest];
        self.capture.write(&headers.into_iter().chain([payload]).collect::<Vec<_>>().concat());
    }
}
