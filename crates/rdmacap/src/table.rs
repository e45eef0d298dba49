//! Where connections are kept: a frame mostly belongs to the connection of the one before, or of the one
//! before that, and finds it without a hash.

use std::hash::Hash;

use crate::hash::Map;

/// Values by numbers that are given out again.
#[derive(Debug)]
pub(crate) struct Slab<V> {
    slots: Vec<Option<V>>,
    free: Vec<usize>,
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<V> Slab<V> {
    pub(crate) fn insert(&mut self, value: V) -> (usize, &mut V) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        (slot, self.slots[slot].insert(value))
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Option<V> {
        let value = self.slots.get_mut(slot)?.take();
        self.free.extend(value.is_some().then_some(slot));
        value
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&V> {
        self.slots.get(slot)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut V> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All values with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &V)> {
        self.slots.iter().enumerate().filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }
}

/// Values by keys.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    index: Map<K, usize>,
    values: Slab<(K, V)>,
    /// Slots of the last look-ups that differ, the latest first.
    recent: [usize; 2],
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: Map::default(), values: Slab::default(), recent: [0; 2] }
    }
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let is_it = |slot: usize| self.values.get(slot).is_some_and(|(of, _)| of == key);
        let [latest, before] = self.recent;
        if !is_it(latest) {
            let slot = if is_it(before) { before } else { *self.index.get(key)? };
            self.recent = [slot, latest];
        }
        self.values.get_mut(self.recent[0]).map(|(_, value)| value)
    }

    /// Adds a value under a key that has none.
    pub(crate) fn insert(&mut self, key: K, value: V) -> &mut V {
        let (slot, (_, value)) = self.values.insert((key, value));
        self.index.insert(key, slot);
        value
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.index.remove(key)?;
        self.values.remove(slot).map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter().map(|(_, (key, value))| (key, value))
    }

    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.values.slots.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_table_agrees_with_a_map() {
        let (mut table, mut map) = (Table::<u32, u32>::default(), HashMap::new());
        let mut seed = 1_u32;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = seed >> 16 & 15;
            match seed >> 30 {
                0 if !map.contains_key(&key) => {
                    table.insert(key, step);
                    map.insert(key, step);
                }
                1 => assert_eq!(table.remove(&key), map.remove(&key)),
                _ => assert_eq!(table.get_mut(&key), map.get_mut(&key)),
            }
            assert_eq!(table.len(), map.len());
        }
        let mut all: Vec<(u32, u32)> = table.iter().map(|(key, value)| (*key, *value)).collect();
        let mut expected: Vec<(u32, u32)> = map.into_iter().collect();
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
}
