//! The resources of a stream on its device: the receive ring, a queue pair with all receives posted, and, if
//! the device does not take payload inline, a registered send ring.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::{
    self as verbs, Access, Buffer, CompletionQueue, Connections, Device, Memory, MemoryRegion, Operation,
    Payload, ProtectionDomain, QpCapabilities, QpId, QueuePairs, RecvRequest, RemoteAddress, Segment,
    SendRequest, WaitSet,
};
use rstream_protocol::{ControlMessage, Extension, Offer, SHORT_DATA_MOST, Ticket, WordFormat, WriteMessage};

use super::gather::MAX_PIECES;
use super::settings::Settings;

const PLAIN_SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

/// Bytes of a word that is the payload of a send.
const WORD: usize = size_of::<u32>();

/// A queue pair with the memory of one stream.
pub struct StreamQueuePair<D: Device> {
    pub(crate) cq: D::Cq,
    pub(crate) qp: QpId,
    /// The ring that the peer writes.
    ring: D::Mr,
    /// One slot for each posted receive, for words that arrive as payload.
    words: D::Mr,
    /// Bytes of a slot: a word and, if the device has no immediate data, short data after it.
    slot: u32,
    inline: usize,
    /// The send ring, for payload that is too long to be inline.
    staging: Option<D::Mr>,
    /// Slots for outgoing words, if the device does not even take a word inline.
    word_staging: Option<WordSlots<D::Mr>>,
    /// The attached wait set.
    pub(crate) wait: Option<Arc<WaitSet>>,
}

/// Slots for outgoing words in registered memory, used in turn. There are as many as entries of the send
/// queue, so a slot is used again only after its request is done.
struct WordSlots<M> {
    region: M,
    slots: u64,
    next: u64,
}

impl<D: Device> StreamQueuePair<D> {
    /// Registers the memory, creates the queue pair and posts all receives.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open(device: &D, settings: &Settings) -> verbs::Result<Self> {
        let pd = device.alloc_pd()?;
        let send_depth = settings.side(&device.attributes()).send_entries();
        let sizes = &settings.sizes;
        let recv_depth = u32::from(sizes.recv_depth);
        let mut cq = device.create_cq(send_depth + recv_depth)?;
        let wanted = QpCapabilities {
            send_depth,
            recv_depth,
            inline: sizes.send_buffer as usize,
            initiator_depth: 0,
            responder_resources: 0,
        };
        let (qp, granted) = cq.create_qp(&pd, wanted)?;

        let register = |size: usize, access| pd.register(Memory::zeroed(size)?, access);
        let ring = register(sizes.recv_buffer as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let slot = if device.attributes().immediate > 0 { 0 } else { SHORT_DATA_MOST } + WORD as u32;
        let words = register(recv_depth as usize * slot as usize, Access::LOCAL_WRITE)?;
        let staging = if granted.inline < sizes.send_buffer as usize {
            Some(register(sizes.send_buffer as usize, Access::empty())?)
        } else {
            None
        };
        let word_staging = if granted.inline < WORD {
            let slots = u64::from(granted.send_depth);
            let region = register(granted.send_depth as usize * WORD, Access::empty())?;
            Some(WordSlots { region, slots, next: 0 })
        } else {
            None
        };

        let mut queue_pair =
            Self { cq, qp, ring, words, slot, inline: granted.inline, staging, word_staging, wait: None };
        let mut first = 0;
        while first < recv_depth {
            let end = recv_depth.min(first + REPOST_CHAIN as u32);
            queue_pair.post_receives(&mut (first..end).map(u64::from))?;
            first = end;
        }
        Ok(queue_pair)
    }

    /// Attaches a wait set, which becomes readable when [`super::Connection::progress`] has something to do.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::attach`].
    pub fn attach(&mut self, wait: Arc<WaitSet>) -> verbs::Result<()> {
        self.cq.attach(Arc::clone(&wait))?;
        self.wait = Some(wait);
        Ok(())
    }

