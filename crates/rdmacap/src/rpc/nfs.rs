//! Where NFS has the data of write chunks in its replies (RFC 8267): behind the lengths of the results of
//! READ and READLINK, chunk for chunk in the order of the operations.

use crate::bytes::u32_at;

const NFS: u32 = 100_003;

/// XDR as it is read.
#[derive(Debug, Clone, Copy)]
struct Xdr<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Xdr<'_> {
    fn word(&mut self) -> Option<u32> {
        let word = u32_at(self.bytes, self.at)?;
        self.at += 4;
        Some(word)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.at = self.at.checked_add(length).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// Opaque data, or a string.
    fn opaque(&mut self) -> Option<()> {
        let length = self.word()? as usize;
        self.skip(length.checked_next_multiple_of(4)?)
    }

    /// A list of words: a bitmap of attributes.
    fn words(&mut self) -> Option<()> {
        let count = self.word()? as usize;
        self.skip(count.checked_mul(4)?)
    }

    /// A word that says that all is well.
    fn zero(&mut self) -> Option<()> {
        (self.word()? == 0).then_some(())
    }

    /// The length of data that a chunk of `chunk` bytes has: the data belongs behind it.
    fn reduced(&mut self, chunk: u32) -> Option<usize> {
        (self.word()? == chunk).then_some(self.at)
    }
}

/// Where in a reply without its chunks the data of each write chunk belongs that has some, by the lengths of
/// all chunks. `None`: it is not NFS, or other operations are before it.
pub(super) fn places(
    (program, version, procedure): (u32, u32, u32),
    reply: &[u8],
    chunks: &[u32],
) -> Option<Vec<usize>> {
    let mut xdr = Xdr { bytes: reply, at: 0 };
    // Number, reply, accepted, verifier, success.
    xdr.skip(8)?;
    xdr.zero()?;
    xdr.skip(4)?;
    xdr.opaque()?;
    xdr.zero()?;
    let attributes = |xdr: &mut Xdr<'_>| match xdr.word()? {
        0 => Some(()),
        _ => xdr.skip(84),
    };
    match (program, version, procedure) {
        (NFS, 4, 1) => return compound(xdr, chunks),
        // READ and READLINK; fixed attributes, or none in front of a link.
        (NFS, 2, 6) => (xdr.zero()?, xdr.skip(68)?).1,
        (NFS, 2, 5) => xdr.zero()?,
        // The same with attributes that may not be there; READ has a count and the end of file as well.
        (NFS, 3, 6) => (xdr.zero()?, attributes(&mut xdr)?, xdr.skip(8)?).2,
        (NFS, 3, 5) => (xdr.zero()?, attributes(&mut xdr)?).1,
        _ => return None,
    }
    let mut used = chunks.iter().filter(|length| **length > 0);
    let place = xdr.reduced(*used.next()?)?;
    used.next().is_none().then(|| vec![place])
}

