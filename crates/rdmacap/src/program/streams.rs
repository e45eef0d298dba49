//! `rdmacap streams`: the byte streams of rstream's connections.

use std::io::{self, Seek, SeekFrom, Write};

use rdmacap::rstream::{Agreed, StreamSink, Streams, Told};
use rdmacap::{Finding, Side, Topic};
use rstream_protocol::WordFormat;
use serde::Serialize;

use crate::files::Files;
use crate::options::Options;
use crate::rows::Rows;
use crate::text::{Output, direction, ranges};
use crate::{Failure, input};

/// A direction of a stream in JSON.
#[derive(Serialize)]
struct Line<'a> {
    conn: u32,
    from: String,
    words: &'a str,
    features: String,
    ring: u32,
    receives: u16,
    bytes: u64,
    messages: u64,
    updates: u64,
    end: bool,
    close: bool,
    holes: &'a [(u64, u64)],
    holes_left_out: u64,
    breaches: &'a [String],
}

struct Found<'a> {
    options: &'a Options,
    out: &'a Output,
    connections: Rows<u32, Stream>,
    files: Option<Files>,
}

#[derive(Default)]
struct Stream {
    agreed: Option<Agreed>,
    told: [Told; 2],
    holes: [Vec<(u64, u64)>; 2],
    left_out: [u64; 2],
    breaches: Vec<String>,
}

/// Holes and breaches of a stream that are told.
const MOST_HOLES: usize = 1 << 12;
const MOST_BREACHES: usize = 16;

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    let files = options.folder.as_deref().map(Files::new).transpose()?;
    out.line(&format!(
        "{:>4} {:<5} {:<9} {:>9} {:>8} {:>12} {:>9} {:>8} {:<9}  holes",
        "conn", "", "words", "ring", "receives", "bytes", "messages", "updates", "ending"
    ));
    let connections = Rows::new(options.config.memory);
    let found = Found { options, out, connections, files };
    let mut streams = Streams::new(found, options.config.memory);
    input::read(options, out, &mut streams)?;
    let Found { out, connections, files, .. } = streams.sink;
    for (conn, stream) in connections.iter() {
        describe(*conn, stream, out);
    }
    out.note(files.map_or(Ok(()), Files::finish));
    Ok(0)
}

fn describe(conn: u32, stream: &Stream, out: &Output) {
    let Some(agreed) = &stream.agreed else { return };
    let words = match agreed.words {
        WordFormat::Immediate => "immediate",
        WordFormat::Iwarp => "iwarp",
    };
    for from in [Side::A, Side::B] {
        let (at, into) = (from as usize, from.other() as usize);
        let Told { bytes, messages, updates, end, close } = stream.told[at];
        let (ring, receives) = (agreed.rings[into], agreed.receives[into]);
        let ending = match (end, close) {
            (true, true) => "end close",
            (true, false) => "end",
            (false, true) => "close",
            (false, false) => "none",
        };
        let (holes, holes_left_out) = (&stream.holes[at], stream.left_out[at]);
        out.line(&format!(
            "{conn:>4} {:<5} {words:<9} {ring:>9} {receives:>8} {bytes:>12} {messages:>9} {updates:>8} \
             {ending:<9}  {}",
            direction(from),
            ranges(holes)
        ));
        let features = agreed.features.iter_names().map(|(name, _)| name.to_lowercase());
        let features = features.collect::<Vec<_>>().join(" ");
        let (from, breaches) = (from.to_string(), &*stream.breaches);
        let line = Line {
            conn,
            from,
            words,
            features,
            ring,
            receives,
            bytes,
            messages,
            updates,
            end,
            close,
            holes,
            holes_left_out,
            breaches,
        };
        out.json(&line);
    }
    for breach in &stream.breaches {
        out.bad(&format!("{conn:>4} {breach}"));
    }
}

impl Found<'_> {
    fn change(&mut self, connection: u32, change: impl FnOnce(&mut Stream)) {
        if !self.options.wants(connection) {
            return;
        }
        self.connections.change(connection, |stream| {
            change(stream);
            stream.holes.iter().map(|holes| size_of_val(&**holes)).sum()
        });
        for (connection, stream) in self.connections.excess() {
            describe(connection, &stream, self.out);
        }
    }

    fn write(&mut self, connection: u32, from: Side, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(files) = self.files.as_mut().filter(|_| self.options.wants(connection)) else {
            return Ok(());
        };
        files.write(&format!("{connection}-{from}.bin"), |file| {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)
        })
    }
}

impl StreamSink for Found<'_> {
    fn opened(&mut self, connection: u32, agreed: &Agreed) {
        self.change(connection, |stream| stream.agreed = Some(*agreed));
    }

    fn data(&mut self, connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        if self.out.is_well() {
            self.out.note(self.write(connection, from, offset, bytes));
        }
    }

    fn hole(&mut self, connection: u32, from: Side, offset: u64, length: u64) {
        self.change(connection, |stream| match &mut stream.holes[from as usize] {
            holes if holes.len() < MOST_HOLES => holes.push((offset, offset + length)),
            _ => stream.left_out[from as usize] += 1,
        });
    }

    fn told(&mut self, connection: u32, from: Side, told: &Told) {
        self.change(connection, |stream| stream.told[from as usize] = *told);
    }

    fn finding(&mut self, finding: &Finding) {
        let Some(connection) = finding.connection else { return };
        let severity = if finding.topic == Topic::UpperLayer { "breach" } else { "note" };
        let text = format!("{severity} in frame {}: {}", finding.frame, finding.text);
        self.change(connection, |stream| {
            if stream.breaches.len() < MOST_BREACHES {
                stream.breaches.push(text);
            }
        });
    }
}
