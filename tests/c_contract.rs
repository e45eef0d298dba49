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
        ("FI_RSTREAM_SHM", "1"),
        ("FI_RSTREAM_IWARP_CRC", "0"),
        ("FI_RSTREAM_IWARP_MPA_REVISION", "2"),
    ] {
        let (_, after) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
        let help: String = after.lines().take(4).collect();
        assert!(help.contains(default), "{name}: {help}");
    }
}

/// For endpoint types that the provider does not support, `fi_info` prints the same with the provider and
/// without it, in the same order.
#[test]
fn other_providers_are_not_affected() {
    let own = own_providers();
    let with_rstream = format!("{}:{own}", support::provider_folder().display());
    for endpoint in ["FI_EP_MSG", "FI_EP_RDM", "FI_EP_DGRAM"] {
        let fi_info = |folders: &str| {
            let mut command = Command::new("fi_info");
            command.env_remove("FI_PROVIDER").env("FI_PROVIDER_PATH", folders).args(["-v", "-t", endpoint]);
            let output = command.output().expect("fi_info starts");
            (output.status.code(), without_addresses(&output.stdout))
        };
        assert_eq!(fi_info(&with_rstream), fi_info(&own), "{endpoint}");
    }
}

/// The folder in which libfabric searches for loadable providers by default.
fn own_providers() -> String {
    let output = Command::new("fi_info").env_remove("FI_PROVIDER_PATH").arg("-e").output();
    let output = output.expect("fi_info starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let help = text.split_once("# FI_PROVIDER_PATH:").and_then(|(_, after)| after.lines().nth(1));
    let folder = help.and_then(|help| help.rsplit_once("(default: "));
    let (_, folder) = folder.unwrap_or_else(|| panic!("no default of FI_PROVIDER_PATH in {text}"));
    folder.trim_end_matches(')').to_owned()
}

/// The lines of a text without those that differ between runs: pointers, and addresses that contain process
/// ids.
fn without_addresses(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let same = |line: &&str| !line.contains("0x") && !line.contains("fi_shm://");
    text.lines().filter(same).map(str::to_owned).collect()
}
