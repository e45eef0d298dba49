//! What becomes of a run: a table on standard output, JSON, pictures; and progress while it works.

mod json;
mod picture;
mod progress;
mod table;

use std::fs::{self, File};
use std::io::Write;

use anyhow::{Context, Result};

use crate::driver::Run;
use crate::job::Metric;
pub(crate) use progress::Progress;

pub(crate) fn all(run: &Run<'_>) -> Result<()> {
    // Files first: nothing is lost when nobody reads the table.
    if let Some(path) = &run.options.json {
        let mut text = serde_json::to_string_pretty(&json::Document::of(run))?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(folder) = &run.options.svg {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        for (test, picture) in picture::all(run)? {
            let path = folder.join(format!("{test}.svg"));
            let mut file = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
            file.write_all(picture.as_bytes())?;
        }
    }
    print!("{}", table::text(run));
    Ok(())
}

/// The first metric with its unit.
pub(crate) fn in_short(metrics: &[(Metric, f64)]) -> String {
    let first = metrics.first();
    first.map_or_else(String::new, |(metric, value)| format!("{} {}", metric.shown(*value), metric.unit()))
}

impl Metric {
    /// Over a column.
    fn title(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::MessageRate => "messages",
            Self::Median => "there and back",
            Self::Percentile99 => "99 %",
            Self::Percentile999 => "99.9 %",
            Self::Opening => "opening one",
            Self::Registering => "registering",
            Self::Closing => "closing",
            Self::Compared => "compared each way",
            Self::ProcessorTime => "processor",
            Self::EmptyWakeUps => "empty wake-ups",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::MessageRate => "1000/s",
            Self::Median
            | Self::Percentile99
            | Self::Percentile999
            | Self::Opening
            | Self::Registering
            | Self::Closing => "µs",
            Self::Compared => "MB",
            Self::ProcessorTime => "µs/MB",
            Self::EmptyWakeUps => "a transfer",
        }
    }

    /// A value in this unit.
    fn scaled(self, value: f64) -> f64 {
        if self == Self::MessageRate { value / 1e3 } else { value }
    }

    /// The same as text, with about four digits.
    fn shown(self, value: f64) -> String {
        let value = self.scaled(value);
        let digits = match value {
            100.0.. => 0,
            10.0.. => 1,
            1.0.. => 2,
            _ => 3,
        };
        format!("{value:.digits$}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::driver::Row;
    use crate::job::Test;
    use crate::machine::Machine;
    use crate::options::Options;

    /// A run of two candidates with two sizes, of which one candidate failed at one.
    pub(crate) fn with_example(check: impl FnOnce(&Run<'_>)) {
        let mut options = Options::example();
        options.against = Some("tcp".parse().unwrap());
        let row = |candidate: &str, size, rounds: &[f64]| Row {
            candidate: candidate.parse().unwrap(),
            test: Test::Bandwidth,
            size,
            rounds: match rounds {
                [] => Vec::new(),
                rounds => vec![
                    (Metric::Throughput, rounds.to_vec()),
                    (Metric::MessageRate, vec![2e3; rounds.len()]),
                ],
            },
        };
        let rows = vec![
            row("rstream:512k", 64, &[300.0, 100.0, 200.0]),
            row("tcp", 64, &[50.0, 80.0, 40.0]),
            row("rstream:512k", 65536, &[]),
            row("tcp", 65536, &[6000.0]),
        ];
        check(&Run { options: &options, machine: Machine::this(), lines: vec![0.12, 0.13], rows });
    }

    #[test]
    fn values_have_about_four_digits() {
        for (value, text) in [(6543.2, "6543"), (99.94, "99.9"), (7.591, "7.59"), (0.1234, "0.123")] {
            assert_eq!(Metric::Median.shown(value), text);
        }
        assert_eq!(Metric::MessageRate.shown(1500.0), "1.50");
        assert_eq!(in_short(&[(Metric::Median, 7.5), (Metric::Percentile99, 9.0)]), "7.50 µs");
    }
}
