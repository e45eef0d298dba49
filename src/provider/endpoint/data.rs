//! The calls that move bytes.

use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::abi::{self, Errno, Result, StreamOps, constants};
use rdma_verbs::Device;
use rstream_session::{Connection, Direction, Error, Result as Moved};

use super::super::config::Config;
use super::super::error::errno_of;
use super::super::info::INJECT_SIZE;
use super::callers::{PAUSES, YIELDS};
use super::{Endpoint, Inner, State};

/// The outcome of a call that finds nothing to do.
const BLOCKED: Moved<usize> = Err(Error::WouldBlock);

/// Maximum number of repetitions of a call for what arrives while it arms the descriptor. A peer that sends
/// without pause cannot keep the caller in the call.
const ARMS: usize = 8;

/// Flags of a data call. Except for `FI_PEEK` and `FI_MORE` they have no effect, because every call is
/// complete when it returns.
const FLAGS: u64 = constants::FI_PEEK
    | constants::FI_MORE
    | constants::FI_COMPLETION
    | constants::FI_INJECT
    | constants::FI_INJECT_COMPLETE
    | constants::FI_TRANSMIT_COMPLETE;

impl<D: Device> Endpoint<D> {
    /// Runs a data call of one direction on the connection, if there is one. Calls that only peek (`peeks`)
    /// are not counted.
    fn with_connection(
        &self,
        direction: Direction,
        peeks: bool,
        mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
    ) -> Result<usize> {
        let mut inner = self.inner.lock();
        // Without a descriptor, nobody sleeps and there is nothing to update.
        if inner.wait.is_none()
            && let State::Connected(connection) = &mut inner.state
        {
            let outcome = call(connection);
            if !peeks {
                connection.calls(direction).count(&outcome);
            }
            self.note_direct(connection);
            if connection.is_over() {
                inner.after_call();
            }
            return outcome.map_err(Errno::from);
        }
        self.with_sleeper(inner, direction, peeks, call)
    }

    /// [`Endpoint::with_connection`] where a thread may sleep, or the connection is not established.
    #[inline(never)]
    fn with_sleeper(
        &self,
        mut inner: MutexGuard<'_, Inner<D>>,
        direction: Direction,
        peeks: bool,
        mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
    ) -> Result<usize> {
        inner.armed = None;
        if matches!(inner.state, State::Connecting(_)) {
            abi::defer_cancellation(|| inner.progress(self));
        }
        let mut outcome = call(inner.connected()?);
        if inner.wait.is_some() {
            inner.callers.note(direction);
            if outcome == BLOCKED {
                outcome = self.before_sleep(&mut inner, direction, &mut call)?;
            }
            if outcome != BLOCKED {
                // Another thread may have armed it while this call had released the lock.
                inner.armed = None;
            }
            self.called.notify_all();
        }
        let connection = inner.connected()?;
        if !peeks {
            connection.calls(direction).count(&outcome);
        }
        self.note_direct(connection);
        inner.after_call();
        outcome.map_err(Errno::from)
    }

    /// Makes direct calls possible, once the stream is in shared memory.
    #[inline]
    fn note_direct(&self, connection: &Connection<D>) {
        if let Some(direct) = connection.direct() {
            self.direct.get_or_init(|| direct.clone());
        }
    }

    /// The caller of a call that found nothing is about to sleep: spins or yields where that may help, then
    /// arms the descriptor.
    #[cold]
    fn before_sleep(
        &self,
        inner: &mut MutexGuard<'_, Inner<D>>,
        direction: Direction,
        mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
    ) -> Result<Moved<usize>> {
        let mut outcome = if inner.callers.is_another(direction.other()) {
            yield_and_look(inner, &mut call)?
        } else {
            spin(inner, direction, &mut call)?
        };
        // Also if the other direction was not called yet: its thread may be about to call.
        if outcome == BLOCKED && !inner.callers.is_this(direction.other()) {
            outcome = self.give_way(inner, direction, &mut call)?;
        }
        // Arming comes last: a call after it could consume the event that it waits for.
        for _ in 0..ARMS {
            if outcome != BLOCKED {
                break;
            }
            if !inner.connected()?.arm().map_err(errno_of)? {
                inner.armed = Some(Instant::now());
                break;
            }
            outcome = call(inner.connected()?);
        }
        Ok(outcome)
    }

