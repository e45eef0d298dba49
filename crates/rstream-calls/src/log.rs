//! What this library writes to standard error: what becomes of connections (`RSTREAM_SOCKETS_VERBOSE`), what
//! was counted (`RSTREAM_SOCKETS_STATISTICS`), and faults of the settings.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rstream_sockets::Report;
use rstream_sockets::statistics::write_summary;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

/// Whether lines are wanted.
fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("RSTREAM_SOCKETS_VERBOSE").is_some_and(|value| value != "0"))
}

/// Writes one line, at once, so that those of several processes do not mix.
pub(crate) fn write(report: Report<'_>) {
    if is_on() {
        let line = format!("rstream[{}]: {report}\n", std::process::id());
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}

/// The file that was standard error when the program began: its device and number.
static FIRST: [AtomicU64; 2] = [const { AtomicU64::new(u64::MAX) }; 2];

/// Notes what standard error is.
pub(crate) fn note_standard_error() {
    if let Ok(status) = fstat(rustix::stdio::stderr()) {
        FIRST[0].store(status.st_dev, Ordering::Relaxed);
        FIRST[1].store(status.st_ino, Ordering::Relaxed);
    }
}

/// Writes what the user has not asked for. A program may have closed standard error, and opened a file of its
/// own under that number, or a connection.
pub(crate) fn complain(text: &str) {
    let error = rustix::stdio::stderr();
    let Ok(status) = fstat(error) else { return };
    let is_first =
        [status.st_dev, status.st_ino] == [0, 1].map(|at: usize| FIRST[at].load(Ordering::Relaxed));
    let is_log = match FileType::from_raw_mode(status.st_mode) {
        FileType::CharacterDevice | FileType::Fifo => true,
        FileType::RegularFile => fcntl_getfl(error).is_ok_and(|flags| flags.contains(OFlags::APPEND)),
        _ => false,
    };
    if is_first || is_log {
        let mut lines = String::new();
        for line in text.lines() {
            let _ = writeln!(lines, "rstream[{}]: {line}", std::process::id());
        }
        let _ = rustix::io::write(error, lines.as_bytes());
    }
}

/// At the end of the process: writes what was counted, if that is wanted.
pub(crate) fn write_statistics() {
    if std::env::var_os("RSTREAM_SOCKETS_STATISTICS").is_some_and(|value| value != "0") {
        write_summary(|text| {
            let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        });
    }
}
