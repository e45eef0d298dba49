//! The measurements themselves, each in the words of both sides: the active one connects and holds the
//! clock, the passive one does its part until the stream ends. Those of messages are in a module of their
//! own.

mod content;
mod crowd;
mod end;
pub(crate) mod message;
mod pingpong;
mod threads;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::job::{Job, Outcome, Test};
use crate::transport::{Connector, Listener};
use end::End;

pub(crate) fn passive<L: Listener>(job: &Job, listener: &mut L) -> Result<Outcome> {
    if job.test == Test::Connections {
        return crowd::answer(job, listener);
    }
    let mut end = End::new(listener.accept()?, job.sleeps);
    match job.test {
        Test::Bandwidth | Test::Rate => traffic::take(job, &mut end)?,
        Test::Bidirectional => traffic::exchange_back(job, &mut end)?,
        Test::Verify => return traffic::verify(job, &mut end, Side::Passive),
        Test::Pingpong => pingpong::answer(job, &mut end)?,
        Test::Connections | Test::Spread | Test::Write | Test::Read | Test::Register => {
            return Err(job.unsuited());
        }
    }
    Ok(end.outcome(Vec::new()))
}

pub(crate) fn active<C: Connector>(job: &Job, connector: &mut C) -> Result<Outcome> {
    if job.test == Test::Connections {
        return crowd::ask(job, connector);
    }
    let mut end = End::new(connector.connect()?, job.sleeps);
    let metrics = match job.test {
        Test::Bandwidth | Test::Rate => traffic::give(job, &mut end)?,
        Test::Bidirectional => traffic::exchange(job, &mut end)?,
        Test::Verify => return traffic::verify(job, &mut end, Side::Active),
        Test::Pingpong => pingpong::ask(job, &mut end)?,
        Test::Connections | Test::Spread | Test::Write | Test::Read | Test::Register => {
            return Err(job.unsuited());
        }
    };
    Ok(end.outcome(metrics))
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Active,
    Passive,
}

/// Tells when warming up is over and when all is, and what was done between the two.
struct Clock {
    start: Instant,
    duration: Duration,
    /// When and at which count measuring began.
    since: Option<(Instant, u64)>,
}

impl Clock {
    fn start(job: &Job) -> Self {
        Self { start: Instant::now(), duration: job.duration(), since: None }
    }

    fn is_warm(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it is over when this much has been done.
    fn is_over(&mut self, now: Instant, count: u64) -> bool {
        match self.since {
            Some((since, _)) => now - since >= self.duration,
            None => {
                if now - self.start >= self.duration / 10 {
                    self.since = Some((now, count));
                }
                false
            }
        }
    }

    /// What was done in a second, now that this much is done in all.
    fn rate(&self, count: u64) -> f64 {
        let (since, before) = self.since.unwrap_or((self.start, 0));
        (count - before) as f64 / since.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use super::*;
    use crate::job::{Metric, Tally};
    use crate::transport::socket::{TcpDoor, TcpWay};

    fn job(test: Test, size: usize) -> Job {
        let candidate = "tcp".parse().unwrap();
        Job {
            candidate,
            test,
            size,
            seconds: 0.05,
            sleeps: false,
            threads: false,
            connections: 5,
            processors: None,
        }
    }

    fn both_sides<L: Listener + Send>(
        job: &Job,
        mut listener: L,
        mut connector: impl Connector + Send,
    ) -> (Outcome, Outcome) {
        thread::scope(|scope| {
            let passive = scope.spawn(|| passive(job, &mut listener).unwrap());
            let active = active(job, &mut connector).unwrap();
            (active, passive.join().unwrap())
        })
    }

    fn agree(active: &Outcome, passive: &Outcome) {
        assert_eq!(active.sent, passive.received);
        assert_eq!(active.received, passive.sent);
        assert_ne!(active.sent, Tally::default());
    }

    fn metrics(outcome: &Outcome) -> Vec<Metric> {
        assert!(outcome.metrics.iter().all(|(metric, value)| {
            value.is_finite() && (*value > 0.0 || *metric == Metric::EmptyWakeUps)
        }));
        outcome.metrics.iter().map(|(metric, _)| *metric).collect()
    }

    fn over_tcp(job: &Job) -> Outcome {
        let address = Ipv4Addr::LOCALHOST.into();
        let door = TcpDoor::open(address).unwrap();
        let way = TcpWay(SocketAddr::new(address, door.target().unwrap().parse().unwrap()));
        let (active, passive) = both_sides(job, door, way);
        agree(&active, &passive);
        active
    }

    #[test]
    fn every_test_measures_what_it_says_and_loses_nothing() {
        let rates = [Metric::Throughput, Metric::MessageRate];
        let latency = [Metric::Median, Metric::Percentile99, Metric::Percentile999];
        for sleeps in [false, true] {
            let of = |test, size| metrics(&over_tcp(&Job { sleeps, ..job(test, size) }));
            assert_eq!(of(Test::Bandwidth, 1000), rates);
            assert_eq!(of(Test::Rate, 64), [rates[1], rates[0]]);
            for threads in [false, true] {
                let both = metrics(&over_tcp(&Job { sleeps, threads, ..job(Test::Bidirectional, 70_000) }));
                assert_eq!(both[..3], [rates[0], rates[1], Metric::ProcessorTime]);
                assert_eq!(both[3..], [Metric::EmptyWakeUps][usize::from(!sleeps)..]);
            }
            assert_eq!(of(Test::Pingpong, 64), latency);
            assert_eq!(of(Test::Connections, 3000), [Metric::Opening, Metric::MessageRate]);
            assert_eq!(of(Test::Verify, 1234), [Metric::Compared]);
        }
    }

    #[test]
    fn each_side_sends_content_of_its_own() {
        let outcome = over_tcp(&job(Test::Verify, 1 << 16));
        assert_ne!(outcome.sent.checksum, outcome.received.checksum);
    }
}
