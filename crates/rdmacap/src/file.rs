//! Capture files: pcap and pcapng, as a decoder that is handed bytes and does no I/O.
//!
//! [`Decoder::step`] takes the bytes that follow what was consumed, and says what it needs or what it
//! found. A caller with a buffer drives it; where the buffer ends in the middle of a record, the decoder
//! asks for more.

use core::ops::Range;

/// Longest block or record that is taken for one. Frames of offloading devices reach 512 KiB.
pub const LONGEST_BLOCK: usize = 16 << 20;

/// A captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// Type of the link, as in tcpdump's registry.
    pub link: u32,
    /// Length of the frame on the wire.
    pub original_length: u32,
    /// What was captured of it.
    pub bytes: &'a [u8],
}

/// What a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A frame.
    Record(Record<'a>),
    /// The capturing program says that it lost this many frames, beside those that it told before.
    Dropped(u64),
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// At least this many bytes are needed, from the same place.
    Need(usize),
    /// This many bytes are done with, and this was in them.
    Took(usize, Option<Item<'a>>),
}

/// Why bytes are not a capture file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Neither format begins so.
    #[error("neither pcap nor pcapng: it begins with {0:#010x}")]
    Magic(u32),
    /// A length that no record has.
    #[error("a record of {length} bytes, where at most {LONGEST_BLOCK} are possible")]
    Length {
        /// The length said.
        length: u64,
    },
    /// A block whose fields do not fit into it.
    #[error("a block of type {kind:#x} and {length} bytes is malformed")]
    Block {
        /// The block's type.
        kind: u32,
        /// Its length.
        length: usize,
    },
    /// A frame of an interface that no block described.
    #[error("a frame of interface {interface}, where {known} are described")]
    Interface {
        /// The interface's number.
        interface: u32,
        /// How many are described.
        known: usize,
    },
}

/// Reads one file.
#[derive(Debug, Default)]
pub struct Decoder {
    format: Format,
}

#[derive(Debug, Default)]
enum Format {
    #[default]
    Unknown,
    Pcap {
        order: Order,
        nanoseconds: bool,
        link: u32,
    },
    Pcapng {
        order: Order,
        interfaces: Vec<Interface>,
    },
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(field),
            Self::Big => u16::from_be_bytes(field),
        })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(field),
            Self::Big => u32::from_be_bytes(field),
        })
    }

    /// Two words, the more significant one first in `halves`.
    fn halves(self, bytes: &[u8], high: usize, low: usize) -> Option<u64> {
        Some(u64::from(self.u32(bytes, high)?) << 32 | u64::from(self.u32(bytes, low)?))
    }
}

/// What pcapng says about an interface.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: u32,
    snaplen: u32,
    /// Ticks in a second.
    rate: u64,
    /// Seconds to add to every time.
    offset: i64,
    /// Frames that were dropped, as its last statistics say.
    dropped: u64,
}

impl Interface {
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let whole = u128::from(ticks) * 1_000_000_000 / u128::from(self.rate);
        let shifted = i128::try_from(whole).unwrap_or(i128::MAX) + i128::from(self.offset) * 1_000_000_000;
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Most interfaces in a section; a file that lies cannot have the decoder grow without end.
const MOST_INTERFACES: usize = 1 << 16;

const PCAP_HEADER: usize = 24;
const PCAP_RECORD: usize = 16;

impl Decoder {
    /// A decoder at the start of a file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what `bytes` begin with.
    ///
    /// # Errors
    /// [`FileError`]; the rest of the file cannot be read then.
    pub fn step<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, FileError> {
        match &mut self.format {
            Format::Unknown => self.begin(bytes),
            Format::Pcap { order, nanoseconds, link } => pcap_record(*order, *nanoseconds, *link, bytes),
            Format::Pcapng { order, interfaces } => block(order, interfaces, bytes),
        }
    }

