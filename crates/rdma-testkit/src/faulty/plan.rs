//! Which faults happen, and how often.

/// The probability of each fault in thousandths (0: never), and the seed of the random generator. Faults that
/// only delay have a probability of 900 at most, so that progress is certain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The same seed and the same calls give the same faults.
    pub seed: u64,
    /// A poll keeps the last completions that it finds for the next poll.
    pub hold_completions: u16,
    /// A poll returns fewer completions than the caller has room for.
    pub small_batch: u16,
    /// A poll returns 0 without polling the wrapped queue, and makes the wait set readable. The next poll
    /// does not.
    pub false_zero: u16,
    /// The wait set, or an event target, becomes readable without reason.
    pub spurious_wake: u16,
    /// A post is refused as if the queue were full, and the wait set becomes readable. The next post is not
    /// refused. This happens only on queues with outstanding requests, where a consumer must expect it.
    pub queue_full: u16,
    /// Of several sends that are posted together the first ones are taken and the others refused, and the
    /// connection breaks.
    pub partial_post: u16,
    /// A queue pair is granted fewer inline bytes than requested.
    pub small_inline: u16,
    /// A call on an established queue pair finds the connection broken.
    pub break_connection: u16,
    /// A call on an established queue pair finds that this side has begun the orderly end of the connection.
    pub end_connection: u16,
    /// A connection attempt fails.
    pub fail_connect: u16,
}

impl Plan {
    /// No faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every fault that a connection survives.
    #[must_use]
    pub fn nuisances(seed: u64) -> Self {
        Self {
            seed,
            hold_completions: 200,
            small_batch: 300,
            false_zero: 200,
            spurious_wake: 100,
            queue_full: 100,
            small_inline: 500,
            ..Self::none()
        }
    }
}
