//! Counts an object's open children: a parent cannot be closed before them.

use std::sync::Arc;

use crate::abi::{Errno, Result};

/// The open children of an object.
#[derive(Default)]
pub(super) struct Children(Arc<()>);

/// Counts as one child until it is dropped.
pub(super) struct Child(#[expect(dead_code, reason = "it counts by being there")] Arc<()>);

impl Children {
    /// Adds a child.
    pub(super) fn join(&self) -> Child {
        Child(Arc::clone(&self.0))
    }

    /// Fails with `-FI_EBUSY` while a child is open.
    pub(super) fn require_none(&self) -> Result<()> {
        if Arc::strong_count(&self.0) == 1 { Ok(()) } else { Err(Errno::EBUSY) }
    }
}
