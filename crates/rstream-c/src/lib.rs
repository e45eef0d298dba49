#![doc = include_str!("../README.md")]
#![allow(unreachable_pub, reason = "C reaches them")]
#![allow(clippy::missing_safety_doc, reason = "the comments are those of the C header")]
// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod attach;
mod bytes;
mod options;
mod process;
mod wait;
