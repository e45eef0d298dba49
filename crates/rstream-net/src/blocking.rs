//! Calls that wait, in the kernel and as the kernel would: time-outs, signals and `shutdown` by another
//! thread act as they do on a TCP socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use rstream_sockets::{Answer, LOOK, Naps, OUTPUT_SLEEP, Step, Stream, Then, Wait, WayBack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::connection::Connection;

/// Has the kernel serve the connection.
pub(crate) fn go_back(connection: &Connection) -> io::Result<()> {
    let (stream, kernel) = (&connection.stream, connection.kernel());
    if stream.stay(&kernel, "a stream of std was made of it") {
        return Ok(());
    }
    let mut way = WayBack::default();
    loop {
        match way.step(stream, &kernel)? {
            Step::Back => return Ok(()),
            Step::Pause(pause) => std::thread::sleep(pause),
            Step::Refused => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Receives to `buffers`, or looks at what is there without taking it.
#[inline]
pub(crate) fn receive(
    connection: &Connection,
    buffers: &mut [IoSliceMut<'_>],
    peek: bool,
) -> io::Result<usize> {
    Ok(receive_or_wait(connection, buffers, peek)?)
}

fn receive_or_wait(
    connection: &Connection,
    buffers: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Result<usize, Errno> {
    let (stream, kernel) = (&connection.stream, connection.kernel());
    if stream.is_over() {
        return connection.kernel_receive(buffers, peek);
    }
    let mut then = Then::Look;
    let mut deadline = Deadline::default();
    loop {
        let turn = stream.turn();
        match stream.receive(&kernel, buffers, peek, then)? {
            Answer::Done(length) => return Ok(length),
            Answer::Kernel => {
                let outcome = connection.kernel_receive(buffers, peek);
                if let Some(length) = stream.received(&kernel, buffers, outcome, peek)? {
                    return Ok(length);
                }
            }
            Answer::Wait => match then {
                Then::Return => return Err(Errno::AGAIN),
                Then::Look if !is_blocking(connection)? => then = Then::Return,
                Then::Look => {
                    let look = || stream.look(&kernel, false, false).ok()?.input.filter(|&ready| ready);
                    if connection.patience.look(LOOK, stream.looks(), look).is_none() {
                        then = Then::Sleep;
                    }
                }
                Then::Sleep => sleep(connection, turn, Waiter::Input, &mut deadline)?,
            },
        }
    }
}

/// Sends all of `slices`, or what can be sent without waiting if the socket does not wait.
#[inline]
pub(crate) fn send(connection: &Connection, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(send_or_wait(connection, slices)?)
}

fn send_or_wait(connection: &Connection, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    if connection.stream.is_over() {
        return connection.kernel_send(slices);
    }
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    let (mut done, mut later) = (0, Vec::new());
    let (mut waits, mut deadline) = (None, Deadline::default());
    loop {
        let rest = if done == 0 { slices } else { &later };
        let waiter = Waiter::Output { has_part: done > 0 };
        match send_some(connection, rest, waiter, &mut waits, &mut deadline) {
            Ok(Sent { length, is_last }) => {
                done += length;
                if done == wanted || is_last {
                    return Ok(done);
                }
                later = behind(slices, done);
            }
            Err(error) if done > 0 => {
                connection.stream.keep_error(error);
                return Ok(done);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What one step has sent.
struct Sent {
    length: usize,
    /// The kernel has sent it, which knows itself how much a call sends.
    is_last: bool,
}

/// `waits`: whether the socket does, once that was asked.
fn send_some(
    connection: &Connection,
    slices: &[IoSlice<'_>],
    waiter: Waiter,
    waits: &mut Option<bool>,
    deadline: &mut Deadline,
) -> Result<Sent, Errno> {
    let (stream, kernel) = (&connection.stream, connection.kernel());
    loop {
        let turn = stream.turn();
        match stream.send(&kernel, slices)? {
            Answer::Done(length) => return Ok(Sent { length, is_last: false }),
            Answer::Kernel => {
                let outcome = connection.kernel_send(slices);
                stream.sent(&kernel, *outcome.as_ref().unwrap_or(&0))?;
                return outcome.map(|length| Sent { length, is_last: true });
            }
            Answer::Wait => {
                let waits = match *waits {
                    Some(waits) => waits,
                    None => *waits.insert(is_blocking(connection)?),
                };
                if !waits {
                    return Err(Errno::AGAIN);
                }
                let look = || stream.look(&kernel, false, true).ok()?.output.filter(|&ready| ready);
                if connection.patience.look(LOOK, stream.looks(), look).is_none() {
                    sleep(connection, turn, waiter, deadline)?;
                }
            }
        }
    }
}

/// What is left of `slices` without their first bytes.
fn behind<'a>(slices: &'a [IoSlice<'_>], mut first: usize) -> Vec<IoSlice<'a>> {
    let rest = |slice: &'a IoSlice<'_>| {
        let skipped = first.min(slice.len());
        first -= skipped;
        (skipped < slice.len()).then(|| IoSlice::new(&slice[skipped..]))
    };
    slices.iter().filter_map(rest).collect()
}

/// Whoever has the descriptor may have changed it.
fn is_blocking(connection: &Connection) -> Result<bool, Errno> {
    Ok(!fcntl_getfl(connection)?.contains(OFlags::NONBLOCK))
}

/// What a call does that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Input,
    /// `has_part`: a part was sent already, so that each signal ends the call.
    Output {
        has_part: bool,
    },
}

/// Until when a call waits, once it has begun to.
#[derive(Default)]
struct Deadline {
    /// Whether the socket was asked for its limit.
    is_known: bool,
    end: Option<Instant>,
    naps: Naps,
}

impl Deadline {
    /// What is left. `None`: there is no limit.
    fn left(&mut self, connection: &Connection, waiter: Waiter) -> Option<Duration> {
        if !self.is_known {
            let socket = &connection.socket;
            let limit = match waiter {
                Waiter::Input => socket.read_timeout(),
                Waiter::Output { .. } => socket.write_timeout(),
            };
            self.end = limit.ok().flatten().and_then(|limit| Instant::now().checked_add(limit));
            self.is_known = true;
        }
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Gives up the lead when the sleep ends.
struct Lead<'a>(&'a Stream);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.woken();
    }
}

/// Waits after a call that had nothing since `turn`.
fn sleep(connection: &Connection, turn: u32, waiter: Waiter, deadline: &mut Deadline) -> Result<(), Errno> {
    let left = deadline.left(connection, waiter);
    if left == Some(Duration::ZERO) {
        return Err(Errno::AGAIN);
    }
    let stream = &connection.stream;
    match stream.wait(turn, waiter != Waiter::Input)? {
        Wait::Again => Ok(()),
        Wait::Behind(turn) => match stream.follow(turn, left) {
            true => Err(Errno::INTR),
            false => Ok(()),
        },
        Wait::Nap => {
            let nap = deadline.naps.length();
            std::thread::sleep(left.map_or(nap, |left| left.min(nap)));
            Ok(())
        }
        Wait::Kernel => {
            let outcome = {
                let _lead = Lead(stream);
                sleep_in_kernel(connection, waiter, left)
            };
            // What woke it may be the end.
            stream.settle(&connection.kernel())?;
            outcome
        }
    }
}

/// Waits for something on the socket, and leaves it there. A sleep of a call that sends may end before.
fn sleep_in_kernel(connection: &Connection, waiter: Waiter, left: Option<Duration>) -> Result<(), Errno> {
    // As a call of a socket with a limit, and one that has sent a part, this is interrupted by every signal.
    let is_interrupted = match waiter {
        Waiter::Input => left.is_some(),
        Waiter::Output { has_part } => {
            has_part || left.is_some() || connection.socket.read_timeout().is_ok_and(|limit| limit.is_some())
        }
    };
    if is_interrupted {
        let most =
            if waiter == Waiter::Input { left } else { Some(left.unwrap_or(OUTPUT_SLEEP).min(OUTPUT_SLEEP)) };
        let limit = most.and_then(|most| Timespec::try_from(most).ok());
        let mut polled = [PollFd::new(connection, PollFlags::IN)];
        return match poll(&mut polled, limit.as_ref())? {
            0 if most == left => Err(Errno::AGAIN),
            _ => Ok(()),
        };
    }
    match recv(&connection.socket, &mut [0; 1], RecvFlags::PEEK) {
        Ok(_) => Ok(()),
        Err(error @ (Errno::INTR | Errno::AGAIN)) => Err(error),
        // The kernel says it once.
        Err(error) => {
            connection.stream.note_error(&connection.kernel(), error);
            Ok(())
        }
    }
}
