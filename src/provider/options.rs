//! Endpoint options: `fi_setopt` and `fi_getopt` at `FI_OPT_ENDPOINT`.
//!
//! An endpoint keeps the sizes of its rings and queues until it is enabled. A passive endpoint keeps those of
//! the endpoints accepted from it, and they travel with a connection request.

use rdma_verbs::DeviceAttributes;
use rstream_protocol::LEAST_RECEIVES;
use rstream_session::Sizes;

use crate::abi::header::{
    RSTREAM_BUF_SIZE_DEFAULT, RSTREAM_BUF_SIZE_MAX, RSTREAM_BUF_SIZE_MIN, RSTREAM_QUEUE_SIZE_DEFAULT,
    RSTREAM_QUEUE_SIZE_MAX, RSTREAM_QUEUE_SIZE_MIN,
};
use crate::abi::info::{RxAttr, TxAttr};
use crate::abi::option::integer;
use crate::abi::{Errno, InfoRef, OptionOut, Result, constants};

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

/// Changes one option. `value` has the bytes of the caller's integer. `open` says whether the endpoint still
/// allows changes.
pub(super) fn set(
    sizes: &mut Sizes,
    (level, name): (i32, i32),
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
        Name::SendBuffer => sizes.send_buffer = buffer(value)?,
        Name::RecvBuffer => sizes.recv_buffer = buffer(value)?,
        Name::SendDepth => sizes.send_depth = depth(value, Sizes::most_sends(device))?,
        Name::RecvDepth => sizes.recv_depth = depth(value, device.max_recv_depth)?,
        Name::CmDataSize => {}
    }
    Ok(())
}

/// Reads one option back; `user_data` is the room for the user's connection data in bytes.
pub(super) fn get(
    sizes: &Sizes,
    (level, name): (i32, i32),
    out: &mut OptionOut<'_>,
    user_data: usize,
) -> Result<()> {
    let name = Name::parse(level, name)?;
    let value = match name {
        Name::SendBuffer => u64::from(sizes.send_buffer),
        Name::RecvBuffer => u64::from(sizes.recv_buffer),
        Name::SendDepth => u64::from(sizes.send_depth),
        Name::RecvDepth => u64::from(sizes.recv_depth),
        Name::CmDataSize => user_data as u64,
    };
    out.put_integer(value, name.lengths())
}

/// `sizes` with the queue depths that an info asks for; 0 leaves a depth as it is.
pub(super) fn with_depths_of(
    mut sizes: Sizes,
    info: InfoRef<'_>,
    device: &DeviceAttributes,
) -> Result<Sizes> {
    let tx = info.tx_attr().map_or(0, TxAttr::size);
    let rx = info.rx_attr().map_or(0, RxAttr::size);
    if tx != 0 {
        sizes.send_depth = depth(tx as u64, Sizes::most_sends(device))?;
    }
    if rx != 0 {
        sizes.recv_depth = depth(rx as u64, device.max_recv_depth)?;
    }
    Ok(sizes)
}

fn buffer(value: u64) -> Result<u32> {
    let size = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
    let allowed = RSTREAM_BUF_SIZE_MIN..=RSTREAM_BUF_SIZE_MAX;
    if allowed.contains(&size) { Ok(size) } else { Err(Errno::EINVAL) }
}

fn depth(value: u64, most: u32) -> Result<u16> {
    let allowed = u64::from(RSTREAM_QUEUE_SIZE_MIN)..=u64::from(most.min(RSTREAM_QUEUE_SIZE_MAX));
    if !allowed.contains(&value) {
        return Err(Errno::EINVAL);
    }
    u16::try_from(value).map_err(|_| Errno::EINVAL)
}

// The public header and the crates below agree: what is the default, and that the fewest queue entries are
// what the stream protocol needs.
const _: () = assert!(RSTREAM_QUEUE_SIZE_MIN == LEAST_RECEIVES as u32);
const _: () = {
    let Sizes { send_buffer, recv_buffer, send_depth, recv_depth } = Sizes::DEFAULT;
    assert!(send_buffer == RSTREAM_BUF_SIZE_DEFAULT && recv_buffer == RSTREAM_BUF_SIZE_DEFAULT);
    assert!(
        send_depth as u32 == RSTREAM_QUEUE_SIZE_DEFAULT && recv_depth as u32 == RSTREAM_QUEUE_SIZE_DEFAULT
    );
};
