//! The cork: requests that a consumer posts to one queue pair one after the other leave together.
//!
//! Each `send` of TCP that transmits takes some microseconds, whatever its length. If the socket is told that more
//! follows (`MSG_MORE`), it keeps what does not fill a segment, and the next `send` transmits both. What is kept leaves
//! with the next output that does not wait, with the next poll, or before a request to another queue pair, so that
//! requests leave in the order in which they are posted, whatever the connection. If there is no further call, the
//! system transmits when the peer's host acknowledges what it has got, or after the time-out of TCP: 200 ms, unless the
//! peer is far away.
//!
//! The first request after a poll never waits. Whether the next ones do depends on a balance: the time that waiting has
//! saved, less the time that requests have waited. It is kept while none waits, too, as if they did. So a consumer that
//! computes between its calls has no late messages, except the first time.

use std::mem;
use std::time::{Duration, Instant};

use crate::QpId;

/// How many requests leave together at most, and how many bytes until then.
const MOST: u32 = 32;
const MOST_BYTES: usize = 65536;
/// Maximum payload of a request that may wait, in bytes.
pub(super) const MAX_PAYLOAD: usize = 24 * 1024;
/// What a request saves that leaves together with the one before, in nanoseconds.
const SAVED: i64 = 2000;
/// It saves a nanosecond more for each so many bytes that it sends: the peer receives them together, too.
const BYTES: usize = 16;
/// From which balance on requests wait, and the most and the least that it can be, in nanoseconds.
const ENOUGH: i64 = 128_000;
const MOST_BALANCE: i64 = 256_000;
const LEAST_BALANCE: i64 = -20_000_000;
/// A consumer that is away for longer leaves the least balance, because its messages may be later than that.
const AWAY: Duration = Duration::from_millis(1);

/// The series of requests since the last poll, and what earlier ones have saved.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// The queue pair to which the requests of the series were posted.
    qp: Option<QpId>,
    /// If requests of the group wait: when the first one was posted. Otherwise: when the last call ended. `None`: the
    /// series has one request.
    since: Option<Instant>,
    /// Number of requests of the group: those that leave together, or would. The first of the series is not among
    /// them.
    group: u32,
    /// The payload that they send, in bytes.
    bytes: usize,
    /// What leaving together saves, or would.
    gain: i64,
    /// Whether those of the group wait.
    waits: bool,
    /// If requests of the group do not wait: how long the consumer was not in a call since the first one.
    away: Duration,
    /// What the groups of the series have saved, or would have, less what they waited, or would have. It counts when the
    /// series ends, so that a consumer which never polls saves nothing.
    saved: i64,
    /// The same of earlier series.
    balance: i64,
    /// Whether a request of the series waits or has waited.
    has_waited: bool,
}

impl Cork {
    /// Whether there are requests since the last poll.
    #[inline]
    pub(super) fn has_series(&self) -> bool {
        self.qp.is_some()
    }

    /// Whether the requests since the last poll were posted to this queue pair.
    pub(super) fn is_of(&self, qp: QpId) -> bool {
        self.qp == Some(qp)
    }

    /// Begins a series with a request to `qp`, which does not wait.
    #[inline]
    pub(super) fn begin(&mut self, qp: QpId) {
        self.qp = Some(qp);
    }

    /// Adds a request that sends so many bytes of payload to the series. Returns whether it may wait in the socket; one
    /// that may not takes along what is there. Call [`Cork::added`] when it is posted.
    pub(super) fn add(&mut self, length: usize, clock: impl Fn() -> Instant) -> bool {
        (self.group, self.bytes) = (self.group + 1, self.bytes + length);
        if self.group == 1 {
            self.waits = self.balance >= ENOUGH;
            self.since = Some(clock());
        } else {
            // It is less than 2^31.
            self.gain += SAVED + (length / BYTES) as i64;
            if !self.waits {
                self.pass(clock());
            }
        }
        if self.group == MOST || self.bytes >= MOST_BYTES {
            self.end_group(clock());
            return false;
        }
        self.waits
    }

