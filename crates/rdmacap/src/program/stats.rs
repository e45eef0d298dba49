//! `rdmacap stats`: figures of each connection.

use std::collections::BTreeMap;

use rdmacap::{Connection, Finding, Kind, Operation, Side, Sink};
use serde::Serialize;

use crate::options::Options;
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
    findings: BTreeMap<&'a str, u64>,
    most_outstanding: [usize; 2],
}

#[derive(Default)]
struct Figures {
    count: u64,
    bytes: u64,
    packets: u64,
    resent: u64,
    failed: u64,
    incomplete: u64,
    times: Option<(u64, u64)>,
    latencies: Latencies,
}

/// Latencies, counted in steps of a sixteenth.
#[derive(Default)]
struct Latencies {
    counts: BTreeMap<u32, u64>,
    total: u64,
    most: u64,
}

#[derive(Default)]
struct Stats {
    only: Option<u32>,
    figures: BTreeMap<(u32, Side, Kind), Figures>,
    connections: BTreeMap<u32, Counted>,
}

#[derive(Default)]
struct Counted {
    findings: BTreeMap<&'static str, u64>,
    outstanding: [usize; 2],
    most_outstanding: [usize; 2],
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    let mut stats = Stats { only: options.connection, ..Stats::default() };
    input::read(options, &options.files, &mut stats)?;
    out.line(&format!(
        "{:>4} {:<12} {:<5} {:>8} {:>12} {:>10} {:>8} {:>7} {:>10} {:>9} {:>9} {:>9}",
        "conn", "op", "", "count", "bytes", "MB/s", "again", "failed", "incomplete", "median", "99 %", "most"
    ));
    for (&(conn, from, kind), figures) in &stats.figures {
        let time = |part: f64| figures.latencies.quantile(part);
        let us = |time: Option<u64>| time.map(|time| time as f64 / 1e3);
        let rate = figures.rate();
        let show = |time: Option<u64>| time.map_or_else(String::new, duration);
        let &Figures { count, bytes, packets, resent, failed, incomplete, .. } = figures;
        out.line(&format!(
            "{conn:>4} {:<12} {:<5} {count:>8} {bytes:>12} {:>10} {resent:>8} {failed:>7} {incomplete:>10} \
             {:>9} {:>9} {:>9}",
            kind.name(),
            crate::text::direction(from),
            rate.map_or_else(String::new, |rate| format!("{:.1}", rate / 1e6)),
            show(time(0.5)),
            show(time(0.99)),
            show(time(1.0)),
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
            median_us: us(time(0.5)),
            percentile_99_us: us(time(0.99)),
            most_us: us(time(1.0)),
        });
    }
    for (conn, counted) in stats.connections {
        let [a, b] = counted.most_outstanding;
        out.line(&format!("{conn:>4} at most {a} operations of a and {b} of b outstanding"));
        for (name, count) in &counted.findings {
            out.line(&format!("{conn:>4} {name}: {count}"));
        }
        let Counted { findings, most_outstanding, .. } = counted;
        out.json(&Counts { conn, findings, most_outstanding });
    }
    Ok(0)
}

impl Stats {
    fn wants(&self, connection: u32) -> bool {
        self.only.is_none_or(|only| only == connection)
    }
}

impl Sink for Stats {
    fn connection(&mut self, connection: &Connection) {
        if self.wants(connection.id) {
            self.connections.entry(connection.id).or_default();
        }
    }

    fn sent(&mut self, operation: &Operation) {
        if let Some(counted) = self.connections.get_mut(&operation.connection) {
            let side = operation.from as usize;
            counted.outstanding[side] += 1;
            counted.most_outstanding[side] = counted.most_outstanding[side].max(counted.outstanding[side]);
        }
    }

    fn ended(&mut self, operation: &Operation) {
        if !self.wants(operation.connection) {
            return;
        }
        if let Some(counted) = self.connections.get_mut(&operation.connection) {
            let outstanding = &mut counted.outstanding[operation.from as usize];
            *outstanding = outstanding.saturating_sub(1);
        }
        let name = (operation.connection, operation.from, operation.kind);
        let figures = self.figures.entry(name).or_default();
        figures.count += 1;
        figures.bytes += operation.length;
        figures.packets += u64::from(operation.packets);
        figures.resent += u64::from(operation.resent);
        figures.failed += u64::from(operation.outcome.failed());
        figures.incomplete += u64::from(!operation.missing.is_empty());
        let end = operation.time + operation.took.unwrap_or(0);
        let times = figures.times.get_or_insert((operation.time, end));
        *times = (times.0.min(operation.time), times.1.max(end));
        if let Some(took) = operation.took {
            figures.latencies.add(took);
        }
    }

    fn finding(&mut self, finding: &Finding) {
        if let Some(counted) = finding.connection.and_then(|connection| self.connections.get_mut(&connection))
        {
            *counted.findings.entry(finding.topic.name()).or_default() += 1;
        }
    }
}

impl Figures {
    /// Bytes a second, from the first operation's begin to the last one's end.
    fn rate(&self) -> Option<f64> {
        let (first, last) = self.times.filter(|(first, last)| last > first)?;
        Some(self.bytes as f64 * 1e9 / (last - first) as f64)
    }
}

impl Latencies {
    fn add(&mut self, nanoseconds: u64) {
        *self.counts.entry(step(nanoseconds)).or_default() += 1;
        self.total += 1;
        self.most = self.most.max(nanoseconds);
    }

    /// The time that this part of all does not exceed, to a sixteenth of it.
    fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = (self.total as f64 * part).ceil() as u64;
        let mut seen = 0;
        let found = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        found.map(|(step, _)| upper(*step).min(self.most))
    }
}

/// The step that a time belongs to: its highest bit, and the four bits below it.
fn step(nanoseconds: u64) -> u32 {
    let bits = 64 - (nanoseconds | 16).leading_zeros() - 5;
    bits * 16 + ((nanoseconds | 16) >> bits & 15) as u32
}

/// The longest time of a step.
fn upper(step: u32) -> u64 {
    let (bits, low) = (step / 16, u64::from(step % 16));
    ((low + 17) << bits) - 1
}
