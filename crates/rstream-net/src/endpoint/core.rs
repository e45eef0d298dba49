//! A connection that threads share, and how their calls sleep.
//!
//! One lock covers the connection. In shared memory, calls that only move bytes do without it ([`Direct`]).
//!
//! Several threads may wait at once, for either direction. One of them *leads*: it sleeps on the device. The
//! others wait until it, or any call, has changed something. A call that takes in what another thread waits for
//! wakes that thread, and lets it go first.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rdma_verbs::{self as verbs, AnyDevice, Interest, Signal, WaitSet};
use rstream_session::{Connection, Direct, Direction, Error, Linger, Result as Moved, Statistics};

use super::Path;
use super::error::{of_device, of_stream};

const BLOCKED: Moved<usize> = Err(Error::WouldBlock);
/// How long a call spins before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Repetitions of a call for what arrives while it arms the device.
const ARMS: usize = 8;

/// The descriptors of one stream.
#[derive(Clone)]
pub(super) struct Descriptors {
    /// Where calls sleep: the device signals it.
    pub(super) sleep: Arc<WaitSet>,
    /// What the user has. It holds the other one, and shows what there is to do without an event of the device,
    /// for which no call may be woken again and again.
    pub(super) shown: Arc<WaitSet>,
}

impl Descriptors {
    pub(super) fn new() -> verbs::Result<Self> {
        let [sleep, shown] = [WaitSet::new()?, WaitSet::new()?].map(Arc::new);
        shown.add(sleep.as_fd(), shown.token(), Interest::Read)?;
        Ok(Self { sleep, shown })
    }
}

/// A connection.
pub(super) struct Core {
    state: Mutex<State>,
    /// Notified when a thread that waits may find something.
    changed: Condvar,
    /// From when memory is shared.
    direct: OnceLock<Direct>,
    descriptors: Descriptors,
    is_nonblocking: AtomicBool,
    linger: Duration,
    peer_data: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
}

struct State {
    connection: Box<Connection<AnyDevice>>,
    /// Whether the user has the descriptor.
    is_watched: bool,
    /// In the set of that descriptor: on while a call would return something.
    ready: Signal,
    /// How long a call of each direction waits.
    limits: [Option<Duration>; 2],
    /// Threads that wait, for each direction.
    waiting: [usize; 2],
    /// The direction of the thread that sleeps on the device.
    leader: Option<Direction>,
    /// Ends that sleep.
    kick: Signal,
    /// Whether nobody waits any more for the peer's host to have everything.
    is_given_up: bool,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Core {
    pub(super) fn new(
        connection: Box<Connection<AnyDevice>>,
        descriptors: Descriptors,
        peer_data: Vec<u8>,
        linger: Duration,
    ) -> io::Result<Self> {
        let queue_pair = connection.queue_pair();
        let ends = queue_pair.local_address().zip(queue_pair.peer_address());
        let (local, peer) = ends.ok_or(io::ErrorKind::NotConnected)?;
        let state = State {
            connection,
            is_watched: false,
            ready: descriptors.shown.signal(descriptors.shown.token()),
            limits: [None; 2],
            waiting: [0; 2],
            leader: None,
            kick: descriptors.sleep.signal(descriptors.sleep.token()),
            is_given_up: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            direct: OnceLock::new(),
            descriptors,
            is_nonblocking: AtomicBool::new(false),
            linger,
            peer_data,
            local,
            peer,
        })
    }

