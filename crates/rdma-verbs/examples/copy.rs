//! Copies a file to another process or host. The receiver advertises a region, the sender writes the file to
//! it piece by piece. Each write tells its number as immediate data, and the receiver answers when the
//! piece's place is free again. At the end both compare their checksums.
//!
//! ```text
//! copy receive ADDRESS:PORT FILE [DEVICE]
//! copy send    ADDRESS:PORT FILE [DEVICE]
//! cargo run --example copy
//! ```
//!
//! `DEVICE` is a name that the example `devinfo` lists, of a device with immediate data. Without it, this is
//! the embedded device. Without arguments, the program plays both sides and copies a temporary file.

use std::env;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;

use rdma_verbs::typed::{Connection, Listener, Remote, Shard, Work};
use rdma_verbs::{Access, Device, QpCapabilities, devices};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a piece; the last one may be shorter.
const PIECE: usize = 1 << 18;
/// Places for pieces in the region: as many pieces may be under way.
const PLACES: u32 = 8;
/// Bytes of the longest message, a [`Sum`]. The others are numbers of pieces.
const MESSAGE: u32 = 12;
/// Each side gets a message for each piece that is under way, and one for the end of the file.
const RECEIVES: u32 = PLACES + 1;
const QUEUES: QpCapabilities = QpCapabilities {
    send_depth: 4,
    recv_depth: RECEIVES,
    inline: 0,
    initiator_depth: 1,
    responder_resources: 1,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => copy_here(),
        ["receive", address, file] => receive_on("iwarp", address, file),
        ["receive", address, file, device] => receive_on(device, address, file),
        ["send", address, file] => send(&open("iwarp")?, address.parse()?, Path::new(file)),
        ["send", address, file, device] => send(&open(device)?, address.parse()?, Path::new(file)),
        _ => Err("arguments: receive|send ADDRESS:PORT FILE [DEVICE], or none".into()),
    }
}

fn open(name: &str) -> Result<Shard> {
    let device = devices().into_iter().find(|device| device.name() == name);
    let device = device.ok_or("this machine has no such device")?.open()?;
    if device.attributes().immediate == 0 {
        return Err("the device has no immediate data".into());
    }
    Ok(Shard::new(device)?)
}

fn receive_on(device: &str, address: &str, file: &str) -> Result<()> {
    let shard = open(device)?;
    receive(&shard, &shard.listen(address.parse()?, 1)?, Path::new(file))
}

/// Copies a temporary file, with both sides in this process.
fn copy_here() -> Result<()> {
    let folder = Folder::create()?;
    let [from, to] = ["from", "to"].map(|name| folder.0.join(name));
    // Bytes of which no piece is like another.
    let mut word = 1_u64;
    let content: Vec<u8> = (0..20 * PIECE + 12345)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.to_be_bytes()[0]
        })
        .collect();
    fs::write(&from, &content)?;

    let shard = Shard::embedded()?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 1)?;
    let address = listener.local_address();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&shard, &listener, &to));
        send(&Shard::embedded()?, address, &from)?;
        receiver.join().map_err(|_| "the receiver panicked")?
    })?;
    assert!(fs::read(&to)? == content, "the copy differs");
    Ok(())
}

/// Writes the file to the region that the receiver advertises.
fn send(shard: &Shard, receiver: SocketAddr, path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let (messages, pieces) = (shard.pool(RECEIVES + 1, MESSAGE)?, shard.pool(1, PIECE as u32)?);
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&messages, RECEIVES)?;
    let connection = endpoint.connect(receiver, b"").wait()?;
    let advert = connection.private_data();
    // Some transports pad private data.
    let region = Remote::from_advert(advert.get(..Remote::ADVERT).unwrap_or_default())?;
    println!("sender: writes {} to {region:x?}", path.display());

    let (mut sum, mut piece) = (Sum::default(), pieces.take()?);
    let (mut number, mut answers) = (0_u32, 0_u32);
    loop {
        piece.resize(PIECE)?;
        let length = fill(&mut file, &mut piece)?;
        if length == 0 {
            break;
        }
        piece.resize(length)?;
        sum.add(&piece);
        if number - answers == PLACES {
            expect(&connection, &answers.to_be_bytes())?;
            answers += 1;
        }
        let place = region.piece(number % PLACES * PIECE as u32, length as u32)?;
        piece = connection.post(Work::write_immediate(piece, place, number.into())).wait()?;
        number += 1;
    }
    connection.send(messages.copy_of(&sum.to_bytes())?).wait()?;
    for answer in answers..number {
        expect(&connection, &answer.to_be_bytes())?;
    }
    expect(&connection, &sum.to_bytes())?;
    connection.close().wait()?;
    println!("sender: {number} pieces, {sum}; the receiver has the same");
    Ok(())
}

/// Advertises a region, and makes a file of what the sender writes to it.
fn receive(shard: &Shard, listener: &Listener, path: &Path) -> Result<()> {
    println!("receiver: listens on {}", listener.local_address());
    let messages = shard.pool(RECEIVES + 1, MESSAGE)?;
    let region = shard.region(PLACES as usize * PIECE, Access::REMOTE_WRITE)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&messages, RECEIVES)?;
    let incoming = listener.next().wait()?;
    let connection = incoming.accept(endpoint, &region.remote().to_advert()).wait()?;

    let (mut file, mut sum, mut piece) = (File::create(path)?, Sum::default(), vec![0; PIECE]);
    let mut number = 0_u32;
    let end = loop {
        let message = connection.recv().wait()?;
        let Some(length) = message.written() else { break message };
        if message.immediate() != Some(number.into()) {
            return Err(format!("piece {number} came as {:?}", message.immediate()).into());
        }
        // Its receive is posted again before the answer, which allows one more message.
        drop(message);
        let piece = piece.get_mut(..length as usize).ok_or("a piece is too long")?;
        region.read((number % PLACES) as usize * PIECE, piece)?;
        file.write_all(piece)?;
        sum.add(piece);
        connection.send(messages.copy_of(&number.to_be_bytes())?).wait()?;
        number += 1;
    };
    let is_same = end[..] == sum.to_bytes();
    drop(end);
    connection.send(messages.copy_of(&sum.to_bytes())?).wait()?;
    connection.close().wait()?;
    println!("receiver: {number} pieces, {sum}, in {}", path.display());
    if is_same { Ok(()) } else { Err("the sender has another checksum".into()) }
}

/// Reads until the piece is full or the file ends. Returns how much was read.
fn fill(file: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        match file.read(&mut piece[filled..])? {
            0 => return Ok(filled),
            more => filled += more,
        }
    }
}

/// Takes the next message, which has to be this one.
fn expect(connection: &Connection, expected: &[u8]) -> Result<()> {
    let message = connection.recv().wait()?;
    if message[..] == *expected {
        Ok(())
    } else {
        Err(format!("the receiver answers {:x?}, not {expected:x?}", &message[..]).into())
    }
}

/// What both sides compare.
#[derive(Default)]
struct Sum {
    length: u64,
    crc: u32,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    fn to_bytes(&self) -> [u8; MESSAGE as usize] {
        let mut bytes = [0; MESSAGE as usize];
        bytes[..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..].copy_from_slice(&self.crc.to_be_bytes());
        bytes
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, CRC32c {:08x}", self.length, self.crc)
    }
}

/// A folder for temporary files, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Self> {
        let path = env::temp_dir().join(format!("rdma-verbs-copy-{}", process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
