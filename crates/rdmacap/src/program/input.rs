//! Capture files, merged by time, into a session.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

use rdmacap::file::{Decoder, FileError, Item, Record, Step};
use rdmacap::{Finding, Session, Sink, Topic, digest};

use crate::Failure;
use crate::interrupt::Interruptible;
use crate::options::Options;
use crate::text::Output;

/// Why captures cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    #[error("{path}: {source}, {at} bytes into the file")]
    File { path: String, source: FileError, at: u64 },
}

/// Frames that two captures have of one packet are at most so far apart. In nanoseconds.
const SAME: u64 = 2_000_000_000;
/// What a packet takes while another capture may have it as well.
const PACKET: usize = 160;
const CHUNK: usize = 1 << 18;

/// One file.
struct Source {
    path: String,
    file: Box<dyn Read>,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// What of the buffer is done with, and what is filled.
    done: usize,
    filled: usize,
    /// Offset in the file of the buffer's start.
    before: u64,
    /// Time and length of the record that comes next.
    next: Option<(u64, usize)>,
    ended: bool,
    dropped: u64,
    cut: bool,
}

impl Source {
    fn open(path: &Path) -> Result<Self, InputError> {
        let name = path.display().to_string();
        let file: io::Result<Box<dyn Read>> = if name == "-" {
            Interruptible::new().map(|input| Box::new(input) as Box<dyn Read>)
        } else {
            File::open(path).map(|file| Box::new(file) as Box<dyn Read>)
        };
        let file = file.and_then(unpacked).map_err(|source| InputError::Io { path: name.clone(), source })?;
        Ok(Self {
            path: name,
            file,
            decoder: Decoder::new(),
            buffer: vec![0; CHUNK],
            done: 0,
            filled: 0,
            before: 0,
            next: None,
            ended: false,
            dropped: 0,
            cut: false,
        })
    }

    /// Goes on to the next record, which stays in the buffer.
    fn advance(&mut self, out: &Output) -> Result<(), Failure> {
        self.done += self.next.take().map_or(0, |(_, length)| length);
        while !self.ended {
            match self.step()? {
                Step::Need(length) => self.fill(length, out)?,
                Step::Took(length, Some(Item::Record(record))) => {
                    self.next = Some((record.time, length));
                    return Ok(());
                }
                Step::Took(length, Some(Item::Dropped(count))) => {
                    self.dropped = self.dropped.saturating_add(count);
                    self.done += length;
                }
                Step::Took(length, None) => self.done += length,
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Step<'_>, InputError> {
        let at = self.before + self.done as u64;
        self.decoder.step(&self.buffer[self.done..self.filled]).map_err(|source| InputError::File {
            path: self.path.clone(),
            source,
            at,
        })
    }

    /// The record that comes next.
    fn record(&mut self) -> Result<Option<Record<'_>>, InputError> {
        if self.next.is_none() {
            return Ok(None);
        }
        // A record is decoded alike however often.
        Ok(match self.step()? {
            Step::Took(_, Some(Item::Record(record))) => Some(record),
            _ => None,
        })
    }

    /// Reads until `length` bytes are there, or the file ends. What is read may be long in coming: what was
    /// said so far is shown before.
    fn fill(&mut self, length: usize, out: &Output) -> Result<(), Failure> {
        self.buffer.copy_within(self.done..self.filled, 0);
        self.before += self.done as u64;
        self.filled -= self.done;
        self.done = 0;
        if self.buffer.len() < length + CHUNK {
            self.buffer.resize(length + CHUNK, 0);
        }
        while self.filled < length {
            out.show()?;
            match self.file.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    self.cut |= self.filled > 0 || self.before == 0;
                    return Ok(());
                }
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A compressed file that is cut says so at its end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (self.ended, self.cut) = (true, true);
                    return Ok(());
                }
                Err(source) => return Err(InputError::Io { path: self.path.clone(), source }.into()),
            }
        }
        Ok(())
    }
}

/// A file as it is, or what is compressed in it.
fn unpacked(mut file: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut start = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
    let is_packed = start == MAGIC;
    let whole = Box::new(io::Cursor::new(start).chain(file));
    Ok(if is_packed { gzip(whole) } else { whole })
}

