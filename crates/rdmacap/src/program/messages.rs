//! `rdmacap messages`: sends and immediates, with what they carry.

use std::io;
use std::path::Path;

use rdmacap::{Assembler, Connection, Kind, Operation, Placement, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, direction, frames, hex, seconds};
use crate::{Failure, input};

/// A message in JSON.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    conn: u32,
    from: String,
    frames: (u64, u64),
    t: f64,
    len: u64,
    imm: Option<u32>,
    invalidate: Option<String>,
    solicited: bool,
    payload: String,
    missing: &'a [(u64, u64)],
    cut: u64,
}

struct Messages<'a> {
    options: &'a Options,
    out: &'a mut Output,
    contents: Assembler,
    first: Option<u64>,
    failed: Option<io::Error>,
}

/// Bytes of a message that a table shows.
const SHOWN: usize = 24;

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    if let Some(folder) = &options.folder {
        std::fs::create_dir_all(folder)?;
    }
    out.line(&format!(
        "{:>4} {:<10} {:<5} {:>13} {:>11} {:>10} {:>9}  payload",
        "conn", "op", "", "frames", "time, s", "imm", "bytes"
    ));
    let contents = Assembler::new(options.config.memory);
    let mut messages = Messages { options, out, contents, first: None, failed: None };
    input::read(options, &options.files, &mut messages)?;
    messages.failed.map_or(Ok(0), |error| Err(error.into()))
}

impl Sink for Messages<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.first.get_or_insert(connection.time);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        let wanted = self.options.connection.is_none_or(|connection| connection == placement.connection);
        if wanted && placement.memory.is_none() {
            self.contents.bytes(placement, bytes);
        }
    }

    fn ended(&mut self, operation: &Operation) {
        let is_message = operation.kind == Kind::Send || operation.immediate.is_some();
        if !is_message || self.options.connection.is_some_and(|wanted| wanted != operation.connection) {
            return;
        }
        let content = self.contents.take(operation.id);
        let first = *self.first.get_or_insert(operation.time);
        if let Some(folder) = self.options.folder.as_deref().filter(|_| operation.kind == Kind::Send)
            && let Err(error) = write(folder, operation, &content.bytes)
        {
            self.failed.get_or_insert(error);
        }
        let digits: String = content.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = digits.get(..2 * SHOWN).map_or_else(|| digits.clone(), |start| format!("{start}..."));
        self.out.line(&format!(
            "{:>4} {:<10} {:<5} {:>13} {:>11.6} {:>10} {:>9}  {shown}",
            operation.connection,
            operation.kind.name(),
            direction(operation.from),
            frames(operation.frames),
            seconds(operation.time, first),
            operation.immediate.map_or_else(String::new, hex),
            operation.length,
        ));
        self.out.json(&Line {
            op: operation.kind.name(),
            conn: operation.connection,
            from: operation.from.to_string(),
            frames: operation.frames,
            t: seconds(operation.time, first),
            len: operation.length,
            imm: operation.immediate,
            invalidate: operation.invalidate.map(hex),
            solicited: operation.solicited,
            payload: digits,
            missing: &operation.missing,
            cut: operation.cut,
        });
    }
}

/// A file for each message, named after its connection, sender and first frame.
fn write(folder: &Path, operation: &Operation, bytes: &[u8]) -> io::Result<()> {
    let name = format!("{}-{}-{:08}.bin", operation.connection, operation.from, operation.frames.0);
    std::fs::write(folder.join(name), bytes)
}
