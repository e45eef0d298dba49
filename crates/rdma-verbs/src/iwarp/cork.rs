//! The cork: short requests that a consumer posts to one queue pair one after the other leave together.
//!
//! Each `send` of TCP that transmits takes some microseconds, whatever its length. If the socket is told that more
//! follows (`MSG_MORE`), it keeps what does not fill a segment, and the next `send` transmits both. What is kept leaves
//! with the next request that does not wait, with the next poll, or before a request to another queue pair, so that
//! requests leave in the order in which they are posted, whatever the connection. If there is no further call, the
//! system transmits when the peer's host acknowledges what it has got, or after the time-out of TCP: 200 ms, unless the
//! peer is far away.
//!
//! The first request after a poll never waits. The next ones wait only for a consumer whose lateness costs less than the
//! waiting saves: one that computes before it polls has no late messages, except the first time.

use std::mem;
use std::time::{Duration, Instant};

use crate::QpId;

/// How many requests leave together at most.
const MOST: i32 = 32;
/// Maximum payload of a request that may wait, in bytes.
pub(super) const MAX_PAYLOAD: usize = 16384;
/// Time within which the next call comes soon. It includes sending the request before.
const SOON: Duration = Duration::from_micros(10);
/// From which balance on requests wait, and the most and the least that it can be, in microseconds. More
/// than a time-out of TCP, nothing is late.
const ENOUGH: i32 = 128;
const MOST_BALANCE: i32 = 256;
const LEAST_BALANCE: i32 = -200_000;

