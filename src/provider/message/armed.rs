//! The threads that have requested a wake-up, as far as it matters: none, one, or several.

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    None,
    /// The thread with this number, see [`this_thread`].
    One(usize),
    Several,
}

/// A number that no other thread has as long as this one lives.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl Armed {
    /// These and the calling thread.
    pub(super) fn with_this(self) -> Self {
        let this = Self::One(this_thread());
        if self == Self::None || self == this { this } else { Self::Several }
    }

    /// Whether there are others than the calling thread.
    pub(super) fn has_others(self) -> bool {
        match self {
            Self::None => false,
            Self::One(thread) => thread != this_thread(),
            Self::Several => true,
        }
    }
}
