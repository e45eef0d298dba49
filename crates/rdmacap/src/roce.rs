//! Queue pairs in InfiniBand's transport: which two belong together, and the requests of both.
//!
//! A packet names only the queue pair that it goes to. The messages of the connection manager name both.
//! Without them the session keeps the packets between two hosts until the number of an answer shows which
//! request it answers. Directions without a counterpart are reported alone.

mod datagrams;
mod packet;
mod requests;
mod unknown;

use std::collections::HashMap;
use std::net::IpAddr;

use crate::context::Context;
use crate::finding::Topic;
use crate::link::{Encapsulation, Transport};
use crate::operation::{Carrier, Connection, Endpoint, Known, Side};
use crate::table::{Slab, Table};
use datagrams::Datagrams;
use packet::{Management, Packet, Service};
use requests::Requests;
use unknown::Kept;

/// The packets that go to one queue pair from one host.
type Half = (IpAddr, IpAddr, u32);

/// A connection of two queue pairs.
#[derive(Debug)]
struct Pair {
    info: Connection,
    /// What each side asks for.
    requests: [Requests; 2],
    /// The packets that go to each side.
    halves: [Option<Half>; 2],
    /// What the connection manager's messages call it.
    managed: Vec<(IpAddr, u32)>,
    /// Packets seen with the mark of congestion, and notifications of it.
    congestion: u64,
    /// Whether a side said that it is over.
    disconnected: bool,
    used: u64,
}

/// A request of the connection manager that has not been answered.
#[derive(Debug)]
struct Asked {
    number: u32,
    /// Reads and atomics that the asking side serves at a time.
    serves: u8,
    psn: Option<u32>,
    pmtu: u32,
    port: Option<u16>,
    private_data: Option<Vec<u8>>,
    frame: u64,
    time: u64,
}

/// All queue pairs of a capture.
#[derive(Debug, Default)]
pub(crate) struct Roce {
    pairs: Slab<Box<Pair>>,
    /// Whose packets these are, and to which side they go.
    halves: Table<Half, (usize, Side)>,
    /// By the asking host, the asked one, and the asking one's identifier.
    asked: HashMap<(IpAddr, IpAddr, u32), Asked>,
    /// By host and its identifier: the connection that the manager's messages name so.
    managed: HashMap<(IpAddr, u32), usize>,
    /// By pair of hosts, the smaller address first.
    kept: HashMap<(IpAddr, IpAddr), Vec<Kept>>,
    /// Numbers that belong together, as somebody knows who does not have it from the capture.
    told: HashMap<u32, u32>,
    datagrams: Datagrams,
    /// Packets that are cut so early that they cannot be read, and those of too many unknown hosts.
    cut: u64,
    passed: u64,
    check: bool,
    most: usize,
}

impl Roce {
    /// No queue pairs yet. At most so many are known at a time; `check`: invariant CRCs are checked.
    pub(crate) fn new(most: usize, check: bool) -> Self {
        Self { most, check, ..Self::default() }
    }

    /// Queue pairs with these numbers belong together, whichever hosts they are of.
    pub(crate) fn pair(&mut self, a: u32, b: u32) {
        self.told.extend([(a, b), (b, a)]);
    }

    /// Takes a packet.
    pub(crate) fn packet(&mut self, transport: &Transport<'_>, context: &mut Context<'_>) {
        let Some(packet) = Packet::parse(transport) else {
            self.cut += u64::from(transport.bytes.len() < packet::BTH.min(transport.length));
            return;
        };
        let half = (transport.source, transport.destination, packet.destination);
        if self.check
            && let Some((found, computed)) = packet::checksums(transport)
            && found != computed
        {
            let slot = self.halves.get_mut(&half).map(|(slot, _)| *slot);
            let connection = slot.and_then(|slot| self.pairs.get(slot)).map(|pair| pair.info.id);
            let text = format!("invariant CRC {found:#010x} instead of {computed:#010x}");
            context.finding(Topic::Checksum, connection, text);
            return;
        }
        match packet.service {
            Service::Datagram => {
                if let Some(message) = Management::parse(&packet) {
                    self.manage(transport, &message, context);
                } else {
                    self.datagrams.take(transport, &packet, self.most, context);
                }
            }
            Service::Congestion => self.congestion(half, context),
            Service::Reliable | Service::Unreliable => {
                if self.take(half, &packet, transport.congested, context) {
                    return;
                }
                if let Some(own) = self.told.get(&half.2) {
                    let ends = [(half.0, Some(*own)), (half.1, Some(half.2))];
                    let first = (transport.encapsulation, context.frame, context.time);
                    self.open_without(Known::Told, ends, first, context);
                    self.take(half, &packet, transport.congested, context);
                } else {
                    self.keep(half, transport, context);
                }
            }
        }
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) {
        let mut hosts: Vec<_> = self.kept.keys().copied().collect();
        hosts.sort_unstable();
        for hosts in hosts {
            self.settle(hosts, true, context);
        }
        let mut ids: Vec<(u32, usize)> = self.pairs.iter().map(|(slot, pair)| (pair.info.id, slot)).collect();
        ids.sort_unstable();
        for (_, slot) in ids {
            self.end(slot, context);
        }
        self.datagrams.finish(context);
        if self.passed > 0 {
            let text =
                format!("{} packets were passed over: too many hosts without a handshake", self.passed);
            context.finding(Topic::GaveUp, None, text);
        }
        if self.cut > 0 {
            let text = format!("{} packets are cut in their first header", self.cut);
            context.finding(Topic::Cut, None, text);
        }
    }