    /// When to drive the connection even if nothing is signaled.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.cq.deadline(self.qp)
    }

    /// The local address, once there is one.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.cq.local_address(self.qp)
    }

    /// The peer's address, once there is a connection.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.cq.peer_address(self.qp)
    }

    /// This side's connection parameters.
    pub(crate) fn offer<'a>(&self, settings: &Settings, extension: Option<Extension<'a>>) -> Offer<'a> {
        Offer {
            ring_address: self.ring.address(),
            ring_key: u64::from(self.ring.remote_key()),
            ring_size: settings.sizes.recv_buffer,
            receives: settings.sizes.recv_depth,
            extension,
        }
    }

    /// Posts the receives of the slots that `slots` yields, at most [`REPOST_CHAIN`] of them.
    pub(crate) fn post_receives(&mut self, slots: &mut dyn Iterator<Item = u64>) -> verbs::Result<()> {
        let mut chain = [RecvRequest { id: 0, buffer: Buffer::Empty }; REPOST_CHAIN];
        let mut length = 0;
        for (request, slot) in chain.iter_mut().zip(slots) {
            let address = self.words.address() + slot * u64::from(self.slot);
            let buffer = Segment { key: self.words.local_key(), address, length: self.slot };
            *request = RecvRequest { id: slot, buffer: Buffer::Segment(buffer) };
            length += 1;
        }
        self.cq.post_recv(self.qp, &chain[..length])
    }

    /// The word that arrived in the receive of `slot`.
    pub(crate) fn word(&self, slot: u64) -> Option<u32> {
        let mut word = [0; WORD];
        self.words.memory().read(slot * u64::from(self.slot), &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }

    /// Copies the data after the word in the receive of `slot` to its place in the receive ring.
    pub(crate) fn place(&self, slot: u64, offset: u32, length: u32) -> bool {
        let mut data = [0; SHORT_DATA_MOST as usize];
        let Some(data) = data.get_mut(..length as usize) else { return false };
        let after_word = slot * u64::from(self.slot) + WORD as u64;
        self.words.memory().read(after_word, data).is_ok()
            && self.ring.memory().write(u64::from(offset), data).is_ok()
    }

    /// Copies bytes of the receive ring out.
    pub(crate) fn read_ring(&self, offset: u32, target: &mut [u8]) -> bool {
        self.ring.memory().read(u64::from(offset), target).is_ok()
    }

    /// Posts a data message to the peer's `ring`. `data` is its payload, in at most [`MAX_PIECES`] slices.
    pub(crate) fn post_write(
        &mut self,
        format: WordFormat,
        ring: RemoteAddress,
        message: &WriteMessage,
        data: &[IoSlice<'_>],
        more: bool,
    ) -> verbs::Result<()> {
        let remote = RemoteAddress { key: ring.key, address: ring.address + message.remote_offset };
        if message.may_join_word && WORD + message.length as usize <= self.inline {
            return self.post_word_with_data(message, data, more);
        }
        let segment;
        let payload = match &self.staging {
            Some(staging) if message.length as usize > self.inline => {
                segment = [stage(staging, message.local_offset, data)?];
                Payload::Segments(&segment)
            }
            _ => Payload::Inline(data),
        };
        let Ticket { id, signaled } = message.ticket;
        match format {
            WordFormat::Immediate => {
                let operation = Operation::Write { remote, immediate: Some(message.word.into()) };
                self.cq.post_send(self.qp, &[SendRequest { id, signaled, operation, payload }], more)
            }
            WordFormat::Iwarp => {
                let operation = Operation::Write { remote, immediate: None };
                let write = SendRequest { id, signaled: false, operation, payload };
                self.post_word(Some(write), message.word, message.ticket, more)
            }
        }
    }

    /// Posts a word and short data after it, in one send.
    fn post_word_with_data(
        &mut self,
        message: &WriteMessage,
        data: &[IoSlice<'_>],
        more: bool,
    ) -> verbs::Result<()> {
        let word = message.word.to_le_bytes();
        let mut slices = [IoSlice::new(&[]); 1 + MAX_PIECES];
        slices[0] = IoSlice::new(&word);
        slices[1..].iter_mut().zip(data).for_each(|(place, slice)| *place = *slice);
        let payload = Payload::Inline(&slices[..=data.len()]);
        let Ticket { id, signaled } = message.ticket;
        self.cq.post_send(self.qp, &[SendRequest { id, signaled, operation: PLAIN_SEND, payload }], more)
    }

    /// Posts a control message.
    pub(crate) fn post_control(&mut self, format: WordFormat, message: &ControlMessage) -> verbs::Result<()> {
        let Ticket { id, signaled } = message.ticket;
        match format {
            WordFormat::Immediate => {
                let operation = Operation::Send {
                    immediate: Some(message.word.into()),
                    invalidate: None,
                    solicited: false,
                };
                let payload = Payload::Inline(&[]);
                self.cq.post_send(self.qp, &[SendRequest { id, signaled, operation, payload }], false)
            }
            WordFormat::Iwarp => self.post_word(None, message.word, message.ticket, false),
        }
    }

    /// Posts a word as the payload of a send, after the write that it announces.
    fn post_word(
        &mut self,
        write: Option<SendRequest<'_>>,
        word: u32,
        ticket: Ticket,
        more: bool,
    ) -> verbs::Result<()> {
        let bytes = word.to_le_bytes();
        let slices = [IoSlice::new(&bytes)];
        let segment;
        let payload = match &mut self.word_staging {
            None => Payload::Inline(&slices),
            Some(words) => {
                let slot = words.next % words.slots;
                words.next += 1;
                segment = [stage(&words.region, (slot * WORD as u64) as u32, &slices)?];
                Payload::Segments(&segment)
            }
        };
        let Ticket { id, signaled } = ticket;
        let send = SendRequest { id, signaled, operation: PLAIN_SEND, payload };
        match write {
            Some(write) => self.cq.post_send(self.qp, &[write, send], more),
            None => self.cq.post_send(self.qp, &[send], more),
        }
    }
}

/// Most receives posted with one call.
pub(crate) const REPOST_CHAIN: usize = 16;

/// Copies `slices` into registered memory at `offset`.
fn stage<M: MemoryRegion>(region: &M, offset: u32, slices: &[IoSlice<'_>]) -> verbs::Result<Segment> {
    let mut at = u64::from(offset);
    for slice in slices {
        region.memory().write(at, slice).map_err(|_| verbs::Error::BadSegment {
            key: region.local_key(),
            address: at,
            length: slice.len() as u32,
            why: "beyond the send ring",
        })?;
        at += slice.len() as u64;
    }
    Ok(Segment {
        key: region.local_key(),
        address: region.address() + u64::from(offset),
        length: (at - u64::from(offset)) as u32,
    })
}
