//! iWARP on the wire, as codecs: checked parsers to plain values, and `emit` for each. There is no I/O, no
//! state and no allocation, and nothing but `core` is needed.
//!
//! | module | layer |
//! |---|---|
//! | [`mpa`] | MPA (RFC 5044, RFC 6581): connection requests and replies, and framed PDUs (FPDUs) in a TCP stream |
//! | [`ddp`] | DDP (RFC 5041): segment headers, tagged and untagged |
//! | [`rdmap`] | RDMAP (RFC 5040, RFC 7306): opcodes, Read Requests and Terminate |
//!
//! ```
//! use iwarp_wire::ddp::{self, Header, Tagged};
//! use iwarp_wire::rdmap::Opcode;
//!
//! # fn main() -> Result<(), Box<dyn core::error::Error>> {
//! let header = Tagged { last: true, ulp: Opcode::Write.control(), stag: 0x1234, offset: 4096 };
//! let mut bytes = [0; ddp::TAGGED];
//! header.emit(&mut bytes);
//! let Header::Tagged(parsed) = Header::parse(&bytes)? else { unreachable!() };
//! assert_eq!((parsed, Opcode::parse(parsed.ulp)?), (header, Opcode::Write));
//! # Ok(())
//! # }
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod ddp;
pub mod mpa;
pub mod rdmap;
