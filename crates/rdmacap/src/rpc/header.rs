//! The transport header of RPC-over-RDMA version 1 (RFC 8166 4).

use crate::bytes::{u32_at, u64_at};

const VERSION: u32 = 1;
/// Most segments of a header.
const MOST_SEGMENTS: usize = 1 << 10;

/// Part of a chunk: memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The key.
    pub handle: u32,
    /// Its length in bytes.
    pub length: u32,
    /// Its address.
    pub offset: u64,
}

/// What a header says the message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Procedure {
    /// The RPC message follows, as far as no chunk has it.
    Message,
    /// A chunk has all of it.
    NoMessage,
    Done,
    /// The header was refused: its version, or its chunks.
    Error(u32),
}

/// A transport header (RFC 8166 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) xid: u32,
    pub(crate) credits: u32,
    pub(crate) procedure: Procedure,
    /// Segments to read, with their positions.
    pub(crate) reads: Vec<(u32, Segment)>,
    pub(crate) writes: Vec<Vec<Segment>>,
    pub(crate) reply: Option<Vec<Segment>>,
    /// Bytes of the header.
    pub(crate) length: usize,
}

impl Header {
    /// Reads a header. `None`: it is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut at = 0;
        let mut word = || {
            at += 4;
            u32_at(bytes, at - 4)
        };
        let (xid, version, credits, code) = (word()?, word()?, word()?, word()?);
        let procedure = match (version, code) {
            (VERSION, 0 | 2) => Procedure::Message,
            (VERSION, 1) => Procedure::NoMessage,
            (VERSION, 3) => Procedure::Done,
            (VERSION, 4) => Procedure::Error(word()?),
            _ => return None,
        };
        let mut header =
            Self { xid, credits, procedure, reads: Vec::new(), writes: Vec::new(), reply: None, length: 0 };
        if matches!(procedure, Procedure::Message | Procedure::NoMessage) {
            if code == 2 {
                // Alignment and threshold of a padded message.
                word()?;
                word()?;
            }
            header.lists(bytes, &mut at)?;
        }
        header.length = at;
        Some(header)
    }

    fn lists(&mut self, bytes: &[u8], at: &mut usize) -> Option<()> {
        let mut segments = 0;
        let mut flag = |at: &mut usize| {
            *at += 4;
            segments += 1;
            u32_at(bytes, *at - 4)
                .filter(|flag| *flag <= 1 && segments <= MOST_SEGMENTS)
                .map(|flag| flag == 1)
        };
        let segment = |at: &mut usize| {
            let found = Segment {
                handle: u32_at(bytes, *at)?,
                length: u32_at(bytes, *at + 4)?,
                offset: u64_at(bytes, *at + 8)?,
            };
            *at += 16;
            Some(found)
        };
        let mut in_chunks = 0;
        let mut chunk = |at: &mut usize| {
            let count = u32_at(bytes, *at)? as usize;
            *at += 4;
            in_chunks += count;
            (in_chunks <= MOST_SEGMENTS).then_some(())?;
            (0..count).map(|_| segment(at)).collect::<Option<Vec<Segment>>>()
        };
        while flag(at)? {
            let position = u32_at(bytes, *at)?;
            *at += 4;
            self.reads.push((position, segment(at)?));
        }
        while flag(at)? {
            self.writes.push(chunk(at)?);
        }
        if flag(at)? {
            self.reply = Some(chunk(at)?);
        }
        Some(())
    }

    /// Whether it may be one: on a connection that is known for it, or because the message behind it
    /// agrees.
    pub(crate) fn is_plausible(&self, bytes: &[u8], known: bool) -> bool {
        let inline = bytes.get(self.length..).unwrap_or(&[]);
        match self.procedure {
            Procedure::Message => {
                u32_at(inline, 0) == Some(self.xid)
                    && u32_at(inline, 4).is_some_and(|direction| direction <= 1)
            }
            Procedure::NoMessage => inline.is_empty() && (!self.reads.is_empty() || self.reply.is_some()),
            Procedure::Done | Procedure::Error(_) => known,
        }
    }
}
