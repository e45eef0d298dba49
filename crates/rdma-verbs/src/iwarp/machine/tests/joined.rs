//! Two machines joined by queues. One seed determines all events.
//!
//! Each side writes, sends and reads at random, and the queues carry random amounts at random times. The
//! outcome is compared with a model: messages arrive in order with their bytes, writes are placed before the
//! message that follows them is delivered, reads get what the memory holds, and requests complete in order.

use std::collections::VecDeque;

use super::*;
use crate::{Buffer, CompletionKind};

const SEEDS: u64 = 400;
const STEPS: usize = 300;
const RECEIVE: u32 = 3000;

/// xorshift64*.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// The expected delivery of a message.
#[derive(Debug)]
enum Expected {
    Send(Vec<u8>),
    Immediate { word: u64, written: Option<u32> },
}

/// One side's part of the model.
#[derive(Default)]
struct Model {
    expected: VecDeque<Expected>,
    /// Number of bytes written since the last message, if there was a write.
    written: Option<u32>,
    /// The expected content of the peer's region when everything is delivered.
    image: Vec<u8>,
    /// Ids of requests that are not complete, and whether they were signaled.
    posted: VecDeque<(u64, bool)>,
    /// Reads: id, offset in the own region, length, offset in the peer's region.
    reads: VecDeque<(u64, u64, u32, u64)>,
    next_id: u64,
    /// Receives: id and slot. A slot is free again when its receive is delivered.
    slots: VecDeque<u64>,
}

