//! What the rounds of one measurement say together.

use serde::Serialize;

/// The middle of the rounds and how far they went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// As they came.
    pub(crate) rounds: Vec<f64>,
}

impl Summary {
    /// `None` without any round.
    pub(crate) fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            sorted[middle - 1].midpoint(sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, least, most, rounds: rounds.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_ones() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.least, odd.most), (2.0, 1.0, 3.0));
        assert_eq!(odd.rounds, [3.0, 1.0, 2.0]);
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 8.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Summary::of(&[]), None);
    }
}
