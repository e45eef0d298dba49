//! Calls with tags, and all receives of endpoints with tags: they post to the [inbox](super::inbox).

use super::endpoint::Endpoint;
use super::engine::State;
use super::inbox::Receive;
use super::operation::{Kind, Operation};
use super::posting::{RECV_FLAGS, buffer_of};
use crate::abi::{Errno, MessageReceive, MessageSend, Result, TaggedOps, Tags, constants};
use rdma_verbs::Device;

/// Flags of calls that ask for a message that has arrived.
const SEARCH_FLAGS: u64 = constants::FI_PEEK | constants::FI_CLAIM | constants::FI_DISCARD;

impl<D: Device> TaggedOps for Endpoint<D> {
    fn post_tagged_recv(&self, tags: Tags, receive: MessageReceive<'_>) -> Result<()> {
        if !self.tags {
            return Err(Errno::ENOSYS);
        }
        let flags = receive.flags.unwrap_or(self.sizes.rx_flags);
        if flags & !(RECV_FLAGS | SEARCH_FLAGS) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let at = self.link()?;
        let search = flags & SEARCH_FLAGS;
        if search == constants::FI_DISCARD {
            return Err(Errno::EINVAL);
        }
        let context = receive.context;
        self.engine.with(|state| {
            if search == 0 {
                return self.post_to_inbox(state, at, Some(tags), &receive, flags);
            }
            // For those who only peek.
            state.drain();
            if search & constants::FI_PEEK != 0 {
                let peek = state.with_inbox(at, |inbox, parts| inbox.peek(parts, tags, context, search));
                return peek.ok_or(Errno::EOPBADSTATE);
            }
            let claimed = state.with_inbox(at, |inbox, _| inbox.claimed(context)).flatten();
            let message = claimed.ok_or(Errno::EINVAL)?;
            if search & constants::FI_DISCARD != 0 {
                state.with_inbox(at, |inbox, parts| inbox.discard_claimed(parts, message, context));
                return Ok(());
            }
            let receive = self.receive(state, at, Some(tags), &receive, flags)?;
            state.with_inbox(at, |inbox, parts| inbox.give(parts, message, receive));
            Ok(())
        })
    }

    fn post_tagged_send(&self, tag: u64, send: MessageSend<'_>) -> Result<()> {
        let at = self.link()?;
        self.engine.with(|state| {
            if self.tags {
                return self.post_message(state, at, Some(tag), &send);
            }
            self.post_for_rxm(state, at, tag, &send)
        })
    }

    fn tagged_inject(&self, tag: u64, message: &[u8], data: Option<u64>) -> Result<()> {
        let at = self.link()?;
        self.engine.with(|state| {
            if self.tags {
                return self.inject_message(state, at, Some(tag), message, data);
            }
            self.inject_for_rxm(state, at, tag, message, data)
        })
    }
}

impl<D: Device> Endpoint<D> {
    /// Posts a receive for messages with such a tag, or for those without.
    pub(super) fn post_to_inbox(
        &self,
        state: &mut State<D>,
        at: usize,
        tags: Option<Tags>,
        receive: &MessageReceive<'_>,
        flags: u64,
    ) -> Result<()> {
        let receive = self.receive(state, at, tags, receive, flags)?;
        let (operation, kind) = (receive.operation, kind_of(tags));
        let posted = state.with_inbox(at, |inbox, parts| inbox.post(parts, receive));
        if matches!(posted, Some(Ok(()))) {
            return Ok(());
        }
        if let Ok(link) = state.link(at) {
            link.operations.remove(operation);
            link.ended(kind);
        }
        Err(self.ended(state, at))
    }

    /// The receive of a call, whose operation is added to those of the endpoint.
    fn receive(
        &self,
        state: &mut State<D>,
        at: usize,
        tags: Option<Tags>,
        receive: &MessageReceive<'_>,
        flags: u64,
    ) -> Result<Receive> {
        let room = u32::try_from(buffer_of(receive.buffers).len()).map_err(|_| Errno::EMSGSIZE)?;
        let link = state.link(at)?;
        if link.receives >= self.sizes.rx {
            return Err(Errno::EAGAIN);
        }
        let tag = tags.map_or(0, |tags| tags.tag);
        let operation = Operation { room, tag, ..Operation::new(kind_of(tags), receive.context, flags) };
        let operation = link.operations.insert(operation);
        link.receives += 1;
        Ok(Receive { operation, tags, places: receive.buffers.to_vec() })
    }
}

fn kind_of(tags: Option<Tags>) -> Kind {
    if tags.is_some() { Kind::TaggedRecv } else { Kind::Recv }
}
