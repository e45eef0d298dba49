//! The calls that move bytes.

use std::io::{IoSlice, IoSliceMut};

use crate::abi::{Errno, MsgOps, Result, constants};
use crate::verbs::Device;

use super::super::connection::Connection;
use super::super::info::INJECT_SIZE;
use super::{Endpoint, State};

/// Flags that a data call takes; those besides `FI_PEEK` and `FI_MORE` change nothing, because
/// every call is complete when it returns.
const FLAGS: u64 = constants::FI_PEEK
    | constants::FI_MORE
    | constants::FI_COMPLETION
    | constants::FI_INJECT
    | constants::FI_INJECT_COMPLETE
    | constants::FI_TRANSMIT_COMPLETE;

impl<D: Device> Endpoint<D> {
    /// Runs a data call on the connection, if there is one; `note` counts what it answered.
    fn with_connection(
        &self,
        mut call: impl FnMut(&mut Connection<D>) -> Result<usize>,
        note: impl FnOnce(&mut Connection<D>, &Result<usize>),
    ) -> Result<usize> {
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Connecting(..)) {
            inner.progress(self);
        }
        let sleeps = inner.wait.is_some();
        let State::Connected(connection) = &mut inner.state else { return Err(Errno::ENOTCONN) };
        let mut outcome = call(connection);
        if sleeps && matches!(outcome, Err(Errno::EAGAIN)) && connection.arm()? {
            outcome = call(connection);
        }
        note(connection, &outcome);
        inner.after_call();
        outcome
    }
}

/// A peek counts as no call.
fn uncounted<D: Device>(_: &mut Connection<D>, _: &Result<usize>) {}

fn count_send<D: Device>(connection: &mut Connection<D>, outcome: &Result<usize>) {
    connection.sends.note(outcome);
}

fn count_receive<D: Device>(connection: &mut Connection<D>, outcome: &Result<usize>) {
    connection.receives.note(outcome);
}

impl<D: Device> MsgOps for Endpoint<D> {
    fn send(&self, data: &[IoSlice<'_>], flags: u64) -> Result<usize> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if flags & constants::FI_PEEK != 0 {
            return self.with_connection(Connection::peek_send, uncounted);
        }
        let total = data.iter().map(|piece| piece.len()).sum();
        let more = flags & constants::FI_MORE != 0;
        self.with_connection(|connection| connection.send(data, total, more), count_send)
    }

    fn inject(&self, data: &[u8]) -> Result<usize> {
        if data.len() > INJECT_SIZE {
            return Err(Errno::EMSGSIZE);
        }
        self.with_connection(|connection| connection.inject(data), count_send)
    }

    fn recv(&self, data: &mut [IoSliceMut<'_>], flags: u64) -> Result<usize> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let peek = flags & constants::FI_PEEK != 0;
        if peek && data.is_empty() {
            return self.with_connection(Connection::peek_receive, uncounted);
        }
        let total = data.iter().map(|piece| piece.len()).sum();
        let call = |connection: &mut Connection<D>| connection.receive(data, total, !peek);
        if peek { self.with_connection(call, uncounted) } else { self.with_connection(call, count_receive) }
    }
}
