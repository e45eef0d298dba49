//! Messages and remote memory access over endpoints of type FI_EP_MSG, of any provider. Nothing is copied
//! here: an operation names a slot of registered memory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::connecting::{Door, connect};
use super::object::{Object, check, error_text};
use super::opened::{ConnectionData, Opened, Wanted};
use super::{NOT_NOW, sleep_on, sys};

/// Completions that are read at a time.
const BATCH: usize = 16;
const ERROR_IS_QUEUED: isize = -(sys::FI_EAVAIL as isize);
/// Slots begin with a cache line.
const ALIGNMENT: usize = 64;
/// Key of the region with number 0, which holds all slots.
const KEY: u64 = 1;
/// What all memory holds at first.
pub(crate) const FILL: u8 = 0x5a;

/// What a side needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Endpoints, which share a completion queue.
    pub(crate) ends: usize,
    /// Slots to send from, and as many to receive into, that each endpoint has.
    pub(crate) window: usize,
    /// Bytes of the longest message.
    pub(crate) size: usize,
    pub(crate) sleeps: bool,
}

/// One side: connected endpoints, in whose slots of one memory operations take place.
///
/// The slots of an endpoint follow each other: those to send from, then those to receive into.
// Fields are closed from the first to the last.
pub(crate) struct Messages {
    ends: Vec<End>,
    region: Region,
    memory: Vec<Cell<u8>>,
    queue: Object<sys::fid_cq>,
    /// What to sleep on, if it sleeps.
    descriptor: Option<i32>,
    opened: Arc<Opened>,
    /// Slots of an endpoint.
    slots: usize,
    /// Bytes of a slot.
    slot_size: usize,
    completed: VecDeque<Completed>,
}

/// Registered memory.
pub(crate) struct Region(Object<sys::fid_mr>);

struct End {
    endpoint: Object<sys::fid_ep>,
    remote: Remote,
}

/// The memory of one endpoint as its peer names it.
#[derive(Debug, Clone, Copy)]
struct Remote {
    address: u64,
    key: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Receive,
    /// To the same slot of the other side.
    Write,
    /// From the same slot of the other side.
    Read,
}

/// A completed operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completed {
    pub(crate) operation: Operation,
    pub(crate) slot: usize,
    /// Bytes of what was received.
    pub(crate) length: usize,
}

impl Messages {
    fn new(opened: Arc<Opened>, shape: Shape) -> Result<Self> {
        let (slots, slot_size) = (2 * shape.window, shape.size.next_multiple_of(ALIGNMENT));
        let count = shape.ends * slots;
        // SAFETY: every field may be zero.
        let mut attributes: sys::fi_cq_attr = unsafe { std::mem::zeroed() };
        attributes.size = count;
        attributes.format = sys::FI_CQ_FORMAT_MSG;
        attributes.wait_obj = if shape.sleeps { sys::FI_WAIT_FD } else { sys::FI_WAIT_NONE };
        // SAFETY: the domain is open, the attributes live until the call returns; it stores a queue that is
        // ours.
        let queue = unsafe {
            Object::open("fi_cq_open", |queue| {
                sys::fi_cq_open(opened.domain(), &raw mut attributes, queue, ptr::null_mut())
            })?
        };
        let memory = vec![Cell::new(FILL); count * slot_size];
        let region = register(&opened, &memory, KEY)?;
        let descriptor = shape.sleeps.then(|| queue.descriptor()).transpose()?;
        let (ends, completed) = (Vec::with_capacity(shape.ends), VecDeque::new());
        Ok(Self { ends, region, memory, queue, descriptor, opened, slots, slot_size, completed })
    }

    /// Registers the first bytes of the memory once more, as the region with this number.
    pub(crate) fn register(&self, length: usize, number: usize) -> Result<Region> {
        register(&self.opened, &self.memory[..length], KEY + number as u64)
    }

    /// Accepts all connections of the other side's `Self::connect`.
    pub(crate) fn accept(door: &mut MessageDoor, shape: Shape) -> Result<Self> {
        let mut messages = Self::new(Arc::clone(&door.0.opened), shape)?;
        for end in 0..shape.ends {
            let data = messages.describe(end);
            let connection = door.0.accept(&data, |endpoint| messages.prepare(endpoint, end))?;
            messages.add(connection);
        }
        Ok(messages)
    }

