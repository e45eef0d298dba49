//! `rdmacap info`: what a capture holds.

use std::collections::BTreeMap;

use rdmacap::{Connection, Finding, Kind, Operation, Severity, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, hex, seconds};
use crate::{Failure, input};

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
    upper: Option<&'a str>,
    private_data: [Option<String>; 2],
    operations: BTreeMap<&'a str, u64>,
    bytes: u64,
    findings: BTreeMap<&'a str, u64>,
}

#[derive(Default)]
struct Info {
    connections: BTreeMap<u32, Seen>,
    /// Findings that are about no connection.
    other: Vec<Finding>,
}

#[derive(Default)]
struct Seen {
    connection: Option<Connection>,
    operations: BTreeMap<Kind, u64>,
    bytes: u64,
    /// How often each, and the first of them.
    findings: BTreeMap<&'static str, (u64, Severity, String)>,
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    let mut info = Info::default();
    input::read(options, &options.files, &mut info)?;
    let first = info.connections.values().filter_map(|seen| Some(seen.connection.as_ref()?.time)).min();
    for seen in info.connections.values() {
        let Some(connection) = &seen.connection else { continue };
        if options.connection.is_none_or(|wanted| wanted == connection.id) {
            describe(connection, seen, first.unwrap_or(0), out);
        }
    }
    for finding in &info.other {
        out.line(&format!("{}: {}", finding.topic.name(), finding.text));
    }
    if info.connections.is_empty() {
        out.line("no RDMA connection");
    }
    Ok(0)
}

impl Sink for Info {
    fn connection(&mut self, connection: &Connection) {
        self.connections.entry(connection.id).or_default().connection = Some(connection.clone());
    }

    fn ended(&mut self, operation: &Operation) {
        let seen = self.connections.entry(operation.connection).or_default();
        *seen.operations.entry(operation.kind).or_default() += 1;
        seen.bytes += operation.length;
    }

    fn finding(&mut self, finding: &Finding) {
        let Some(connection) = finding.connection else {
            self.other.push(finding.clone());
            return;
        };
        let seen = self.connections.entry(connection).or_default();
        let first = || (0, finding.topic.severity(), format!("{} (frame {})", finding.text, finding.frame));
        seen.findings.entry(finding.topic.name()).or_insert_with(first).0 += 1;
    }
}

fn describe(connection: &Connection, seen: &Seen, first: u64, out: &mut Output) {
    let operations: BTreeMap<&str, u64> =
        seen.operations.iter().map(|(kind, count)| (kind.name(), *count)).collect();
    let upper = upper(connection);
    let private_data = connection.private_data.clone().map(|data| data.map(|data| digits(&data)));
    out.json(&Line {
        conn: connection.id,
        carrier: connection.carrier.to_string(),
        known: connection.known.to_string(),
        a: connection.ends[0].to_string(),
        b: connection.ends[1].to_string(),
        frame: connection.frame,
        t: seconds(connection.time, first),
        service: connection.service,
        refused: connection.refused,
        pmtu: connection.pmtu,
        upper,
        private_data,
        operations: operations.clone(),
        bytes: seen.bytes,
        findings: seen.findings.iter().map(|(name, (count, ..))| (*name, *count)).collect(),
    });
    let port = connection.service.map_or(String::new(), |port| format!(", port {port}"));
    let refused = if connection.refused { ", refused" } else { "" };
    out.line(&format!(
        "{}: {} {} -> {}{port}, known by {}, from frame {}{refused}",
        connection.id,
        connection.carrier,
        connection.ends[0],
        connection.ends[1],
        connection.known,
        connection.frame,
    ));
    let counts: Vec<String> = operations.iter().map(|(name, count)| format!("{count} {name}")).collect();
    out.line(&format!("   {}; {} bytes", counts.join(", "), seen.bytes));
    if let Some(upper) = upper {
        out.line(&format!("   carries {upper}"));
    }
    for (name, (count, severity, text)) in &seen.findings {
        let line = format!(
            "   {name}: {text}{}",
            if *count > 1 { format!(", {count} in all") } else { String::new() }
        );
        if *severity == Severity::Note { out.line(&line) } else { out.bad(&line) }
    }
}

/// What travels on a connection, as far as its handshake tells.
fn upper(connection: &Connection) -> Option<&'static str> {
    let [request, reply] = &connection.private_data;
    let is = |recognises: fn(&[u8]) -> bool| {
        request.as_deref().is_some_and(recognises) || reply.as_deref().is_some_and(recognises)
    };
    if is(|data| rstream_protocol::Offer::decode(data).is_ok()) {
        return Some("rstream");
    }
    (connection.service == Some(20049)).then_some("RPC-over-RDMA")
}

/// Bytes as hexadecimal digits, without the padding that follows them.
fn digits(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].iter().map(|byte| hex(*byte)[2..].to_owned()).map(|digit| format!("{digit:0>2}")).collect()
}
