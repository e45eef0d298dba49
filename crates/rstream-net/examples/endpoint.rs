//! A stream over the embedded RDMA device: both sides in one process, each in a thread. A program of libfabric with
//! FI_PROVIDER=rstream can be either of them.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use rstream_net::endpoint::{Answer, Listener, Options};

fn main() -> io::Result<()> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr();
    let server = thread::spawn(move || -> io::Result<()> {
        let greet = |data: &[u8]| [b"hello, ", data].concat();
        let (mut stream, peer) = listener.accept_with(|request| Answer::Accept(greet(request.data())))?;
        println!("server: {peer} is {}", String::from_utf8_lossy(stream.peer_data()));
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                length => stream.write_all(&buffer[..length])?,
            }
        }
    });

    let mut stream = Options::new().rings(1 << 16, 1 << 16).data("example").connect(address)?;
    println!("client: the server says {:?}", String::from_utf8_lossy(stream.peer_data()));
    for turn in 0..100 {
        let (line, mut answer) = (format!("line {turn:2}"), [0; 7]);
        stream.write_all(line.as_bytes())?;
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, line.as_bytes());
    }
    stream.shutdown(Shutdown::Write)?;
    assert_eq!(stream.read(&mut [0])?, 0);
    println!("client: {} bytes by {:?}", stream.statistics().sends.bytes, stream.path());
    server.join().map_err(|_| io::ErrorKind::Other)?
}
