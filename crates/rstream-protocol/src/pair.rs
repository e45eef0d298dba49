//! Two streams joined by queues in memory: a device that is slow, a provider that follows the
//! rules, and an application that does what it is told, on each side.
//!
//! The tests give it seeds, and a fuzz target its input: decisions come from a [`Choose`], so a run is a
//! function of where it gets them from.
//!
//! What is checked, all the time: bytes read are the bytes written, in order; nothing in flight
//! exceeds the window, the receives, or the send queue, whose last entries data never takes. And at
//! rest: whatever was written was read or the reason is known, and whoever may send can.

mod host;

use alloc::vec::Vec;

use crate::*;
use host::{Host, Request};

/// Where decisions come from.
pub trait Choose {
    /// A number below `bound`, which is at least 1.
    fn below(&mut self, bound: u64) -> u64;

    /// One of these.
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// True about once in `n`.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Connects two hosts, lets `steps` things happen, lets them come to rest, and ends it.
///
/// # Panics
/// If a promise is broken.
pub fn run(choose: &mut impl Choose, steps: u32) {
    let Some(mut pair) = Pair::connect(choose) else { return };
    // About how many steps pass between two ends that an application or the network brings.
    let calm = choose.pick(&[30, 300, 3000, u64::MAX]);
    for _ in 0..steps {
        if choose.once_in(calm) {
            pair.end_something(choose);
        }
        pair.step(choose);
        pair.check();
        if pair.cut {
            break;
        }
    }
    if !pair.cut {
        pair.settle();
        pair.check_at_rest();
        pair.keep_going();
        pair.finish(choose);
    }
    pair.check_ends();
}

/// Two hosts and the time.
struct Pair {
    hosts: [Host; 2],
    now: u64,
    endings: bool,
    /// The connection was broken or one side killed.
    cut: bool,
    /// Which side was killed, if that is how it was cut.
    killed: Option<usize>,
}

impl Pair {
    /// Two hosts with sizes of their own, which told each other by connection data. `None` for the one
    /// combination that cannot be.
    fn connect(choose: &mut impl Choose) -> Option<Self> {
        let base = choose.pick(&[WordFormat::Immediate, WordFormat::Iwarp]);
        let force = choose.once_in(4);
        let offers: [Vec<u8>; 2] = core::array::from_fn(|_| offer(choose, force));
        let decoded = offers.each_ref().map(|bytes| Offer::decode(bytes).expect("as encoded"));
        // The passive side answers with an extension only to a request that has one, and a base
        // peer never has one: one without leaves both without.
        let extended = decoded.iter().all(|offer| offer.extension.is_some());
        let seen = decoded.map(|offer| Offer { extension: offer.extension.filter(|_| extended), ..offer });
        let answers = [0, 1].map(|side| {
            let own = decoded[side].extension.map_or(Features::empty(), |own| own.features);
            negotiate(own, &seen[1 - side], base, force)
        });
        assert_eq!(answers[0], answers[1], "both sides come to the same answer");
        let (words, features) = answers[0];
        let setups: [Setup; 2] = core::array::from_fn(|side| Setup {
            local_ring: seen[side].ring_size,
            local_receives: seen[side].receives,
            peer_ring: seen[1 - side].ring_size,
            peer_receives: seen[1 - side].receives,
            send_ring: ring_size(choose),
            send_depth: choose.pick(&[2, 3, 4, 7, 16, 384]),
            max_message: if choose.once_in(4) { 1 + choose.below(300) as u32 } else { 1 << 30 },
            words,
            features,
        });
        let endings = features.contains(Features::END_OF_STREAM);
        if !endings && setups[0].local_receives == 3 && setups[0].peer_receives == 3 {
            assert!(Stream::new(setups[0]).is_err(), "it cannot work with a base peer");
            return None;
        }
        let [first, second] = setups;
        let hosts = [Host::new(0, first), Host::new(1, second)];
        Some(Self { hosts, now: 0, endings, cut: false, killed: None })
    }

    /// One thing happens.
    fn step(&mut self, choose: &mut impl Choose) {
        self.now += 1;
        let side = choose.below(2) as usize;
        match choose.below(60) {
            0..=15 => drop(self.deliver(side)),
            16..=23 => drop(self.hosts[side].take_completion()),
            24..=35 => drop(self.hosts[side].take_arrival()),
            36..=47 => {
                let wanted = amount(choose);
                self.hosts[side].write(wanted);
            }
            48..=57 => {
                let wanted = amount(choose);
                self.hosts[side].read(wanted);
            }
            _ => self.hosts[side].stalled_until = self.now + choose.below(40),
        }
        if !choose.once_in(3) {
            self.hosts[side].send_controls();
        }
    }

