//! `rdmacap messages`: sends and immediates, with what they carry.

use std::io;

use rdmacap::{Assembler, Connection, Kind, Operation, Placement, Sink};
use serde::Serialize;

use crate::files::Files;
use crate::line::{self, Begin, Clock};
use crate::options::Options;
use crate::text::{Output, digits, hex};
use crate::{Failure, input};

/// A message in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    begin: Begin<'a>,
    payload: String,
}

struct Messages<'a> {
    options: &'a Options,
    out: &'a Output,
    contents: Assembler,
    clock: Clock,
    files: Option<Files>,
}

/// Bytes of a message that a table shows.
const SHOWN: usize = 24;

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    let files = options.folder.as_deref().map(Files::new).transpose()?;
    out.line(&format!("{} {:>18} {:>9}  payload", line::heading(), "imm", "bytes"));
    let contents = Assembler::new(options.config.memory);
    let mut messages = Messages { options, out, contents, clock: Clock::default(), files };
    input::read(options, out, &mut messages)?;
    out.note(messages.files.map_or(Ok(()), Files::finish));
    Ok(0)
}

impl Sink for Messages<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.clock.at(connection.time);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if self.options.wants(placement.connection) && placement.memory.is_none() {
            self.contents.bytes(placement, bytes);
        }
    }

    fn ended(&mut self, operation: &Operation) {
        let content = self.contents.take(operation.id);
        let is_message = operation.kind == Kind::Send || operation.immediate.is_some();
        if !is_message || !self.options.wants(operation.connection) {
            return;
        }
        if operation.kind == Kind::Send && self.out.is_well() {
            self.out.note(self.write(operation, &content.bytes));
        }
        let shown = &content.bytes[..content.bytes.len().min(SHOWN)];
        let more = if shown.len() < content.bytes.len() { "..." } else { "" };
        let (columns, clock) = (line::columns(operation, &mut self.clock), &mut self.clock);
        let immediate = operation.immediate.map_or_else(String::new, hex);
        let length = operation.length;
        self.out.line(&format!("{columns} {immediate:>18} {length:>9}  {}{more}", digits(shown)));
        if self.options.json {
            let begin = line::begin(operation, clock);
            self.out.json(&Line { begin, payload: digits(&content.bytes) });
        }
    }
}

impl Messages<'_> {
    /// A file for each message, named after its connection, sender and first frame.
    fn write(&mut self, operation: &Operation, bytes: &[u8]) -> io::Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let Operation { connection, from, frames, .. } = operation;
        files.write_fresh(&format!("{connection}-{from}-{:08}", frames.0), bytes)
    }
}
