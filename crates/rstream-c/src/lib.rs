#![doc = include_str!("../README.md")]
#![allow(unreachable_pub, reason = "C reaches them")]
#![allow(clippy::missing_safety_doc, reason = "the comments are those of the C header")]

mod attach;
mod bytes;
mod options;
mod process;
mod wait;
