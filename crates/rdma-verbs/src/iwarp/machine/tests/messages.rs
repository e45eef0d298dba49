//! Machines for messages, joined by queues. One seed determines all events.
//!
//! There is one connection, or two whose ends on one host share their receives. Each party posts sends,
//! writes and reads, and sometimes receives. Connections fail. The outcome is compared with a model: every
//! request completes once and in order, messages deliver their bytes and immediate data to the oldest
//! receive, and no place is accessed after its request is done.

use std::collections::VecDeque;

use super::joined::Chance;
use super::*;
use crate::{CompletionKind, Place, RegionName};

/// Number of seeds.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };
const STEPS: usize = 150;
const ARENA: u32 = 256 * 1024;
const WINDOW: u32 = 16 * 1024;
/// Longest message.
const LONGEST: usize = 6000;
/// Content of a place before its request is posted, and after it is done.
const CANARY: u8 = 0xee;

/// Memory for all seeds.
struct Ground {
    arenas: [Place; 4],
    windows: [Place; 4],
    scratch: Vec<u8>,
}

/// A posted receive.
struct Receive {
    id: u64,
    places: Vec<Place>,
}

/// An expected delivery from the peer.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Message { bytes: Vec<u8>, immediate: Option<u64> },
    Written { length: u32, immediate: u64 },
}

/// A posted send, write or read.
struct Posted {
    id: u64,
    signaled: bool,
    kind: CompletionKind,
    places: Vec<Place>,
    /// The expected result of a read.
    fetches: Vec<u8>,
}

/// One end of a connection, with its part of the model.
struct Party {
    machine: Machine,
    region: MemoryRegion,
    arena: Place,
    /// Number of bytes of the arena that have been used.
    used: usize,
    pipe: Pipe,
    completions: Vec<Completion>,
    inline: usize,
    receives: VecDeque<Receive>,
    expected: VecDeque<Expected>,
    /// The expected content of the region when everything is delivered.
    image: Vec<u8>,
    /// Whether writes with immediate data are held.
    holds: bool,
    /// Whether one may nevertheless arrive.
    may_pass: bool,
    posted: VecDeque<Posted>,
    next_id: u64,
    /// Places of requests that are done.
    done: Vec<Place>,
}

struct Run<'g> {
    ground: &'g mut Ground,
    /// The parties. Each is connected to the one whose number differs in the last bit.
    parties: Vec<Party>,
    /// The receives that the parties with an even number share, if they do.
    shared: Option<Arc<Mutex<SharedReceives>>>,
    common: VecDeque<Receive>,
    next_common: u64,
    /// One for each connection.
    stands: Vec<bool>,
    /// How many of 8 chances to post a receive are used.
    eagerness: usize,
    chance: Chance,
}

impl Party {
    fn new(number: usize, ground: &Ground, run: &Setting, chance: &mut Chance) -> Self {
        let domain = ProtectionDomain::default();
        let (arena, window) = (ground.arenas[number], ground.windows[number]);
        window.fill(&pattern(number * 77, WINDOW as usize));
        let name = RegionName {
            key: std::num::NonZeroU32::new(1 + chance.below(1000) as u32),
            // The last addresses that exist.
            address: u64::MAX - u64::from(WINDOW) - chance.below(2) as u64 * chance.below(1 << 30) as u64,
        };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.register_as(window.lend(), access, name).unwrap();
        let inline = [0, 100, LONGEST][chance.below(3)];
        let capabilities = QpCapabilities { inline, ..CAPABILITIES };
        let shared = run.shared.clone().filter(|_| number.is_multiple_of(2));
        let qp = QpId(number as u32);
        let mut machine = Machine::for_messages(qp, &domain, capabilities, run.max_payload, shared);
        machine.establish(&Agreement {
            crc: run.crc,
            initiator_depth: 2,
            responder_resources: 2,
            side: if number.is_multiple_of(2) { Side::Active } else { Side::Passive },
            rtr: false,
        });
        Self {
            machine,
            region,
            arena,
            used: 0,
            pipe: Pipe::default(),
            completions: Vec::new(),
            inline,
            receives: VecDeque::new(),
            expected: VecDeque::new(),
            image: window.bytes().to_vec(),
            holds: false,
            may_pass: false,
            posted: VecDeque::new(),
            next_id: 0,
            done: Vec::new(),
        }
    }

