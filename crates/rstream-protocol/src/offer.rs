//! The connection data that each side sends in its connection request or reply
//! (`docs/protocol.md`, section "Connection data").

use super::alloc::vec::Vec;
use super::credits::LEAST_RECEIVES;
use super::negotiate::Features;

/// What one side tells the other before there is a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Where its receive ring begins, as its device counts.
    pub ring_address: u64,
    /// The ring's remote key: rkey or STag.
    pub ring_key: u64,
    /// The ring's size in bytes, at least 1.
    pub ring_size: u32,
    /// Receives that it has posted, at least 3.
    pub receives: u16,
    /// What a base peer leaves out.
    pub extension: Option<Extension<'a>>,
}

/// What our peers say beyond the base protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    /// What the side can do. Bits that this version does not know are dropped when it is read.
    pub features: Features,
    /// The application's own connection data.
    pub user_data: &'a [u8],
    /// Where a peer on the same host can come to share memory; goes along with
    /// [`Features::SHARED_MEMORY`] only.
    pub rendezvous: &'a [u8],
}

/// Version of the base protocol.
pub const VERSION: u8 = 2;
/// Version of the extension.
pub(super) const EXTENSION_VERSION: u8 = 1;

/// Length of the base fields: count, address, key, size, receives, version, reserved.
const BASE: usize = 1 + 8 + 8 + 4 + 2 + 1 + 1;
/// Length of the extension without user data: its version, features, length of the user data.
const EXTENSION: usize = 1 + 4 + 1;

impl<'a> Offer<'a> {
    /// Bytes of connection data that are not user data, extension included.
    pub const OVERHEAD: usize = BASE + EXTENSION;

    /// Most bytes of user data that the layout can carry; a device may have less room.
    pub const USER_DATA_MAX: usize = u8::MAX as usize + 1 - Self::OVERHEAD;

    /// The connection data as bytes.
    ///
    /// # Errors
    /// [`OfferError`] if the peer would have to refuse the values, or the user data is too long.
    pub fn encode(&self) -> Result<Vec<u8>, OfferError> {
        self.check()?;
        let length = self.user_data().len();
        let rendezvous = self.extension.map_or(0, |extension| extension.rendezvous_bytes());
        let most = Self::USER_DATA_MAX.saturating_sub(rendezvous);
        if length > most {
            return Err(OfferError::UserDataTooLong { length, most });
        }
        let total = BASE + self.extension.map_or(0, |_| EXTENSION + length + rendezvous);
        let mut out = Vec::with_capacity(total);
        out.push((total - 1) as u8);
        out.extend_from_slice(&self.ring_address.to_be_bytes());
        out.extend_from_slice(&self.ring_key.to_be_bytes());
        out.extend_from_slice(&self.ring_size.to_be_bytes());
        out.extend_from_slice(&self.receives.to_be_bytes());
        out.extend_from_slice(&[VERSION, 0]);
        if let Some(extension) = &self.extension {
            out.push(EXTENSION_VERSION);
            out.extend_from_slice(&extension.features.bits().to_be_bytes());
            out.push(length as u8);
            out.extend_from_slice(extension.user_data);
            if extension.features.contains(Features::SHARED_MEMORY) {
                out.push(extension.rendezvous.len() as u8);
                out.extend_from_slice(extension.rendezvous);
            }
        }
        Ok(out)
    }

    /// Reads what a peer sent; bytes after those that it counted are padding. An extension of
    /// another version counts as none.
    ///
    /// # Errors
    /// [`OfferError`] with the numbers, if it is cut short or its values cannot work.
    pub fn decode(data: &'a [u8]) -> Result<Self, OfferError> {
        let counted = data.first().map_or(0, |count| usize::from(*count)) + 1;
        let have = data.len().min(counted);
        let short = |_| OfferError::Truncated { have, need: counted.max(BASE) };
        let mut fields = Fields(data.get(..counted).ok_or(Short).map_err(short)?);
        let [_count] = fields.take().map_err(short)?;
        let ring_address = u64::from_be_bytes(fields.take().map_err(short)?);
        let ring_key = u64::from_be_bytes(fields.take().map_err(short)?);
        let ring_size = u32::from_be_bytes(fields.take().map_err(short)?);
        let receives = u16::from_be_bytes(fields.take().map_err(short)?);
        let [version, _reserved] = fields.take().map_err(short)?;
        if version != VERSION {
            return Err(OfferError::Version { found: version });
        }
        let extension = Extension::decode(fields)?;
        let offer = Self { ring_address, ring_key, ring_size, receives, extension };
        offer.check()?;
        Ok(offer)
    }

