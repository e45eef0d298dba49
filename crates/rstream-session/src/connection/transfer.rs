//! The calls that move bytes, over the queue pair. Once memory is shared, each passes its work on to the rings.

use std::io::{IoSlice, IoSliceMut};

use rdma_verbs::Device;
use rstream_protocol::RecvState;

use super::Connection;
use crate::error::{Error, Result};
use crate::gather::{Gather, MAX_PIECES};

impl<D: Device> Connection<D> {
    /// Sends as many bytes of `data` as there is room for, at least one, and returns their number. `total` is
    /// the length of all pieces. With `more`, the last message may wait for what follows; any other call
    /// sends it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without room, [`Error::Shut`] and [`Error::Reset`] after the end.
    pub fn send(&mut self, data: &[IoSlice<'_>], total: usize, more: bool) -> Result<usize> {
        if self.sends_to_ring() {
            return self.send_to_ring(data, total);
        }
        let sent = self.then_flush(|connection| {
            let mut taken = connection.post(data, 0, total, more)?;
            if taken < total {
                connection.drive_while(|stream| stream.sendable().is_ok_and(|room| room < total - taken));
                taken += connection.post(data, taken, total, more)?;
            }
            if taken == 0 && connection.release_held() {
                taken = connection.post(data, 0, total, more)?;
            }
            if taken > 0 {
                connection.room_awaited = 0;
                connection.held = more;
                return Ok(taken);
            }
            connection.sendable()?;
            if total > 0 { connection.block_send(1) } else { Ok(0) }
        });
        self.after_queue_pair_call(&sent);
        sent
    }

    /// Sends all of `data` or nothing.
    ///
    /// # Errors
    /// As [`Connection::send`], and [`Error::TooLong`] if the rings never hold so much.
    pub fn inject(&mut self, data: &[u8]) -> Result<usize> {
        let length = data.len();
        if length > self.longest_inject {
            return Err(Error::TooLong);
        }
        if self.sends_to_ring() {
            return self.inject_to_ring(data);
        }
        let sent = self.then_flush(|connection| {
            let mut room = connection.room(length)?;
            if room < length && connection.release_held() {
                room = connection.sendable()?;
            }
            if room < length {
                return connection.block_send(length);
            }
            connection.room_awaited = 0;
            connection.post(&[IoSlice::new(data)], 0, length, false)
        });
        self.after_queue_pair_call(&sent);
        sent
    }

    /// The number of bytes that a send would take now.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn peek_send(&mut self) -> Result<usize> {
        if self.sends_to_ring() {
            return self.peek_send_to_ring();
        }
        self.then_flush(|connection| {
            connection.release_held();
            connection.room(usize::MAX)?;
            // Due control words are sent first, and may take an entry of the send queue.
            connection.flush_control();
            match connection.sendable()? {
                0 => connection.block_send(1),
                room => Ok(room),
            }
        })
    }

    /// Copies received bytes to `target`, whose pieces have `total` bytes of room, and returns their number:
    /// 0 at the end of the stream. Without `consume`, the next call returns the same bytes.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there are none yet, [`Error::Reset`] if the connection broke.
    pub fn receive(&mut self, target: &mut [IoSliceMut<'_>], total: usize, consume: bool) -> Result<usize> {
        if self.receives_from_ring() {
            return self.receive_from_ring(target, total, consume);
        }
        let received = self.then_flush(|connection| {
            let available = connection.available(total)?;
            if total == 0 || available == 0 {
                return Ok(0);
            }
            let given = connection.copy_out(target);
            if consume {
                connection.stream.consume(given);
            }
            Ok(given)
        });
        if received == Err(Error::WouldBlock) && self.receives_from_ring() {
            return self.receive_from_ring(target, total, consume);
        }
        self.after_queue_pair_call(&received);
        received
    }

    /// The number of bytes that a receive would return now; 0 at the end of the stream.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn peek_receive(&mut self) -> Result<usize> {
        if self.receives_from_ring() {
            return self.peek_ring();
        }
        let available = self.then_flush(|connection| connection.available(1));
        let moved = available == Err(Error::WouldBlock) && self.receives_from_ring();
        if moved { self.peek_ring() } else { available }
    }

