//! What the library reports: connections, operations, and where their bytes are.

use std::fmt;
use std::net::IpAddr;

use crate::finding::Finding;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The end that asked for the connection; without its handshake, the one that was seen first.
    A,
    /// The other.
    B,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

/// What carries a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// iWARP over TCP.
    Iwarp,
    /// InfiniBand's transport.
    InfiniBand(crate::Encapsulation),
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iwarp => "iwarp",
            Self::InfiniBand(crate::Encapsulation::InfiniBand) => "infiniband",
            Self::InfiniBand(crate::Encapsulation::RoceV1) => "roce-v1",
            Self::InfiniBand(crate::Encapsulation::RoceV2) => "roce-v2",
        })
    }
}

/// How a connection is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// By its MPA request and reply.
    Mpa,
    /// By the messages of InfiniBand's connection manager.
    Cm,
    /// By who reads the capture: see [`Session::pair`](crate::Session::pair).
    Told,
    /// Concluded from traffic without a handshake.
    Guessed,
    /// By datagrams, which name both ends.
    Datagrams,
    /// One direction only: which queue pair answers is not known.
    OneSided,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mpa => "mpa",
            Self::Cm => "cm",
            Self::Told => "told",
            Self::Guessed => "guessed",
            Self::Datagrams => "datagrams",
            Self::OneSided => "one-sided",
        })
    }
}

/// Where an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The host.
    pub host: IpAddr,
    /// TCP port or queue pair number; `None` where the traffic does not tell.
    pub number: Option<u32>,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Its number, from 1.
    pub id: u32,
    /// What carries it.
    pub carrier: Carrier,
    /// How it is known.
    pub known: Known,
    /// Its ends, [`Side::A`] first.
    pub ends: [Endpoint; 2],
    /// Frame in which it was first seen.
    pub frame: u64,
    /// Time of that frame, in nanoseconds since the epoch.
    pub time: u64,
    /// Port that the active side asked for, where the handshake tells.
    pub service: Option<u16>,
    /// Private data of the request and of the reply or refusal, each as the upper layer gave it.
    pub private_data: [Option<Vec<u8>>; 2],
    /// Whether the passive side refused it.
    pub refused: bool,
    /// Bytes of a full packet, where known (InfiniBand), or 0.
    pub pmtu: u32,
    /// Reads and atomics that each side serves at a time, where the handshake says so.
    pub reads: [Option<u16>; 2],
}

impl Connection {
    /// An end in words: its host, and its port, or its queue pair number in hexadecimal.
    #[must_use]
    pub fn end(&self, side: Side) -> String {
        let Endpoint { host, number } = self.ends[side.index()];
        let number = match (self.carrier, number) {
            (Carrier::Iwarp, Some(port)) => port.to_string(),
            (Carrier::InfiniBand(_), Some(number)) => format!("{number:#x}"),
            (_, None) => "?".to_owned(),
        };
        match host {
            IpAddr::V4(host) => format!("{host}:{number}"),
            IpAddr::V6(host) => format!("[{host}]:{number}"),
        }
    }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A send.
    Send,
    /// An RDMA write.
    Write,
    /// An RDMA read.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Immediate data without a write or send (RFC 7306).
    Immediate,
}

impl Kind {
    /// Its name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare-swap",
            Self::FetchAdd => "fetch-add",
            Self::Immediate => "immediate",
        }
    }
}

/// Memory of a host that a key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The key: rkey or STag.
    pub key: u32,
    /// The address, or tagged offset.
    pub address: u64,
    /// The region that this is a place in.
    pub region: u32,
}

/// What a key of a host names, until the key is invalidated or the last connection that uses it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its number.
    pub id: u32,
    /// The host that owns the memory.
    pub host: IpAddr,
    /// The key.
    pub key: u32,
    /// Counts what the key has named at this host, from 1.
    pub epoch: u32,
}

/// What an atomic operation was given and found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    /// Value to add, or to swap in.
    pub operand: u64,
    /// Value to compare with; 0 for [`Kind::FetchAdd`].
    pub compare: u64,
    /// Whether not all of the value takes part (the masks of RFC 7306).
    pub masked: bool,
    /// What was there before, once answered.
    pub old: Option<u64>,
}

