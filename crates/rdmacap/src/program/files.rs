//! Files that are written piece by piece, of which few are open at a time.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::iter;
use std::path::{Path, PathBuf};

/// Most files that are open.
const OPEN: usize = 64;

/// The files of a folder.
pub(crate) struct Files {
    folder: PathBuf,
    /// The one that was used last is at the end.
    open: Vec<(String, BufWriter<File>)>,
    made: HashSet<String>,
}

impl Files {
    /// Makes the folder.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned(), open: Vec::new(), made: HashSet::new() })
    }

    /// Whether nobody has asked for this file.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        !self.made.contains(name)
    }

    /// A file. Who has not moved in it is at its end, which is its start the first time.
    pub(crate) fn get(&mut self, name: &str) -> io::Result<&mut BufWriter<File>> {
        let last = match self.open.iter().rposition(|(open, _)| open == name) {
            Some(at) => self.open.remove(at),
            None => {
                if self.open.len() == OPEN {
                    self.open.remove(0).1.flush()?;
                }
                let new = self.made.insert(name.to_owned());
                let path = self.folder.join(name);
                let mut file = OpenOptions::new().write(true).create(true).truncate(new).open(path)?;
                file.seek(SeekFrom::End(0))?;
                (name.to_owned(), BufWriter::new(file))
            }
        };
        self.open.push(last);
        let at = self.open.len() - 1;
        Ok(&mut self.open[at].1)
    }

    /// A file that nobody has asked for, with this name or one that counts up from it.
    pub(crate) fn fresh(&mut self, begin: &str) -> io::Result<&mut BufWriter<File>> {
        let further = (2..).map(|count| format!("{begin}-{count}.bin"));
        let mut names = iter::once(format!("{begin}.bin")).chain(further);
        let name = names.find(|name| self.is_new(name)).unwrap_or_default();
        self.get(&name)
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.open.iter_mut().try_for_each(|(_, file)| file.flush())
    }
}
