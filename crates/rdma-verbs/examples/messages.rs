//! Messages of any length as events: a server that sends each message back, and a client.
//!
//! ```text
//! messages listen  ADDRESS:PORT [--device DEVICE]
//! messages connect ADDRESS:PORT [--device DEVICE]
//! cargo run --example messages
//! ```
//!
//! `DEVICE` is a name that the example `devinfo` lists; without it, this is the embedded device. Without
//! arguments, the program plays both sides.

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use lexopt::prelude::*;
use rdma_verbs::devices;
use rdma_verbs::typed::Shard;
use rdma_verbs::typed::messages::{Event, Hub, Options, Reason};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Lengths of the client's messages in bytes. The longest ones stay with their sender until they are read.
const LENGTHS: [usize; 6] = [1, 0, 4_000, 70_000, 1 << 20, 5];

fn main() -> Result<()> {
    let (mut words, mut device) = (Vec::new(), "iwarp".to_owned());
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("device") => device = arguments.value()?.string()?,
            Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let mut server = hub("iwarp")?;
            let address = server.listen("127.0.0.1:0".parse()?, 8)?;
            let server = thread::spawn(move || serve(server));
            ask(hub("iwarp")?, address)?;
            server.join().map_err(|_| "the server panicked")?
        }
        ["listen", address] => {
            let mut server = hub(&device)?;
            println!("server: listens on {}", server.listen(address.parse()?, 8)?);
            serve(server)
        }
        ["connect", address] => ask(hub(&device)?, address.parse()?),
        _ => Err("arguments: listen|connect ADDRESS:PORT [--device DEVICE], or none".into()),
    }
}

fn hub(device: &str) -> Result<Hub> {
    let device = devices().into_iter().find(|found| found.name() == device);
    let shard = Shard::open(&device.ok_or("this machine has no such device")?)?;
    Ok(Hub::new(&shard, Options::default())?)
}

/// Sends every message back, until the first client is gone.
fn serve(mut hub: Hub) -> Result<()> {
    // What the queue has no room for. As long as they are held, the client can send no more than its window.
    let mut waiting = VecDeque::new();
    loop {
        match hub.next().wait() {
            Event::Request(request) => {
                println!("server: a request of {}", request.peer_address());
                hub.accept(request, b"welcome")?;
            }
            Event::Established { peer, .. } => println!("server: {peer:?} is connected"),
            Event::Message { peer, message } => waiting.push_back((peer, message)),
            Event::Sent { .. } => {}
            Event::Disconnected { peer, reason } => {
                println!("server: {peer:?} is gone: {reason}");
                return Ok(());
            }
        }
        while let Some((peer, message)) = waiting.front()
            && hub.send(*peer, message).is_ok()
        {
            println!("server: {} bytes back to {peer:?}", message.len());
            waiting.pop_front();
        }
    }
}

/// Sends messages, and checks that they come back.
fn ask(mut hub: Hub, server: SocketAddr) -> Result<()> {
    let server = hub.connect(server, b"")?;
    let mut expected = VecDeque::from(LENGTHS.map(|length| vec![length as u8; length]));
    loop {
        match hub.next().wait() {
            Event::Established { private_data, .. } => {
                println!("client: the server says {:?}", String::from_utf8_lossy(&private_data));
                for message in &expected {
                    hub.send(server, message)?;
                }
            }
            Event::Message { message, .. } => {
                if expected.pop_front().as_deref() != Some(&*message) {
                    return Err("another message came back".into());
                }
                println!("client: {} bytes are back", message.len());
                if expected.is_empty() {
                    hub.disconnect(server);
                }
            }
            Event::Sent { .. } | Event::Request(_) => {}
            Event::Disconnected { reason: Reason::Ended(end), .. } if expected.is_empty() => {
                println!("client: {end}");
                return Ok(());
            }
            Event::Disconnected { reason, .. } => return Err(reason.into()),
        }
    }
}
