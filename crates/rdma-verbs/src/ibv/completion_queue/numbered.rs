//! Values by the numbers that their table gives them.

/// A table that gives each value a number, which is higher than all before it. The low bits of the number are the
/// value's place, so finding a value takes no search. A number whose place is taken is passed over. At least half of the
/// places are free, so these are no more than the numbers that values get.
pub(super) struct Numbered<T> {
    /// A power of two of them.
    places: Box<[Place<T>]>,
    used: usize,
    last: u32,
}

/// A place and the value in it, with the value's whole number.
type Place<T> = Option<(u32, Box<T>)>;

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { places: Box::new([None, None]), used: 0, last: 0 }
    }
}

impl<T> Numbered<T> {
    fn place(&self, number: u32) -> usize {
        number as usize & (self.places.len() - 1)
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        match self.places.get(self.place(number)) {
            Some(Some((own, value))) if *own == number => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.places.get_mut(self.place(number)) {
            Some(Some((own, value))) if *own == number => Some(value),
            _ => None,
        }
    }

    /// The number that the next value gets.
    pub(super) fn next(&mut self) -> u32 {
        if 2 * self.used >= self.places.len() {
            let doubled = (0..2 * self.places.len()).map(|_| None).collect();
            for entry in std::mem::replace(&mut self.places, doubled).into_iter().flatten() {
                let place = self.place(entry.0);
                self.places[place] = Some(entry);
            }
        }
        let mut number = self.last + 1;
        while self.places[self.place(number)].is_some() {
            number += 1;
        }
        number
    }

    /// Adds a value with the number that [`Numbered::next`] has returned last.
    pub(super) fn insert(&mut self, number: u32, value: T) {
        let place = self.place(number);
        self.places[place] = Some((number, Box::new(value)));
        self.used += 1;
        self.last = number;
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.place(number);
        let (_, value) = self.places[place].take_if(|(own, _)| *own == number)?;
        self.used -= 1;
        Some(*value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, value)| &**value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, value)| &mut **value)
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().flatten().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Numbered<&'static str>, value: &'static str) -> u32 {
        let number = table.next();
        table.insert(number, value);
        number
    }

    #[test]
    fn values_have_numbers_that_are_not_used_again() {
        let mut table = Numbered::default();
        let first = add(&mut table, "first");
        assert_eq!((first, table.get(first)), (1, Some(&"first")));
        assert_eq!(table.remove(first), Some("first"));
        assert_eq!((table.remove(first), table.get(first)), (None, None));
        for _ in 0..9 {
            let next = add(&mut table, "next");
            assert!(next > first);
            assert_eq!(table.get(first), None);
            assert_eq!(table.get_mut(next), Some(&mut "next"));
            assert_eq!(table.remove(next), Some("next"));
        }
    }

    #[test]
    fn a_number_whose_place_is_taken_is_passed_over() {
        let mut table = Numbered::default();
        let kept = [add(&mut table, "kept"), add(&mut table, "kept"), add(&mut table, "kept")];
        for _ in 0..100 {
            let number = add(&mut table, "passing");
            assert!(kept.iter().all(|&kept| table.get(kept) == Some(&"kept")));
            assert_eq!(table.remove(number), Some("passing"));
        }
        assert!(table.next() <= 2 * 103, "at most every other number is passed over");
        assert_eq!(table.values().count(), 3);
        assert_eq!(table.values_mut().count(), 3);
        assert_eq!(table.into_values().count(), 3);
    }

    #[test]
    fn a_number_that_no_value_got_is_the_next_one_again() {
        let mut table = Numbered::<()>::default();
        assert_eq!((table.next(), table.next()), (1, 1));
    }
}
