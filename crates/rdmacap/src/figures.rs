//! Figures of many operations: how many, how fast, and how long they took.

use std::collections::BTreeMap;

use crate::Operation;

/// Sums over operations, and their latencies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Packets or segments that carried them, each once.
    pub packets: u64,
    /// Packets that were seen again.
    pub resent: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations of which bytes are missing.
    pub incomplete: u64,
    /// Begin of the first one, and end of the last.
    times: Option<(u64, u64)>,
    latencies: Latencies,
}

impl Figures {
    /// Counts an operation that has ended.
    pub fn add(&mut self, operation: &Operation) {
        self.operations += 1;
        self.bytes += operation.length;
        self.packets += u64::from(operation.packets);
        self.resent += u64::from(operation.resent);
        self.failed += u64::from(operation.outcome.failed());
        self.incomplete += u64::from(!operation.missing.is_empty());
        let end = operation.time.saturating_add(operation.took.unwrap_or(0));
        let times = self.times.get_or_insert((operation.time, end));
        *times = (times.0.min(operation.time), times.1.max(end));
        if let Some(took) = operation.took {
            self.latencies.add(took);
        }
    }

    /// Bytes a second, from the first operation's begin to the last one's end.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let (first, last) = self.times.filter(|(first, last)| last > first)?;
        Some(self.bytes as f64 * 1e9 / (last - first) as f64)
    }

    /// The time in nanoseconds that this part of the operations did not exceed, to a sixteenth of it.
    #[must_use]
    pub fn latency(&self, part: f64) -> Option<u64> {
        self.latencies.quantile(part)
    }

    /// Bytes of memory beside the value itself.
    #[must_use]
    pub fn weight(&self) -> usize {
        const STEP: usize = 32;
        STEP * self.latencies.counts.len()
    }
}

/// Latencies, counted in steps of a sixteenth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Latencies {
    counts: BTreeMap<u32, u64>,
    total: u64,
    most: u64,
}

impl Latencies {
    fn add(&mut self, nanoseconds: u64) {
        *self.counts.entry(step(nanoseconds)).or_default() += 1;
        self.total += 1;
        self.most = self.most.max(nanoseconds);
    }

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
