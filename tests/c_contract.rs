//! Runs the C conformance program, which has a test for every line of the contract, through stock libfabric.

mod support;

use std::process::Command;

use support::{program, with_provider};

#[test]
fn every_line_of_the_contract_holds() {
    let output = program("conformance").output().expect("conformance starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed"), "{last}");
}

#[test]
fn both_protocols_are_discovered() {
    for (requested, reported) in
        [("unspec", "FI_PROTO_RSTREAM"), ("rstream", "FI_PROTO_RSTREAM"), ("iwarp", "FI_PROTO_IWARP")]
    {
        let output =
            program("info_probe").args([requested, "127.0.0.1", "7471"]).output().expect("info_probe starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("type FI_EP_SOCK_STREAM"), "{text}");
        assert!(text.contains(&format!("protocol {reported} ")), "{text}");
    }
}

#[test]
fn parameters_are_listed() {
    let output = with_provider(Command::new("fi_info")).arg("-e").output().expect("fi_info starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for (name, default) in [
        ("FI_RSTREAM_CONNECT_TIMEOUT_MS", "10000"),
        ("FI_RSTREAM_KEEPALIVE_S", "30"),
        ("FI_RSTREAM_LINGER_MS", "5000"),
        ("FI_RSTREAM_SPIN_US", "20"),
        ("FI_RSTREAM_IFACE", "default: )"),
        ("FI_RSTREAM_SHM", "1"),
        ("FI_RSTREAM_DELIVERY", "0"),
        ("FI_RSTREAM_IWARP_CRC", "0"),
        ("FI_RSTREAM_IWARP_MPA_REVISION", "2"),
        ("FI_RSTREAM_PCAP", "default: )"),
    ] {
        let (_, after) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
        let help: String = after.lines().take(4).collect();
        assert!(help.contains(default), "{name}: {help}");
    }
}
