//! The MPA handshake (RFC 5044 7.1, RFC 6581) of both sides, without input or output.
//!
//! Each side first asks for the number of wanted bytes and then feeds at most that many, so that the data
//! behind the handshake stays in the socket. The start of a frame is checked as its bytes arrive: a peer that
//! does not speak MPA is detected by its first byte.

#[cfg(test)]
mod tests;

use super::machine::{Agreement, Side};
use iwarp_wire::mpa::{self, Enhanced, FRAME_HEADER, Frame, FrameError, FrameKind};
use iwarp_wire::rdmap::Terminate;

/// The parameters of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// MPA revision of a request. A reply has the revision of its request.
    pub revision: u8,
    /// Whether this side requests CRCs.
    pub crc: bool,
    /// Number of RDMA Reads that this side wants to have outstanding (ORD).
    pub initiator_depth: u8,
    /// Number of RDMA Reads that this side serves at a time (IRD).
    pub responder_resources: u8,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The bytes are not an MPA frame, or not a supported one.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer insists on markers.
    #[error("the peer requires MPA markers, which are not supported")]
    Markers,
    /// The reply does not have the revision of the request.
    #[error("reply of MPA revision {found}{} to a request of revision {asked}", if *.enhanced { "" } else { " without its parameters" })]
    Revision {
        /// Revision of the request.
        asked: u8,
        /// Revision of the reply.
        found: u8,
        /// Whether the reply has the parameters of revision 2.
        enhanced: bool,
    },
    /// The peer wants more reads outstanding than can be served.
    #[error("the peer wants {asked} reads at a time, at most {most} can be served")]
    Ird {
        /// The peer's ORD.
        asked: u16,
        /// Most that can be served.
        most: u8,
    },
    /// The peer chose another RTR message than the empty RDMA Write that was offered.
    #[error("the peer chose no ready-to-receive message that was offered")]
    Rtr,
}

impl HandshakeError {
    /// The Terminate message that reports the error of a reply to the peer, if there is one
    /// [RFC 6581 9.1-5, 9.1-6, 9.2-9, 9.2-10].
    #[must_use]
    pub fn terminate(&self) -> Option<Terminate> {
        match self {
            Self::Ird { .. } => Some(Terminate::IRD),
            Self::Rtr => Some(Terminate::RTR),
            Self::Frame(_) | Self::Markers | Self::Revision { .. } => None,
        }
    }
}

/// A frame that is being received.
#[derive(Debug)]
struct Incoming {
    kind: FrameKind,
    bytes: Vec<u8>,
    /// The header, once it is complete.
    frame: Option<Frame>,
}

impl Incoming {
    fn new(kind: FrameKind) -> Self {
        Self { kind, bytes: Vec::new(), frame: None }
    }

    /// Number of bytes wanted next; 0: the frame is complete.
    fn wanted(&self) -> usize {
        let whole = FRAME_HEADER + self.frame.map_or(0, |frame| usize::from(frame.private_data));
        whole.saturating_sub(self.bytes.len())
    }

    /// Takes bytes. Returns the frame with all its private data when it is complete
    /// [RFC 5044 7.1-1, 7.1.2-18, 7.1.2-19].
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<(Frame, &[u8])>, FrameError> {
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(self.wanted())]);
        if self.frame.is_none() {
            Frame::check_key(&self.bytes, self.kind)?;
            if let Some(header) = self.bytes.first_chunk() {
                self.frame = Some(Frame::parse(header, self.kind)?);
            }
        }
        Ok(match self.frame {
            Some(frame) if self.wanted() == 0 => Some((frame, &self.bytes[FRAME_HEADER..])),
            _ => None,
        })
    }
}

/// The active side, waiting for the reply.
#[derive(Debug)]
pub struct Initiator {
    parameters: Parameters,
    incoming: Incoming,
}

/// The reply of the passive side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It accepted.
    Accepted {
        /// The parameters of the connection.
        agreement: Agreement,
        /// The user's part of the private data.
        private_data: Vec<u8>,
    },
    /// It rejected the request.
    Rejected {
        /// The user's part of the private data.
        private_data: Vec<u8>,
    },
}

