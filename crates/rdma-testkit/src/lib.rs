#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod faulty;
pub mod harness;
pub mod random;
pub mod rigs;
pub mod sim;
pub mod suite;
#[allow(unsafe_code)]
mod trusted;

use std::io::Write as _;

/// Prints why the test of this name does not run here, as `skipped NAME: REASON`, which `scripts/test.sh`
/// counts. Writes to standard error directly, because the test harness captures what the macros print.
///
/// # Panics
/// If standard error cannot be written.
pub fn skip(test: &str, reason: &str) {
    let text = format!("skipped {test}: {}\n", reason.trim());
    std::io::stderr().write_all(text.as_bytes()).expect("standard error can be written");
}