    /// An application ends something, or the connection is cut.
    fn end_something(&mut self, choose: &mut impl Choose) {
        let side = choose.below(2) as usize;
        match choose.below(5) {
            0 | 1 => self.shut_send(side),
            2 => self.shut_recv(side),
            3 => self.close(side),
            _ => {
                self.cut = true;
                self.killed = choose.once_in(2).then_some(side);
            }
        }
    }

    fn shut_send(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        host.stream.shut_send();
        host.shut = true;
        host.closed |= host.dropped;
    }

    fn shut_recv(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        host.stream.shut_recv();
        host.dropped = true;
        host.closed |= host.shut;
        assert_eq!(host.stream.readable(), 0);
    }

    fn close(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        let readable = host.stream.readable();
        host.stream.close();
        host.dropped = true;
        (host.shut, host.closed) = (true, true);
        assert_eq!(host.stream.readable(), readable, "what arrived stays readable");
    }

    /// The device of `side` delivers its oldest request, if it is not stalled.
    fn deliver(&mut self, side: usize) -> bool {
        let [first, second] = &mut self.hosts;
        let (from, to) = if side == 0 { (first, second) } else { (second, first) };
        if from.stalled_until > self.now {
            return false;
        }
        let Some((request, id)) = from.posted.pop_front() else { return false };
        let arrival = match request {
            Request::Write { remote, local, length, immediate } => {
                let (remote, local, length) = (remote as usize, local as usize, length as usize);
                to.ring[remote..remote + length].copy_from_slice(&from.send_ring[local..local + length]);
                immediate.map(|immediate| Arrival::Write { immediate, length: length as u32 })
            }
            Request::Immediate(immediate) => Some(Arrival::Control { immediate }),
            Request::Word(word) => Some(Arrival::Word(word)),
        };
        if let Some(arrival) = arrival {
            assert!(to.receives > 0, "a message of side {side} finds no receive");
            to.receives -= 1;
            to.arrivals.push_back(arrival);
        }
        from.completions.extend(id);
        true
    }

    /// What holds after every step.
    fn check(&self) {
        for side in [0, 1] {
            let (from, to) = (&self.hosts[side], &self.hosts[1 - side]);
            assert!(to.read <= from.written);
            if !to.dropped {
                let in_flight = from.written - to.read;
                let ring = u64::from(to.setup.local_ring);
                assert!(in_flight <= ring, "{in_flight} bytes on their way to a ring of {ring}");
            }
            assert!(to.stream.readable() as u64 <= u64::from(to.setup.local_ring));
        }
    }

    /// Everything that can happen without the applications writing more happens.
    fn settle(&mut self) {
        let before: u64 = self.hosts.iter().map(|host| host.controls).sum();
        let receives: u64 = self.hosts.iter().map(|host| u64::from(host.setup.local_receives)).sum();
        loop {
            let mut moved = false;
            for side in [0, 1] {
                self.hosts[side].stalled_until = 0;
                while self.deliver(side) {
                    moved = true;
                }
                let host = &mut self.hosts[side];
                while host.take_completion() || host.take_arrival() {
                    moved = true;
                }
                moved |= host.read(usize::MAX) > 0;
                host.send_controls();
            }
            self.check();
            let controls: u64 = self.hosts.iter().map(|host| host.controls).sum();
            assert!(controls - before <= 4 * receives + 64, "idle sides go on exchanging updates");
            if !moved && self.hosts.iter().all(|host| host.posted.is_empty()) {
                break;
            }
        }
    }

    /// What holds when nothing moves any more.
    fn check_at_rest(&self) {
        for side in [0, 1] {
            let (from, to) = (&self.hosts[side], &self.hosts[1 - side]);
            let (sent, received) = (from.stream.traffic(), to.stream.traffic());
            assert_eq!(sent.data_sent, received.data_received);
            assert_eq!(sent.updates_sent, received.updates_received);
            assert_eq!(sent.updates_sent, from.controls);
            assert!(to.dropped || to.read == from.written, "bytes are missing without a reason");
            assert!(from.stream.outgoing_done(), "an end was never said");
            let ended = to.dropped || (self.endings && from.shut);
            let state = if ended { RecvState::Ended } else { RecvState::Open };
            assert_eq!(to.stream.receive_end(), state);
            let shut = from.shut || (self.endings && to.closed);
            match from.stream.sendable() {
                Ok(_) if shut => panic!("a shut side may send"),
                // A closed base peer drops what comes and does not say so.
                Ok(sendable) if !to.closed => from.check_room(sendable),
                Ok(_) => {}
                Err(end) => assert!(shut && end == SendEnd::Shut),
            }
            let over = from.closed || (self.endings && (to.closed || (from.shut && to.shut)));
            assert_eq!(from.stream.is_over(), over, "side {side}");
        }
    }

