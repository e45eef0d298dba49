//! Two joined streams, and a list of operations on them: the same machines and the same promises as
//! in the unit tests, with the input deciding what happens next.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rstream_protocol::pair;

/// Decisions from the input: two bytes each, zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl pair::Choose for Input<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let Some((bytes, rest)) = self.0.split_first_chunk() else { return 0 };
        self.0 = rest;
        u64::from(u16::from_le_bytes(*bytes)) % bound
    }
}

fuzz_target!(|data: &[u8]| {
    // A step takes four decisions or so.
    pair::run(&mut Input(data), (data.len() / 8) as u32);
});
