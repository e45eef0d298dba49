//! Unreliable datagrams: each is a send, and names both queue pairs. Two that send to each other count as a
//! connection, although there is none; nothing is acknowledged, and no number says what is missing.

use std::collections::HashMap;
use std::net::IpAddr;

use super::packet::{Opcode, Packet, Part};
use crate::context::Context;
use crate::finding::Topic;
use crate::link::Transport;
use crate::operation::{Carrier, Connection, Endpoint, Kind, Known, Operation, Outcome, Placement, Side};

/// A queue pair of a host.
type End = (IpAddr, u32);

#[derive(Debug)]
struct Flow {
    id: u32,
    /// Who sent first.
    a: End,
    used: u64,
}

/// The pairs of queue pairs between which datagrams pass.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// By both ends, the smaller one first.
    flows: HashMap<(End, End), Flow>,
}

impl Datagrams {
    /// Takes a datagram. At most so many pairs are known at a time.
    pub(super) fn take(
        &mut self,
        transport: &Transport<'_>,
        packet: &Packet<'_>,
        most: usize,
        context: &mut Context<'_>,
    ) {
        // What manages the network has numbers 0 and 1.
        let Some(number) = packet.source.filter(|_| packet.destination > 1) else { return };
        if packet.opcode != Opcode::Send(Part::Only) {
            return;
        }
        let (source, destination) = ((transport.source, number), (transport.destination, packet.destination));
        let ends = (source.min(destination), source.max(destination));
        if self.flows.len() >= most && !self.flows.contains_key(&ends) {
            self.make_room(most, context);
        }
        let flow = self.flows.entry(ends).or_insert_with(|| {
            let info = Connection {
                id: context.connection_id(),
                carrier: Carrier::InfiniBand(transport.encapsulation),
                known: Known::Datagrams,
                ends: [source, destination].map(|(host, number)| Endpoint { host, number: Some(number) }),
                frame: context.frame,
                time: context.time,
                service: None,
                private_data: [None, None],
                refused: false,
                pmtu: 0,
                reads: [None; 2],
            };
            context.sink.connection(&info);
            Flow { id: info.id, a: source, used: 0 }
        });
        flow.used = context.frame;
        let (connection, from) = (flow.id, if flow.a == source { Side::A } else { Side::B });
        let (frame, frames) = (context.frame, (context.frame, context.frame));
        let id = context.operation_id();
        let mut operation = Operation::new(id, connection, from, Kind::Send, frames, context.time);
        operation.length = packet.length as u64;
        operation.cut = (packet.length - packet.payload.len()) as u64;
        operation.immediate = packet.immediate;
        operation.solicited = packet.solicited;
        operation.packets = 1;
        operation.outcome = Outcome::Unknown;
        let placement = Placement { operation: id, connection, from, offset: 0, memory: None, frame };
        context.bytes(&placement, packet.payload);
        context.sink.sent(&operation);
        context.ended(&operation);
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        let mut ids: Vec<u32> = self.flows.drain().map(|(_, flow)| flow.id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| context.closed(id));
    }

    /// Ends the pairs that were not used for longest.
    fn make_room(&mut self, most: usize, context: &mut Context<'_>) {
        let mut used: Vec<(u64, (End, End))> =
            self.flows.iter().map(|(ends, flow)| (flow.used, *ends)).collect();
        used.sort_unstable();
        for (_, ends) in used.into_iter().take(most / 8 + 1) {
            if let Some(flow) = self.flows.remove(&ends) {
                context.closed(flow.id);
            }
        }
        context.finding(
            Topic::GaveUp,
            None,
            format!("datagrams between more than {most} queue pairs at a time"),
        );
    }
}
