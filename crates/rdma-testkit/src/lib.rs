//! For tests of programs and devices of [`rdma_verbs`].
//!
//! | module | what it is |
//! |---|---|
//! | [`sim`] | a device in memory: no sockets, no hardware, nothing but the order of calls decides |
//! | [`faulty`] | any device, with seeded faults that the contract allows |
//! | [`harness`] | two ends of a connection, and the documented way to drive them |
//! | [`suite`] | what [`rdma_verbs`] promises, as tests that every device passes ([`conformance!`]) |
//! | [`rigs`] | how the suite gets the devices that every machine has |
//! | [`skip`] | says why a test does not run here |

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
