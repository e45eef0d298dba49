//! Measurements of messages and remote memory access. A side that has sent everything says so by a message
//! without bytes, and the other side answers the same when it has taken everything.

mod access;
mod flow;
mod regions;
mod side;
mod spread;
mod turns;
mod verify;

use std::time::Instant;

use anyhow::Result;

use super::pingpong;
use crate::job::{Job, Metric, Outcome, Test};
use crate::transport::fabric::message::{MessageDoor, MessageWay, Messages, Shape};
use side::Side;

/// Operations that may be outstanding at a time, and bytes of their messages.
const WINDOW: usize = 64;
const WINDOW_BYTES: usize = 4 << 20;

pub(crate) fn passive(job: &Job, door: &mut MessageDoor) -> Result<Outcome> {
    let mut side = Side::new(Messages::accept(door, shape(job))?, shape(job));
    match job.test {
        Test::Bandwidth | Test::Rate | Test::Register => flow::take(&mut side)?,
        Test::Spread => spread::take(&mut side)?,
        Test::Pingpong | Test::Connections => turns::answer(&mut side)?,
        Test::Write | Test::Read => access::look(job, &mut side)?,
        Test::Verify => return verify::passive(job, &mut side),
        Test::Bidirectional => return Err(job.unsuited()),
    }
    Ok(side.outcome(Vec::new()))
}

pub(crate) fn active(job: &Job, way: &MessageWay) -> Result<Outcome> {
    let start = Instant::now();
    let mut side = Side::new(Messages::connect(way, shape(job))?, shape(job));
    let opening = start.elapsed().as_secs_f64() * 1e6 / shape(job).ends as f64;
    let metrics = match job.test {
        Test::Bandwidth | Test::Rate => flow::give(job, &mut side)?,
        Test::Pingpong => {
            let metrics = pingpong::timed(job, || turns::round(&mut side, job.size))?;
            turns::finish(&mut side)?;
            metrics
        }
        Test::Connections => {
            vec![(Metric::Opening, opening), (Metric::MessageRate, turns::ask(job, &mut side)?)]
        }
        Test::Spread => spread::give(job, &mut side)?,
        Test::Write | Test::Read => access::ask(job, &mut side)?,
        Test::Register => regions::ask(job, &mut side)?,
        Test::Verify => return verify::active(job, &mut side),
        Test::Bidirectional => return Err(job.unsuited()),
    };
    Ok(side.outcome(metrics))
}

fn shape(job: &Job) -> Shape {
    let window = match job.test {
        Test::Pingpong | Test::Connections => 1,
        _ => (WINDOW_BYTES / job.size).clamp(2, WINDOW),
    };
    let ends = match job.test {
        Test::Connections | Test::Spread => job.connections,
        _ => 1,
    };
    Shape { ends, window, size: job.size, sleeps: job.sleeps }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use super::*;
    use crate::job::Tally;

    fn over_tcp(test: Test, size: usize, sleeps: bool) -> Outcome {
        let candidate = "tcp-msg".parse().unwrap();
        let (threads, processors) = (false, None);
        let job = &Job { candidate, test, size, seconds: 0.05, sleeps, threads, connections: 5, processors };
        let address = Ipv4Addr::LOCALHOST.into();
        let mut door = MessageDoor::open(address, "tcp").unwrap();
        let target = SocketAddr::new(address, door.target().unwrap().parse().unwrap());
        thread::scope(|scope| {
            let passive = scope.spawn(|| passive(job, &mut door).unwrap());
            let active = active(job, &MessageWay::new(target, "tcp").unwrap()).unwrap();
            let passive = passive.join().unwrap();
            assert_eq!((active.sent, active.received), (passive.received, passive.sent));
            assert_eq!(test == Test::Register, (active.sent, active.received) == Default::default());
            active
        })
    }

    #[test]
    fn every_test_measures_what_it_says_and_loses_nothing() {
        let rates = [Metric::Throughput, Metric::MessageRate];
        let latency = [Metric::Median, Metric::Percentile99, Metric::Percentile999];
        for sleeps in [false, true] {
            let of = |test, size| {
                let metrics = over_tcp(test, size, sleeps).metrics;
                assert!(metrics.iter().all(|(_, value)| value.is_finite() && *value > 0.0));
                metrics.into_iter().map(|(metric, _)| metric).collect::<Vec<_>>()
            };
            assert_eq!(of(Test::Bandwidth, 5 << 20), rates, "a window of two");
            assert_eq!(of(Test::Rate, 64), [rates[1], rates[0]]);
            assert_eq!(of(Test::Pingpong, 64), latency);
            assert_eq!(of(Test::Spread, 3000), [rates[1], rates[0]]);
            assert_eq!(of(Test::Connections, 3000), [Metric::Opening, Metric::MessageRate]);
            for test in [Test::Write, Test::Read] {
                assert_eq!(of(test, 1), rates, "marks of one byte");
                assert_eq!(of(test, 70_000), rates);
            }
            assert_eq!(of(Test::Register, 70_000), [Metric::Registering, Metric::Closing]);
            assert_eq!(of(Test::Verify, 1234), [Metric::Compared]);
        }
    }

    #[test]
    fn each_side_sends_content_of_its_own() {
        let outcome = over_tcp(Test::Verify, 1 << 16, false);
        assert_eq!(outcome.sent.bytes, outcome.received.bytes);
        assert_ne!(outcome.sent.checksum, outcome.received.checksum);
        assert_ne!(outcome.sent, Tally::default());
    }
}
