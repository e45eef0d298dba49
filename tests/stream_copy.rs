//! `stream_copy` between two processes, through stock libfabric and over plain TCP: files arrive complete,
//! failures are reported, and no partial file remains.

mod support;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Receiver, program, programs, same_content, sample_file, scratch, send, sent_checksum};

/// A length that is no multiple of a call's size.
const LENGTH: usize = 5_000_011;

/// Copies a file from one process to another, and compares the files and the checksums.
fn copies(test: &str, host: &str, recv_arguments: &[&str], send_arguments: &[&str]) {
    let folder = scratch(test);
    let (sample, copy) = (sample_file(&folder, LENGTH), folder.join("copy"));
    let mut arguments = vec!["-o", path_text(&copy)];
    arguments.extend_from_slice(recv_arguments);

    let receiver = Receiver::start(program("stream_copy"), &arguments);
    let mut command = program("stream_copy");
    command.stdin(fs::File::open(&sample).expect("the sample"));
    let sent = sent_checksum(&send(command, receiver.port, host, send_arguments));
    assert_eq!(receiver.checksum(), sent);
    assert!(same_content(&sample, &copy));
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn copies_over_ipv4() {
    copies("copy_ipv4", "127.0.0.1", &[], &[]);
}

#[test]
fn copies_over_ipv6() {
    copies("copy_ipv6", "::1", &["-a", "::"], &[]);
}

#[test]
fn copies_with_the_iwarp_protocol() {
    copies("copy_iwarp", "127.0.0.1", &["-P", "iwarp"], &["-P", "iwarp"]);
}

#[test]
fn copies_while_spinning() {
    copies("copy_spin", "127.0.0.1", &["-s"], &["-s"]);
}

#[test]
fn copies_with_odd_sizes() {
    let sizes = ["-b", "7919", "-S", "5003", "-R", "5003", "-Q", "5"];
    copies("copy_sizes", "127.0.0.1", &sizes, &["-b", "100003", "-R", "4k", "-Q", "1024"]);
}

#[test]
fn copies_over_plain_tcp() {
    copies("copy_tcp", "127.0.0.1", &["-t"], &["-t"]);
    copies("copy_tcp_spin", "127.0.0.1", &["-t", "-s"], &["-t", "-s", "-b", "1m"]);
}

#[test]
fn copies_an_empty_file() {
    let folder = scratch("copy_empty");
    let (sample, copy) = (sample_file(&folder, 0), folder.join("copy"));
    let receiver = Receiver::start(program("stream_copy"), &["-o", path_text(&copy)]);
    let mut command = program("stream_copy");
    command.stdin(fs::File::open(&sample).expect("the sample"));
    sent_checksum(&send(command, receiver.port, "127.0.0.1", &[]));
    receiver.checksum();
    assert_eq!(fs::metadata(&copy).expect("the copy").len(), 0);
}

#[test]
fn pipes_from_and_to_standard_streams() {
    let folder = scratch("copy_pipes");
    let sample = sample_file(&folder, LENGTH);
    let copy = folder.join("copy");
    let shell = format!(
        "exec '{}' recv -t -q -p 0 2> '{}' > '{}'",
        programs().join("stream_copy").display(),
        folder.join("log").display(),
        copy.display()
    );
    let mut receiver = Command::new("sh").args(["-c", &shell]).spawn().expect("sh starts");
    let port = (0..200).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::read_to_string(folder.join("log")).ok()?.lines().next()?.rsplit(' ').next()?.parse().ok()
    });
    let mut sender = Command::new(programs().join("stream_copy"))
        .args(["send", "-t", "-q", "-p", &u16::to_string(&port.expect("a port")), "127.0.0.1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("stream_copy starts");
    let bytes = fs::read(&sample).expect("the sample");
    sender.stdin.take().expect("a pipe").write_all(&bytes).expect("the pipe takes all");
    assert!(sender.wait().expect("its end").success());
    assert!(receiver.wait().expect("its end").success());
    assert!(same_content(&sample, &copy));
}

#[test]
fn connecting_without_a_listener_is_reported() {
    for transport in [&["-t"][..], &[]] {
        // No process listens on port 1.
        let output = send(program("stream_copy"), 1, "127.0.0.1", transport);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("refused"), "{errors}");
    }
}

#[test]
fn a_foreign_client_leaves_no_file() {
    let folder = scratch("copy_stranger");
    let copy = folder.join("copy");
    let receiver = Receiver::start(program("stream_copy"), &["-t", "-o", path_text(&copy)]);
    let mut client = TcpStream::connect(("127.0.0.1", receiver.port)).expect("the receiver listens");
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the socket takes the request");
    assert_eq!(receiver.status().code(), Some(1));
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_sender_that_dies_leaves_no_file() {
    for transport in [&["-t"][..], &[]] {
        let folder = scratch("copy_killed");
        let copy = folder.join("copy");
        let mut arguments = vec!["-o", path_text(&copy)];
        arguments.extend_from_slice(transport);
        let receiver = Receiver::start(program("stream_copy"), &arguments);
        // More bytes than one call sends, without an end of input.
        let mut sender = program("stream_copy")
            .args(["send", "-q", "-p", &receiver.port.to_string()])
            .args(transport)
            .arg("127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("stream_copy starts");
        sender.stdin.as_mut().expect("a pipe").write_all(&vec![7; 3 << 20]).expect("the pipe takes all");
        kill_process(Pid::from_child(&sender), Signal::KILL).expect("the sender can be killed");
        sender.wait().expect("its end");
        assert_eq!(receiver.status().code(), Some(1));
        assert_eq!(names(&folder), [""; 0]);
    }
}

#[test]
fn the_file_is_replaced_only_when_complete() {
    let folder = scratch("copy_replaced");
    let sample = sample_file(&folder, LENGTH);
    let copy = folder.join("copy");
    fs::write(&copy, "what was there before").expect("an old file");
    let receiver = Receiver::start(program("stream_copy"), &["-o", path_text(&copy)]);
    assert_eq!(fs::read(&copy).expect("the old file"), b"what was there before");
    let mut command = program("stream_copy");
    command.stdin(fs::File::open(&sample).expect("the sample"));
    sent_checksum(&send(command, receiver.port, "127.0.0.1", &[]));
    receiver.checksum();
    assert!(same_content(&sample, &copy));
    assert_eq!(names(&folder), ["copy", "sample"]);
}

#[test]
fn wrong_arguments_show_the_usage() {
    for arguments in [&["walk"][..], &["send"], &["recv", "-b", "many"], &["send", "-P", "tcp", "h"], &[]] {
        let output = program("stream_copy").args(arguments).output().expect("stream_copy starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: stream_copy"));
    }
}
