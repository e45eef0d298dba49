//! Sets of offsets: what of something is there, and the holes that are left.

/// Ranges that neither overlap nor touch, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds `start..end`. Answers whether all of it was new.
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        // In order is the common case.
        match self.0.last_mut() {
            Some(last) if last.1 == start => {
                last.1 = end;
                return true;
            }
            Some(last) if last.1 > start => {}
            _ => {
                self.0.push((start, end));
                return true;
            }
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let after = self.0.partition_point(|range| range.0 <= end);
        let touched = &self.0[first..after];
        let new = touched.iter().all(|range| range.1 == start || range.0 == end);
        let from = touched.first().map_or(start, |range| range.0.min(start));
        let to = touched.last().map_or(end, |range| range.1.max(end));
        self.0.splice(first..after, [(from, to)]);
        new
    }

    /// Whether all of `start..end` is there.
    #[must_use]
    pub fn contains(&self, start: u64, end: u64) -> bool {
        let after = self.0.partition_point(|range| range.0 <= start);
        start >= end || after.checked_sub(1).is_some_and(|at| self.0[at].1 >= end)
    }

    /// What of `start..end` is not there.
    pub fn missing(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|range| range.1 <= start);
        let mut at = start;
        let mut rest = self.0[first..].iter();
        core::iter::from_fn(move || {
            while at < end {
                let hole = at;
                let Some(&(from, to)) = rest.next() else {
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

    /// How much is there.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges.
    #[must_use]
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
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
            assert!(ranges.as_slice().windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
