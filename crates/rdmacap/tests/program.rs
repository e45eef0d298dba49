//! The program: its commands, what it says as JSON, and its exit status.

mod wire;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wire::fixture::{ALL, folder, frames, path};
use wire::pcap;

fn rdmacap(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmacap")).args(arguments).output();
    output.expect("the program starts")
}

fn fixture(name: &str) -> String {
    path(name).display().to_string()
}

/// The lines of JSON behind the first, which says what they are.
fn json(arguments: &[&str]) -> Vec<Value> {
    let output = rdmacap(&[arguments, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let head: Value = lines.next().expect("a first line");
    assert_eq!(
        (&head["format"], &head["version"], &head["command"]),
        (&"rdmacap".into(), &1.into(), &arguments[0].into())
    );
    lines.collect()
}

/// A folder for this test's files.
fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// What `check` says of each capture in the folder: its status, the same of `--expect-clean`, and its lines.
const VERDICTS: [(&str, i32, i32, &[&str]); ALL.len()] = [
    ("embedded-copy", 0, 0, &["clean: 1 connections, 7 operations, 0 of them faulty"]),
    (
        "embedded-copy-iwarp",
        0,
        2,
        &[
            "note: repeated: connection 1, frame 13: TCP of a sent a segment again",
            "clean: 1 connections, 11 operations, 0 of them faulty",
        ],
    ),
    ("embedded-messages", 0, 0, &["clean: 2 connections, 13 operations, 0 of them faulty"]),
    ("nfs-rxe", 0, 0, &["clean: 1 connections, 72 operations, 0 of them faulty"]),
    ("nfs-siw", 0, 0, &["clean: 1 connections, 72 operations, 0 of them faulty"]),
    ("rxe-atomics", 0, 0, &["clean: 2 connections, 32 operations, 0 of them faulty"]),
    ("rxe-headers", 0, 0, &["clean: 1 connections, 6 operations, 0 of them faulty"]),
    (
        "rxe-lossy",
        1,
        1,
        &[
            "error: network-loss: connection 1, frame 22: b sent the read request again, without a NAK: a \
             timeout, or a copy that the network made (2 times)",
            "errors in the traffic: 1 connections, 18 operations, 0 of them faulty",
        ],
    ),
    (
        "rxe-midstream",
        0,
        2,
        &[
            // And its end, which belongs to the handshake.
            "note: partial: connection 1, frame 26: its beginning is not in the capture (2 times)",
            "clean: 1 connections, 9 operations, 0 of them faulty",
        ],
    ),
    ("rxe-rping", 0, 0, &["clean: 1 connections, 12 operations, 0 of them faulty"]),
    ("rxe-rping-segments", 0, 0, &["clean: 1 connections, 6 operations, 0 of them faulty"]),
    (
        "rxe-wrap",
        0,
        2,
        &[
            "note: partial: connection 2, frame 115: its beginning is not in the capture (2 times)",
            "note: partial: connection 1, frame 115: its beginning is not in the capture (2 times)",
            "clean: 2 connections, 15 operations, 0 of them faulty",
        ],
    ),
    (
        "siw-lossy",
        1,
        1,
        &[
            "error: network-loss: connection 1, frame 14: a segment from a came 2185 us late",
            "errors in the traffic: 1 connections, 12 operations, 0 of them faulty",
        ],
    ),
    (
        "siw-midstream",
        0,
        2,
        &[
            "note: partial: connection 1, frame 18: its beginning is not in the capture",
            "clean: 1 connections, 6 operations, 0 of them faulty",
        ],
    ),
    ("siw-perftest", 0, 0, &["clean: 2 connections, 42 operations, 0 of them faulty"]),
    ("siw-rping", 0, 0, &["clean: 1 connections, 12 operations, 0 of them faulty"]),
    ("siw-rping-crc", 0, 0, &["clean: 1 connections, 6 operations, 0 of them faulty"]),
    (
        "siw-terminate",
        1,
        1,
        &[
            "error: terminate: connection 1, frame 13: a terminated the connection: invalid STag (layer 0, \
             type 1, code 0), about the read of frame 12",
            "note: key: connection 1, frame 13: key 0x2368264a of the read of frame 12 comes from frame 10, \
             byte 8",
            "errors in the traffic: 1 connections, 3 operations, 1 of them faulty",
        ],
    ),
];

#[test]
fn check_says_by_its_status_what_a_capture_is() {
    for (name, status, strict, lines) in VERDICTS {
        let output = rdmacap(&["check", &fixture(name)]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), said.lines().collect::<Vec<_>>()),
            (Some(status), lines.to_vec()),
            "{name}"
        );
        let output = rdmacap(&["check", "--expect-clean", &fixture(name)]);
        assert_eq!(output.status.code(), Some(strict), "{name}");
    }
}

