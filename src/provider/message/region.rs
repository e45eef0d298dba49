//! Registered memory (`fi_mr`): the memory that peers may access, and its keys.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::counter::{Count, Counter, Source, Written};
use super::engine::Engine;
use super::limits::OWN_FLAGS;
use crate::abi::{AnyFid, Control, Errno, Fid, NewMemoryRegion, Registration, Result, constants};
use crate::provider::children::Child;
use crate::provider::error::errno_of;
use rdma_verbs::{Access, Device, Error, MemoryRegion as _, ProtectionDomain as _, RegionName};

/// How the regions of a domain are named, from `fi_domain_attr.mr_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Naming {
    /// Whether the provider draws the keys.
    pub(super) draws_keys: bool,
    /// Whether addresses are virtual ones, rather than offsets.
    pub(super) is_virtual: bool,
}

impl Naming {
    /// Of a domain with this mode, on a device that chooses them by itself if `is_direct`.
    pub(in super::super) fn of(mr_mode: i32, is_direct: bool) -> Self {
        let is_basic = is_direct || mr_mode == constants::FI_MR_BASIC;
        Self {
            draws_keys: is_basic || mr_mode & constants::FI_MR_PROV_KEY != 0,
            is_virtual: is_basic || mr_mode & constants::FI_MR_VIRT_ADDR != 0,
        }
    }
}

/// The key on the wire (STag) for a key of 64 bits. Both sides compute it: a key that fits 32 bits stays as
/// it is, and others are distributed over all keys.
pub(super) fn stag_of(key: u64) -> NonZeroU32 {
    // An odd number without a pattern: the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let short = u32::try_from(key).ok().and_then(NonZeroU32::new);
    short.unwrap_or_else(|| {
        NonZeroU32::new((key.wrapping_add(1).wrapping_mul(SPREAD) >> 32) as u32).unwrap_or(NonZeroU32::MAX)
    })
}

/// A registered region.
pub(in super::super) struct Region<D: Device> {
    engine: Arc<Engine<D>>,
    region: Mutex<Option<D::Mr>>,
    /// Counters of the writes to it, and what it is to them.
    counters: Mutex<Vec<(Arc<Count>, Source)>>,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> Region<D> {
    pub(in super::super) fn register(
        engine: Arc<Engine<D>>,
        naming: Naming,
        registration: &Registration<'_>,
        membership: Child,
    ) -> Result<NewMemoryRegion> {
        let &Registration { pieces, access, requested_key, flags, .. } = registration;
        if flags & !(constants::FI_RMA_EVENT | constants::FI_RMA_PMEM | OWN_FLAGS) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let [piece] = pieces else { return Err(Errno::EINVAL) };
        if !naming.draws_keys && requested_key == constants::FI_KEY_NOTAVAIL {
            return Err(Errno::EKEYREJECTED);
        }
        let name = RegionName {
            key: (!naming.draws_keys).then(|| stag_of(requested_key)),
            address: if naming.is_virtual { piece.address } else { 0 },
        };
        let region = engine.pd().register_as(Arc::clone(&piece.memory), rights(access), name);
        let region = region.map_err(|error| match error {
            Error::KeyTaken(_) => Errno::ENOKEY,
            other => errno_of(other),
        })?;
        let key = if naming.draws_keys { region.remote_key().into() } else { requested_key };
        let local_key = region.local_key();
        let (region, membership) = (Mutex::new(Some(region)), Mutex::new(Some(membership)));
        let counters = Mutex::default();
        let value = Arc::new(Self { engine, region, counters, membership });
        Ok(NewMemoryRegion::memory_region(value, key, local_key))
    }
}

/// The rights of peers and of the device.
fn rights(access: u64) -> Access {
    let mut rights = Access::empty();
    rights.set(Access::LOCAL_WRITE, access & (constants::FI_RECV | constants::FI_READ) != 0);
    rights.set(Access::REMOTE_READ, access & constants::FI_REMOTE_READ != 0);
    rights.set(Access::REMOTE_WRITE, access & constants::FI_REMOTE_WRITE != 0);
    rights
}

impl<D: Device> Written for Region<D> {
    fn writes(&self) -> u64 {
        self.region.lock().as_ref().map_or(0, D::Mr::writes)
    }
}

impl<D: Device> Region<D> {
    fn source(self: &Arc<Self>) -> Source {
        let region: Weak<Self> = Arc::downgrade(self);
        Source::Region(region)
    }
}

impl<D: Device> Fid for Region<D> {
    fn close(&self) -> Result<()> {
        self.engine.with(|_| {
            // No byte of the region is placed or sent while this thread holds the engine, or afterwards.
            self.counters.lock().drain(..).for_each(|(count, source)| count.take_over(&source));
            *self.region.lock() = None;
        });
        *self.membership.lock() = None;
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let counter = other.downcast::<Counter<D>>().ok_or(Errno::EINVAL)?;
        if !Arc::ptr_eq(&counter.engine, &self.engine) {
            return Err(Errno::EDOMAIN);
        }
        if flags != constants::FI_REMOTE_WRITE {
            return Err(Errno::EBADFLAGS);
        }
        let source = self.source();
        counter.count.watch(source.clone());
        self.counters.lock().push((Arc::clone(&counter.count), source));
        Ok(())
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        match command {
            // A region is enabled from its registration on.
            Control::Enable => Ok(0),
            _ => Err(Errno::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_stand_for_themselves_and_others_are_spread() {
        for key in [1, 7, 1 << 31, u64::from(u32::MAX)] {
            assert_eq!(u64::from(stag_of(key).get()), key);
        }
        let spread: std::collections::BTreeSet<_> = (0..1000).map(|key| stag_of(key << 32)).collect();
        assert!(spread.len() > 995, "{} of 1000 keys", spread.len());
    }
}