    // ---- packets of known queue pairs -------------------------------------------------------

    /// Takes a packet; answers whether its queue pair is known.
    fn take(&mut self, half: Half, packet: &Packet<'_>, congested: bool, context: &mut Context<'_>) -> bool {
        let Some((slot, to)) = self.halves.get_mut(&half).copied() else { return false };
        let Some(pair) = self.pairs.get_mut(slot) else { return false };
        pair.used = context.frame;
        if congested || packet.backward_congestion {
            pair.congestion += 1;
        }
        if packet.is_request() {
            let requests = &mut pair.requests[to.other().index()];
            requests.unreliable |= packet.service == Service::Unreliable;
            requests.request(packet, context);
        } else {
            pair.requests[to.index()].answer(packet, context);
        }
        // Both directions have one packet size.
        let [a, b] = &mut pair.requests;
        match (a.seen_full, b.seen_full) {
            (true, false) => (b.pmtu, b.seen_full) = (a.pmtu, true),
            (false, true) => (a.pmtu, a.seen_full) = (b.pmtu, true),
            _ => {}
        }
        true
    }

    fn congestion(&mut self, half: Half, context: &mut Context<'_>) {
        let Some((slot, to)) = self.halves.get_mut(&half).copied() else { return };
        if let Some(pair) = self.pairs.get_mut(slot) {
            pair.congestion += 1;
            let text = format!("{} notified {to} of congestion", to.other());
            context.finding(Topic::Congestion, Some(pair.info.id), text);
        }
    }

    // ---- connection manager -----------------------------------------------------------------

    fn manage(&mut self, transport: &Transport<'_>, message: &Management<'_>, context: &mut Context<'_>) {
        let (source, destination) = (transport.source, transport.destination);
        match *message {
            Management::Request { local, number, serves, psn, pmtu, port, private_data } => {
                if self.asked.len() >= self.most {
                    self.asked.clear();
                    let text = format!("more than {} requests for connections without an answer", self.most);
                    context.finding(Topic::GaveUp, None, text);
                }
                let asked = Asked {
                    number,
                    serves,
                    psn,
                    pmtu,
                    port,
                    private_data: private_data.map(<[u8]>::to_vec),
                    frame: context.frame,
                    time: context.time,
                };
                self.asked.entry((source, destination, local)).or_insert(asked);
            }
            Management::Reply { local, remote, number, serves, psn, private_data } => {
                let Some(asked) = self.asked.remove(&(destination, source, remote)) else { return };
                let ends = [(destination, asked.number), (source, number)];
                let mut info = asked.connection(ends, transport.encapsulation, private_data, context);
                info.reads[1] = serves.map(u16::from);
                // Each side says with which number the other is to begin (12.7.13).
                let slot = self.open(info, [Some(psn), asked.psn], context);
                for name in [(source, local), (destination, remote)] {
                    self.managed.insert(name, slot);
                    self.pairs.get_mut(slot).into_iter().for_each(|pair| pair.managed.push(name));
                }
            }
            Management::Reject { remote, reason, private_data } => {
                let Some(asked) = self.asked.remove(&(destination, source, remote)) else { return };
                let ends = [(destination, asked.number), (source, 0)];
                let mut info = asked.connection(ends, transport.encapsulation, private_data, context);
                info.refused = true;
                info.ends[1].number = None;
                let id = info.id;
                context.sink.connection(&info);
                // 28: the application's own refusal.
                let text = format!("the passive side refused it, reason {reason}");
                context.finding(Topic::Connection, Some(id), text);
                context.closed(id);
            }
            Management::Disconnect { local, remote } => {
                let slot =
                    self.managed.get(&(source, local)).or_else(|| self.managed.get(&(destination, remote)));
                // Packets on their way may still be acknowledged. The queue pairs stay known until they are
                // used anew.
                if let Some(pair) = slot.and_then(|slot| self.pairs.get_mut(*slot)) {
                    pair.disconnected = true;
                }
            }
        }
    }

