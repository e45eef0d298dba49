//! Everything as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::driver::Run;
use crate::job::{Metric, Test};
use crate::machine::Machine;
use crate::statistics::Summary;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    version: &'static str,
    machine: &'a Machine,
    /// Microseconds of a cache line there and back, in each round. None to another host.
    line: Option<Summary>,
    settings: Settings,
    results: Vec<Entry>,
}

#[derive(Serialize)]
struct Settings {
    rounds: usize,
    seconds: f64,
    waiting: &'static str,
    threads: bool,
    connections: usize,
    processors: Option<[usize; 2]>,
    against: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    test: Test,
    size: usize,
    over: String,
    /// Of the first metric's median to that of the candidate of `against`.
    ratio: Option<f64>,
    /// Empty if every round failed.
    metrics: BTreeMap<Metric, Summary>,
}

impl<'a> Document<'a> {
    pub(super) fn of(run: &'a Run<'_>) -> Self {
        let options = run.options;
        let settings = Settings {
            rounds: options.rounds,
            seconds: options.seconds,
            waiting: if options.sleeps { "sleeping" } else { "polling" },
            threads: options.threads,
            connections: options.connections,
            processors: options.processors,
            against: options.against.map(|against| against.to_string()),
        };
        let results = run.rows.iter().map(|row| Entry {
            test: row.test,
            size: row.size,
            over: row.candidate.to_string(),
            ratio: run.ratio(row),
            metrics: row.summaries().collect(),
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine: &run.machine,
            line: Summary::of(&run.lines),
            settings,
            results: results.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::tests::with_example;

    #[test]
    fn the_shape_is_what_the_manual_says() {
        with_example(|run| {
            let document: Value = serde_json::to_value(Document::of(run)).unwrap();
            assert_eq!(document["settings"]["waiting"], "polling");
            assert_eq!(document["settings"]["against"], "tcp");
            assert!(document["machine"]["processors"].as_u64().unwrap() > 0);
            let results = document["results"].as_array().unwrap();
            assert_eq!(results.len(), 4);
            assert_eq!(results[0]["test"], "bandwidth");
            assert_eq!(results[0]["over"], "rstream:512K");
            assert_eq!(results[0]["ratio"], 4.0);
            let expected =
                json!({"median": 200.0, "least": 100.0, "most": 300.0, "rounds": [300.0, 100.0, 200.0]});
            assert_eq!(results[0]["metrics"]["megabytes_per_second"], expected);
            assert_eq!(results[2]["metrics"], json!({}));
            assert_eq!(results[2]["ratio"], Value::Null);
        });
    }
}
