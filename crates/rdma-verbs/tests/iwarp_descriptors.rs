//! A listener of a process that has run out of descriptors waits without spinning, and goes on
//! when there are some again.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdma_testkit::harness::End;
use rdma_verbs::ConnectionRequest as _;
use rdma_verbs::iwarp::Device;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_listener_without_descriptors_pauses() {
    let mut end = End::new(Device::default());
    let address = end.listen("127.0.0.1:0".parse().unwrap());
    // Two, so that the one descriptor that the signal of a wait set needs is there already.
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(&request()).unwrap();
    let asked = end.until("a request", |end| end.requests.pop_front()).unwrap();
    assert!(asked.private_data().is_empty());
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(&request()).unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!end.poll(), "there is no descriptor for it");
    let ready = end.events.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    let deadline = end.deadline().expect("it tries again by itself");
    setrlimit(Resource::Nofile, before).unwrap();

    assert!(!ready, "the set stays readable: its owner would spin");
    assert!(deadline <= Instant::now() + Duration::from_millis(200));
    end.until("the second request", |end| end.requests.pop_front()).unwrap();
}

/// An MPA request of revision 1 without private data.
fn request() -> Vec<u8> {
    [b"MPA ID Req Frame".as_slice(), &[0, 1, 0, 0]].concat()
}
