//! The connection data of message endpoints: a header that distinguishes them from streams, and the
//! application's bytes (`docs/protocol.md`, section "Message endpoints").

use alloc::vec::Vec;

const MARK: [u8; 3] = *b"rm\x01";
/// Bytes before the application's: the length of all, because devices pad the data, the mark, and the kind.
const HEADER: usize = 1 + MARK.len() + 1;
/// Maximum length of the application's data on any device.
pub const USER_DATA_MAX: usize = 200;

/// Maximum number of bytes of the application in this many bytes of connection data.
#[must_use]
pub const fn room(private_data: usize) -> usize {
    let room = private_data.saturating_sub(HEADER);
    if room < USER_DATA_MAX { room } else { USER_DATA_MAX }
}

/// The connection data of a message endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Whether its messages have tags (see [`crate::tag`]). Both sides of a connection have to agree.
    pub tags: bool,
    /// The application's bytes, at most [`USER_DATA_MAX`].
    pub user_data: &'a [u8],
}

impl<'a> Hello<'a> {
    /// The connection data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // At most 205.
        let length = (HEADER + self.user_data.len()) as u8;
        [&[length][..], &MARK, &[self.tags.into()], self.user_data].concat()
    }

    /// `None` for data that is not that of a message endpoint of this version.
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let (&length, rest) = data.split_first()?;
        let rest = rest.get(..usize::from(length).checked_sub(1)?)?;
        match rest.strip_prefix(&MARK)?.split_first()? {
            (&kind @ 0..=1, user_data) => Some(Self { tags: kind == 1, user_data }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back_also_padded() {
        for length in [0, 1, 24, USER_DATA_MAX] {
            let user_data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            for tags in [false, true] {
                let hello = Hello { tags, user_data: &user_data };
                let mut data = hello.encode();
                assert_eq!(Hello::decode(&data), Some(hello));
                data.extend([0; 30]);
                assert_eq!(Hello::decode(&data), Some(hello));
            }
        }
    }

    #[test]
    fn nothing_else_is_taken_for_it() {
        let data = Hello { tags: false, user_data: b"abc" }.encode();
        for length in 0..data.len() {
            assert_eq!(Hello::decode(&data[..length]), None);
        }
        for at in 1..HEADER {
            let mut other = data.clone();
            other[at] ^= 2;
            assert_eq!(Hello::decode(&other), None);
        }
        assert_eq!(Hello::decode(&[0, 1, 2, 3, 4, 5]), None);
    }
}