    /// Connects, one endpoint after the other.
    pub(crate) fn connect(way: &MessageWay, shape: Shape) -> Result<Self> {
        let mut messages = Self::new(Arc::clone(&way.0), shape)?;
        for end in 0..shape.ends {
            let data = messages.describe(end);
            let connection = connect(&way.0, &data, |endpoint| messages.prepare(endpoint, end))?;
            messages.add(connection);
        }
        Ok(messages)
    }

    /// Where the other side finds the memory of an endpoint.
    fn describe(&self, end: usize) -> ConnectionData {
        let offset = end * self.slots * self.slot_size;
        // SAFETY: an info has all its attributes.
        let mode = unsafe { (*(*self.opened.info().pointer()).domain_attr).mr_mode };
        let is_virtual = mode & sys::FI_MR_VIRT_ADDR as i32 != 0;
        let base = if is_virtual { self.memory.as_ptr().addr() } else { 0 };
        // SAFETY: the region is open.
        let key = unsafe { sys::fi_mr_key(self.region.0.pointer()) };
        ((base + offset) as u128 | u128::from(key) << 64).to_be_bytes()
    }

    /// Makes an endpoint ready to be connected, with all its receives posted.
    fn prepare(&self, endpoint: &Object<sys::fid_ep>, end: usize) -> Result<()> {
        // SAFETY: both are open, and the queue stays so longer than the endpoint.
        check("fi_ep_bind", unsafe {
            sys::fi_ep_bind(endpoint.pointer(), self.queue.fid(), sys::FI_TRANSMIT | sys::FI_RECV)
        })?;
        // SAFETY: the endpoint is open.
        check("fi_enable", unsafe { sys::fi_enable(endpoint.pointer()) })?;
        for slot in self.slots / 2..self.slots {
            let nowhere = Remote { address: 0, key: 0 };
            let slot = end * self.slots + slot;
            if !self.post_on(endpoint, nowhere, Operation::Receive, slot, self.slot_size)? {
                bail!("the queue of receives is shorter than {}", self.slots / 2);
            }
        }
        Ok(())
    }

    fn add(&mut self, (endpoint, data): (Object<sys::fid_ep>, ConnectionData)) {
        let both = u128::from_be_bytes(data);
        self.ends.push(End { endpoint, remote: Remote { address: both as u64, key: (both >> 64) as u64 } });
    }

    /// Begins an operation on the first bytes of a slot. Answers whether there was room for it.
    #[inline]
    pub(crate) fn post(&mut self, operation: Operation, slot: usize, length: usize) -> Result<bool> {
        let End { endpoint, remote } = &self.ends[slot / self.slots];
        self.post_on(endpoint, *remote, operation, slot, length)
    }

    #[inline]
    fn post_on(
        &self,
        endpoint: &Object<sys::fid_ep>,
        remote: Remote,
        operation: Operation,
        slot: usize,
        length: usize,
    ) -> Result<bool> {
        let bytes = &self.memory[slot * self.slot_size..][..length];
        let there = remote.address + (slot % self.slots * self.slot_size) as u64;
        let (bytes, context) = (bytes.as_ptr().cast_mut().cast(), ptr::without_provenance_mut(slot));
        let (endpoint, peer, key) = (endpoint.pointer(), u64::MAX, remote.key);
        // SAFETY: endpoint and region are open. The bytes are cells of the memory, which others may change,
        // and which lives until the endpoint is closed. The context is never followed.
        let (call, answer) = unsafe {
            let described = sys::fi_mr_desc(self.region.0.pointer());
            match operation {
                Operation::Send => {
                    ("fi_send", sys::fi_send(endpoint, bytes, length, described, peer, context))
                }
                Operation::Receive => {
                    ("fi_recv", sys::fi_recv(endpoint, bytes, length, described, peer, context))
                }
                Operation::Write => {
                    ("fi_write", sys::fi_write(endpoint, bytes, length, described, peer, there, key, context))
                }
                Operation::Read => {
                    ("fi_read", sys::fi_read(endpoint, bytes, length, described, peer, there, key, context))
                }
            }
        };
        match answer {
            0 => Ok(true),
            NOT_NOW => Ok(false),
            _ => bail!("{call}: {}", error_text(answer as i32)),
        }
    }

