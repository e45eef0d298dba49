//! The regions that keys name, by host. A key that names something else later is another region.
//!
//! Keys that were not used for long are forgotten, so that a capture with ever new keys has its bound: the
//! maps are two generations, and the older one is dropped when the younger one is full.

use std::collections::hash_map::Entry;
use std::net::IpAddr;

use crate::hash::{self, Host, Map, Set};
use crate::operation::{Region, Sink};
use crate::table::Table;

/// What a key takes of memory, and again each connection that uses it: its places in the maps.
const USE: usize = 256;

type Name = (Host, u32);

#[derive(Debug, Default)]
struct Known {
    /// The region that the key names now.
    region: Option<u32>,
    /// How many it has named.
    epochs: u32,
    /// Connections that used it and are not over.
    users: Vec<u32>,
}

/// What keys name.
#[derive(Debug)]
pub(crate) struct Regions {
    young: Table<Name, Known>,
    old: Table<Name, Known>,
    used_by: Map<u32, Set<Name>>,
    /// Keys and uses in `young`, and the most that there may be.
    grown: usize,
    most: usize,
    made: u32,
}

impl Regions {
    /// None yet. Both generations together take at most so many bytes.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            young: Table::default(),
            old: Table::default(),
            used_by: Map::default(),
            grown: 0,
            most: (memory / USE / 2).max(64),
            made: 0,
        }
    }

    /// The region that `key` names at `host`, which a connection uses.
    pub(crate) fn find(&mut self, connection: u32, host: IpAddr, key: u32, sink: &mut dyn Sink) -> u32 {
        if self.grown >= self.most {
            self.age();
        }
        let name = (hash::host(host), key);
        let known = match self.young.get_mut(&name) {
            Some(known) => known,
            None => {
                let known = self.old.remove(&name).unwrap_or_default();
                self.grown += 1 + known.users.len();
                self.young.insert(name, known)
            }
        };
        if !known.users.contains(&connection) {
            known.users.push(connection);
            self.used_by.entry(connection).or_default().insert(name);
            self.grown += 1;
        }
        *known.region.get_or_insert_with(|| {
            (self.made, known.epochs) = (self.made + 1, known.epochs + 1);
            sink.region(&Region { id: self.made, host, key, epoch: known.epochs });
            self.made
        })
    }

    /// Forgets what was not used since the last time.
    fn age(&mut self) {
        let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        for (name, known) in forgotten.into_entries() {
            for user in known.users {
                if let Entry::Occupied(mut names) = self.used_by.entry(user) {
                    names.get_mut().remove(&name);
                    if names.get().is_empty() {
                        names.remove();
                    }
                }
            }
        }
        self.grown = 0;
    }

    fn get(&mut self, name: &Name) -> Option<&mut Known> {
        self.young.get_mut(name).or_else(|| self.old.get_mut(name))
    }

    /// The key names nothing any more.
    pub(crate) fn invalidate(&mut self, host: IpAddr, key: u32) {
        if let Some(known) = self.get(&(hash::host(host), key)) {
            known.region = None;
        }
    }

    /// A connection is over, and with it the regions that only it used.
    pub(crate) fn closed(&mut self, connection: u32) {
        for name in self.used_by.remove(&connection).unwrap_or_default() {
            let Some(known) = self.get(&name) else { continue };
            known.users.retain(|user| *user != connection);
            if known.users.is_empty() {
                known.region = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[derive(Default)]
    struct Told(Vec<(u32, u32, u32)>);

    impl Sink for Told {
        fn region(&mut self, region: &Region) {
            self.0.push((region.id, region.key, region.epoch));
        }
    }

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

    #[test]
    fn a_key_names_one_region_until_it_is_invalidated_or_unused() {
        let (mut regions, mut told) = (Regions::new(1 << 20), Told::default());
        let mut find = |regions: &mut Regions, connection, host, key| {
            let before = told.0.len();
            let id = regions.find(connection, host, key, &mut told);
            (id, told.0.get(before).map(|told| told.2))
        };
        assert_eq!(find(&mut regions, 1, HOST, 5), (1, Some(1)));
        assert_eq!(find(&mut regions, 2, HOST, 5), (1, None));
        // Another host's, and another key.
        assert_eq!(find(&mut regions, 1, OTHER, 5), (2, Some(1)));
        assert_eq!(find(&mut regions, 1, HOST, 6), (3, Some(1)));
        regions.invalidate(HOST, 6);
        assert_eq!(find(&mut regions, 1, HOST, 6), (4, Some(2)));
        // One of two users is over, then both.
        regions.closed(1);
        assert_eq!(find(&mut regions, 2, HOST, 5), (1, None));
        regions.closed(2);
        assert_eq!(find(&mut regions, 3, HOST, 5), (5, Some(2)));
        assert_eq!(find(&mut regions, 3, OTHER, 5), (6, Some(2)));
    }

    #[test]
    fn ever_new_keys_are_forgotten_and_those_in_use_are_not() {
        let (mut regions, mut told) = (Regions::new(1000 * USE), Told::default());
        for key in 1..100_000 {
            regions.find(key % 50, HOST, key, &mut told);
            assert_eq!(regions.find(7, HOST, 0, &mut told), 2);
            if key % 3 == 0 {
                regions.invalidate(HOST, key);
            }
            assert!(regions.young.len() + regions.old.len() <= 1002);
            assert!(regions.used_by.values().map(Set::len).sum::<usize>() <= 1002);
        }
        assert_eq!(told.0.len(), 100_000);
    }
}