impl Initiator {
    /// Begins a handshake. The second value is the request to send [RFC 5044 7.1.1-12, 7.1.2-1]
    /// [RFC 6581 6-2, 9.2-1, 9.2-2, 10-3].
    #[must_use]
    pub fn new(parameters: Parameters, private_data: &[u8]) -> (Self, Vec<u8>) {
        let enhanced = (parameters.revision >= 2).then(|| Enhanced {
            peer_to_peer: true,
            rtr_send: false,
            rtr_write: true,
            rtr_read: false,
            ird: u16::from(parameters.responder_resources),
            ord: u16::from(parameters.initiator_depth),
        });
        let request =
            emit(FrameKind::Request, parameters.revision, parameters.crc, false, enhanced, private_data);
        (Self { parameters, incoming: Incoming::new(FrameKind::Reply) }, request)
    }

    /// Most bytes that [`Initiator::feed`] takes next.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.incoming.wanted()
    }

    /// Takes bytes of the reply. `None`: it is not complete [RFC 5044 4.4-6, 7.1.1-7, 7.1.1-8, 7.1.2-8].
    ///
    /// # Errors
    /// [`HandshakeError`]: the connection cannot be established.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Reply>, HandshakeError> {
        let parameters = self.parameters;
        let Some((frame, private_data)) = self.incoming.feed(bytes)? else { return Ok(None) };
        let (enhanced, private_data) = split(&frame, private_data);
        let private_data = private_data.to_vec();
        if frame.reject {
            return Ok(Some(Reply::Rejected { private_data }));
        }
        if frame.markers {
            return Err(HandshakeError::Markers);
        }
        if frame.revision != parameters.revision || parameters.revision >= 2 && enhanced.is_none() {
            let (found, enhanced) = (frame.revision, frame.enhanced);
            return Err(HandshakeError::Revision { asked: parameters.revision, found, enhanced });
        }
        let (initiator_depth, responder_resources) = match enhanced {
            Some(enhanced) => parameters.negotiate(&enhanced)?,
            None => (parameters.initiator_depth, parameters.responder_resources),
        };
        let crc = parameters.crc || frame.crc;
        let agreement =
            Agreement { crc, initiator_depth, responder_resources, side: Side::Active, rtr: false };
        Ok(Some(Reply::Accepted { agreement, private_data }))
    }
}

impl Parameters {
    /// ORD and IRD of the active side after the reply. Its IRD is raised to the ORD of the passive side if
    /// that is supported: siw announces a larger ORD than it was offered
    /// [RFC 6581 9.1-4, 9.1-5, 9.1-9, 9.1-11, 9.2-9, 9.2-13].
    fn negotiate(&self, reply: &Enhanced) -> Result<(u8, u8), HandshakeError> {
        if reply.peer_to_peer && !reply.rtr_write {
            return Err(HandshakeError::Rtr);
        }
        let ird = match reply.ord {
            Enhanced::UNSTATED => self.responder_resources,
            asked => match u8::try_from(asked) {
                Ok(asked) => asked.max(self.responder_resources),
                Err(_) => return Err(HandshakeError::Ird { asked, most: u8::MAX }),
            },
        };
        Ok((limit(self.initiator_depth, reply.ird), ird))
    }
}

/// The passive side, receiving the request.
#[derive(Debug)]
pub struct Responder {
    incoming: Incoming,
}

impl Default for Responder {
    fn default() -> Self {
        Self { incoming: Incoming::new(FrameKind::Request) }
    }
}

/// A complete request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    frame: Frame,
    enhanced: Option<Enhanced>,
    /// The user's part of the private data.
    pub private_data: Vec<u8>,
}

impl Responder {
    /// Most bytes that [`Responder::feed`] takes next.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.incoming.wanted()
    }

    /// Takes bytes of the request. `None`: it is not complete [RFC 5044 7.1.2-2] [RFC 6581 6-3, 10-4].
    ///
    /// # Errors
    /// [`HandshakeError`]: the connection cannot be established. Send [`Responder::refusal`] then.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Request>, HandshakeError> {
        let Some((frame, private_data)) = self.incoming.feed(bytes)? else { return Ok(None) };
        if frame.markers {
            return Err(HandshakeError::Markers);
        }
        let (enhanced, private_data) = split(&frame, private_data);
        Ok(Some(Request { frame, enhanced, private_data: private_data.to_vec() }))
    }

    /// The reply that rejects an unsupported request; `None` if the bytes are not an MPA request
    /// [RFC 6581 10-1].
    #[must_use]
    pub fn refusal(&self) -> Option<Vec<u8>> {
        let frame = self.incoming.frame?;
        let (enhanced, _) = split(&frame, &self.incoming.bytes[FRAME_HEADER..]);
        Some(emit(FrameKind::Reply, frame.revision, frame.crc, true, enhanced, &[]))
    }
}

