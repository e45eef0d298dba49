//! Lines out: tables for people, JSON for programs.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Write};

use rdmacap::{Operation, Side};
use serde::Serialize;

use crate::options::Options;

/// Version of the JSON: a field may be added, and what a field means changes only with this number.
const VERSION: u32 = 1;

/// Standard output.
pub(crate) struct Output {
    out: BufWriter<io::Stdout>,
    json: bool,
    color: bool,
    /// Why nothing can be written any more.
    failed: Option<io::Error>,
}

/// The first line of JSON.
#[derive(Serialize)]
struct Head<'a> {
    format: &'a str,
    version: u32,
    command: &'a str,
}

impl Output {
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut output = Self { out: BufWriter::new(io::stdout()), json: options.json, color, failed: None };
        if options.json {
            output.json(&Head { format: "rdmacap", version: VERSION, command: options.command.name() });
        }
        Ok(output)
    }

    /// A line of JSON, if that is asked for.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        if self.json {
            let written = serde_json::to_writer(&mut self.out, value);
            let ended = self.out.write_all(b"\n");
            self.note(written.map_err(io::Error::from).and(ended));
        }
    }

    /// A line of text, if JSON is not asked for.
    pub(crate) fn line(&mut self, text: &str) {
        if !self.json {
            let written = writeln!(self.out, "{}", text.trim_end());
            self.note(written);
        }
    }

    /// The same where something is wrong.
    pub(crate) fn bad(&mut self, text: &str) {
        if self.color { self.line(&format!("\x1b[31m{}\x1b[0m", text.trim_end())) } else { self.line(text) }
    }

    fn note(&mut self, written: io::Result<()>) {
        if let (Err(error), None) = (written, &self.failed) {
            self.failed = Some(error);
        }
    }

    /// Everything was written, or it was not.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

/// A number in hexadecimal, as JSON has keys and addresses.
pub(crate) fn hex(number: impl Into<u64>) -> String {
    format!("{:#x}", number.into())
}

/// Bytes as hexadecimal digits.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Nanoseconds in a unit that suits them.
pub(crate) fn duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{} us", nanoseconds / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", nanoseconds / 1_000_000),
        _ => format!("{} s", nanoseconds / 1_000_000_000),
    }
}

/// Seconds since the first frame.
pub(crate) fn seconds(time: u64, first: u64) -> f64 {
    time.saturating_sub(first) as f64 / 1e9
}

/// Numbers of frames: one, or from and to.
pub(crate) fn frames((first, last): (u64, u64)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Ranges, with commas between; no more than a few.
pub(crate) fn ranges(ranges: &[(u64, u64)]) -> String {
    const SHOWN: usize = 4;
    let mut text = String::new();
    for (start, end) in ranges.iter().take(SHOWN) {
        let _ = write!(text, "{}{start}-{end}", if text.is_empty() { "" } else { "," });
    }
    if ranges.len() > SHOWN {
        let _ = write!(text, ",... ({} in all)", ranges.len());
    }
    text
}

/// From whom to whom.
pub(crate) fn direction(from: Side) -> &'static str {
    match from {
        Side::A => "a->b",
        Side::B => "b->a",
    }
}

/// Whether an operation failed or is not whole.
pub(crate) fn is_faulty(operation: &Operation) -> bool {
    let incomplete = operation.outcome == rdmacap::Outcome::Incomplete;
    operation.outcome.failed() || incomplete || !operation.missing.is_empty()
}
