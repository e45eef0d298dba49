//! How many unfinished handshakes a listener keeps, and for how long each is sure of its place.
//!
//! A peer takes a descriptor of this process as soon as it connects, before it has said anything. All
//! listeners together leave most of the descriptors that the process may have to the application.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// Most handshakes of a listener,
const MOST: usize = 1024;
/// and fewest, however little the process may have.
const FEWEST: usize = 4;
/// Handshakes take one in so many of the descriptors that the process may have.
const SHARE: u64 = 8;
/// How long a handshake has its place for sure where there are most of them. Fewer places are given on
/// sooner, so that a crowd of silent peers passes at the same rate,
const GRACE: Duration = Duration::from_secs(1);
/// but not sooner than this.
const LEAST_GRACE: Duration = Duration::from_millis(50);

/// The listeners of the process.
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// A listener's share, from its beginning to its end.
pub(super) struct Share(());

impl Share {
    /// The share of one more listener.
    pub(super) fn claim() -> Self {
        LISTENERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// How many handshakes the listener may have now.
    #[expect(clippy::unused_self, reason = "only a listener that claimed a share asks")]
    pub(super) fn places(&self) -> usize {
        places(getrlimit(Resource::Nofile).current, LISTENERS.load(Ordering::Relaxed))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The places of each of `listeners` in a process that may have `limit` descriptors (`None`: any number).
fn places(limit: Option<u64>, listeners: usize) -> usize {
    let all = limit.map_or(usize::MAX, |limit| usize::try_from(limit / SHARE).unwrap_or(usize::MAX));
    (all / listeners.max(1)).clamp(FEWEST, MOST)
}

/// How long a handshake has one of so many places for sure.
pub(super) fn grace(places: usize) -> Duration {
    GRACE.mul_f64(places as f64 / MOST as f64).max(LEAST_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_an_eighth_of_the_descriptors() {
        assert_eq!(places(None, 1), 1024);
        assert_eq!(places(Some(20_000), 1), 1024);
        assert_eq!(places(Some(20_000), 4), 625);
        assert_eq!(places(Some(1024), 1), 128);
        assert_eq!(places(Some(256), 1), 32);
        assert_eq!(places(Some(256), 3), 10);
        assert_eq!(places(Some(256), 1000), 4);
        assert_eq!(places(Some(0), 0), 4);
    }

    #[test]
    fn fewer_places_are_given_on_sooner() {
        assert_eq!(grace(1024), Duration::from_secs(1));
        assert_eq!(grace(128), Duration::from_millis(125));
        assert_eq!(grace(4), Duration::from_millis(50));
    }
}
