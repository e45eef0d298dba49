//! iWARP: a TCP connection, its two framed streams, and the operations in them.

mod framing;
mod operations;

use std::net::IpAddr;

use iwarp_wire::mpa::{ENHANCED, Enhanced, FRAME_HEADER, Frame, FrameKind};

use crate::context::Context;
use crate::finding::Topic;
use crate::link::Tcp;
use crate::operation::{Carrier, Connection, Endpoint, Known, Side};
use crate::tcp::{Arrival, Direction, Gone};
use framing::{Event, Framer};
use operations::Operations;

/// Gaps that are open for less are reordering rather than loss. In nanoseconds.
const REORDERING: u64 = 1_000_000;

/// One TCP connection that is iWARP, or may be.
#[derive(Debug)]
pub(crate) struct Iwarp {
    directions: [Direction; 2],
    framers: [Framer; 2],
    upper: Upper,
    reset: bool,
    fins: [bool; 2],
}

/// What is above the framing.
#[derive(Debug)]
struct Upper {
    info: Connection,
    operations: Operations,
    /// Whether the connection was reported.
    reported: bool,
    request: Option<Frame>,
    reply: Option<Frame>,
}

impl Iwarp {
    /// A connection whose first segment is this; `ends` are those of [`Side::A`] and [`Side::B`].
    pub(crate) fn new(first: &Tcp<'_>, ends: [(IpAddr, u16); 2], context: &Context<'_>) -> Self {
        let framers = if first.syn {
            [Framer::with_handshake(FrameKind::Request), Framer::with_handshake(FrameKind::Reply)]
        } else {
            [Framer::in_mid_stream(), Framer::in_mid_stream()]
        };
        let info = Connection {
            id: 0,
            carrier: Carrier::Iwarp,
            known: Known::Guessed,
            ends: ends.map(|(host, port)| Endpoint { host, number: Some(port.into()) }),
            frame: context.frame,
            time: context.time,
            service: first.syn.then_some(ends[1].1),
            private_data: [None, None],
            refused: false,
            pmtu: 0,
            reads: [None; 2],
        };
        let operations = Operations::new(ends.map(|(host, _)| host));
        Self {
            directions: Default::default(),
            framers,
            upper: Upper { info, operations, reported: false, request: None, reply: None },
            reset: false,
            fins: [false; 2],
        }
    }

    /// Whether it turned out to be something else than iWARP.
    pub(crate) fn is_foreign(&self) -> bool {
        !self.upper.reported && self.framers.iter().any(Framer::is_foreign)
    }

    /// Whether both sides have ended it, or one for both.
    pub(crate) fn is_over(&self) -> bool {
        self.reset || self.fins == [true; 2]
    }

    /// Whether this request for a connection is for another one between the same ports.
    pub(crate) fn begins_anew(&self, syn: &Tcp<'_>) -> bool {
        self.is_over() || !self.directions[Side::A.index()].begins_at(syn.sequence)
    }

    /// Takes a segment that `side` sent.
    pub(crate) fn segment(&mut self, side: Side, tcp: &Tcp<'_>, context: &mut Context<'_>) {
        let (frame, budget) = ((context.frame, context.time), context.budget);
        let Self { directions, framers, upper, .. } = self;
        let gone = directions.each_ref().map(|direction| direction.gone);
        if tcp.syn {
            directions[side.index()].begin(tcp.sequence);
        }
        let arrival = directions[side.index()].segment(tcp, frame, budget, &mut |piece| {
            upper.feed(framers, side, context, |framer, out| framer.feed(piece, budget, out));
        });
        if let Some(acknowledgement) = tcp.acknowledgement {
            let other = side.other();
            directions[other.index()].acknowledge(acknowledgement, budget, &mut |piece| {
                upper.feed(framers, other, context, |framer, out| framer.feed(piece, budget, out));
            });
            let to = directions[other.index()].acknowledged();
            upper.operations.acknowledged(other, to, context);
        }
        for (side, before) in [Side::A, Side::B].into_iter().zip(gone) {
            if self.directions[side.index()].gone != before {
                self.note_loss(side, before, context);
            }
        }
        self.note_arrival(side, arrival, context);
        self.note_end(side, tcp, context);
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        let budget = context.budget;
        for side in [Side::A, Side::B] {
            let Self { directions, framers, upper, .. } = self;
            let before = directions[side.index()].gone;
            directions[side.index()].finish(budget, &mut |piece| {
                upper.feed(framers, side, context, |framer, out| framer.feed(piece, budget, out));
            });
            upper.feed(framers, side, context, |framer, out| framer.finish(budget, out));
            self.note_loss(side, before, context);
        }
        if self.upper.reported {
            self.upper.operations.finish(context);
            let id = self.upper.info.id;
            if self.upper.info.service.is_none() {
                context.finding(Topic::Partial, Some(id), "its beginning is not in the capture".into());
            }
            if !self.is_over() {
                context.finding(Topic::Partial, Some(id), "its end is not in the capture".into());
            }
            context.closed(id);
        }
    }

