//! Decodes a capture with Wireshark's dissectors.

use std::path::Path;
use std::process::Command;

/// Disables the heuristic dissectors of two protocols over RDMAP sends, which take a 4-byte send for a
/// damaged message.
const NO_HEURISTICS: [&str; 4] =
    ["--disable-heuristic", "rpcrdma_iwarp", "--disable-heuristic", "smb_direct_iwarp"];

/// Looks at what a connection carries before its ports, which may be those of another protocol (44818: EtherNet/IP).
const CONTENT_FIRST: [&str; 2] = ["-o", "tcp.try_heuristic_first:TRUE"];

/// The output of tshark for the capture.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(NO_HEURISTICS)
        .args(CONTENT_FIRST)
        .args(arguments)
        .output()
        .expect("tshark starts");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The number of packets that match a display filter.
pub(crate) fn packets(file: &Path, filter: &str) -> usize {
    tshark(file, &["-Y", filter, "-T", "fields", "-e", "frame.number"]).lines().count()
}

/// The values of a field, one for each occurrence.
pub(crate) fn values(file: &Path, filter: &str, field: &str) -> Vec<String> {
    let text = tshark(file, &["-Y", filter, "-T", "fields", "-e", field]);
    text.lines()
        .flat_map(|line| line.split(','))
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The numbers of valid and invalid CRCs.
pub(crate) fn checksums(file: &Path) -> (usize, usize) {
    let text = tshark(file, &["-V", "-Y", "iwarp_mpa.fpdu"]);
    (text.matches("(Good CRC32)").count(), text.matches("(Bad CRC32").count())
}