    /// The next completion, if there is one. Every call without one drives the provider.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Completed>> {
        if self.completed.is_empty() {
            self.read()?;
        }
        Ok(self.completed.pop_front())
    }

    /// Drives the provider, and keeps what it has completed for `Self::next`. Answers whether that was
    /// something.
    pub(crate) fn read(&mut self) -> Result<bool> {
        // SAFETY: every field may be zero.
        let mut entries: [sys::fi_cq_msg_entry; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open and its entries have this format; at most as many are written as told.
        let got = unsafe { sys::fi_cq_read(self.queue.pointer(), entries.as_mut_ptr().cast(), BATCH) };
        match got {
            NOT_NOW => Ok(false),
            ERROR_IS_QUEUED => bail!("an operation failed: {}", self.error()),
            ..0 => bail!("fi_cq_read: {}", error_text(got as i32)),
            _ => {
                self.completed.extend(entries[..got as usize].iter().map(completed));
                Ok(true)
            }
        }
    }

    /// The text of the error that is queued.
    fn error(&self) -> String {
        // SAFETY: every field may be zero; no room for data is offered.
        let mut entry: sys::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open, and the entry is a whole one.
        let got = unsafe { sys::fi_cq_readerr(self.queue.pointer(), &raw mut entry, 0) };
        error_text(if got > 0 { -entry.err } else { got as i32 })
    }

    /// Sleeps until there may be a completion. It may wake for nothing.
    pub(crate) fn sleep(&self) -> Result<()> {
        let descriptor = self.descriptor.context("polling was asked for")?;
        // SAFETY: the descriptor is the queue's and open as long as it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let readable = PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        match sleep_on(&self.opened, &mut [self.queue.fid()], &mut [readable]) {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }

    /// Writes to a slot from its byte `at` on.
    pub(crate) fn put(&self, slot: usize, at: usize, bytes: &[u8]) {
        let cells = &self.memory[slot * self.slot_size + at..];
        cells.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
    }

    /// Reads from a slot from its byte `at` on.
    pub(crate) fn get(&self, slot: usize, at: usize, bytes: &mut [u8]) {
        let cells = &self.memory[slot * self.slot_size + at..];
        cells.iter().zip(bytes).for_each(|(cell, byte)| *byte = cell.get());
    }
}

/// Registers memory of a side for every access.
#[inline]
fn register(opened: &Opened, memory: &[Cell<u8>], key: u64) -> Result<Region> {
    let access = sys::FI_SEND
        | sys::FI_RECV
        | sys::FI_READ
        | sys::FI_WRITE
        | sys::FI_REMOTE_READ
        | sys::FI_REMOTE_WRITE;
    let (base, length) = (memory.as_ptr().cast(), memory.len());
    // SAFETY: the domain is open. The memory has this length, is never reallocated and lives longer than the
    // endpoints, through which alone it is accessed, by the order of the fields of `Messages`.
    let region = unsafe {
        Object::open("fi_mr_reg", |region| {
            sys::fi_mr_reg(opened.domain(), base, length, access, 0, key, 0, region, ptr::null_mut())
        })?
    };
    Ok(Region(region))
}

#[inline]
fn completed(entry: &sys::fi_cq_msg_entry) -> Completed {
    let operation = match entry.flags {
        flags if flags & sys::FI_RECV != 0 => Operation::Receive,
        flags if flags & sys::FI_READ != 0 => Operation::Read,
        flags if flags & sys::FI_WRITE != 0 => Operation::Write,
        _ => Operation::Send,
    };
    Completed { operation, slot: entry.op_context.addr(), length: entry.len }
}

/// The side that is found.
pub(crate) struct MessageDoor(Door);

impl MessageDoor {
    pub(crate) fn open(address: IpAddr, provider: &'static str) -> Result<Self> {
        Ok(Self(Door::open(wanted(provider), address, |_| Ok(()))?))
    }

    /// What the other process needs to find it, besides the host.
    pub(crate) fn target(&self) -> Result<String> {
        self.0.target()
    }
}

/// Where a passive endpoint of messages is.
pub(crate) struct MessageWay(Arc<Opened>);

impl MessageWay {
    pub(crate) fn new(target: SocketAddr, provider: &'static str) -> Result<Self> {
        Ok(Self(Arc::new(Opened::at(wanted(provider), target, 0)?)))
    }
}

fn wanted(provider: &'static str) -> Wanted {
    Wanted { provider, endpoint: sys::FI_EP_MSG, caps: sys::FI_MSG | sys::FI_RMA }
}
