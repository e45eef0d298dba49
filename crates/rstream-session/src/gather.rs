//! A part of an application's list of buffers.

use std::io::IoSlice;

/// Most buffers of one call that sends.
pub const MAX_PIECES: usize = 8;

/// Up to [`MAX_PIECES`] slices that cover a range of a list.
pub(crate) struct Gather<'a> {
    pieces: [IoSlice<'a>; MAX_PIECES],
    used: usize,
}

impl<'a> Gather<'a> {
    /// The `length` bytes of `list` after the first `skip`, or fewer if the list ends before.
    pub(crate) fn cut(list: &'a [IoSlice<'_>], mut skip: usize, mut length: usize) -> Self {
        let mut cut = Self { pieces: [IoSlice::new(&[]); MAX_PIECES], used: 0 };
        for piece in list {
            let bytes: &'a [u8] = piece;
            if skip >= bytes.len() {
                skip -= bytes.len();
                continue;
            }
            let end = bytes.len().min(skip.saturating_add(length));
            let Some(slot) = cut.pieces.get_mut(cut.used) else { break };
            *slot = IoSlice::new(&bytes[skip..end]);
            cut.used += 1;
            length -= end - skip;
            skip = 0;
            if length == 0 {
                break;
            }
        }
        cut
    }

    /// The bytes of `list` after the first `skip` that one cut can cover.
    pub(crate) fn reach(list: &[IoSlice<'_>], mut skip: usize) -> usize {
        let rest = list.iter().map(|piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            piece.len() - skipped
        });
        rest.filter(|&length| length > 0).take(MAX_PIECES).sum()
    }

    /// The pieces, none of them empty.
    pub(crate) fn slices(&self) -> &[IoSlice<'a>] {
        &self.pieces[..self.used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_the_requested_range() {
        let list = [b"abc".as_slice(), b"", b"defgh", b"i"].map(IoSlice::new);
        let all = b"abcdefghi";
        for skip in 0..=all.len() {
            for length in 0..=all.len() - skip {
                let cut = Gather::cut(&list, skip, length);
                let joined: Vec<u8> = cut.slices().iter().flat_map(|piece| piece.iter().copied()).collect();
                assert_eq!(joined, &all[skip..skip + length], "skip {skip}, length {length}");
                assert!(length == 0 || cut.slices().iter().all(|piece| !piece.is_empty()));
            }
        }
    }

    #[test]
    fn reaches_as_far_as_a_cut() {
        let list: Vec<_> = (0..30).map(|at| IoSlice::new(&b"abc"[..at % 4])).collect();
        let total: usize = list.iter().map(|piece| piece.len()).sum();
        for skip in 0..=total {
            let cut = Gather::cut(&list, skip, total - skip);
            let covered: usize = cut.slices().iter().map(|piece| piece.len()).sum();
            assert_eq!(Gather::reach(&list, skip), covered, "skip {skip}");
        }
    }
}
