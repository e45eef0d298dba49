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

const ASKED: u32 = 1;
const NO_DELAY: u32 = 2;
const CORK: u32 = 4;

impl Delays {
    /// What is sent leaves at once.
    pub const NONE: Self = Self { no_delay: true, cork: false };

    /// What [`Delays::bits`] were made of. No bits: nothing.
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        (bits & ASKED != 0).then_some(Self { no_delay: bits & NO_DELAY != 0, cork: bits & CORK != 0 })
    }

    pub(crate) fn bits(self) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        ASKED | bit(self.no_delay, NO_DELAY) | bit(self.cork, CORK)
    }
}
