//! The embedded device: iWARP in user space, over a TCP socket of the process.
//!
//! It implements MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040) and the immediate data of RFC
//! 7306. It interoperates with other implementations, among them siw of the Linux kernel. It has no thread of
//! its own: the calls of the application drive it.
//!
//! | layer | modules |
//! |---|---|
//! | bytes | [`iwarp_wire`]: checked parse to plain values, and `emit` |
//! | state without input or output | [`handshake`], [`machine`] |
//! | memory | [`region`]: keys, rights, bounds |
//! | listeners and sockets | `listener`, `request_sockets`, `handshake_limit`, `socket`, `halves`, `tap`, `tcp`, `liveness` |
//! | queues | `queue`, `queue_pair`, `cork`, `connecting`, `membership`, `notification`, `scratch` |

mod connecting;
mod cork;
mod halves;
pub mod handshake;
mod handshake_limit;
mod listener;
mod liveness;
pub mod machine;
mod membership;
mod notification;
mod queue;
mod queue_pair;
pub mod region;
mod request_sockets;
mod scratch;
mod socket;
mod tap;
#[allow(unsafe_code)]
mod tcp;

use std::net::SocketAddr;

pub use listener::{ConnectionRequest, Listener};
pub use queue::CompletionQueue;
pub use region::{MemoryRegion, ProtectionDomain};
pub use tap::capture_to;

use iwarp_wire::{ddp, mpa};

use super::{ConnectOptions, DeviceAttributes, Error, EventTarget, PrivateDataLimits, Result, Transport};

/// Maximum depth of a send or receive queue.
const MAX_DEPTH: u32 = 1 << 18;
/// Maximum inline payload of one request, in bytes.
const MAX_INLINE: usize = u32::MAX as usize;
/// Number of completions for which an idle queue keeps memory.
const KEPT_COMPLETIONS: usize = 16;
/// Maximum private data that librdmacm can pass on, including the parameters of revision 2.
const PRIVATE_DATA: usize = 255;

/// Configuration of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// MPA revision of connection requests, 1 or 2. A reply has the revision of its request.
    pub mpa_revision: u8,
    /// Whether this side requests CRC32c. Both sides use it if either requests it.
    pub crc: bool,
    /// Maximum payload of a segment, in bytes. The default is the maximum of the protocol, which is the
    /// fastest over loopback: `benches/iwarp_vs_tcp.rs` carried up to 7 % less with 32 KiB, and a fifth less
    /// with 16 KiB.
    pub segment: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { mpa_revision: mpa::MAX_REVISION, crc: false, segment: ddp::MAX_TAGGED_PAYLOAD }
    }
}

/// The embedded device.
#[derive(Debug, Clone, Default)]
pub struct Device {
    config: Config,
}

impl Device {
    /// A device with this configuration.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an MPA revision that is not supported, or a payload of 0 or above the
    /// maximum.
    pub fn new(config: Config) -> Result<Self> {
        let limits = [
            ("MPA revision", u64::from(config.mpa_revision), u64::from(mpa::MAX_REVISION)),
            ("segment payload", config.segment as u64, ddp::MAX_TAGGED_PAYLOAD as u64),
        ];
        for (what, value, most) in limits {
            if !(1..=most).contains(&value) {
                return Err(Error::OutOfRange { what, value, least: 1, most });
            }
        }
        Ok(Self { config })
    }
}

impl super::Device for Device {
    const CANCELLATION_POINTS: bool = false;
    const LOCAL_KEYS: bool = false;

    type Pd = ProtectionDomain;
    type Mr = MemoryRegion;
    type Cq = CompletionQueue;
    type Listener = Listener;
    type Request = ConnectionRequest;

    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            name: "iwarp",
            transport: Transport::Iwarp,
            immediate: 64,
            max_places: machine::MAX_PLACES,
            max_inline: MAX_INLINE,
            max_inline_depth: MAX_DEPTH,
            max_send_depth: MAX_DEPTH,
            max_recv_depth: MAX_DEPTH,
            max_srq_depth: MAX_DEPTH,
            max_completions: u32::MAX,
            max_any_depth: u32::MAX,
            private_data: PrivateDataLimits::same(max_private_data(self.config.mpa_revision)),
            max_message: machine::MAX_MESSAGE,
            private_read_sinks: true,
        }
    }

    fn alloc_pd(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain::default())
    }

    fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        Ok(CompletionQueue::new(self.config, depth))
    }

    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Listener> {
        Listener::new(address, backlog, options, events)
    }
}

/// Maximum number of bytes of the user's private data in a frame of this revision.
fn max_private_data(revision: u8) -> usize {
    if revision >= 2 { PRIVATE_DATA - mpa::ENHANCED } else { PRIVATE_DATA }
}
