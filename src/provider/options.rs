//! Endpoint options: `fi_setopt` and `fi_getopt` at `FI_OPT_ENDPOINT`.
//!
//! The sizes of rings and queues are kept by the endpoint until it is enabled, by a passive
//! endpoint for the endpoints accepted from it, and travel with a connection request.

use crate::abi::header::{
    RSTREAM_BUF_SIZE_DEFAULT, RSTREAM_BUF_SIZE_MAX, RSTREAM_BUF_SIZE_MIN, RSTREAM_QUEUE_SIZE_DEFAULT,
    RSTREAM_QUEUE_SIZE_MAX, RSTREAM_QUEUE_SIZE_MIN,
};
use crate::abi::info::{RxAttr, TxAttr};
use crate::abi::option::integer;
use crate::abi::{Errno, InfoRef, OptionOut, Result, constants};
use rdma_verbs::DeviceAttributes;
use rstream_protocol::{CONTROL_ENTRIES, LEAST_RECEIVES, WordFormat};

/// Sizes of an endpoint's rings in bytes and of its queues in entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    /// Send ring (`FI_OPT_SEND_BUF_SIZE`).
    pub(super) send_buffer: u32,
    /// Receive ring (`FI_OPT_RECV_BUF_SIZE`).
    pub(super) recv_buffer: u32,
    /// Data messages under way (`FI_OPT_TX_SIZE`).
    pub(super) send_depth: u16,
    /// Receives posted (`FI_OPT_RX_SIZE`).
    pub(super) recv_depth: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_buffer: RSTREAM_BUF_SIZE_DEFAULT,
            recv_buffer: RSTREAM_BUF_SIZE_DEFAULT,
            send_depth: DEFAULT_DEPTH,
            recv_depth: DEFAULT_DEPTH,
        }
    }
}

/// The options that this provider has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    SendBuffer,
    RecvBuffer,
    SendDepth,
    RecvDepth,
    CmDataSize,
}

impl Name {
    fn parse(level: i32, name: i32) -> Result<Self> {
        let (Ok(level), Ok(name)) = (u32::try_from(level), u32::try_from(name)) else {
            return Err(Errno::ENOPROTOOPT);
        };
        if level != constants::FI_OPT_ENDPOINT {
            return Err(Errno::ENOPROTOOPT);
        }
        match name {
            constants::FI_OPT_SEND_BUF_SIZE => Ok(Self::SendBuffer),
            constants::FI_OPT_RECV_BUF_SIZE => Ok(Self::RecvBuffer),
            constants::FI_OPT_TX_SIZE => Ok(Self::SendDepth),
            constants::FI_OPT_RX_SIZE => Ok(Self::RecvDepth),
            constants::FI_OPT_CM_DATA_SIZE => Ok(Self::CmDataSize),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// The lengths in bytes that a value of this option may have.
    fn lengths(self) -> &'static [usize] {
        match self {
            Self::SendBuffer | Self::RecvBuffer => &[4, 8],
            Self::SendDepth | Self::RecvDepth => &[2, 4, 8],
            Self::CmDataSize => &[size_of::<usize>()],
        }
    }
}

impl Options {
    /// Changes one option; `value` has the bytes of the caller's integer. `open` says whether the
    /// endpoint still takes changes.
    pub(super) fn set(
        &mut self,
        level: i32,
        name: i32,
        value: &[u8],
        open: bool,
        device: &DeviceAttributes,
    ) -> Result<()> {
        let name = Name::parse(level, name)?;
        if name == Name::CmDataSize {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = integer(value, name.lengths())?;
        if !open {
            return Err(Errno::EOPBADSTATE);
        }
        match name {
            Name::SendBuffer => self.send_buffer = buffer(value)?,
            Name::RecvBuffer => self.recv_buffer = buffer(value)?,
            Name::SendDepth => self.send_depth = depth(value, most_messages(device))?,
            Name::RecvDepth => self.recv_depth = depth(value, device.max_recv_depth)?,
            Name::CmDataSize => {}
        }
        Ok(())
    }

    /// Reads one option back; `user_data` is the room for the user's connection data in bytes.
    pub(super) fn get(&self, level: i32, name: i32, out: &mut OptionOut<'_>, user_data: usize) -> Result<()> {
        let name = Name::parse(level, name)?;
        let value = match name {
            Name::SendBuffer => u64::from(self.send_buffer),
            Name::RecvBuffer => u64::from(self.recv_buffer),
            Name::SendDepth => u64::from(self.send_depth),
            Name::RecvDepth => u64::from(self.recv_depth),
            Name::CmDataSize => user_data as u64,
        };
        out.put_integer(value, name.lengths())
    }

    /// Takes the queue depths that an info asks for; 0 leaves a value as it is.
    pub(super) fn with_depths_of(mut self, info: InfoRef<'_>, device: &DeviceAttributes) -> Result<Self> {
        let tx = info.tx_attr().map_or(0, TxAttr::size);
        let rx = info.rx_attr().map_or(0, RxAttr::size);
        if tx != 0 {
            self.send_depth = depth(tx as u64, most_messages(device))?;
        }
        if rx != 0 {
            self.recv_depth = depth(rx as u64, device.max_recv_depth)?;
        }
        Ok(self)
    }
}

fn buffer(value: u64) -> Result<u32> {
    let size = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
    let allowed = RSTREAM_BUF_SIZE_MIN..=RSTREAM_BUF_SIZE_MAX;
    if allowed.contains(&size) { Ok(size) } else { Err(Errno::EINVAL) }
}

/// Data messages for which the device's send queue has room beside the entries kept for control,
/// whichever words announce them.
fn most_messages(device: &DeviceAttributes) -> u32 {
    device.max_send_depth.saturating_sub(CONTROL_ENTRIES) / WordFormat::Iwarp.data_entries()
}

fn depth(value: u64, most: u32) -> Result<u16> {
    let allowed = u64::from(RSTREAM_QUEUE_SIZE_MIN)..=u64::from(most.min(RSTREAM_QUEUE_SIZE_MAX));
    if !allowed.contains(&value) {
        return Err(Errno::EINVAL);
    }
    u16::try_from(value).map_err(|_| Errno::EINVAL)
}

/// As the header has it; the constant's type there is that of all sizes.
const DEFAULT_DEPTH: u16 = RSTREAM_QUEUE_SIZE_DEFAULT as u16;

// The fewest queue entries are what the stream protocol needs.
const _: () = assert!(RSTREAM_QUEUE_SIZE_MIN == LEAST_RECEIVES as u32);
