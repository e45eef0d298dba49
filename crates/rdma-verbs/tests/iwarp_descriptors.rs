//! A listener of a process that has run out of descriptors waits without spinning, and goes on
//! when there are some again.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::iwarp::Device;
use rdma_verbs::{
    ConnectOptions, ConnectionRequest as _, Device as _, EventTarget, Listener as _, Token, WaitSet,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_listener_without_descriptors_pauses() {
    let wait = Arc::new(WaitSet::new().unwrap());
    let options = ConnectOptions { timeout: Duration::from_secs(10), keepalive: Duration::from_secs(30) };
    let events = EventTarget { wait: Arc::clone(&wait), token: Token(1) };
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = Device::default().listen(address, 8, &options, events).unwrap();
    // Two, so that the one descriptor that the signal of a wait set needs is there already.
    let mut first = connect(&listener.local_address());
    first.write_all(&request()).unwrap();
    assert!(until(|| listener.poll()).private_data().is_empty());
    let mut second = connect(&listener.local_address());
    second.write_all(&request()).unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(listener.poll().is_none(), "there is no descriptor for it");
    let ready = wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    let deadline = listener.deadline().expect("it tries again by itself");
    setrlimit(Resource::Nofile, before).unwrap();

    assert!(!ready, "the set stays readable: its owner would spin");
    assert!(deadline <= Instant::now() + Duration::from_millis(200));
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    until(|| listener.poll());
}

fn connect(address: &std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

/// An MPA request of revision 1 without private data.
fn request() -> Vec<u8> {
    [b"MPA ID Req Frame".as_slice(), &[0, 1, 0, 0]].concat()
}

fn until<T>(mut call: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = call() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}
