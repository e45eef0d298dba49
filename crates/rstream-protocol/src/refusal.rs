//! The private data of a rejected connection: why, and what the application says to it
//! (`docs/protocol.md`, section "Refusal").

use super::alloc::vec::Vec;

/// Why a connection request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalReason {
    /// The application did not want it; also whatever has no meaning here.
    Application = 0,
    /// The request has another protocol version.
    Version = 1,
    /// The request's sizes cannot work, or it is malformed.
    Parameters = 2,
    /// No memory or queue could be had for it.
    Resources = 3,
}

/// A refusal with the application's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Why.
    pub reason: RefusalReason,
    /// The application's own data.
    pub user_data: &'a [u8],
}

/// Tells our refusals from those of other programs.
pub(super) const MAGIC: [u8; 4] = *b"rstr";
/// Version of this layout.
pub(super) const VERSION: u8 = 1;

impl<'a> Refusal<'a> {
    /// Bytes of private data that are not user data.
    pub const OVERHEAD: usize = 1 + MAGIC.len() + 1 + 1;

    /// Most bytes of user data that the layout can carry; a device may have less room.
    pub const USER_DATA_MAX: usize = u8::MAX as usize + 1 - Self::OVERHEAD;

    /// The private data of the reject as bytes.
    ///
    /// # Errors
    /// [`UserDataTooLong`] with the numbers.
    pub fn encode(&self) -> Result<Vec<u8>, UserDataTooLong> {
        let length = self.user_data.len();
        let too_long = UserDataTooLong { length, most: Self::USER_DATA_MAX };
        let count = u8::try_from(Self::OVERHEAD - 1 + length).map_err(|_| too_long)?;
        let mut out = Vec::with_capacity(Self::OVERHEAD + length);
        out.push(count);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.reason as u8]);
        out.extend_from_slice(self.user_data);
        Ok(out)
    }

    /// Reads a reject's private data; bytes after those that it counted are padding. What another
    /// program sent, or nothing at all, is [`RefusalReason::Application`] without data.
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Self {
        Self::parse(data).unwrap_or(Self { reason: RefusalReason::Application, user_data: &[] })
    }

    /// The refusal, if it is one of ours.
    fn parse(data: &'a [u8]) -> Option<Self> {
        let (&count, rest) = data.split_first()?;
        let counted = rest.get(..usize::from(count))?;
        let (&magic, rest) = counted.split_first_chunk()?;
        let (&[version, reason], user_data) = rest.split_first_chunk()?;
        if magic != MAGIC || version != VERSION {
            return None;
        }
        Some(Self { reason: RefusalReason::from_code(reason), user_data })
    }
}

impl RefusalReason {
    /// The reason of a code; a later version's reasons count as the application's.
    fn from_code(code: u8) -> Self {
        [Self::Version, Self::Parameters, Self::Resources]
            .into_iter()
            .find(|reason| *reason as u8 == code)
            .unwrap_or(Self::Application)
    }
}

/// More user data than a refusal can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes of user data, at most {most} fit")]
pub struct UserDataTooLong {
    /// Bytes given.
    pub length: usize,
    /// Bytes that fit.
    pub most: usize,
}
