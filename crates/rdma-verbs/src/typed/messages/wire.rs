//! What hubs say to each other: the hello in the private data of the connection, and the header of every
//! message. All numbers are big-endian.

use super::{Options, Violation};
use crate::typed::Remote;

/// Says what a side takes, in the private data of the request and of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// Number of messages that it has receives for.
    pub(super) window: u16,
    /// Number of offers that it reads at a time.
    pub(super) offers: u8,
    /// Longest message that fits in one of its buffers.
    pub(super) eager: u32,
    /// Longest message that it takes.
    pub(super) longest: u32,
}

impl Hello {
    /// Its length. The program's private data follow.
    pub(super) const LENGTH: usize = 16;
    const MAGIC: [u8; 4] = *b"hub1";

    pub(super) fn new(options: &Options) -> Self {
        let &Options { window, offers, eager, longest, .. } = options;
        Self { window, offers, eager, longest }
    }

    /// The private data with the hello and the program's data, of which the caller has checked the length.
    pub(super) fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LENGTH + data.len());
        bytes.extend(Self::MAGIC);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([self.offers, u8::try_from(data.len()).unwrap_or(u8::MAX)]);
        bytes.extend(self.eager.to_be_bytes());
        bytes.extend(self.longest.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// The hello and the program's data. Zeros may follow.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let no_hello = Violation::NoHello { length: bytes.len() };
        let (fixed, rest) = bytes.split_first_chunk::<{ Self::LENGTH }>().ok_or(no_hello)?;
        let [m0, m1, m2, m3, w0, w1, offers, length, e0, e1, e2, e3, l0, l1, l2, l3] = *fixed;
        let hello = Self {
            window: u16::from_be_bytes([w0, w1]),
            offers,
            eager: u32::from_be_bytes([e0, e1, e2, e3]),
            longest: u32::from_be_bytes([l0, l1, l2, l3]),
        };
        let data = rest.get(..length.into()).ok_or(no_hello)?;
        let is_valid = hello.window > 0
            && hello.offers > 0
            && hello.eager >= Options::LEAST_EAGER
            && hello.longest >= hello.eager;
        if is_valid && [m0, m1, m2, m3] == Self::MAGIC { Ok((hello, data)) } else { Err(no_hello) }
    }
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The bytes of a message of the program follow.
    Eager,
    /// The place of a message of the program follows, in the sender's memory: address (8) and key (4).
    Offer,
    /// The oldest offer has been read.
    Done,
    /// Nothing but credits.
    Credit,
}

/// The beginning of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Number of messages that the receiver may send more.
    pub(super) credits: u16,
    /// Length of the program's message in bytes; 0 if there is none.
    pub(super) length: u32,
}

impl Header {
    pub(super) const LENGTH: usize = 8;
    /// Length of an offer.
    pub(super) const OFFER: usize = Self::LENGTH + 12;

    pub(super) fn encode(&self) -> [u8; Self::LENGTH] {
        let [c0, c1] = self.credits.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [self.kind as u8, 0, c0, c1, l0, l1, l2, l3]
    }

    /// The header, and what follows it.
    pub(super) fn decode(message: &[u8]) -> Result<(Self, &[u8]), Violation> {
        let no_header = Violation::NoHeader { length: message.len() };
        let (fixed, rest) = message.split_first_chunk::<{ Self::LENGTH }>().ok_or(no_header)?;
        let [kind, reserved, c0, c1, l0, l1, l2, l3] = *fixed;
        let kind = match kind {
            0 => Kind::Eager,
            1 => Kind::Offer,
            2 => Kind::Done,
            3 => Kind::Credit,
            other => return Err(Violation::UnknownKind(other)),
        };
        if reserved != 0 {
            return Err(Violation::Reserved(reserved));
        }
        let (credits, length) = (u16::from_be_bytes([c0, c1]), u32::from_be_bytes([l0, l1, l2, l3]));
        Ok((Self { kind, credits, length }, rest))
    }
}

/// The rest of an offer.
pub(super) fn encode_place(memory: Remote) -> [u8; Header::OFFER - Header::LENGTH] {
    let mut bytes = [0; Header::OFFER - Header::LENGTH];
    bytes[..8].copy_from_slice(&memory.address.to_be_bytes());
    bytes[8..].copy_from_slice(&memory.key.to_be_bytes());
    bytes
}

/// The memory that an offer names. `None` if the rest of the message has another length.
pub(super) fn decode_place(rest: &[u8], length: u32) -> Option<Remote> {
    let (&address, rest) = rest.split_first_chunk()?;
    let &key = rest.first_chunk().filter(|_| rest.len() == 4)?;
    Some(Remote { key: u32::from_be_bytes(key), address: u64::from_be_bytes(address), length })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello { window: 0x0102, offers: 3, eager: 0x0405_0607, longest: 0x0809_0a0b };

    #[test]
    fn a_hello_has_this_layout() {
        let bytes = HELLO.encode(b"data");
        assert_eq!(bytes, *b"hub1\x01\x02\x03\x04\x04\x05\x06\x07\x08\x09\x0a\x0bdata");
        assert_eq!(Hello::decode(&bytes), Ok((HELLO, &b"data"[..])));
        let padded = [&bytes[..], &[0; 36]].concat();
        assert_eq!(Hello::decode(&padded), Ok((HELLO, &b"data"[..])));
        for length in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..length]), Err(Violation::NoHello { length }));
        }
        let wrong = [
            Hello { window: 0, ..HELLO },
            Hello { offers: 0, ..HELLO },
            Hello { eager: Options::LEAST_EAGER - 1, ..HELLO },
            Hello { longest: HELLO.eager - 1, ..HELLO },
        ];
        for hello in wrong {
            assert!(Hello::decode(&hello.encode(b"")).is_err(), "{hello:?}");
        }
        assert!(Hello::decode(b"hub2\x01\x02\x03\x00\x04\x05\x06\x07\x08\x09\x0a\x0b").is_err());
    }

    #[test]
    fn a_header_has_this_layout() {
        let kinds = [(Kind::Eager, 0), (Kind::Offer, 1), (Kind::Done, 2), (Kind::Credit, 3)];
        for (kind, number) in kinds {
            let header = Header { kind, credits: 0x0203, length: 0x0405_0607 };
            assert_eq!(header.encode(), [number, 0, 2, 3, 4, 5, 6, 7]);
            let message = [&header.encode()[..], b"rest"].concat();
            assert_eq!(Header::decode(&message), Ok((header, &b"rest"[..])));
        }
        assert_eq!(Header::decode(&[0; 7]), Err(Violation::NoHeader { length: 7 }));
        assert_eq!(Header::decode(&[4, 0, 0, 0, 0, 0, 0, 0]), Err(Violation::UnknownKind(4)));
        assert_eq!(Header::decode(&[0, 1, 0, 0, 0, 0, 0, 0]), Err(Violation::Reserved(1)));
    }

    #[test]
    fn a_place_has_this_layout() {
        let memory = Remote { key: 0x0a0b_0c0d, address: 0x0102_0304_0506_0708, length: 9 };
        let bytes = encode_place(memory);
        assert_eq!(bytes, *b"\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x0b\x0c\x0d");
        assert_eq!(decode_place(&bytes, 9), Some(memory));
        assert_eq!((decode_place(&bytes[1..], 9), decode_place(&[0; 13], 9)), (None, None));
    }
}
