//! The move to shared memory, on a device whose wire holds one message: the rest of the output waits at its
//! sender.

use super::*;
use crate::Direction;

type Side = Connection<sim::Device>;

/// Calls that move bytes, after which a side wants to share memory.
const CALLS: usize = 8;
/// The longest message of the device.
const MESSAGE: usize = 1000;
/// Bytes that go through the queue pair last, and messages of them.
const LATE: usize = MESSAGES * MESSAGE;
const MESSAGES: usize = 10;

fn send(side: &mut Side, data: &[u8]) -> Result<usize, Error> {
    side.send(&[IoSlice::new(data)], data.len(), false)
}

fn receive(side: &mut Side) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; 2 * LATE];
    let taken = side.receive(&mut [IoSliceMut::new(&mut bytes)], 2 * LATE, true)?;
    bytes.truncate(taken);
    Ok(bytes)
}

fn bytes(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(pattern).collect()
}

/// Messages with data that a side sent through the queue pair.
fn messages(side: &Side) -> u64 {
    side.statistics().traffic.data_sent
}

/// Sides of which the first writes to its ring. The second has sent [`LATE`] bytes through its queue pair, of
/// which one message is on the wire, and 4 more to its ring.
fn in_the_move() -> [Side; 2] {
    in_the_move_on(sim::Config::iwarp())
}

fn in_the_move_on(device: sim::Config) -> [Side; 2] {
    let config = sim::Config { wire: 1, max_message: MESSAGE as u32, ..device };
    let device = sim::Fabric::new().device(config);
    let [mut first, mut second] = connect(&device, &device, [Sizes::DEFAULT; 2], false);
    for _ in 0..CALLS {
        assert_eq!(send(&mut first, b"x"), Ok(1));
        assert_eq!(receive(&mut second), Ok(b"x".to_vec()));
    }
    // The second side has gone to the rendezvous. The first moves after this.
    assert_eq!(send(&mut first, b"x"), Ok(1));
    assert_eq!(send(&mut second, &bytes(0..LATE)), Ok(LATE));
    assert_eq!(send(&mut second, &bytes(LATE..LATE + 4)), Ok(4));
    assert_eq!(messages(&second), MESSAGES as u64, "the second side has not moved");
    assert_eq!(send(&mut first, b"x"), Ok(1));
    assert_eq!(messages(&first), CALLS as u64 + 1, "the first side has not moved");
    [first, second]
}

#[test]
fn bytes_of_the_queue_pair_come_first() {
    let [mut first, mut second] = in_the_move();
    let mut received = Vec::new();
    until(|| {
        second.progress();
        received.extend(receive(&mut first).unwrap_or_default());
        (received.len() == LATE + 4).then_some(())
    });
    assert_eq!(received, bytes(0..LATE + 4));
}

#[test]
fn a_close_keeps_a_prefix() {
    for driven in 0..=2 * MESSAGES {
        let [mut first, mut second] = in_the_move();
        for _ in 0..driven {
            second.progress();
            first.progress();
        }
        first.close();
        let mut received = Vec::new();
        for _ in 0..4 * MESSAGES {
            second.progress();
            received.extend(receive(&mut first).unwrap());
        }
        assert!(bytes(0..LATE + 4).starts_with(&received), "{} bytes, which is no prefix", received.len());
    }
}

/// All bytes of the queue pair were received, and there are more in memory.
#[test]
fn bytes_in_memory_are_ready_when_their_turn_comes() {
    let [mut first, mut second] = in_the_move();
    let mut received = 0;
    until(|| {
        second.progress();
        let mut piece = [0; MESSAGE];
        let taken = first.receive(&mut [IoSliceMut::new(&mut piece)], MESSAGE, true);
        received += taken.unwrap_or(0);
        (received == LATE).then_some(())
    });
    assert!(first.arm().unwrap() || first.is_ready_for(Direction::Receive));
    assert_eq!(first.peek_receive(), Ok(4));
}

/// Calls that find bytes in memory, and no others.
#[test]
fn receives_drive_what_is_left_of_the_output() {
    let [mut first, mut second] = in_the_move();
    let mut received = 0;
    until(|| {
        assert_eq!(send(&mut first, b"x"), Ok(1));
        receive(&mut second).unwrap();
        received += receive(&mut first).map_or(0, |bytes| bytes.len());
        (received == LATE + 4).then_some(())
    });
}

#[test]
fn input_that_is_not_taken_is_dropped_wherever_it_comes_from() {
    let [mut first, mut second] = in_the_move();
    first.shut_recv();
    for _ in 0..1000 {
        assert_eq!(receive(&mut first), Ok(Vec::new()));
        until(|| {
            first.progress();
            send(&mut second, &[0; MESSAGE]).ok()
        });
    }
}

fn close(side: &mut Side) {
    side.close();
}

#[test]
fn a_blocked_send_that_the_own_end_ends_waits_for_nothing() {
    for end in [Connection::shut_send, close] {
        let [mut first, _second] = in_the_move();
        while send(&mut first, &[0; 1 << 16]).is_ok() {}
        assert_eq!(send(&mut first, b"x"), Err(Error::WouldBlock));
        end(&mut first);
        assert!(!first.is_ready_for(Direction::Send));
    }
}

/// Sides that have moved both ways, and have nothing else to do.
fn moved() -> [Side; 2] {
    moved_on(sim::Config::iwarp())
}

