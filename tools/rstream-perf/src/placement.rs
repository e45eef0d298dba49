//! Where the two sides ran: whether their processors share a cache decides what shared memory can do, by a
//! factor of four. A virtual machine does not say, and its host may move its processors at any time. So each
//! round begins with a measurement: how long a cache line takes there and back.

use crate::candidate::{Candidate, Rings, Way};
use crate::job::{Job, Test};
use crate::options::Options;
use crate::partner::Partner;
use crate::statistics::Summary;

/// A line comes back within this time, in microseconds, if the processors share a cache: 0.1 to 0.2 were
/// measured there, and 0.4 and more where they share none.
const SHARED: f64 = 0.3;
/// Between two rounds the time may change by this factor without another placement.
const STEADY: f64 = 2.0;
/// Seconds of a measurement.
const DURATION: f64 = 0.03;

/// The measurement, if both sides run on this host and have a processor each: microseconds.
pub(crate) fn measure(options: &Options, processors: usize) -> Option<f64> {
    let Partner::Here(_) = options.partner else { return None };
    if processors < 2 {
        return None;
    }
    let job = Job {
        candidate: Candidate { way: Way::Line, rings: Rings::default() },
        test: Test::Pingpong,
        size: Test::Pingpong.usual_size(),
        seconds: DURATION,
        sleeps: false,
        threads: false,
        connections: 1,
        processors: options.processors,
    };
    options.partner.measure(&job).ok()?.metrics.first().map(|&(_, median)| median)
}

/// What the measurements of the rounds say.
pub(crate) fn text(lines: &Summary) -> String {
    let name = if lines.median <= SHARED { "share a cache" } else { "share no cache" };
    let range = format!("{:.2} µs ({:.2}, {:.2})", lines.median, lines.least, lines.most);
    let warning = if lines.most > STEADY * lines.least {
        "\nwarning: the processors were moved during the run, or others used them: compare rounds, not runs"
    } else {
        ""
    };
    format!("the processors {name}: a line of it there and back in {range}{warning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placement_and_its_change_are_told() {
        let told = |rounds: &[f64]| text(&Summary::of(rounds).unwrap());
        assert_eq!(
            told(&[0.12, 0.14, 0.13]),
            "the processors share a cache: a line of it there and back in 0.13 µs (0.12, 0.14)"
        );
        assert!(told(&[0.4, 0.5]).starts_with("the processors share no cache"));
        assert!(told(&[0.12, 0.4, 0.4]).contains("warning: the processors were moved"));
    }
}
