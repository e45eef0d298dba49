//! Memory that tests lend to requests.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rdma_verbs::{Memory, Place};

/// Content of [`Lent::blank`] memory.
const BLANK: u8 = 0xee;

/// Memory that is never freed, so that requests may use it at any time. A test accesses it between the calls
/// of its devices, from the one thread that makes them, and posts no byte for two requests of which one
/// writes it.
#[derive(Debug)]
pub struct Lent {
    base: NonNull<u8>,
    length: usize,
    /// The local key of the region around it; 0: none.
    key: u32,
}

impl Lent {
    /// Memory with this content.
    ///
    /// # Panics
    /// If it has more bytes than a place.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        /// Where leak checkers find it.
        static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        assert!(u32::try_from(bytes.len()).is_ok(), "a place has less than 4 GiB");
        let bytes = Box::leak(bytes.into_boxed_slice());
        KEPT.lock().expect("no test panics here").push(bytes.as_ptr().addr());
        Self { length: bytes.len(), base: NonNull::from(bytes).cast(), key: 0 }
    }

    /// `length` bytes that no test sends.
    #[must_use]
    pub fn blank(length: usize) -> Self {
        Self::new(vec![BLANK; length])
    }

    /// The same memory within the region of this local key.
    #[must_use]
    pub(super) fn within(self, key: u32) -> Self {
        Self { key, ..self }
    }

    /// The memory, to register it.
    pub(super) fn memory(&self) -> Arc<Memory> {
        // SAFETY: it stays valid for good. Tests access it by copies between the calls of their one thread.
        unsafe { Memory::lent(self.base.as_ptr(), self.length) }.expect("a box has a length that memory has")
    }

    /// `length` bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Place {
        assert!(offset + length <= self.length);
        // SAFETY: it stays valid for good, and is used as the type says.
        let place = unsafe { Place::new(self.base.as_ptr().add(offset), length as u32) };
        place.expect("the address of a box is not null").within(self.key)
    }

    /// All of it.
    #[must_use]
    pub fn place(&self) -> Place {
        self.part(0, self.length)
    }

    /// A copy of its content.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: it stays valid for good, and what writes it does so within calls of this thread.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }.to_vec()
    }

    /// Whether nothing was written to these bytes of [`Lent::blank`] memory.
    #[must_use]
    pub fn is_blank(&self, range: std::ops::Range<usize>) -> bool {
        self.bytes()[range].iter().all(|&byte| byte == BLANK)
    }

    /// Makes it blank.
    pub fn clear(&self) {
        self.set(BLANK);
    }

    /// Fills it with one byte.
    pub fn set(&self, byte: u8) {
        // SAFETY: as in `bytes`.
        unsafe { self.base.write_bytes(byte, self.length) }
    }
}
