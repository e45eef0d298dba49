//! `rdmacap stats`: figures of each connection.

use std::collections::BTreeMap;

use rdmacap::{Connection, Figures, Finding, Kind, Operation, Side, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::rows::Rows;
use crate::text::{Output, duration};
use crate::{Failure, input};

/// Figures in JSON: one line for each connection, side and kind of operation.
#[derive(Serialize)]
struct Line<'a> {
    conn: u32,
    from: String,
    op: &'a str,
    count: u64,
    bytes: u64,
    packets: u64,
    resent: u64,
    failed: u64,
    incomplete: u64,
    bytes_per_second: Option<f64>,
    median_us: Option<f64>,
    percentile_99_us: Option<f64>,
    most_us: Option<f64>,
}

/// How often each kind of finding was made, in JSON.
#[derive(Serialize)]
struct Counts<'a> {
    conn: u32,
    findings: &'a BTreeMap<&'a str, u64>,
    most_outstanding: [usize; 2],
}

struct Stats<'a> {
    options: &'a Options,
    out: &'a Output,
    figures: Rows<(u32, Side, Kind), Figures>,
    connections: Rows<u32, Counted>,
}

#[derive(Default)]
struct Counted {
    findings: BTreeMap<&'static str, u64>,
    outstanding: [usize; 2],
    most_outstanding: [usize; 2],
}

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    out.line(&format!(
        "{:>4} {:<12} {:<5} {:>8} {:>12} {:>10} {:>8} {:>7} {:>10} {:>9} {:>9} {:>9}",
        "conn", "op", "", "count", "bytes", "MB/s", "again", "failed", "incomplete", "median", "99 %", "most"
    ));
    let (figures, connections) = (Rows::new(options.config.memory), Rows::new(options.config.memory / 4));
    let mut stats = Stats { options, out, figures, connections };
    input::read(options, out, &mut stats)?;
    let Stats { out, figures, connections, .. } = stats;
    for (name, figures) in figures.iter() {
        describe(figures, *name, out);
    }
    for (connection, counted) in connections.iter() {
        counted.describe(*connection, out);
    }
    Ok(0)
}

impl Stats<'_> {
    fn change(&mut self, connection: u32, change: impl FnOnce(&mut Counted)) {
        if !self.options.wants(connection) {
            return;
        }
        self.connections.change(connection, |counted| {
            change(counted);
            0
        });
        for (connection, counted) in self.connections.excess() {
            counted.describe(connection, self.out);
        }
    }
}

impl Sink for Stats<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.change(connection.id, |_| ());
    }

    fn sent(&mut self, operation: &Operation) {
        self.change(operation.connection, |counted| {
            let side = operation.from as usize;
            counted.outstanding[side] += 1;
            counted.most_outstanding[side] = counted.most_outstanding[side].max(counted.outstanding[side]);
        });
    }

    fn ended(&mut self, operation: &Operation) {
        let side = operation.from as usize;
        self.change(operation.connection, |counted| {
            counted.outstanding[side] = counted.outstanding[side].saturating_sub(1);
        });
        if !self.options.wants(operation.connection) {
            return;
        }
        let name = (operation.connection, operation.from, operation.kind);
        self.figures.change(name, |figures| {
            figures.add(operation);
            figures.weight()
        });
        for (name, figures) in self.figures.excess() {
            describe(&figures, name, self.out);
        }
    }

    fn finding(&mut self, finding: &Finding) {
        if let Some(connection) = finding.connection {
            self.change(connection, |counted| {
                *counted.findings.entry(finding.topic.name()).or_default() += 1;
            });
        }
    }
}

impl Counted {
    fn describe(&self, conn: u32, out: &Output) {
        let [a, b] = self.most_outstanding;
        out.line(&format!("{conn:>4} at most {a} operations of a and {b} of b outstanding"));
        for (name, count) in &self.findings {
            out.line(&format!("{conn:>4} {name}: {count}"));
        }
        out.json(&Counts { conn, findings: &self.findings, most_outstanding: self.most_outstanding });
    }
}

fn describe(figures: &Figures, (conn, from, kind): (u32, Side, Kind), out: &Output) {
    let us = |part: f64| figures.latency(part).map(|time| time as f64 / 1e3);
    let show = |part: f64| figures.latency(part).map_or_else(String::new, duration);
    let rate = figures.rate();
    let &Figures { operations: count, bytes, packets, resent, failed, incomplete, .. } = figures;
    out.line(&format!(
        "{conn:>4} {:<12} {:<5} {count:>8} {bytes:>12} {:>10} {resent:>8} {failed:>7} {incomplete:>10} \
         {:>9} {:>9} {:>9}",
        kind.name(),
        crate::text::direction(from),
        rate.map_or_else(String::new, |rate| format!("{:.1}", rate / 1e6)),
        show(0.5),
        show(0.99),
        show(1.0),
    ));
    out.json(&Line {
        conn,
        from: from.to_string(),
        op: kind.name(),
        count,
        bytes,
        packets,
        resent,
        failed,
        incomplete,
        bytes_per_second: rate,
        median_us: us(0.5),
        percentile_99_us: us(0.99),
        most_us: us(1.0),
    });
}
