//! RoCE v2 made by hand: two queue pairs, their requests and answers, and what networks and captures do to
//! them.

use rdmacap::Kind;

use super::meant::{Meant, random};
use super::{Dice, Frame, ipv4};

/// Queue pair numbers of the hosts 1 and 2.
pub(crate) const NUMBERS: [u32; 2] = [0x11, 0x12];

/// A packet from host `from` (0 or 1) with its invariant CRC.
pub(crate) fn packet(
    time: u64,
    from: usize,
    opcode: u8,
    destination: u32,
    psn: u32,
    headers: &[u8],
    data: &[u8],
) -> Frame {
    let padding = data.len().wrapping_neg() & 3;
    let mut transport = vec![opcode, (padding << 4) as u8, 0xff, 0xff];
    transport.extend(destination.to_be_bytes());
    transport.extend((0x8000_0000 | psn & 0xff_ffff).to_be_bytes());
    transport.extend(headers);
    transport.extend(data);
    transport.extend(&[0; 3][..padding]);
    let mut datagram = vec![0xc0, 0x00, 0x12, 0xb7];
    datagram.extend((8 + transport.len() as u16 + 4).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(transport);
    datagram.extend([0; 4]);
    let mut frame = ipv4(time, from as u8 + 1, 2 - from as u8, 17, &datagram);
    let end = frame.bytes.len() - 4;
    let mut masked = frame.bytes[14..end].to_vec();
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[at] = 0xff;
    }
    let crc = crc32fast::hash(&[&[0xff; 8], &*masked].concat());
    frame.bytes[end..].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// A frame, and the packet of which operation it carries: its number in the operation.
#[derive(Debug, Clone)]
pub(crate) struct Tagged {
    pub(crate) frame: Frame,
    pub(crate) of: Option<(u32, usize)>,
}

/// What a run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) operations: usize,
    pub(crate) pmtu: usize,
    /// First packet numbers.
    pub(crate) psns: [u32; 2],
    pub(crate) handshake: bool,
    /// One of so many operations loses a packet in the network, before it is captured.
    pub(crate) network_loss: Option<u64>,
    /// One of so many is not ready at first.
    pub(crate) not_ready: Option<u64>,
    /// Nothing is acknowledged, and there are only writes and sends.
    pub(crate) unreliable: bool,
}

/// The connection manager's request, reply and end.
pub(crate) fn manage(time: u64, from: usize, attribute: u16, body: impl FnOnce(&mut [u8; 232])) -> Tagged {
    let mut message = [0; 232];
    body(&mut message);
    let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    mad.extend(attribute.to_be_bytes());
    mad.extend([0; 6]);
    mad.extend(message);
    let headers = [0x80, 1, 0, 0, 0, 0, 0, 1];
    Tagged { frame: packet(time, from, 0x64, 1, 0, &headers, &mad), of: None }
}

pub(crate) fn handshake(psns: [u32; 2], pmtu: usize) -> Vec<Tagged> {
    let code = pmtu.ilog2() as u8 - 7;
    let request = manage(10, 0, 0x10, |body| {
        body[..4].copy_from_slice(&0xa_u32.to_be_bytes());
        body[8..16].copy_from_slice(&0x0106_1c06_u64.to_be_bytes());
        // With how many reads it serves at a time.
        body[32..36].copy_from_slice(&(NUMBERS[0] << 8 | 1).to_be_bytes());
        // With which number the other side begins.
        body[44..48].copy_from_slice(&(psns[1] << 8).to_be_bytes());
        body[50] = code << 4;
    });
    let reply = manage(20, 1, 0x13, |body| {
        body[..8].copy_from_slice(&0xb_0000_000a_u64.to_be_bytes());
        body[12..16].copy_from_slice(&(NUMBERS[1] << 8).to_be_bytes());
        body[20..24].copy_from_slice(&(psns[0] << 8).to_be_bytes());
        body[24] = 1;
    });
    vec![request, reply]
}

