//! Streams of `rstream-net` whose peers are C programs on stock libfabric. `stream_copy` sends or receives a file
//! over plain TCP at one end, over libfabric at the other, and compares checksums; what is in between passes the
//! bytes on.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use rstream_net::endpoint::{Listener, Options, Stream};
use support::{Receiver, Running, program, same_content, sample_file, scratch, send, sent_checksum};

/// A length that is no multiple of a call's size.
const LENGTH: usize = 5_000_011;

/// What both kinds of streams have. `shut` ends the output.
fn pass_on(mut from: impl Read, mut to: impl Write, shut: impl FnOnce()) {
    let mut buffer = vec![0; 50_021];
    loop {
        match from.read(&mut buffer).expect("bytes or the end") {
            0 => return shut(),
            length => to.write_all(&buffer[..length]).expect("room"),
        }
    }
}

/// Passes bytes on in both directions, until both have ended.
fn relay(plain: &TcpStream, stream: &Stream) {
    thread::scope(|scope| {
        scope.spawn(|| {
            pass_on(plain, stream, || stream.shutdown(Shutdown::Write).expect("an end"));
        });
        pass_on(stream, plain, || plain.shutdown(Shutdown::Write).expect("an end"));
    });
}

/// The stream connects to a listening program.
fn sends(test: &str, options: &Options, arguments: &[&str]) {
    let folder = scratch(test);
    let (sample, copy) = (sample_file(&folder, LENGTH), folder.join("copy"));
    let output = ["-o", copy.to_str().expect("a path in UTF-8")];
    let receiver = Receiver::start(program("stream_copy"), &[&output, arguments].concat());
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = plain.local_addr().expect("an address").port();
    let mut command = program("stream_copy");
    command.stdin(File::open(&sample).expect("the sample"));
    let sender = thread::spawn(move || sent_checksum(&send(command, port, "127.0.0.1", &["-t"])));
    let stream = options.connect(("127.0.0.1", receiver.port)).expect("a stream");
    relay(&plain.accept().expect("a connection").0, &stream);
    drop(stream);
    assert_eq!(receiver.checksum(), sender.join().expect("a checksum"));
    assert!(same_content(&sample, &copy));
}

/// A program connects to the stream's listener.
fn receives(test: &str, options: &Options, arguments: &'static [&str]) {
    let folder = scratch(test);
    let (sample, copy) = (sample_file(&folder, LENGTH), folder.join("copy"));
    let output = ["-o", copy.to_str().expect("a path in UTF-8"), "-t"];
    let receiver = Receiver::start(program("stream_copy"), &output);
    let listener = options.bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().port();
    let mut command = program("stream_copy");
    command.stdin(File::open(&sample).expect("the sample"));
    let sender = thread::spawn(move || sent_checksum(&send(command, port, "127.0.0.1", arguments)));
    let stream = listener.accept().expect("a stream").0;
    relay(&TcpStream::connect(("127.0.0.1", receiver.port)).expect("a connection"), &stream);
    drop(stream);
    assert_eq!(receiver.checksum(), sender.join().expect("a checksum"));
    assert!(same_content(&sample, &copy));
}

#[test]
fn a_stream_sends_to_a_program_of_libfabric() {
    sends("endpoint_sends", &Options::new(), &[]);
    sends("endpoint_sends_queued", &Options::new().share_memory(false), &[]);
}

#[test]
fn a_stream_receives_from_a_program_of_libfabric() {
    receives("endpoint_receives", &Options::new(), &[]);
    receives("endpoint_receives_queued", &Options::new().share_memory(false), &[]);
}

#[test]
fn they_may_have_odd_sizes() {
    let options = Options::new().rings(601, 7001).depths(5, 4);
    let arguments = &["-b", "7919", "-S", "5003", "-R", "5003", "-Q", "5"];
    sends("endpoint_sends_odd", &options, arguments);
    receives("endpoint_receives_odd", &options, arguments);
}

#[test]
fn a_program_that_was_killed_is_a_reset() {
    let listener = Listener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().port().to_string();
    let mut command = program("stream_copy");
    // Without an end of its input it goes on.
    command.args(["send", "-q", "-p", &port, "127.0.0.1"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let sender = Running::start(command, "stream_copy send");
    let mut stream = listener.accept().expect("a stream").0;
    stream.read_exact(&mut [0; 8]).expect("the beginning of its header");
    // It is killed.
    drop(sender);
    let error = stream.read_to_end(&mut Vec::new()).expect_err("no end of the stream");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
