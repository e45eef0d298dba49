//! Both ways at once with two threads on each side: one sends while the other receives on the same stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

use super::End;
use super::traffic::chunk;
use crate::job::Job;
use crate::transport::Stream;

/// Sends in this thread and receives in another until `enough`, as both ways in turns do.
pub(super) fn both_ways<S: Stream>(
    job: &Job,
    end: &mut End<S>,
    mut enough: impl FnMut(u64, bool) -> bool,
) -> Result<()> {
    let mut receiving = End::new(end.stream.twin()?, job.sleeps);
    let (received, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| -> Result<()> {
            let mut buffer = vec![0; job.size];
            while receiving.receive_some(&mut buffer)? > 0 {
                received.store(receiving.received, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
            Ok(())
        });
        let message = vec![0; job.size];
        while !enough(end.sent + received.load(Ordering::Relaxed), ended.load(Ordering::Relaxed)) {
            for _ in 0..chunk(job) {
                end.send_all(&message)?;
            }
        }
        end.stream.finish()?;
        receiver.join().map_err(|_| anyhow!("the receiving thread panicked"))?
    })?;
    end.join(&receiving);
    Ok(())
}
