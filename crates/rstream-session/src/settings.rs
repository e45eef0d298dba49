//! The settings of a stream.

use rdma_verbs::{ConnectOptions, DeviceAttributes, Transport};
use rstream_protocol::{Side, WordFormat};

/// Sizes of a stream's rings in bytes and of its queues in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the send ring.
    pub send_buffer: u32,
    /// Bytes of the receive ring.
    pub recv_buffer: u32,
    /// Most outstanding data messages.
    pub send_depth: u16,
    /// Posted receives.
    pub recv_depth: u16,
}

impl Sizes {
    /// Rings of 32 KiB and queues of 384 messages.
    pub const DEFAULT: Self =
        Self { send_buffer: 1 << 15, recv_buffer: 1 << 15, send_depth: 384, recv_depth: 384 };

    /// Greatest [`Sizes::send_depth`] on this device.
    #[must_use]
    pub fn most_sends(device: &DeviceAttributes) -> u32 {
        Side::most_messages(device.max_send_depth)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How a stream connects.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Sizes of this side.
    pub sizes: Sizes,
    /// Whether words are sent as four-byte sends although the device has immediate data.
    pub force_iwarp: bool,
    /// Whether memory may be shared with a peer on this host.
    pub share_memory: bool,
    /// The options of the device.
    pub connect: ConnectOptions,
    /// Runs code that may contain a cancellation point of the C library (`pthreads(7)`) within a call that
    /// moves bytes: it comes to share memory. A program that does not cancel threads uses [`run`].
    pub at_cancellation_point: fn(&mut dyn FnMut()),
}

/// Runs `body`.
pub fn run(body: &mut dyn FnMut()) {
    body();
}

impl Settings {
    /// Whether memory may be shared: it is allowed, and words are not forced to be sends.
    pub(crate) fn shares_memory(&self) -> bool {
        self.share_memory && !self.force_iwarp
    }

    /// The protocol's description of this side.
    pub(crate) fn side(&self, device: &DeviceAttributes) -> Side {
        let Sizes { send_buffer, recv_buffer, send_depth, recv_depth } = self.sizes;
        Side {
            ring: recv_buffer,
            receives: recv_depth,
            send_ring: send_buffer,
            messages: send_depth,
            has_immediates: device.immediate >= 32,
            transport_base: match device.transport {
                Transport::InfiniBand => WordFormat::Immediate,
                Transport::Iwarp => WordFormat::Iwarp,
            },
            forces_iwarp: self.force_iwarp,
        }
    }
}