/// The same of the results of a COMPOUND (RFC 7530, RFC 8881), up to the last chunk.
fn compound(mut xdr: Xdr<'_>, chunks: &[u32]) -> Option<Vec<usize>> {
    let mut left = chunks.iter().rposition(|length| *length > 0)? + 1;
    let mut chunks = chunks.iter();
    let mut places = Vec::new();
    // Status and tag; that the last operation failed is no matter.
    xdr.skip(4)?;
    xdr.opaque()?;
    xdr.word()?;
    while left > 0 {
        let (operation, status) = (xdr.word()?, xdr.word()?);
        if let 25 | 27 = operation {
            let chunk = chunks.next().copied()?;
            left -= 1;
            if status == 0 {
                if operation == 25 {
                    // Whether it is the end of the file.
                    xdr.skip(4)?;
                }
                if chunk > 0 { places.push(xdr.reduced(chunk)?) } else { xdr.opaque()? }
            }
            continue;
        }
        match operation {
            _ if status != 0 => return None,
            // ACCESS, COMMIT
            3 | 5 => xdr.skip(8)?,
            // CLOSE, OPEN_CONFIRM, OPEN_DOWNGRADE, WRITE
            4 | 20 | 21 | 38 => xdr.skip(16)?,
            // GETATTR
            9 => (xdr.words()?, xdr.opaque()?).1,
            // GETFH
            10 => xdr.opaque()?,
            // LOOKUP, LOOKUPP, NVERIFY, PUTFH, PUTPUBFH, PUTROOTFH, RENEW, RESTOREFH, SAVEFH, VERIFY
            15..=17 | 22..=24 | 30..=32 | 37 => {}
            // SETATTR
            34 => xdr.words()?,
            // SEQUENCE
            53 => xdr.skip(36)?,
            _ => return None,
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// A reply with this result; the header is 24 bytes.
    fn reply(result: &[u32]) -> Vec<u8> {
        words(&[&[7, 1, 0, 0, 0, 0], result].concat())
    }

    #[test]
    fn versions_2_and_3_have_one_place() {
        let attributes = [[1].as_slice(), &[9; 21]].concat();
        let read = [&[0], &*attributes, &[300, 1, 300]].concat();
        assert_eq!(places((NFS, 3, 6), &reply(&read), &[300]), Some(vec![24 + 4 + 88 + 12]));
        assert_eq!(places((NFS, 3, 6), &reply(&[0, 0, 5, 1, 5]), &[5]), Some(vec![24 + 20]));
        // A chunk that was not used, and one of another length than is said.
        assert_eq!(places((NFS, 3, 6), &reply(&[0, 0, 5, 1, 5]), &[0, 5]), Some(vec![24 + 20]));
        assert_eq!(places((NFS, 3, 6), &reply(&[0, 0, 5, 1, 6]), &[5]), None);
        assert_eq!(places((NFS, 3, 6), &reply(&[0, 0, 5, 1, 5]), &[5, 5]), None);
        assert_eq!(places((NFS, 3, 5), &reply(&[0, 0, 7]), &[7]), Some(vec![24 + 12]));
        let read = [&[0], &[3; 17][..], &[8]].concat();
        assert_eq!(places((NFS, 2, 6), &reply(&read), &[8]), Some(vec![24 + 76]));
        assert_eq!(places((NFS, 2, 5), &reply(&[0, 7]), &[7]), Some(vec![24 + 8]));
        // It failed; and it is something else.
        assert_eq!(places((NFS, 3, 6), &reply(&[2, 0]), &[5]), None);
        assert_eq!(places((NFS, 3, 7), &reply(&[0, 0, 5, 1, 5]), &[5]), None);
        assert_eq!(places((100_005, 3, 6), &reply(&[0, 0, 5, 1, 5]), &[5]), None);
    }

    #[test]
    fn version_4_matches_chunks_with_reads() {
        let sequence = [&[53, 0], &[1; 9][..]].concat();
        let getattr = [9, 0, 2, 1, 2, 4, 99];
        let before = [&[0, 0, 6], &*sequence, &[22, 0], &getattr].concat();
        let at = 24 + 4 * before.len();
        // A read with a chunk, a link inline, a read inline with its chunk unused, and a read with a chunk.
        let reads = [25, 0, 1, 500, 27, 0, 3, 0x6162_6300, 25, 0, 0, 2, 0x1234_0000, 25, 0, 1, 9];
        let whole = reply(&[&*before, &reads].concat());
        let result = places((NFS, 4, 1), &whole, &[500, 0, 0, 9]);
        assert_eq!(result, Some(vec![at + 16, at + 16 + 16 + 20 + 16]));
        // The last one failed, and has no data.
        let failed = [25, 0, 1, 500, 25, 13];
        let result = places((NFS, 4, 1), &reply(&[&*before, &failed].concat()), &[500, 0]);
        assert_eq!(result, Some(vec![at + 16]));
        // Fewer reads than chunks, and an operation that is not known.
        assert_eq!(places((NFS, 4, 1), &whole, &[500, 0, 0, 9, 9]), None);
        assert_eq!(places((NFS, 4, 1), &reply(&[0, 0, 2, 18, 0, 25, 0, 1, 4]), &[4]), None);
        // Cut anywhere.
        for length in 0..whole.len() {
            assert_eq!(places((NFS, 4, 1), &whole[..length], &[500, 0, 0, 9]), None);
        }
    }
}
