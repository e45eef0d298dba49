//! Headers of DDP and messages of RDMAP: what is read is written again as it was, as far as it
//! means something.

#![no_main]

use libfuzzer_sys::fuzz_target;
use iwarp_wire::ddp::{self, Header};
use iwarp_wire::rdmap::{self, About, Opcode, ReadRequest, Terminate};

fuzz_target!(|data: &[u8]| {
    match Header::parse(data) {
        Ok(Header::Tagged(header)) => {
            let mut bytes = [0; ddp::TAGGED];
            header.emit(&mut bytes);
            // The bits of the first byte that are reserved are not kept.
            assert_eq!(bytes[0], data[0] & 0xc3);
            assert_eq!(bytes[1..], data[1..ddp::TAGGED]);
            opcode(header.ulp);
        }
        Ok(Header::Untagged(header)) => {
            let mut bytes = [0; ddp::UNTAGGED];
            header.emit(&mut bytes);
            assert_eq!(bytes[0], data[0] & 0xc3);
            assert_eq!(bytes[1..], data[1..ddp::UNTAGGED]);
            opcode(header.ulp);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(bytes) = data.first_chunk() {
        let mut again = [0; rdmap::READ_REQUEST];
        ReadRequest::parse(bytes).emit(&mut again);
        assert_eq!(again, *bytes);
    }
    if let Some(bytes) = data.first_chunk() {
        let terminate = Terminate::parse(bytes);
        let mut again = [0; 4 + 20 + rdmap::READ_REQUEST];
        let (head, rest) = data.split_at(data.len().min(20));
        let about = About { head, request: rest.first_chunk() };
        let copies = about.head.len() + about.request.map_or(0, |request| request.len());
        assert_eq!(terminate.emit(&about, &mut again), 4 + copies);
        assert!(again[4..4 + copies] == data[..copies]);
        // What was written is read as it was meant, whichever end siw counted the bits from.
        assert_eq!(again.first_chunk().map(Terminate::parse), Some(terminate));
        assert!(terminate.to_string().contains(terminate.meaning()));
    }
    if let Some(bytes) = data.first_chunk() {
        assert_eq!(rdmap::emit_immediate(rdmap::parse_immediate(bytes))[..4], data[..4]);
    }
});

fn opcode(control: u8) {
    if let Ok(opcode) = Opcode::parse(control) {
        assert_eq!(opcode.control(), control & 0xcf);
    }
}
