//! Operations in any order with any bytes, as no capture would have them: the protocols on top are followed to
//! the end, and each call of RPC that is reported has what it says.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rdmacap::advertised::Advertisements;
use rdmacap::rpc::{Exchange, Rpc, RpcSink};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{
    Access, Carrier, Connection, Endpoint, Kind, Known, Operation, Outcome, Placement, Side, Sink, Target,
};

#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// A connection, with private data of both sides.
    Open { connection: u8, service: u16, request: &'a [u8], reply: &'a [u8] },
    Send { connection: u8, from: bool, bytes: &'a [u8], length: u16, invalidate: Option<u32> },
    /// Bytes at a place in memory, with an offset in their operation.
    Move { connection: u8, from: bool, read: bool, key: u8, address: u16, offset: u32, bytes: &'a [u8] },
    Close { connection: u8 },
}

struct Checked;

impl StreamSink for Checked {
    fn data(&mut self, _connection: u32, _from: Side, _offset: u64, bytes: &[u8]) {
        assert!(!bytes.is_empty());
    }
}

impl RpcSink for Checked {
    fn exchange(&mut self, exchange: &Exchange) {
        assert!(exchange.call.is_some() || exchange.reply.is_some());
        for message in [&exchange.call, &exchange.reply].into_iter().flatten() {
            assert!(message.bytes.len() < 1 << 24);
        }
    }
}

fn side(is_a: bool) -> Side {
    if is_a { Side::A } else { Side::B }
}

fn operation(id: u64, connection: u8, from: bool, kind: Kind, length: u64) -> Operation {
    Operation {
        id,
        connection: connection.into(),
        from: side(from),
        kind,
        frames: (id, id),
        time: id,
        took: None,
        target: None,
        sink: None,
        length,
        immediate: None,
        invalidate: None,
        solicited: false,
        atomic: None,
        packets: 1,
        resent: 0,
        outcome: Outcome::Acked,
        missing: Vec::new(),
        cut: 0,
    }
}

fn run(steps: &[Step<'_>], sink: &mut dyn Sink) {
    for (id, step) in (1..).zip(steps) {
        match *step {
            Step::Open { connection, service, request, reply } => {
                let end = Endpoint { host: IpAddr::V4(Ipv4Addr::LOCALHOST), number: Some(1) };
                sink.connection(&Connection {
                    id: connection.into(),
                    carrier: Carrier::Iwarp,
                    known: Known::Mpa,
                    ends: [end; 2],
                    frame: id,
                    time: id,
                    service: Some(service),
                    private_data: [Some(request.to_vec()), Some(reply.to_vec())],
                    refused: false,
                    pmtu: 0,
                    reads: [None; 2],
                });
            }
            Step::Send { connection, from, bytes, length, invalidate } => {
                let length = bytes.len() as u64 + u64::from(length);
                let mut operation = operation(id, connection, from, Kind::Send, length);
                operation.invalidate = invalidate;
                let (connection, from) = (operation.connection, operation.from);
                let placement = Placement { operation: id, connection, from, offset: 0, memory: None, frame: id };
                if !bytes.is_empty() {
                    sink.bytes(&placement, bytes);
                }
                sink.sent(&operation);
                sink.ended(&operation);
            }
            Step::Move { connection, from, read, key, address, offset, bytes } => {
                let (kind, access) = match read {
                    true => (Kind::Read, Access::Read),
                    false => (Kind::Write, Access::Written),
                };
                let target = Target { key: key.into(), address: address.into(), region: key.into() };
                let mut operation = operation(id, connection, from, kind, bytes.len() as u64);
                operation.target = Some(target);
                let (connection, from, offset) = (operation.connection, operation.from, offset.into());
                let memory = Some((target, access));
                let placement = Placement { operation: id, connection, from, offset, memory, frame: id };
                if !bytes.is_empty() {
                    sink.bytes(&placement, bytes);
                }
                sink.sent(&operation);
                sink.ended(&operation);
            }
            Step::Close { connection } => sink.closed(connection.into()),
        }
    }
    (0..=255).for_each(|connection| sink.closed(connection));
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let memory = 1 << 16;
    run(&steps, &mut Streams::new(Checked, memory));
    run(&steps, &mut Rpc::new(Checked, memory));
    run(&steps, &mut Advertisements::new(memory));
});
