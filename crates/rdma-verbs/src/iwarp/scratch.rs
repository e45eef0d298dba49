//! A scratch buffer for one call: for received bytes whose place is not known yet, and for FPDUs that are
//! built from registered memory.
//!
//! Nothing in it outlives the call that uses it. So one buffer for each thread serves any number of queue
//! pairs: an idle queue pair owns no such memory, and the buffer stays in the processor's cache.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use super::machine::SCRATCH;

thread_local! {
    /// Empty while it is borrowed.
    static SPARE: Cell<Box<[u8]>> = Cell::default();
}

/// [`SCRATCH`] bytes of arbitrary content, borrowed from the thread.
pub(super) struct Scratch(Box<[u8]>);

impl Scratch {
    /// Takes the thread's buffer. Allocates one at the first use, and while a thread ends.
    pub(super) fn take() -> Self {
        let bytes = SPARE.try_with(Cell::take).unwrap_or_default();
        if bytes.is_empty() { Self::new() } else { Self(bytes) }
    }

    #[cold]
    fn new() -> Self {
        Self(vec![0; SCRATCH].into())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        // A thread that ends keeps no buffer: then it is freed here.
        let _ = SPARE.try_with(|spare| spare.set(bytes));
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