    /// The request was posted. Whether it waits.
    pub(super) fn added(&mut self, waits: bool, clock: impl Fn() -> Instant) {
        self.has_waited |= waits;
        if !waits {
            self.since = Some(clock());
        }
    }

    /// A poll, or a request that is not of the series, ends it. Returns the queue pair whose socket is to send what it
    /// keeps, if it does.
    #[inline]
    pub(super) fn end(&mut self, clock: impl Fn() -> Instant) -> Option<QpId> {
        if self.since.is_none() {
            // It was one request.
            self.qp = None;
            return None;
        }
        if self.group > 0 {
            self.end_group(clock());
        }
        self.balance = MOST_BALANCE.min(self.balance + self.saved);
        (self.saved, self.since) = (0, None);
        self.qp.take().filter(|_| mem::take(&mut self.has_waited))
    }

    /// Adds the time since [`Cork::since`].
    fn pass(&mut self, now: Instant) {
        let since = self.since.replace(now).unwrap_or(now);
        self.away += now.saturating_duration_since(since);
    }

    fn end_group(&mut self, now: Instant) {
        self.pass(now);
        let away = mem::take(&mut self.away);
        let gain = mem::take(&mut self.gain);
        (self.group, self.bytes) = (0, 0);
        if away > AWAY {
            (self.balance, self.saved) = (LEAST_BALANCE, 0);
            return;
        }
        // `AWAY` has a million nanoseconds, so the cast loses nothing.
        self.saved += gain - away.as_nanos() as i64;
        if self.saved < 0 {
            self.balance = LEAST_BALANCE.max(self.balance + mem::take(&mut self.saved));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: QpId = QpId(1);

    /// A consumer that posts to one queue pair, and its clock.
    struct Consumer {
        cork: Cork,
        now: Instant,
        /// What each of its requests sends.
        length: usize,
    }

    impl Consumer {
        fn new() -> Self {
            Self { cork: Cork::default(), now: Instant::now(), length: 1 }
        }

        /// One whose requests wait.
        fn prompt() -> Self {
            let mut consumer = Self::new();
            for _ in 0..100 {
                consumer.posts(10, 0);
                consumer.polls_after(0);
            }
            consumer
        }

        fn passes(&mut self, microseconds: u64) {
            self.now += Duration::from_micros(microseconds);
        }

        /// Posts so many requests, and does something else before each. Returns how many of them wait.
        fn posts(&mut self, count: usize, microseconds: u64) -> usize {
            (0..count).filter(|_| self.posts_one(microseconds)).count()
        }

        fn posts_one(&mut self, microseconds: u64) -> bool {
            self.passes(microseconds);
            if !self.cork.has_series() {
                self.cork.begin(ONE);
                return false;
            }
            assert!(self.cork.is_of(ONE));
            let waits = self.cork.add(self.length, || self.now);
            // A send that transmits takes longer.
            self.passes(if waits { 0 } else { 3 });
            self.cork.added(waits, || self.now);
            waits
        }

        /// Polls after this time. Returns whether the socket is to send what it keeps.
        fn polls_after(&mut self, microseconds: u64) -> bool {
            self.passes(microseconds);
            let keeping = self.cork.end(|| self.now);
            assert!(!self.cork.has_series());
            assert!(matches!(keeping, None | Some(ONE)));
            keeping.is_some()
        }

        /// How many of 1000 series of so many requests have some that wait.
        fn waiting(mut self, count: usize, between: u64, before_poll: u64) -> usize {
            let series = (0..1000).filter(|_| {
                let waits = self.posts(count, between) > 0;
                self.polls_after(before_poll);
                waits
            });
            series.count()
        }
    }

    #[test]
    fn requests_wait_for_a_consumer_that_polls_soon() {
        let mut consumer = Consumer::new();
        for _ in 0..ENOUGH / (8 * SAVED) {
            assert_eq!(consumer.posts(10, 0), 0);
            assert!(!consumer.polls_after(0));
        }
        assert_eq!(consumer.posts(10, 0), 9);
        assert!(consumer.polls_after(0));
        assert_eq!(consumer.posts(1, 0), 0, "a single one does not");
        assert!(!consumer.polls_after(0));
    }

    #[test]
    fn so_many_leave_together() {
        let (mut consumer, most) = (Consumer::prompt(), MOST as usize);
        assert_eq!(consumer.posts(most, 0), most - 1);
        assert_eq!(consumer.posts(1, 0), 0, "which takes the others along");
        consumer.polls_after(0);
        assert_eq!(consumer.posts(2 * most, 0), 2 * (most - 1));
        assert!(consumer.polls_after(0));
        consumer.posts(1, 0);
        assert!(consumer.cork.add(MOST_BYTES - 1, || consumer.now));
        assert!(!consumer.cork.add(1, || consumer.now));
    }

    #[test]
    fn nothing_waits_for_a_consumer_that_never_polls() {
        assert_eq!(Consumer::new().posts(100_000, 0), 0);
    }

    #[test]
    fn nothing_waits_where_it_saves_less_than_it_delays() {
        assert_eq!(Consumer::prompt().waiting(10, 0, 1), 1000);
        assert_eq!(Consumer::prompt().waiting(10, 1, 2), 1000);
        // In any case what was saved before is spent.
        assert!(Consumer::prompt().waiting(10, 0, 20) < 64);
        assert!(Consumer::prompt().waiting(10, 3, 0) < 64);
        assert!(Consumer::prompt().waiting(16, 3, 3) < 64);
        assert!(Consumer::prompt().waiting(2, 0, 1) < 256, "one that waits saves nothing");
        assert_eq!(Consumer::prompt().waiting(10, 0, 1001), 1);
    }

    #[test]
    fn longer_requests_save_more() {
        let waiting = |length, between| Consumer { length, ..Consumer::new() }.waiting(10, between, 0);
        assert_eq!(
            [waiting(1, 1), waiting(1, 3), waiting(1, 5)].map(|waiting| waiting > 900),
            [true, false, false]
        );
        let [short, long] = [waiting(8192, 3), waiting(MAX_PAYLOAD, 3)];
        assert!(short < 64 && long > 900, "{short}, {long}");
    }

    #[test]
    fn seldom_delays_are_paid_for() {
        let waiting = |computes: u64| {
            let mut consumer = Consumer::new();
            let series = (0..10_000).filter(|series| {
                let waits = consumer.posts(11, 0) > 0;
                consumer.polls_after(if series % 20 == 0 { computes } else { 0 });
                waits
            });
            series.count()
        };
        assert!(waiting(100) > 9000);
        assert!(waiting(500) < 1000);
        assert!(waiting(5000) < 100);
    }

    #[test]
    fn one_pause_is_forgotten() {
        let mut consumer = Consumer::prompt();
        consumer.posts(2, 0);
        consumer.polls_after(3_600_000_000);
        let series = (0..).take_while(|_| {
            let waits = consumer.posts(101, 0) > 0;
            consumer.polls_after(0);
            !waits
        });
        assert!((100..120).contains(&series.count()));
    }

    #[test]
    fn what_is_kept_leaves_before_another_request_however_it_ends() {
        let mut consumer = Consumer::prompt();
        assert_eq!(consumer.posts(3, 0), 2);
        assert_eq!(consumer.cork.end(|| consumer.now), Some(ONE));
        assert_eq!(consumer.cork.end(|| consumer.now), None);
        assert_eq!(consumer.posts(3, 0), 2);
        // A request that the queue pair refuses changes nothing.
        consumer.cork.add(1, || consumer.now);
        assert!(consumer.polls_after(0));
    }
}
