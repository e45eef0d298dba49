//! `rdmacap stats`: figures of each connection.

use std::collections::BTreeMap;

use rdmacap::{Connection, Finding, Kind, Operation, Side, Sink};
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

struct Stats<'a> {
    options: &'a Options,
    out: &'a mut Output,
    figures: Rows<(u32, Side, Kind), Figures>,
    connections: Rows<u32, Counted>,
}

#[derive(Default)]
struct Counted {
    findings: BTreeMap<&'static str, u64>,
    outstanding: [usize; 2],
    most_outstanding: [usize; 2],
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    out.line(&format!(
        "{:>4} {:<12} {:<5} {:>8} {:>12} {:>10} {:>8} {:>7} {:>10} {:>9} {:>9} {:>9}",
        "conn", "op", "", "count", "bytes", "MB/s", "again", "failed", "incomplete", "median", "99 %", "most"
    ));
    let (figures, connections) = (Rows::new(options.config.memory), Rows::new(options.config.memory / 4));
    let mut stats = Stats { options, out, figures, connections };
    input::read(options, &mut stats)?;
    let Stats { out, figures, connections, .. } = stats;
    for (name, figures) in figures.iter() {
        figures.describe(*name, out);
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
            figures.latencies.weight()
        });
        for (name, figures) in self.figures.excess() {
            figures.describe(name, self.out);
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
    fn describe(&self, conn: u32, out: &mut Output) {
        let [a, b] = self.most_outstanding;
        out.line(&format!("{conn:>4} at most {a} operations of a and {b} of b outstanding"));
        for (name, count) in &self.findings {
            out.line(&format!("{conn:>4} {name}: {count}"));
        }
        out.json(&Counts { conn, findings: &self.findings, most_outstanding: self.most_outstanding });
    }
}

impl Figures {
    fn add(&mut self, operation: &Operation) {
        self.count += 1;
        self.bytes += operation.length;
        self.packets += u64::from(operation.packets);
        self.resent += u64::from(operation.resent);
        self.failed += u64::from(operation.outcome.failed());
        self.incomplete += u64::from(!operation.missing.is_empty());
        let end = operation.time + operation.took.unwrap_or(0);
        let times = self.times.get_or_insert((operation.time, end));
        *times = (times.0.min(operation.time), times.1.max(end));
        if let Some(took) = operation.took {
            self.latencies.add(took);
        }
    }

    fn describe(&self, (conn, from, kind): (u32, Side, Kind), out: &mut Output) {
        let time = |part: f64| self.latencies.quantile(part);
        let us = |time: Option<u64>| time.map(|time| time as f64 / 1e3);
        let rate = self.rate();
        let show = |time: Option<u64>| time.map_or_else(String::new, duration);
        let &Self { count, bytes, packets, resent, failed, incomplete, .. } = self;
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

    /// Bytes a second, from the first operation's begin to the last one's end.
    fn rate(&self) -> Option<f64> {
        let (first, last) = self.times.filter(|(first, last)| last > first)?;
        Some(self.bytes as f64 * 1e9 / (last - first) as f64)
    }
}

impl Latencies {
    /// Bytes of memory that the steps take.
    fn weight(&self) -> usize {
        self.counts.len() * 32
    }

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

/// The step that a time belongs to: its highest bit, and the four bits below it. Times below 16 are one step.
fn step(nanoseconds: u64) -> u32 {
    let nanoseconds = nanoseconds.max(16);
    let bits = nanoseconds.ilog2() - 4;
    bits * 16 + (nanoseconds >> bits & 15) as u32
}

/// The longest time of a step.
fn upper(step: u32) -> u64 {
    let (bits, low) = (step / 16, u128::from(step % 16));
    u64::try_from(((low + 17) << bits) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_a_sixteenth_and_have_no_gaps() {
        let times =
            (0..64).flat_map(|bits| [0, 1, 7, 15].map(|part| (1_u64 << bits) + (1_u64 << bits) / 16 * part));
        for time in times.chain([0, 1, u64::MAX]) {
            let longest = upper(step(time));
            assert!(longest >= time && longest - time <= time / 16 + 16, "{time} {longest}");
            assert_eq!(step(longest), step(time));
            assert!(longest == u64::MAX || step(longest + 1) == step(longest) + 1);
        }
        let mut latencies = Latencies::default();
        [5, u64::MAX, 100].into_iter().for_each(|time| latencies.add(time));
        assert_eq!((latencies.quantile(0.5), latencies.quantile(1.0)), (Some(103), Some(u64::MAX)));
    }
}
