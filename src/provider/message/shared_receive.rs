//! The shared receive context (`fi_srx_context`): receives that its endpoints share.

use std::sync::Arc;

use parking_lot::Mutex;

use super::engine::{Engine, SharedReceives, shared_id_of};
use super::operation::{Kind, Operation, Operations};
use super::posting::{buffer_of, check_receive_flags, errno_of_post};
use super::rxm::ReceivePlaces;
use crate::abi::info::RxAttr;
use crate::abi::{
    CmOps, EndpointOps, Errno, Fid, MessageOps, MessageReceive, PayloadPlaces, Result, UserContext,
};
use crate::provider::children::Child;
use crate::provider::error::errno_of;
use rdma_verbs::{Device, MessageQueues as _, RecvQueue, RecvRequest};

use super::info::DEFAULT_SIZE;

/// An open shared receive context.
pub(in super::super) struct SharedReceive<D: Device> {
    pub(super) engine: Arc<Engine<D>>,
    /// Its index in the engine.
    pub(super) at: usize,
    size: usize,
    /// Flags of receives whose calls have none.
    flags: u64,
    /// As for an [endpoint](super::endpoint::Endpoint).
    payload_places: Option<PayloadPlaces>,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> SharedReceive<D> {
    pub(in super::super) fn open(
        engine: Arc<Engine<D>>,
        attributes: Option<RxAttr<'_>>,
        membership: Child,
    ) -> Result<Arc<Self>> {
        let size = match attributes.map_or(0, RxAttr::size) {
            0 => DEFAULT_SIZE,
            size if size <= engine.limits.shared_size => size,
            _ => return Err(Errno::EINVAL),
        };
        let flags = attributes.map_or(0, RxAttr::op_flags);
        check_receive_flags(flags)?;
        let mut state = engine.lock();
        // The limit has 32 bits.
        let srq = state.cq.create_srq(engine.pd(), size as u32).map_err(errno_of)?;
        let at = state.shared.insert(SharedReceives { srq, operations: Operations::default(), users: 0 });
        let payload_places = state.payload_places;
        drop(state);
        let membership = Mutex::new(Some(membership));
        Ok(Arc::new(Self { engine, at, size, flags, payload_places, membership }))
    }
}

/// A shared receive context that is bound to an endpoint. It counts as used until this is dropped.
pub(super) struct BoundReceives<D: Device>(Arc<SharedReceive<D>>);

impl<D: Device> BoundReceives<D> {
    pub(super) fn new(shared: Arc<SharedReceive<D>>) -> Self {
        shared.engine.lock().shared[shared.at].users += 1;
        Self(shared)
    }

    /// Its index in the engine.
    pub(super) fn at(&self) -> usize {
        self.0.at
    }
}

impl<D: Device> Drop for BoundReceives<D> {
    fn drop(&mut self) {
        self.0.engine.lock().shared[self.0.at].users -= 1;
    }
}

impl<D: Device> MessageOps for SharedReceive<D> {
    fn post_recv(&self, receive: MessageReceive<'_>) -> Result<()> {
        let flags = receive.flags.unwrap_or(self.flags);
        check_receive_flags(flags)?;
        self.engine.with(|state| {
            let shared = &mut state.shared[self.at];
            let with_payload =
                self.payload_places.and_then(|places| ReceivePlaces::with_payload(places, &receive));
            let mut operation = Operation::new(Kind::Recv, receive.context, flags);
            let buffer = buffer_of(with_payload.as_ref().map_or(receive.buffers, ReceivePlaces::as_slice));
            // It is at most 2^32 - 1, or the device refuses it.
            operation.room = buffer.len() as u32;
            let at = shared.operations.insert(operation);
            let request = RecvRequest { id: shared_id_of(self.at, at), buffer };
            let posted = state.cq.post_srq_recv(shared.srq, &[request]);
            if posted.is_err() {
                state.shared[self.at].operations.remove(at);
            }
            posted.map_err(errno_of_post)
        })
    }
}

impl<D: Device> EndpointOps for SharedReceive<D> {
    fn cancel(&self, context: UserContext) -> Result<()> {
        self.engine.with(|state| {
            let shared = &mut state.shared[self.at];
            // Several receives may have one context, and messages may have reached some of them.
            let known = shared.operations.iter().filter(|(_, operation)| operation.context == context);
            let queue = RecvQueue::Shared(shared.srq);
            let at = known
                .map(|(at, _)| at)
                .find(|&at| state.cq.cancel_recv(queue, shared_id_of(self.at, at)))
                .ok_or(Errno::ENOENT)?;
            // There is no queue for its completion.
            state.shared[self.at].operations.remove(at);
            Ok(())
        })
    }

    fn rx_size_left(&self) -> Result<usize> {
        Ok(self.size.saturating_sub(self.engine.lock().shared[self.at].operations.len()))
    }
}

impl<D: Device> CmOps for SharedReceive<D> {}

impl<D: Device> Fid for SharedReceive<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;
    const DESCRIPTORS: bool = D::LOCAL_KEYS;

    fn close(&self) -> Result<()> {
        let mut state = self.engine.lock();
        if let Some(shared) = state.shared.get(self.at) {
            if shared.users > 0 {
                return Err(Errno::EBUSY);
            }
            let srq = shared.srq;
            state.destroy_lingering_of(self.at);
            state.cq.destroy_srq(srq).map_err(|_| Errno::EBUSY)?;
            state.shared.remove(self.at);
        }
        drop(state);
        *self.membership.lock() = None;
        Ok(())
    }
}
