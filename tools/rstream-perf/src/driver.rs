//! A run: every test and size over every candidate, in turns, and then the reports.

use anyhow::{Result, bail, ensure};

use crate::candidate::Candidate;
use crate::job::{Job, Metric, Test};
use crate::machine::Machine;
use crate::options::Options;
use crate::placement;
use crate::report::{self, Progress};
use crate::statistics::Summary;

/// What a run found.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) machine: Machine,
    /// What [`placement::measure`] found in each round.
    pub(crate) lines: Vec<f64>,
    pub(crate) rows: Vec<Row>,
}

/// One measurement and its rounds.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) candidate: Candidate,
    pub(crate) test: Test,
    pub(crate) size: usize,
    /// The first metric is what the test is about.
    pub(crate) rounds: Vec<(Metric, Vec<f64>)>,
}

impl Row {
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (Metric, Summary)> {
        self.rounds.iter().filter_map(|(metric, rounds)| Some((*metric, Summary::of(rounds)?)))
    }

    /// What the test is about, unless every round failed.
    pub(crate) fn principal(&self) -> Option<(Metric, Summary)> {
        self.summaries().next()
    }

    fn add(&mut self, metrics: Vec<(Metric, f64)>) {
        for (metric, value) in metrics {
            match self.rounds.iter_mut().find(|(known, _)| *known == metric) {
                Some((_, rounds)) => rounds.push(value),
                None => self.rounds.push((metric, vec![value])),
            }
        }
    }
}

impl Run<'_> {
    /// The row that others are compared with: the same test and size over the candidate of `--against`.
    pub(crate) fn yardstick(&self, row: &Row) -> Option<&Row> {
        let against = self.options.against?;
        self.rows
            .iter()
            .find(|other| other.candidate == against && (other.test, other.size) == (row.test, row.size))
    }

    /// The candidate's median as a multiple of the yardstick's. How much was compared is nothing to compare.
    pub(crate) fn ratio(&self, row: &Row) -> Option<f64> {
        if row.test == Test::Verify {
            return None;
        }
        let (_, mine) = row.principal()?;
        let (_, other) = self.yardstick(row)?.principal()?;
        (other.median > 0.0).then(|| mine.median / other.median)
    }
}

pub(crate) fn measure(options: &Options) -> Result<()> {
    let mut run = Run { options, machine: Machine::this(), lines: Vec::new(), rows: plan(options) };
    ensure!(
        !run.rows.is_empty(),
        "{} can do none of the tests: {}",
        join(&options.candidates),
        join(&options.tests)
    );
    let mut progress = Progress::new(options.quiet, options.rounds * run.rows.len());
    let mut failures = 0;
    for round in 1..=options.rounds {
        run.lines.extend(placement::measure(options, run.machine.processors));
        for row in &mut run.rows {
            let what = format!("{} of {} over {}", row.test, crate::size::text(row.size), row.candidate);
            progress.begin(&format!("round {round} of {}: {what}", options.rounds));
            match options.partner.measure(&job(options, row)) {
                Ok(outcome) => {
                    progress.done(&report::in_short(&outcome.metrics));
                    row.add(outcome.metrics);
                }
                Err(error) => {
                    failures += 1;
                    progress.failed(&format!("{what}: {error:#}"));
                }
            }
        }
    }
    progress.end();
    report::all(&run)?;
    if failures > 0 {
        bail!("{failures} measurements failed");
    }
    Ok(())
}

fn join(things: &[impl ToString]) -> String {
    things.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What is to be measured, in the order of the report.
fn plan(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for &test in &options.tests {
        let usual = [test.usual_size()];
        for &size in options.sizes.as_deref().unwrap_or(&usual) {
            for &candidate in &options.candidates {
                if candidate.suits(test, options.sleeps) && (candidate.has_threads() || !options.threads) {
                    rows.push(Row { candidate, test, size, rounds: Vec::new() });
                }
            }
        }
    }
    rows
}

fn job(options: &Options, row: &Row) -> Job {
    Job {
        candidate: row.candidate,
        test: row.test,
        size: row.size,
        seconds: options.seconds,
        sleeps: options.sleeps,
        threads: options.threads,
        connections: options.connections,
        processors: options.processors,
    }
}
