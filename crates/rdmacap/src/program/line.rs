//! What each line about an operation begins with, in JSON and in tables.

use rdmacap::Operation;
use rdmacap::advertised::Advertised;
use serde::Serialize;

use crate::text::{direction, frames, hex, seconds};

/// In JSON.
#[derive(Serialize)]
pub(crate) struct Begin<'a> {
    op: &'a str,
    conn: u32,
    from: String,
    frames: (u64, u64),
    t: f64,
    len: u64,
    imm: Option<u64>,
    invalidate: Option<String>,
    solicited: bool,
    missing: &'a [(u64, u64)],
    cut: u64,
}

/// Times count from the first that is seen.
#[derive(Default)]
pub(crate) struct Clock(Option<u64>);

impl Clock {
    /// Seconds since the first time.
    pub(crate) fn at(&mut self, time: u64) -> f64 {
        seconds(time, *self.0.get_or_insert(time))
    }
}

pub(crate) fn begin<'a>(operation: &'a Operation, clock: &mut Clock) -> Begin<'a> {
    Begin {
        op: operation.kind.name(),
        conn: operation.connection,
        from: operation.from.to_string(),
        frames: operation.frames,
        t: clock.at(operation.time),
        len: operation.length,
        imm: operation.immediate,
        invalidate: operation.invalidate.map(hex),
        solicited: operation.solicited,
        missing: &operation.missing,
        cut: operation.cut,
    }
}

/// The first columns of a table.
pub(crate) fn heading() -> String {
    format!("{:>4} {:<12} {:<5} {:>13} {:>11}", "conn", "op", "", "frames", "time, s")
}

/// The same of an operation.
pub(crate) fn columns(operation: &Operation, clock: &mut Clock) -> String {
    format!(
        "{:>4} {:<12} {:<5} {:>13} {:>11.6}",
        operation.connection,
        operation.kind.name(),
        direction(operation.from),
        frames(operation.frames),
        clock.at(operation.time),
    )
}

/// Where a key was advertised, in JSON.
#[derive(Serialize)]
pub(crate) struct Source<'a> {
    frame: u64,
    byte: usize,
    private_data: bool,
    message: Option<&'a str>,
}

impl<'a> From<&'a Advertised> for Source<'a> {
    fn from(found: &'a Advertised) -> Self {
        let &Advertised { frame, byte, private_data, ref message } = found;
        Self { frame, byte, private_data, message: message.as_deref() }
    }
}

/// The same in words.
pub(crate) fn source(found: &Advertised) -> String {
    let Advertised { frame, byte, private_data, message } = found;
    let place = if *private_data { " of the private data" } else { "" };
    let message = message.as_ref().map_or(String::new(), |message| format!(", {message}"));
    format!("frame {frame}, byte {byte}{place}{message}")
}
