//! Violations of the protocol by a peer on an established connection, and the Terminate message that reports
//! each.

use crate::iwarp::region::RegionFault;
use iwarp_wire::ddp::HeaderError;
use iwarp_wire::rdmap::{ControlError, Opcode, Terminate};

/// Why the machine stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The peer violated the protocol or a bound. Terminate reports that to it.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The peer reports a violation by this side.
    #[error("{0}")]
    Terminated(Terminate),
}

/// The operation for which a peer names a region of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
}

/// A violation of the protocol or of a bound by the peer, or a fault of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Wrong CRC of an FPDU.
    #[error("CRC {found:#010x} instead of {expected:#010x}")]
    Crc {
        /// The value received.
        found: u32,
        /// The value computed.
        expected: u32,
    },
    /// Invalid header of a segment.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Invalid control byte of a segment.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// An opcode that is not allowed in this kind of segment.
    #[error("opcode {opcode:?} in a {} segment", if *.tagged { "tagged" } else { "untagged" })]
    Opcode {
        /// Opcode found.
        opcode: Opcode,
        /// Kind of segment.
        tagged: bool,
    },
    /// An untagged message on the wrong queue.
    #[error("opcode {opcode:?} on queue {found} instead of {expected}")]
    Queue {
        /// Opcode found.
        opcode: Opcode,
        /// Queue found.
        found: u32,
        /// Its queue.
        expected: u32,
    },
    /// Wrong sequence number of an untagged message.
    #[error("message {found} on queue {queue} instead of {expected}")]
    Sequence {
        /// Queue.
        queue: u32,
        /// Number found.
        found: u32,
        /// Number that is next.
        expected: u32,
    },
    /// Wrong offset within an untagged message.
    #[error("segment at {found} of its message instead of {expected}")]
    MessageOffset {
        /// Offset found.
        found: u32,
        /// Offset that is next.
        expected: u32,
    },
    /// A message for which no receive is posted.
    #[error("message {sequence} found no receive")]
    NoReceive {
        /// Its sequence number.
        sequence: u32,
    },
    /// A message longer than its receive.
    #[error("message of {length} bytes or more for a receive of {room}")]
    TooLong {
        /// Length of the message up to the end of the segment.
        length: u64,
        /// Bytes of the receive.
        room: u32,
    },
    /// A message of the wrong length, or in more than one segment.
    #[error("{opcode:?} of {found} bytes instead of {expected} in one segment")]
    Length {
        /// Opcode.
        opcode: Opcode,
        /// Length found.
        found: usize,
        /// Length required.
        expected: usize,
    },
    /// A key that names no region.
    #[error("{purpose:?} with STag {stag:#010x}, which names nothing")]
    Stag {
        /// For what.
        purpose: Purpose,
        /// Key given.
        stag: u32,
    },
    /// A region without the right, or too short.
    #[error("{purpose:?} of {length} bytes at {offset} with STag {stag:#010x}: {fault}")]
    Region {
        /// For what.
        purpose: Purpose,
        /// Key given.
        stag: u32,
        /// Offset given.
        offset: u64,
        /// Bytes.
        length: u64,
        /// What is wrong with it.
        fault: RegionFault,
    },
    /// A key that the peer invalidates and that was not valid.
    #[error("STag {0:#010x} cannot be invalidated")]
    Invalidate(u32),
    /// A Read Response to no outstanding read, or for another place.
    #[error(
        "Read Response of {length} bytes at {offset} of STag {stag:#010x} instead of {expected} at {place}"
    )]
    Response {
        /// Key given.
        stag: u32,
        /// Offset given.
        offset: u64,
        /// Bytes.
        length: usize,
        /// Bytes that are outstanding there.
        expected: u32,
        /// Where they are expected.
        place: u64,
    },
    /// More reads than this side agreed to serve.
    #[error("more reads at a time than the {limit} agreed")]
    Reads {
        /// Reads agreed.
        limit: u8,
    },
    /// The local memory of a message was deregistered before the message was complete.
    #[error("local key {0:#010x} died under a message")]
    LocalKey(u32),
    /// A place of a message cannot be read.
    #[error("memory of a message cannot be read")]
    LocalPlace,
    /// A place for what arrives cannot be written.
    #[error("memory for what arrives cannot be written")]
    LocalTarget,
    /// There is no memory for output that the socket does not take, or for incomplete input.
    #[error("no memory for bytes that have to wait")]
    NoMemory,
}

impl Violation {
    /// Whether the cause is on this side.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::LocalKey(_) | Self::LocalPlace | Self::LocalTarget | Self::NoMemory)
    }

    /// The Terminate message that reports it to the peer [RFC 5040 4.8-3] [RFC 5041 7.2-1] [RFC 5044 8-4].
    #[must_use]
    pub fn terminate(&self) -> Terminate {
        match *self {
            Self::Crc { .. } => Terminate::CRC,
            Self::Header(HeaderError::Short { .. }) => Terminate::FPDU_LENGTH,
            Self::Header(HeaderError::Version { tagged: true, .. }) => Terminate::TAGGED_VERSION,
            Self::Header(HeaderError::Version { tagged: false, .. }) => Terminate::UNTAGGED_VERSION,
            Self::Control(ControlError::Version(_)) => Terminate::RDMAP_VERSION,
            Self::Control(ControlError::Opcode(_)) | Self::Opcode { .. } => Terminate::OPCODE,
            Self::Queue { .. } => Terminate::QUEUE,
            Self::Sequence { .. } => Terminate::SEQUENCE,
            Self::MessageOffset { .. } => Terminate::MESSAGE_OFFSET,
            Self::NoReceive { .. } | Self::Reads { .. } => Terminate::NO_BUFFER,
            Self::TooLong { .. } => Terminate::TOO_LONG,
            Self::Length { .. } => Terminate::RDMAP_UNSPECIFIED,
            Self::Stag { purpose: Purpose::Write, .. } => Terminate::TAGGED_STAG,
            Self::Stag { purpose: Purpose::Read, .. } => Terminate::READ_STAG,
            Self::Region { fault: RegionFault::Access, .. } => Terminate::ACCESS,
            Self::Region { purpose: Purpose::Write, fault: RegionFault::Wrap, .. } => Terminate::TAGGED_WRAP,
            Self::Region { purpose: Purpose::Write, .. } => Terminate::TAGGED_BOUNDS,
            Self::Region { purpose: Purpose::Read, fault: RegionFault::Wrap, .. } => Terminate::READ_WRAP,
            Self::Region { purpose: Purpose::Read, .. } => Terminate::READ_BOUNDS,
            Self::Invalidate(_) => Terminate::INVALIDATE,
            Self::Response { .. } => Terminate::TAGGED_BOUNDS,
            Self::LocalKey(_) | Self::LocalPlace | Self::LocalTarget | Self::NoMemory => {
                Terminate::LOCAL_CATASTROPHIC
            }
        }
    }
}