impl Request {
    /// MPA revision of the request and of its reply.
    #[must_use]
    pub fn revision(&self) -> u8 {
        self.frame.revision
    }

    /// The reply that accepts, and the agreement of both sides [RFC 5044 4.4-6, 7.1.1-7, 7.1.1-8, 7.1.2-6]
    /// [RFC 6581 9.1-2, 9.1-3, 9.1-8, 9.1-10, 9.2-3, 9.2-4, 9.2-5, 9.2-6, 9.2-7, 9.2-11, 9.2-12, 9.2-13]
    /// [RFC 6581 10-1, 10-2].
    #[must_use]
    pub fn accept(&self, parameters: &Parameters, private_data: &[u8]) -> (Vec<u8>, Agreement) {
        let crc = parameters.crc || self.frame.crc;
        let initiator_depth = self
            .enhanced
            .map_or(parameters.initiator_depth, |peer| limit(parameters.initiator_depth, peer.ird));
        let responder_resources = parameters.responder_resources;
        // A depth that the peer did not state is not stated in the reply either.
        let in_kind = |stated: u16, depth: u8| match stated {
            Enhanced::UNSTATED => Enhanced::UNSTATED,
            _ => u16::from(depth),
        };
        let enhanced = self.enhanced.map(|peer| Enhanced {
            peer_to_peer: peer.peer_to_peer,
            rtr_send: false,
            // An empty Write is preferred, even if the peer offered neither. An empty Read is chosen if the
            // peer offered only that.
            rtr_write: peer.peer_to_peer && (peer.rtr_write || !peer.rtr_read),
            rtr_read: peer.peer_to_peer && peer.rtr_read && !peer.rtr_write,
            ird: in_kind(peer.ord, responder_resources),
            ord: in_kind(peer.ird, initiator_depth),
        });
        let reply = emit(FrameKind::Reply, self.frame.revision, crc, false, enhanced, private_data);
        let rtr = self.enhanced.is_some_and(|peer| peer.peer_to_peer);
        (reply, Agreement { crc, initiator_depth, responder_resources, side: Side::Passive, rtr })
    }

    /// The reply that rejects [RFC 5044 7.1.2-4, 7.1.2-14] [RFC 6581 10-1].
    #[must_use]
    pub fn reject(&self, private_data: &[u8]) -> Vec<u8> {
        emit(FrameKind::Reply, self.frame.revision, self.frame.crc, true, self.enhanced, private_data)
    }
}

/// `depth`, limited by the peer's IRD [RFC 6581 9.1-2, 9.1-3].
fn limit(depth: u8, ird: u16) -> u8 {
    match ird {
        Enhanced::UNSTATED => depth,
        ird => u8::try_from(ird).map_or(depth, |ird| ird.min(depth)),
    }
}

/// Splits private data into the parameters of revision 2 and the user's part.
fn split<'d>(frame: &Frame, private_data: &'d [u8]) -> (Option<Enhanced>, &'d [u8]) {
    match private_data.split_first_chunk() {
        Some((enhanced, rest)) if frame.enhanced => (Some(Enhanced::parse(*enhanced)), rest),
        _ => (None, private_data),
    }
}

/// A complete frame. Private data that does not fit is cut; callers check the length before
/// [RFC 5044 7.1.1-14, 7.1.1-16] [RFC 6581 6-4].
fn emit(
    kind: FrameKind,
    revision: u8,
    crc: bool,
    reject: bool,
    enhanced: Option<Enhanced>,
    private_data: &[u8],
) -> Vec<u8> {
    let parameters = enhanced.map(|enhanced| enhanced.emit());
    let parameters = parameters.as_ref().map_or(&[][..], |bytes| bytes);
    let length = private_data.len().min(mpa::MAX_PRIVATE_DATA - parameters.len());
    let frame = Frame {
        kind,
        markers: false,
        crc,
        reject,
        enhanced: enhanced.is_some(),
        revision,
        // At most `MAX_PRIVATE_DATA`.
        private_data: (parameters.len() + length) as u16,
    };
    let mut header = [0; FRAME_HEADER];
    frame.emit(&mut header);
    [&header, parameters, &private_data[..length]].concat()
}
