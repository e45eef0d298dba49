//! What changed between two sights, in a second.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use rstream_sockets::statistics::{Connection, Counter};
use serde::Serialize;

use crate::model::{CALLS, RECEIVED, SENT, Seen, Sight};

/// In a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
    pub(crate) calls: f64,
}

type Key = (u32, usize, Option<(SocketAddr, SocketAddr)>);

/// The rates of all that was seen twice.
pub(crate) struct Rates {
    processes: HashMap<u32, Rate>,
    connections: HashMap<Key, Rate>,
}

fn key(seen: &Seen, connection: &Connection) -> Key {
    (seen.pid, connection.number, connection.ends)
}

fn rate(before: impl Fn(Counter) -> u64, now: impl Fn(Counter) -> u64, time: Duration) -> Rate {
    let sum = |counters: &[Counter]| {
        // A number is used again by another process.
        let grown = |&counter: &Counter| now(counter).saturating_sub(before(counter));
        counters.iter().map(grown).fold(0, u64::saturating_add) as f64 / time.as_secs_f64().max(1e-9)
    };
    Rate { received_bytes: sum(&RECEIVED), sent_bytes: sum(&SENT), calls: sum(&CALLS) }
}

impl Rates {
    pub(crate) fn new(before: &Sight, now: &Sight, time: Duration) -> Self {
        let mut rates = Self { processes: HashMap::new(), connections: HashMap::new() };
        for seen in &now.processes {
            let Some(earlier) = before.processes.iter().find(|earlier| earlier.pid == seen.pid) else {
                continue;
            };
            let of = rate(|at| earlier.totals.count(at), |at| seen.totals.count(at), time);
            rates.processes.insert(seen.pid, of);
            let earlier: HashMap<_, _> =
                earlier.connections.iter().map(|connection| (key(seen, connection), connection)).collect();
            for connection in &seen.connections {
                if let Some(earlier) = earlier.get(&key(seen, connection)) {
                    let of = rate(|at| earlier.count(at), |at| connection.count(at), time);
                    rates.connections.insert(key(seen, connection), of);
                }
            }
        }
        rates
    }

    pub(crate) fn process(&self, seen: &Seen) -> Option<Rate> {
        self.processes.get(&seen.pid).copied()
    }

    pub(crate) fn connection(&self, seen: &Seen, connection: &Connection) -> Option<Rate> {
        self.connections.get(&key(seen, connection)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_a_second() {
        let now = |counter| if counter == Counter::RingSentCalls { 30 } else { 100 };
        let found = rate(|_| 20, now, Duration::from_secs(2));
        assert_eq!(found, Rate { received_bytes: 80.0, sent_bytes: 80.0, calls: 125.0 });
        assert_eq!(rate(|_| 1000, now, Duration::from_secs(1)), Rate::default());
        assert!(rate(|_| 0, now, Duration::ZERO).calls.is_finite());
    }
}