    fn begin<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, FileError> {
        let Some(magic) = bytes.first_chunk() else { return Ok(Step::Need(4)) };
        let (order, nanoseconds) = match (u32::from_le_bytes(*magic), u32::from_be_bytes(*magic)) {
            (SECTION, _) => {
                self.format = Format::Pcapng { order: Order::Little, interfaces: Vec::new() };
                return Ok(Step::Took(0, None));
            }
            (0xa1b2_c3d4, _) => (Order::Little, false),
            (_, 0xa1b2_c3d4) => (Order::Big, false),
            (0xa1b2_3c4d, _) => (Order::Little, true),
            (_, 0xa1b2_3c4d) => (Order::Big, true),
            (found, _) => return Err(FileError::Magic(found)),
        };
        let Some(link) = bytes.get(..PCAP_HEADER).and_then(|header| order.u32(header, 20)) else {
            return Ok(Step::Need(PCAP_HEADER));
        };
        // The upper bits may say how long the frame check sequence is.
        self.format = Format::Pcap { order, nanoseconds, link: link & 0xffff };
        Ok(Step::Took(PCAP_HEADER, None))
    }
}

fn pcap_record(order: Order, nanoseconds: bool, link: u32, bytes: &[u8]) -> Result<Step<'_>, FileError> {
    let Some(header) = bytes.first_chunk::<PCAP_RECORD>() else { return Ok(Step::Need(PCAP_RECORD)) };
    let field = |at: usize| order.u32(header, at).unwrap_or(0);
    let [seconds, fraction, captured, original_length] = [field(0), field(4), field(8), field(12)];
    let total = bounded(u64::from(captured) + PCAP_RECORD as u64)?;
    let Some(bytes) = bytes.get(PCAP_RECORD..total) else { return Ok(Step::Need(total)) };
    let unit = if nanoseconds { 1 } else { 1000 };
    let time = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit;
    Ok(Step::Took(total, Some(Item::Record(Record { time, link, original_length, bytes }))))
}

fn bounded(length: u64) -> Result<usize, FileError> {
    usize::try_from(length).ok().filter(|length| *length <= LONGEST_BLOCK).ok_or(FileError::Length { length })
}

fn block<'a>(
    order: &mut Order,
    interfaces: &mut Vec<Interface>,
    bytes: &'a [u8],
) -> Result<Step<'a>, FileError> {
    // The order of bytes may change at each section, whose header says which it is.
    let Some(header) = bytes.get(..12) else { return Ok(Step::Need(12)) };
    if order.u32(header, 0) == Some(SECTION) {
        *order = match header.last_chunk() {
            Some([0x4d, 0x3c, 0x2b, 0x1a]) => Order::Little,
            Some([0x1a, 0x2b, 0x3c, 0x4d]) => Order::Big,
            _ => return Err(FileError::Block { kind: SECTION, length: header.len() }),
        };
        interfaces.clear();
    }
    let (kind, length) = (order.u32(header, 0).unwrap_or(0), order.u32(header, 4).unwrap_or(0));
    let length = bounded(u64::from(length))?;
    let malformed = FileError::Block { kind, length };
    if length < 12 || length % 4 != 0 {
        return Err(malformed);
    }
    let Some(body) = bytes.get(8..length) else { return Ok(Step::Need(length)) };
    let body = &body[..body.len() - 4];
    let item = match kind {
        INTERFACE => {
            if interfaces.len() == MOST_INTERFACES {
                return Err(malformed);
            }
            interfaces.push(interface(*order, body).ok_or(malformed)?);
            None
        }
        PACKET => {
            Some(packet(*order, interfaces, body, 0, 4..12, 20).map_err(|error| error.unwrap_or(malformed))?)
        }
        OLD_PACKET => {
            // The interface is a half word there, beside a count of drops.
            Some(packet(*order, interfaces, body, 2, 4..12, 20).map_err(|error| error.unwrap_or(malformed))?)
        }
        SIMPLE_PACKET => {
            Some(simple_packet(*order, interfaces, body).map_err(|error| error.unwrap_or(malformed))?)
        }
        STATISTICS => dropped(*order, interfaces, body).map(Item::Dropped),
        _ => None,
    };
    Ok(Step::Took(length, item))
}

