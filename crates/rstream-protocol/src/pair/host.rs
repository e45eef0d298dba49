//! One side of the pair: a stream, its memory, a queue pair in memory, and an application.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::*;

/// Byte `offset` of the stream that `side` writes.
fn pattern(side: usize, offset: u64) -> u8 {
    (offset ^ (offset >> 8).wrapping_mul(29) ^ (side as u64 * 0x55)) as u8
}

/// What the device has to do for one posted request.
#[derive(Clone, Copy)]
pub(super) enum Request {
    /// Place bytes; the arrival is reported if the write carries an immediate.
    Write { remote: u64, local: u32, length: u32, immediate: Option<u32> },
    /// A send with immediate.
    Immediate(u32),
    /// A send of four bytes.
    Word(u32),
}

/// One side: stream, memory, queue pair, and what its application did.
pub(super) struct Host {
    pub(super) side: usize,
    pub(super) setup: Setup,
    pub(super) stream: Stream,
    pub(super) ring: Vec<u8>,
    pub(super) send_ring: Vec<u8>,
    /// Posted and not delivered; ids of those that ask for a completion.
    pub(super) posted: VecDeque<(Request, Option<u64>)>,
    /// Delivered to the peer, and to be reported here.
    pub(super) completions: VecDeque<u64>,
    /// Delivered to this host and not seen by it.
    pub(super) arrivals: VecDeque<Arrival>,
    /// Receives that a message would find.
    pub(super) receives: u32,
    /// Entries of the send queue from request to request that asks for a completion.
    pub(super) busy: VecDeque<u32>,
    /// The device delivers nothing of this host before this time.
    pub(super) stalled_until: u64,
    pub(super) written: u64,
    pub(super) read: u64,
    /// The receiving side was shut or closed: what was not read by then need not be.
    pub(super) dropped: bool,
    pub(super) controls: u64,
    pub(super) shut: bool,
    pub(super) closed: bool,
}

impl Host {
    pub(super) fn new(side: usize, setup: Setup) -> Self {
        Self {
            side,
            setup,
            stream: Stream::new(setup).expect("the sizes were chosen to work"),
            ring: vec![0; setup.local_ring as usize],
            send_ring: vec![0; setup.send_ring as usize],
            posted: VecDeque::new(),
            completions: VecDeque::new(),
            arrivals: VecDeque::new(),
            receives: u32::from(setup.local_receives),
            busy: VecDeque::from([0]),
            stalled_until: 0,
            written: 0,
            read: 0,
            dropped: false,
            controls: 0,
            shut: false,
            closed: false,
        }
    }

    /// Posts requests of one message; the last one carries the ticket.
    fn post(&mut self, requests: &[Request], ticket: Ticket, data: bool) {
        for (n, request) in requests.iter().enumerate() {
            let last = n + 1 == requests.len();
            self.posted.push_back((*request, (last && ticket.signaled).then_some(ticket.id)));
        }
        *self.busy.back_mut().expect("never empty") += requests.len() as u32;
        if ticket.signaled {
            self.busy.push_back(0);
        }
        let busy: u32 = self.busy.iter().sum();
        let limit = if data { self.setup.send_depth } else { self.setup.send_queue_depth() };
        assert!(busy <= limit, "{busy} entries of the send queue taken, {limit} allowed");
    }

    /// The application writes up to `wanted` bytes in one call.
    pub(super) fn write(&mut self, wanted: usize) -> usize {
        let Ok(sendable) = self.stream.sendable() else {
            assert!(self.stream.next_write(wanted).is_none());
            return 0;
        };
        let goal = sendable.min(wanted);
        let mut sent = 0;
        while sent < goal {
            let message = self.stream.next_write(goal - sent).expect("as many as sendable said");
            let (start, length) = (message.local_offset as usize, message.length as usize);
            assert!(length > 0 && message.length <= self.setup.max_message);
            assert!(message.remote_offset + u64::from(message.length) <= u64::from(self.setup.peer_ring));
            for (n, byte) in self.send_ring[start..start + length].iter_mut().enumerate() {
                *byte = pattern(self.side, self.written + n as u64);
            }
            self.written += length as u64;
            sent += length;
            let write = |immediate| Request::Write {
                remote: message.remote_offset,
                local: message.local_offset,
                length: message.length,
                immediate,
            };
            match self.setup.words {
                WordFormat::Immediate => self.post(&[write(Some(message.word))], message.ticket, true),
                WordFormat::Iwarp => {
                    self.post(&[write(None), Request::Word(message.word)], message.ticket, true);
                }
            }
        }
        if wanted > sendable {
            assert!(self.stream.next_write(1).is_none(), "more than sendable said");
        }
        sent
    }