    /// Sends some of `slices`.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(sent) = self.direct.get().and_then(|direct| direct.send(slices)) {
            return Ok(sent);
        }
        let total = slices.iter().map(|slice| slice.len()).sum();
        self.call(Direction::Send, false, |connection| connection.send(slices, total, false))
    }

    /// Receives to `buffers`.
    pub(super) fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let total = buffers.iter().map(|buffer| buffer.len()).sum();
        if total > 0
            && let Some(received) = self.direct.get().and_then(|direct| direct.receive(buffers))
            && let Ok(length) = received.outcome
        {
            if received.shows_more {
                self.state.lock().show();
            }
            return Ok(length);
        }
        self.call(Direction::Receive, false, |connection| connection.receive(buffers, total, true))
    }

    /// Looks at what there is to receive.
    pub(super) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let total = buffer.len();
        self.call(Direction::Receive, true, |connection| {
            connection.receive(&mut [IoSliceMut::new(buffer)], total, false)
        })
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        let state = &mut *self.state.lock();
        match how {
            Shutdown::Read => state.connection.shut_recv(),
            Shutdown::Write => state.connection.shut_send(),
            Shutdown::Both => _ = state.connection.close(),
        }
        state.connection.progress();
        state.show();
        self.wake(state, state.leader);
    }

    /// Ends the stream. Returns whether the peer's host has everything that was sent.
    #[cfg(feature = "tokio")]
    pub(super) fn close(&self) -> bool {
        self.state.lock().close()
    }

    /// Ends the stream, and waits until the peer's host has everything that was sent, as long as [`Linger`]
    /// allows.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        let mut linger = Linger::since(state.connection.close(), self.linger);
        while !state.close() {
            if !linger.wait() {
                log::warn!("closed before {} took everything", self.peer);
                state.connection.disconnect();
                state.is_given_up = true;
            }
        }
    }

    /// Its descriptor.
    #[cfg(feature = "tokio")]
    pub(super) fn descriptor(&self) -> &Arc<WaitSet> {
        self.watch();
        &self.descriptors.shown
    }

    /// Whether a call of this direction would find something, as far as is known.
    #[cfg(feature = "tokio")]
    pub(super) fn is_ready_for(&self, direction: Direction) -> bool {
        self.state.lock().connection.is_ready_for(direction)
    }

    pub(super) fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    pub(super) fn limit(&self, direction: Direction) -> Option<Duration> {
        self.state.lock().limits[direction as usize]
    }

    pub(super) fn set_limit(&self, direction: Direction, limit: Option<Duration>) {
        self.state.lock().limits[direction as usize] = limit;
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.state.lock().connection.statistics()
    }

    pub(super) fn path(&self) -> Path {
        match self.state.lock().connection.direct() {
            Some(_) => Path::SharedMemory,
            None => Path::QueuePair,
        }
    }

    pub(super) fn peer_data(&self) -> &[u8] {
        &self.peer_data
    }

    /// The addresses of this end and of the peer.
    pub(super) fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.peer)
    }

    /// The user has the descriptor from now on.
    fn watch(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_watched, true) {
            // The device signals what comes once it is armed. What has come before is known then.
            let found = arm(&mut state.connection, |connection| {
                connection.progress();
                if connection.is_ready() { Ok(1) } else { BLOCKED }
            });
            state.ready.set(!matches!(found, Ok(BLOCKED)));
        }
    }

    /// Runs a call, which waits if calls do. Calls that only peek are not counted.
    fn call(
        &self,
        direction: Direction,
        peeks: bool,
        mut attempt: impl FnMut(&mut Connection<AnyDevice>) -> Moved<usize>,
    ) -> io::Result<usize> {
        let mut state = self.state.lock();
        let mut outcome = attempt(&mut state.connection);
        let waits = !self.is_nonblocking.load(Ordering::Relaxed);
        if outcome == BLOCKED && (waits || state.is_watched) {
            state.count(direction, peeks, &outcome);
            outcome = spin(&mut state, direction, &mut attempt);
            if outcome == BLOCKED && waits {
                outcome = self.sleep(&mut state, direction, &mut attempt)?;
            } else if outcome == BLOCKED {
                outcome = arm(&mut state.connection, &mut attempt)?;
            }
        }
        state.count(direction, peeks, &outcome);
        if let Some(direct) = state.connection.direct() {
            self.direct.get_or_init(|| direct.clone());
        }
        state.show();
        if state.waiting != [0; 2] {
            let leader = state.leader.filter(|&leader| leader == direction || state.is_ready_for(leader));
            self.wake(&state, leader);
        }
        outcome.map_err(of_stream)
    }

    /// Sleeps until the call finds something, or for as long as calls of this direction may.
    #[cold]
    fn sleep(
        &self,
        state: &mut Guard<'_>,
        direction: Direction,
        mut attempt: impl FnMut(&mut Connection<AnyDevice>) -> Moved<usize>,
    ) -> io::Result<Moved<usize>> {
        let end = state.limits[direction as usize].and_then(|limit| Instant::now().checked_add(limit));
        state.waiting[direction as usize] += 1;
        let outcome = loop {
            match arm(&mut state.connection, &mut attempt) {
                Ok(BLOCKED) => {}
                outcome => break outcome,
            }
            // What was found may be for the other direction, and left there.
            if !state.is_ready_for(direction) {
                match self.pause(state, direction, end) {
                    Ok(true) => {}
                    Ok(false) => break Ok(BLOCKED),
                    Err(error) => break Err(error),
                }
            }
            match attempt(&mut state.connection) {
                BLOCKED => {}
                outcome => break Ok(outcome),
            }
        };
        state.waiting[direction as usize] -= 1;
        outcome
    }

    /// Waits until something may have changed. Returns `false` if the time is over.
    fn pause(&self, state: &mut Guard<'_>, direction: Direction, end: Option<Instant>) -> io::Result<bool> {
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(false);
        }
        let other = direction.other();
        let others_turn = state.waiting[other as usize] > 0 && state.is_ready_for(other);
        if others_turn {
            let leader = state.leader.filter(|&leader| leader == other);
            self.wake(state, leader);
        }
        if others_turn || state.leader.is_some() {
            match end {
                Some(end) => _ = self.changed.wait_until(state, end),
                None => self.changed.wait(state),
            }
            return Ok(true);
        }
        state.leader = Some(direction);
        let end = end.into_iter().chain(state.connection.queue_pair().deadline()).min();
        let slept = MutexGuard::unlocked(state, || {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            self.descriptors.sleep.wait(left, &mut Vec::new())
        });
        state.leader = None;
        state.kick.set(false);
        self.changed.notify_all();
        slept.map_err(of_device)?;
        Ok(true)
    }

    /// Wakes the threads that wait: those behind the leader, and the leader if it is given.
    fn wake(&self, state: &State, leader: Option<Direction>) {
        self.changed.notify_all();
        if leader.is_some() {
            state.kick.set(true);
        }
    }
}

