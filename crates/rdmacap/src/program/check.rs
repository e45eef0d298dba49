//! `rdmacap check`: a verdict for other projects' tests.

use std::collections::BTreeMap;

use rdmacap::{Connection, Finding, Operation, Severity, Sink, Topic};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, is_faulty};
use crate::{Failure, input};

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

#[derive(Default)]
struct Check {
    findings: BTreeMap<(Severity, Option<u32>, Topic), (u64, Finding)>,
    connections: u64,
    operations: u64,
    failed: u64,
    incomplete: u64,
}

const CLEAN: u8 = 0;
const ERRORS: u8 = 1;
const INCOMPLETE: u8 = 2;

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    let mut check = Check::default();
    input::read(options, &options.files, &mut check)?;
    for ((severity, conn, topic), (count, first)) in check.findings.iter().rev() {
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
    let worst = check.findings.keys().map(|(severity, ..)| *severity).max();
    let unclean = worst == Some(Severity::Note) || check.connections == 0;
    let code = if worst == Some(Severity::Traffic) || check.failed > 0 {
        ERRORS
    } else if worst == Some(Severity::Capture) || check.incomplete > 0 || options.expect_clean && unclean {
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

impl Sink for Check {
    fn connection(&mut self, _connection: &Connection) {
        self.connections += 1;
    }

    fn ended(&mut self, operation: &Operation) {
        self.operations += 1;
        if operation.outcome.failed() {
            self.failed += 1;
        } else if is_faulty(operation) {
            self.incomplete += 1;
        }
    }

    fn finding(&mut self, finding: &Finding) {
        let name = (finding.topic.severity(), finding.connection, finding.topic);
        self.findings.entry(name).or_insert_with(|| (0, finding.clone())).0 += 1;
    }
}
