//! A listener of a process that has no descriptors left waits without spinning, and continues when there are
//! some again.

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
    // The first request opens every descriptor that the listener itself needs.
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(&request()).unwrap();
    let request_of_first = end.until("a request", |end| end.requests.pop_front()).unwrap();
    assert!(request_of_first.private_data().is_empty());
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(&request()).unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!end.poll(), "there is no descriptor for the second connection");
    let ready = end.events.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    let deadline = end.deadline().expect("the listener tries again");
    setrlimit(Resource::Nofile, before).unwrap();

    assert!(!ready, "the set stays readable: its owner would spin");
    assert!(deadline <= Instant::now() + Duration::from_millis(200));
    end.until("the second request", |end| end.requests.pop_front()).unwrap();
}

/// An MPA request of revision 1 without private data.
fn request() -> Vec<u8> {
    [b"MPA ID Req Frame".as_slice(), &[0, 1, 0, 0]].concat()
}
