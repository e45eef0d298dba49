//! `rdmacap ops`: one line for each operation.

use rdmacap::advertised::Advertisements;
use rdmacap::{Connection, Operation, Placement, Sink};
use serde::Serialize;

use crate::line::{self, Begin, Clock, Source};
use crate::options::Options;
use crate::text::{Output, duration, hex, is_faulty, ranges};
use crate::{Failure, input};

/// An operation in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    begin: Begin<'a>,
    took_us: Option<f64>,
    key: Option<String>,
    addr: Option<String>,
    advertised: Option<Source<'a>>,
    sink_key: Option<String>,
    sink_addr: Option<String>,
    operand: Option<u64>,
    compare: Option<u64>,
    old: Option<u64>,
    packets: u32,
    resent: u32,
    end: String,
}

struct Ops<'a> {
    options: &'a Options,
    out: &'a Output,
    clock: Clock,
    advertisements: Advertisements,
}

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    out.line(&format!(
        "{} {:>9} {:>10} {:>18} {:>9}  end",
        line::heading(),
        "took",
        "key",
        "address",
        "bytes"
    ));
    let advertisements = Advertisements::new(options.config.memory);
    input::read(options, out, &mut Ops { options, out, clock: Clock::default(), advertisements })?;
    Ok(0)
}

impl Sink for Ops<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.clock.at(connection.time);
        self.advertisements.connection(connection);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.advertisements.bytes(placement, bytes);
    }

    fn sent(&mut self, operation: &Operation) {
        self.advertisements.sent(operation);
    }

    fn ended(&mut self, operation: &Operation) {
        self.advertisements.ended(operation);
        let options = self.options;
        let has_key = |key| operation.target.is_some_and(|target| target.key == key);
        if !options.wants(operation.connection)
            || options.key.is_some_and(|key| !has_key(key))
            || options.failed && !is_faulty(operation)
        {
            return;
        }
        if options.json {
            self.json(operation);
        } else if is_faulty(operation) {
            let text = self.text(operation);
            self.out.bad(&text);
        } else {
            let text = self.text(operation);
            self.out.line(&text);
        }
    }

    fn closed(&mut self, connection: u32) {
        self.advertisements.closed(connection);
    }
}

impl Ops<'_> {
    fn json(&mut self, operation: &Operation) {
        let atomic = operation.atomic;
        let source = operation.target.and_then(|target| self.advertisements.of(target.region));
        self.out.json(&Line {
            begin: line::begin(operation, &mut self.clock),
            took_us: operation.took.map(|took| took as f64 / 1e3),
            key: operation.target.map(|target| hex(target.key)),
            addr: operation.target.map(|target| hex(target.address)),
            advertised: source.map(Source::from),
            sink_key: operation.sink.map(|sink| hex(sink.key)),
            sink_addr: operation.sink.map(|sink| hex(sink.address)),
            operand: atomic.map(|atomic| atomic.operand),
            compare: atomic.map(|atomic| atomic.compare),
            old: atomic.and_then(|atomic| atomic.old),
            packets: operation.packets,
            resent: operation.resent,
            end: operation.outcome.to_string(),
        });
    }

    fn text(&mut self, operation: &Operation) -> String {
        let mut line = format!(
            "{} {:>9} {:>10} {:>18} {:>9}  {}",
            line::columns(operation, &mut self.clock),
            operation.took.map_or_else(String::new, duration),
            operation.target.map_or_else(String::new, |target| hex(target.key)),
            operation.target.map_or_else(String::new, |target| hex(target.address)),
            operation.length,
            operation.outcome,
        );
        let mut add = |text: String| {
            line.push_str(", ");
            line.push_str(&text);
        };
        if let Some(immediate) = operation.immediate {
            add(format!("imm {immediate:#x}"));
        }
        if let Some(key) = operation.invalidate {
            add(format!("invalidates {key:#x}"));
        }
        if let Some(old) = operation.atomic.and_then(|atomic| atomic.old) {
            add(format!("found {old}"));
        }
        if operation.resent > 0 {
            add(format!("{} packets again", operation.resent));
        }
        if !operation.missing.is_empty() {
            add(format!("missing {}", ranges(&operation.missing)));
        }
        if operation.cut > 0 {
            add(format!("{} bytes cut", operation.cut));
        }
        if operation.outcome.failed()
            && let Some(found) = operation.target.and_then(|target| self.advertisements.of(target.region))
        {
            add(format!("key of {}", line::source(found)));
        }
        line
    }
}