fn interface(order: Order, body: &[u8]) -> Option<Interface> {
    let mut found = Interface {
        link: order.u16(body, 0)?.into(),
        snaplen: order.u32(body, 4)?,
        rate: 1_000_000,
        offset: 0,
        dropped: 0,
    };
    for (code, value) in options(order, body.get(8..)?) {
        match (code, value) {
            (9, &[resolution]) => {
                let base: u64 = if resolution & 0x80 != 0 { 2 } else { 10 };
                found.rate = base.checked_pow(u32::from(resolution & 0x7f))?;
            }
            (14, value) => {
                let field = *value.first_chunk()?;
                found.offset = match order {
                    Order::Little => i64::from_le_bytes(field),
                    Order::Big => i64::from_be_bytes(field),
                };
            }
            _ => {}
        }
    }
    Some(found)
}

/// The options of a block: codes and values.
fn options(order: Order, mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (code, length) = (order.u16(rest, 0)?, usize::from(order.u16(rest, 2)?));
        let value = rest.get(4..4 + length)?;
        rest = rest.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        (code != 0).then_some((code, value))
    })
}

/// Frames that the interface dropped since its last block of statistics: each counts from the beginning.
fn dropped(order: Order, interfaces: &mut [Interface], body: &[u8]) -> Option<u64> {
    let interface = interfaces.get_mut(order.u32(body, 0)? as usize)?;
    let (_, value) = options(order, body.get(12..)?).find(|(code, _)| *code == 5)?;
    let field = *value.first_chunk()?;
    let count = match order {
        Order::Little => u64::from_le_bytes(field),
        Order::Big => u64::from_be_bytes(field),
    };
    let more = count.saturating_sub(interface.dropped);
    interface.dropped = count;
    (more > 0).then_some(more)
}

/// A packet block; an old one has its interface in the half word at 0. `None` as the error: malformed.
fn packet<'a>(
    order: Order,
    interfaces: &[Interface],
    body: &'a [u8],
    interface_width: usize,
    times: Range<usize>,
    data: usize,
) -> Result<Item<'a>, Option<FileError>> {
    let number = match interface_width {
        2 => order.u16(body, 0).map(u32::from),
        _ => order.u32(body, 0),
    }
    .ok_or(None)?;
    let interface = known(interfaces, number)?;
    let ticks = order.halves(body, times.start, times.start + 4).ok_or(None)?;
    let captured = order.u32(body, times.end).ok_or(None)? as usize;
    let original_length = order.u32(body, times.end + 4).ok_or(None)?;
    let bytes = body.get(data..).and_then(|rest| rest.get(..captured)).ok_or(None)?;
    let time = interface.nanoseconds(ticks);
    Ok(Item::Record(Record { time, link: interface.link, original_length, bytes }))
}

fn simple_packet<'a>(
    order: Order,
    interfaces: &[Interface],
    body: &'a [u8],
) -> Result<Item<'a>, Option<FileError>> {
    let interface = known(interfaces, 0)?;
    let original_length = order.u32(body, 0).ok_or(None)?;
    let most = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
    let captured = original_length.min(most) as usize;
    let bytes = body.get(4..).and_then(|rest| rest.get(..captured)).ok_or(None)?;
    Ok(Item::Record(Record { time: 0, link: interface.link, original_length, bytes }))
}

fn known(interfaces: &[Interface], number: u32) -> Result<Interface, Option<FileError>> {
    let missing = FileError::Interface { interface: number, known: interfaces.len() };
    interfaces.get(number as usize).copied().ok_or(Some(missing))
}