/// The series of requests since the last poll, and how soon polls came after earlier ones.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// The queue pair to which the requests of the series were posted.
    qp: Option<QpId>,
    /// Their number.
    length: i32,
    /// When the last one was posted, if there are several.
    last: Option<Instant>,
    /// What waiting saves, or would: a microsecond for each request but the first, if the series ends soon. Less what it
    /// delays, or would: the time from a request to a call that does not come soon.
    balance: i32,
    /// Whether the socket of the queue pair keeps bytes.
    keeps: bool,
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
        (self.qp, self.length) = (Some(qp), 1);
    }

    /// Adds a request to the series. Returns whether it may wait in the socket; one that may not takes along what is
    /// there.
    pub(super) fn add(&mut self, now: Instant) -> bool {
        self.pay(now);
        self.last = Some(now);
        let waits = self.length % MOST != 0 && self.balance >= ENOUGH;
        self.length = self.length.saturating_add(1);
        waits
    }

    /// The request was posted. Whether it waits.
    pub(super) fn added(&mut self, waits: bool) {
        self.keeps = waits;
    }

    /// A poll, or a request that is not of the series, ends it. Returns the queue pair whose socket is to send what it
    /// keeps.
    #[inline]
    pub(super) fn end(&mut self) -> Option<QpId> {
        if self.last.is_none() {
            // It was one request.
            self.qp = None;
            return None;
        }
        self.end_at(Instant::now())
    }

    fn end_at(&mut self, now: Instant) -> Option<QpId> {
        if self.pay(now) {
            self.balance = MOST_BALANCE.min(self.balance.saturating_add(self.length - 1));
        }
        self.last = None;
        self.qp.take().filter(|_| mem::take(&mut self.keeps))
    }

    /// Takes the time since the last request off the balance, unless this call comes soon. Returns whether it does.
    fn pay(&mut self, now: Instant) -> bool {
        let late = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if late > SOON {
            let late = i32::try_from(late.as_micros()).unwrap_or(i32::MAX);
            self.balance = LEAST_BALANCE.max(self.balance.saturating_sub(late));
        }
        late <= SOON
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
    }

    impl Consumer {
        fn new() -> Self {
            Self { cork: Cork::default(), now: Instant::now() }
        }

        fn passes(&mut self, microseconds: u64) {
            self.now += Duration::from_micros(microseconds);
        }

        /// Posts so many requests, a microsecond apart. Returns how many of them wait.
        fn posts(&mut self, count: usize) -> usize {
            (0..count).filter(|_| self.posts_one()).count()
        }

        fn posts_one(&mut self) -> bool {
            self.passes(1);
            if !self.cork.has_series() {
                self.cork.begin(ONE);
                return false;
            }
            assert!(self.cork.is_of(ONE));
            let waits = self.cork.add(self.now);
            self.cork.added(waits);
            waits
        }

        /// Polls after this time. Returns whether the socket is to send what it keeps.
        fn polls_after(&mut self, microseconds: u64) -> bool {
            self.passes(microseconds);
            let keeping = self.cork.end_at(self.now);
            assert!(!self.cork.has_series());
            assert!(matches!(keeping, None | Some(ONE)));
            keeping.is_some()
        }

        /// One whose requests wait.
        fn prompt() -> Self {
            let mut consumer = Self::new();
            for _ in 0..MOST_BALANCE {
                consumer.posts(2);
                consumer.polls_after(1);
            }
            consumer
        }
    }

    #[test]
    fn requests_wait_for_a_consumer_that_polls_soon() {
        let mut consumer = Consumer::new();
        for _ in 0..ENOUGH {
            assert_eq!(consumer.posts(2), 0);
            assert!(!consumer.polls_after(10));
        }
        assert_eq!(consumer.posts(2), 1);
        assert!(consumer.polls_after(10));
        assert_eq!(consumer.posts(1), 0, "a single one does not");
        assert!(!consumer.polls_after(10));
    }

    #[test]
    fn so_many_leave_together() {
        let (mut consumer, most) = (Consumer::prompt(), MOST as usize);
        assert_eq!(consumer.posts(most), most - 1);
        assert_eq!(consumer.posts(1), 0, "which takes the others along");
        assert!(!consumer.polls_after(1), "so nothing is kept");
        assert_eq!(consumer.posts(2 * most), 2 * (most - 1));
        assert!(consumer.polls_after(1));
    }

    #[test]
    fn nothing_waits_for_a_consumer_that_never_polls() {
        assert_eq!(Consumer::new().posts(100_000), 0);
    }

    #[test]
    fn nothing_waits_for_a_consumer_that_computes_before_it_polls() {
        let (mut consumer, mut waited) = (Consumer::prompt(), 0);
        for _ in 0..1000 {
            waited += consumer.posts(5);
            consumer.polls_after(200);
        }
        assert_eq!(waited, 4, "the first time");
        for _ in 0..1000 {
            waited += consumer.posts(4);
            consumer.polls_after(1);
            consumer.posts(4);
            consumer.passes(300);
            consumer.posts(1);
            consumer.polls_after(1);
        }
        assert_eq!(waited, 4, "however soon it polls at other times");
    }

    #[test]
    fn what_is_late_costs_less_than_waiting_saves() {
        // Of these, lateness of about 1 µs for a request leaves nothing that waits, and a tenth leaves nearly all.
        let waiting = |computes: u64| {
            let mut consumer = Consumer::new();
            let waited: usize = (0..10_000)
                .map(|series| {
                    let waited = consumer.posts(11);
                    consumer.polls_after(if series % 20 == 0 { computes } else { 1 });
                    waited
                })
                .sum();
            waited as f64 / 100_000.0
        };
        assert!(waiting(20) > 0.9);
        assert!(waiting(1000) < 0.1);
    }

    #[test]
    fn one_pause_is_forgotten() {
        let mut consumer = Consumer::prompt();
        consumer.posts(2);
        consumer.polls_after(3_600_000_000);
        let series = LEAST_BALANCE.unsigned_abs() as usize / 100 + 2;
        let waited: usize = (0..=series)
            .map(|_| {
                let waited = consumer.posts(101);
                consumer.polls_after(1);
                waited
            })
            .sum();
        assert!((1..101).contains(&waited), "the last one: {waited}");
    }

    #[test]
    fn what_is_kept_leaves_before_another_request_however_it_ends() {
        let mut consumer = Consumer::prompt();
        assert_eq!(consumer.posts(3), 2);
        assert_eq!(consumer.cork.end(), Some(ONE));
        assert_eq!(consumer.cork.end(), None);
        assert_eq!(consumer.posts(3), 2);
        // A request that the queue pair refuses changes nothing.
        consumer.cork.add(consumer.now);
        assert!(consumer.polls_after(1));
    }
}
