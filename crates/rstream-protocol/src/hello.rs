//! The connection data of message endpoints: a header that distinguishes them from streams, and the
//! application's bytes (`docs/protocol.md`, section "Message endpoints").

use alloc::vec::Vec;

const MARK: [u8; 4] = *b"rm\x01\0";
/// Bytes before the application's. The first is the length of both, because devices pad the data.
const HEADER: usize = 1 + MARK.len();
/// Maximum length of the application's data on any device.
pub const USER_DATA_MAX: usize = 200;

/// Maximum number of bytes of the application in this many bytes of connection data.
#[must_use]
pub const fn room(private_data: usize) -> usize {
    let room = private_data.saturating_sub(HEADER);
    if room < USER_DATA_MAX { room } else { USER_DATA_MAX }
}

/// The connection data with these bytes of the application, at most [`USER_DATA_MAX`].
#[must_use]
pub fn encode(user_data: &[u8]) -> Vec<u8> {
    // At most 205.
    let length = (HEADER + user_data.len()) as u8;
    [&[length][..], &MARK, user_data].concat()
}

/// The application's bytes; `None` for data that is not that of a message endpoint of this version.
#[must_use]
pub fn decode(data: &[u8]) -> Option<&[u8]> {
    let (&length, rest) = data.split_first()?;
    let rest = rest.get(..usize::from(length).checked_sub(1)?)?;
    rest.strip_prefix(&MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back_also_padded() {
        for length in [0, 1, 24, USER_DATA_MAX] {
            let user_data: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut data = encode(&user_data);
            assert_eq!(decode(&data), Some(&user_data[..]));
            data.extend([0; 30]);
            assert_eq!(decode(&data), Some(&user_data[..]));
        }
    }

    #[test]
    fn nothing_else_is_taken_for_it() {
        let data = encode(b"abc");
        for length in 0..data.len() {
            assert_eq!(decode(&data[..length]), None);
        }
        for at in 1..HEADER {
            let mut other = data.clone();
            other[at] ^= 1;
            assert_eq!(decode(&other), None);
        }
        assert_eq!(decode(&[0, 1, 2, 3, 4, 5]), None);
    }
}
