//! Who may send what: the credits and the offers of one connection. Nothing here posts anything.
//!
//! A side that has told the other of *n* receives has them posted. A message of the program takes a credit,
//! and so does an offer. `Done` and `Credit` take none, so a side has receives for those besides:
//! - one `Done` for each of its offers, of which it has a bounded number under way;
//! - two `Credit`: one is sent only when the peer has no credit left, which shows that it has taken all
//!   earlier ones, or when it returns half of the window. So at most two have not been taken.

use super::wire::{Header, Hello, Kind, decode_place};
use super::{Options, Violation};
use crate::typed::Remote;

/// Receives for `Credit` messages.
const CREDIT_RECEIVES: u32 = 2;

/// Number of receives that a side has posted.
pub(super) fn receives(options: &Options) -> u32 {
    u32::from(options.window) + reserve(options)
}

/// Those of them that take no credit.
fn reserve(options: &Options) -> u32 {
    u32::from(options.offers) + CREDIT_RECEIVES
}

/// What a message means to the side that it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It contains a message of the program.
    Message,
    /// A message of the program is in this memory of the peer.
    Offer(Remote),
    /// The peer has read the oldest offer.
    Done,
    /// It only had credits.
    Credit,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Flow {
    window: u16,
    reserve: u32,
    peer_window: u16,
    /// Longest message that is not offered.
    eager: u32,
    /// Longest message that this side takes, and that the peer takes.
    longest: u32,
    peer_longest: u32,
    /// Number of offers of one side that may be under way.
    most_offers: u8,
    /// Number of messages that this side may send.
    credits: u16,
    /// Number of messages that the peer may send.
    granted: u16,
    /// Number of offers of this side that the peer has not read.
    offered: u8,
    /// Number of offers of the peer of which this side has not said that it has read them.
    unread: u8,
}

impl Flow {
    /// The side that connects may send at once. It begins with a message that has credits: over iWARP the
    /// other side may not be the first to send.
    pub(super) fn new(options: &Options, peer: &Hello, connects: bool) -> Self {
        Self {
            window: options.window,
            reserve: reserve(options),
            peer_window: peer.window,
            eager: options.eager.min(peer.eager),
            longest: options.longest,
            peer_longest: peer.longest,
            most_offers: options.offers.min(peer.offers),
            credits: if connects { peer.window } else { 0 },
            granted: if connects { 0 } else { options.window },
            offered: 0,
            unread: 0,
        }
    }

    /// Longest message that the peer takes.
    pub(super) fn peer_longest(&self) -> u32 {
        self.peer_longest
    }

    /// Whether a message of this length is not offered.
    pub(super) fn is_eager(&self, length: u32) -> bool {
        length <= self.eager
    }

    /// Whether this side may send a message of this kind.
    pub(super) fn may_send(&self, kind: Kind) -> bool {
        match kind {
            Kind::Eager => self.credits > 0,
            Kind::Offer => self.credits > 0 && self.offered < self.most_offers,
            Kind::Done => self.unread > 0,
            Kind::Credit => true,
        }
    }