fn moved_on(device: sim::Config) -> [Side; 2] {
    let [mut first, mut second] = in_the_move_on(device);
    let mut received = 0;
    until(|| {
        assert_eq!(send(&mut first, b"x"), Ok(1));
        receive(&mut second).unwrap();
        received += receive(&mut first).map_or(0, |bytes| bytes.len());
        (received == LATE + 4).then_some(())
    });
    until(|| {
        for (from, to) in [(0, 1), (1, 0)] {
            let sides = [&mut first, &mut second];
            send(sides[from], b"x").unwrap();
            receive(sides[to]).unwrap();
        }
        let granted = [&first, &second].iter().all(|side| {
            let direct = side.direct().unwrap();
            direct.output.lock().granted && direct.input.lock().granted
        });
        granted.then_some(())
    });
    [first, second]
}

fn send_directly(side: &Side, data: &[u8]) -> Option<usize> {
    side.direct().unwrap().send(&[IoSlice::new(data)])
}

fn receive_directly(side: &Side, length: usize) -> Option<Result<usize, Error>> {
    let mut bytes = vec![0; length];
    let received = side.direct().unwrap().receive(&mut [IoSliceMut::new(&mut bytes)]);
    received.map(|received| received.outcome)
}

/// Until the time for a look at the queue pair, a direct call that finds nothing says so by itself.
fn finds_nothing(side: &Side) -> bool {
    (0..1000).any(|_| receive_directly(side, 1) == Some(Err(Error::WouldBlock)))
}

#[test]
fn direct_calls_move_bytes_and_are_counted() {
    let [mut first, second] = moved();
    let before = (first.statistics().sends, second.statistics().receives);
    assert!(finds_nothing(&second));
    until(|| send_directly(&first, b"four").map(|sent| assert_eq!(sent, 4)));
    assert_eq!(receive_directly(&second, 3), Some(Ok(3)));
    assert_eq!(receive_directly(&second, 3), Some(Ok(1)));
    let (sends, receives) = (first.statistics().sends, second.statistics().receives);
    assert_eq!((sends.number - before.0.number, sends.bytes - before.0.bytes), (1, 4));
    assert_eq!(receives.bytes - before.1.bytes, 4);
    assert_eq!(receives.number - before.1.number, 2 + receives.waits - before.1.waits);
    // All or nothing, and no more than a call on the connection takes.
    let direct = first.direct().unwrap();
    assert_eq!(direct.inject(&[0; 1 << 20]), None);
    until(|| direct.inject(b"12").map(|sent| assert_eq!(sent, 2)));
    assert_eq!(first.inject(&[0; 1 << 20]), Err(Error::TooLong));
}

#[test]
fn a_send_without_room_is_a_call_on_the_connection_until_there_is() {
    let [mut first, mut second] = moved();
    while send(&mut first, &[0; 1 << 16]).is_ok() {}
    assert_eq!(send_directly(&first, b"x"), None);
    assert!(!first.is_ready_for(Direction::Send));
    receive(&mut second).unwrap();
    assert_eq!(send_directly(&first, b"x"), None, "the connection knows that somebody waits for room");
    assert_eq!(send(&mut first, b"x"), Ok(1));
    until(|| send_directly(&first, b"x"));
}

/// What the other side knows of an end comes by the queue pair.
#[test]
fn no_direct_call_passes_an_end() {
    for end in [Connection::shut_send, close, Connection::abort] {
        let [mut first, mut second] = moved();
        until(|| send_directly(&first, b"x"));
        end(&mut first);
        assert_eq!(send_directly(&first, b"x"), None);
        until(|| {
            first.progress();
            second.progress();
            (!second.direct().unwrap().input.lock().granted).then_some(())
        });
        assert_eq!(receive_directly(&second, 1), None);
        assert_eq!(receive(&mut second), Ok(b"x".to_vec()));
        assert_ne!(receive(&mut second), Err(Error::WouldBlock));
    }
    let [mut first, mut second] = moved();
    send(&mut second, b"dropped").unwrap();
    first.shut_recv();
    assert_eq!(receive_directly(&first, 1), None);
    assert_eq!(receive(&mut first), Ok(Vec::new()));
}

/// Receives as a caller does that sleeps afterwards: what arrives while it arms is received at once.
fn receive_before_sleep(side: &mut Side) -> Result<Vec<u8>, Error> {
    loop {
        let received = receive(side);
        if received != Err(Error::WouldBlock) || !side.arm().unwrap() {
            return received;
        }
    }
}

/// The end comes shortly after a look at the queue pair, and wakes the caller. Arming takes that wake-up.
#[test]
fn a_caller_does_not_sleep_on_an_end_that_it_was_woken_for() {
    for arming in [false, true] {
        let [mut first, mut second] = moved_on(sim::Config { arming, ..sim::Config::iwarp() });
        let wait = Arc::new(WaitSet::new().unwrap());
        first.attach(Arc::clone(&wait)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(receive_before_sleep(&mut first), Err(Error::WouldBlock));
        second.shut_send();
        second.progress();
        assert!(wait.is_readable());
        let received = receive_before_sleep(&mut first);
        assert!(received == Ok(Vec::new()) || wait.is_readable(), "{received:?}, and nothing wakes");
    }
}

/// A caller that finds nothing would repeat its call for ever.
#[test]
fn a_connection_event_is_expected_only_until_it_was_polled() {
    let [mut first, mut second] = moved();
    second.abort();
    until(|| first.arm().unwrap().then_some(()));
    until(|| (!first.arm().unwrap()).then_some(()));
}
