//! The shard: a device's protection domain and completion queue, with everything that is made of them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::core::{Core, Turn};
use super::registration::Registration;
use super::{
    DeviceEvents, Endpoint, Error, Listener, Pool, Region, Result, SharedReceives, TrustedDevice,
    out_of_range,
};
use crate::{Access, AnyDevice, ConnectOptions, DeviceInfo, Memory, QpCapabilities, WaitSet};

/// A protection domain and a completion queue of a device, with the queue pairs, the memory and the listeners
/// that are made of them. It is the unit of progress and of exclusion: one lock covers it. A clone is the
/// same shard, and so is every value that is made of it: the shard ends with the last of them.
///
/// Something has to drive it: a [driver](super::Driver) in an async runtime, or a thread in one of the
/// blocking calls (`wait`, [`Shard::block_on`]). Any number of them may do so at once.
pub struct Shard<D: TrustedDevice = AnyDevice> {
    pub(super) inner: Arc<Handles<D>>,
}

/// What the clones of a shard share. It ends with the last of them, and the drivers may end then.
pub(super) struct Handles<D: TrustedDevice>(pub(super) Arc<Inner<D>>);

/// What the clones of a shard and its drivers share.
pub(super) struct Inner<D: TrustedDevice> {
    core: Mutex<Core<D>>,
    /// The shard's descriptor.
    pub(super) wait: Arc<WaitSet>,
    /// Distinguishes the shards of the process.
    pub(super) id: u64,
    /// Whether every `Shard` is dropped.
    is_released: AtomicBool,
}

/// What is used where the caller does not choose.
const OPTIONS: ConnectOptions =
    ConnectOptions { timeout: Duration::from_secs(10), keepalive: Duration::from_secs(30) };

impl Shard {
    /// A shard of the embedded device, which every machine has.
    ///
    /// # Errors
    /// The system's.
    pub fn embedded() -> Result<Self> {
        Self::new(AnyDevice::from(crate::iwarp::Device::default()))
    }

    /// A shard of one of the [`devices`](crate::devices).
    ///
    /// # Errors
    /// The device's.
    pub fn open(device: &DeviceInfo) -> Result<Self> {
        Self::new(device.open()?)
    }
}

impl<D: TrustedDevice> Shard<D> {
    /// A shard of this device. An attempt to connect takes 10 s at most; a peer's host that vanished is
    /// noticed within a minute.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: D) -> Result<Self> {
        Self::with_options(device, OPTIONS)
    }

    /// Like [`Shard::new`], with these options for all its connections. The end of a connection whose owner
    /// has dropped it takes no longer than the time-out, either.
    ///
    /// # Errors
    /// The device's.
    pub fn with_options(device: D, options: ConnectOptions) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let core = Core::new(device, options)?;
        let (wait, id) = (Arc::clone(&core.wait), NEXT.fetch_add(1, Ordering::Relaxed));
        let inner = Inner { core: Mutex::new(core), wait, id, is_released: AtomicBool::new(false) };
        Ok(Self { inner: Arc::new(Handles(Arc::new(inner))) })
    }

    /// A pool of `buffers` buffers of `size` bytes for messages, and for the local side of writes and reads.
    ///
    /// # Errors
    /// The device's; [`crate::Error::OutOfRange`] for no bytes.
    pub fn pool(&self, buffers: u32, size: u32) -> Result<Pool> {
        self.inner.with(|core| Pool::new(self.inner.id, &core.pd, buffers, size))
    }

    /// A region of `size` zeros with these rights.
    ///
    /// # Errors
    /// The device's; [`crate::Error::OutOfRange`] for no bytes, or more than an advertisement can tell.
    pub fn region(&self, size: usize, access: Access) -> Result<Region> {
        advertisable(size)?;
        self.region_of(Memory::zeroed(size)?, access)
    }

    /// A region of this memory, with these rights.
    ///
    /// # Errors
    /// Those of [`Shard::region`].
    pub fn region_of(&self, memory: Arc<Memory>, access: Access) -> Result<Region> {
        advertisable(memory.len())?;
        self.inner.with(|core| Region::new(self.inner.id, &core.pd, memory, access))
    }

    /// A region of the `size` bytes at `base`, with these rights. They are the lender's again when
    /// [`Shard::deregister`] has taken the region back.
    ///
    /// # Errors
    /// Those of [`Shard::region`]; [`crate::Error::OutOfRange`] also for bytes that no memory can have.
    ///
    /// # Safety
    /// Until `deregister` has taken the region back, or the process ends, the bytes are as [`Memory::lent`]
    /// requires.
    #[allow(unsafe_code)]
    pub unsafe fn lend(&self, base: *mut u8, size: usize, access: Access) -> Result<Region> {
        // SAFETY: the caller promises it.
        let memory = unsafe { Memory::lent(base, size) };
        let memory = memory.ok_or_else(|| {
            out_of_range("address of lent memory", base.addr() as u64, 1, usize::MAX.saturating_sub(size))
        })?;
        self.region_of(memory, access)
    }

    /// Deregisters a region, unless a clone of it or an operation refers to it: then it comes back.
    /// Afterwards its key is invalid, and nothing accesses its memory.
    ///
    /// # Errors
    /// The region.
    pub fn deregister(&self, region: Region) -> std::result::Result<(), Region> {
        if self.owns(region.registration()).is_err() {
            return Err(region);
        }
        // No device of the shard is in the middle of a copy while the lock is held.
        self.inner.with(|_| region.deregister())
    }

    /// A queue pair without a connection.
    ///
    /// # Errors
    /// The device's, for more than it has.
    pub fn endpoint(&self, wanted: QpCapabilities) -> Result<Endpoint<D>> {
        Endpoint::new(self, wanted, None)
    }

    /// A queue of receives that connections share, for up to `depth` receives.
    ///
    /// # Errors
    /// The device's, for more than it has, or if it has none.
    pub fn shared_receives(&self, depth: u32) -> Result<SharedReceives<D>> {
        SharedReceives::new(self, depth)
    }

    /// The events of the device from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn device_events(&self) -> Result<DeviceEvents<D>> {
        DeviceEvents::new(self)
    }

    /// Does what there is to do now, without waiting. Returns whether there may be more; otherwise there is
    /// nothing to do until the shard's descriptor is readable. For programs with an event loop of their own.
    ///
    /// # Errors
    /// The device's and the system's.
    pub fn drive(&self) -> Result<bool> {
        Ok(self.inner.turn()? == Turn::Busy)
    }

    /// Checks that memory is registered with this shard.
    #[inline]
    pub(super) fn owns(&self, registration: &Registration) -> Result<()> {
        let (memory, connection) = (registration.shard, self.inner.id);
        if memory == connection { Ok(()) } else { Err(Error::ForeignMemory { memory, connection }) }
    }

    /// Listens on `address` (port 0: any free port). At most `backlog` requests wait to be taken; further
    /// ones are cut.
    ///
    /// # Errors
    /// The device's.
    pub fn listen(&self, address: SocketAddr, backlog: u32) -> Result<Listener<D>> {
        Listener::new(self, address, backlog)
    }
}

