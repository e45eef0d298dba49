//! `rdmacap ops`: one line for each operation.

use rdmacap::{Connection, Operation, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, direction, duration, frames, hex, is_faulty, ranges, seconds};
use crate::{Failure, input};

/// An operation in JSON.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    conn: u32,
    from: String,
    frames: (u64, u64),
    t: f64,
    took_us: Option<f64>,
    key: Option<String>,
    addr: Option<String>,
    sink_key: Option<String>,
    sink_addr: Option<String>,
    len: u64,
    imm: Option<u32>,
    invalidate: Option<String>,
    solicited: bool,
    operand: Option<u64>,
    compare: Option<u64>,
    old: Option<u64>,
    packets: u32,
    resent: u32,
    end: String,
    missing: &'a [(u64, u64)],
    cut: u64,
}

struct Ops<'a> {
    options: &'a Options,
    out: &'a mut Output,
    first: Option<u64>,
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    out.line(&format!(
        "{:>4} {:<12} {:<5} {:>13} {:>11} {:>9} {:>10} {:>18} {:>9}  end",
        "conn", "op", "", "frames", "time, s", "took", "key", "address", "bytes"
    ));
    let mut sink = Ops { options, out, first: None };
    input::read(options, &options.files, &mut sink)?;
    Ok(0)
}

impl Sink for Ops<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.first.get_or_insert(connection.time);
    }

    fn ended(&mut self, operation: &Operation) {
        let options = self.options;
        let has_key = |key| operation.target.is_some_and(|target| target.key == key);
        if options.connection.is_some_and(|connection| connection != operation.connection)
            || options.key.is_some_and(|key| !has_key(key))
            || options.failed && !is_faulty(operation)
        {
            return;
        }
        let first = *self.first.get_or_insert(operation.time);
        if options.json {
            self.out.json(&json(operation, first));
        } else if is_faulty(operation) {
            self.out.bad(&text(operation, first));
        } else {
            self.out.line(&text(operation, first));
        }
    }
}

fn json(operation: &Operation, first: u64) -> Line<'_> {
    let atomic = operation.atomic;
    Line {
        op: operation.kind.name(),
        conn: operation.connection,
        from: operation.from.to_string(),
        frames: operation.frames,
        t: seconds(operation.time, first),
        took_us: operation.took.map(|took| took as f64 / 1e3),
        key: operation.target.map(|target| hex(target.key)),
        addr: operation.target.map(|target| hex(target.address)),
        sink_key: operation.sink.map(|sink| hex(sink.key)),
        sink_addr: operation.sink.map(|sink| hex(sink.address)),
        len: operation.length,
        imm: operation.immediate,
        invalidate: operation.invalidate.map(hex),
        solicited: operation.solicited,
        operand: atomic.map(|atomic| atomic.operand),
        compare: atomic.map(|atomic| atomic.compare),
        old: atomic.and_then(|atomic| atomic.old),
        packets: operation.packets,
        resent: operation.resent,
        end: operation.outcome.to_string(),
        missing: &operation.missing,
        cut: operation.cut,
    }
}

fn text(operation: &Operation, first: u64) -> String {
    let mut line = format!(
        "{:>4} {:<12} {:<5} {:>13} {:>11.6} {:>9} {:>10} {:>18} {:>9}  {}",
        operation.connection,
        operation.kind.name(),
        direction(operation.from),
        frames(operation.frames),
        seconds(operation.time, first),
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
    line
}
