//! What a message with a key is, by its form: the protocols that are told here move data with such keys.

use crate::bytes::{u8_at, u32_at};
use crate::rpc::header::Header;

/// What the message is that has this key at this byte.
pub(super) fn name(bytes: &[u8], byte: usize, key: u32) -> Option<String> {
    rstream(bytes)
        .or_else(|| rpc(bytes, key))
        .or_else(|| iser(bytes, byte))
        .or_else(|| smb(bytes))
        .or_else(|| nvme(bytes, byte))
}

fn rstream(bytes: &[u8]) -> Option<String> {
    rstream_protocol::Offer::decode(bytes).is_ok().then(|| "connection parameters of rstream".to_owned())
}

fn rpc(bytes: &[u8], key: u32) -> Option<String> {
    let header = Header::parse(bytes).filter(|header| header.is_plausible(bytes, false))?;
    let mut reads = header.reads.iter().map(|(_, segment)| segment);
    let what = if reads.any(|segment| segment.handle == key) {
        "read"
    } else if header.writes.iter().flatten().any(|segment| segment.handle == key) {
        "write"
    } else {
        "reply"
    };
    Some(format!("{what} chunk of RPC {:#x}", header.xid))
}

/// The header of iSER (RFC 7145 9.2), and the task of the iSCSI command behind it.
fn iser(bytes: &[u8], byte: usize) -> Option<String> {
    const HEADER: usize = 28;
    let what = match (u8_at(bytes, 0)?, byte) {
        (0x18 | 0x1c, 4) => "write",
        (0x14 | 0x1c, 16) => "read",
        _ => return None,
    };
    Some(format!("{what} STag of iSER task {:#x}", u32_at(bytes, HEADER + 16)?))
}

/// SMB2 in a message of SMB Direct (MS-SMBD 2.2.3).
fn smb(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field));
    let data = bytes.get(usize::try_from(word(12)?).ok()?..)?;
    let [0xfe, b'S', b'M', b'B', ..] = data else { return None };
    let command = match (u8_at(data, 12)?, u8_at(data, 13)?) {
        (8, 0) => "read",
        (9, 0) => "write",
        _ => return None,
    };
    let message = u64::from_le_bytes(*data.get(24..)?.first_chunk()?);
    Some(format!("SMB2 {command}, message {message}"))
}

/// The keyed SGL of a command (NVMe over Fabrics 2.2, NVMe base 4.3.2).
fn nvme(bytes: &[u8], byte: usize) -> Option<String> {
    let (opcode, flags, kind) = (u8_at(bytes, 0)?, u8_at(bytes, 1)?, u8_at(bytes, 39)?);
    let is_it = bytes.len() >= 64 && byte == 35 && flags >> 6 == 1 && kind >> 4 == 4;
    let identifier = u16::from_le_bytes(*bytes.get(2..)?.first_chunk()?);
    is_it.then(|| format!("NVMe command {identifier:#x}, opcode {opcode:#04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with these in place, and zeros.
    fn with(length: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, part) in parts {
            bytes[*at..*at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn protocols_are_told_by_their_form() {
        let key = 0x0102_0304;
        let said = |bytes: &[u8], byte| name(bytes, byte, key).unwrap_or_default();
        let nvme = with(64, &[(0, &[2, 0x40, 0x34, 0x12]), (35, &[4, 3, 2, 1, 0x40])]);
        assert_eq!(said(&nvme, 35), "NVMe command 0x1234, opcode 0x02");
        let iser = with(76, &[(0, &[0x1c]), (44, &[0, 0, 0, 9])]);
        assert_eq!(
            (said(&iser, 4), said(&iser, 16)),
            ("write STag of iSER task 0x9".into(), "read STag of iSER task 0x9".into())
        );
        let smb = with(140, &[(12, &[24]), (24, b"\xfeSMB"), (36, &[8, 0]), (48, &[77])]);
        assert_eq!(said(&smb, 100), "SMB2 read, message 77");
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let chunk = [1, 1, key, 8, 0, 0x1000];
        for (lists, what) in [
            ([&[1, 0, key, 8, 0, 0x1000][..], &[0, 0, 0]].concat(), "read"),
            ([&[0], &chunk[..], &[0, 0]].concat(), "write"),
            ([&[0, 0], &chunk[..]].concat(), "reply"),
        ] {
            let rpc = words(&[&[0xabc, 1, 32, 0], &*lists, &[0xabc, 0, 2]].concat());
            assert_eq!(said(&rpc, 0), format!("{what} chunk of RPC 0xabc"));
        }
        for other in [&nvme[..63], &iser[..40], &smb[..30], b"text that is no protocol of these, 64 bytes"] {
            assert_eq!(said(other, 35), "");
        }
    }
}
