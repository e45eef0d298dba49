//! An echo server and its client, as with `std::net`. After some messages they go through shared memory.

use std::io::{self, Read, Write};
use std::thread;

use rstream_net::{TcpListener, TcpStream};

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        io::copy(&mut stream.try_clone()?, &mut stream)
    });

    let mut stream = TcpStream::connect(address)?;
    for number in 1..=20 {
        let message = format!("message {number}");
        stream.write_all(message.as_bytes())?;
        let mut answer = vec![0; message.len()];
        stream.read_exact(&mut answer)?;
        println!("{}: {:?}", String::from_utf8_lossy(&answer), stream.path());
    }
    drop(stream);
    println!("{} bytes were echoed", server.join().expect("the server does not panic")?);
    Ok(())
}
