//! Two threads on one endpoint, one for each direction.
//!
//! An endpoint has one descriptor for both directions. While it is readable for one thread, the other thread
//! cannot sleep on it: `poll` returns at once, the call finds nothing, and both repeat. That would take the
//! lock and the processor from the thread that has something to do. So a call that finds nothing yields to
//! the other thread inside the provider: it yields the processor, and while the descriptor is readable for
//! the other thread, it waits for that thread, for less than a millisecond in all.

use std::time::Duration;

use rstream_session::{Direction, Thread};

/// Number of times that a call which finds nothing yields the processor and looks again.
pub(super) const YIELDS: usize = 8;
/// Times that it waits between two looks while the descriptor is readable for the other thread.
pub(super) const PAUSES: [Duration; 4] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
];

/// The thread that called last in each direction.
#[derive(Default)]
pub(super) struct Callers([Option<Thread>; 2]);

impl Callers {
    /// Records that the calling thread calls in this direction.
    pub(super) fn note(&mut self, direction: Direction) {
        self.0[direction as usize] = Some(Thread::current());
    }

    /// Whether the last call in this direction came from another thread.
    pub(super) fn is_another(&self, direction: Direction) -> bool {
        self.0[direction as usize].is_some_and(|thread| thread != Thread::current())
    }

    /// Whether the last call in this direction came from the calling thread.
    pub(super) fn is_this(&self, direction: Direction) -> bool {
        self.0[direction as usize] == Some(Thread::current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_direction() {
        let mut callers = Callers::default();
        assert!(!callers.is_another(Direction::Send) && !callers.is_this(Direction::Send), "nobody called");
        callers.note(Direction::Send);
        assert!(!callers.is_another(Direction::Send) && callers.is_this(Direction::Send));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(callers.is_another(Direction::Send) && !callers.is_this(Direction::Send));
                callers.note(Direction::Receive);
            });
        });
        assert!(callers.is_another(Direction::Receive) && !callers.is_another(Direction::Send));
    }
}
