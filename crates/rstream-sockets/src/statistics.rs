//! What a process counts of its connections, in a memory file that other processes can read.
//!
//! The file is made with the first connection. Another process finds it by name among the descriptors of
//! `/proc/PID/fd`, which the system shows to the same user and to root, and maps it for reading ([`View`]).
//! Nobody waits for anybody: no thread, no socket, no lock.
//!
//! Each connection has a record, to which its calls add. When it is closed, its record is added to the
//! total of its *kind*, which is the path that it had and the reason for that path.
//!
//! A forked process makes a file of its own with its first use of a connection, and counts what it does
//! itself.

mod layout;
#[allow(unsafe_code)]
mod memory;
mod process;
mod record;
mod summary;
mod view;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use layout::{Counter, Waits};
pub use memory::{View, is_name_of_file};
pub(crate) use process::forget;
pub use process::{close_left, is_left, left, waits};
pub use record::Looks;

pub use summary::{Summary, write_summary};
pub use view::{Connection, Kind, Path, Process};

use crate::stream::Role;
use layout::Record;
use memory::Place;

/// Where the calls of a connection are counted.
pub(crate) struct Statistics {
    role: Role,
    place: Place,
}

impl Statistics {
    /// Of a connection that is not counted yet.
    pub(crate) fn new(role: Role) -> Self {
        Self { role, place: Place::nowhere() }
    }

    #[inline]
    pub(crate) fn record(&self) -> &'static Record {
        self.place.record()
    }

    /// Whether it is counted, with its addresses, as far as that is possible.
    pub(crate) fn is_complete(&self) -> bool {
        self.record().has_ends()
    }

    /// Begins to count, if it does not, with a connection that has this path now. Notes the addresses, this
    /// side's first, as soon as they are known.
    pub(crate) fn attach(&self, path: Path<'_>, ends: impl FnOnce() -> Option<(SocketAddr, SocketAddr)>) {
        if self.is_complete() {
            return;
        }
        if !self.place.is_record() {
            let Some(record) = process::take_record() else { return self.place.give_up() };
            record.begin(self.role == Role::Active, path);
            if !self.place.set(record) {
                return process::discard_record(record);
            }
        }
        if let Some(ends) = ends() {
            self.record().set_ends(ends);
        }
    }

    pub(crate) fn set_path(&self, path: Path<'_>) {
        if self.place.is_record() {
            self.record().set_path(path);
        }
    }

    pub(crate) fn set_peer(&self, process: Option<u32>) {
        if self.place.is_record() {
            self.record().set_peer(process);
        }
    }

    /// The connection goes on without this library, by this descriptor: its record stays until
    /// [`close_left`].
    pub(crate) fn leave(&self, descriptor: i32) {
        if let Some(record) = self.place.take() {
            process::leave_record(record, descriptor);
        }
    }

    /// In a process that was forked: the record is the other's.
    pub(crate) fn detach(&self) {
        let _ = self.place.take();
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        if let Some(record) = self.place.take() {
            process::close_record(record);
        }
    }
}
