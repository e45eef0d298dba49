//! Two hosts: `stream_copy` between two network namespaces that a pair of virtual Ethernet devices connects.
//! The tests are skipped if the system allows no namespaces.

mod support;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdma_testkit::skip;
use support::{Receiver, programs, same_content, sample_file, scratch, send, sent_checksum, with_provider};

/// Two connected namespaces, which are deleted when this is dropped.
struct TwoHosts {
    names: [String; 2],
}

/// The IPv4 and IPv6 address of each host.
const ADDRESSES: [[&str; 2]; 2] = [["10.211.7.1", "fd00:a7:a7::1"], ["10.211.7.2", "fd00:a7:a7::2"]];

fn ip(arguments: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs a command that must succeed after a namespace was created.
fn set_up(arguments: &str) {
    ip(arguments).expect("a namespace was created, so it can be set up");
}

impl TwoHosts {
    /// Creates them. Returns the reason if no namespace can be created here.
    fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("rstream-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let hosts = Self { names: [format!("{unique}-a"), format!("{unique}-b")] };
        let [a, b] = &hosts.names;
        ip(&format!("netns add {a}"))?;
        set_up(&format!("netns add {b}"));
        set_up(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"));
        for (name, [four, six]) in hosts.names.iter().zip(ADDRESSES) {
            set_up(&format!("-n {name} addr add {four}/24 dev eth0"));
            set_up(&format!("-n {name} addr add {six}/64 dev eth0 nodad"));
            set_up(&format!("-n {name} link set lo up"));
            set_up(&format!("-n {name} link set eth0 up"));
        }
        Ok(hosts)
    }

    /// `stream_copy` on one of the hosts.
    fn stream_copy(&self, host: usize) -> Command {
        let mut command = with_provider(Command::new("ip"));
        command.args(["netns", "exec", &self.names[host]]).arg(programs().join("stream_copy"));
        command
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn copies_between_two_hosts() {
    let hosts = match TwoHosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return skip("copies_between_two_hosts", &reason),
    };
    let folder = scratch("namespaces");
    let sample = sample_file(&folder, 20_000_003);
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        for transport in [&[][..], &["-P", "iwarp"], &["-t"]] {
            let copy = folder.join("copy");
            let mut arguments = vec!["-a", any, "-o", copy.to_str().expect("a path in UTF-8")];
            arguments.extend_from_slice(transport);
            let receiver = Receiver::start(hosts.stream_copy(0), &arguments);
            let mut command = hosts.stream_copy(1);
            command.stdin(std::fs::File::open(&sample).expect("the sample"));
            let sent = sent_checksum(&send(command, receiver.port, ADDRESSES[0][family], transport));
            assert_eq!(receiver.checksum(), sent);
            assert!(same_content(&sample, &copy));
        }
    }
}

/// Nothing answers on the route to the host, so the attempt takes the configured time-out.
#[test]
fn a_host_that_is_not_there_times_out() {
    let hosts = match TwoHosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return skip("a_host_that_is_not_there_times_out", &reason),
    };
    // The other host receives packets to this network and drops them without an error.
    set_up(&format!("-n {} route add 10.212.0.0/16 via {}", hosts.names[1], ADDRESSES[0][0]));
    set_up(&format!("-n {} route add blackhole 10.212.0.0/16", hosts.names[0]));
    let mut command = hosts.stream_copy(1);
    command.env("FI_RSTREAM_CONNECT_TIMEOUT_MS", "700");
    let start = Instant::now();
    let output = send(command, 7471, "10.212.0.1", &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(700) && took < Duration::from_secs(4), "{took:?}");
    assert!(errors.contains("timed out"), "{errors}");
}
