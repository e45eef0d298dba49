//! libfabric as its headers say it; `build.rs` generates it.

#![allow(non_camel_case_types, unreachable_pub, dead_code)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
