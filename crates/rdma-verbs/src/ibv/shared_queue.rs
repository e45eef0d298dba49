//! Shared receive queues.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_sys as sys;
use slab::Slab;

use super::device::{check, check_pointer};
use super::memory::{Pd, PdHandle};
use super::post::{NO_PIECE, check_places, fill, require_room};
use super::queue_pair::SEND_SEGMENTS;
use crate::{Buffer, Error, Place, RecvRequest, Result, SrqId};

/// The bits of a work request's id that mark a receive of a shared queue. The other bits of the upper half
/// hold the queue's number, and the lower half holds the receive's place.
const MARK: u64 = 0b11 << 62;

/// A shared receive queue. Its queue pairs hold it.
pub(super) struct SharedQueue {
    pub(super) number: SrqId,
    raw: NonNull<sys::ibv_srq>,
    /// Receives that may be posted.
    pub(super) depth: u32,
    /// The outstanding receives. Messages take them in order, but complete in any order.
    receives: Mutex<Slab<Receive>>,
    domain: Arc<PdHandle>,
}

// SAFETY: libibverbs allows any thread to call on a shared receive queue.
unsafe impl Send for SharedQueue {}
// SAFETY: as above, and several threads at once.
unsafe impl Sync for SharedQueue {}

/// An outstanding receive, with its scatter list.
struct Receive {
    id: u64,
    pieces: [sys::ibv_sge; SEND_SEGMENTS],
    used: usize,
}

impl Receive {
    fn of(request: &RecvRequest<'_>, most_places: usize) -> Result<Self> {
        let mut pieces = [NO_PIECE; SEND_SEGMENTS];
        let used = match request.buffer {
            Buffer::Empty => 0,
            Buffer::Segment(segment) => fill(&mut pieces, [segment]),
            Buffer::Places(places) => {
                check_places(places, most_places, true, u32::MAX.into())?;
                fill(&mut pieces, places.iter().map(Place::segment))
            }
        };
        Ok(Self { id: request.id, pieces, used })
    }
}

impl SharedQueue {
    pub(super) fn create(number: SrqId, pd: &Pd, depth: u32) -> Result<Self> {
        let domain = Arc::clone(pd.handle());
        let max_sge = domain.context.attributes.max_places as u32;
        let attr = sys::ibv_srq_attr { max_wr: depth, max_sge, srq_limit: 0 };
        let mut request = sys::ibv_srq_init_attr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: the domain is valid, and the queue will hold it; the request is live.
        let raw = unsafe { (domain.context.library.ibv_create_srq)(domain.raw(), &raw mut request) };
        let raw = check_pointer("ibv_create_srq", raw)?;
        Ok(Self { number, raw, depth, receives: Mutex::default(), domain })
    }

    /// Whether its receives are in memory of this domain.
    pub(super) fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.domain, pd.handle())
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// Posts all of the receives, or none if they do not fit. If the device refuses one, those before it
    /// are posted.
    pub(super) fn post(&self, requests: &[RecvRequest<'_>]) -> Result<()> {
        let mut receives = self.receives.lock();
        require_room(self.depth, self.depth.saturating_sub(receives.len() as u32), requests.len())?;
        let most_places = self.domain.context.attributes.max_places;
        let checked: Vec<_> =
            requests.iter().map(|request| Receive::of(request, most_places)).collect::<Result<_>>()?;
        checked.into_iter().try_for_each(|receive| {
            let entry = receives.vacant_entry();
            self.post_one(entry.key() as u32, &receive)?;
            entry.insert(receive);
            Ok(())
        })
    }

    fn post_one(&self, at: u32, receive: &Receive) -> Result<()> {
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut work: sys::ibv_recv_wr = unsafe { std::mem::zeroed() };
        work.wr_id = MARK | u64::from(self.number.0) << 32 | u64::from(at);
        let mut pieces = receive.pieces;
        if receive.used > 0 {
            work.sg_list = pieces.as_mut_ptr();
            work.num_sge = receive.used as i32;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue is valid, and so is the context that it points to; the request and its scatter
        // list are live and copied by the call. The device checks the list against registered regions.
        let posted = unsafe {
            let Some(post) = (*(*self.raw()).context).ops.post_srq_recv else {
                return Err(Error::Unsupported("shared receive queues"));
            };
            post(self.raw(), &raw mut work, &raw mut bad)
        };
        check("ibv_post_srq_recv", posted)
    }

    /// A message has filled the receive at this place. Returns the consumer's id.
    pub(super) fn complete(&self, at: u32) -> Option<u64> {
        Some(self.receives.lock().try_remove(at as usize)?.id)
    }

    /// Posts the receive at this place again, because its message will never be complete.
    pub(super) fn repost(&self, at: u32) {
        let receives = self.receives.lock();
        let Some(receive) = receives.get(at as usize) else { return };
        if let Err(error) = self.post_one(at, receive) {
            log::warn!("a shared receive is lost: {error}");
        }
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if !self.domain.context.maker.is_this_process() {
            return;
        }
        // SAFETY: the queue is destroyed once, after its queue pairs, which hold it.
        let result = unsafe { (self.domain.context.library.ibv_destroy_srq)(self.raw()) };
        if let Err(error) = check("ibv_destroy_srq", result) {
            log::warn!("{error}");
        }
    }
}

/// The shared queue and the place in it that a work request's id names, if it is a receive of a shared queue.
pub(super) fn place_of(work_id: u64) -> Option<(SrqId, u32)> {
    let number = ((work_id & !MARK) >> 32) as u32;
    (work_id & MARK == MARK).then_some((SrqId(number), work_id as u32))
}