    /// Every side that may send sends several rings full, each time from rest.
    fn keep_going(&mut self) {
        for side in [0, 1] {
            let rounds = 12;
            for _ in 0..rounds {
                let (from, to) = (&self.hosts[side], &self.hosts[1 - side]);
                if from.stream.sendable().is_err() || to.closed {
                    break;
                }
                let wanted = from.setup.peer_ring.min(5000) as usize;
                assert!(self.hosts[side].write(wanted) > 0, "side {side} is stuck");
                self.settle();
                self.check_at_rest();
            }
        }
    }

    /// The applications close, and the transport ends as it should.
    fn finish(&mut self, choose: &mut impl Choose) {
        let side = choose.below(2) as usize;
        match choose.below(3) {
            0 => self.close(side),
            1 => {
                self.shut_send(side);
                self.settle();
                self.shut_send(1 - side);
            }
            _ => {
                self.shut_send(0);
                self.shut_send(1);
            }
        }
        self.settle();
        self.check_at_rest();
        if self.endings {
            assert!(self.hosts.iter().all(|host| host.stream.is_over()));
        }
        self.hosts[1 - side].stream.on_disconnected();
    }

    /// What each side is told in the end, after an orderly end or a cut.
    fn check_ends(&mut self) {
        if self.cut {
            for host in &mut self.hosts {
                match self.killed {
                    Some(side) if side == host.side => {}
                    Some(_) => host.stream.on_disconnected(),
                    None => host.stream.on_broken(),
                }
                // What was reported before the cut counts, whenever it is looked at.
                while host.take_arrival() {}
                host.read(usize::MAX);
            }
        }
        for host in self.hosts.iter().filter(|host| self.killed != Some(host.side)) {
            let orderly = !self.cut || (self.killed.is_some() && !self.endings);
            host.check_end(orderly, self.cut);
            let whole = host.read == self.hosts[1 - host.side].written;
            if self.endings && !host.dropped && host.stream.receive_end() == RecvState::Ended {
                assert!(whole, "the stream ends before its last byte");
            }
            assert_eq!(host.stream.readable(), 0);
        }
    }
}

/// Connection data with sizes that find edges: small ones most of the time.
fn offer(choose: &mut impl Choose, force_iwarp: bool) -> Vec<u8> {
    let receives = match choose.below(4) {
        0 => 3,
        1 => choose.pick(&[4, 5, 6, 7, 8]),
        2 => choose.pick(&[9, 16, 33, 384]),
        _ => 3 + choose.below(1022) as u16,
    };
    let mut features = Features::empty();
    if !choose.once_in(8) {
        features |= Features::END_OF_STREAM;
    }
    if !force_iwarp && choose.once_in(2) {
        features |= Features::IMMEDIATE;
    }
    let extension =
        (!choose.once_in(4)).then_some(Extension { features, user_data: b"hello", rendezvous: b"" });
    let ring_size = ring_size(choose);
    Offer { ring_address: 1 << 40, ring_key: 7, ring_size, receives, extension }
        .encode()
        .expect("sizes that work")
}

/// Ring sizes around the numbers that the protocol knows.
fn ring_size(choose: &mut impl Choose) -> u32 {
    match choose.below(8) {
        0 => 1 + choose.below(4) as u32,
        1 | 2 => 1 + choose.below(100) as u32,
        3 | 4 => choose.pick(&[512, 1023, 1024, 1025, 2048, 3000]),
        5 | 6 => choose.pick(&[4096, 8191, 10_000]),
        _ if choose.once_in(64) => choose.pick(&[(1 << 20) - 1, 1 << 20, 3 << 20]),
        _ => 32_768,
    }
}

/// How much an application asks for in one call.
fn amount(choose: &mut impl Choose) -> usize {
    match choose.below(4) {
        0 => 1,
        1 => choose.below(64) as usize,
        2 => choose.below(2000) as usize,
        _ => usize::MAX,
    }
}
