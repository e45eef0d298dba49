//! `rdmacap check`: a verdict for other projects' tests.

use std::collections::BTreeMap;

use rdmacap::advertised::Advertisements;
use rdmacap::rpc::{Exchange, Rpc, RpcSink};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{Connection, Finding, Operation, Placement, Severity, Sink, Topic};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, is_faulty};
use crate::{Failure, input, line};

/// A kind of finding in JSON.
#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    severity: &'a str,
    conn: Option<u32>,
    count: u64,
    frame: u64,
    text: &'a str,
}

/// The last line of JSON.
#[derive(Serialize)]
struct Verdict<'a> {
    verdict: &'a str,
    connections: u64,
    operations: u64,
    faulty: u64,
}

/// Findings by their kind and connection: how often each, and the first of them.
struct Findings<'a> {
    options: &'a Options,
    kinds: BTreeMap<(Severity, Option<u32>, Topic), (u64, Finding)>,
    /// Most kinds that are counted apart. Beyond it connections are not.
    most: usize,
}

/// What a kind takes.
const KIND: usize = 512;

impl<'a> Findings<'a> {
    fn new(options: &'a Options) -> Self {
        Self { options, kinds: BTreeMap::new(), most: options.config.memory / KIND }
    }

    fn add(&mut self, finding: &Finding) {
        self.add_times(1, finding);
    }

    fn add_times(&mut self, count: u64, finding: &Finding) {
        if finding.connection.is_some_and(|connection| !self.options.wants(connection)) {
            return;
        }
        let name = |connection| (finding.topic.severity(), connection, finding.topic);
        let own = name(finding.connection);
        let is_apart = self.kinds.len() < self.most || self.kinds.contains_key(&own);
        let name = if is_apart { own } else { name(None) };
        self.kinds.entry(name).or_insert_with(|| (0, finding.clone())).0 += count;
    }
}

/// What is counted, and what follows the protocols on top.
struct Check<'a> {
    options: &'a Options,
    findings: Findings<'a>,
    streams: Streams<Upper<'a>>,
    rpc: Rpc<Upper<'a>>,
    advertisements: Advertisements,
    connections: u64,
    operations: u64,
    failed: u64,
    incomplete: u64,
}

/// What a protocol on top found.
struct Upper<'a>(Findings<'a>);

impl StreamSink for Upper<'_> {
    fn finding(&mut self, finding: &Finding) {
        self.0.add(finding);
    }
}

impl RpcSink for Upper<'_> {
    fn exchange(&mut self, _exchange: &Exchange) {}

    fn finding(&mut self, finding: &Finding) {
        self.0.add(finding);
    }
}

const CLEAN: u8 = 0;
const ERRORS: u8 = 1;
const INCOMPLETE: u8 = 2;

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    let memory = options.config.memory;
    let upper = || Upper(Findings::new(options));
    let mut check = Check {
        options,
        findings: Findings::new(options),
        streams: Streams::new(upper(), memory),
        rpc: Rpc::new(upper(), memory),
        advertisements: Advertisements::new(memory / 4),
        connections: 0,
        operations: 0,
        failed: 0,
        incomplete: 0,
    };
    input::read(options, out, &mut check)?;
    // A topic of theirs is about no other layer, but for notes.
    for (count, first) in
        [check.streams.sink.0, check.rpc.sink.0].into_iter().flat_map(|found| found.kinds.into_values())
    {
        check.findings.add_times(count, &first);
    }
    for ((severity, conn, topic), (count, first)) in check.findings.kinds.iter().rev() {
        let name = match severity {
            Severity::Note => "note",
            Severity::Capture => "incomplete",
            Severity::Traffic => "error",
        };
        let (topic, frame, text) = (topic.name(), first.frame, &*first.text);
        out.json(&Line { topic, severity: name, conn: *conn, count: *count, frame, text });
        let of = conn.map_or(String::new(), |conn| format!("connection {conn}, "));
        let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
        let line = format!("{name}: {topic}: {of}frame {frame}: {text}{times}");
        if *severity == Severity::Note { out.line(&line) } else { out.bad(&line) }
    }
    let worst = check.findings.kinds.keys().map(|(severity, ..)| *severity).max();
    let not_whole = worst == Some(Severity::Capture) || check.incomplete > 0;
    let not_as_expected = options.expect_clean && (worst.is_some() || check.connections == 0);
    let code = if worst == Some(Severity::Traffic) || check.failed > 0 {
        ERRORS
    } else if not_whole || not_as_expected {
        INCOMPLETE
    } else {
        CLEAN
    };
    let verdict = match code {
        ERRORS => "errors in the traffic",
        INCOMPLETE => "the capture is incomplete",
        _ => "clean",
    };
    let faulty = check.failed + check.incomplete;
    let (connections, operations) = (check.connections, check.operations);
    out.json(&Verdict { verdict, connections, operations, faulty });
    out.line(&format!(
        "{verdict}: {connections} connections, {operations} operations, {faulty} of them faulty"
    ));
    Ok(code)
}

impl Sink for Check<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.connections += u64::from(self.options.wants(connection.id));
        self.streams.connection(connection);
        self.rpc.connection(connection);
        self.advertisements.connection(connection);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.streams.bytes(placement, bytes);
        self.rpc.bytes(placement, bytes);
        self.advertisements.bytes(placement, bytes);
    }

    fn sent(&mut self, operation: &Operation) {
        self.streams.sent(operation);
        self.rpc.sent(operation);
        self.advertisements.sent(operation);
    }

    fn ended(&mut self, operation: &Operation) {
        if self.options.wants(operation.connection) {
            self.count(operation);
        }
        self.streams.ended(operation);
        self.rpc.ended(operation);
        self.advertisements.ended(operation);
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.add(finding);
        self.streams.finding(finding);
    }

    fn closed(&mut self, connection: u32) {
        self.streams.closed(connection);
        self.rpc.closed(connection);
        self.advertisements.closed(connection);
    }
}

impl Check<'_> {
    fn count(&mut self, operation: &Operation) {
        self.operations += 1;
        if operation.outcome.failed() {
            self.failed += 1;
            self.trace(operation);
        } else if is_faulty(operation) {
            self.incomplete += 1;
        }
    }

    /// Says where the key of an operation that failed comes from.
    fn trace(&mut self, operation: &Operation) {
        let Some(target) = operation.target else { return };
        let Some(found) = self.advertisements.of(target.region) else { return };
        let text = format!(
            "key {:#x} of the {} of frame {} comes from {}",
            target.key,
            operation.kind.name(),
            operation.frames.0,
            line::source(found)
        );
        let (connection, frame) = (Some(operation.connection), operation.frames.1);
        self.findings.add(&Finding { topic: Topic::Key, connection, frame, text });
    }
}
