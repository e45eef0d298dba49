//! How a peer can break the protocol, once the connection stands.

/// What a peer did that the protocol does not allow. The connection ends with it; nothing of the
/// message was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More messages than receives were granted.
    #[error("a message without a receive: all {posted} granted are used")]
    NoReceive {
        /// Receives that this side posted at the start.
        posted: u16,
    },
    /// A data message of no bytes.
    #[error("a data message of 0 bytes")]
    EmptyData,
    /// More bytes than the ring had granted room for.
    #[error("a data message of {length} bytes with {window} bytes granted")]
    BeyondWindow {
        /// Length of the message, in bytes.
        length: u32,
        /// Bytes that the peer could write.
        window: u32,
    },
    /// A data message that does not fit between its place and the end of the ring.
    #[error("a data message of {length} bytes at {index} crosses the end of a ring of {ring} bytes")]
    OverWrap {
        /// Length of the message, in bytes.
        length: u32,
        /// Where it began in the ring.
        index: u32,
        /// Size of the ring, in bytes.
        ring: u32,
    },
    /// Data after the peer had said that none would come.
    #[error("a data message of {length} bytes after the end of the stream")]
    DataAfterEnd {
        /// Length of the message, in bytes.
        length: u32,
    },
    /// More ring bytes freed than were in use.
    #[error("{freed} bytes freed with {outstanding} outstanding")]
    ExcessBytes {
        /// Bytes that the word says are free.
        freed: u32,
        /// Bytes that were written and not freed.
        outstanding: u32,
    },
    /// More receives returned than were used.
    #[error("{freed} receives returned with {outstanding} outstanding")]
    ExcessReceives {
        /// Receives that the word returns.
        freed: u16,
        /// Receives that were used and not returned.
        outstanding: u16,
    },
    /// Bits that have no meaning between these two peers.
    #[error("word {word:#010x} has unknown bits {unknown:#010x}")]
    UnknownBits {
        /// The whole word.
        word: u32,
        /// The bits among it that have no meaning.
        unknown: u32,
    },
    /// A control word of 0, which says nothing.
    #[error("an empty control word")]
    EmptyControl,
    /// A second end of stream, or a second close.
    #[error("word {word:#010x} ends what had ended before")]
    EndedTwice {
        /// The whole word.
        word: u32,
    },
    /// Bytes behind a word that does not say as many.
    #[error("{length} bytes behind word {word:#010x}, which says otherwise")]
    NotItsData {
        /// The word.
        word: u32,
        /// Bytes that came behind it.
        length: u32,
    },
    /// A write with immediate where words were agreed, a word where immediates were, or data behind a
    /// word where that was not agreed.
    #[error("a message in the form that was not agreed, word {word:#010x}")]
    WrongForm {
        /// The immediate or word.
        word: u32,
    },
}
