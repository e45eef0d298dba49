//! Tests of keys, rights and bounds.

use super::*;
use crate::{MemoryRegion as _, ProtectionDomain as _};

fn register(domain: &ProtectionDomain, access: Access) -> MemoryRegion {
    domain.register(Memory::zeroed(100).unwrap(), access).unwrap()
}

/// [RFC 5040 8.1.1-4] [RFC 5041 8.3-1, 8.3-2, 8.3.1-4]
#[test]
fn keys_differ_and_die_with_their_region() {
    let domain = ProtectionDomain::default();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..QUARANTINE {
        let region = register(&domain, Access::empty());
        assert!(seen.insert(region.remote_key()), "a key came again too soon");
        assert!(domain.find(region.remote_key()).is_some());
        let key = region.remote_key();
        drop(region);
        assert!(domain.find(key).is_none());
    }
}

#[test]
fn keys_of_the_past_take_bounded_memory() {
    let domain = ProtectionDomain::default();
    let kept = register(&domain, Access::empty());
    for _ in 0..2 * QUARANTINE {
        drop(register(&domain, Access::empty()));
    }
    let table = domain.table.read();
    assert_eq!((table.keys.len(), table.retired.len()), (QUARANTINE + 1, QUARANTINE));
    assert!(table.find(kept.remote_key()).is_some());
}

/// Random keys give each bit of 256 keys a share within eight standard deviations
/// [RFC 5040 8.1.1-8, 8.1.1-9]
#[test]
fn keys_are_spread_over_their_whole_range() {
    let domain = ProtectionDomain::default();
    let keys: Vec<_> = (0..256).map(|_| register(&domain, Access::empty()).remote_key()).collect();
    for bit in 0..u32::BITS {
        let ones = keys.iter().filter(|&key| key >> bit & 1 == 1).count();
        assert!((64..=192).contains(&ones), "bit {bit} is set in {ones} of 256");
        let turns = keys.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
        assert!((64..=192).contains(&turns), "bit {bit} turns {turns} times in 256");
    }
}

/// Requests of its owner may still name it.
#[test]
fn a_key_that_a_peer_invalidated_is_not_given_out_before_its_owner_drops_it() {
    let domain = ProtectionDomain::default();
    let owner = register(&domain, Access::REMOTE_READ);
    let name = RegionName { key: NonZeroU32::new(owner.local_key()), address: 0 };
    let crowd_out = || (0..=QUARANTINE).for_each(|_| drop(register(&domain, Access::empty())));
    let key = owner.local_key();
    let is_drawn = || {
        domain.table.write().random.push(key);
        register(&domain, Access::empty()).local_key() == key
    };
    assert!(domain.invalidate(owner.remote_key()));
    crowd_out();
    assert!(!is_drawn(), "its owner has it");
    let named = domain.register_as(Memory::zeroed(1).unwrap(), Access::empty(), name);
    assert!(matches!(named, Err(Error::KeyTaken(taken)) if taken == key), "{named:?}");
    drop(owner);
    assert!(!is_drawn(), "it is too soon");
    crowd_out();
    assert!(is_drawn());
}

#[test]
fn a_cache_notices_that_a_region_died() {
    let domain = ProtectionDomain::default();
    let mut cache = RegionCache::new(domain.clone());
    let regions: Vec<_> = (0..5).map(|_| register(&domain, Access::empty())).collect();
    let keys: Vec<_> = regions.iter().map(|region| region.remote_key()).collect();
    for &key in keys.iter().chain(&keys) {
        assert_eq!(cache.find(key).unwrap().stag(), key);
    }
    drop(regions);
    for key in keys {
        assert!(cache.find(key).is_none());
    }
}

#[test]
fn a_cache_finds_the_next_region_of_a_chosen_key() {
    let domain = ProtectionDomain::default();
    let mut cache = RegionCache::new(domain.clone());
    let name = RegionName { key: NonZeroU32::new(7), address: 0 };
    let register = |size| domain.register_as(Memory::zeroed(size).unwrap(), Access::REMOTE_WRITE, name);
    for size in [10, 20, 30] {
        let region = register(size).unwrap();
        assert!(matches!(register(size), Err(Error::KeyTaken(7))));
        assert_eq!(cache.find(7).unwrap().memory().len(), size);
        drop(region);
        assert!(cache.find(7).is_none());
    }
}

#[test]
fn only_a_region_without_a_name_can_be_invalidated() {
    let domain = ProtectionDomain::default();
    let drawn = register(&domain, Access::REMOTE_READ);
    for key in [None, NonZeroU32::new(7)] {
        let name = RegionName { key, address: 0 };
        let named = domain.register_as(Memory::zeroed(1).unwrap(), Access::REMOTE_READ, name).unwrap();
        assert!(!domain.invalidate(named.remote_key()));
        assert!(domain.find(named.remote_key()).is_some());
    }
    assert!(domain.invalidate(drawn.remote_key()));
    assert!(domain.find(drawn.remote_key()).is_none());
}

/// [RFC 5040 8.1.1-3, 8.1.1-5] [RFC 5041 7.1-10, 7.1-11, 7.1-12, 8.3-1, 8.3.1-3, 8.3.1-5]
#[test]
fn rights_and_bounds_are_checked() {
    let domain = ProtectionDomain::default();
    let handle = register(&domain, Access::REMOTE_WRITE);
    let region = domain.find(handle.remote_key()).unwrap();
    let check = |offset, length| region.check(Access::REMOTE_WRITE, offset, length);
    assert_eq!(check(0, 100), Ok(0));
    assert_eq!(check(100, 0), Ok(100));
    assert_eq!(check(1, 100), Err(RegionFault::Bounds { size: 100 }));
    assert_eq!(check(101, 0), Err(RegionFault::Bounds { size: 100 }));
    assert_eq!(check(u64::MAX, 1), Err(RegionFault::Wrap));
    assert_eq!(region.check(Access::REMOTE_READ, 0, 1), Err(RegionFault::Access));
}

#[test]
fn only_keys_that_a_peer_could_use_can_be_given_up() {
    let domain = ProtectionDomain::default();
    let (local, remote) = (register(&domain, Access::LOCAL_WRITE), register(&domain, Access::REMOTE_READ));
    assert!(!domain.invalidate(local.remote_key()));
    assert!(domain.invalidate(remote.remote_key()));
    assert!(!domain.invalidate(remote.remote_key()));
    assert!(domain.find(local.remote_key()).is_some());
    assert!(domain.find(remote.remote_key()).is_none());
}
