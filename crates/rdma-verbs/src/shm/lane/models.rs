//! The lane under loom, which runs each model in every order that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;

fn lane() -> (Writer<Arc<Lane>>, Reader<Arc<Lane>>) {
    let lane = Arc::new(Lane::default());
    (Writer::new(Arc::clone(&lane)), Reader::new(lane))
}

/// Takes one message if there is one, and checks that it is the one that comes next.
fn take(reader: &mut Reader<Arc<Lane>>) -> bool {
    let Some(message) = reader.peek() else { return false };
    assert_eq!(message, Ok(Message::Stream(reader.taken + 7)));
    reader.take();
    true
}

/// More messages than slots: each is read whole, once and in order, and none is overwritten unread.
#[test]
fn messages_are_neither_lost_nor_torn() {
    const COUNT: u64 = SLOTS as u64 + 1;
    loom::model(|| {
        let (mut writer, mut reader) = lane();
        let writing = thread::spawn(move || {
            for number in 0..COUNT {
                while !writer.has_room(1) {
                    thread::yield_now();
                }
                writer.write(Message::Stream(number + 7));
            }
        });
        while reader.taken < COUNT {
            if !take(&mut reader) {
                thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

/// What was written to memory before a message is there for who has read the message.
#[test]
fn a_message_carries_the_bytes_before_it() {
    loom::model(|| {
        let (mut writer, reader) = lane();
        let bytes = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&bytes);
        let writing = thread::spawn(move || {
            theirs.store(5, Ordering::Relaxed);
            writer.write(Message::Stream(7));
        });
        if reader.peek().is_some() {
            assert_eq!(bytes.load(Ordering::Relaxed), 5);
        }
        writing.join().unwrap();
    });
}

/// Both ends of a notifier: a count that makes its reader readable while it is not 0.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    fn is_readable(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Notify for Counter {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn take(&mut self) {
        // Only the reader takes.
        if self.is_readable() {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A reader that sleeps and is woken, also late, while a writer writes: it is never asleep with a message for
/// which no notification came, and once it has taken all, each notification that is left ends one sleep.
#[test]
fn sleepers_are_notified_and_then_sleep() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let (mut writer, mut reader) = lane();
        let mut notifier = Counter::default();
        let peer = notifier.clone();
        let writing = thread::spawn(move || {
            for number in 0..COUNT {
                writer.write(Message::Stream(number + 7));
                writer.wake(&peer);
            }
        });
        // As an application: what is there, then sleep; a wake-up, or a timer, while the writer may be
        // anywhere.
        for _ in 0..2 {
            while take(&mut reader) {}
            while reader.fall_asleep(&mut notifier) {
                take(&mut reader);
            }
        }
        writing.join().unwrap();
        assert!(reader.peek().is_none() || notifier.is_readable(), "asleep with a message");
        for _ in 0..COUNT {
            if notifier.is_readable() {
                while take(&mut reader) {}
                assert!(!reader.fall_asleep(&mut notifier));
            }
        }
        assert_eq!(reader.taken, COUNT);
        assert!(!notifier.is_readable(), "awake for ever");
    });
}