    /// The application's connection data; empty from a base peer.
    #[must_use]
    pub fn user_data(&self) -> &'a [u8] {
        self.extension.map_or(&[], |extension| extension.user_data)
    }

    /// Refuses values that no stream can work with.
    fn check(&self) -> Result<(), OfferError> {
        let (address, size) = (self.ring_address, self.ring_size);
        if size == 0 {
            return Err(OfferError::EmptyRing);
        }
        if address.checked_add(u64::from(size) - 1).is_none() {
            return Err(OfferError::RingWraps { address, size });
        }
        if self.receives < LEAST_RECEIVES {
            return Err(OfferError::TooFewReceives { receives: self.receives, least: LEAST_RECEIVES });
        }
        Ok(())
    }
}

impl<'a> Extension<'a> {
    /// Bytes that the rendezvous takes beside those of [`Offer::OVERHEAD`].
    #[must_use]
    pub fn rendezvous_bytes(&self) -> usize {
        if self.features.contains(Features::SHARED_MEMORY) { 1 + self.rendezvous.len() } else { 0 }
    }

    /// Reads what follows the base fields, if anything does.
    fn decode(mut fields: Fields<'a>) -> Result<Option<Self>, OfferError> {
        let have = BASE + fields.0.len();
        let short = |need| move |_| OfferError::Truncated { have, need };
        match fields.take() {
            Ok([EXTENSION_VERSION]) => {}
            _ => return Ok(None),
        }
        let features = u32::from_be_bytes(fields.take().map_err(short(Offer::OVERHEAD))?);
        let [length] = fields.take().map_err(short(Offer::OVERHEAD))?;
        let length = usize::from(length);
        let user_data = fields.slice(length).map_err(short(Offer::OVERHEAD + length))?;
        let features = Features::from_bits_truncate(features);
        let mut rendezvous = &[][..];
        if features.contains(Features::SHARED_MEMORY) {
            let counted = Offer::OVERHEAD + length + 1;
            let [size] = fields.take().map_err(short(counted))?;
            let size = usize::from(size);
            rendezvous = fields.slice(size).map_err(short(counted + size))?;
        }
        Ok(Some(Self { features, user_data, rendezvous }))
    }
}

/// Bytes that are taken from the front.
struct Fields<'a>(&'a [u8]);

/// Not as many bytes as asked for.
struct Short;

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = rest;
        Ok(*field)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], Short> {
        let (slice, rest) = self.0.split_at_checked(length).ok_or(Short)?;
        self.0 = rest;
        Ok(slice)
    }
}

/// Why connection data was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Shorter than its own count, or than the fields that must be there.
    #[error("connection data of {have} bytes, {need} needed")]
    Truncated {
        /// Bytes that there are, padding left out.
        have: usize,
        /// Bytes that it takes.
        need: usize,
    },
    /// Another version of the protocol.
    #[error("protocol version {found}, this side speaks {VERSION}")]
    Version {
        /// The peer's version.
        found: u8,
    },
    /// A ring of no bytes.
    #[error("a ring of 0 bytes")]
    EmptyRing,
    /// A ring that ends beyond the last address.
    #[error("a ring of {size} bytes at {address:#x} wraps the address space")]
    RingWraps {
        /// Where it begins.
        address: u64,
        /// Its size in bytes.
        size: u32,
    },
    /// Fewer receives than the protocol needs.
    #[error("{receives} receives, at least {least} needed")]
    TooFewReceives {
        /// Receives offered.
        receives: u16,
        /// Fewest that work.
        least: u16,
    },
    /// More user data than the layout can carry; only when encoding.
    #[error("{length} bytes of user data, at most {most} fit")]
    UserDataTooLong {
        /// Bytes given.
        length: usize,
        /// Bytes that fit.
        most: usize,
    },
}
