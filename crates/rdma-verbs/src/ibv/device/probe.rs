//! What a device shows only when queues are created: how many inline bytes a queue pair is granted, in a send queue of what
//! length, and whether completion queues can be resized.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{Context, SEND_SEGMENTS};
use crate::ibv::completion_queue::Queue;
use crate::ibv::memory::Pd;
use crate::ibv::queue_pair::Handle;
use crate::{QpCapabilities, Result};

/// Most inline bytes that a queue pair asks for. More would make every entry of the send queue larger, and
/// copying a longer payload costs little beside sending it.
pub(super) const MAX_INLINE: usize = 256;

/// Depth of a completion queue of [`ANY_DEPTH`](crate::ANY_DEPTH): at first if the device can resize it, else for good.
/// The latter has 2^16 entries with the room for probes, which are 4 MiB on most devices.
const FIRST_DEPTH: u32 = 1024;
const FIXED_DEPTH: u32 = 7 << 13;

/// `vendor_id` of Broadcom. If the kernel refuses to resize a completion queue, its user library frees the memory of the
/// queue, which stays in use (`bnxt_re_resize_cq` of rdma-core 51 to 64).
const NEVER_RESIZED: u32 = 0x14e4;

/// What devices have shown, by their names.
static PROBED: Mutex<BTreeMap<String, Probed>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probed {
    /// Inline bytes of a queue pair, and the longest send queue for which it is granted as many.
    pub(super) inline: usize,
    pub(super) inline_depth: u32,
    /// Depths of a completion queue of [`ANY_DEPTH`](crate::ANY_DEPTH): at first, and at most.
    first_depth: u32,
    pub(super) max_depth: u32,
}

/// Forgets what a device of this name has shown: another one may come.
pub(super) fn forget(name: &str) {
    PROBED.lock().remove(name);
}

impl Context {
    /// Depths of a completion queue of [`ANY_DEPTH`](crate::ANY_DEPTH): at first, and at most.
    pub(in crate::ibv) fn any_depths(self: &Arc<Self>) -> Result<(u32, u32)> {
        self.probed().map(|probed| (probed.first_depth, probed.max_depth))
    }

    pub(super) fn probed(self: &Arc<Self>) -> Result<Probed> {
        let mut known = PROBED.lock();
        if let Some(&probed) = known.get(&self.name) {
            return Ok(probed);
        }
        let probed = self.probe()?;
        log::debug!("{}: {probed:?}", self.name);
        known.insert(self.name.clone(), probed);
        Ok(probed)
    }

    /// Creates a completion queue, and queue pairs like those for messages.
    fn probe(self: &Arc<Self>) -> Result<Probed> {
        let queue = Arc::new(Queue::create(self, 1)?);
        let most = self.attributes.max_completions;
        let (first, fixed) = (FIRST_DEPTH.min(most), FIXED_DEPTH.min(most));
        let can_resize = self.vendor != NEVER_RESIZED && queue.try_resize(first)?;
        let (first_depth, max_depth) = if can_resize { (first, most) } else { (fixed, fixed) };
        if self.attributes.max_places == 0 {
            return Ok(Probed { first_depth, max_depth, ..Probed::default() });
        }
        let (pd, segments) = (Pd::alloc(self)?, self.send_segments());
        let grants = |send_depth, inline| {
            let (recv_depth, initiator_depth, responder_resources) = (1, 1, 1);
            let wanted =
                QpCapabilities { send_depth, recv_depth, inline, initiator_depth, responder_resources };
            Handle::create(&pd, &queue, wanted, None, (segments, self.attributes.max_places))
                .map(|(_, granted)| (granted.max_inline_data as usize).min(MAX_INLINE))
        };
        let inline = self.with_inline(MAX_INLINE, |size| grants(1, size))?;
        // For a send queue of any depth the device refuses more.
        self.inline.fetch_min(inline, Ordering::Relaxed);
        let depths = std::iter::successors(Some(self.attributes.max_send_depth), |depth| Some(depth / 2));
        let inline_depth = depths
            .take_while(|&depth| depth > 1)
            .find(|&depth| grants(depth, inline).is_ok_and(|granted| granted >= inline))
            .unwrap_or(1);
        Ok(Probed { inline, inline_depth, first_depth, max_depth })
    }

    /// Most segments of one send.
    pub(in crate::ibv) fn send_segments(&self) -> u32 {
        (SEND_SEGMENTS as u32).min(self.max_segments)
    }

    /// Calls `create` with inline sizes up to `wanted`, the largest first, until the device grants one.
    pub(in crate::ibv) fn with_inline<T>(
        &self,
        wanted: usize,
        mut create: impl FnMut(usize) -> Result<T>,
    ) -> Result<T> {
        let most = wanted.min(self.inline.load(Ordering::Relaxed));
        let smaller = [128, 80, 64, 32, 16, 4, 0].into_iter().filter(|&size| size < most);
        let mut created = create(most);
        for size in smaller {
            if created.is_ok() {
                break;
            }
            created = create(size);
        }
        created
    }
}
