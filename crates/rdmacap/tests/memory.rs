//! Captures that are made to take memory: what the program holds stays within `--memory`, beside a few bytes
//! for each connection, however long they are. They are read from a pipe, as a capture that goes on is.

mod wire;

use std::io::{BufWriter, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use iwarp_wire::ddp::{self, Tagged};
use iwarp_wire::rdmap::{Opcode, ReadRequest};
use wire::infiniband::{aeth, manage, packet};
use wire::iwarp::{Plan, Wire};
use wire::{Frame, ipv4, pcap};

/// What the program may hold in MiB, and what it may take in all: itself and its buffers; and with as many
/// connections as are followed at a time.
const MEMORY: u64 = 1;
const FEW: u64 = 12;
const MANY: u64 = 64;

const PLAN: Plan =
    Plan { seed: 0, operations: 0, checksums: false, markers: false, mulpdu: 1400, mss: 1448, aligned: true };

struct Feed(BufWriter<ChildStdin>);

impl Feed {
    /// A frame, of which so many bytes were captured.
    fn cut(&mut self, frame: &Frame, snaplen: usize) {
        let file = pcap(std::slice::from_ref(&frame.cut(snaplen)));
        self.0.write_all(&file[24..]).expect("the program reads");
    }

    fn put(&mut self, frame: &Frame) {
        self.cut(frame, usize::MAX);
    }

    /// What a connection has sent since the last time.
    fn drain(&mut self, wire: &mut Wire) {
        wire.frames.drain(..).for_each(|segment| self.put(&segment.frame));
    }
}

/// The most memory that a process has had.
fn peak(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Has a command of the program read what is fed to it, and looks at its memory.
fn attack(command: &str, limit: u64, feed: impl FnOnce(&mut Feed)) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rdmacap"))
        .args([command, "--memory", &MEMORY.to_string(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut input = Feed(BufWriter::with_capacity(1 << 16, child.stdin.take().expect("a pipe")));
    input.0.write_all(&pcap(&[])).expect("the program reads");
    feed(&mut input);
    let mut most = peak(&child).unwrap_or(0);
    drop(input);
    while child.try_wait().expect("the program").is_none() {
        most = peak(&child).unwrap_or(0).max(most);
    }
    assert!(child.wait().expect("the program").code().is_some_and(|code| code < 3), "{command}");
    let most = most >> 20;
    assert!((1..limit).contains(&most), "{command}: {most} MiB");
}

/// A TCP segment between hosts 1 and 2 whose client has this port, and an address of its own beyond that.
fn segment(port: u32, sequence: u32, flags: u8, bytes: &[u8]) -> Frame {
    let mut tcp = (port as u16).to_be_bytes().to_vec();
    tcp.extend(7174_u16.to_be_bytes());
    tcp.extend(sequence.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    tcp.extend(bytes);
    let mut frame = ipv4(1, 1, 2, 6, &tcp);
    frame.bytes[28] = (port >> 16) as u8;
    frame
}

const SYN: u8 = 2;
const ACK: u8 = 0x10;

#[test]
fn segments_of_one_byte_where_no_fpdu_begins() {
    attack("check", FEW, |feed| {
        for at in 0..20_000 {
            for port in 0..50 {
                feed.put(&segment(port, 1000 + at, ACK, &[0]));
            }
        }
    });
}

#[test]
fn segments_behind_one_that_never_comes() {
    attack("check", FEW, |feed| {
        for port in 0..50 {
            feed.put(&segment(port, 0, SYN, &[]));
        }
        for at in 0..10_000 {
            for port in 0..50 {
                feed.put(&segment(port, 100 + 2 * at, ACK, &[7]));
            }
        }
    });
}

/// Responses of one side, while the other, whose requests they may answer, never says anything.
#[test]
fn responses_whose_requests_never_come() {
    let mut header = [0; ddp::TAGGED];
    Tagged { last: true, ulp: Opcode::ReadResponse.control(), stag: 5, offset: 0 }.emit(&mut header);
    let ulpdu = [&header[..], &[0; 1400]].concat();
    let fpdu = [&(ulpdu.len() as u16).to_be_bytes()[..], &ulpdu, &[0; 4]].concat();
    attack("check", FEW, |feed| {
        for at in 0..100 {
            for port in 0..500 {
                feed.put(&segment(port, 1000 + at * fpdu.len() as u32, ACK, &fpdu));
            }
        }
    });
}

/// Beginnings and ends of long writes, over many queue pairs: what is remembered of the packets in between.
#[test]
fn long_writes_of_which_only_the_ends_come() {
    attack("check", FEW, |feed| {
        for pair in 0..1000_u32 {
            open(feed, pair);
            for write in 0..16_u32 {
                let reth = reth(0x5000, 4096 * 4096);
                let psn = write << 12;
                feed.cut(&packet(1, 0, 6, 0x2000 + pair, psn, &reth, &[0; 4096]), 80);
                feed.cut(&packet(1, 0, 8, 0x2000 + pair, psn + 4095, &[], &[0; 4096]), 80);
            }
        }
    });
}

/// A write and a read of which every other packet is there.
#[test]
fn operations_that_are_all_holes() {
    for read in [false, true] {
        attack("check", FEW, |feed| {
            open(feed, 1);
            let (begin, go_on) = if read { (12, 14) } else { (6, 7) };
            let data: &[u8] = if read { &[] } else { &[0; 4096] };
            feed.cut(&packet(1, 0, begin, 0x2001, 0, &reth(0x5000, u32::MAX), data), 80);
            for at in 1..400_000 {
                let (from, to) = if read { (1, 0x1001) } else { (0, 0x2001) };
                feed.cut(&packet(1, from, go_on, to, 2 * at, &[], &[0; 4096]), 80);
            }
        });
    }
}

#[test]
fn responses_at_every_other_byte() {
    attack("check", FEW, |feed| {
        let mut wire = Wire::new(PLAN);
        wire.open([b"", b""]);
        let request =
            ReadRequest { sink_stag: 1, sink_offset: 0, length: u32::MAX, source_stag: 2, source_offset: 0 };
        let mut message = [0; 28];
        request.emit(&mut message);
        wire.untagged(0, Opcode::ReadRequest, 0, &message);
        for at in 0..500_000 {
            let mut header = [0; ddp::TAGGED];
            let ulp = Opcode::ReadResponse.control();
            Tagged { last: false, ulp, stag: 1, offset: 2 * at }.emit(&mut header);
            wire.fpdu(1, &[&header[..], b"x"].concat());
            feed.drain(&mut wire);
        }
    });
}

#[test]
fn calls_with_many_segments_that_nobody_answers() {
    attack("check", FEW, |feed| {
        let mut wire = Wire::new(PLAN);
        wire.open([b"", b""]);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        for xid in 0..60_000_u32 {
            let mut message = words(&[xid, 1, 32, 0]);
            (0..40).for_each(|at| message.extend(words(&[1, 4 * at, xid, 8, at, 0])));
            message.extend(words(&[0, 0, 0, xid, 0, 2, 100_003, 3, 7, 0, 0, 0, 0]));
            wire.untagged(0, Opcode::Send, 0, &message);
            feed.drain(&mut wire);
        }
    });
}

#[test]
fn ever_new_keys() {
    for command in ["check", "regions", "ops"] {
        attack(command, FEW, |feed| {
            let mut wire = Wire::new(PLAN);
            wire.open([b"", b""]);
            for key in 0..300_000 {
                wire.write(0, key, 0x1000, b"data");
                if key % 100 == 0 {
                    wire.acknowledge(1);
                }
                feed.drain(&mut wire);
            }
        });
    }
}

#[test]
fn connections_without_end() {
    for command in ["info", "stats", "check"] {
        attack(command, MANY, |feed| {
            for pair in 0..60_000 {
                open(feed, pair);
                feed.put(&packet(1, 0, 4, 0x2000 + pair, 0, &[], b"x"));
                feed.put(&packet(1, 1, 17, 0x1000 + pair, 0, &aeth(0x62), &[]));
            }
        });
    }
}

/// A million connections that were asked for: by TCP, by MPA's request, and by the connection manager's.
#[test]
fn a_million_half_open_connections() {
    attack("check", MANY, |feed| {
        for port in 0..400_000 {
            feed.put(&segment(port, 0, SYN, &[]));
        }
    });
    attack("check", MANY, |feed| {
        for port in 0..300_000 {
            feed.put(&segment(port, 0, SYN, &[]));
            feed.put(&segment(port, 1, ACK, b"MPA ID Req Frame\x40\x01\x02\x00 half of it"));
        }
    });
    attack("check", MANY, |feed| {
        for pair in 0..300_000 {
            feed.put(&request(pair));
        }
    });
}

#[test]
fn packets_that_nobody_answers() {
    attack("check", MANY, |feed| {
        for number in 0..500_000 {
            feed.put(&packet(1, 0, 4, number % 200_000, number, &[], &[7; 64]));
        }
    });
}

fn reth(key: u32, length: u32) -> Vec<u8> {
    [&0x7000_u64.to_be_bytes()[..], &key.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// The connection manager's request for a connection from queue pair 0x1000 on.
fn request(pair: u32) -> Frame {
    manage(1, 0, 0x10, |body| {
        body[..4].copy_from_slice(&pair.to_be_bytes());
        body[32..36].copy_from_slice(&((0x1000 + pair) << 8).to_be_bytes());
        body[50] = 5 << 4;
    })
    .frame
}

/// A connection of queue pairs whose numbers begin with 0x1000 and 0x2000.
fn open(feed: &mut Feed, pair: u32) {
    feed.put(&request(pair));
    let reply = manage(1, 1, 0x13, |body| {
        body[..8].copy_from_slice(&[pair.to_be_bytes(), pair.to_be_bytes()].concat());
        body[12..16].copy_from_slice(&((0x2000 + pair) << 8).to_be_bytes());
    });
    feed.put(&reply.frame);
}
