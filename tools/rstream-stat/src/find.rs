//! Finds the files in which processes count.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rstream_sockets::statistics::{View, is_name_of_file};
use rustix::fs::{Mode, OFlags, open};

use crate::model::{Seen, Sight};

/// Looks at all processes.
///
/// # Errors
/// If there is no `/proc`.
pub(crate) fn look() -> io::Result<Sight> {
    let mut sight = Sight { processes: Vec::new(), hidden: Vec::new() };
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match process(pid, &entry.path()) {
            Ok(Some(seen)) => sight.processes.push(seen),
            // A thread of the system has no descriptors.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_systems(&entry.path()) => {
                sight.hidden.push(pid);
            }
            // It has no such file, or has ended.
            _ => {}
        }
    }
    sight.processes.sort_by_key(|seen| seen.pid);
    Ok(sight)
}

/// A process, if it counts something.
fn process(pid: u32, folder: &Path) -> io::Result<Option<Seen>> {
    for entry in fs::read_dir(folder.join("fd"))? {
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        let Some(view) = view(&path) else { continue };
        // A copy that was forked without a note has the file of the other.
        if view.process() == u64::from(inner_number(pid, folder)) {
            return Ok(Some(Seen {
                pid,
                program: name(folder),
                network: link(folder.join("ns/net")),
                totals: view.totals(),
                connections: view.connections().collect(),
            }));
        }
    }
    Ok(None)
}

fn view(path: &PathBuf) -> Option<View> {
    if !is_name_of_file(fs::read_link(path).ok()?.as_os_str()) {
        return None;
    }
    View::open(open_at_once(path)?).ok()
}

/// Opens a file for reading. It may be a pipe that some process has given the name, whose opening would wait.
fn open_at_once(path: &Path) -> Option<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The number that a process has for itself: in its namespace.
fn inner_number(pid: u32, folder: &Path) -> u32 {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

/// The name of a program, without what a terminal would take for a command.
fn name(folder: &Path) -> String {
    let name = fs::read(folder.join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim_end_matches('\n').chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn link(path: PathBuf) -> String {
    fs::read_link(path).map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether it is a thread of the system: the child of the one whose number is 2, or that one.
fn is_systems(folder: &Path) -> bool {
    let status = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let parent = status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
    parent == Some("2") || status.starts_with("2 ")
}

/// Why a process is not shown, if it is not.
pub(crate) fn why_not_shown(sight: &Sight, pid: u32) -> Option<&'static str> {
    if sight.processes.iter().any(|seen| seen.pid == pid) {
        None
    } else if !Path::new("/proc").join(pid.to_string()).exists() {
        Some("there is no such process")
    } else if sight.hidden.contains(&pid) {
        Some("it may not be read: it is another user's, or protects itself. Root may read all")
    } else {
        Some(
            "it counts nothing: it has had no TCP connection that could be upgraded, or rstream-run does not run it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_system_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("rstream-stat-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (stat, expected) in [
            ("2 (kthreadd) S 0 0 0", true),
            ("17 (kworker/0:1) S 2 0 0", true),
            ("23 (a) S 2) S 1 23 23", false),
            ("24 (redis-server) S 1 24 24", false),
            ("", false),
        ] {
            fs::write(folder.join("stat"), stat).unwrap();
            assert_eq!(is_systems(&folder), expected, "{stat}");
        }
        fs::write(folder.join("comm"), "a\u{1b}[2J\n").unwrap();
        assert_eq!(name(&folder), "a?[2J");
        fs::write(folder.join("status"), "Name:\ta\nNSpid:\t812\t7\n").unwrap();
        assert_eq!((inner_number(812, &folder), inner_number(812, Path::new("/nowhere"))), (7, 812));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_pipe_by_the_name_of_a_file_holds_nobody() {
        let pipe = std::env::temp_dir().join(format!("rstream-stat-pipe-{}", std::process::id()));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (say, said) = std::sync::mpsc::channel();
        let path = pipe.clone();
        std::thread::spawn(move || say.send(open_at_once(&path).map(|pipe| View::open(pipe).is_err())));
        let outcome = said.recv_timeout(std::time::Duration::from_secs(10));
        fs::remove_file(&pipe).unwrap();
        assert_eq!(outcome, Ok(Some(true)));
    }

    #[test]
    fn this_process_counts_nothing() {
        let sight = look().unwrap();
        assert!(why_not_shown(&sight, std::process::id()).unwrap().starts_with("it counts nothing"));
        assert_eq!(why_not_shown(&sight, u32::MAX), Some("there is no such process"));
    }
}
