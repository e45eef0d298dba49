#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod faulty;
pub mod harness;
pub mod rigs;
pub mod sim;
pub mod suite;

use std::io::Write as _;

/// Says why the test of this name does not run here, past the capturing of output, in the form that
/// `scripts/test.sh` counts: `skipped NAME: REASON`.
///
/// # Panics
/// If standard error takes no line.
pub fn skip(test: &str, reason: &str) {
    let text = format!("skipped {test}: {}\n", reason.trim());
    std::io::stderr().write_all(text.as_bytes()).expect("standard error takes a line");
}
