//! The table at the end.

use std::fmt::Write;

use crate::driver::{Row, Run};
use crate::job::{Metric, Test};
use crate::placement;
use crate::size;
use crate::statistics::Summary;

/// Everything in one text: what was measured where, and a table for each test.
pub(super) fn text(run: &Run<'_>) -> String {
    let mut text = heading(run);
    for &test in &run.options.tests {
        let rows: Vec<_> = run.rows.iter().filter(|row| row.test == test).collect();
        if !rows.is_empty() {
            let _ = write!(text, "\n{}\n{}", about(run, test), align(&cells(run, &rows)));
        }
    }
    text
}

fn heading(run: &Run<'_>) -> String {
    let (machine, options) = (&run.machine, run.options);
    let placement = Summary::of(&run.lines).map_or_else(String::new, |lines| placement::text(&lines) + "\n");
    format!(
        "rstream-perf {}, {} round{} of {} s in turns: median (least, most)\n\
         {} × {}, Linux {}, libfabric {}, load {:.2} at the start\n\
         {placement}",
        env!("CARGO_PKG_VERSION"),
        options.rounds,
        if options.rounds == 1 { "" } else { "s" },
        options.seconds,
        machine.processors,
        machine.model,
        machine.kernel,
        machine.libfabric,
        machine.load,
    )
}

fn about(run: &Run<'_>, test: Test) -> String {
    let how = if run.options.sleeps { "sleeping" } else { "polling" };
    match test {
        Test::Connections | Test::Spread => format!("{test} ({}), {how}", run.options.connections),
        Test::Bidirectional if run.options.threads => format!("{test}, two threads a side, {how}"),
        _ => format!("{test}, {how}"),
    }
}

/// A line of titles and one for each row. The first metric has its range, and is the one that is compared.
fn cells(run: &Run<'_>, rows: &[&Row]) -> Vec<Vec<String>> {
    let metrics: Vec<Metric> = rows
        .iter()
        .map(|row| row.summaries().map(|(metric, _)| metric).collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let mut titles = vec!["size".to_owned(), "over".to_owned()];
    titles.extend(metrics.iter().map(|metric| format!("{}, {}", metric.title(), metric.unit())));
    if let (Some(against), Some(_)) = (run.options.against, metrics.first()) {
        titles.insert(3, format!("/ {against}"));
    }
    let mut table = vec![titles];
    for row in rows {
        let mut line = vec![size::text(row.size), row.candidate.to_string()];
        for (place, (metric, summary)) in row.summaries().enumerate() {
            let middle = metric.shown(summary.median);
            if place > 0 {
                line.push(middle);
                continue;
            }
            line.push(format!("{middle} ({}, {})", metric.shown(summary.least), metric.shown(summary.most)));
            if run.options.against.is_some() {
                line.push(run.ratio(row).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
            }
        }
        if row.rounds.is_empty() {
            line.push("failed".to_owned());
        }
        table.push(line);
    }
    table
}

/// Columns of one width each: names to the left, numbers to the right.
fn align(table: &[Vec<String>]) -> String {
    let mut widths = vec![0; table.iter().map(Vec::len).max().unwrap_or_default()];
    for line in table {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in table {
        let mut shown = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match column {
                1 => write!(shown, "  {cell:<width$}"),
                _ => write!(shown, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(text, "{}", shown.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::with_example;

    #[test]
    fn there_is_a_line_for_each_row_with_its_ratio() {
        with_example(|run| {
            let text = text(run);
            let lines: Vec<_> =
                text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
            let line = |words: &[&str]| lines.iter().any(|line| line == words);
            assert!(line(&["64", "rstream:512K", "200", "(100,", "300)", "4.00", "2.00"]), "{text}");
            assert!(line(&["64", "tcp", "50.0", "(40.0,", "80.0)", "1.00", "2.00"]), "{text}");
            assert!(line(&["64K", "rstream:512K", "failed"]), "{text}");
            assert!(line(&["64K", "tcp", "6000", "(6000,", "6000)", "1.00", "2.00"]), "{text}");
        });
    }
}
