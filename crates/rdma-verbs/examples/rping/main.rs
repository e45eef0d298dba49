//! `rping` of rdma-core: either side understands the other program's other side, on a host with or without
//! RDMA devices.
//!
//! ```text
//! rping -s [-a ADDRESS] [-p PORT] [-C COUNT] [-S SIZE] [-v] [DEVICE] [--wrong-key]
//! rping -c  -a ADDRESS  [-p PORT] [-C COUNT] [-S SIZE] [-v] [-V] [DEVICE] [--greet] [--wrong-key]
//! cargo run --example rping
//! ```
//!
//! A ping: the client tells where its text lies (a send), the server fetches it (an RDMA read) and says so;
//! the client tells where the text may come back to, the server puts it there (an RDMA write) and says so.
//! `-V` has the client compare. `--greet` is a send there and one back instead, which rdma-core's
//! `rdma_server` answers. With `--wrong-key` the memory is named by a key that names nothing: the connection
//! has to end with an error.
//!
//! `DEVICE` is `--device NAME`, or for the embedded device `[--crc] [--mpa-revision 1|2]`. Without
//! arguments, the program plays both sides on the embedded device.

mod options;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;

use rdma_verbs::typed::{self, Connection, End, Listener, Region, Remote, Shard};
use rdma_verbs::{Access, QpCapabilities};

use options::{Options, Role};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A side receives a message at a time.
const RECEIVES: u32 = 2;
const QUEUES: QpCapabilities = QpCapabilities {
    send_depth: 4,
    recv_depth: RECEIVES,
    inline: 0,
    initiator_depth: 1,
    responder_resources: 1,
};
/// What the server says: that it is done. rping looks at its length only.
const DONE: Remote = Remote { key: 0, address: 0, length: 0 };

fn main() -> ExitCode {
    match Options::from_arguments().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: the peer may write to the same terminal.
            let line = format!("rping: {error}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let shard = options.shard()?;
    match options.role {
        Role::Client => client(&shard, options.address, options),
        Role::Server => server(&shard, &shard.listen(options.address, 1)?, options),
        Role::Both => {
            let listener = shard.listen(options.address, 1)?;
            let address = listener.local_address();
            thread::scope(|scope| {
                let server = scope.spawn(|| server(&shard, &listener, options));
                client(&options.shard()?, address, options)?;
                server.join().map_err(|_| "the server panicked")?
            })
        }
    }
}

/// The side that connects, and whose memory is read and written.
fn client(shard: &Shard, server: SocketAddr, options: &Options) -> Result<()> {
    let size = options.size as usize;
    let source = shard.region(size, Access::REMOTE_READ)?;
    let sink = shard.region(size, Access::REMOTE_WRITE)?;
    let words = Words::new(shard)?;
    let connection = words.endpoint(shard)?.connect(server, b"").wait()?;
    if options.greet {
        words.say(&connection, source.remote())?;
        hear(&connection)?;
        return Ok(connection.close().wait()?);
    }
    for number in 0..options.count.unwrap_or(u64::MAX) {
        let sent = text(number, size);
        source.write(0, &sent)?;
        words.say(&connection, options.name(source.remote()))?;
        hear(&connection)?;
        words.say(&connection, sink.remote())?;
        hear(&connection)?;
        let came = bytes(&sink, size)?;
        if options.validate && came != sent {
            return Err(format!("ping {number} came back changed").into());
        }
        if options.verbose {
            println!("ping data: {}", String::from_utf8_lossy(came.strip_suffix(b"\0").unwrap_or(&came)));
        }
    }
    Ok(connection.close().wait()?)
}

/// The side that listens, reads and writes.
fn server(shard: &Shard, listener: &Listener, options: &Options) -> Result<()> {
    // The target of an RDMA read is written by the peer on iWARP.
    let buffer = shard.region(options.size as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let words = Words::new(shard)?;
    let endpoint = words.endpoint(shard)?;
    let connection = listener.next().wait()?.accept(endpoint, b"").wait()?;
    for _ in 0..options.count.unwrap_or(u64::MAX) {
        let source = options.name(hear(&connection)?);
        connection.read(buffer.piece(0..source.length as usize)?, source).wait()?;
        words.say(&connection, DONE)?;
        let text = bytes(&buffer, source.length as usize)?;
        let text = &text[..text.iter().position(|&byte| byte == 0).unwrap_or(text.len())];
        if options.verbose {
            println!("server ping data: {}", String::from_utf8_lossy(text));
        }
        let sink = hear(&connection)?;
        // As much as the text has, and its NUL.
        let length = (sink.length as usize).min(text.len() + 1);
        connection.write(buffer.piece(0..length)?, sink).wait()?;
        words.say(&connection, DONE)?;
    }
    match hear(&connection) {
        Ok(more) => Err(format!("the client goes on: {more:x?}").into()),
        Err(typed::Error::Ended(End::Disconnected)) => Ok(connection.close().wait()?),
        Err(error) => Err(error.into()),
    }
}

/// The buffers for what the sides say in sends: where memory lies. That is an advertisement.
struct Words(typed::Pool);

impl Words {
    fn new(shard: &Shard) -> typed::Result<Self> {
        Ok(Self(shard.pool(RECEIVES + 1, Remote::ADVERT as u32)?))
    }

    fn endpoint(&self, shard: &Shard) -> typed::Result<typed::Endpoint> {
        let endpoint = shard.endpoint(QUEUES)?;
        endpoint.post_receives(&self.0, RECEIVES)?;
        Ok(endpoint)
    }

    fn say(&self, connection: &Connection, memory: Remote) -> typed::Result<()> {
        connection.advertise(self.0.take()?, memory)?.wait()?;
        Ok(())
    }
}

fn hear(connection: &Connection) -> typed::Result<Remote> {
    connection.recv().wait()?.advert()
}

fn bytes(region: &Region, length: usize) -> typed::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    region.read(0, &mut bytes)?;
    Ok(bytes)
}

/// The text of a ping: its number, then characters from "A" to "z" that start one further each time, and a
/// NUL.
fn text(number: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip((number % 58) as usize);
    text.extend(letters.take(size.saturating_sub(text.len() + 1)));
    text.push(0);
    text
}
