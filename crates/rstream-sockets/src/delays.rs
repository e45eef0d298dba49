//! How the kernel is to delay what an application sends. Bells leave at once: while a connection is upgraded, this is
//! only remembered.

/// The options `TCP_NODELAY` and `TCP_CORK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// A part of a segment leaves although what was sent before is not acknowledged.
    pub no_delay: bool,
    /// No part of a segment leaves, but after 0.2 s.
    pub cork: bool,
}

impl Delays {
    /// What is sent leaves at once.
    pub const NONE: Self = Self { no_delay: true, cork: false };

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self { no_delay: bits & 1 != 0, cork: bits & 2 != 0 }
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.no_delay) | u32::from(self.cork) << 1
    }
}