/// The packets of a request: opcode, extended headers, payload, numbers that it takes.
fn request(meant: &Meant, pmtu: usize) -> Vec<(u8, Vec<u8>, Vec<u8>)> {
    let remote = || {
        let mut header = meant.address.to_be_bytes().to_vec();
        header.extend(meant.key.to_be_bytes());
        header.extend((meant.bytes.len() as u32).to_be_bytes());
        header
    };
    let word = meant.immediate.map(|word| word as u32).or(meant.invalidate);
    let immediate = || word.map_or(Vec::new(), |word| word.to_be_bytes().to_vec());
    match meant.kind {
        Kind::Read => vec![(12, remote(), Vec::new())],
        Kind::CompareSwap | Kind::FetchAdd => {
            let mut header = meant.address.to_be_bytes().to_vec();
            header.extend(meant.key.to_be_bytes());
            header.extend(meant.operand.to_be_bytes());
            header.extend(meant.compare.to_be_bytes());
            vec![(if meant.kind == Kind::CompareSwap { 19 } else { 20 }, header, Vec::new())]
        }
        kind => {
            let write = kind == Kind::Write;
            let chunks = chunks(&meant.bytes, pmtu);
            let count = chunks.len();
            let base = if write { 6 } else { 0 };
            let packet = |(at, chunk): (usize, &&[u8])| {
                let (first, last) = (at == 0, at + 1 == count);
                let opcode = match (first, last, meant.immediate.is_some(), meant.invalidate.is_some()) {
                    (true, false, ..) => base,
                    (false, false, ..) => base + 1,
                    (false, true, false, false) => base + 2,
                    (false, true, true, _) => base + 3,
                    (true, true, false, false) => base + 4,
                    (true, true, true, _) => base + 5,
                    (false, true, false, true) => 22,
                    (true, true, false, true) => 23,
                };
                let mut headers = if write && first { remote() } else { Vec::new() };
                if last {
                    headers.extend(immediate());
                }
                (opcode, headers, chunk.to_vec())
            };
            chunks.iter().enumerate().map(packet).collect()
        }
    }
}

/// Numbers that an operation takes.
pub(crate) fn numbers(meant: &Meant, pmtu: usize) -> usize {
    match meant.kind {
        Kind::CompareSwap | Kind::FetchAdd => 1,
        _ => meant.bytes.len().div_ceil(pmtu).max(1),
    }
}

/// The payloads of packets; one is empty if there is nothing.
fn chunks(bytes: &[u8], pmtu: usize) -> Vec<&[u8]> {
    let mut chunks: Vec<&[u8]> = bytes.chunks(pmtu).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    chunks
}

fn random_operation(dice: &mut Dice, id: u32, plan: &Plan) -> Meant {
    const KINDS: [Kind; 7] =
        [Kind::Send, Kind::Send, Kind::Write, Kind::Write, Kind::Read, Kind::CompareSwap, Kind::FetchAdd];
    let pmtu = plan.pmtu as u64;
    let length = match dice.below(4) {
        0 => dice.below(64),
        1 => pmtu * dice.below(4),
        _ => dice.below(6 * pmtu),
    };
    let kinds = if plan.unreliable { &KINDS[..4] } else { &KINDS };
    let mut meant = random(dice, id, kinds, length as usize);
    if meant.kind == Kind::Send && meant.invalidate.is_none() {
        meant.immediate = dice.once_in(3).then_some(u64::from(id | 0x4000_0000));
    }
    // Unreliable connections cannot invalidate.
    meant.invalidate = meant.invalidate.filter(|_| !plan.unreliable);
    meant
}

/// Makes a run: the frames, and the operations in the order of their requests.
pub(crate) fn run(plan: &Plan) -> (Vec<Tagged>, Vec<Meant>) {
    let mut dice = Dice::new(plan.seed);
    let meants: Vec<Meant> =
        (1..=plan.operations as u32).map(|id| random_operation(&mut dice, id, plan)).collect();
    (transmit(plan, &meants), meants)
}

/// An acknowledgement's header.
pub(crate) fn aeth(syndrome: u8) -> Vec<u8> {
    vec![syndrome, 0, 0, 1]
}

