//! The program among others: input that goes on, output that nobody reads, files that cannot be read or written
//! to their end, and options that mean nothing.

mod wire;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use iwarp_wire::rdmap::Opcode;
use wire::fixture::path;
use wire::iwarp::{Plan, Wire};
use wire::pcap;

const PLAN: Plan =
    Plan { seed: 0, operations: 0, checksums: false, markers: false, mulpdu: 1400, mss: 1448, aligned: true };

fn rdmacap(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmacap")).args(arguments).output();
    output.expect("the program starts")
}

/// A command that reads standard input, with pipes to both sides.
fn piped(command: &str) -> Child {
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmacap"));
    program.args([command, "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    program.spawn().expect("the program starts")
}

fn fixture(name: &str) -> String {
    path(name).display().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder for this test's files.
fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A capture of sends of `a`, each acknowledged, and of what came before.
fn sends(wire: &mut Wire, count: u32) -> Vec<u8> {
    for _ in 0..count {
        wire.untagged(0, Opcode::Send, 0, &[7; 64]);
        wire.acknowledge(1);
    }
    let frames: Vec<_> = wire.frames.drain(..).map(|segment| segment.frame).collect();
    pcap(&frames)
}

const FILE_HEADER: usize = 24;

#[test]
fn a_reader_that_has_seen_enough_ends_the_reading() {
    let mut child = piped("ops");
    let mut input = child.stdin.take().expect("a pipe");
    drop(child.stdout.take());
    let mut wire = Wire::new(PLAN);
    wire.open([b"", b""]);
    input.write_all(&sends(&mut wire, 1)).expect("the program reads");
    let rounds = (0..2000).take_while(|_| input.write_all(&sends(&mut wire, 100)[FILE_HEADER..]).is_ok());
    assert!(rounds.count() < 2000, "it reads on");
    assert_eq!(child.wait().expect("the program").code(), Some(0));
}

/// What is captured now is shown now, although the capture goes on.
#[test]
fn what_is_said_is_shown_before_more_is_read() {
    let mut child = piped("ops");
    let mut input = child.stdin.take().expect("a pipe");
    let mut wire = Wire::new(PLAN);
    wire.open([b"", b""]);
    input.write_all(&sends(&mut wire, 30)).expect("the program reads");
    let (tell, told) = mpsc::channel();
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let reader = thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let next = || told.recv_timeout(Duration::from_secs(30)).expect("a line");
    assert!(next().starts_with("conn op"));
    assert!(next().contains("send         a->b"));
    drop((input, told));
    let _ = reader.join();
    let _ = child.wait();
}

/// A signal ends the reading: what is known is shown, although who writes goes on.
#[test]
fn an_interrupt_ends_the_reading_and_a_second_one_the_program() {
    let signal = |child: &Child, name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    };
    let begin = |command: &str, wire: &mut Wire| {
        let mut child = piped(command);
        let mut input = child.stdin.take().expect("a pipe");
        wire.open([b"", b""]);
        input.write_all(&sends(wire, 30)).expect("the program reads");
        (child, input)
    };
    for name in ["-INT", "-TERM"] {
        let mut wire = Wire::new(PLAN);
        let (mut child, mut input) = begin("ops", &mut wire);
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        // It has begun to read.
        assert!(lines.by_ref().take(2).count() == 2);
        signal(&child, name);
        // What was captured until then may still come.
        input.write_all(&sends(&mut wire, 5)[FILE_HEADER..]).expect("the program reads");
        assert_eq!(lines.count(), 35 - 1, "{name}");
        assert_eq!(child.wait().expect("the program").code(), Some(0), "{name}");
    }
    let (mut child, input) = begin("ops", &mut Wire::new(PLAN));
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().is_some());
    (0..2).for_each(|_| signal(&child, "-INT"));
    // Two of a kind that come at once may be one: the reading has ended then.
    assert!(matches!(child.wait().expect("the program").code(), Some(0 | 130)));
    drop(input);
}

#[test]
fn a_verdict_is_one_although_nobody_reads_it() {
    let mut child = piped("check");
    drop(child.stdout.take());
    let capture = std::fs::read(path("siw-terminate")).expect("a file");
    child.stdin.take().expect("a pipe").write_all(&capture).expect("the program reads");
    assert_eq!(child.wait().expect("the program").code(), Some(1));
}

/// A block that none can be, behind a whole capture: what is before it is told, and where it is.
#[test]
fn what_precedes_a_damage_is_told() {
    let folder = scratch("damage");
    let whole = std::fs::read(path("siw-rping")).expect("a file");
    let file = folder.join("damaged.pcapng");
    std::fs::write(&file, [&whole[..], &[6, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]].concat())
        .expect("a file");
    let name = file.to_str().expect("UTF-8");
    for command in ["info", "ops", "regions", "messages", "stats", "check"] {
        let (damaged, undamaged) = (rdmacap(&[command, name]), rdmacap(&[command, &fixture("siw-rping")]));
        assert_eq!(text(&damaged.stdout), text(&undamaged.stdout), "{command}");
        assert_eq!(damaged.status.code(), Some(3), "{command}");
        let place = format!("{name}: a record of 4294967295 bytes");
        let said = text(&damaged.stderr);
        assert!(said.contains(&place) && said.contains(&format!("{} bytes into", whole.len())), "{said}");
    }
    // The files of regions, for which it is read twice; and another file beside it.
    let out = folder.join("out");
    let output = rdmacap(&["regions", "-w", out.to_str().expect("UTF-8"), name, &fixture("siw-terminate")]);
    assert_eq!(output.status.code(), Some(3));
    assert!(std::fs::read_dir(&out).expect("a folder").count() > 1);
    let output = rdmacap(&["ops", name, &fixture("siw-terminate")]);
    assert!(text(&output.stdout).contains("terminated:invalid STag"), "{}", text(&output.stdout));
}

#[test]
fn what_cannot_be_read_is_status_3() {
    let folder = scratch("unreadable");
    let file = folder.join("text");
    std::fs::write(&file, "this is no capture").expect("a file");
    for arguments in [
        vec!["check", file.to_str().unwrap()],
        vec!["check", "/nowhere"],
        vec!["chek", "x"],
        vec!["ops"],
        vec![],
    ] {
        let output = rdmacap(&arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// Statistics of interfaces, in pcapng: each counts from the beginning, so that what an earlier one says is in it.
#[test]
fn frames_that_interfaces_dropped_are_counted_once_and_however_many() {
    let folder = scratch("dropped");
    let block = |kind: u32, body: &[u32]| {
        let length = 12 + 4 * body.len() as u32;
        let words = [&[kind, length], body, &[length]].concat();
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let statistics = |interface: u32, dropped: u64| {
        block(5, &[interface, 0, 0, 5 | 8 << 16, dropped as u32, (dropped >> 32) as u32, 0])
    };
    // A second interface.
    let begin = [std::fs::read(path("rxe-rping")).expect("a capture"), block(1, &[1, 0])].concat();
    for (told, count) in [
        (&[(0, 8)][..], 8),
        (&[(0, 3), (0, 8), (0, 8)], 8),
        (&[(0, 3), (1, 5), (0, 4)], 9),
        (&[(0, u64::MAX), (1, u64::MAX)], u64::MAX),
    ] {
        let blocks = told.iter().flat_map(|(interface, dropped)| statistics(*interface, *dropped));
        let file = folder.join("dropped.pcapng");
        std::fs::write(&file, begin.iter().copied().chain(blocks).collect::<Vec<u8>>()).expect("a file");
        let output = rdmacap(&["check", file.to_str().expect("UTF-8")]);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("the interface dropped {count} frames")), "{told:?}: {said}");
    }
}

#[test]
fn what_cannot_be_written_is_named() {
    let folder = scratch("written");
    let file = folder.join("file");
    std::fs::write(&file, "").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let capture = fixture("nfs-siw");
    for (arguments, name) in [
        (&["rpc", "--pcap", "/dev/full"][..], "/dev/full"),
        (&["rpc", "--pcap", "/dev/null/file"], "/dev/null/file"),
        (&["rpc", "-w", file], file),
        (&["regions", "-w", file], file),
        (&["messages", "-w", "/proc"], "/proc/1-"),
    ] {
        let output = rdmacap(&[arguments, &[&capture]].concat());
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(text(&output.stderr).starts_with(&format!("rdmacap: {name}")), "{}", text(&output.stderr));
    }
    let full = std::fs::File::create("/dev/full").expect("a device");
    let mut program = Command::new(env!("CARGO_BIN_EXE_rdmacap"));
    let output = program.args(["check", &capture]).stdout(full).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).starts_with("rdmacap: standard output: "), "{}", text(&output.stderr));
}

/// An option without a meaning is refused: who gives it waits for files that never come.
#[test]
fn options_of_other_commands_are_refused() {
    let all = ["info", "ops", "regions", "messages", "streams", "rpc", "stats", "check"];
    for (option, commands) in [
        (&["--key", "1"][..], &["ops", "regions"][..]),
        (&["--failed"], &["ops"]),
        (&["--write", "/dev/null/folder"], &["regions", "messages", "streams", "rpc"]),
        (&["--at", "1"], &["regions"]),
        (&["--pcap", "/dev/null/file"], &["rpc"]),
        (&["--expect-clean"], &["check"]),
        (&["--conn", "1"], &all),
        (&["--no-icrc"], &all),
    ] {
        for command in all {
            let output = rdmacap(&[&[command], option, &["/nowhere/capture"]].concat());
            let refused = format!("rdmacap: {command} has no {}", option[0]);
            let said = text(&output.stderr);
            assert_eq!(said.starts_with(&refused), !commands.contains(&command), "{said}");
            assert_eq!(output.status.code(), Some(3));
        }
    }
}

#[test]
fn check_is_about_one_connection_if_that_is_asked_for() {
    let lines = |name: &str, conn: &str| {
        let output = rdmacap(&["check", "--conn", conn, &fixture(name)]);
        (output.status.code(), text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let (_, second) = lines("rxe-wrap", "2");
    assert_eq!(
        second,
        [
            "note: partial: connection 2, frame 115: its beginning is not in the capture (2 times)",
            "clean: 1 connections, 5 operations, 0 of them faulty"
        ]
    );
    // Nothing is wrong with another one than that which was terminated.
    assert_eq!(lines("siw-terminate", "1").0, Some(1));
    assert_eq!(
        lines("siw-terminate", "2"),
        (Some(0), vec!["clean: 0 connections, 0 operations, 0 of them faulty".to_owned()])
    );
}

/// Calls that have one number: each message has a file, and finds its name at once.
#[test]
fn files_of_one_name_do_not_take_ever_longer() {
    const CALLS: u32 = 8000;
    let folder = scratch("names");
    let mut wire = Wire::new(PLAN);
    wire.open([b"", b""]);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let header = [7, 1, 32, 0, 0, 0, 0];
    let call = words(&[&header[..], &[7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]].concat());
    let reply = words(&[&header[..], &[7, 1, 0, 0, 0, 0]].concat());
    for _ in 0..CALLS {
        wire.untagged(0, Opcode::Send, 0, &call);
        wire.untagged(1, Opcode::Send, 0, &reply);
    }
    let frames: Vec<_> = wire.frames.into_iter().map(|segment| segment.frame).collect();
    let (file, out) = (folder.join("calls.pcap"), folder.join("out"));
    std::fs::write(&file, pcap(&frames)).expect("a file");
    // What the file system takes is not the program's.
    let command =
        format!("{} rpc -w {} {}; times", env!("CARGO_BIN_EXE_rdmacap"), out.display(), file.display());
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    let said = text(&output.stdout);
    let own = said.lines().last().and_then(|children| children.split_whitespace().next()).expect("times");
    let (minutes, seconds) = own.trim_end_matches('s').split_once('m').expect("minutes");
    let seconds =
        60.0 * minutes.parse::<f64>().expect("a number") + seconds.parse::<f64>().expect("a number");
    assert!(seconds < 2.5, "{seconds} s: {}", text(&output.stderr));
    assert!(out.join(format!("1-a-00000007-reply-{CALLS}.bin")).exists());
    assert!(!out.join(format!("1-a-00000007-reply-{}.bin", CALLS + 1)).exists());
    let _ = std::fs::remove_dir_all(&folder);
}
