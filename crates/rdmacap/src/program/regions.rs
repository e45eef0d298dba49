//! `rdmacap regions`: who wrote and read which bytes of which key.

use std::collections::BTreeSet;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use rdmacap::advertised::{Advertised, Advertisements};
use rdmacap::{Access, Connection, Kind, Operation, Placement, Ranges, Region, Sink, Target};
use serde::Serialize;

use crate::files::Files;
use crate::line::{self, Source};
use crate::options::Options;
use crate::rows::Rows;
use crate::text::{Output, hex, ranges};
use crate::{Failure, input};

/// A region in JSON.
#[derive(Serialize)]
struct Line<'a> {
    region: u32,
    host: String,
    key: String,
    epoch: u32,
    addr: String,
    span: u64,
    written: u64,
    read: u64,
    filled: u64,
    operations: u64,
    conns: &'a BTreeSet<u32>,
    frames: (u64, u64),
    advertised: Option<Source<'a>>,
    holes: &'a [(u64, u64)],
}

/// What happened to a region.
#[derive(Debug, Default)]
struct Known {
    region: Option<Region>,
    advertised: Option<Advertised>,
    /// Addresses whose content is in the capture.
    there: Ranges,
    /// First and last address of what was moved, whether the capture has it or not.
    extent: Option<(u64, u64)>,
    written: u64,
    read: u64,
    filled: u64,
    operations: u64,
    connections: BTreeSet<u32>,
    frames: Option<(u64, u64)>,
}

/// Connections of a region that are told.
const MOST_CONNECTIONS: usize = 64;

impl Known {
    /// The first address, and how far it is to the end.
    fn span(&self) -> Option<(u64, u64)> {
        self.extent.map(|(first, end)| (first, end - first))
    }

    /// What is not there between the first address and the last, as offsets.
    fn holes(&self) -> Vec<(u64, u64)> {
        let Some((base, span)) = self.span() else { return Vec::new() };
        self.there.missing(base, base + span).map(|(start, end)| (start - base, end - base)).collect()
    }

    /// The counter of bytes that are moved so.
    fn moved(&mut self, access: Access) -> &mut u64 {
        match access {
            Access::Written => &mut self.written,
            Access::Read | Access::Found => &mut self.read,
            Access::Filled => &mut self.filled,
        }
    }

    fn touch(&mut self, address: u64, length: u64, frames: (u64, u64)) {
        let end = address.saturating_add(length);
        let extent = self.extent.get_or_insert((address, end));
        *extent = (extent.0.min(address), extent.1.max(end));
        let known = self.frames.get_or_insert(frames);
        *known = (known.0.min(frames.0), known.1.max(frames.1));
    }
}

/// Regions whose keys are wanted, as they are after a frame.
struct Regions<'a> {
    options: &'a Options,
    out: &'a Output,
    known: Rows<u32, Known>,
    advertisements: Advertisements,
}

/// Longest span that is written to a file: sparse as it is, a file system has its limits.
const LONGEST: u64 = 1 << 40;

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    if options.folder.is_some() && options.files.iter().any(|path| path == Path::new("-")) {
        return Err(Failure::Usage("regions -w reads the files twice: standard input cannot be one"));
    }
    out.line(&format!(
        "{:>6} {:<24} {:>10} {:>5} {:>18} {:>10} {:>10} {:>10} {:>10} {:>6}  advertised, holes",
        "region", "host", "key", "epoch", "address", "span", "written", "read", "filled", "conns"
    ));
    let memory = options.config.memory;
    let (known, advertisements) = (Rows::new(memory), Advertisements::new(memory));
    let mut regions = Regions { options, out, known, advertisements };
    input::read(options, out, &mut regions)?;
    let Regions { out, known, .. } = regions;
    for (id, known) in known.iter() {
        describe(*id, known, out);
    }
    if let Some(folder) = &options.folder {
        let mut writer = Writer { options, out, files: Files::new(folder)?, known: &known };
        input::read(options, out, &mut writer)?;
        out.note(writer.finish());
    }
    Ok(0)
}