    /// Yields to the thread of the other direction while the descriptor is readable for it.
    fn give_way(
        &self,
        inner: &mut MutexGuard<'_, Inner<D>>,
        direction: Direction,
        mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
    ) -> Result<Moved<usize>> {
        let mut outcome = BLOCKED;
        for pause in PAUSES {
            if outcome != BLOCKED || !inner.connected()?.is_ready_for(direction.other()) {
                break;
            }
            // The other thread may sleep on the descriptor, or wait here as well.
            inner.after_call();
            self.called.notify_all();
            self.called.wait_for(inner, pause);
            outcome = call(inner.connected()?);
        }
        Ok(outcome)
    }
}

/// Repeats the call a few times, and yields the processor in between.
fn yield_and_look<D: Device>(
    inner: &mut MutexGuard<'_, Inner<D>>,
    mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
) -> Result<Moved<usize>> {
    let mut outcome = BLOCKED;
    for _ in 0..YIELDS {
        MutexGuard::unlocked(inner, std::thread::yield_now);
        outcome = call(inner.connected()?);
        if outcome != BLOCKED {
            break;
        }
    }
    Ok(outcome)
}

/// Spins before the caller sleeps, where that is likely to pay. A thread that waits for the lock gets it in
/// between.
#[cold]
fn spin<D: Device>(
    inner: &mut MutexGuard<'_, Inner<D>>,
    direction: Direction,
    mut call: impl FnMut(&mut Connection<D>) -> Moved<usize>,
) -> Result<Moved<usize>> {
    let longest = Config::get().spin;
    if longest.is_zero() || !inner.connected()?.spin(direction).is_due() {
        return Ok(BLOCKED);
    }
    let start = Instant::now();
    let mut outcome = BLOCKED;
    while outcome == BLOCKED && start.elapsed() < longest {
        std::hint::spin_loop();
        MutexGuard::bump(inner);
        outcome = call(inner.connected()?);
    }
    inner.connected()?.spin(direction).learn(outcome != BLOCKED);
    Ok(outcome)
}

impl<D: Device> StreamOps for Endpoint<D> {
    fn send(&self, data: &[IoSlice<'_>], flags: u64) -> Result<usize> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if flags & constants::FI_PEEK != 0 {
            return self.with_connection(Direction::Send, true, Connection::peek_send);
        }
        if let Some(direct) = self.direct.get()
            && let Some(sent) = direct.send(data)
        {
            return Ok(sent);
        }
        let total = data.iter().map(|piece| piece.len()).sum();
        let more = flags & constants::FI_MORE != 0;
        self.with_connection(Direction::Send, false, |connection| connection.send(data, total, more))
    }

    fn inject(&self, data: &[u8]) -> Result<usize> {
        if data.len() > INJECT_SIZE {
            return Err(Errno::EMSGSIZE);
        }
        if let Some(direct) = self.direct.get()
            && let Some(sent) = direct.inject(data)
        {
            return Ok(sent);
        }
        self.with_connection(Direction::Send, false, |connection| connection.inject(data))
    }

    fn recv(&self, data: &mut [IoSliceMut<'_>], flags: u64) -> Result<usize> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let peek = flags & constants::FI_PEEK != 0;
        if peek && data.is_empty() {
            return self.with_connection(Direction::Receive, true, Connection::peek_receive);
        }
        let total = data.iter().map(|piece| piece.len()).sum();
        if let Some(direct) = self.direct.get()
            && !peek
            && total > 0
            && let Some(received) = direct.receive(data)
        {
            if received.shows_more {
                self.inner.lock().after_call();
            }
            return received.outcome.map_err(Errno::from);
        }
        self.with_connection(Direction::Receive, peek, |connection| connection.receive(data, total, !peek))
    }
}