/// Checks that an advertisement can tell the size of a region.
fn advertisable(size: usize) -> Result<()> {
    match u32::try_from(size) {
        Ok(1..) => Ok(()),
        _ => Err(out_of_range("region size", size as u64, 1, u32::MAX as usize)),
    }
}

impl<D: TrustedDevice> Inner<D> {
    /// Runs `body` on the state, and then wakes the tasks that it has found to wake.
    #[inline]
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut Core<D>) -> R) -> R {
        body(&mut Locked(self.core.lock()).0)
    }

    pub(super) fn turn(&self) -> Result<Turn> {
        Ok(self.with(Core::turn)?)
    }

    /// Whether every `Shard` is dropped, and nothing is left to do for what was made of them.
    pub(super) fn is_done(&self) -> bool {
        self.is_released.load(Ordering::Acquire) && self.with(|core| core.is_done())
    }
}

/// The state while it is locked. The lock is released at its end, and the tasks to wake are woken.
struct Locked<'s, D: TrustedDevice>(MutexGuard<'s, Core<D>>);

impl<D: TrustedDevice> Locked<'_, D> {
    /// A waker that panics concerns neither the caller, who would lose what the call returns, nor other tasks.
    #[cold]
    fn wake(&mut self) {
        while let Some(waker) = self.0.woken.pop() {
            let wake = AssertUnwindSafe(|| waker.wake());
            if MutexGuard::unlocked(&mut self.0, || catch_unwind(wake)).is_err() {
                log::error!("a waker has panicked");
            }
        }
    }
}

impl<D: TrustedDevice> Drop for Locked<'_, D> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.woken.is_empty() {
            self.wake();
        }
    }
}

impl<D: TrustedDevice> Clone for Shard<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<D: TrustedDevice> Deref for Handles<D> {
    type Target = Inner<D>;

    #[inline]
    fn deref(&self) -> &Inner<D> {
        &self.0
    }
}

impl<D: TrustedDevice> Drop for Handles<D> {
    fn drop(&mut self) {
        self.is_released.store(true, Ordering::Release);
        self.with(|core| core.kick.set(true));
    }
}

impl<D: TrustedDevice> fmt::Debug for Shard<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

/// The descriptor is readable when a [driver](super::Driver) or a blocking call has something to do, also at
/// deadlines.
impl<D: TrustedDevice> AsFd for Shard<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.wait.as_fd()
    }
}
