//! The event queue's descriptor: readable while events are queued, and not a moment longer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::provider::children::Children;

/// A source that panics when it is driven, or does nothing.
struct Other {
    panics: bool,
}

impl Source for Other {
    fn drive(&self) {
        assert!(!self.panics, "told to");
    }
}

/// A queue with a source whose time has come.
fn due(source: &Arc<dyn Source>) -> (Arc<EventQueue>, Binding) {
    let queue = Arc::new(EventQueue::open(Children::default().join()).unwrap());
    let token = queue.wait.token();
    let bound = Bound { source: Arc::downgrade(source), deadline: None };
    queue.queue.lock().sources.insert(token, bound);
    let binding = Binding { queue: Arc::clone(&queue), token, fid: FidHandle::of_nothing() };
    binding.set_deadline(Some(Instant::now()));
    (queue, binding)
}

fn readable(queue: &EventQueue) -> bool {
    queue.wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap()
}

#[test]
fn a_deadline_that_has_passed_is_over() {
    let source: Arc<dyn Source> = Arc::new(Other { panics: false });
    let (queue, _binding) = due(&source);
    assert!(queue.wait.wait(Some(Duration::from_secs(10)), &mut Vec::new()).unwrap());
    assert!(!queue.must_not_wait());
    assert!(!readable(&queue), "no deadline is left");
}

#[test]
fn a_source_that_panics_leaves_the_signal_in_step() {
    let source: Arc<dyn Source> = Arc::new(Other { panics: true });
    let (queue, binding) = due(&source);
    assert!(catch_unwind(AssertUnwindSafe(|| queue.must_not_wait())).is_err());
    assert!(!readable(&queue), "nothing is queued, and no deadline is left");
    binding.push(Event::Shutdown { fid: binding.fid() });
    assert!(readable(&queue), "an event is queued");
    binding.take_unread();
    assert!(!readable(&queue), "none is");
}
