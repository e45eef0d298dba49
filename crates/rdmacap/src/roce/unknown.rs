//! Queue pairs without a handshake: their packets are kept until the numbers of answers show who answers
//! whom.

use std::collections::HashMap;
use std::net::IpAddr;

use super::packet::{Packet, Syndrome};
use super::{Half, Roce};
use crate::context::Context;
use crate::link::{Encapsulation, Transport};
use crate::operation::{Carrier, Connection, Endpoint, Known};

/// Packets between two hosts that are kept until it shows who answers whom.
const MOST_KEPT: usize = 256;
/// Answers that have to agree before that.
const CONFIRMATIONS: u32 = 3;
/// What a packet takes of the budget beside its bytes.
const KEPT: usize = 128;

/// A packet that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    half: Half,
    encapsulation: Encapsulation,
    bytes: Vec<u8>,
    length: usize,
    congested: bool,
    frame: u64,
    time: u64,
}

impl Roce {
    /// Keeps a packet of an unknown queue pair, and looks whether it is known now.
    pub(super) fn keep(&mut self, half: Half, transport: &Transport<'_>, context: &mut Context<'_>) {
        let hosts = (half.0.min(half.1), half.0.max(half.1));
        if self.kept.len() >= self.most && !self.kept.contains_key(&hosts) {
            self.passed += 1;
            return;
        }
        let room = context.budget.take(KEPT + transport.bytes.len());
        let kept = self.kept.entry(hosts).or_default();
        if room {
            kept.push(Kept {
                half,
                encapsulation: transport.encapsulation,
                bytes: transport.bytes.to_vec(),
                length: transport.length,
                congested: transport.congested,
                frame: context.frame,
                time: context.time,
            });
        }
        let full = !room || kept.len() >= MOST_KEPT;
        let is_answer = Packet::parse(transport).is_some_and(|packet| !packet.is_request());
        if full || is_answer {
            self.settle(hosts, full, context);
        }
    }

    /// Finds out which of the unknown queue pairs between two hosts belong together; `all`: decides about
    /// the rest as well.
    pub(super) fn settle(&mut self, hosts: (IpAddr, IpAddr), all: bool, context: &mut Context<'_>) {
        let Some(kept) = self.kept.get(&hosts) else { return };
        let mut opened = false;
        for (requester, responder, first) in couples(kept, if all { 1 } else { CONFIRMATIONS }) {
            let [a, b] = if first { [requester, responder] } else { [responder, requester] };
            // Each side's packets go to the other's queue pair.
            let ends = [(a.0, b.2), (b.0, a.2)];
            let ends = ends.map(|(host, number)| (host, Some(number)));
            opened |= self.open_kept(Known::Guessed, ends, hosts, context);
        }
        if all {
            let kept = self.kept.get(&hosts).into_iter().flatten();
            let mut rest: Vec<Half> = kept.map(|kept| kept.half).collect();
            rest.sort_unstable();
            rest.dedup();
            for half in rest {
                if self.halves.get_mut(&half).is_none() {
                    let ends = [(half.0, None), (half.1, Some(half.2))];
                    opened |= self.open_kept(Known::OneSided, ends, hosts, context);
                }
            }
        }
        if opened {
            self.replay(hosts, context);
        }
    }

    /// Begins a connection of packets that are kept.
    fn open_kept(
        &mut self,
        known: Known,
        ends: [(IpAddr, Option<u32>); 2],
        hosts: (IpAddr, IpAddr),
        context: &mut Context<'_>,
    ) -> bool {
        let first = self.kept.get(&hosts).and_then(|kept| kept.first());
        let first = first.map(|first| (first.encapsulation, first.frame, first.time));
        if let Some(first) = first {
            self.open_without(known, ends, first, context);
        }
        first.is_some()
    }

