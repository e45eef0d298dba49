//! What there is to know about a capture or its traffic.

/// What [`Finding`] says about the capture or its traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing, and nothing wrong.
    Note,
    /// The capture is not whole.
    Capture,
    /// Something went wrong in the traffic.
    Traffic,
}

/// What a finding is about; each has one [`Severity`] and one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// Packets were lost in the network: they came again.
    NetworkLoss,
    /// TCP sent again what had been seen: whether it was lost behind the place of capture does not show.
    Repeated,
    /// A receiver was not ready.
    NotReady,
    /// A NAK that ends an operation and its connection.
    Refused,
    /// A Terminate.
    Terminate,
    /// A checksum does not fit its packet.
    Checksum,
    /// A header or a sequence breaks the protocol.
    Protocol,
    /// A connection was reset or its establishment refused.
    Connection,
    /// Bytes that came twice and differ.
    Differs,
    /// A protocol on top was broken.
    UpperLayer,
    /// Congestion was marked or notified.
    Congestion,
    /// Packets that were received, and that the capture misses.
    CaptureLoss,
    /// Operations may be among bytes that the capture cut.
    Cut,
    /// The capturing program says that it lost frames.
    Dropped,
    /// The file ends in the middle of a record.
    CutFile,
    /// State was given up because a bound was reached.
    GaveUp,
    /// The capture begins or ends in the middle of a connection.
    Partial,
    /// Frames that are there twice.
    Duplicate,
    /// IP fragments.
    Fragment,
    /// Where the key of an operation that failed was advertised.
    Key,
}

impl Topic {
    /// How bad it is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::NetworkLoss
            | Self::NotReady
            | Self::Refused
            | Self::Terminate
            | Self::Checksum
            | Self::Protocol
            | Self::Connection
            | Self::Differs
            | Self::UpperLayer => Severity::Traffic,
            Self::CaptureLoss | Self::Cut | Self::Dropped | Self::CutFile | Self::GaveUp => Severity::Capture,
            Self::Repeated
            | Self::Congestion
            | Self::Partial
            | Self::Duplicate
            | Self::Fragment
            | Self::Key => Severity::Note,
        }
    }

    /// Its name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetworkLoss => "network-loss",
            Self::Repeated => "repeated",
            Self::NotReady => "receiver-not-ready",
            Self::Refused => "refused",
            Self::Terminate => "terminate",
            Self::Checksum => "checksum",
            Self::Protocol => "protocol",
            Self::Connection => "connection",
            Self::Differs => "differs",
            Self::UpperLayer => "upper-layer",
            Self::Congestion => "congestion",
            Self::CaptureLoss => "capture-loss",
            Self::Cut => "cut",
            Self::Dropped => "dropped",
            Self::CutFile => "cut-file",
            Self::GaveUp => "gave-up",
            Self::Partial => "partial",
            Self::Duplicate => "duplicate",
            Self::Fragment => "fragment",
            Self::Key => "key",
        }
    }
}

/// Something to know about the capture or its traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// The connection, if it is about one.
    pub connection: Option<u32>,
    /// The frame that showed it.
    pub frame: u64,
    /// In words.
    pub text: String,
}