/// The descriptor becomes readable when a call that found nothing would find something.
impl AsFd for Core {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch();
        self.descriptors.shown.as_fd()
    }
}

/// Delivers what was sent, as `fi_close` does.
impl Drop for Core {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Stream");
        shown.field("addr", &self.local).field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl State {
    fn is_ready_for(&self, direction: Direction) -> bool {
        self.connection.is_ready_for(direction)
    }

    fn count(&mut self, direction: Direction, peeks: bool, outcome: &Moved<usize>) {
        if !peeks {
            self.connection.calls(direction).count(outcome);
        }
    }

    /// Ends the stream. Returns whether there is nothing more to wait for.
    fn close(&mut self) -> bool {
        self.connection.close();
        self.connection.progress();
        self.is_given_up || self.connection.is_flushed()
    }

    /// Makes the descriptor readable exactly if a call would return something now.
    fn show(&self) {
        if self.is_watched {
            self.ready.set(self.connection.is_ready());
        }
    }
}

/// Repeats the call for a moment, where that is likely to pay. A thread that waits for the lock gets it in
/// between.
fn spin(
    state: &mut Guard<'_>,
    direction: Direction,
    mut attempt: impl FnMut(&mut Connection<AnyDevice>) -> Moved<usize>,
) -> Moved<usize> {
    if !state.connection.spin(direction).is_due() {
        return BLOCKED;
    }
    let start = Instant::now();
    let mut outcome = BLOCKED;
    while outcome == BLOCKED && start.elapsed() < SPIN {
        std::hint::spin_loop();
        MutexGuard::bump(state);
        outcome = attempt(&mut state.connection);
    }
    state.connection.spin(direction).learn(outcome != BLOCKED);
    outcome
}

/// Arms the device, and repeats the call for what came before. Arming comes last: a call after it could consume
/// the event that it waits for.
fn arm(
    connection: &mut Connection<AnyDevice>,
    mut attempt: impl FnMut(&mut Connection<AnyDevice>) -> Moved<usize>,
) -> io::Result<Moved<usize>> {
    for _ in 0..ARMS {
        if !connection.arm().map_err(of_device)? {
            return Ok(BLOCKED);
        }
        let outcome = attempt(connection);
        if outcome != BLOCKED {
            return Ok(outcome);
        }
    }
    connection.arm().map_err(of_device)?;
    Ok(BLOCKED)
}