    /// Begins a connection; what used its queue pairs before is over.
    fn open(&mut self, info: Connection, psns: [Option<u32>; 2], context: &mut Context<'_>) -> usize {
        let [a, b] = info.ends;
        let halves = [
            a.number.map(|number| (b.host, a.host, number)),
            b.number.map(|number| (a.host, b.host, number)),
        ];
        for half in halves.iter().flatten() {
            if let Some((before, _)) = self.halves.remove(half) {
                self.end(before, context);
            }
        }
        self.make_room(context);
        context.sink.connection(&info);
        let of = |side: Side, responder: Endpoint| {
            let mut requests = Requests::new(side, responder.host, info.id, info.pmtu, psns[side.index()]);
            requests.serves = info.reads[side.other().index()];
            requests.unreliable = info.known == Known::OneSided;
            requests
        };
        let requests = [of(Side::A, b), of(Side::B, a)];
        let used = context.frame;
        let (managed, congestion, disconnected) = (Vec::new(), 0, false);
        let pair = Pair { info, requests, halves, managed, congestion, disconnected, used };
        let (slot, _) = self.pairs.insert(Box::new(pair));
        for (side, half) in [Side::A, Side::B].into_iter().zip(halves) {
            if let Some(half) = half {
                self.halves.insert(half, (slot, side));
            }
        }
        slot
    }

    /// Ends the connections that were not used for longest, if there are too many.
    fn make_room(&mut self, context: &mut Context<'_>) {
        if self.pairs.len() < self.most {
            return;
        }
        let mut used: Vec<(u64, usize)> = self.pairs.iter().map(|(slot, pair)| (pair.used, slot)).collect();
        used.sort_unstable();
        for (_, slot) in used.into_iter().take(self.most / 8 + 1) {
            self.end(slot, context);
        }
        context.finding(Topic::GaveUp, None, format!("more than {} queue pairs at a time", self.most));
    }

    fn end(&mut self, slot: usize, context: &mut Context<'_>) {
        let Some(mut pair) = self.pairs.remove(slot) else { return };
        let id = pair.info.id;
        for half in pair.halves.iter().flatten() {
            if self.halves.get_mut(half).is_some_and(|(of, _)| *of == slot) {
                self.halves.remove(half);
            }
        }
        for name in &pair.managed {
            if self.managed.get(name) == Some(&slot) {
                self.managed.remove(name);
            }
        }
        for requests in &mut pair.requests {
            requests.finish(context);
        }
        if pair.congestion > 0 {
            let text = format!("{} packets with a mark of congestion", pair.congestion);
            context.finding(Topic::Congestion, Some(id), text);
        }
        if pair.info.known != Known::Cm {
            context.finding(Topic::Partial, Some(id), "its beginning is not in the capture".into());
        }
        if !pair.disconnected {
            context.finding(Topic::Partial, Some(id), "its end is not in the capture".into());
        }
        context.closed(id);
    }
}

impl Asked {
    fn connection(
        &self,
        ends: [(IpAddr, u32); 2],
        encapsulation: Encapsulation,
        private_data: Option<&[u8]>,
        context: &mut Context<'_>,
    ) -> Connection {
        Connection {
            id: context.connection_id(),
            carrier: Carrier::InfiniBand(encapsulation),
            known: Known::Cm,
            ends: ends.map(|(host, number)| Endpoint { host, number: Some(number) }),
            frame: self.frame,
            time: self.time,
            service: self.port,
            private_data: [self.private_data.clone(), private_data.map(<[u8]>::to_vec)],
            refused: false,
            pmtu: self.pmtu,
            reads: [Some(self.serves.into()), None],
        }
    }
}
