//! The header of a message between endpoints with tags (`docs/protocol.md`, section "Tags").

/// Length of a header, in bytes.
pub const LENGTH: usize = 24;

/// What a peer sends before the payload of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `None`: a message without a tag, which no receive with one takes.
    pub tag: Option<u64>,
    /// Data for the completion of the receive.
    pub data: Option<u64>,
    /// Length of the payload in bytes. If it is 0, none is sent.
    pub length: u32,
}

const TAG: u8 = 1;
const DATA: u8 = 2;

impl Header {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LENGTH] {
        let flags = self.tag.map_or(0, |_| TAG) | self.data.map_or(0, |_| DATA);
        let mut bytes = [0; LENGTH];
        bytes[0] = flags;
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.tag.unwrap_or(0).to_be_bytes());
        bytes[16..].copy_from_slice(&self.data.unwrap_or(0).to_be_bytes());
        bytes
    }

    /// `None` for bytes that are no header of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let ([flags, 0, 0, 0], rest) = bytes.split_first_chunk()? else { return None };
        let (length, rest) = rest.split_first_chunk()?;
        let (tag, data) = rest.split_first_chunk()?;
        let (tag, data) = (u64::from_be_bytes(*tag), u64::from_be_bytes(data.try_into().ok()?));
        let header = Self {
            tag: (flags & TAG != 0).then_some(tag),
            data: (flags & DATA != 0).then_some(data),
            length: u32::from_be_bytes(*length),
        };
        (header.encode() == *bytes).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back() {
        for tag in [None, Some(0), Some(u64::MAX - 7)] {
            for data in [None, Some(0), Some(0x0123_4567_89ab_cdef)] {
                for length in [0, 1, u32::MAX] {
                    let header = Header { tag, data, length };
                    assert_eq!(Header::decode(&header.encode()), Some(header));
                }
            }
        }
    }

    #[test]
    fn nothing_else_is_taken_for_it() {
        let bytes = Header { tag: None, data: None, length: 5 }.encode();
        assert_eq!(Header::decode(&bytes[1..]), None);
        assert_eq!(Header::decode(&[&bytes[..], &[0]].concat()), None);
        // Other flags, what is reserved, and values that are not there.
        for at in [0, 1, 2, 3, 8, 15, 16, 23] {
            let mut other = bytes;
            other[at] = 4;
            assert_eq!(Header::decode(&other), None);
        }
    }
}
