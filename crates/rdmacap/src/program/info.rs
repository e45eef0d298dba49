//! `rdmacap info`: what a capture holds.

use std::collections::BTreeMap;

use rdmacap::{Connection, Finding, Kind, Operation, Severity, Side, Sink, Topic};
use serde::Serialize;

use crate::line::Clock;
use crate::options::Options;
use crate::rows::Rows;
use crate::text::{Output, digits};
use crate::{Failure, input, upper};

/// A connection in JSON.
#[derive(Serialize)]
struct Line<'a> {
    conn: u32,
    carrier: String,
    known: String,
    a: String,
    b: String,
    frame: u64,
    t: f64,
    service: Option<u16>,
    refused: bool,
    pmtu: u32,
    reads: [Option<u16>; 2],
    upper: Option<&'a str>,
    private_data: [Option<String>; 2],
    operations: BTreeMap<&'a str, u64>,
    bytes: u64,
    findings: BTreeMap<&'a str, u64>,
}

struct Info<'a> {
    options: &'a Options,
    out: &'a Output,
    connections: Rows<u32, Seen>,
    clock: Clock,
    /// Findings that are about no connection: how often each, and the first of them.
    other: BTreeMap<Topic, (u64, Finding)>,
}

#[derive(Default)]
struct Seen {
    connection: Option<Connection>,
    operations: BTreeMap<Kind, u64>,
    bytes: u64,
    /// How often each, and the first of them.
    findings: BTreeMap<&'static str, (u64, Severity, String)>,
}

/// What a connection takes of memory: counts by name, and private data as it is told.
const CONNECTION: usize = 4 << 10;

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    let (connections, clock) = (Rows::new(options.config.memory), Clock::default());
    let mut info = Info { options, out, connections, clock, other: BTreeMap::new() };
    input::read(options, out, &mut info)?;
    let Info { out, connections, mut clock, other, .. } = info;
    for (_, seen) in connections.iter() {
        seen.describe(options, &mut clock, out);
    }
    for (count, finding) in other.values() {
        let times = if *count > 1 { format!(", {count} in all") } else { String::new() };
        out.line(&format!("{}: {}{times}", finding.topic.name(), finding.text));
    }
    if connections.is_empty() {
        out.line("no RDMA connection");
    }
    Ok(0)
}

impl Info<'_> {
    fn change(&mut self, connection: u32, change: impl FnOnce(&mut Seen)) {
        self.connections.change(connection, |seen| {
            change(seen);
            CONNECTION
        });
        for (_, seen) in self.connections.excess() {
            seen.describe(self.options, &mut self.clock, self.out);
        }
    }
}

impl Sink for Info<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.clock.at(connection.time);
        self.change(connection.id, |seen| seen.connection = Some(connection.clone()));
    }

    fn ended(&mut self, operation: &Operation) {
        self.change(operation.connection, |seen| {
            *seen.operations.entry(operation.kind).or_default() += 1;
            seen.bytes += operation.length;
        });
    }

    fn finding(&mut self, finding: &Finding) {
        let Some(connection) = finding.connection else {
            self.other.entry(finding.topic).or_insert_with(|| (0, finding.clone())).0 += 1;
            return;
        };
        let first = || (0, finding.topic.severity(), format!("{} (frame {})", finding.text, finding.frame));
        self.change(connection, |seen| {
            seen.findings.entry(finding.topic.name()).or_insert_with(first).0 += 1;
        });
    }
}

impl Seen {
    fn describe(&self, options: &Options, clock: &mut Clock, out: &Output) {
        let Some(connection) = self.connection.as_ref().filter(|found| options.wants(found.id)) else {
            return;
        };
        let operations: BTreeMap<&str, u64> =
            self.operations.iter().map(|(kind, count)| (kind.name(), *count)).collect();
        let upper = upper::of(connection);
        let port = connection.service.map_or(String::new(), |port| format!(", port {port}"));
        let refused = if connection.refused { ", refused" } else { "" };
        out.line(&format!(
            "{}: {} {} -> {}{port}, known by {}, from frame {}{refused}",
            connection.id,
            connection.carrier,
            connection.end(Side::A),
            connection.end(Side::B),
            connection.known,
            connection.frame,
        ));
        let counts: Vec<String> = operations.iter().map(|(name, count)| format!("{count} {name}")).collect();
        out.line(&format!("   {}; {} bytes", counts.join(", "), self.bytes));
        if let Some(upper) = upper {
            out.line(&format!("   carries {upper}"));
        }
        for side in [Side::A, Side::B] {
            let says = said(connection, side);
            if !says.is_empty() {
                out.line(&format!("   {side} says: {}", says.join("; ")));
            }
        }
        for (name, (count, severity, text)) in &self.findings {
            let times = if *count > 1 { format!(", {count} in all") } else { String::new() };
            let line = format!("   {name}: {text}{times}");
            if *severity == Severity::Note { out.line(&line) } else { out.bad(&line) }
        }
        out.json(&Line {
            conn: connection.id,
            carrier: connection.carrier.to_string(),
            known: connection.known.to_string(),
            a: connection.end(Side::A),
            b: connection.end(Side::B),
            frame: connection.frame,
            t: clock.at(connection.time),
            service: connection.service,
            refused: connection.refused,
            pmtu: connection.pmtu,
            reads: connection.reads,
            upper,
            private_data: connection.private_data.each_ref().map(|data| data.as_deref().map(trimmed)),
            operations,
            bytes: self.bytes,
            findings: self.findings.iter().map(|(name, (count, ..))| (*name, *count)).collect(),
        });
    }
}

/// What a side says of itself in the handshake.
fn said(connection: &Connection, side: Side) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(reads) = connection.reads[side as usize] {
        said.push(format!("serves {reads} reads at a time"));
    }
    if let Some(data) = &connection.private_data[side as usize] {
        let text = upper::private_data(data).unwrap_or_else(|| match trimmed(data) {
            digits if digits.is_empty() => digits,
            digits => format!(
                "private data {}",
                digits.get(..64).map_or_else(|| digits.clone(), |start| format!("{start}..."))
            ),
        });
        said.extend(Some(text).filter(|text| !text.is_empty()));
    }
    said
}

/// Bytes as hexadecimal digits, without the padding that follows them.
fn trimmed(bytes: &[u8]) -> String {
    digits(&bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)])
}
