//! Values of endpoint options (`fi_setopt`, `fi_getopt`): bytes of a length that the caller chooses.
//! See [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).

use super::{Errno, Result};

/// Reads an unsigned integer of one of the lengths `widths` (of 1, 2, 4 and 8 bytes).
///
/// # Errors
/// `-FI_EINVAL` for any other length.
pub fn integer(value: &[u8], widths: &[usize]) -> Result<u64> {
    if !widths.contains(&value.len()) {
        return Err(Errno::EINVAL);
    }
    match *value {
        [a] => Ok(a.into()),
        [a, b] => Ok(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
        [a, b, c, d, e, f, g, h] => Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
        _ => Err(Errno::EINVAL),
    }
}

/// The output buffer of `fi_getopt`.
#[derive(Debug)]
pub struct OptionOut<'a> {
    value: &'a mut [u8],
    length: &'a mut usize,
}

impl<'a> OptionOut<'a> {
    /// Creates an output with the caller's buffer and length.
    #[must_use]
    pub fn new(value: &'a mut [u8], length: &'a mut usize) -> Self {
        Self { value, length }
    }

    /// Length of the caller's buffer.
    #[must_use]
    pub fn room(&self) -> usize {
        self.value.len()
    }

    /// Writes the value. The caller's length is set to the value's length in any case.
    ///
    /// # Errors
    /// `-FI_ETOOSMALL` if the buffer is too short; the buffer is unchanged then.
    pub fn put(&mut self, value: &[u8]) -> Result<()> {
        *self.length = value.len();
        let target = self.value.get_mut(..value.len()).ok_or(Errno::ETOOSMALL)?;
        target.copy_from_slice(value);
        Ok(())
    }

    /// Writes an unsigned integer in the length of the caller's buffer, which must be one of `widths` (in
    /// ascending order, of 1, 2, 4 and 8 bytes). The reverse of [`integer`].
    ///
    /// # Errors
    /// `-FI_ETOOSMALL` and the sufficient length, if the buffer is shorter than each of `widths` or
    /// cannot hold the number; `-FI_EINVAL` for any other length.
    pub fn put_integer(&mut self, value: u64, widths: &[usize]) -> Result<()> {
        let fits = |width: usize| width >= 8 || value >> (8 * width) == 0;
        let needed = widths.iter().copied().find(|&width| fits(width)).ok_or(Errno::EINVAL)?;
        if self.room() < needed {
            *self.length = needed;
            return Err(Errno::ETOOSMALL);
        }
        if !widths.contains(&self.room()) {
            return Err(Errno::EINVAL);
        }
        // The value fits, so its high bytes are zero.
        match self.room() {
            1 => self.put(&(value as u8).to_ne_bytes()),
            2 => self.put(&(value as u16).to_ne_bytes()),
            4 => self.put(&(value as u32).to_ne_bytes()),
            _ => self.put(&value.to_ne_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome for a caller with a buffer of `room` bytes, the length and the bytes written.
    fn get(value: u64, widths: &[usize], room: usize) -> (Result<()>, usize, [u8; 16]) {
        let (mut bytes, mut length) = ([0xee; 16], room);
        let outcome = OptionOut::new(&mut bytes[..room], &mut length).put_integer(value, widths);
        (outcome, length, bytes)
    }

    #[test]
    fn integers_go_both_ways_in_every_width() {
        for (value, width) in [(0xab, 1), (0xabcd, 2), (0x89ab_cdef, 4), (u64::MAX - 1, 8)] {
            let (outcome, length, bytes) = get(value, &[1, 2, 4, 8], width);
            assert_eq!((outcome, length), (Ok(()), width));
            assert_eq!(integer(&bytes[..width], &[1, 2, 4, 8]), Ok(value));
            assert_eq!(bytes[width..], [0xee; 16][width..], "nothing beyond the room");
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        for length in [0, 1, 2, 3, 5, 7, 9, 16] {
            assert_eq!(integer(&[0; 16][..length], &[4, 8]), Err(Errno::EINVAL), "{length}");
        }
        for room in [5, 7, 9, 16] {
            let (outcome, _, bytes) = get(1, &[4, 8], room);
            assert_eq!((outcome, bytes), (Err(Errno::EINVAL), [0xee; 16]), "{room}");
        }
    }

    #[test]
    fn too_little_room_learns_what_is_needed() {
        for (value, room, needed) in [(1, 0, 4), (1, 3, 4), (1 << 32, 4, 8), (1 << 32, 7, 8)] {
            let (outcome, length, bytes) = get(value, &[4, 8], room);
            assert_eq!((outcome, length), (Err(Errno::ETOOSMALL), needed));
            assert_eq!(bytes, [0xee; 16]);
        }
    }

    #[test]
    fn bytes_fit_or_are_not_written() {
        let (mut bytes, mut length) = ([0; 4], 4);
        let mut out = OptionOut::new(&mut bytes, &mut length);
        assert_eq!(out.put(b"abcde"), Err(Errno::ETOOSMALL));
        assert_eq!((length, bytes), (5, [0; 4]));
        OptionOut::new(&mut bytes, &mut length).put(b"abc").unwrap();
        assert_eq!((length, &bytes), (3, b"abc\0"));
    }
}
