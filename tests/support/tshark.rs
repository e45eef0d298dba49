//! What Wireshark's dissectors say of a capture.

use std::path::Path;
use std::process::Command;

/// What tshark is asked not to try: dissectors for two users of RDMAP sends that guess, and that
/// take a 4-byte send for a damaged message of theirs.
const NO_GUESSING: [&str; 4] =
    ["--disable-heuristic", "rpcrdma_iwarp", "--disable-heuristic", "smb_direct_iwarp"];

/// What tshark prints about the capture.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(NO_GUESSING)
        .args(arguments)
        .output()
        .expect("tshark starts");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Packets that a display filter finds.
pub(crate) fn packets(file: &Path, filter: &str) -> usize {
    tshark(file, &["-Y", filter, "-T", "fields", "-e", "frame.number"]).lines().count()
}

/// Values of a field, each occurrence one.
pub(crate) fn values(file: &Path, filter: &str, field: &str) -> Vec<String> {
    let text = tshark(file, &["-Y", filter, "-T", "fields", "-e", field]);
    text.lines()
        .flat_map(|line| line.split(','))
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Checksums that tshark computed again: good ones and bad ones.
pub(crate) fn checksums(file: &Path) -> (usize, usize) {
    let text = tshark(file, &["-V", "-Y", "iwarp_mpa.fpdu"]);
    (text.matches("(Good CRC32)").count(), text.matches("(Bad CRC32").count())
}
