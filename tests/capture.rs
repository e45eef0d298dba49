//! The embedded device's traffic, captured. Wireshark decodes it as MPA, DDP and RDMAP, with valid CRCs if
//! they are on. `rdmacap` reconstructs the stream that was sent.

mod support;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use rdma_testkit::skip;
use rdmacap::file::{Decoder, Item, Step};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{Config, Finding, Kind, Operation, Outcome, Session, Severity, Side, Sink};
use rustix::process::{Pid, Signal, kill_process};
use support::tshark::{checksums, packets, values};
use support::{
    Receiver, Running, program, programs, sample_file, scratch, send, sent_checksum, with_provider,
};

/// Long enough for many frames, and short enough that the capture loses none.
const LENGTH: usize = 1_000_003;

/// A capture of one TCP port on the loopback device.
struct Capture {
    running: Running,
    port: u16,
    file: PathBuf,
}

impl Capture {
    fn start(folder: &Path, port: u16) -> Result<Self, String> {
        let file = folder.join("capture.pcapng");
        let mut command = Command::new("dumpcap");
        command.args(["-q", "-i", "lo", "-B", "64", "-f", &format!("tcp port {port}"), "-w"]).arg(&file);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        if let Err(error) = Command::new("dumpcap").arg("-v").output() {
            return Err(format!("dumpcap: {error}"));
        }
        let mut running = Running::start(command, "dumpcap");
        let mut errors = Vec::new();
        let mut lines = BufReader::new(running.stderr()).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with("File:") {
                thread::spawn(move || lines.for_each(drop));
                // dumpcap has opened the device. The kernel may need some time to install the filter.
                thread::sleep(Duration::from_millis(300));
                return Ok(Self { running, port, file });
            }
            errors.push(line);
        }
        Err(errors.join("; "))
    }

    /// Ends the capture after everything is written. The port, whose receiver has ended, is kept meanwhile, or another
    /// test's receiver might get it.
    fn finish(self) -> PathBuf {
        let _kept = TcpListener::bind(("0.0.0.0", self.port)).expect("the port is free");
        thread::sleep(Duration::from_millis(500));
        let id = i32::try_from(self.running.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(id, Signal::INT).expect("dumpcap runs");
        self.running.finish();
        self.file
    }
}

/// Captures a copy that runs with these parameters. Returns `None` if capturing is not possible here.
fn capture_copy(test: &str, parameters: &[(&str, &str)], arguments: &[&str]) -> Option<PathBuf> {
    let folder = scratch(test);
    let sample = sample_file(&folder, LENGTH);
    // Data in shared memory does not use the loopback device.
    let copy = || {
        let mut command = program("stream_copy");
        command.env("FI_RSTREAM_SHM", "0").envs(parameters.iter().copied());
        command
    };
    let mut recv_arguments = vec!["-o", "/dev/null"];
    recv_arguments.extend_from_slice(arguments);
    let receiver = Receiver::start(copy(), &recv_arguments);
    let capture = match Capture::start(&folder, receiver.port) {
        Ok(capture) => capture,
        Err(reason) => {
            skip(test, &format!("no capture on the loopback device: {reason}"));
            return None;
        }
    };
    let mut command = copy();
    command.stdin(fs::File::open(&sample).expect("the sample"));
    sent_checksum(&send(command, receiver.port, "127.0.0.1", arguments));
    receiver.checksum();
    Some(capture.finish())
}

