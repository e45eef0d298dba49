//! The lane under loom, which runs each model in every order that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
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

/// A reader that goes to sleep and a writer that writes: either the reader sees the message, or the
/// writer sees the sleeper.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let (mut writer, mut reader) = lane();
        let rung = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&rung);
        let writing = thread::spawn(move || {
            writer.write(Message::Stream(7));
            if writer.must_wake() {
                bell.store(true, Ordering::Release);
            }
        });
        let seen = reader.fall_asleep();
        writing.join().unwrap();
        assert!(seen || rung.load(Ordering::Acquire), "asleep with a message and without a wake-up");
        assert!(take(&mut reader));
    });
}

/// The same over two messages, with a reader that is woken and goes to sleep again.
#[test]
fn no_second_wake_up_is_lost() {
    loom::model(|| {
        let (mut writer, mut reader) = lane();
        let rings = Arc::new(AtomicU32::new(0));
        let bell = Arc::clone(&rings);
        let writing = thread::spawn(move || {
            for number in 0..2 {
                writer.write(Message::Stream(number + 7));
                if writer.must_wake() {
                    bell.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        while take(&mut reader) {}
        let mut seen = reader.fall_asleep();
        if seen {
            while take(&mut reader) {}
            seen = reader.fall_asleep();
        }
        writing.join().unwrap();
        let left = reader.peek().is_some();
        assert!(!left || seen || rings.load(Ordering::Acquire) > 0, "asleep for good");
    });
}
