//! The threads of a side and its peer under loom, which runs each model in every order that the memory model
//! allows, but for the bound on switches. A thread that sleeps for ever ends a model as a deadlock: no sleep
//! here has a time limit.
//!
//! The calls do what those of the sockets' engine do: look under the lock, take notifications, ask, sleep.

use std::convert::Infallible;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use super::{Sleep, Sleepers, Threads};
use crate::models::{Nobody, bounded_model, ring};
use crate::{Notify, Reader, Writer, ask};

/// A side of a connection. Its peer writes to `input`, and reads `output`.
struct Side {
    input: Mutex<Input>,
    output: Mutex<Writer>,
    sleepers: Sleepers,
    socket: Socket,
    asleep: Mutex<()>,
    woken: Condvar,
}

struct Input {
    reader: Reader,
    /// A thread of this side has ended the input.
    ended: bool,
    /// Threads in a call of the kernel that receives, and the last of them.
    inside: u32,
    last: u32,
}

/// Where notifications arrive: the kernel's socket.
#[derive(Default)]
struct Socket {
    state: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    has_bells: bool,
    /// For good.
    has_ended: bool,
}

impl Socket {
    fn change(&self, change: impl FnOnce(&mut Arrived)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Sleeps until there is a notification, or the end. `takes`: as a call that receives. Else it stays.
    fn sleep(&self, takes: bool) {
        let mut state = self.state.lock().unwrap();
        while !state.has_bells && !state.has_ended {
            state = self.changed.wait(state).unwrap();
        }
        state.has_bells &= !takes;
    }

    fn take(&self) -> Option<()> {
        std::mem::take(&mut self.state.lock().unwrap().has_bells).then_some(())
    }
}

/// The peer's end of what wakes the side.
#[derive(Clone)]
struct Peer(Arc<Side>);

impl Notify for Peer {
    fn notify(&self) {
        self.0.socket.change(|state| state.has_bells = true);
    }

    fn take(&self) -> bool {
        false
    }
}

/// A side, and the peer's ends of its rings. That of its output is full.
fn connection() -> (Arc<Side>, Writer, Reader) {
    let (peers_output, reader) = ring(2);
    let (mut output, peers_input) = ring(1);
    output.write(&[std::io::IoSlice::new(&[0])], &Nobody).unwrap();
    let side = Side {
        input: Mutex::new(Input { reader, ended: false, inside: 0, last: 0 }),
        output: Mutex::new(output),
        sleepers: Sleepers::default(),
        socket: Socket::default(),
        asleep: Mutex::new(()),
        woken: Condvar::new(),
    };
    (Arc::new(side), peers_output, peers_input)
}

/// A thread of the side.
struct Local {
    side: Arc<Side>,
    number: u32,
}

impl Threads for Local {
    fn current(&self) -> u32 {
        self.number
    }

    fn is_alive(&self, _: u32) -> bool {
        true
    }

    fn wake(&self, _: &AtomicU32) {
        let _asleep = self.side.asleep.lock().unwrap();
        self.side.woken.notify_all();
    }
}

/// What a thread does when it leads and would sleep.
#[derive(Clone, Copy, PartialEq)]
enum Leader {
    Sleeps,
    /// A time limit or a signal ends its call at any time.
    Leaves,
}

impl Local {
    fn input(&self) -> MutexGuard<'_, Input> {
        self.side.input.lock().unwrap()
    }

    /// Under the input's lock.
    fn take_bells(&self) {
        let take = || Ok::<_, Infallible>(self.side.socket.take());
        let _ = self.side.sleepers.take(self, take);
    }

    /// As a futex.
    fn sleep_on(&self, word: &AtomicU32, value: u32) {
        let asleep = self.side.asleep.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(self.side.woken.wait(asleep).unwrap());
        }
    }

    fn settle(&self) {
        let _input = self.input();
        self.take_bells();
    }

    /// Sleeps, as a call that had nothing since `turn`. Returns whether it goes on.
    fn sleep_since(&self, turn: u32, output: bool, leader: Leader) -> bool {
        let sleepers = &self.side.sleepers;
        let is_asked = || Ok::<_, Infallible>(output || self.input().reader.is_armed());
        match sleepers.begin(self, turn, is_asked).unwrap() {
            Sleep::Leading if leader == Leader::Sleeps => self.side.socket.sleep(false),
            Sleep::Leading => {}
            Sleep::Following => {
                sleepers.follow(|word| self.sleep_on(word, turn));
                return true;
            }
            Sleep::Not => return true,
        }
        sleepers.woken(self);
        self.settle();
        leader == Leader::Sleeps
    }

    /// A call that receives a byte, or the end of the input, and waits for it.
    fn receive(&self) {
        loop {
            let turn = self.side.sleepers.turn();
            if self.find() {
                return;
            }
            self.sleep_since(turn, false, Leader::Sleeps);
        }
    }

    /// Takes a byte, or finds the end. If there is nothing, the peer is asked for a notification.
    fn find(&self) -> bool {
        let mut input = self.input();
        loop {
            if input.ended || input.reader.skip(1, &Nobody).unwrap().is_some() {
                return true;
            }
            self.take_bells();
            if !ask(&Nobody, Some(&mut input.reader), None) {
                return false;
            }
        }
    }

    /// A call that waits for room to send a byte. Returns when there is some, or this thread leaves.
    fn await_room(&self, leader: Leader) {
        loop {
            let turn = self.side.sleepers.turn();
            {
                let mut output = self.side.output.lock().unwrap();
                if output.has_room(1).unwrap() || ask(&Nobody, None, Some((&mut output, 1))) {
                    return;
                }
            }
            if !self.sleep_since(turn, true, leader) {
                return;
            }
        }
    }

    /// `poll` for input: it leads before it asks, and sleeps in the kernel for whatever comes.
    fn poll(&self) {
        loop {
            if self.side.sleepers.lead(self) {
                let is_ready = ask(&Nobody, Some(&mut self.input().reader), None);
                if !is_ready {
                    self.side.socket.sleep(false);
                    self.settle();
                }
                self.side.sleepers.stop_leading(self);
            } else {
                // It looks again from time to time.
                thread::yield_now();
            }
            if self.input().reader.readable().unwrap() > 0 {
                return;
            }
        }
    }

    /// Calls in vain of a thread that does not sleep, or a look of an epoll set that wakes: the peer need not
    /// notify.
    fn look_in_vain(&self) {
        let mut input = self.input();
        if input.reader.readable().unwrap() == 0 {
            self.take_bells();
            self.side.sleepers.silence(self, &mut input.reader);
        }
    }

    /// `shutdown` of the input, which the kernel tells everybody who sleeps there.
    fn end_input(&self) {
        self.input().ended = true;
        self.side.socket.change(|state| state.has_ended = true);
    }

    /// `close`, while other threads are in calls.
    fn close(&self) {
        let mut input = self.input();
        self.take_bells();
        input.reader.close(&Nobody);
        self.side.sleepers.silence(self, &mut input.reader);
    }

    /// A call of the kernel that receives, and began before the rings were used: it takes what wakes it.
    fn receive_in_kernel(&self) {
        self.side.socket.sleep(true);
        {
            let mut input = self.input();
            input.inside -= 1;
            self.side.sleepers.hand_on(self, input.inside, input.last);
        }
        self.receive();
    }
}