    /// Begins a connection without a handshake, with the link, frame and time of its first packet.
    pub(super) fn open_without(
        &mut self,
        known: Known,
        ends: [(IpAddr, Option<u32>); 2],
        (encapsulation, frame, time): (Encapsulation, u64, u64),
        context: &mut Context<'_>,
    ) {
        let info = Connection {
            id: context.connection_id(),
            carrier: Carrier::InfiniBand(encapsulation),
            known,
            ends: ends.map(|(host, number)| Endpoint { host, number }),
            frame,
            time,
            service: None,
            private_data: [None, None],
            refused: false,
            pmtu: 0,
            reads: [None; 2],
        };
        self.open(info, [None, None], context);
    }

    /// Takes the kept packets whose queue pairs are known now.
    fn replay(&mut self, hosts: (IpAddr, IpAddr), context: &mut Context<'_>) {
        let kept = self.kept.remove(&hosts).unwrap_or_default();
        let now = (context.frame, context.time);
        let mut rest = Vec::new();
        for packet in kept {
            if self.halves.get_mut(&packet.half).is_none() {
                rest.push(packet);
                continue;
            }
            context.budget.give(KEPT + packet.bytes.len());
            (context.frame, context.time) = (packet.frame, packet.time);
            if let Some(parsed) = packet.parse() {
                self.take(packet.half, &parsed, packet.congested, context);
            }
        }
        (context.frame, context.time) = now;
        if !rest.is_empty() {
            self.kept.insert(hosts, rest);
        }
    }
}

impl Kept {
    fn parse(&self) -> Option<Packet<'_>> {
        Packet::parse(&Transport {
            encapsulation: self.encapsulation,
            source: self.half.0,
            destination: self.half.1,
            congested: self.congested,
            cover: &[],
            bytes: &self.bytes,
            length: self.length,
        })
    }
}

/// Halves that belong together, because so many answers in one have numbers of requests in the other and of
/// no third: who asks, who answers, and whether the asking one was seen first.
fn couples(kept: &[Kept], confirmations: u32) -> Vec<(Half, Half, bool)> {
    /// Distance from a request's number in which an answer counts as its own.
    const NEAR: u32 = 1 << 12;
    let mut asked: HashMap<Half, (u32, u32)> = HashMap::new();
    let mut votes: HashMap<(Half, Half), u32> = HashMap::new();
    for kept in kept {
        let Some(packet) = kept.parse() else { continue };
        let half = kept.half;
        if packet.is_request() {
            let (_, last) = asked.entry(half).or_insert((packet.psn, packet.psn));
            *last = packet.psn;
            continue;
        }
        if packet.syndrome == Some(Syndrome::Reserved) {
            continue;
        }
        // An answer to `half` comes from where the requests of its couple go to.
        let within = |&(from, to): &(u32, u32)| {
            let beyond = packet.psn.wrapping_sub(from) & 0xff_ffff;
            beyond <= (to.wrapping_sub(from) & 0xff_ffff) + NEAR
        };
        let mut candidates = asked
            .iter()
            .filter(|(request, range)| (request.0, request.1) == (half.1, half.0) && within(range))
            .map(|(request, _)| *request);
        if let (Some(request), None) = (candidates.next(), candidates.next()) {
            *votes.entry((request, half)).or_default() += 1;
        }
    }
    let mut found: Vec<(Half, Half)> =
        votes.iter().filter(|(_, count)| **count >= confirmations).map(|(couple, _)| *couple).collect();
    found.sort_unstable();
    // A half that could be two's is nobody's.
    let unique = |couple: &&(Half, Half)| {
        let shares = |other: &&(Half, Half)| {
            let halves = [couple.0, couple.1];
            **other != **couple
                && **other != (couple.1, couple.0)
                && (halves.contains(&other.0) || halves.contains(&other.1))
        };
        !found.iter().any(|other| shares(&other))
    };
    let mut couples: Vec<(Half, Half, bool)> = Vec::new();
    for &(request, answer) in found.iter().filter(unique) {
        if couples.iter().any(|couple| couple.0 == answer) {
            continue;
        }
        let place = |half: Half| kept.iter().position(|kept| kept.half == half);
        couples.push((request, answer, place(request) <= place(answer)));
    }
    couples
}