#[test]
fn every_capture_in_the_folder_is_read_and_has_a_verdict() {
    let files = std::fs::read_dir(folder()).expect("a folder").map(|file| file.expect("a file").path());
    let captures = files.filter(|file| file.extension().is_none_or(|end| end != "md"));
    let mut captures: Vec<PathBuf> = captures.collect();
    captures.sort_by_key(|file| file.file_stem().map(ToOwned::to_owned));
    assert_eq!(captures, ALL.map(path), "wire/fixture.rs names all");
    assert_eq!(VERDICTS.map(|(name, ..)| name), ALL, "each has a verdict here");
}

#[test]
fn a_capture_that_is_not_whole_is_incomplete() {
    let folder = scratch("incomplete");
    let all = frames("rxe-rping-segments");
    // The middle packet of the write.
    let mut rest = all.clone();
    rest.remove(14);
    let file = folder.join("lost.pcap");
    std::fs::write(&file, pcap(&rest)).expect("a file");
    let output = rdmacap(&["check", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("1 packets of the write of frame 14"), "{said}");
    let lines = json(&["ops", file.to_str().unwrap(), "--failed"]);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["missing"], serde_json::json!([[4096, 8192]]));
    // A file that is cut in a record.
    let bytes = pcap(&all);
    std::fs::write(&file, &bytes[..bytes.len() - 3]).expect("a file");
    assert_eq!(rdmacap(&["check", file.to_str().unwrap()]).status.code(), Some(2));
    // One that begins after the handshake is clean, and not what --expect-clean expects.
    std::fs::write(&file, pcap(&all[5..])).expect("a file");
    assert_eq!(rdmacap(&["check", file.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(rdmacap(&["check", "--expect-clean", file.to_str().unwrap()]).status.code(), Some(2));
}

/// Colour is for a terminal that wants it; in a pipe there is neither colour nor progress.
#[test]
fn colour_is_for_terminals() {
    let capture = fixture("siw-terminate");
    let plain = rdmacap(&["check", &capture]);
    assert!(plain.stderr.is_empty() && !plain.stdout.contains(&0x1b));
    let on_terminal = |variables: &str| {
        let command = format!("{variables} {} check {capture}", env!("CARGO_BIN_EXE_rdmacap"));
        let output = Command::new("script").args(["-q", "-e", "-c", &command, "/dev/null"]).output().ok()?;
        assert_eq!(output.status.code(), Some(1));
        Some(String::from_utf8_lossy(&output.stdout).replace('\r', ""))
    };
    let (Some(colored), Some(uncolored)) = (on_terminal(""), on_terminal("NO_COLOR=1")) else {
        eprintln!("skipped colour_is_for_terminals: no script(1)");
        return;
    };
    assert!(colored.contains("\x1b[31merror: terminate:"), "{colored:?}");
    assert_eq!(uncolored, String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn operations_as_json() {
    let lines = json(&["ops", &fixture("rxe-rping-segments")]);
    assert_eq!(lines.len(), 6);
    let write = lines.iter().find(|line| line["op"] == "write").expect("a write");
    for (field, value) in [
        ("conn", serde_json::json!(1)),
        ("from", "b".into()),
        ("frames", serde_json::json!([14, 17])),
        ("key", "0x817".into()),
        ("addr", "0x560f0c750ca0".into()),
        ("len", 10_000.into()),
        ("imm", Value::Null),
        ("packets", 3.into()),
        ("resent", 0.into()),
        ("end", "acked".into()),
        ("missing", serde_json::json!([])),
    ] {
        assert_eq!(write[field], value, "{field}");
    }
    assert_eq!(json(&["ops", &fixture("rxe-rping-segments"), "--key", "0x979"]).len(), 1);
    assert_eq!(json(&["ops", &fixture("siw-perftest"), "--conn", "2"]).len(), 10);
}

#[test]
fn standard_input_and_several_files_are_one_capture() {
    let folder = scratch("merged");
    let all = frames("siw-rping-crc");
    // Each of two hosts has what it sends twice as often captured as not; together it is whole.
    let [a, b] = ["a", "b"].map(|name| folder.join(name));
    let of = |missing: usize| -> Vec<_> {
        all.iter().enumerate().filter(|(at, _)| at % 3 != missing).map(|(_, frame)| frame.clone()).collect()
    };
    std::fs::write(&a, pcap(&of(0))).expect("a file");
    std::fs::write(&b, pcap(&of(1))).expect("a file");
    let merged = json(&["ops", a.to_str().unwrap(), b.to_str().unwrap()]);
    let alone = json(&["ops", &fixture("siw-rping-crc")]);
    assert_eq!(merged, alone);

    let file = std::fs::File::open(path("siw-rping-crc")).expect("a file");
    let output = Command::new(env!("CARGO_BIN_EXE_rdmacap"))
        .args(["ops", "--json", "-"])
        .stdin(Stdio::from(file))
        .output()
        .expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), alone.len() + 1);
}

#[test]
fn regions_are_written_with_maps() {
    let folder = scratch("regions");
    let output = rdmacap(&["regions", "-w", folder.to_str().unwrap(), &fixture("siw-rping-crc")]);
    assert!(output.status.success());
    let written = std::fs::read(folder.join("000003-fd01--1-0xf0206900-1.bin")).expect("the write's");
    assert_eq!(written.len(), 10_000);
    assert!(written.starts_with(b"rdma-ping-0: ABCDEFGH"));
    let map = std::fs::read_to_string(folder.join("000003-fd01--1-0xf0206900-1.map")).expect("its map");
    assert!(map.contains("0 8908 18 written\n8908 1092 19 written\n"), "{map}");
    // Before the second segment came.
    let lines = json(&["regions", "--at", "18", &fixture("siw-rping-crc")]);
    let line = lines.iter().find(|line| line["key"] == "0xf0206900").expect("the region");
    assert_eq!((line["written"].as_u64(), line["span"].as_u64()), (Some(8908), Some(8908)));
}

#[test]
fn keys_are_traced_to_the_messages_that_advertised_them() {
    let source = |name: &str, key: &str| {
        let lines = json(&["regions", &fixture(name)]);
        let line = lines.into_iter().find(|line| line["key"] == key).expect("the region");
        line["advertised"].clone()
    };
    let plain = |frame, byte| serde_json::json!({"frame": frame, "byte": byte, "private_data": false, "message": null});
    assert_eq!(source("rxe-rping", "0x551"), plain(4, 8));
    assert_eq!(source("siw-rping-crc", "0xf0206900"), plain(17, 8));
    // perftest exchanges keys on a connection of its own.
    assert_eq!(source("siw-perftest", "0x28df5200"), plain(37, 16));
    let ring = source("embedded-copy", "0x6afff35d");
    assert_eq!((&ring["private_data"], &ring["byte"]), (&true.into(), &13.into()));
    assert_eq!(source("nfs-rxe", "0xa5f")["message"], "write chunk of RPC 0x61ae77f4");
    assert_eq!(source("nfs-rxe", "0x902")["message"], "read chunk of RPC 0x64ae77f4");
    // What failed says so by itself.
    let output = rdmacap(&["ops", "--failed", &fixture("siw-terminate")]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("terminated:invalid STag, key of frame 10, byte 8"), "{said}");
    let lines = json(&["check", &fixture("siw-terminate")]);
    let note = lines.iter().find(|line| line["topic"] == "key").expect("a note");
    assert_eq!(note["text"], "key 0x2368264a of the read of frame 12 comes from frame 10, byte 8");
}

#[test]
fn regions_of_headers_and_atomics_say_what_they_know() {
    // What was moved counts although the capture has only its beginning.
    let lines = json(&["regions", &fixture("rxe-headers")]);
    let moved: Vec<_> = lines.iter().map(|line| (line["read"].clone(), line["written"].clone())).collect();
    assert_eq!(moved, [(10_000.into(), 0.into()), (0.into(), 10_000.into())]);
    assert!(lines.iter().all(|line| line["span"] == 10_000 && line["holes"].as_array().unwrap().len() == 3));
    // In which order a host has the bytes of a number is not on the wire: the map has the numbers.
    let folder = scratch("atomics");
    let output = rdmacap(&["regions", "-w", folder.to_str().unwrap(), &fixture("rxe-atomics")]);
    assert!(output.status.success());
    let files: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    let [map] = &files[..] else { panic!("{files:?}") };
    let map = std::fs::read_to_string(map).expect("a map");
    let lines: Vec<&str> = map.lines().skip(1).collect();
    assert_eq!(lines.len(), 11, "{map}");
    assert!(lines[0].starts_with("0 8 ") && lines[0].contains(" found 0x") && lines[0].contains(", left 0x"));
    assert_eq!(lines[10], "0 8 - hole");
}

/// More files than may be open at a time: each region has two.
#[test]
fn many_regions_are_written() {
    let folder = scratch("many");
    let plan = wire::iwarp::Plan {
        seed: 0,
        operations: 0,
        checksums: false,
        markers: false,
        mulpdu: 1400,
        mss: 1448,
        aligned: true,
    };
    let mut connection = wire::iwarp::Wire::new(plan);
    connection.open([b"", b""]);
    for round in 0..2_u64 {
        for key in 0..300_u32 {
            connection.write(0, key, 0x1000 + 4 * round, &(key + 1).to_le_bytes());
        }
    }
    connection.acknowledge(1);
    connection.close();
    let frames: Vec<_> = connection.frames.into_iter().map(|segment| segment.frame).collect();
    let file = folder.join("keys.pcap");
    std::fs::write(&file, pcap(&frames)).expect("a file");
    let out = folder.join("out");
    let program = env!("CARGO_BIN_EXE_rdmacap");
    let command = format!("ulimit -n 100; exec {program} regions -w {} {}", out.display(), file.display());
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for key in 0..300_u32 {
        let name = format!("{:06}-10.0.0.2-{key:#x}-1", key + 1);
        let content = std::fs::read(out.join(format!("{name}.bin"))).expect("a file");
        assert_eq!(content, [(key + 1).to_le_bytes(); 2].concat());
        let map = std::fs::read_to_string(out.join(format!("{name}.map"))).expect("a map");
        assert_eq!(map.lines().count(), 3, "{map}");
    }
}

#[test]
fn compressed_files_are_read() {
    use std::io::Write;
    let folder = scratch("gzip");
    let plain = std::fs::read(path("rxe-rping")).expect("a file");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&plain).expect("memory");
    let packed = packed.finish().expect("memory");
    let file = folder.join("capture.pcapng.gz");
    std::fs::write(&file, &packed).expect("a file");
    let expected = rdmacap(&["ops", &fixture("rxe-rping")]).stdout;
    assert_eq!(rdmacap(&["ops", file.to_str().unwrap()]).stdout, expected);
    let output = Command::new(env!("CARGO_BIN_EXE_rdmacap"))
        .args(["ops", "-"])
        .stdin(Stdio::from(std::fs::File::open(&file).expect("a file")))
        .output();
    assert_eq!(output.expect("the program starts").stdout, expected);
    // Cut, it is read as far as it goes.
    std::fs::write(&file, &packed[..packed.len() / 2]).expect("a file");
    let output = rdmacap(&["check", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("ends in the middle of a record"));
}

#[test]
fn queue_pairs_are_paired_by_hand() {
    let folder = scratch("pair");
    // One direction alone, without the handshake.
    let all = frames("rxe-rping");
    let from = all[4].bytes[26..30].to_vec();
    let one_way: Vec<_> = all[3..].iter().filter(|frame| frame.bytes[26..30] == from).cloned().collect();
    let file = folder.join("one-way.pcap");
    std::fs::write(&file, pcap(&one_way)).expect("a file");
    let known = |arguments: &[&str]| {
        let lines = json(&[&["info", file.to_str().unwrap()], arguments].concat());
        lines.iter().map(|line| line["known"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(known(&[]).contains(&"one-sided".into()));
    assert_eq!(known(&["--pair", "0x11:17"]), ["told"]);
    for wrong in ["17", "a:b", "0x11:"] {
        assert_eq!(rdmacap(&["info", "--pair", wrong, "x"]).status.code(), Some(3));
    }
}

#[test]
fn streams_and_messages_are_written() {
    let folder = scratch("streams");
    let lines = json(&["streams", "-w", folder.to_str().unwrap(), &fixture("embedded-copy-iwarp")]);
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["words"], &lines[0]["bytes"], &lines[0]["end"]),
        (&"iwarp".into(), &5040.into(), &true.into())
    );
    assert_eq!(std::fs::read(folder.join("1-a.bin")).expect("a stream").len(), 5040);
    let lines = json(&["messages", "-w", folder.to_str().unwrap(), &fixture("siw-rping")]);
    assert_eq!(lines.len(), 8);
    assert_eq!(lines[0]["payload"], "0000561a9f7ae250d60a2f00000007d0");
    assert_eq!(std::fs::read(folder.join("1-a-00000009.bin")).expect("a message").len(), 16);
}

#[test]
fn figures_and_connections() {
    let lines = json(&["stats", &fixture("rxe-lossy")]);
    let resent: u64 = lines.iter().filter_map(|line| line["resent"].as_u64()).sum();
    assert!(resent > 0);
    assert!(lines.last().unwrap()["findings"]["network-loss"].as_u64().unwrap() > 0);
    let lines = json(&["info", &fixture("embedded-copy")]);
    assert_eq!((&lines[0]["known"], &lines[0]["upper"]), (&"mpa".into(), &"rstream".into()));
}

#[test]
fn rpc_goes_to_other_tools() {
    use iwarp_wire::rdmap::Opcode;
    let folder = scratch("rpc");
    let plan = wire::iwarp::Plan {
        seed: 0,
        operations: 0,
        checksums: true,
        markers: false,
        mulpdu: 1400,
        mss: 1448,
        aligned: true,
    };
    let mut connection = wire::iwarp::Wire::new(plan);
    connection.open([b"", b""]);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    // NULL of NFS version 3, inline.
    let header = [7, 1, 32, 0, 0, 0, 0];
    let call = words(&[&header[..], &[7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]].concat());
    let reply = words(&[&header[..], &[7, 1, 0, 0, 0, 0]].concat());
    connection.untagged(0, Opcode::Send, 0, &call);
    connection.untagged(1, Opcode::Send, 0, &reply);
    connection.acknowledge(0);
    connection.acknowledge(1);
    connection.close();
    let frames: Vec<_> = connection.frames.into_iter().map(|segment| segment.frame).collect();
    let (file, out) = (folder.join("rdma.pcap"), folder.join("tcp.pcapng"));
    std::fs::write(&file, pcap(&frames)).expect("a file");
    let lines = json(&["rpc", "--pcap", out.to_str().unwrap(), file.to_str().unwrap()]);
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["program"], &lines[0]["procedure"]), (&100_003.into(), &0.into()));
    let arguments = ["-n", "-o", "tcp.check_checksum:TRUE", "-Y", "rpc", "-T", "fields"];
    let fields = ["-e", "rpc.xid", "-e", "rpc.program", "-e", "tcp.checksum.status", "-e", "frame.comment"];
    let tshark = Command::new("tshark").arg("-r").arg(&out).args(arguments).args(fields).output();
    let Ok(tshark) = tshark else {
        eprintln!("skipped: no tshark");
        return;
    };
    let text = String::from_utf8_lossy(&tshark.stdout);
    let expected =
        "0x00000007\t100003\t1\tconnection 1, frame 6\n0x00000007\t100003\t1\tconnection 1, frame 7\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&tshark.stderr));
}

#[test]
fn tshark_reads_nfs_that_went_over_rdma() {
    for name in ["nfs-siw", "nfs-rxe"] {
        let out = scratch(name).join("tcp.pcapng");
        let lines = json(&["rpc", "--pcap", out.to_str().unwrap(), &fixture(name)]);
        let count = |filter: &str| {
            let arguments = ["-n", "-Y", filter, "-T", "fields", "-e", "frame.number"];
            let output = Command::new("tshark").arg("-r").arg(&out).args(arguments).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).lines().count())
        };
        let Some(messages) = count("nfs") else {
            eprintln!("skipped: no tshark");
            return;
        };
        assert_eq!(messages, 2 * lines.len(), "{name}");
        assert_eq!(count("_ws.malformed"), Some(0), "{name}");
        // READ and WRITE, call and reply of each.
        assert_eq!((count("nfs.opcode == 25"), count("nfs.opcode == 38")), (Some(2), Some(2)), "{name}");
    }
}