fn local(side: &Arc<Side>, number: u32) -> Local {
    Local { side: Arc::clone(side), number }
}

fn start(side: &Arc<Side>, number: u32, call: impl FnOnce(&Local) + 'static) -> thread::JoinHandle<()> {
    let local = local(side, number);
    thread::spawn(move || call(&local))
}

fn write(output: &mut Writer, side: &Arc<Side>) {
    let taken = output.write(&[std::io::IoSlice::new(&[0])], &Peer(Arc::clone(side))).unwrap();
    assert_eq!(taken, 1);
}

/// Two threads that receive, of which one follows the other: each gets its byte.
#[test]
fn each_of_two_receivers_gets_a_byte() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        let receivers = [1, 2].map(|number| start(&side, number, Local::receive));
        write(&mut output, &side);
        write(&mut output, &side);
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    });
}

/// One waits for a byte, one for room, which comes when the byte was received. A third has looked in vain
/// before, and the peer needed not notify.
#[test]
fn a_receiver_and_a_sender_wait_beside_each_other() {
    bounded_model(3, || {
        let (side, mut output, mut input) = connection();
        let sender = start(&side, 1, |local| local.await_room(Leader::Sleeps));
        let receiver = start(&side, 2, Local::receive);
        local(&side, 3).look_in_vain();
        write(&mut output, &side);
        receiver.join().unwrap();
        assert_eq!(input.skip(1, &Peer(Arc::clone(&side))).unwrap(), Some(1));
        sender.join().unwrap();
    });
}

/// A thread that does not sleep takes notifications and does without, while another sleeps.
#[test]
fn a_thread_that_polls_leaves_a_sleeper_its_notification() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        let receiver = start(&side, 1, Local::receive);
        let polling = start(&side, 2, |local| (0..2).for_each(|_| local.look_in_vain()));
        write(&mut output, &side);
        receiver.join().unwrap();
        polling.join().unwrap();
    });
}

#[test]
fn a_poll_and_a_receiver_wait_beside_each_other() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        let polling = start(&side, 1, Local::poll);
        let receiver = start(&side, 2, Local::receive);
        write(&mut output, &side);
        write(&mut output, &side);
        polling.join().unwrap();
        receiver.join().unwrap();
    });
}

#[test]
fn a_leader_that_leaves_is_succeeded() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        let leaving = start(&side, 1, |local| local.await_room(Leader::Leaves));
        let receiver = start(&side, 2, Local::receive);
        write(&mut output, &side);
        receiver.join().unwrap();
        leaving.join().unwrap();
    });
}

#[test]
fn a_shutdown_by_another_thread_ends_all_calls() {
    bounded_model(3, || {
        let (side, ..) = connection();
        let receivers = [1, 2].map(|number| start(&side, number, Local::receive));
        local(&side, 3).end_input();
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    });
}

/// The call goes on with the connection for which it was made.
#[test]
fn a_close_by_another_thread_leaves_a_sleeper_its_notification() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        let receiver = start(&side, 1, Local::receive);
        let closing = start(&side, 2, Local::close);
        write(&mut output, &side);
        receiver.join().unwrap();
        closing.join().unwrap();
    });
}

/// It leads, and takes the notification with which it wakes.
#[test]
fn a_thread_in_the_kernel_wakes_those_behind_it() {
    bounded_model(3, || {
        let (side, mut output, _) = connection();
        {
            let mut input = side.input.lock().unwrap();
            ask(&Nobody, Some(&mut input.reader), None);
            (input.inside, input.last) = (1, 1);
            side.sleepers.hand_on(&local(&side, 3), 1, 1);
        }
        let inside = start(&side, 1, Local::receive_in_kernel);
        let receiver = start(&side, 2, Local::receive);
        write(&mut output, &side);
        write(&mut output, &side);
        inside.join().unwrap();
        receiver.join().unwrap();
    });
}