struct Pair {
    ends: [End; 2],
    models: [Model; 2],
    chance: Chance,
    /// Number of requests that were sent at once.
    at_once: usize,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let crc = seed.is_multiple_of(2);
        let ends = [End::new(Side::Active, crc), End::new(Side::Passive, crc)];
        let models = [0, 1].map(|_| Model { image: vec![0; SIZE], ..Model::default() });
        let chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut pair = Self { ends, models, chance, at_once: 0 };
        for side in 0..2 {
            // Messages are sent from the upper half of each own region, which does not change.
            let source = pattern(side * 1000, SIZE / 2);
            pair.ends[side].own().memory().write(SIZE as u64 / 2, &source).unwrap();
            for slot in 0..8 {
                pair.receive(side, slot);
            }
        }
        pair
    }

    fn receive(&mut self, side: usize, slot: u64) {
        let buffer = Buffer::Segment(self.ends[side].segment(slot * u64::from(RECEIVE), RECEIVE));
        let (machine, request) = (&mut self.ends[side].machine, RecvRequest { id: slot, buffer });
        if self.chance.below(2) == 0 || !machine.add_receive(&request) {
            machine.post_recv(&[request]).unwrap();
        }
        self.models[side].slots.push_back(slot);
    }

    fn step(&mut self) {
        let side = self.chance.below(2);
        match self.chance.below(7) {
            0 => self.write(side),
            1 => self.send(side),
            2 => self.read(side),
            3 => {
                let most = [6000, 60_000][self.chance.below(2)];
                self.ends[side].pipe.room = self.chance.below(most);
                self.ends[side].pump();
            }
            _ => self.carry(1 - side),
        }
        self.check(0);
        self.check(1);
    }

    /// Posts a request whose payload is inline or in registered memory, at random.
    fn post(&mut self, side: usize, operation: Operation, from: usize, length: usize, inline: bool) -> bool {
        let bytes = pattern(side * 1000 + from, length);
        let cut = if self.chance.below(2) == 0 { 0 } else { self.chance.below(length + 1) };
        let (first, second) = bytes.split_at(cut);
        let slices = [IoSlice::new(first), IoSlice::new(second)];
        let start = (SIZE / 2 + from) as u64;
        let end = &mut self.ends[side];
        let segments =
            [end.segment(start, cut as u32), end.segment(start + cut as u64, (length - cut) as u32)];
        let segments = if cut == 0 { &segments[1..] } else { &segments[..] };
        let payload = if inline { Payload::Inline(&slices) } else { Payload::Segments(segments) };
        self.request(side, operation, payload)
    }

    fn request(&mut self, side: usize, operation: Operation, payload: Payload<'_>) -> bool {
        let (signaled, more) = (self.chance.below(2) == 0, self.chance.below(4) == 0);
        let may_be_at_once = !more && self.chance.below(2) == 0;
        let (end, model) = (&mut self.ends[side], &mut self.models[side]);
        let request = SendRequest { id: model.next_id, signaled, operation, payload };
        let mut port = Port { wire: &mut end.pipe, sink: &mut end.completions, scratch: &mut end.scratch };
        let is_at_once = may_be_at_once && end.machine.send_at_once(&request, &mut port);
        self.at_once += usize::from(is_at_once);
        if !is_at_once {
            match end.machine.post_send(&[request], more, &mut port) {
                Ok(()) => {}
                Err(Error::QueueFull { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        model.posted.push_back((model.next_id, signaled));
        model.next_id += 1;
        true
    }

    fn write(&mut self, side: usize) {
        // Writes go to the lower half of the ring; reads take from the upper.
        let length = self.chance.below(9000);
        let (from, to) = (self.chance.below(SIZE / 2 - length), self.chance.below(SIZE / 2 - length));
        let with_immediate = self.chance.below(2) == 0 && self.may_send(side);
        let immediate = with_immediate.then_some(from as u64);
        let remote = self.ends[1 - side].remote(to as u64);
        let inline = self.chance.below(2) == 0;
        if self.post(side, Operation::Write { remote, immediate }, from, length, inline) {
            let bytes = pattern(side * 1000 + from, length);
            let model = &mut self.models[side];
            model.image[to..to + length].copy_from_slice(&bytes);
            let opening = model.next_id == 1 && length == 0;
            if !opening || side == 0 {
                model.written = Some(model.written.unwrap_or(0) + length as u32);
            }
            if let Some(word) = immediate {
                let written = model.written.take();
                model.expected.push_back(Expected::Immediate { word, written });
            }
        }
    }

    /// Whether the peer has a receive for another message.
    fn may_send(&self, side: usize) -> bool {
        self.models[side].expected.len() < self.models[1 - side].slots.len()
    }

    fn send(&mut self, side: usize) {
        if !self.may_send(side) {
            return;
        }
        let solicited = self.chance.below(2) == 0;
        if self.chance.below(3) == 0 {
            let word = self.chance.below(1 << 30) as u64;
            if self.request(side, super::send(Some(word), None, solicited), Payload::Inline(&[])) {
                let written = self.models[side].written.take();
                self.models[side].expected.push_back(Expected::Immediate { word, written });
            }
            return;
        }
        let (length, from) = (self.chance.below(RECEIVE as usize + 1), self.chance.below(SIZE / 4));
        let inline = self.chance.below(2) == 0;
        if self.post(side, super::send(None, None, solicited), from, length, inline) {
            self.models[side].written = None;
            let bytes = pattern(side * 1000 + from, length);
            self.models[side].expected.push_back(Expected::Send(bytes));
        }
    }

    fn read(&mut self, side: usize) {
        let length = self.chance.below(5000);
        // Sinks lie between the receives and the sources, sources in the peer's upper half.
        let to = 8 * u64::from(RECEIVE) + self.chance.below(SIZE / 2 - 8 * RECEIVE as usize - length) as u64;
        let from = (SIZE / 2 + self.chance.below(SIZE / 2 - length)) as u64;
        let remote = self.ends[1 - side].remote(from);
        let sink = self.ends[side].segment(to, length as u32);
        // One read at a time, so that sinks do not overlap under the comparison.
        let id = self.models[side].next_id;
        if self.models[side].reads.is_empty()
            && self.request(side, Operation::Read { remote }, Payload::Segments(&[sink]))
        {
            self.models[side].reads.push_back((id, to, length as u32, from));
        }
    }

    /// Carries some of what the other side has sent to `side`.
    fn carry(&mut self, side: usize) {
        let there = self.ends[1 - side].pipe.bytes.len();
        let count = self.chance.below(there + 1);
        let straight = self.chance.below(2) == 0;
        let bytes: Vec<u8> = self.ends[1 - side].pipe.bytes.drain(..count).collect();
        self.ends[side].take(&bytes, straight);
        assert_eq!(self.ends[side].fault, None);
    }

    /// Compares what `side` has seen with the models.
    fn check(&mut self, side: usize) {
        for done in std::mem::take(&mut self.ends[side].completions) {
            assert_eq!(done.status, CompletionStatus::Success);
            match done.kind {
                CompletionKind::Recv | CompletionKind::RecvWrite => self.delivered(side, &done),
                kind => self.completed(side, kind, done.id),
            }
        }
    }

    fn delivered(&mut self, side: usize, done: &Completion) {
        assert_eq!(self.models[side].slots.pop_front(), Some(done.id), "receives are taken in order");
        let expected = self.models[1 - side].expected.pop_front().expect("a message that was sent");
        match expected {
            Expected::Send(bytes) => {
                assert_eq!((done.kind, done.length), (CompletionKind::Recv, bytes.len() as u32));
                let mut found = vec![0; bytes.len()];
                self.ends[side].own().memory().read(done.id * u64::from(RECEIVE), &mut found).unwrap();
                assert_eq!(found, bytes);
            }
            Expected::Immediate { word, written } => {
                let kind = if written.is_some() { CompletionKind::RecvWrite } else { CompletionKind::Recv };
                let expected = (kind, written.unwrap_or(0), Some(word));
                assert_eq!((done.kind, done.length, done.immediate), expected);
            }
        }
        self.receive(side, done.id);
    }

    fn completed(&mut self, side: usize, kind: CompletionKind, id: u64) {
        loop {
            let (oldest, signaled) = self.models[side].posted.pop_front().expect("something was posted");
            assert!(oldest <= id, "a completion before one of an earlier request");
            assert!(oldest == id || !signaled, "a signaled request was passed over");
            self.models[side].reads.retain(|read| read.0 != oldest);
            if oldest == id {
                break;
            }
        }
        let _ = kind;
    }

    /// Lets everything arrive and compares the memories.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            for side in 0..2 {
                self.ends[side].pipe.room = usize::MAX;
                self.ends[side].pump();
                let bytes = std::mem::take(&mut self.ends[side].pipe.bytes);
                self.ends[1 - side].take(&bytes, true);
                assert_eq!(self.ends[1 - side].fault, None);
            }
            self.check(0);
            self.check(1);
            let still = |end: &End| end.machine.is_drained() && !end.machine.wants_wire();
            if self.ends.iter().all(still) && self.ends.iter().all(|end| end.pipe.bytes.is_empty()) {
                break;
            }
        }
        for side in 0..2 {
            assert!(self.models[side].expected.is_empty(), "everything sent is delivered");
            let posted = self.models[side].posted.iter().filter(|posted| posted.1).count();
            assert_eq!(posted, 0, "everything signaled is complete");
            assert_eq!(self.ends[1 - side].ring_bytes()[..SIZE / 2], self.models[side].image[..SIZE / 2]);
        }
    }
}