/// How gzip begins (RFC 1952).
const MAGIC: [u8; 2] = [0x1f, 0x8b];

#[cfg(feature = "gzip")]
fn gzip(file: Box<dyn Read>) -> Box<dyn Read> {
    Box::new(flate2::read::MultiGzDecoder::new(file))
}

#[cfg(not(feature = "gzip"))]
fn gzip(file: Box<dyn Read>) -> Box<dyn Read> {
    file
}

/// Recognises the packets that several captures have.
#[derive(Default)]
struct Doubles {
    /// How often each file had a packet.
    seen: HashMap<u64, Vec<u32>>,
    order: VecDeque<(u64, u64)>,
    count: u64,
    /// Most packets that are remembered.
    most: usize,
}

impl Doubles {
    /// Whether another file has had this packet, once more than this one.
    fn is_double(&mut self, file: usize, files: usize, record: &Record<'_>) -> bool {
        while let Some((time, oldest)) = self.order.front().copied()
            && (time.saturating_add(SAME) < record.time || self.order.len() > self.most)
        {
            self.order.pop_front();
            self.seen.remove(&oldest);
        }
        let Some(digest) = digest(record) else { return false };
        let seen = self.seen.entry(digest).or_insert_with(|| {
            self.order.push_back((record.time, digest));
            vec![0; files]
        });
        let most = seen.iter().copied().max().unwrap_or(0);
        seen[file] += 1;
        let double = seen[file] <= most;
        self.count += u64::from(double);
        double
    }
}

/// Reads all files into a session, and ends it. What is wrong in the middle of a file ends that file alone,
/// and is told at the end: what was before it is as good as ever.
pub(crate) fn read(options: &Options, out: &Output, sink: &mut dyn Sink) -> Result<(), Failure> {
    let mut sources = options.files.iter().map(|path| Source::open(path)).collect::<Result<Vec<_>, _>>()?;
    for source in &mut sources {
        source.advance(out)?;
    }
    let mut session = Session::new(options.config);
    options.pairs.iter().for_each(|(a, b)| session.pair(*a, *b));
    let mut doubles = Doubles { most: options.config.memory / PACKET, ..Doubles::default() };
    let mut progress = Progress::new(options);
    let files = sources.len();
    loop {
        let earliest = sources.iter().enumerate().filter_map(|(at, source)| Some((source.next?.0, at)));
        let Some((_, at)) = earliest.min() else { break };
        if let Some(record) = sources[at].record()?
            && !(files > 1 && doubles.is_double(at, files, &record))
        {
            session.feed(&record, sink);
        }
        match sources[at].advance(out) {
            Err(Failure::Input(error)) => {
                sources[at].ended = true;
                out.damage(error);
            }
            advanced => advanced?,
        }
        progress.tick(session.frames());
    }
    let frame = session.frames();
    session.finish(sink);
    progress.end();
    let mut note = |topic, text| sink.finding(&Finding { topic, connection: None, frame, text });
    for source in &sources {
        if source.dropped > 0 {
            let text = format!("{}: the interface dropped {} frames", source.path, source.dropped);
            note(Topic::Dropped, text);
        }
        if source.cut {
            note(Topic::CutFile, format!("{}: it ends in the middle of a record", source.path));
        }
    }
    if doubles.count > 0 {
        note(Topic::Duplicate, format!("{} frames are in several of the files", doubles.count));
    }
    Ok(())
}

/// Says on a terminal how far it is.
struct Progress {
    shown: bool,
    next: u64,
}

impl Progress {
    const STEP: u64 = 1 << 18;

    fn new(options: &Options) -> Self {
        Self { shown: !options.quiet && io::stderr().is_terminal(), next: Self::STEP }
    }

    fn tick(&mut self, frames: u64) {
        if self.shown && frames >= self.next {
            self.next += Self::STEP;
            let _ = write!(io::stderr(), "\r{frames} frames ");
        }
    }

    fn end(&self) {
        if self.shown && self.next > Self::STEP {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
