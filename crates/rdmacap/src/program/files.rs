//! Files that are written piece by piece, of which few are open at a time.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Most files that are open.
const OPEN: usize = 64;

/// The files of a folder.
pub(crate) struct Files {
    folder: PathBuf,
    /// The one that was used last is at the end.
    open: Vec<(String, BufWriter<File>)>,
    made: HashSet<String>,
    /// How often a name was wanted that was taken.
    taken: HashMap<String, u64>,
}

impl Files {
    /// Makes the folder.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
        let (open, made, taken) = Default::default();
        Ok(Self { folder: folder.to_owned(), open, made, taken })
    }

    /// Whether nobody has asked for this file.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        !self.made.contains(name)
    }

    /// Writes to a file. Who does not move in it is at its end, which is its start the first time.
    pub(crate) fn write(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.folder.join(name);
        self.get(name, &path).and_then(act).map_err(|error| named(&path, &error))
    }

    fn get(&mut self, name: &str, path: &Path) -> io::Result<&mut BufWriter<File>> {
        let last = match self.open.iter().rposition(|(open, _)| open == name) {
            Some(at) => self.open.remove(at),
            None => {
                if self.open.len() == OPEN {
                    self.open.remove(0).1.flush()?;
                }
                let new = self.made.insert(name.to_owned());
                let mut file = OpenOptions::new().write(true).create(true).truncate(new).open(path)?;
                file.seek(SeekFrom::End(0))?;
                (name.to_owned(), BufWriter::new(file))
            }
        };
        self.open.push(last);
        let at = self.open.len() - 1;
        Ok(&mut self.open[at].1)
    }

    /// Writes a file that nobody has asked for, with this name or one that counts up from it.
    pub(crate) fn write_fresh(&mut self, begin: &str, bytes: &[u8]) -> io::Result<()> {
        let mut name = format!("{begin}.bin");
        while !self.is_new(&name) {
            let taken = self.taken.entry(begin.to_owned()).or_insert(1);
            *taken += 1;
            name = format!("{begin}-{taken}.bin");
        }
        self.write(&name, |file| file.write_all(bytes))
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let folder = &self.folder;
        self.open
            .iter_mut()
            .try_for_each(|(name, file)| file.flush().map_err(|error| named(&folder.join(name), &error)))
    }
}

/// An error that says what it is about.
pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