    /// Up to four places of up to `most` bytes in all, which hold the canary. There are fewer when the arena
    /// is used up.
    fn places(&mut self, most: usize, chance: &mut Chance) -> Vec<Place> {
        let mut left = if chance.below(3) == 0 { most } else { chance.below(most + 1) };
        let number = chance.below(MAX_PLACES) + 1;
        let mut places = Vec::new();
        for at in 1..=number {
            let length = if at == number { left } else { chance.below(left + 1) };
            let place = self.arena.part(self.used, length);
            blank(&place);
            self.used += place.len();
            left -= length;
            places.push(place);
        }
        places
    }

    /// Fills places with unique bytes, and returns these.
    fn compose(&mut self, places: &[Place]) -> Vec<u8> {
        let bytes = pattern(self.next_id as usize * 131, places.iter().map(Place::len).sum());
        let mut from = 0;
        for place in places {
            from += place.fill(&bytes[from..]);
        }
        bytes
    }

    /// Records that requests are done: from now on, nothing may access their places.
    fn retire(&mut self, places: Vec<Place>) {
        for place in places {
            blank(&place);
            self.done.push(place);
        }
    }

    fn post(&mut self, request: &SendRequest<'_>, more: bool, scratch: &mut [u8]) -> bool {
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
        match self.machine.post_send(&[*request], more, &mut port) {
            Ok(()) => true,
            Err(Error::QueueFull { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn pump(&mut self, scratch: &mut [u8]) {
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
        assert_eq!(self.machine.pump(&mut port), Ok(()));
    }

    /// Flushes the machine: what is outstanding fails, except reads whose response is here. `took_input`: whether it
    /// has taken any that it had no chance to act on.
    fn flush(&mut self, took_input: bool) {
        let (room, is_between) = (self.machine.send_room(), self.machine.is_between_messages());
        let (outstanding, receives) = (CAPABILITIES.send_depth as usize - room, self.receives.len());
        self.machine.flush(None, &mut self.completions);
        let (received, sent): (Vec<_>, Vec<_>) = std::mem::take(&mut self.completions)
            .into_iter()
            .partition(|done| done.kind == CompletionKind::Recv);
        assert_eq!(received.len(), receives);
        for done in received {
            assert_eq!(done.status, CompletionStatus::Flushed);
            let receive = self.receives.pop_front().expect("one for each completion");
            assert_eq!(receive.id, done.id);
            self.retire(receive.places);
        }
        // The reads that the input completed may be unsignaled.
        assert!(sent.len() == outstanding || sent.len() < outstanding && took_input);
        assert!(sent.is_sorted_by_key(|done| done.status != CompletionStatus::Success), "in order");
        for done in sent {
            if done.status != CompletionStatus::Success {
                assert_eq!(done.status, CompletionStatus::Flushed);
                assert!(!is_between || !self.is_answered(done.id), "the response to {} is here", done.id);
            }
            self.completed(&done);
        }
        while let Some(posted) = self.posted.pop_front() {
            assert!(!posted.signaled, "request {} was forgotten", posted.id);
            self.retire(posted.places);
        }
    }

    /// Whether a request is a read, of some bytes, that has them all.
    fn is_answered(&self, id: u64) -> bool {
        let read = self.posted.iter().find(|posted| posted.id == id && posted.kind == CompletionKind::Read);
        read.is_some_and(|read| !read.fetches.is_empty() && gathered(&read.places) == read.fetches)
    }

    /// Checks that `done` belongs to the oldest request, apart from unsignaled ones.
    fn completed(&mut self, done: &Completion) {
        loop {
            let posted = self.posted.pop_front().expect("a request for each completion");
            if done.status == CompletionStatus::Success && posted.kind == CompletionKind::Read {
                assert_eq!(gathered(&posted.places), posted.fetches, "what a read brought");
            }
            self.retire(posted.places);
            if posted.id == done.id {
                assert_eq!(posted.kind, done.kind);
                assert!(posted.signaled || done.status != CompletionStatus::Success);
                break;
            }
            assert!(!posted.signaled, "request {} was passed over", posted.id);
        }
    }
}

/// Choices of a seed for a whole run.
struct Setting {
    crc: bool,
    max_payload: usize,
    shared: Option<Arc<Mutex<SharedReceives>>>,
}

impl<'g> Run<'g> {
    fn new(seed: u64, ground: &'g mut Ground) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let connections = 1 + chance.below(2);
        let is_shared = connections == 2 || chance.below(3) == 0;
        let setting = Setting {
            crc: chance.below(2) == 0,
            max_payload: [8, 50, 1000, 4000, usize::MAX][chance.below(5)],
            shared: is_shared
                .then(|| Arc::new(Mutex::new(SharedReceives::new(16, &ProtectionDomain::default())))),
        };
        let parties =
            (0..2 * connections).map(|number| Party::new(number, ground, &setting, &mut chance)).collect();
        let (common, stands) = (VecDeque::new(), vec![true; connections]);
        let eagerness = chance.below(8) + 1;
        Self { ground, parties, shared: setting.shared, common, next_common: 0, stands, eagerness, chance }
    }

    fn step(&mut self) {
        let at = self.chance.below(self.parties.len());
        if !self.stands[at / 2] {
            return self.receive(at);
        }
        match self.chance.below(16) {
            0..3 => self.send(at),
            3 => self.write(at),
            4 => self.read(at),
            5 => {
                self.parties[at].pipe.room = self.chance.below(3 * LONGEST);
                self.parties[at].pump(&mut self.ground.scratch);
            }
            6..8 if self.chance.below(8) < self.eagerness => self.receive(at),
            8 => self.cancel(at),
            9 if self.chance.below(20) == 0 => self.kill(at / 2),
            10 => self.hold(at),
            _ => self.carry(at),
        }
        self.check(at);
        self.check(at ^ 1);
    }

    fn uses_shared(&self, at: usize) -> bool {
        self.shared.is_some() && at.is_multiple_of(2)
    }

    fn receive(&mut self, at: usize) {
        let most = [LONGEST, LONGEST, 600, 41, 40, 39][self.chance.below(6)];
        let places = self.parties[at].places(most, &mut self.chance);
        // A receive of no bytes has places or not.
        let is_empty = places.iter().all(Place::is_empty) && self.chance.below(2) == 0;
        let buffer = if is_empty { Buffer::Empty } else { Buffer::Places(&places) };
        if let (true, Some(shared)) = (self.uses_shared(at), self.shared.clone()) {
            let id = self.next_common;
            let posted = shared.lock().post(&[RecvRequest { id, buffer }]);
            if posted.is_ok() {
                self.next_common += 1;
                self.common.push_back(Receive { id, places });
            }
            self.serve_waiting();
        } else if self.stands[at / 2] {
            let party = &mut self.parties[at];
            // Ids may be equal.
            let id = self.chance.below(4) as u64;
            if party.machine.post_recv(&[RecvRequest { id, buffer }]).is_ok() {
                party.receives.push_back(Receive { id, places });
                assert_eq!(party.machine.resume(&mut party.completions), Ok(()));
                party.pump(&mut self.ground.scratch);
            }
        }
        self.check(at);
    }

    /// Holds writes with immediate data, or lets them pass.
    fn hold(&mut self, at: usize) {
        let party = &mut self.parties[at];
        // One may have begun to arrive.
        (party.holds, party.may_pass) = (!party.holds, true);
        party.machine.hold_writes(party.holds);
        assert_eq!(party.machine.resume(&mut party.completions), Ok(()));
        party.pump(&mut self.ground.scratch);
        self.check(at);
    }

    /// Resumes the parties that wait for shared receives, as the completion queue does.
    fn serve_waiting(&mut self) {
        let Some(shared) = self.shared.clone() else { return };
        loop {
            let Some(next) = shared.lock().next_waiting() else { break };
            let party = &mut self.parties[next.0 as usize];
            assert_eq!(party.machine.resume(&mut party.completions), Ok(()));
            if self.stands[next.0 as usize / 2] {
                party.pump(&mut self.ground.scratch);
            }
            self.check(next.0 as usize);
        }
    }

    /// Posts a request whose payload is in `places`, or inline if that is possible and random choice selects
    /// it.
    fn post(&mut self, at: usize, operation: Operation, places: Vec<Place>) -> Option<Vec<u8>> {
        let (signaled, more) = (self.chance.below(4) > 0, self.chance.below(4) == 0);
        let by_copy = self.chance.below(2) == 0;
        let party = &mut self.parties[at];
        let (id, bytes) = (party.next_id, party.compose(&places));
        let slices = [IoSlice::new(&bytes)];
        let payload = match by_copy && bytes.len() <= party.inline {
            true => Payload::Inline(&slices),
            false => Payload::Places(&places),
        };
        let request = SendRequest { id, signaled, operation, payload };
        if !party.post(&request, more, &mut self.ground.scratch) {
            return None;
        }
        party.next_id += 1;
        let kind = match operation {
            Operation::Send { .. } => CompletionKind::Send,
            _ => CompletionKind::Write,
        };
        let places = if matches!(payload, Payload::Places(_)) { places } else { Vec::new() };
        party.posted.push_back(Posted { id, signaled, kind, places, fetches: Vec::new() });
        Some(bytes)
    }

    fn immediate(&mut self) -> Option<u64> {
        (self.chance.below(2) == 0).then(|| self.chance.below(1 << 31) as u64 * 0x1_0000_0007)
    }

    fn send(&mut self, at: usize) {
        let most = [0, 40, LONGEST][self.chance.below(3)];
        let (places, immediate) = (self.parties[at].places(most, &mut self.chance), self.immediate());
        let solicited = self.chance.below(2) == 0;
        if let Some(bytes) = self.post(at, super::send(immediate, None, solicited), places) {
            let peer = &mut self.parties[at ^ 1];
            peer.expected.push_back(Expected::Message { bytes, immediate });
        }
    }

    /// Writes go to the lower half of the peer's region.
    fn write(&mut self, at: usize) {
        let (places, immediate) = (self.parties[at].places(LONGEST, &mut self.chance), self.immediate());
        let length: usize = places.iter().map(Place::len).sum();
        let to = self.chance.below(WINDOW as usize / 2 - length + 1);
        let remote = self.remote(at ^ 1, to);
        if let Some(bytes) = self.post(at, Operation::Write { remote, immediate }, places) {
            let peer = &mut self.parties[at ^ 1];
            peer.image[to..to + length].copy_from_slice(&bytes);
            if let Some(immediate) = immediate {
                let length = length as u32;
                peer.expected.push_back(Expected::Written { length, immediate });
            }
        }
    }

    /// Reads fetch from the upper half, which does not change.
    fn read(&mut self, at: usize) {
        let places = self.parties[at].places(LONGEST, &mut self.chance);
        let length: usize = places.iter().map(Place::len).sum();
        let half = WINDOW as usize / 2;
        let from = half + self.chance.below(half - length + 1);
        let remote = self.remote(at ^ 1, from);
        let fetches = self.parties[at ^ 1].image[from..from + length].to_vec();
        let (signaled, more) = (self.chance.below(4) > 0, self.chance.below(4) == 0);
        let party = &mut self.parties[at];
        let (id, operation) = (party.next_id, Operation::Read { remote });
        let request = SendRequest { id, signaled, operation, payload: Payload::Places(&places) };
        if party.post(&request, more, &mut self.ground.scratch) {
            party.next_id += 1;
            party.posted.push_back(Posted { id, signaled, kind: CompletionKind::Read, places, fetches });
        }
    }

    fn remote(&self, at: usize, offset: usize) -> RemoteAddress {
        let region = &self.parties[at].region;
        RemoteAddress { key: region.remote_key(), address: region.address() + offset as u64 }
    }

    /// Cancels the newest receive with some id. A receive that a message has consumed stays.
    fn cancel(&mut self, at: usize) {
        let id = self.chance.below(8) as u64;
        let shared = self.shared.clone().filter(|_| at.is_multiple_of(2));
        let (receives, id, cancelled, taken) = match shared {
            Some(shared) => {
                let id = id + self.next_common.saturating_sub(8);
                let mut taken = self.parties.iter().map(|party| party.machine.receiver.shared_receive());
                let is_taken = taken.any(|taken| taken == Some(id));
                let at = self.common.iter().position(|receive| receive.id == id).filter(|_| is_taken);
                (&mut self.common, id, shared.lock().receives.cancel(id, false), at)
            }
            None => {
                let party = &mut self.parties[at];
                let taken = party.machine.receiver.is_in_message().then_some(0);
                (&mut party.receives, id, party.machine.cancel_recv(id), taken)
            }
        };
        let found = receives.iter().rposition(|receive| receive.id == id);
        assert_eq!(cancelled, found.is_some() && found != taken);
        if cancelled {
            let receive = found.and_then(|found| receives.remove(found)).expect("one that was posted");
            self.parties[at].retire(receive.places);
        }
    }

    /// Carries some of the peer's output to a party.
    fn carry(&mut self, at: usize) {
        let there = self.parties[at ^ 1].pipe.bytes.len();
        let count = self.chance.below(there + 1);
        let bytes: Vec<u8> = self.parties[at ^ 1].pipe.bytes.drain(..count).collect();
        let left = self.bring(at, &bytes);
        self.parties[at ^ 1].pipe.bytes.splice(..0, bytes[count - left..].iter().copied());
    }

    /// Passes bytes as a socket does, and sends what they allow. Returns how many are left because a message waits
    /// for a receive.
    fn bring(&mut self, at: usize, bytes: &[u8]) -> usize {
        let left = self.take(at, bytes);
        self.parties[at].pump(&mut self.ground.scratch);
        left
    }

    /// The same without sending.
    fn take(&mut self, at: usize, mut bytes: &[u8]) -> usize {
        let straight = self.chance.below(2) == 0;
        while !bytes.is_empty() && !self.parties[at].machine.is_stalled() {
            let party = &mut self.parties[at];
            if straight && let Some(spaced) = party.machine.spaced_target() {
                let mut gaps = [0; 1024];
                let count = spaced.fill(&bytes[..self.chance.below(bytes.len() + 1)], &mut gaps);
                let taken = party.machine.take_spaced(&spaced, &gaps, count, &mut party.completions);
                assert_eq!(taken, Ok(()));
                bytes = &bytes[count..];
                continue;
            }
            let placed = match party.machine.target() {
                Some(place) if straight => {
                    assert!(place.length > 0);
                    place.fill(&bytes[..bytes.len().min(1 + self.chance.below(LONGEST))])
                }
                _ => 0,
            };
            party.machine.placed(placed);
            bytes = &bytes[placed..];
            let (now, later) = bytes.split_at(self.chance.below(bytes.len() + 1));
            assert_eq!(party.machine.feed(now, &mut party.completions), Ok(()));
            assert!(party.machine.receiver.kept() <= now.len(), "no more is kept than was fed");
            bytes = later;
        }
        bytes.len()
    }

    /// Fails a connection, perhaps after the last input: all that is outstanding is flushed, and nothing moves any
    /// more.
    fn kill(&mut self, connection: usize) {
        self.stands[connection] = false;
        for at in [2 * connection, 2 * connection + 1] {
            self.check(at);
            let left = std::mem::take(&mut self.parties[at ^ 1].pipe.bytes);
            let mut dropped = left.as_slice();
            if self.chance.below(2) == 0 {
                let taken = left.len() - self.take(at, &left);
                dropped = &left[taken..];
                self.check(at);
            }
            let party = &mut self.parties[at];
            let given_back = party.machine.receiver.shared_receive();
            party.flush(dropped.len() < left.len());
            // The received part of a message stays in the receive that it had begun to fill.
            for receive in self.common.iter().filter(|receive| Some(receive.id) == given_back) {
                receive.places.iter().for_each(blank);
            }
            assert!(!party.machine.is_stalled() && party.machine.target().is_none());
            assert_eq!(party.machine.feed(dropped, &mut party.completions), Ok(()));
            assert_eq!(party.completions, []);
            party.expected.clear();
        }
        if let Some(shared) = self.shared.clone() {
            let taken = self.parties.iter().filter_map(|party| party.machine.receiver.shared_receive());
            assert_eq!(shared.lock().receives.posted() + taken.count(), self.common.len());
        }
        self.serve_waiting();
    }

    /// Compares the deliveries to a party with the model.
    fn check(&mut self, at: usize) {
        for done in std::mem::take(&mut self.parties[at].completions) {
            match done.kind {
                CompletionKind::Recv | CompletionKind::RecvWrite => self.delivered(at, &done),
                _ => {
                    assert_eq!(done.status, CompletionStatus::Success);
                    self.parties[at].completed(&done);
                }
            }
        }
        let party = &self.parties[at];
        let is_held = party.holds && matches!(party.expected.front(), Some(Expected::Written { .. }));
        if party.machine.is_stalled() && !is_held {
            match self.shared.as_ref().filter(|_| at.is_multiple_of(2)) {
                Some(shared) => assert_eq!(shared.lock().receives.posted(), 0),
                None => assert_eq!(self.parties[at].receives.len(), 0),
            }
        }
    }

    fn delivered(&mut self, at: usize, done: &Completion) {
        let expected = self.parties[at].expected.pop_front().expect("something that was sent");
        let (bytes, immediate) = match expected {
            Expected::Message { bytes, immediate } => (bytes, immediate),
            Expected::Written { length, immediate } => {
                let party = &mut self.parties[at];
                assert!(!party.holds || party.may_pass, "it is held");
                party.may_pass = false;
                let (qp, kind) = (QpId(at as u32), CompletionKind::RecvWrite);
                let (status, immediate) = (CompletionStatus::Success, Some(immediate));
                let id = Completion::NO_RECEIVE;
                let expected = Completion { qp, id, kind, status, length, immediate, ..Completion::EMPTY };
                assert_eq!(*done, expected);
                return;
            }
        };
        let shared = self.uses_shared(at);
        let receives = if shared { &mut self.common } else { &mut self.parties[at].receives };
        let found = receives.iter().position(|receive| receive.id == done.id).expect("one that was posted");
        // The message of another party may have consumed an older receive.
        assert!(found <= usize::from(shared), "receive {found} of those that are posted");
        let places = receives.remove(found).map(|receive| receive.places).unwrap_or_default();
        let found = gathered(&places);
        let fits = bytes.len().min(found.len());
        assert_eq!(found[..fits], bytes[..fits]);
        assert!(found[fits..].iter().all(|&byte| byte == CANARY), "nothing is behind a message");
        let is_cut = bytes.len() > found.len();
        let status = if is_cut { CompletionStatus::Truncated } else { CompletionStatus::Success };
        let (qp, kind, length) = (QpId(at as u32), CompletionKind::Recv, bytes.len() as u32);
        let expected = Completion { qp, id: done.id, kind, status, length, immediate, ..Completion::EMPTY };
        assert_eq!(*done, expected);
        self.parties[at].retire(places);
    }

    /// Delivers everything, with receives for all of it.
    fn finish(&mut self) {
        for party in &mut self.parties {
            party.pipe.room = usize::MAX;
        }
        let is_still =
            |party: &Party| party.expected.is_empty() && party.posted.iter().all(|it| !it.signaled);
        for _ in 0..10_000 {
            if self.parties.iter().all(is_still) && self.parties.iter().all(|it| it.pipe.bytes.is_empty()) {
                break;
            }
            for at in (0..self.parties.len()).filter(|at| self.stands[at / 2]).collect::<Vec<_>>() {
                self.parties[at].pump(&mut self.ground.scratch);
                self.check(at);
                self.carry(at);
                self.check(at);
                if self.parties[at].holds {
                    self.hold(at);
                }
                if self.parties[at].machine.is_stalled() {
                    self.receive(at);
                }
            }
        }
        for (at, party) in self.parties.iter().enumerate() {
            assert_eq!(party.expected, [], "what is sent to {at} is delivered");
            assert!(party.posted.iter().all(|posted| !posted.signaled), "what {at} posts completes");
            let stands = self.stands[at / 2];
            let region = contents(party.region.memory());
            assert!(!stands || region[..WINDOW as usize] == party.image, "what is written to {at} is there");
            let touched = party.done.iter().any(|place| place.bytes().iter().any(|&byte| byte != CANARY));
            assert!(!touched, "a place of {at} is touched after its request is done");
        }
    }
}

fn blank(place: &Place) {
    place.fill(&vec![CANARY; place.len()]);
}

fn gathered(places: &[Place]) -> Vec<u8> {
    places.iter().flat_map(|place| place.bytes()).copied().collect()
}

#[test]
fn machines_for_messages_agree_whatever_the_queues_do() {
    let mut ground = Ground {
        arenas: [(); 4].map(|()| Place::leaked(ARENA)),
        windows: [(); 4].map(|()| Place::leaked(WINDOW)),
        scratch: vec![0; SCRATCH],
    };
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut run = Run::new(seed, &mut ground);
            for _ in 0..STEPS {
                run.step();
            }
            run.finish();
        }));
        assert!(run.is_ok(), "seed {seed} fails");
    }
}