    /// Runs a call, then posts the control words that are due.
    #[inline]
    fn then_flush<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let result = call(self);
        self.flush_control();
        result
    }

    /// Room for sending.
    fn sendable(&mut self) -> Result<usize> {
        self.check_send()?;
        Ok(self.stream.sendable()?)
    }

    /// Fails a send if nothing can be sent any more. Then nobody waits for room.
    #[inline]
    pub(super) fn check_send(&mut self) -> Result<()> {
        self.stream.send_state().inspect_err(|_| self.room_awaited = 0)?;
        Ok(())
    }

    /// Room for sending; drives the connection if there is less than `wanted`.
    fn room(&mut self, wanted: usize) -> Result<usize> {
        if self.sendable()? < wanted {
            self.drive_while(|stream| stream.sendable().is_ok_and(|room| room < wanted));
        }
        self.sendable()
    }

    /// Fails a send with [`Error::WouldBlock`], and keeps how much room it lacked.
    pub(super) fn block_send(&mut self, wanted: usize) -> Result<usize> {
        self.room_awaited = wanted;
        Err(Error::WouldBlock)
    }

    /// Bytes to receive, 0 at the end of the stream; drives the connection if there are none.
    fn available(&mut self, wanted: usize) -> Result<usize> {
        self.release_held();
        if self.stream.readable() == 0 {
            self.drive_while(|stream| stream.readable() == 0);
        }
        let readable = self.stream.readable();
        if readable > 0 {
            return Ok(readable);
        }
        if self.move_input() {
            // The caller looks in the ring.
            return Err(Error::WouldBlock);
        }
        self.nothing(wanted)
    }

    /// The outcome of a receive of `wanted` bytes that finds none.
    pub(super) fn nothing(&mut self, wanted: usize) -> Result<usize> {
        self.check_end();
        if self.is_ring_broken() {
            return Err(Error::Reset);
        }
        match self.stream.receive_end() {
            RecvState::Open if wanted > 0 => Err(Error::WouldBlock),
            RecvState::Open => Ok(0),
            RecvState::Reset => Err(Error::Reset),
            RecvState::Ended => {
                if self.end_returned {
                    // What woke the caller may be a notification. A call that finds nothing takes it.
                    self.arm_rings();
                }
                self.end_returned = true;
                Ok(0)
            }
        }
    }

    /// Sends the output that `more` held back. Returns whether there was any. If so, this has also driven the
    /// connection.
    pub(super) fn release_held(&mut self) -> bool {
        let held = self.held;
        if held {
            self.progress();
        }
        held
    }

    /// Posts what there is room for of the `total` bytes of `data`, after the first `skip`. Returns their
    /// number.
    fn post(&mut self, data: &[IoSlice<'_>], skip: usize, total: usize, more: bool) -> Result<usize> {
        let mut done = skip;
        while done < total {
            // A message has no more pieces than the device takes.
            let most = if data.len() > MAX_PIECES { Gather::reach(data, done) } else { total };
            let Some(message) = self.stream.next_write(most.min(total - done)) else { break };
            let size = message.length as usize;
            let cut;
            let pieces = if data.len() == 1 && size == total {
                data
            } else {
                cut = Gather::cut(data, done, size);
                cut.slices()
            };
            if let Err(error) =
                self.queue_pair.post_write(self.format, self.peer_ring, &message, pieces, more)
            {
                self.fail(&error);
                return Err(Error::Reset);
            }
            done += size;
        }
        Ok(done - skip)
    }

    /// Copies received bytes into `target`, as far as both go.
    fn copy_out(&self, target: &mut [IoSliceMut<'_>]) -> usize {
        let mut done = 0;
        for piece in target {
            let mut rest: &mut [u8] = piece;
            while !rest.is_empty() {
                let span = self.stream.span(done, rest.len());
                let (now, later) = rest.split_at_mut(span.length as usize);
                if now.is_empty() || !self.queue_pair.read_ring(span.offset, now) {
                    return done;
                }
                done += now.len();
                rest = later;
            }
        }
        done
    }
}
