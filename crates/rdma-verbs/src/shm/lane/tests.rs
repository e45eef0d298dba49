use std::cell::Cell;
use std::sync::Arc;

use super::*;

fn lane() -> (Arc<Lane>, Writer<Arc<Lane>>, Reader<Arc<Lane>>) {
    let lane = Arc::new(Lane::default());
    (Arc::clone(&lane), Writer::new(Arc::clone(&lane)), Reader::new(lane))
}

#[test]
fn messages_come_in_order_over_many_rounds() {
    let (_, mut writer, mut reader) = lane();
    for round in 0..5 * SLOTS as u64 {
        assert!(reader.peek().is_none(), "nothing was written");
        for number in 0..3 {
            assert!(writer.has_room(1));
            writer.write(Message::Stream(round * 3 + number));
        }
        for number in 0..3 {
            assert_eq!(reader.peek(), Some(Ok(Message::Stream(round * 3 + number))));
            reader.take();
        }
    }
}

#[test]
fn a_full_lane_has_room_again_when_something_was_taken() {
    let (_, mut writer, mut reader) = lane();
    assert!(writer.has_room(SLOTS) && !writer.has_room(SLOTS + 1) && !writer.has_room(usize::MAX));
    (0..SLOTS as u64).for_each(|number| writer.write(Message::Stream(number)));
    assert!(!writer.has_room(1));
    reader.take();
    assert!(writer.has_room(1) && !writer.has_room(2));
}

#[test]
fn a_count_that_cannot_be_frees_nothing() {
    let (lane, mut writer, _) = lane();
    (0..SLOTS as u64).for_each(|number| writer.write(Message::Stream(number)));
    for nonsense in [SLOTS as u64 + 1, u64::MAX, 1 << 63] {
        lane.taken.0.store(nonsense, Ordering::Relaxed);
        assert!(!writer.has_room(1), "{nonsense} taken of {SLOTS}");
    }
    lane.taken.0.store(5, Ordering::Relaxed);
    assert!(writer.has_room(5));
    lane.taken.0.store(3, Ordering::Relaxed);
    assert!(writer.has_room(5) && !writer.has_room(6), "what was taken stays taken");
}

#[test]
fn any_words_are_read_without_harm() {
    let (lane, _, mut reader) = lane();
    for head in [u64::MAX, LAP, 0xff << 1 | LAP] {
        lane.slots[reader.taken as usize].head.store(head, Ordering::Relaxed);
        assert!(matches!(reader.peek(), Some(Err(Garbage { .. }))));
        reader.take();
    }
}

/// Counts notifications.
#[derive(Default)]
struct Counter(Cell<u32>);

impl Notify for Counter {
    fn notify(&self) {
        self.0.set(self.0.get() + 1);
    }

    fn take(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

#[test]
fn who_sleeps_is_notified_once() {
    let (_, mut writer, mut reader) = lane();
    let mut notifier = Counter::default();
    writer.write(Message::Stream(0));
    writer.wake(&notifier);
    assert_eq!(notifier.0.get(), 0, "nobody sleeps");
    assert!(reader.fall_asleep(&mut notifier), "there is a message");
    reader.take();
    assert!(!reader.fall_asleep(&mut notifier));
    writer.write(Message::Stream(1));
    writer.wake(&notifier);
    writer.wake(&notifier);
    assert_eq!(notifier.0.get(), 1);
    reader.take();
    assert!(!reader.fall_asleep(&mut notifier));
    assert_eq!(notifier.0.get(), 0, "who sleeps again has taken it");
}

/// Two threads and many rounds, as a check of the real atomics; the models try every order.
#[test]
fn two_threads_lose_nothing() {
    let (_, mut writer, mut reader) = lane();
    const COUNT: u64 = 200_000;
    let sending = std::thread::spawn(move || {
        for number in 0..COUNT {
            while !writer.has_room(1) {
                std::thread::yield_now();
            }
            writer.write(Message::Write { offset: number, length: number as u32, immediate: None });
        }
    });
    for number in 0..COUNT {
        let message = loop {
            if let Some(message) = reader.peek() {
                break message;
            }
            std::thread::yield_now();
        };
        assert_eq!(message, Ok(Message::Write { offset: number, length: number as u32, immediate: None }));
        reader.take();
    }
    sending.join().unwrap();
}
