//! Measures the streams of this crate against those of `std` and tokio, between two processes, in turns.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Messages there and back, and their length.
const MESSAGES: usize = 20_000;
const SHORT: usize = 64;
/// Calls one way, and their length.
const CALLS: usize = 4_000;
const LONG: usize = 64 << 10;
/// Measurements of each kind, of which the middle one counts.
const ROUNDS: usize = 7;

/// Of the first so many messages nothing is measured: the streams upgrade.
const EARLY: usize = 200;

/// Microseconds of a message there and back, and of a call one way.
type Times = [f64; 2];

fn lead(mut stream: impl Read + Write) -> io::Result<Times> {
    let (short, long) = ([1; SHORT], vec![1; LONG]);
    let mut start = Instant::now();
    for number in 0..EARLY + MESSAGES {
        if number == EARLY {
            start = Instant::now();
        }
        stream.write_all(&short)?;
        stream.read_exact(&mut [0; SHORT])?;
    }
    let there_and_back = start.elapsed();
    let start = Instant::now();
    for _ in 0..CALLS {
        stream.write_all(&long)?;
    }
    stream.read_exact(&mut [0])?;
    Ok(times(there_and_back.as_secs_f64(), start.elapsed().as_secs_f64()))
}

fn follow(mut stream: impl Read + Write) -> io::Result<()> {
    let (mut short, mut long) = ([0; SHORT], vec![0; LONG]);
    for _ in 0..EARLY + MESSAGES {
        stream.read_exact(&mut short)?;
        stream.write_all(&short)?;
    }
    for _ in 0..CALLS {
        stream.read_exact(&mut long)?;
    }
    stream.write_all(&[1])
}

async fn lead_async(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Times> {
    let (short, long) = ([1; SHORT], vec![1; LONG]);
    let mut start = Instant::now();
    for number in 0..EARLY + MESSAGES {
        if number == EARLY {
            start = Instant::now();
        }
        stream.write_all(&short).await?;
        stream.read_exact(&mut [0; SHORT]).await?;
    }
    let there_and_back = start.elapsed();
    let start = Instant::now();
    for _ in 0..CALLS {
        stream.write_all(&long).await?;
    }
    stream.read_exact(&mut [0]).await?;
    Ok(times(there_and_back.as_secs_f64(), start.elapsed().as_secs_f64()))
}

async fn follow_async(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let (mut short, mut long) = ([0; SHORT], vec![0; LONG]);
    for _ in 0..EARLY + MESSAGES {
        stream.read_exact(&mut short).await?;
        stream.write_all(&short).await?;
    }
    for _ in 0..CALLS {
        stream.read_exact(&mut long).await?;
    }
    stream.write_all(&[1]).await
}

fn times(there_and_back: f64, one_way: f64) -> Times {
    [there_and_back * 1e6 / MESSAGES as f64, one_way * 1e6 / CALLS as f64]
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The other process: connects with streams of this kind.
fn run_peer(kind: &str, address: SocketAddr) -> io::Result<()> {
    match kind {
        "std" => {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            follow(stream)
        }
        "rstream" => follow(rstream_net::TcpStream::connect(address)?),
        "tokio" => runtime()?.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            follow_async(stream).await
        }),
        _ => runtime()?
            .block_on(async { follow_async(rstream_net::tokio::TcpStream::connect(address).await?).await }),
    }
}

fn spawn_peer(kind: &str, address: SocketAddr) -> io::Result<Child> {
    Command::new(std::env::current_exe()?).args([kind, &address.to_string()]).spawn()
}

fn measure(kind: &str) -> io::Result<Times> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut peer = spawn_peer(kind, listener.local_addr()?)?;
    let socket = listener.accept()?.0;
    let times = match kind {
        "std" => {
            socket.set_nodelay(true)?;
            lead(socket)
        }
        "rstream" => lead(rstream_net::TcpStream::from_std(socket)?),
        "tokio" => runtime()?.block_on(async {
            socket.set_nonblocking(true)?;
            let stream = tokio::net::TcpStream::from_std(socket)?;
            stream.set_nodelay(true)?;
            lead_async(stream).await
        }),
        _ => {
            runtime()?.block_on(async { lead_async(rstream_net::tokio::TcpStream::from_std(socket)?).await })
        }
    }?;
    peer.wait()?;
    Ok(times)
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    if let [_, kind, address] = &arguments[..] {
        let address = address.parse().map_err(io::Error::other)?;
        return run_peer(kind, address);
    }
    let kinds = ["std", "rstream", "tokio", "rstream-tokio"];
    let mut measured = vec![Vec::new(); kinds.len()];
    for _ in 0..ROUNDS {
        for (kind, times) in kinds.iter().zip(&mut measured) {
            times.push(measure(kind)?);
        }
    }
    println!("{:14} {:>14} {:>16}", "", "64 B, and back", "64 KiB, one way");
    let figures: Vec<_> = measured
        .iter()
        .map(|times| [0, 1].map(|column| middle(times.iter().map(|of_one| of_one[column]).collect())))
        .collect();
    for (kind, [back, way]) in kinds.iter().zip(&figures) {
        println!("{kind:14} {back:11.2} us {way:13.2} us");
    }
    for (name, plain, own) in [("std", 0, 1), ("tokio", 2, 3)] {
        let [back, way] = [0, 1].map(|column| figures[plain][column] / figures[own][column]);
        println!("times as fast, {name}: {back:.1} there and back, {way:.1} one way");
    }
    Ok(())
}
