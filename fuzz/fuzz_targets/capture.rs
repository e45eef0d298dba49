//! A capture file of any bytes: it is read to its end or refused, by every reader of upper layers as well;
//! each operation that is reported was sent before it ended, and figures are made of all.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use rdmacap::advertised::Advertisements;
use rdmacap::file::{Decoder, Item, Step};
use rdmacap::rpc::{Exchange, Rpc, RpcSink};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{Config, Figures, Operation, Placement, Session, Sink};

#[derive(Default)]
struct Checked {
    sent: HashSet<u64>,
    figures: Figures,
    streams: Option<Streams<Nothing>>,
    rpc: Option<Rpc<Nothing>>,
    advertisements: Option<Advertisements>,
}

struct Nothing;

impl StreamSink for Nothing {}
impl RpcSink for Nothing {
    fn exchange(&mut self, _exchange: &Exchange) {}
}

impl Checked {
    fn upper(&mut self) -> impl Iterator<Item = &mut dyn Sink> {
        let streams = self.streams.iter_mut().map(|sink| sink as &mut dyn Sink);
        let rpc = self.rpc.iter_mut().map(|sink| sink as &mut dyn Sink);
        let advertisements = self.advertisements.iter_mut().map(|sink| sink as &mut dyn Sink);
        streams.chain(rpc).chain(advertisements)
    }
}

impl Sink for Checked {
    fn connection(&mut self, connection: &rdmacap::Connection) {
        self.upper().for_each(|sink| sink.connection(connection));
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.upper().for_each(|sink| sink.bytes(placement, bytes));
    }

    fn sent(&mut self, operation: &Operation) {
        assert!(self.sent.insert(operation.id));
        self.upper().for_each(|sink| sink.sent(operation));
    }

    fn ended(&mut self, operation: &Operation) {
        assert!(self.sent.remove(&operation.id));
        assert!(operation.missing.iter().all(|(start, end)| start < end));
        self.figures.add(operation);
        self.upper().for_each(|sink| sink.ended(operation));
    }

    fn closed(&mut self, connection: u32) {
        self.upper().for_each(|sink| sink.closed(connection));
    }
}

fuzz_target!(|data: &[u8]| {
    let memory = 1 << 16;
    let mut sink = Checked {
        streams: Some(Streams::new(Nothing, memory)),
        rpc: Some(Rpc::new(Nothing, memory)),
        advertisements: Some(Advertisements::new(memory)),
        ..Checked::default()
    };
    let (mut decoder, mut at) = (Decoder::new(), 0);
    // A fuzzer does not find checksums.
    let mut session = Session::new(Config { memory, connections: 64, check_icrc: false });
    while let Ok(Step::Took(length, item)) = decoder.step(&data[at..]) {
        if let Some(Item::Record(record)) = item {
            session.feed(&record, &mut sink);
        }
        at += length;
        assert!(at <= data.len());
    }
    session.finish(&mut sink);
    assert!(sink.sent.is_empty());
    let [median, longest] = [0.5, 1.0].map(|part| sink.figures.latency(part));
    assert!(median <= longest && sink.figures.rate().is_none_or(|rate| rate >= 0.0));
});
