//! One measurement: what the driver asks of two workers, and what they answer. Workers get it as an argument,
//! a server over the network, both as JSON.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::size;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) candidate: Candidate,
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// How long is measured, after a tenth of it for warming up.
    pub(crate) seconds: f64,
    /// Whether both sides sleep while there is nothing to do, or poll.
    pub(crate) sleeps: bool,
    /// Whether each side has a thread for each direction; bidirectional only.
    pub(crate) threads: bool,
    /// How many there are, for the test of many.
    pub(crate) connections: usize,
    /// Processors of the passive and the active side.
    pub(crate) processors: Option<[usize; 2]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// One way, as fast as it goes.
    Bandwidth,
    /// Both ways at once.
    Bidirectional,
    /// A message there and one back.
    Pingpong,
    /// One way, counted in messages.
    Rate,
    /// Into the other side's memory, as fast as it goes.
    Write,
    /// Out of the other side's memory, as fast as it goes.
    Read,
    /// Registers memory and closes it again.
    Register,
    /// Many connections, a message there and one back on each.
    Connections,
    /// Messages one way, spread over many connections.
    Spread,
    /// Content, not speed: what arrives is what was sent.
    Verify,
}

pub(crate) const SIZE_MOST: usize = 64 << 20;
const SECONDS_MOST: f64 = 3600.0;
const CONNECTIONS_MOST: usize = 50_000;

impl Job {
    /// Refuses what a stranger should not ask for.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!((1..=SIZE_MOST).contains(&self.size), "messages have 1 to {} bytes", size::text(SIZE_MOST));
        ensure!(
            (0.0..=SECONDS_MOST).contains(&self.seconds),
            "a measurement takes 0 to {SECONDS_MOST} seconds"
        );
        ensure!(
            !self.threads || self.test == Test::Bidirectional,
            "the test {} has one thread on each side",
            self.test
        );
        ensure!((1..=CONNECTIONS_MOST).contains(&self.connections), "1 to {CONNECTIONS_MOST} connections");
        if self.candidate.suits(self.test, self.sleeps) { Ok(()) } else { Err(self.unsuited()) }
    }

    /// What is said of a test that the candidate does not have.
    pub(crate) fn unsuited(&self) -> anyhow::Error {
        let how = if self.sleeps { "sleeping" } else { "polling" };
        anyhow!("{} does not have the test {}, {how}", self.candidate, self.test)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

impl Test {
    pub(crate) const ALL: &[(Test, &str)] = &[
        (Test::Bandwidth, "bandwidth"),
        (Test::Bidirectional, "bidirectional"),
        (Test::Pingpong, "pingpong"),
        (Test::Rate, "rate"),
        (Test::Write, "write"),
        (Test::Read, "read"),
        (Test::Register, "register"),
        (Test::Connections, "connections"),
        (Test::Spread, "spread"),
        (Test::Verify, "verify"),
    ];

    /// The message size unless one is given.
    pub(crate) fn usual_size(self) -> usize {
        match self {
            Test::Bandwidth
            | Test::Bidirectional
            | Test::Write
            | Test::Read
            | Test::Register
            | Test::Verify => 65536,
            Test::Pingpong | Test::Rate | Test::Connections | Test::Spread => 64,
        }
    }

    /// Whether only messages have it.
    pub(crate) fn is_of_messages(self) -> bool {
        matches!(self, Test::Write | Test::Read | Test::Register | Test::Spread)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(test, _)| test == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Test {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((test, _)) = Self::ALL.iter().find(|(_, name)| *name == text) else {
            let known: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            bail!("no test is called '{text}': there are {}", known.join(", "));
        };
        Ok(*test)
    }
}

/// What a worker says, a line each, on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The passive side is ready and found by this.
    Target(String),
    Done(Outcome),
    Failed(String),
}

/// What one side has done and seen.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) sent: Tally,
    pub(crate) received: Tally,
    /// What was measured; only the active side measures.
    pub(crate) metrics: Vec<(Metric, f64)>,
}

/// Bytes that went one way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    /// Over their content, where the test is about that.
    pub(crate) checksum: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Metric {
    #[serde(rename = "megabytes_per_second")]
    Throughput,
    #[serde(rename = "messages_per_second")]
    MessageRate,
    #[serde(rename = "median_us")]
    Median,
    #[serde(rename = "percentile_99_us")]
    Percentile99,
    #[serde(rename = "percentile_99_9_us")]
    Percentile999,
    #[serde(rename = "opening_us")]
    Opening,
    #[serde(rename = "registering_us")]
    Registering,
    #[serde(rename = "closing_us")]
    Closing,
    #[serde(rename = "compared_megabytes")]
    Compared,
    /// Of the active side's process, for each byte that it sent or received.
    #[serde(rename = "processor_us_per_megabyte")]
    ProcessorTime,
    /// Sleeps of the active side after which a call did nothing, for each call that moved bytes.
    #[serde(rename = "empty_wake_ups_per_transfer")]
    EmptyWakeUps,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            candidate: "rstream:1M".parse().unwrap(),
            test: Test::Bidirectional,
            size: 64,
            seconds: 0.5,
            sleeps: true,
            threads: true,
            connections: 10,
            processors: Some([0, 1]),
        }
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let text = serde_json::to_string(&job()).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job());
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(job().check().is_ok());
        assert!(Job { size: 0, ..job() }.check().is_err());
        assert!(Job { size: SIZE_MOST + 1, ..job() }.check().is_err());
        assert!(Job { seconds: -1.0, ..job() }.check().is_err());
        assert!(Job { seconds: f64::NAN, ..job() }.check().is_err());
        assert!(Job { connections: 0, ..job() }.check().is_err());
        assert!(Job { test: Test::Rate, ..job() }.check().is_err());
        let unsuited = Job { test: Test::Write, threads: false, ..job() }.check();
        assert_eq!(unsuited.unwrap_err().to_string(), "rstream:1M does not have the test write, sleeping");
    }

    #[test]
    fn tests_are_called_what_they_say() {
        for (test, name) in Test::ALL {
            assert_eq!(name.parse::<Test>().unwrap(), *test);
            assert_eq!(serde_json::to_string(test).unwrap(), format!("\"{name}\""));
        }
        assert!("speed".parse::<Test>().is_err());
    }
}
