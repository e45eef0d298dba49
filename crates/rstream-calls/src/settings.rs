//! What the user has set: which connections are upgraded, and how.
//!
//! It is read with the first connection and not when the library is loaded: programs replace functions that
//! reading uses, and do not expect them to be called so early. No lock is taken: a fork or a signal handler
//! may come in between. Two threads may read at once; then one of them counts.

use std::ffi::{CString, OsString, c_int};
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicPtr, Ordering};

use rstream_sockets::settings::{Ends, Options, Program, Settings};
use rstream_sockets::{Kernel, Role, Socket};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::log;

/// The file for all users of the system.
const SYSTEM: &str = "/etc/rstream/sockets.conf";
/// The longest file that is read.
const LONGEST: usize = 1 << 20;
/// Faults of a file that are shown.
const SHOWN: usize = 8;

/// Null until it is read. It is never changed or dropped afterwards.
static KNOWN: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());

/// Whether the environment keeps all connections on TCP.
pub fn is_off() -> bool {
    std::env::var_os("RSTREAM_SOCKETS").is_some_and(|value| value == "off")
}

/// How a new connection is upgraded. `None`: it stays on TCP.
pub(crate) fn choose(fd: c_int, role: Role) -> Option<Options> {
    let settings = known();
    let ends = if settings.needs_ends() { ends(fd) } else { Ends::Unknown };
    settings.choose(role, ends)
}

fn ends(fd: c_int) -> Ends {
    // SAFETY: a number; the kernel says if it is no socket.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    Socket::new(socket, false).ends().map_or(Ends::Unknown, |(own, peers)| Ends::Known(own, peers))
}

fn known() -> &'static Settings {
    // SAFETY: null, or what was leaked below.
    if let Some(known) = unsafe { KNOWN.load(Ordering::Acquire).as_ref() } {
        return known;
    }
    let (settings, faults) = read();
    let new = Box::into_raw(Box::new(settings));
    match KNOWN.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            if !faults.is_empty() {
                log::complain(&faults);
            }
            // SAFETY: it stays for ever.
            unsafe { &*new }
        }
        Err(known) => {
            // SAFETY: it came from `Box::into_raw` above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: another thread's, which stays for ever.
            unsafe { &*known }
        }
    }
}

/// The settings, and what is wrong with them.
fn read() -> (Settings, String) {
    let mut settings = Settings::new(program());
    let mut faults = String::new();
    if is_off() {
        settings.forbid_rest();
        return (settings, faults);
    }
    match std::env::var_os("RSTREAM_SOCKETS") {
        Some(value) if !value.is_empty() && value != "on" => {
            settings.forbid_rest();
            let _ = writeln!(faults, "RSTREAM_SOCKETS is neither on nor off: all connections stay on TCP");
        }
        _ => {}
    }
    // The user's own file comes first.
    if let Some(path) = std::env::var_os("RSTREAM_SOCKETS_CONF").filter(|path| !path.is_empty()) {
        add(&mut settings, path, false, &mut faults);
    }
    add(&mut settings, SYSTEM.into(), true, &mut faults);
    (settings, faults)
}

/// Adds a file's rules. One that cannot be read may forbid anything.
fn add(settings: &mut Settings, path: OsString, may_be_missing: bool, faults: &mut String) {
    let shown = path.to_string_lossy().into_owned();
    let text = match contents(path) {
        Ok(text) => text,
        Err(Errno::NOENT | Errno::NOTDIR) if may_be_missing => return,
        Err(error) => {
            settings.forbid_rest();
            let _ = writeln!(faults, "{shown}: {error}; what it would decide stays on TCP");
            return;
        }
    };
    let found = settings.add(&String::from_utf8_lossy(&text));
    for fault in found.iter().take(SHOWN) {
        let _ = writeln!(
            faults,
            "{shown}:{}: {}; what this line and those after it would decide stays on TCP",
            fault.line, fault.what
        );
    }
    if found.len() > SHOWN {
        let _ = writeln!(faults, "{shown}: {} more faults", found.len() - SHOWN);
    }
}

/// A file's contents, by calls that are not the C library's.
fn contents(path: OsString) -> Result<Vec<u8>, Errno> {
    let path = CString::new(path.into_vec()).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(&path, flags, Mode::empty())?;
    let status = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Ok(text),
            Ok(length) if text.len() + length > LONGEST => return Err(Errno::FBIG),
            Ok(length) => text.extend_from_slice(&piece[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The names of the program: that of its file, and that by which it was started, which is a script's where
/// the file is that of the interpreter.
fn program() -> Program {
    let file = rustix::fs::readlink("/proc/self/exe", Vec::new()).unwrap_or_default();
    let file = String::from_utf8_lossy(file.as_bytes()).into_owned();
    // SAFETY: the call has no pointers.
    let started = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const std::ffi::c_char;
    let started = if started.is_null() {
        String::new()
    } else {
        // SAFETY: the kernel has put a text that ends with a zero there, which stays as long as the process.
        let started = unsafe { std::ffi::CStr::from_ptr(started) };
        String::from_utf8_lossy(started.to_bytes()).into_owned()
    };
    // What the kernel adds if the file was replaced since.
    Program::new([file.strip_suffix(" (deleted)").unwrap_or(&file), &started])
}