/// What the device writes itself, at each end.
#[test]
fn the_device_captures_what_it_carries() {
    let folder = scratch("the_device_captures_what_it_carries");
    let sample = sample_file(&folder, LENGTH);
    let copy = || {
        let mut command = program("stream_copy");
        // Shared memory is left alone without being told so.
        command.env("FI_RSTREAM_PCAP", folder.join("tap")).env("FI_RSTREAM_IWARP_CRC", "1");
        command
    };
    let receiver = Receiver::start(copy(), &["-o", "/dev/null"]);
    let mut command = copy();
    command.stdin(fs::File::open(&sample).expect("the sample"));
    sent_checksum(&send(command, receiver.port, "127.0.0.1", &[]));
    receiver.checksum();
    let captures = taps(&folder);
    assert_eq!(captures.len(), 2, "{captures:?}");
    for file in &captures {
        check_frames(file);
        let fpdus = values(file, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength").len();
        assert_eq!(checksums(file), (fpdus, 0));
    }
}

/// What processes captured that were told to write into the file `tap` of this folder.
fn taps(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    names.filter(|path| path.file_stem().is_some_and(|stem| stem == "tap")).collect()
}

/// Reads a capture. Answers how many bytes are left, of a record that is cut.
fn read(file: &Path, sink: &mut dyn Sink) -> usize {
    let bytes = fs::read(file).expect("the capture");
    let (mut decoder, mut session, mut at) = (Decoder::new(), Session::new(Config::default()), 0);
    while let Step::Took(length, item) = decoder.step(&bytes[at..]).expect("a capture") {
        if let Some(Item::Record(record)) = item {
            session.feed(&record, sink);
        }
        at += length;
    }
    session.finish(sink);
    bytes.len() - at
}

/// Operations, and all that is wrong.
#[derive(Default)]
struct Found {
    operations: Vec<Operation>,
    findings: Vec<Finding>,
}

impl Sink for Found {
    fn ended(&mut self, operation: &Operation) {
        self.operations.push(operation.clone());
    }

    fn finding(&mut self, finding: &Finding) {
        if finding.topic.severity() != Severity::Note {
            self.findings.push(finding.clone());
        }
    }
}

/// What the conformance program sends between message endpoints: every operation is there and whole, with
/// immediate data of 64 bits, and no fault is seen where there is none.
#[test]
fn messages_and_remote_memory_are_in_the_devices_capture() {
    let folder = scratch("messages_and_remote_memory_are_in_the_devices_capture");
    let mut command = program("conformance");
    command.args(["every_length", "scatter_and_gather", "each_call", "no_bytes", "levels", "truncation"]);
    command.args(["both_pause", "scatter", "writes_with_data", "many_reads", "order"]);
    let output = command.env("FI_RSTREAM_PCAP", folder.join("tap")).output().expect("conformance starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut all = Found::default();
    taps(&folder).iter().for_each(|file| assert_eq!(read(file, &mut all), 0));
    assert_eq!(all.findings, []);
    let is_over = |operation: &&Operation| {
        matches!(operation.outcome, Outcome::Acked | Outcome::Answered) && operation.missing.is_empty()
    };
    assert_eq!(all.operations.iter().find(|operation| !is_over(operation)), None);
    let of_kind = |kind| all.operations.iter().filter(move |operation| operation.kind == kind);
    for kind in [Kind::Send, Kind::Write] {
        let longest = of_kind(kind).filter_map(|operation| operation.immediate).max();
        assert_eq!(longest, Some(u64::MAX), "{kind:?}");
    }
    for kind in [Kind::Read, Kind::Immediate] {
        assert!(of_kind(kind).count() > 0, "{kind:?}");
    }
}

/// A file that can take no more: the copy goes on, and the capture says that it does not have all of it.
#[test]
fn a_capture_that_finds_no_room_ends_in_a_record() {
    let folder = scratch("a_capture_that_finds_no_room_ends_in_a_record");
    let sample = sample_file(&folder, LENGTH);
    let receiver = Receiver::start(program("stream_copy"), &["-o", "/dev/null"]);
    let mut command = with_provider(Command::new("sh"));
    command
        .args(["-c", "trap '' XFSZ; ulimit -f 256; exec \"$@\"", "sh"])
        .arg(programs().join("stream_copy"));
    command.env("FI_RSTREAM_PCAP", folder.join("tap")).env("FI_LOG_LEVEL", "warn");
    command.stdin(fs::File::open(&sample).expect("the sample"));
    let output = send(command, receiver.port, "127.0.0.1", &[]);
    assert_eq!(sent_checksum(&output), receiver.checksum());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("the capture ends before its connections do").count(), 1, "{said}");
    let (captures, mut found) = (taps(&folder), Found::default());
    assert!(read(&captures[0], &mut found) > 0);
    assert!(found.operations.len() > 3 && found.findings.is_empty(), "{:?}", found.findings);
}

/// The stream that `rdmacap` reconstructs.
#[derive(Default)]
struct Copied {
    sent: Vec<u8>,
    ended: [bool; 2],
    closed: bool,
    findings: Vec<Finding>,
}

impl StreamSink for Copied {
    fn data(&mut self, _connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        if from == Side::A {
            assert_eq!(offset, self.sent.len() as u64, "no hole");
            self.sent.extend_from_slice(bytes);
        }
    }

    fn told(&mut self, _connection: u32, from: Side, told: &rdmacap::rstream::Told) {
        self.ended[from as usize] = told.end;
        self.closed |= told.close;
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }
}

/// The stream in the capture is the file that was sent, and nothing broke the protocol.
fn check_stream(file: &Path) {
    let mut streams = Streams::new(Copied::default(), 64 << 20);
    read(file, &mut streams);
    let Copied { sent, ended, closed, findings } = streams.sink;
    assert_eq!(findings, []);
    // Both sides have sent END, or one side CLOSE.
    assert!(closed || ended == [true, true], "{ended:?}");
    let sample = fs::read(file.with_file_name("sample")).expect("the sample");
    assert!(sent.windows(LENGTH).any(|window| window == sample), "{} bytes were sent", sent.len());
}

/// The checks that hold with and without CRCs.
fn check_frames(file: &Path) {
    check_stream(file);
    assert_eq!(packets(file, "iwarp_mpa.req"), 1);
    assert_eq!(packets(file, "iwarp_mpa.rep"), 1);
    assert_eq!(packets(file, "iwarp_mpa.rej_flag == 1"), 0);
    assert_eq!(packets(file, "iwarp_mpa.marker_flag == 1"), 0);
    assert_eq!(packets(file, "_ws.malformed || _ws.unreassembled || iwarp_mpa.bad_length"), 0);
    assert_eq!(packets(file, "iwarp_mpa.res.not_set0"), 0);
    assert_eq!(packets(file, "tcp.analysis.lost_segment"), 0, "the capture is not complete");
    let versions = values(file, "iwarp_ddp_rdmap", "iwarp_ddp.dv");
    assert!(versions.len() > 20, "{} DDP segments", versions.len());
    assert!(versions.iter().all(|version| version == "1"));
    assert!(values(file, "iwarp_ddp_rdmap", "iwarp_rdma.version").iter().all(|version| version == "1"));
    assert_eq!(packets(file, "iwarp_rdma.terminate"), 0);
    // Tagged segments carry the payload once.
    assert!(packets(file, "iwarp_ddp.tagged_flag == 1") > 0);
    let fpdus = values(file, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength");
    let carried: usize = fpdus.iter().map(|length| length.parse::<usize>().expect("a length")).sum();
    assert!(carried > LENGTH, "{carried} bytes in FPDUs");
    assert!(carried < LENGTH + LENGTH / 5, "{carried} bytes in FPDUs");
}

/// [RFC 5040 6.1-1] [RFC 5044 4.4-1, 7.1.1-5, 7.1.1-8]
#[test]
fn frames_with_crc() {
    let Some(file) = capture_copy("frames_with_crc", &[("FI_RSTREAM_IWARP_CRC", "1")], &[]) else { return };
    check_frames(&file);
    assert_eq!(packets(&file, "iwarp_mpa.req && iwarp_mpa.crc_flag == 1"), 1);
    assert_eq!(packets(&file, "iwarp_mpa.rep && iwarp_mpa.crc_flag == 1"), 1);
    let fpdus = values(&file, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength").len();
    assert_eq!(checksums(&file), (fpdus, 0));
}

#[test]
fn frames_without_crc() {
    let Some(file) = capture_copy("frames_without_crc", &[("FI_RSTREAM_IWARP_CRC", "0")], &[]) else {
        return;
    };
    check_frames(&file);
    assert_eq!(packets(&file, "iwarp_mpa.crc_flag == 1"), 0);
    assert_eq!(checksums(&file), (0, 0));
}

#[test]
fn frames_of_the_iwarp_protocol() {
    let parameters = [("FI_RSTREAM_IWARP_CRC", "1")];
    let Some(file) = capture_copy("frames_of_the_iwarp_protocol", &parameters, &["-P", "iwarp"]) else {
        return;
    };
    check_frames(&file);
    let fpdus = values(&file, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength").len();
    assert_eq!(checksums(&file), (fpdus, 0));
    // Only operations of RFC 5040: writes (0) and sends (3).
    let operations = values(&file, "iwarp_ddp_rdmap", "iwarp_rdma.opcode");
    assert!(
        operations.iter().all(|operation| ["0x00", "0x03"].contains(&operation.as_str())),
        "{operations:?}"
    );
    assert!(operations.iter().any(|operation| operation == "0x00"));
    assert!(operations.iter().any(|operation| operation == "0x03"));
}

/// [RFC 5044 7.1.1-12] [RFC 6581 10-3]
#[test]
fn frames_of_mpa_revision_1() {
    let parameters = [("FI_RSTREAM_IWARP_CRC", "1"), ("FI_RSTREAM_IWARP_MPA_REVISION", "1")];
    let Some(file) = capture_copy("frames_of_mpa_revision_1", &parameters, &[]) else { return };
    check_frames(&file);
    assert_eq!(values(&file, "iwarp_mpa.req || iwarp_mpa.rep", "iwarp_mpa.rev"), ["1", "1"]);
    let fpdus = values(&file, "iwarp_mpa.fpdu", "iwarp_mpa.ulpdulength").len();
    assert_eq!(checksums(&file), (fpdus, 0));
}

/// The checks above can fail: after one bit of the payload is changed in the capture, its CRC is wrong.
#[test]
fn a_changed_bit_is_found() {
    let Some(file) = capture_copy("a_changed_bit_is_found", &[("FI_RSTREAM_IWARP_CRC", "1")], &[]) else {
        return;
    };
    let (good, bad) = checksums(&file);
    assert_eq!(bad, 0);
    let mut bytes = fs::read(&file).expect("the capture");
    let sample = fs::read(file.with_file_name("sample")).expect("the sample");
    let needle = &sample[LENGTH / 2..LENGTH / 2 + 32];
    let place =
        bytes.windows(needle.len()).position(|window| window == needle).expect("the payload in the capture");
    bytes[place] ^= 0x10;
    fs::write(&file, bytes).expect("the changed capture");
    assert_eq!(checksums(&file), (good - 1, 1));
}
