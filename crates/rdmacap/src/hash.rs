//! Maps whose keys peers choose. Their hashes depend on numbers that only this process knows: whoever makes a
//! capture cannot tell which keys collide. For keys of a few words this is several times as fast as the
//! standard library's SipHash, and weaker: it is no secret to somebody who sees hashes, which nobody does.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;

pub(crate) type Map<K, V> = HashMap<K, V, Keyed>;
pub(crate) type Set<K> = HashSet<K, Keyed>;

/// An address as a part of keys: a number is compared and hashed sooner. It has one meaning, because the link
/// takes the IPv6 addresses that stand for IPv4 ones for those.
pub(crate) type Host = u128;

pub(crate) fn host(address: IpAddr) -> Host {
    match address {
        IpAddr::V4(address) => 0xffff << 32 | Host::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// What makes hashers that are keyed by two secret numbers of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keyed {
    start: u64,
    factor: u64,
}

impl Default for Keyed {
    fn default() -> Self {
        static SECRET: OnceLock<Keyed> = OnceLock::new();
        *SECRET.get_or_init(|| {
            let random = RandomState::new();
            // A factor that is odd loses no bit.
            Self { start: random.hash_one(0), factor: random.hash_one(1) | 1 }
        })
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.start, factor: self.factor }
    }
}

/// Takes a word by a product of 128 bits, both halves of which count.
#[derive(Debug)]
pub(crate) struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, self.factor);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    /// Once more: after one product, one factor in sixty leaves keys that are alike too close to each other.
    fn finish(&self) -> u64 {
        fold(self.state, self.factor)
    }
}

fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Keys as captures have them: few bits of each differ, in any place.
    #[test]
    fn keys_that_are_alike_are_spread() {
        let random = RandomState::new();
        for round in 0..100 {
            spreads(Keyed { start: random.hash_one((round, 0)), factor: random.hash_one((round, 1)) | 1 });
        }
    }

    fn spreads(keyed: Keyed) {
        let hosts = (0..32_u32).flat_map(|host| {
            [IpAddr::V4(Ipv4Addr::from(host << 24)), IpAddr::V6(Ipv6Addr::from(u128::from(host) << 64))]
        });
        let keys = hosts.flat_map(|host| (0..1024_u32).map(move |key| (host, key << 8)));
        let hashes: Vec<u64> = keys.map(|key| keyed.hash_one(key)).collect();
        let distinct: HashSet<u64> = hashes.iter().copied().collect();
        assert_eq!(distinct.len(), hashes.len());
        // A map takes its place from the lowest bits and what it compares first from the highest.
        for shift in [0, 57] {
            let mut places = [0_usize; 128];
            hashes.iter().for_each(|hash| places[(hash >> shift) as usize & 127] += 1);
            let (even, most) = (hashes.len() / 128, places.iter().max().copied());
            assert!(
                most.is_some_and(|most| most < even + even / 2),
                "{most:?} in a place, of {even}: {keyed:?}"
            );
        }
    }
}