    /// Number of credits that this side can return, if it has this number of receives posted.
    pub(super) fn returnable(&self, receives: usize) -> u16 {
        let receives = u32::try_from(receives).unwrap_or(u32::MAX);
        let free = receives.saturating_sub(self.reserve).saturating_sub(self.granted.into());
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Whether to return these credits by a message that has nothing else.
    pub(super) fn is_due(&self, returnable: u16) -> bool {
        returnable > 0 && (self.granted == 0 || returnable >= self.window.div_ceil(2))
    }

    /// Notes that this side has sent a message.
    pub(super) fn sent(&mut self, header: &Header) {
        self.granted = self.granted.saturating_add(header.credits);
        match header.kind {
            Kind::Eager => self.credits = self.credits.saturating_sub(1),
            Kind::Offer => {
                self.credits = self.credits.saturating_sub(1);
                self.offered = self.offered.saturating_add(1);
            }
            Kind::Done => self.unread = self.unread.saturating_sub(1),
            Kind::Credit => {}
        }
    }

    /// Notes a message of the peer.
    pub(super) fn arrived(&mut self, message: &[u8]) -> Result<Arrival, Violation> {
        let (header, rest) = Header::decode(message)?;
        let Header { kind, credits: more, length } = header;
        let (held, window) = (self.credits, self.peer_window);
        self.credits = held
            .checked_add(more)
            .filter(|&credits| credits <= window)
            .ok_or(Violation::TooManyCredits { held, more, window })?;
        let wrong_length = Violation::WrongLength { said: length, arrived: rest.len() };
        match kind {
            Kind::Eager => {
                self.take_credit()?;
                self.check_length(length, 0, self.eager)?;
                if rest.len() != length as usize {
                    return Err(wrong_length);
                }
                Ok(Arrival::Message)
            }
            Kind::Offer => {
                self.take_credit()?;
                self.check_length(length, self.eager.saturating_add(1), self.longest)?;
                let place = decode_place(rest, length).ok_or(wrong_length)?;
                if self.unread == self.most_offers {
                    return Err(Violation::TooManyOffers { most: self.most_offers });
                }
                self.unread += 1;
                Ok(Arrival::Offer(place))
            }
            Kind::Done | Kind::Credit if length > 0 || !rest.is_empty() => Err(wrong_length),
            Kind::Done => {
                self.offered = self.offered.checked_sub(1).ok_or(Violation::NothingOffered)?;
                Ok(Arrival::Done)
            }
            Kind::Credit if more == 0 => Err(Violation::NoCredits),
            Kind::Credit => Ok(Arrival::Credit),
        }
    }

    fn take_credit(&mut self) -> Result<(), Violation> {
        self.granted = self.granted.checked_sub(1).ok_or(Violation::Unannounced)?;
        Ok(())
    }

    fn check_length(&self, length: u32, least: u32, most: u32) -> Result<(), Violation> {
        let is_valid = (least..=most).contains(&length);
        if is_valid { Ok(()) } else { Err(Violation::LengthOutOfRange { length, least, most }) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::encode_place;
    use super::*;

    const OPTIONS: Options = Options { eager: 16, longest: 64, window: 3, offers: 2, queue: 4 };

    fn flow(connects: bool) -> Flow {
        Flow::new(&OPTIONS, &Hello::new(&OPTIONS), connects)
    }

    fn message(kind: Kind, credits: u16, length: u32, rest: &[u8]) -> Vec<u8> {
        [&Header { kind, credits, length }.encode()[..], rest].concat()
    }

    /// Every message that both sides exchange, in every order: a small model of both sides and the wires
    /// between them. No message without a receive, no end of progress while both programs go on.
    #[test]
    fn no_receive_is_missed_and_nothing_stands_still() {
        for window in 1..=3 {
            for offers in 1..=2 {
                let options = Options { window, offers, ..OPTIONS };
                for seed in 0..2_000 {
                    Model::new(options).play(seed);
                }
            }
        }
    }

    /// Two sides; `wires[n]` is what side n has not taken.
    struct Model {
        options: Options,
        flows: [Flow; 2],
        wires: [std::collections::VecDeque<Vec<u8>>; 2],
        /// Receives that are posted, without those whose message is still on the wire.
        posted: [usize; 2],
        /// Messages that the programs hold: each has a receive.
        held: [usize; 2],
    }

    impl Model {
        fn new(options: Options) -> Self {
            let hello = Hello::new(&options);
            let flows = [true, false].map(|connects| Flow::new(&options, &hello, connects));
            let posted = [receives(&options) as usize; 2];
            Self { options, flows, wires: Default::default(), posted, held: [0; 2] }
        }

        fn send(&mut self, side: usize, kind: Kind) -> bool {
            let flow = &mut self.flows[side];
            // A receive counts as posted until its message has been taken.
            let returnable = flow.returnable(self.posted[side] + self.wires[side].len());
            if !flow.may_send(kind) || (kind == Kind::Credit && !flow.is_due(returnable)) {
                return false;
            }
            let length = if kind == Kind::Offer { 64 } else { 0 };
            let place = encode_place(Remote { key: 1, address: 2, length });
            let rest: &[u8] = if kind == Kind::Offer { &place } else { b"" };
            let header = Header { kind, credits: returnable, length };
            flow.sent(&header);
            self.wires[1 - side].push_back(message(kind, returnable, length, rest));
            let room = &mut self.posted[1 - side];
            *room = room.checked_sub(1).expect("a message finds a receive");
            true
        }

        fn take(&mut self, side: usize) -> bool {
            let Some(message) = self.wires[side].pop_front() else { return false };
            match self.flows[side].arrived(&message).unwrap() {
                Arrival::Message | Arrival::Offer(_) => self.held[side] += 1,
                Arrival::Done | Arrival::Credit => self.posted[side] += 1,
            }
            true
        }

        fn release(&mut self, side: usize) -> bool {
            let holds = self.held[side] > 0;
            self.held[side] -= usize::from(holds);
            self.posted[side] += usize::from(holds);
            holds
        }

        fn play(&mut self, seed: u64) {
            let mut state = seed;
            let mut below = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            for _ in 0..200 {
                let side = below(2) as usize;
                match below(6) {
                    0 => self.send(side, Kind::Eager),
                    1 => self.send(side, Kind::Offer),
                    2 => self.send(side, Kind::Done),
                    3 => self.send(side, Kind::Credit),
                    4 => self.take(side),
                    _ => self.release(side),
                };
            }
            // Both programs give back what they hold, and nothing else is sent but what has to be.
            for side in [0, 1, 0, 1, 0, 1, 0, 1] {
                while self.take(side) || self.release(side) || self.send(side, Kind::Done) {}
                self.send(side, Kind::Credit);
            }
            for side in [0, 1] {
                assert!(self.flows[side].may_send(Kind::Offer), "{:?}: {:?}", self.options, self.flows[side]);
            }
        }
    }

    #[test]
    fn lies_are_found() {
        let place = encode_place(Remote { key: 1, address: 2, length: 0 });
        let offer = |length| message(Kind::Offer, 0, length, &place);
        let refused = |message: &[u8]| flow(false).arrived(message).unwrap_err().to_string();
        assert_eq!(refused(&message(Kind::Eager, 4, 0, b"")), "4 credits more than 0 exceed the window of 3");
        assert_eq!(refused(&message(Kind::Eager, 0, 1, b"")), "the header says 1 bytes, 0 arrived");
        assert_eq!(refused(&message(Kind::Eager, 0, 17, &[0; 17])), "a length of 17 is not within 0 to 16");
        assert_eq!(refused(&offer(16)), "a length of 16 is not within 17 to 64");
        assert_eq!(refused(&offer(65)), "a length of 65 is not within 17 to 64");
        assert_eq!(refused(&message(Kind::Offer, 0, 64, b"")), "the header says 64 bytes, 0 arrived");
        assert_eq!(refused(&message(Kind::Done, 0, 0, b"")), "the peer has read an offer that was not made");
        assert_eq!(refused(&message(Kind::Done, 0, 0, b"?")), "the header says 0 bytes, 1 arrived");
        assert_eq!(refused(&message(Kind::Credit, 0, 0, b"")), "a message of credits has none");
        // The side that connects has granted nothing yet.
        let error = flow(true).arrived(&message(Kind::Eager, 0, 0, b"")).unwrap_err();
        assert_eq!(error, Violation::Unannounced);
        let mut flow = flow(false);
        for _ in 0..2 {
            assert!(matches!(flow.arrived(&offer(64)), Ok(Arrival::Offer(memory)) if memory.length == 64));
        }
        assert_eq!(flow.arrived(&offer(64)), Err(Violation::TooManyOffers { most: 2 }));
    }
}