    /// The provider sends what control messages there are.
    pub(super) fn send_controls(&mut self) {
        while let Some(message) = self.stream.next_control() {
            let request = match self.setup.words {
                WordFormat::Immediate => Request::Immediate(message.word),
                WordFormat::Iwarp => Request::Word(message.word),
            };
            self.post(&[request], message.ticket, false);
            self.controls += 1;
        }
    }

    /// The application reads up to `wanted` bytes in one call.
    pub(super) fn read(&mut self, wanted: usize) -> usize {
        let wanted = wanted.min(self.stream.readable());
        let mut copied = 0;
        while copied < wanted {
            let span = self.stream.span(copied, wanted - copied);
            assert!(span.length > 0, "readable bytes have a span");
            let start = span.offset as usize;
            for byte in &self.ring[start..start + span.length as usize] {
                let expected = pattern(1 - self.side, self.read);
                assert_eq!(*byte, expected, "byte {} read by side {}", self.read, self.side);
                self.read += 1;
            }
            copied += span.length as usize;
        }
        assert_eq!(self.stream.span(copied, usize::MAX).length == 0, copied == self.stream.readable());
        self.stream.consume(copied);
        copied
    }

    /// The provider sees one completion of a receive, and posts the receive again.
    pub(super) fn take_arrival(&mut self) -> bool {
        let Some(arrival) = self.arrivals.pop_front() else { return false };
        self.receives += 1;
        self.stream.on_arrival(arrival).expect("the peer follows the protocol");
        true
    }

    /// The provider sees one completion of a send.
    pub(super) fn take_completion(&mut self) -> bool {
        let Some(id) = self.completions.pop_front() else { return false };
        self.busy.pop_front();
        self.stream.on_sent(id);
        true
    }

    /// At rest a side that may send has room, as much as is promised.
    pub(super) fn check_room(&self, sendable: usize) {
        assert!(sendable > 0, "stuck at rest");
        let setup = &self.setup;
        let promised = GUARANTEED_ROOM.min(setup.peer_ring).min(setup.send_ring);
        let crosses = |ring: u32| self.written % u64::from(ring) + u64::from(promised) > u64::from(ring);
        let pieces = 1 + u32::from(crosses(setup.peer_ring)) + u32::from(crosses(setup.send_ring));
        let messages = match (setup.peer_receives, setup.local_receives) {
            (3, 3) => 1,
            (..7, _) => 2,
            _ => 3,
        };
        if pieces <= messages && setup.send_depth >= 8 && setup.max_message >= GUARANTEED_ROOM {
            assert!(sendable >= promised as usize, "{sendable} bytes sendable, {promised} promised");
        }
    }

    /// How the calls of a side answer once the transport is gone or both sides ended.
    pub(super) fn check_end(&self, orderly: bool, cut: bool) {
        let (receive, send) = (self.stream.receive_end(), self.stream.sendable());
        if cut {
            assert!(self.stream.is_over());
        }
        match receive {
            RecvState::Ended => {}
            RecvState::Reset => assert!(!orderly && !self.dropped),
            RecvState::Open => assert!(!cut && !self.dropped, "nothing can come"),
        }
        match send {
            Err(SendEnd::Shut) => {}
            Err(SendEnd::Reset) => assert!(!self.shut && !orderly),
            Ok(_) => assert!(!cut && !self.shut, "there is nobody to send to"),
        }
    }
}
