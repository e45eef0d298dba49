//! Memory of the provider's own for messages that have no receive of the application yet.

use std::slice;

use super::Place;

/// Memory for one receive, or for what one request sends. Whoever posts its place keeps it until the request is complete, or its queue pair is
/// destroyed or [given up](rdma_verbs::MessageQueues::give_up), and looks at the bytes not before that.
#[derive(Debug)]
pub struct ReceiveBuffer(*mut [u8]);

// SAFETY: it owns the bytes, which are not tied to a thread.
unsafe impl Send for ReceiveBuffer {}

impl ReceiveBuffer {
    /// So many bytes; `None` if there is no memory.
    #[must_use]
    pub fn new(length: u32) -> Option<Self> {
        let length = length as usize;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok()?;
        bytes.resize(length, 0_u8);
        Some(Self(Box::into_raw(bytes.into_boxed_slice())))
    }

    /// All of it, to be posted.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let length = u32::try_from(self.0.len()).ok()?;
        // SAFETY: the bytes live until this is dropped. Whoever posts the place waits for its request with that and
        // with `bytes`, so until then only the request uses them.
        unsafe { Place::new(self.0.cast(), length) }
    }

    /// What was received.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a live boxed slice; no request uses it, as the type says.
        unsafe { slice::from_raw_parts(self.0.cast(), self.0.len()) }
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        // A panic may have kept its owner from waiting.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the pointer is of `Box::into_raw`, and this is the only use of it as a box.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
