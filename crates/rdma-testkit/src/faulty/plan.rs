//! Which faults, and how often.

/// How often each fault happens, in thousandths of its occasions (0: never), and the seed that
/// decides when. What holds something up is never certain: its odds are cut to 900.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Same seed, same calls: same faults.
    pub seed: u64,
    /// A poll that finds completions keeps the last of them for the next one.
    pub hold_completions: u16,
    /// A poll is given less room than the caller has.
    pub small_batch: u16,
    /// A poll answers 0 without looking, once; the wait set says that there is more.
    pub false_zero: u16,
    /// The wait set, or an event target, becomes readable for no reason.
    pub spurious_wake: u16,
    /// A post is refused as if the queue were full, once; the wait set says when to try again. Only
    /// on queues where posted requests are outstanding, so that a consumer has to expect it.
    pub queue_full: u16,
    /// A queue pair gets fewer inline bytes than asked for.
    pub small_inline: u16,
    /// A call on an established queue pair finds that the connection broke.
    pub break_connection: u16,
    /// A call on an established queue pair finds that the connection is being ended in order, with
    /// whatever was on its way.
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

    /// Everything now and then that a connection survives.
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
