use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::layout::{Counter, KINDS, RECORDS, Record, load_text, store_text};
use super::memory::{Own, View};
use super::process::own;
use super::view::{connections, totals};
use super::{Path, Statistics, Summary, close_left, is_left, is_name_of_file, left};
use crate::stream::Role;

static ALONE: Mutex<()> = Mutex::new(());

/// With a new file. Connections of other tests may count in it.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    super::forget();
    alone
}

/// Addresses that no other connection of these tests has.
fn ends(number: u16) -> (SocketAddr, SocketAddr) {
    (SocketAddr::from(([10, 0, 0, 1], number)), format!("[2001:db8::{number:x}]:443").parse().unwrap())
}

fn counted(number: u16, path: Path<'_>) -> Statistics {
    let statistics = Statistics::new(Role::Active);
    statistics.attach(path, || Some(ends(number)));
    statistics
}

fn shown(number: u16) -> Option<super::Connection> {
    connections(own().unwrap()).find(|shown| shown.ends == Some(ends(number)))
}

#[test]
fn a_connection_is_shown_until_it_is_closed() {
    let _alone = alone();
    let statistics = counted(1, Path::Undecided(""));
    statistics.record().sent_by_ring(10);
    statistics.record().sent_by_ring(5);
    statistics.record().received_by_tcp(7);
    statistics.set_path(Path::SharedMemory);
    statistics.set_peer(Some(42));
    let found = shown(1).unwrap();
    assert_eq!((found.path(), found.is_active, found.peer), (Path::SharedMemory, true, Some(42)));
    assert_eq!((found.count(Counter::RingSentBytes), found.count(Counter::RingSentCalls)), (15, 2));
    assert_eq!((found.count(Counter::TcpReceivedBytes), found.count(Counter::TcpReceivedCalls)), (7, 1));
    statistics.set_path(Path::Tcp("closed"));
    let total = || {
        let process = totals(own().unwrap());
        let kind = process.kinds().find(|kind| kind.path() == Path::Tcp("closed")).unwrap();
        (kind.open, kind.closed, kind.count(Counter::RingSentBytes), kind.count(Counter::TcpReceivedCalls))
    };
    assert_eq!(total(), (1, 0, 15, 1));
    drop(statistics);
    assert!(shown(1).is_none());
    assert_eq!(total(), (0, 1, 15, 1), "what is closed counts on");
}

#[test]
fn reasons_are_kinds() {
    let _alone = alone();
    for (number, reason) in [(10, "one reason"), (11, "another"), (12, "one reason")] {
        counted(number, Path::Undecided("")).set_path(Path::Tcp(reason));
    }
    let open = counted(13, Path::Tcp("one reason"));
    let process = totals(own().unwrap());
    let kind = process.kinds().find(|kind| kind.path() == Path::Tcp("one reason")).unwrap();
    assert_eq!((kind.open, kind.closed), (1, 2));
    let text = Summary::from(&process).to_string();
    assert!(text.contains(": 3 TCP: one reason\n") && text.contains(": 1 TCP: another\n"), "{text}");
    drop(open);
}

#[test]
fn more_reasons_than_there_is_room_for_are_others() {
    let _alone = alone();
    for number in 0..2 * KINDS {
        counted(20, Path::Tcp(&format!("reason {number}")));
    }
    let process = totals(own().unwrap());
    assert!(process.connections().1 >= 2 * KINDS as u64);
    assert_eq!(process.kinds().count(), KINDS);
}

#[test]
fn addresses_may_come_later() {
    let _alone = alone();
    let statistics = Statistics::new(Role::Passive);
    statistics.attach(Path::Undecided(""), || None);
    assert!(!statistics.is_complete() && shown(30).is_none());
    statistics.attach(Path::Undecided(""), || Some(ends(30)));
    assert!(statistics.is_complete());
    assert!(!shown(30).unwrap().is_active);
}

#[test]
fn one_that_is_not_followed_ends_with_its_descriptor() {
    let _alone = alone();
    let statistics = counted(40, Path::Tcp("of a test"));
    statistics.leave(1234);
    drop(statistics);
    assert!(shown(40).is_some() && is_left(1234) && left().any(|descriptor| descriptor == 1234));
    close_left(1234);
    assert!(shown(40).is_none() && !is_left(1234));
    close_left(1234);
    for descriptor in [-1, i32::MAX] {
        counted(41, Path::Undecided("")).leave(descriptor);
        assert!(shown(41).is_none() && !is_left(descriptor), "there is no place for it");
        close_left(descriptor);
    }
}

#[test]
fn a_record_is_used_again_and_says_nothing_of_the_last() {
    let _alone = alone();
    let first = counted(50, Path::SharedMemory);
    first.record().sent_by_ring(1 << 40);
    let number = shown(50).unwrap().number;
    drop(first);
    let second = counted(51, Path::Undecided(""));
    let found = shown(51).unwrap();
    assert_eq!((found.number, found.count(Counter::RingSentBytes), found.peer), (number, 0, None));
    drop(second);
}