/// [RFC 5040 5.1-3, 5.3-3, 5.3-5, 5.5-1, 5.5-4, 5.5-6] [RFC 5041 4.1-7, 5.3-1, 5.3-3, 5.3-4, 5.4-1]
/// [RFC 7306 6.3-3, 6.3-6]
#[test]
fn two_machines_agree_whatever_the_queues_do() {
    let mut at_once = 0;
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut pair = Pair::new(seed);
            for _ in 0..STEPS {
                pair.step();
            }
            pair.finish();
            pair.at_once
        });
        assert!(run.is_ok(), "seed {seed} fails");
        at_once += run.unwrap_or(0);
    }
    assert!(at_once > SEEDS as usize, "{at_once} requests were sent at once");
}

/// [RFC 5040 5.2.2-3, 5.5-2, 5.5-6, 5.5-11]
#[test]
fn reads_bring_what_the_memory_holds_in_order() {
    for crc in [false, true] {
        let mut ends = [End::new(Side::Active, crc), End::new(Side::Passive, crc)];
        ends[1].ring().memory().write(0, &pattern(5, SIZE)).unwrap();
        // Five reads with two outstanding at a time, and a message behind them.
        for id in 0..5 {
            let remote = ends[1].remote(id * 10_000);
            let sink = ends[0].segment(id * 10_000, 9_000 + id as u32);
            ends[0].post(id, Operation::Read { remote }, Payload::Segments(&[sink])).unwrap();
        }
        ends[1].receives(1, 8);
        ends[0].post_bytes(9, PLAIN, b"done");
        for _ in 0..20 {
            for side in 0..2 {
                let bytes = std::mem::take(&mut ends[side].pipe.bytes);
                ends[1 - side].take(&bytes, true);
                assert_eq!(ends[1 - side].fault, None);
            }
        }
        let done: Vec<_> = ends[0].completions.iter().map(|done| done.id).collect();
        assert_eq!(done, [0, 1, 2, 3, 4, 9]);
        for id in 0..5 {
            let length = 9_000 + id;
            assert_eq!(ends[0].own_bytes()[id * 10_000..][..length], pattern(5 + id * 10_000, length));
        }
        assert_eq!(ends[1].completions.len(), 1);
    }
}