/// The frames of these operations.
pub(crate) fn transmit(plan: &Plan, meants: &[Meant]) -> Vec<Tagged> {
    let mut dice = Dice::new(plan.seed ^ 0x1234_5678);
    let mut frames = if plan.handshake { handshake(plan.psns, plan.pmtu) } else { Vec::new() };
    let (mut psns, mut time) = (plan.psns, 100_000);
    let mut silent = [false; 2];
    let service = if plan.unreliable { 0x20 } else { 0 };
    for meant in meants {
        let (id, from, first) = (meant.id, meant.from, psns[meant.from]);
        let packets = request(meant, plan.pmtu);
        let taken = numbers(meant, plan.pmtu);
        let psn = |at: usize| (first + at as u32) & 0xff_ffff;
        let put = |at: usize, time: &mut u64| {
            *time += 500;
            let (opcode, headers, data) = &packets[at];
            let frame = packet(*time, from, service | *opcode, NUMBERS[1 - from], psn(at), headers, data);
            Tagged { frame, of: Some((id, at)) }
        };
        if plan.not_ready.is_some_and(|times| dice.once_in(times)) && meant.kind == Kind::Send {
            for at in 0..packets.len() {
                frames.push(put(at, &mut time));
            }
            time += 500;
            let nak = packet(time, 1 - from, 17, NUMBERS[from], psn(0), &aeth(0x21), &[]);
            frames.push(Tagged { frame: nak, of: None });
            time += 2_000_000;
        }
        let lost = plan.network_loss.filter(|times| dice.once_in(*times));
        let lost = lost.map(|_| dice.below(packets.len() as u64) as usize);
        for at in (0..packets.len()).filter(|at| Some(*at) != lost) {
            frames.push(put(at, &mut time));
        }
        if let Some(lost) = lost {
            if lost + 1 < packets.len() {
                // What followed showed the gap.
                time += 500;
                let nak = packet(time, 1 - from, 17, NUMBERS[from], psn(lost), &aeth(0x60), &[]);
                frames.push(Tagged { frame: nak, of: None });
            } else {
                time += 5_000_000;
            }
            for at in lost..packets.len() {
                frames.push(put(at, &mut time));
            }
        }
        time += 500;
        silent[from] = false;
        match meant.kind {
            Kind::Read => {
                let chunks = chunks(&meant.bytes, plan.pmtu);
                let count = chunks.len();
                for (at, chunk) in chunks.into_iter().enumerate() {
                    time += 500;
                    let opcode = match (at == 0, at + 1 == count) {
                        (true, true) => 16,
                        (true, false) => 13,
                        (false, false) => 14,
                        (false, true) => 15,
                    };
                    let headers = if opcode == 14 { Vec::new() } else { aeth(0x1f) };
                    let frame = packet(time, 1 - from, opcode, NUMBERS[from], psn(at), &headers, chunk);
                    frames.push(Tagged { frame, of: Some((id, at)) });
                }
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let headers = [aeth(0x1f), meant.bytes.clone()].concat();
                let frame = packet(time, 1 - from, 18, NUMBERS[from], psn(0), &headers, &[]);
                frames.push(Tagged { frame, of: Some((id, 0)) });
            }
            _ if plan.unreliable => {}
            // Acknowledged along with a later one.
            _ if dice.once_in(3) => silent[from] = true,
            _ => {
                let frame = packet(time, 1 - from, 17, NUMBERS[from], psn(taken - 1), &aeth(0x1f), &[]);
                frames.push(Tagged { frame, of: None });
            }
        }
        psns[from] = (psns[from] + taken as u32) & 0xff_ffff;
    }
    for from in (0..2).filter(|from| silent[*from]) {
        time += 500;
        let last = psns[from].wrapping_sub(1) & 0xff_ffff;
        let frame = packet(time, 1 - from, 17, NUMBERS[from], last, &aeth(0x1f), &[]);
        frames.push(Tagged { frame, of: None });
    }
    if plan.handshake {
        frames.push(manage(time + 1000, 0, 0x15, |body| {
            body[..8].copy_from_slice(&0xa_0000_000b_u64.to_be_bytes());
        }));
    }
    frames
}
