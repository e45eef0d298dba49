//! An echo server and its clients, as with `tokio::net`. After some messages they go through shared memory.

use std::io;

use rstream_net::tokio::{TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut input, mut output) = stream.into_split();
            tokio::io::copy(&mut input, &mut output).await
        });
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener));

    let mut clients = JoinSet::new();
    for client in 1..=3 {
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            for number in 1..=20 {
                let message = format!("message {number} of client {client}");
                stream.write_all(message.as_bytes()).await?;
                let mut answer = vec![0; message.len()];
                stream.read_exact(&mut answer).await?;
                println!("{}: {:?}", String::from_utf8_lossy(&answer), stream.path());
            }
            Ok::<_, io::Error>(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    server.abort();
    Ok(())
}
