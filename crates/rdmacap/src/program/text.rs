//! Lines out: tables for people, JSON for programs.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use rdmacap::{Operation, Side};
use serde::Serialize;

use crate::Failure;
use crate::files::named;
use crate::input::InputError;
use crate::options::Options;

/// Version of the JSON: a field may be added, and what a field means changes only with this number.
const VERSION: u32 = 1;

/// Standard output, and what became of it and of everything else that a command writes.
pub(crate) struct Output {
    out: RefCell<BufWriter<io::Stdout>>,
    json: bool,
    color: bool,
    /// What could not be written.
    failed: RefCell<Option<io::Error>>,
    /// What could not be read, which is told at the end.
    damage: RefCell<Option<InputError>>,
}

/// The first line of JSON.
#[derive(Serialize)]
struct Head<'a> {
    format: &'a str,
    version: u32,
    command: &'a str,
}

impl Output {
    pub(crate) fn new(options: &Options) -> Self {
        let color = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let out = RefCell::new(BufWriter::new(io::stdout()));
        let output =
            Self { out, json: options.json, color, failed: RefCell::default(), damage: RefCell::default() };
        output.json(&Head { format: "rdmacap", version: VERSION, command: options.command.name() });
        output
    }

    /// A line of JSON, if that is asked for.
    pub(crate) fn json(&self, value: &impl Serialize) {
        if self.json {
            let mut out = self.out.borrow_mut();
            let written = serde_json::to_writer(&mut *out, value);
            self.note(written.map_err(io::Error::from).and_then(|()| out.write_all(b"\n")).map_err(ours));
        }
    }

    /// A line of text, if JSON is not asked for.
    pub(crate) fn line(&self, text: &str) {
        if !self.json {
            self.note(writeln!(self.out.borrow_mut(), "{}", text.trim_end()).map_err(ours));
        }
    }

    /// The same where something is wrong.
    pub(crate) fn bad(&self, text: &str) {
        if self.color { self.line(&format!("\x1b[31m{}\x1b[0m", text.trim_end())) } else { self.line(text) }
    }

    /// Something was written, or could not be.
    pub(crate) fn note(&self, done: io::Result<()>) {
        if let Err(error) = done {
            self.failed.borrow_mut().get_or_insert(error);
        }
    }

    /// The rest of a file cannot be read.
    pub(crate) fn damage(&self, error: InputError) {
        self.damage.borrow_mut().get_or_insert(error);
    }

    /// Whether all could be written so far.
    pub(crate) fn is_well(&self) -> bool {
        self.failed.borrow().is_none()
    }

    /// Shows what was said up to now. If that or something else could not be written, there is no use in going
    /// on.
    pub(crate) fn show(&self) -> io::Result<()> {
        self.note(self.out.borrow_mut().flush().map_err(ours));
        self.failed.take().map_or(Ok(()), Err)
    }

    /// All is said.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        self.show()?;
        Ok(self.damage.take().map_or(Ok(()), Err)?)
    }
}

/// An error of standard output.
fn ours(error: io::Error) -> io::Error {
    named(Path::new("standard output"), &error)
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