    fn note_loss(&self, side: Side, before: Gone, context: &mut Context<'_>) {
        if !self.upper.reported {
            return;
        }
        let now = self.directions[side.index()].gone;
        let (lost, given_up) = (now.lost - before.lost, now.given_up - before.given_up);
        if lost > 0 {
            let text = format!("{lost} bytes from {side} were received and are not in the capture");
            context.finding(Topic::CaptureLoss, Some(self.upper.info.id), text);
        }
        if given_up > 0 {
            let text = format!("{given_up} bytes from {side} were passed over: too much waits for them");
            context.finding(Topic::GaveUp, Some(self.upper.info.id), text);
        }
    }

    fn note_arrival(&self, side: Side, arrival: Arrival, context: &mut Context<'_>) {
        let (topic, text) = match arrival {
            Arrival::Repeated => (Topic::Repeated, format!("TCP of {side} sent a segment again")),
            Arrival::Differs => {
                (Topic::Differs, format!("TCP of {side} sent a segment again, with other bytes"))
            }
            Arrival::Late(waited) if waited >= REORDERING => {
                (Topic::NetworkLoss, format!("a segment from {side} came {} us late", waited / 1000))
            }
            _ => return,
        };
        if self.upper.reported {
            context.finding(topic, Some(self.upper.info.id), text);
        }
    }

    fn note_end(&mut self, side: Side, tcp: &Tcp<'_>, context: &mut Context<'_>) {
        let early = self.fins == [false; 2] && !self.reset && !self.upper.info.refused;
        self.fins[side.index()] |= tcp.fin;
        self.reset |= tcp.reset;
        if tcp.reset && early && self.upper.reported {
            let text = format!("{side} reset the connection");
            context.finding(Topic::Connection, Some(self.upper.info.id), text);
        }
    }
}

impl Upper {
    /// Has the framer of `side` do something, and takes what it finds.
    fn feed(
        &mut self,
        framers: &mut [Framer; 2],
        side: Side,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Framer, &mut dyn FnMut(Event<'_>)),
    ) {
        let mut handshake = false;
        act(&mut framers[side.index()], &mut |event| match event {
            Event::Handshake { bytes, certain } => {
                handshake = true;
                self.handshake(side, bytes, certain, context);
            }
            Event::Fpdu(fpdu) => {
                self.report(context);
                self.operations.fpdu(side, &fpdu, context);
            }
            Event::BadChecksum { found, computed } => {
                self.report(context);
                let text =
                    format!("an FPDU from {side} has checksum {found:#010x} instead of {computed:#010x}");
                context.finding(Topic::Checksum, Some(self.info.id), text);
                self.operations.passed(side, Topic::Checksum, context);
            }
            Event::Passed(_) => self.operations.passed(side, Topic::CaptureLoss, context),
            Event::Cut(bytes) => {
                if self.reported {
                    let text = format!("{bytes} bytes from {side} were cut off, and FPDUs may be among them");
                    context.finding(Topic::Cut, Some(self.info.id), text);
                }
                self.operations.passed(side, Topic::Cut, context);
            }
            Event::Nonsense => {
                self.report(context);
                let text = format!("what {side} sends is no FPDU where one should begin");
                context.finding(Topic::Protocol, Some(self.info.id), text);
                self.operations.passed(side, Topic::Protocol, context);
            }
            Event::GaveUp(bytes) => {
                if self.reported {
                    let text = format!("{bytes} bytes from {side} were passed over: too much waits for more");
                    context.finding(Topic::GaveUp, Some(self.info.id), text);
                }
                self.operations.passed(side, Topic::GaveUp, context);
            }
        });
        if let (true, Some(request), Some(reply)) = (handshake, self.request, self.reply) {
            let checksums = request.crc || reply.crc;
            // Each side says whether it wants markers in what it receives.
            framers[Side::A.index()].agree(checksums, reply.markers);
            framers[Side::B.index()].agree(checksums, request.markers);
        }
    }

    fn handshake(&mut self, side: Side, bytes: &[u8], certain: usize, context: &mut Context<'_>) {
        let kind = if side == Side::A { FrameKind::Request } else { FrameKind::Reply };
        let Some((header, data)) = bytes.split_first_chunk::<FRAME_HEADER>() else { return };
        let frame = match Frame::parse(header, kind) {
            Ok(frame) => frame,
            Err(error) => {
                self.report(context);
                context.finding(Topic::Protocol, Some(self.info.id), error.to_string());
                return;
            }
        };
        self.info.known = Known::Mpa;
        let whole = certain == bytes.len();
        let parameters = data.split_first_chunk().filter(|_| frame.enhanced);
        if let Some((parameters, _)) = parameters.filter(|_| certain >= FRAME_HEADER + ENHANCED) {
            let reads = Enhanced::parse(*parameters).ird;
            self.info.reads[side.index()] = Some(reads).filter(|reads| *reads != Enhanced::UNSTATED);
        }
        let data = parameters.map_or(data, |(_, rest)| rest);
        self.info.private_data[side.index()] = whole.then(|| data.to_vec());
        if side == Side::A {
            self.request = Some(frame);
            return;
        }
        self.reply = Some(frame);
        self.info.refused = frame.reject;
        self.report(context);
        if frame.reject {
            context.finding(Topic::Connection, Some(self.info.id), "the passive side refused it".into());
        }
    }

    /// Reports the connection, if that was not done.
    fn report(&mut self, context: &mut Context<'_>) {
        if !self.reported {
            self.reported = true;
            self.info.id = context.connection_id();
            self.operations.named(&self.info);
            context.sink.connection(&self.info);
        }
    }
}