#[test]
fn without_a_record_nothing_is_counted() {
    let _alone = alone();
    let all: Vec<_> = (0..RECORDS).map(|_| counted(60, Path::Undecided(""))).collect();
    let late = counted(61, Path::SharedMemory);
    late.record().sent_by_ring(1);
    assert!(late.is_complete(), "it is not tried again with each call");
    assert!(shown(61).is_none());
    assert!(totals(own().unwrap()).uncounted > 0);
    drop(all);
    drop(late);
    assert!(shown(60).is_none());
}

#[test]
fn words_that_belong_together_are_never_mixed() {
    let record = Record::new(0);
    let is_over = AtomicBool::new(false);
    // Each address has the same number everywhere.
    let of = |number: u16| {
        let end = SocketAddr::from(([number as u8; 4], u16::from(number as u8)));
        (end, end)
    };
    record.begin(true, Path::Undecided(""));
    record.set_ends(of(0));
    std::thread::scope(|scope| {
        for first in [0, 100] {
            let (record, is_over) = (&record, &is_over);
            scope.spawn(move || {
                for number in (0..100).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    record.set_ends(of(first + number));
                }
            });
        }
        let mut seen = std::collections::HashSet::new();
        let (begun, mut reads) = (Instant::now(), 0);
        // Until the others have had the processors too.
        while (reads < 200_000 || seen.len() < 2) && begun.elapsed() < Duration::from_secs(20) {
            reads += 1;
            let Some(facts) = record.read() else { continue };
            let (own, peers) = facts.ends().unwrap();
            assert_eq!(own, peers);
            assert_eq!(own, of(own.port()).0);
            seen.insert(own.port());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(seen.len() > 1, "nothing changed meanwhile");
    });
}

#[test]
fn a_record_that_is_being_changed_is_not_shown() {
    let record = Record::new(0);
    record.begin(true, Path::SharedMemory);
    assert!(record.read().is_some());
    record.sequence.fetch_add(1, Ordering::Relaxed);
    assert!(record.read().is_none());
}

#[test]
fn texts_are_cut_at_characters() {
    let record = Record::new(0);
    let long = format!("{}ä", "x".repeat(63));
    store_text(&record.reason, &long);
    assert_eq!(load_text(&record.reason)[..], [b"x".repeat(63), vec![0]].concat()[..]);
    record.begin(false, Path::Tcp("escape \u{1b}[2J"));
    let facts = record.read().unwrap();
    assert!(facts.reason.starts_with(b"escape"));
}

#[test]
fn a_reader_takes_the_file_and_no_other() {
    let _alone = alone();
    let statistics = counted(70, Path::SharedMemory);
    let find = || {
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok).find(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|link| is_name_of_file(link.as_os_str()))
        })
    };
    let path = find().expect("the file has a descriptor").path();
    let view = View::open(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(view.process(), u64::from(std::process::id()));
    assert!(view.connections().any(|found| found.ends == Some(ends(70))));
    assert_eq!(view.totals().process, u64::from(std::process::id()));
    drop(statistics);
    for other in ["/proc/self/exe", "/dev/zero"] {
        assert!(View::open(std::fs::File::open(other).unwrap()).is_err(), "{other}");
    }
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("rstream-statistics", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, size_of::<super::layout::Shared>() as u64).unwrap();
    assert!(View::open(&unsealed).is_err(), "its size can change");
    use rustix::fs::SealFlags;
    rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    assert!(View::open(&unsealed).is_err(), "it has no mark");
}

#[test]
fn another_file_is_made_after_a_fork() {
    // A place of its own stands for the process's.
    let place = Own::none();
    let first = place.make().unwrap() as *const _;
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    place.forget();
    assert!(place.get().is_none());
    assert_eq!(count(), before - 1, "the parent's descriptor is closed");
    assert_ne!(place.make().unwrap() as *const _, first);
    place.forget();
    place.forget();
}

#[test]
fn a_descriptor_that_the_application_took_is_left_alone() {
    let place = Own::none();
    place.make().unwrap();
    let number = place.number();
    let other = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the number is that of the file just made, which nothing else uses; the application does this.
    #[allow(unsafe_code)]
    let taken = unsafe {
        assert_eq!(libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), number), number);
        <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(number)
    };
    place.forget();
    assert!(taken.metadata().is_ok(), "it is open still");
}

#[test]
fn names_of_other_files_are_not_taken() {
    for (name, expected) in [
        ("/memfd:rstream-statistics (deleted)", true),
        ("/memfd:rstream-ring (deleted)", false),
        ("/tmp/rstream-statistics", false),
        ("socket:[1]", false),
    ] {
        assert_eq!(is_name_of_file(name.as_ref()), expected, "{name}");
    }
}