impl Atomic {
    /// What the operation left behind, if that is known.
    #[must_use]
    pub fn left(&self, kind: Kind) -> Option<u64> {
        let old = self.old.filter(|_| !self.masked)?;
        Some(match kind {
            Kind::FetchAdd => old.wrapping_add(self.operand),
            _ if old == self.compare => self.operand,
            _ => old,
        })
    }
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged.
    Acked,
    /// The response came.
    Answered,
    /// A later operation of the same direction was acknowledged.
    Implied,
    /// The responder refused it, in these words.
    Nak(&'static str),
    /// The responder had no receive for it until the end.
    NotReady,
    /// A Terminate about it.
    Terminated(String),
    /// The capture does not tell.
    Unknown,
    /// Part of it was never captured, and neither was its end.
    Incomplete,
}

impl Outcome {
    /// Whether it failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self, Self::Nak(_) | Self::NotReady | Self::Terminated(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acked => f.write_str("acked"),
            Self::Answered => f.write_str("answered"),
            Self::Implied => f.write_str("implied"),
            Self::Nak(reason) => write!(f, "nak:{reason}"),
            Self::NotReady => f.write_str("rnr"),
            Self::Terminated(text) => write!(f, "terminated:{text}"),
            Self::Unknown => f.write_str("unknown"),
            Self::Incomplete => f.write_str("incomplete"),
        }
    }
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its number, which [`Placement::operation`] repeats.
    pub id: u64,
    /// The connection's number.
    pub connection: u32,
    /// Who asked for it.
    pub from: Side,
    /// What it does.
    pub kind: Kind,
    /// First and last frame of it, responses included.
    pub frames: (u64, u64),
    /// Time of the first frame, in nanoseconds since the epoch.
    pub time: u64,
    /// Nanoseconds from the first frame to the one that ended it.
    pub took: Option<u64>,
    /// The responder's memory; `None`: there is none, or the packet that names it was not captured.
    pub target: Option<Target>,
    /// The requester's memory that a read fills, where the wire names it (iWARP).
    pub sink: Option<Target>,
    /// Bytes, as far as they are known.
    pub length: u64,
    /// Immediate data: 32 bits of InfiniBand, 64 of iWARP.
    pub immediate: Option<u64>,
    /// Key that the receiver is to invalidate.
    pub invalidate: Option<u32>,
    /// Whether the receiver is to be woken.
    pub solicited: bool,
    /// What an atomic operation was given and found.
    pub atomic: Option<Atomic>,
    /// Packets or segments that carried it, each once.
    pub packets: u32,
    /// Packets of it that were seen again.
    pub resent: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Ranges of its bytes whose packets are not in the capture.
    pub missing: Vec<(u64, u64)>,
    /// Bytes of packets that the capture cut.
    pub cut: u64,
}

impl Operation {
    /// One of which only its first frame is known.
    pub(crate) fn new(
        id: u64,
        connection: u32,
        from: Side,
        kind: Kind,
        frames: (u64, u64),
        time: u64,
    ) -> Self {
        Self {
            id,
            connection,
            from,
            kind,
            frames,
            time,
            took: None,
            target: None,
            sink: None,
            length: 0,
            immediate: None,
            invalidate: None,
            solicited: false,
            atomic: None,
            packets: 0,
            resent: 0,
            outcome: Outcome::Unknown,
            missing: Vec::new(),
            cut: 0,
        }
    }
}

/// How bytes concern the memory that they are placed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// The requester wrote them into the responder's memory.
    Written,
    /// The requester read them from the responder's memory.
    Read,
    /// The response of a read put them into the requester's memory.
    Filled,
    /// An atomic operation found them there: a number, its most significant byte first as it travels. In
    /// which order the host has them is not known.
    Found,
}

/// Where captured bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The operation that carries them.
    pub operation: u64,
    /// Its connection.
    pub connection: u32,
    /// Who asked for the operation.
    pub from: Side,
    /// Where in the operation they are.
    pub offset: u64,
    /// Where in memory, and how; `None` for a send.
    pub memory: Option<(Target, Access)>,
    /// The frame that carries them.
    pub frame: u64,
}

/// Takes what a [`Session`](crate::Session) reports. Every method does nothing by default.
pub trait Sink {
    /// A connection stands, or was refused.
    fn connection(&mut self, connection: &Connection) {
        let _ = connection;
    }

    /// Bytes were captured. Each byte of an operation comes once.
    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        let _ = (placement, bytes);
    }

    /// The request is in the capture as far as it will be. In the order of the wire for each direction.
    fn sent(&mut self, operation: &Operation) {
        let _ = operation;
    }

    /// The operation ended, or the capture did. After [`Sink::sent`], in the order of the wire for each
    /// direction.
    fn ended(&mut self, operation: &Operation) {
        let _ = operation;
    }

    /// A key of a host was used for the first time, or for the first time since it was invalidated or the
    /// last connection that used it was over.
    fn region(&mut self, region: &Region) {
        let _ = region;
    }

    /// Something to know.
    fn finding(&mut self, finding: &Finding) {
        let _ = finding;
    }

    /// A connection is over, or the capture is.
    fn closed(&mut self, connection: u32) {
        let _ = connection;
    }
}
