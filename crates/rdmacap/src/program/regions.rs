//! `rdmacap regions`: who wrote and read which bytes of which key.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rdmacap::{Access, Placement, Ranges, Region, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::text::{Output, hex, ranges};
use crate::{Failure, input};

/// A region in JSON.
#[derive(Serialize)]
struct Line {
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
    frames: (u64, u64),
    holes: Vec<(u64, u64)>,
}

/// What happened to a region.
#[derive(Debug, Default)]
struct Known {
    region: Option<Region>,
    /// Addresses whose content is in the capture.
    there: Ranges,
    written: u64,
    read: u64,
    filled: u64,
    operations: u64,
    last_operation: u64,
    frames: Option<(u64, u64)>,
}

impl Known {
    /// The first address, and how far it is to the end.
    fn span(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.there.as_slice().first()?, self.there.as_slice().last()?);
        Some((first.0, last.1 - first.0))
    }

    /// What is not there between the first address and the last, as offsets.
    fn holes(&self) -> Vec<(u64, u64)> {
        let Some((base, span)) = self.span() else { return Vec::new() };
        self.there.missing(base, base + span).map(|(start, end)| (start - base, end - base)).collect()
    }
}

/// Regions whose keys are wanted, as they are after a frame.
struct Regions<'a> {
    options: &'a Options,
    known: BTreeMap<u32, Known>,
}

/// Longest span that is written to a file: sparse as it is, a file system has its limits.
const LONGEST: u64 = 1 << 40;

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    if options.folder.is_some() && options.files.iter().any(|path| path == Path::new("-")) {
        return Err(Failure::Usage("regions -w reads the files twice: standard input cannot be one"));
    }
    let mut regions = Regions { options, known: BTreeMap::new() };
    input::read(options, &options.files, &mut regions)?;
    out.line(&format!(
        "{:>6} {:<24} {:>10} {:>5} {:>18} {:>10} {:>10} {:>10} {:>10}  holes",
        "region", "host", "key", "epoch", "address", "span", "written", "read", "filled"
    ));
    for (id, known) in &regions.known {
        describe(*id, known, out);
    }
    if let Some(folder) = &options.folder {
        std::fs::create_dir_all(folder)?;
        let mut writer =
            Writer { options, folder, known: &regions.known, files: BTreeMap::new(), failed: None };
        input::read(options, &options.files, &mut writer)?;
        writer.finish()?;
    }
    Ok(0)
}

impl Regions<'_> {
    fn wanted(&mut self, placement: &Placement) -> Option<(&mut Known, u64, Access)> {
        let (target, access) = placement.memory?;
        let options = self.options;
        let counts = options.key.is_none_or(|key| key == target.key)
            && options.connection.is_none_or(|connection| connection == placement.connection)
            && options.at.is_none_or(|at| placement.frame <= at);
        counts.then(|| (self.known.entry(target.region).or_default(), target.address, access))
    }
}

impl Sink for Regions<'_> {
    fn region(&mut self, region: &Region) {
        if self.options.key.is_none_or(|key| key == region.key) {
            self.known.entry(region.id).or_default().region = Some(*region);
        }
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        let Some((known, address, access)) = self.wanted(placement) else { return };
        let length = bytes.len() as u64;
        match access {
            Access::Written => known.written += length,
            Access::Read | Access::Found => known.read += length,
            Access::Filled => known.filled += length,
        }
        known.there.insert(address, address.saturating_add(length));
        if known.last_operation != placement.operation {
            known.last_operation = placement.operation;
            known.operations += 1;
        }
        let frames = known.frames.get_or_insert((placement.frame, placement.frame));
        *frames = (frames.0.min(placement.frame), frames.1.max(placement.frame));
    }
}

fn describe(id: u32, known: &Known, out: &mut Output) {
    let (Some(region), Some((address, span))) = (known.region, known.span()) else { return };
    let holes = known.holes();
    let &Known { written, read, filled, operations, .. } = known;
    out.line(&format!(
        "{id:>6} {:<24} {:>10} {:>5} {:>18} {span:>10} {written:>10} {read:>10} {filled:>10}  {}",
        region.host.to_string(),
        hex(region.key),
        region.epoch,
        hex(address),
        ranges(&holes)
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
        frames: known.frames.unwrap_or_default(),
        holes,
    });
}

/// Writes the content of regions, and beside it a map of the frames that it comes from.
struct Writer<'a> {
    options: &'a Options,
    folder: &'a Path,
    known: &'a BTreeMap<u32, Known>,
    files: BTreeMap<u32, (File, BufWriter<File>)>,
    failed: Option<std::io::Error>,
}

impl Writer<'_> {
    fn write(&mut self, placement: &Placement, bytes: &[u8]) -> std::io::Result<()> {
        let Some((target, access)) = placement.memory else { return Ok(()) };
        if self.options.at.is_some_and(|at| placement.frame > at) {
            return Ok(());
        }
        let Some(known) = self.known.get(&target.region) else { return Ok(()) };
        let (Some(region), Some((base, span))) = (known.region, known.span()) else { return Ok(()) };
        if span > LONGEST {
            return Ok(());
        }
        if !self.files.contains_key(&target.region) {
            let name = |extension: &str| -> PathBuf {
                let host = region.host.to_string().replace(':', "-");
                self.folder
                    .join(format!("{:06}-{host}-{:#x}-{}.{extension}", region.id, region.key, region.epoch))
            };
            let create =
                |path: PathBuf| OpenOptions::new().write(true).create(true).truncate(true).open(path);
            let content = create(name("bin"))?;
            content.set_len(span)?;
            let mut map = BufWriter::new(create(name("map"))?);
            writeln!(map, "# offset 0 is address {base:#x}; offset, length, frame, access; then the holes")?;
            self.files.insert(target.region, (content, map));
        }
        let Some((content, map)) = self.files.get_mut(&target.region) else { return Ok(()) };
        let offset = target.address - base;
        content.seek(SeekFrom::Start(offset))?;
        content.write_all(bytes)?;
        let how = match access {
            Access::Written => "written",
            Access::Read => "read",
            Access::Filled => "filled",
            Access::Found => "found",
        };
        writeln!(map, "{offset} {} {} {how}", bytes.len(), placement.frame)
    }

    fn finish(mut self) -> std::io::Result<()> {
        for (id, (_, map)) in &mut self.files {
            for (start, end) in self.known[id].holes() {
                writeln!(map, "{start} {} - hole", end - start)?;
            }
            map.flush()?;
        }
        self.failed.map_or(Ok(()), Err)
    }
}

impl Sink for Writer<'_> {
    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(placement, bytes).err();
        }
    }
}