/// Whether this access to memory is asked for.
fn is_wanted(options: &Options, connection: u32, key: u32, frame: u64) -> bool {
    options.wants(connection)
        && options.key.is_none_or(|wanted| wanted == key)
        && options.at.is_none_or(|at| frame <= at)
}

/// The memory that an operation moves, on both sides, and how.
fn accesses(operation: &Operation) -> impl Iterator<Item = (Target, Access)> {
    let access = match operation.kind {
        Kind::Write => Access::Written,
        Kind::CompareSwap | Kind::FetchAdd => Access::Found,
        _ => Access::Read,
    };
    let target = operation.target.map(|target| (target, access));
    target.into_iter().chain(operation.sink.map(|sink| (sink, Access::Filled)))
}

impl Regions<'_> {
    fn change(&mut self, region: u32, change: impl FnOnce(&mut Known)) {
        self.known.change(region, |known| {
            change(known);
            known.there.weight()
        });
        for (id, known) in self.known.excess() {
            describe(id, &known, self.out);
        }
    }
}

impl Sink for Regions<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.advertisements.connection(connection);
    }

    fn region(&mut self, region: &Region) {
        if self.options.key.is_none_or(|key| key == region.key) {
            self.change(region.id, |known| known.region = Some(*region));
        }
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.advertisements.bytes(placement, bytes);
        let &Placement { connection, frame, .. } = placement;
        let Some((target, access)) = placement.memory else { return };
        if !is_wanted(self.options, connection, target.key, frame) {
            return;
        }
        let length = bytes.len() as u64;
        self.change(target.region, |known| {
            *known.moved(access) += length;
            known.touch(target.address, length, (frame, frame));
            // In which order a host has the bytes of a number is not on the wire.
            if access != Access::Found {
                known.there.insert(target.address, target.address.saturating_add(length));
            }
        });
    }

    fn sent(&mut self, operation: &Operation) {
        self.advertisements.sent(operation);
        if let Some(target) = operation.target
            && let Some(found) = self.advertisements.of(target.region).cloned()
            && is_wanted(self.options, operation.connection, target.key, operation.frames.0)
        {
            self.change(target.region, |known| known.advertised = Some(found));
        }
    }

    fn ended(&mut self, operation: &Operation) {
        self.advertisements.ended(operation);
        let &Operation { connection, frames, length, cut, .. } = operation;
        let is_over = self.options.at.is_none_or(|at| frames.1 <= at);
        for (target, access) in accesses(operation) {
            if is_wanted(self.options, connection, target.key, frames.0) {
                self.change(target.region, |known| {
                    known.operations += 1;
                    if is_over {
                        *known.moved(access) += cut;
                        known.touch(target.address, length, frames);
                    }
                    if known.connections.len() < MOST_CONNECTIONS {
                        known.connections.insert(connection);
                    }
                });
            }
        }
    }

    fn closed(&mut self, connection: u32) {
        self.advertisements.closed(connection);
    }
}

fn describe(id: u32, known: &Known, out: &Output) {
    let (Some(region), Some((address, span))) = (known.region, known.span()) else { return };
    let holes = &known.holes();
    let &Known { written, read, filled, operations, ref connections, ref advertised, .. } = known;
    let conns: Vec<String> = connections.iter().take(3).map(u32::to_string).collect();
    let more = if connections.len() > 3 { ",..." } else { "" };
    out.line(&format!(
        "{id:>6} {:<24} {:>10} {:>5} {:>18} {span:>10} {written:>10} {read:>10} {filled:>10} {:>6}  {}{}",
        region.host.to_string(),
        hex(region.key),
        region.epoch,
        hex(address),
        format!("{}{more}", conns.join(",")),
        advertised.as_ref().map_or_else(|| "-".to_owned(), line::source),
        if holes.is_empty() { String::new() } else { format!("; {}", ranges(holes)) },
    ));
    out.json(&Line {
        region: id,
        host: region.host.to_string(),
        key: hex(region.key),
        epoch: region.epoch,
        addr: hex(address),
        span,
        written,
        read,
        filled,
        operations,
        conns: connections,
        frames: known.frames.unwrap_or_default(),
        advertised: advertised.as_ref().map(Source::from),
        holes,
    });
}

