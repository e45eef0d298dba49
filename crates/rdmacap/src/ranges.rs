//! Sets of offsets: what of something is there, and the holes that are left.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The only one: nearly all that are made have no more.
    only: Option<(u64, u64)>,
    /// All, if there are several: each start with its end.
    several: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `start..end`. Answers whether all of it was new.
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        if self.several.is_empty() {
            let Some((from, to)) = self.only else {
                self.only = Some((start, end));
                return true;
            };
            if start <= to && from <= end {
                self.only = Some((from.min(start), to.max(end)));
                return start == to || from == end;
            }
            self.only = None;
            self.several.extend([(from, to), (start, end)]);
            return true;
        }
        let (mut from, mut to, mut new) = (start, end, true);
        // One that begins before, then those that begin inside.
        if let Some((&before, last)) = self.several.range_mut(..start).next_back()
            && *last >= start
        {
            (from, new) = (before, *last == start);
            to = to.max(*last);
        }
        while let Some((&next, &last)) = self.several.range(start..=end).next() {
            new &= next == end;
            to = to.max(last);
            self.several.remove(&next);
        }
        self.several.insert(from, to);
        if self.several.len() == 1 {
            self.only = self.several.pop_first();
        }
        new
    }

    /// The ranges, from that on which `at` is in or behind.
    fn from(&self, at: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.several.range(..=at).next_back().map_or(at, |(start, _)| *start);
        self.only.into_iter().chain(self.several.range(first..).map(|(start, end)| (*start, *end)))
    }

    /// Whether all of `start..end` is there.
    #[must_use]
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end || self.from(start).next().is_some_and(|(from, to)| from <= start && end <= to)
    }

    /// What of `start..end` is not there.
    pub fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = start;
        let mut rest = self.from(start).filter(move |(_, to)| *to > start);
        core::iter::from_fn(move || {
            while at < end {
                let hole = at;
                let Some((from, to)) = rest.next() else {
                    at = end;
                    return Some((hole, end));
                };
                at = to;
                if from > hole {
                    return Some((hole, from.min(end)));
                }
            }
            None
        })
    }

    /// The ranges.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.only.into_iter().chain(self.several.iter().map(|(start, end)| (*start, *end)))
    }

    /// How much is there.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// Bytes of memory beside the value itself.
    #[must_use]
    pub fn weight(&self) -> usize {
        const RANGE: usize = 40;
        RANGE * self.several.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_set_of_numbers() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (mut ranges, mut set) = (Ranges::default(), [false; 64]);
            for _ in 0..20 {
                let (start, length) = (next(60), next(5));
                let end = (start + length).min(64);
                let new = (start..end).all(|at| !set[at as usize]);
                assert_eq!(ranges.insert(start, end), new);
                (start..end).for_each(|at| set[at as usize] = true);
                let (from, to) = (next(64), next(64));
                let missing: Vec<u64> =
                    ranges.missing(from, to).flat_map(|(start, end)| start..end).collect();
                let expected: Vec<u64> = (from..to).filter(|at| !set[*at as usize]).collect();
                assert_eq!(missing, expected);
                assert_eq!(ranges.contains(from, to), expected.is_empty());
            }
            assert_eq!(ranges.total(), set.iter().filter(|there| **there).count() as u64);
            let all: Vec<(u64, u64)> = ranges.iter().collect();
            assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0));
            assert_eq!(ranges.several.len(), if all.len() > 1 { all.len() } else { 0 });
        }
    }
}
