//! Rows of a table that is shown when the capture is over. If they take too much memory, those that have not
//! changed for longest are shown before.

use std::collections::BTreeMap;

/// What a row takes beside what it says itself.
const ROW: usize = 512;

#[derive(Default)]
struct Row<V> {
    value: V,
    /// When it last changed, in changes of all rows.
    changed: u64,
    weight: usize,
}

pub(crate) struct Rows<K, V> {
    rows: BTreeMap<K, Row<V>>,
    changes: u64,
    weight: usize,
    most: usize,
}

impl<K: Ord + Copy, V: Default> Rows<K, V> {
    /// No rows, which will take at most so many bytes.
    pub(crate) fn new(memory: usize) -> Self {
        Self { rows: BTreeMap::new(), changes: 0, weight: 0, most: memory }
    }

    /// Changes a row. `change` answers how many bytes it takes beside its own size.
    pub(crate) fn change(&mut self, key: K, change: impl FnOnce(&mut V) -> usize) {
        self.changes += 1;
        let row = self.rows.entry(key).or_default();
        let weight = ROW + change(&mut row.value);
        self.weight = self.weight + weight - row.weight;
        (row.changed, row.weight) = (self.changes, weight);
    }

    /// The rows that are to be shown now, in the order of their keys.
    pub(crate) fn excess(&mut self) -> Vec<(K, V)> {
        if self.weight <= self.most {
            return Vec::new();
        }
        let mut order: Vec<(u64, K)> = self.rows.iter().map(|(key, row)| (row.changed, *key)).collect();
        order.sort_unstable();
        let mut excess = BTreeMap::new();
        for (_, key) in order {
            if self.weight <= self.most / 8 * 7 {
                break;
            }
            if let Some(row) = self.rows.remove(&key) {
                self.weight -= row.weight;
                excess.insert(key, row.value);
            }
        }
        excess.into_iter().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key).map(|row| &row.value)
    }

    /// All rows that are left, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, row)| (key, &row.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shown_early_where_memory_ends() {
        let mut rows: Rows<u32, u32> = Rows::new(100 * ROW);
        let mut shown = Vec::new();
        for key in 0..1000 {
            rows.change(key, |value| {
                *value += 1;
                0
            });
            // This one changes all the time.
            rows.change(0, |value| {
                *value += 1;
                0
            });
            shown.extend(rows.excess());
            assert!(rows.rows.len() <= 100);
        }
        assert!(shown.is_sorted() && shown.len() > 850);
        assert_eq!(rows.get(&0), Some(&1001));
        assert_eq!(shown.len() + rows.iter().count(), 1000);
        // One that takes all of it is shown itself, and begins anew.
        rows.change(0, |_| 101 * ROW);
        assert!(rows.excess().iter().any(|(key, _)| *key == 0));
        assert_eq!(rows.get(&0), None);
    }
}