/// Writes the content of regions, and beside it a map of the frames that it comes from.
struct Writer<'a> {
    options: &'a Options,
    out: &'a Output,
    known: &'a Rows<u32, Known>,
    files: Files,
}

/// The name of a region's files.
fn name(region: &Region, extension: &str) -> String {
    let host = region.host.to_string().replace(':', "-");
    format!("{:06}-{host}-{:#x}-{}.{extension}", region.id, region.key, region.epoch)
}

impl Writer<'_> {
    /// The region of a place in memory, and the offset in its file, if that is written.
    fn find(&self, target: &Target) -> Option<(&Region, u64, u64, u64)> {
        let known = self.known.get(&target.region)?;
        let (region, (base, span)) = known.region.as_ref().zip(known.span())?;
        let offset = target.address.checked_sub(base)?;
        (span <= LONGEST && offset < span).then_some((region, offset, base, span))
    }

    /// Adds a line to a map, which begins with what it is.
    fn map(&mut self, region: &Region, base: u64, line: &str) -> io::Result<()> {
        let name = name(region, "map");
        let new = self.files.is_new(&name);
        self.files.write(&name, |map| {
            if new {
                writeln!(
                    map,
                    "# offset 0 is address {base:#x}; offset, length, frame, access; then the holes"
                )?;
            }
            writeln!(map, "{line}")
        })
    }

    fn write(&mut self, placement: &Placement, bytes: &[u8]) -> io::Result<()> {
        let Some((target, access)) = placement.memory else { return Ok(()) };
        if !is_wanted(self.options, placement.connection, target.key, placement.frame) {
            return Ok(());
        }
        let Some((&region, offset, base, span)) = self.find(&target) else { return Ok(()) };
        let how = match access {
            Access::Written => "written",
            Access::Read => "read",
            Access::Filled => "filled",
            Access::Found => return Ok(()),
        };
        let name = name(&region, "bin");
        let new = self.files.is_new(&name);
        self.files.write(&name, |content| {
            if new {
                content.get_ref().set_len(span)?;
            }
            content.seek(SeekFrom::Start(offset))?;
            content.write_all(bytes)
        })?;
        self.map(&region, base, &format!("{offset} {} {} {how}", bytes.len(), placement.frame))
    }

    /// What an atomic operation found and left behind goes into the map as numbers.
    fn atomic(&mut self, operation: &Operation) -> io::Result<()> {
        let Some((target, atomic)) = operation.target.zip(operation.atomic) else { return Ok(()) };
        if !is_wanted(self.options, operation.connection, target.key, operation.frames.0) {
            return Ok(());
        }
        let (Some((&region, offset, base, _)), Some(old)) = (self.find(&target), atomic.old) else {
            return Ok(());
        };
        let left = atomic.left(operation.kind).map_or_else(|| "?".to_owned(), hex);
        let line = format!("{offset} 8 {} found {old:#x}, left {left}", operation.frames.1);
        self.map(&region, base, &line)
    }

    fn finish(mut self) -> io::Result<()> {
        let known = self.known;
        for known in known.iter().map(|(_, known)| known) {
            let Some((region, (base, _))) = known.region.zip(known.span()) else { continue };
            if self.files.is_new(&name(&region, "map")) {
                continue;
            }
            for (start, end) in known.holes() {
                self.map(&region, base, &format!("{start} {} - hole", end - start))?;
            }
        }
        self.files.finish()
    }
}

impl Sink for Writer<'_> {
    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if self.out.is_well() {
            self.out.note(self.write(placement, bytes));
        }
    }

    fn ended(&mut self, operation: &Operation) {
        if self.out.is_well() {
            self.out.note(self.atomic(operation));
        }
    }
}
