//! What several tests share.

#![allow(dead_code)]

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::{Path as File, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rstream_net::{Path, TcpListener, TcpStream};

/// `xorshift64*`.
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Self(Cell::new(seed.wrapping_mul(2).wrapping_add(1) << 8));
        (0..8).for_each(|_| _ = random.next());
        random
    }

    fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The byte with this number in a stream. Bells, whose value is 7, are among the values.
pub(crate) fn value(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9) >> 11) as u8
}

pub(crate) fn values(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(value).collect()
}

pub(crate) fn check(from: u64, bytes: &[u8]) {
    let wrong = bytes.iter().zip(from..).find(|&(&byte, position)| byte != value(position));
    assert!(wrong.is_none(), "byte {} of a stream", wrong.unwrap().1);
}

/// A connection between two ends of this crate, which meet after so many calls.
pub(crate) fn pair(after: [u32; 2]) -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    one.upgrade_after(after[0]);
    other.upgrade_after(after[1]);
    [one, other]
}

/// Exchanges messages until both ends have moved to shared memory.
pub(crate) fn upgrade(ends: &[TcpStream; 2]) {
    for _ in 0..100 {
        let [mut one, mut other] = [&ends[0], &ends[1]];
        one.write_all(b"there").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        other.write_all(b"and back").unwrap();
        one.read_exact(&mut [0; 8]).unwrap();
        if ends.iter().all(|end| end.path() == Path::SharedMemory) {
            return;
        }
    }
    panic!("{ends:?}");
}

/// A connection that has been upgraded.
pub(crate) fn upgraded() -> [TcpStream; 2] {
    let ends = pair([0, 0]);
    upgrade(&ends);
    ends
}

/// An end of either kind.
pub(crate) enum End {
    Net(TcpStream),
    Std(std::net::TcpStream),
}

macro_rules! either {
    ($self:ident, $end:ident => $call:expr) => {
        match $self {
            End::Net($end) => $call,
            End::Std($end) => $call,
        }
    };
}

impl End {
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, end => { let mut end = end; end.read(buffer) })
    }

    pub(crate) fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        either!(self, end => { let mut end = end; end.read_vectored(buffers) })
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, end => { let mut end = end; end.write(bytes) })
    }

    pub(crate) fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, end => { let mut end = end; end.write_vectored(slices) })
    }

    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, end => end.peek(buffer))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        either!(self, end => end.shutdown(how))
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        either!(self, end => end.set_nonblocking(is_nonblocking)).unwrap();
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) {
        either!(self, end => end.set_read_timeout(timeout)).unwrap();
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) {
        either!(self, end => end.set_write_timeout(timeout)).unwrap();
    }

    pub(crate) fn set_nodelay(&self, is_nodelay: bool) {
        either!(self, end => end.set_nodelay(is_nodelay)).unwrap();
    }

    pub(crate) fn nodelay(&self) -> bool {
        either!(self, end => end.nodelay()).unwrap()
    }

    pub(crate) fn try_clone(&self) -> Self {
        match self {
            Self::Net(end) => Self::Net(end.try_clone().unwrap()),
            Self::Std(end) => Self::Std(end.try_clone().unwrap()),
        }
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        matches!(self, Self::Net(end) if end.path() == Path::SharedMemory)
    }
}

/// Runs a test of this program in a process of its own, which finds `address` in its environment.
pub(crate) fn spawn_test(name: &str, address: SocketAddr) -> Child {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", name, "--nocapture", "--test-threads=1"];
    Command::new(program).args(arguments).env("RSTREAM_NET_PEER", address.to_string()).spawn().unwrap()
}

/// The address for a process that [`spawn_test`] runs, and none in others.
pub(crate) fn peer_address() -> Option<SocketAddr> {
    std::env::var("RSTREAM_NET_PEER").ok().map(|address| address.parse().unwrap())
}

/// Processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

const ECHO: &str = "
import os, socket, subprocess, sys
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
end = listener.accept()[0]
listener.close()
on = 'while data := end.recv(65536): end.sendall(data)'

def become():
    os.dup2(end.fileno(), 0)
    os.execv(sys.executable, ['python3', '-c', 'import socket; end = socket.socket(fileno=0)\\n' + on])

def send():
    take = 'import socket; channel = socket.socket(fileno=0); end = socket.socket(fileno=socket.recv_fds(channel, 1, 1)[1][0])\\n'
    here, there = socket.socketpair()
    process = subprocess.Popen([sys.executable, '-c', take + on], stdin=there)
    there.close()
    try:
        socket.send_fds(here, [b'x'], [end.fileno()])
    except OSError:
        process.kill()
        process.wait()
        raise
    end.close()
    sys.exit(process.wait())

hand = {'become': become, 'send': send}.get(sys.argv[1])
until, moved = 200000, 0
while data := end.recv(65536):
    end.sendall(data)
    moved += len(data)
    if hand and moved >= until:
        try:
            hand()
        except OSError:
            until += 1000000
";

/// A server of one connection that returns what it receives, in a process which is preloaded. `how` it hands
/// the connection on in mid-stream: it becomes another program, or sends the socket to one. If that is
/// refused, it goes on and tries again later. `None`: it is not built, and the test is skipped.
pub(crate) fn preloaded_echo(test: &str, how: &str) -> Option<(Child, SocketAddr)> {
    let runner = built("rstream-run", test)?;
    Some(start_server(Command::new(runner).args(["python3", "-c", ECHO, how])))
}

const ATTACHED_ECHO: &str = "
import ctypes, socket, sys
rs = ctypes.CDLL(sys.argv[1])
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
end = listener.accept()[0]
assert rs.rs_attach(end.fileno()) == 0
moved, room = 0, ctypes.create_string_buffer(65536)
while (got := rs.rs_recv(end.fileno(), room, len(room), 0)) > 0:
    assert rs.rs_send(end.fileno(), room, got, 0) == got
    moved += got
    if sys.argv[2] == 'detach' and moved >= 200000:
        assert rs.rs_detach(end.fileno()) == 0
        while data := end.recv(65536):
            end.sendall(data)
        sys.exit()
assert got == 0 and rs.rs_close(end.detach()) == 0
";

/// The same in a process that attaches its end by `librstream_c.so`, which it loads when it runs. `how`:
/// `detach` in mid-stream.
pub(crate) fn attached_echo(test: &str, how: &str) -> Option<(Child, SocketAddr)> {
    let library = built("librstream_c.so", test)?;
    Some(start_server(Command::new("python3").args(["-c", ATTACHED_ECHO]).arg(library).arg(how)))
}

/// The path of what the release build has made. `None`: it is not built, and the test is skipped.
fn built(name: &str, test: &str) -> Option<PathBuf> {
    let path = File::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release").join(name);
    if !path.exists() {
        // Past the capture of output, for scripts/test.sh counts it.
        let text = format!("skipped {test}: target/release/{name} is not built\n");
        io::stderr().write_all(text.as_bytes()).unwrap();
        return None;
    }
    Some(path)
}

/// Starts a server that says its port first.
fn start_server(command: &mut Command) -> (Child, SocketAddr) {
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    (server, ([127, 0, 0, 1], port.trim().parse().unwrap()).into())
}
