//! `rdmacap streams`: the byte streams of rstream's connections.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use rdmacap::rstream::{Agreed, StreamSink, Streams, Told};
use rdmacap::{Finding, Side, Topic};
use rstream_protocol::WordFormat;
use serde::Serialize;

use crate::options::Options;
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
    breaches: &'a [String],
}

#[derive(Default)]
struct Found {
    folder: Option<PathBuf>,
    connections: BTreeMap<u32, Stream>,
    failed: Option<io::Error>,
}

struct Stream {
    agreed: Agreed,
    told: [Told; 2],
    holes: [Vec<(u64, u64)>; 2],
    files: [Option<File>; 2],
    breaches: Vec<String>,
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    if let Some(folder) = &options.folder {
        std::fs::create_dir_all(folder)?;
    }
    let found = Found { folder: options.folder.clone(), ..Found::default() };
    let mut streams = Streams::new(found, options.config.memory);
    input::read(options, &options.files, &mut streams)?;
    out.line(&format!(
        "{:>4} {:<5} {:<9} {:>9} {:>8} {:>12} {:>9} {:>8} {:<9}  holes",
        "conn", "", "words", "ring", "receives", "bytes", "messages", "updates", "ending"
    ));
    for (conn, stream) in &streams.sink.connections {
        if options.connection.is_none_or(|wanted| wanted == *conn) {
            describe(*conn, stream, out);
        }
    }
    streams.sink.failed.map_or(Ok(0), |error| Err(error.into()))
}

fn describe(conn: u32, stream: &Stream, out: &mut Output) {
    let words = match stream.agreed.words {
        WordFormat::Immediate => "immediate",
        WordFormat::Iwarp => "iwarp",
    };
    for from in [Side::A, Side::B] {
        let (at, into) = (from as usize, from.other() as usize);
        let Told { bytes, messages, updates, end, close } = stream.told[at];
        let (ring, receives) = (stream.agreed.rings[into], stream.agreed.receives[into]);
        let ending = match (end, close) {
            (true, true) => "end close",
            (true, false) => "end",
            (false, true) => "close",
            (false, false) => "none",
        };
        let holes = &stream.holes[at];
        out.line(&format!(
            "{conn:>4} {:<5} {words:<9} {ring:>9} {receives:>8} {bytes:>12} {messages:>9} {updates:>8} \
             {ending:<9}  {}",
            direction(from),
            ranges(holes)
        ));
        let features = stream.agreed.features.iter_names().map(|(name, _)| name.to_lowercase());
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
            breaches,
        };
        out.json(&line);
    }
    for breach in &stream.breaches {
        out.bad(&format!("{conn:>4} {breach}"));
    }
}

impl Found {
    fn write(&mut self, connection: u32, from: Side, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let Some(stream) = self.connections.get_mut(&connection) else { return Ok(()) };
        let file = match &mut stream.files[from as usize] {
            Some(file) => file,
            none => none.insert(File::create(folder.join(format!("{connection}-{from}.bin")))?),
        };
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }
}

impl StreamSink for Found {
    fn opened(&mut self, connection: u32, agreed: &Agreed) {
        let stream = Stream {
            agreed: *agreed,
            told: Default::default(),
            holes: Default::default(),
            files: Default::default(),
            breaches: Vec::new(),
        };
        self.connections.insert(connection, stream);
    }

    fn data(&mut self, connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(connection, from, offset, bytes).err();
        }
    }

    fn hole(&mut self, connection: u32, from: Side, offset: u64, length: u64) {
        if let Some(stream) = self.connections.get_mut(&connection) {
            stream.holes[from as usize].push((offset, offset + length));
        }
    }

    fn told(&mut self, connection: u32, from: Side, told: &Told) {
        if let Some(stream) = self.connections.get_mut(&connection) {
            stream.told[from as usize] = *told;
        }
    }

    fn finding(&mut self, finding: &Finding) {
        let stream = finding.connection.and_then(|connection| self.connections.get_mut(&connection));
        if let Some(stream) = stream {
            let severity = if finding.topic == Topic::UpperLayer { "breach" } else { "note" };
            stream.breaches.push(format!("{severity} in frame {}: {}", finding.frame, finding.text));
        }
    }
}
