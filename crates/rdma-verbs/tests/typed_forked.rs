//! A child of `fork` uses shards of its own. This is a process of its own, because it counts as such a child.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::process;
use rdma_verbs::typed::Shard;

/// Longest time that a wait may take. It takes this long if nobody is woken.
const LIMIT: Duration = Duration::from_secs(10);

/// Waits until another thread wakes this one.
fn wait() {
    let (shard, begin) = (Shard::embedded().unwrap(), Instant::now());
    let is_ready = Arc::new(AtomicBool::new(false));
    let mut waker = None;
    let mut future = poll_fn(|context| {
        if is_ready.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let (is_ready, task) = (Arc::clone(&is_ready), context.waker().clone());
        waker.get_or_insert_with(|| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                is_ready.store(true, Ordering::Release);
                task.wake();
            })
        });
        Poll::Pending
    });
    shard.block_on_until(&mut future, begin + LIMIT).unwrap();
    assert!(begin.elapsed() < LIMIT, "nobody woke it");
}

#[test]
fn a_thread_that_blocks_is_woken_in_a_child_too() {
    wait();
    process::forked();
    wait();
}
