//! What the sides of a connection say of themselves in its private data (RFC 8797).

use crate::bytes::{u8_at, u32_at};

const FORMAT: u32 = 0xf6ab_0e18;
const VERSION: u8 = 1;

/// What a side says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Whether a send may invalidate one of its keys.
    pub invalidation: bool,
    /// Longest send that it makes.
    pub sends: u32,
    /// Longest send that it receives.
    pub receives: u32,
}

impl Parameters {
    /// Reads private data; `None`: it is something else.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let size = |at| Some((u32::from(u8_at(private_data, at)?) + 1) << 10);
        let flags = u8_at(private_data, 5)?;
        let is_it = u32_at(private_data, 0)? == FORMAT && u8_at(private_data, 4)? == VERSION;
        is_it.then_some(Self { invalidation: flags & 1 != 0, sends: size(6)?, receives: size(7)? })
    }
}
