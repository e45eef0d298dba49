//! How tasks use a connection.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use ::tokio::io::Interest;
use ::tokio::net::TcpStream;
use ::tokio::task::coop::poll_proceed;
use rstream_sockets::{Answer, LOOK, Then};
use rustix::io::Errno;

use super::nap::Nap;
use super::wakers::{Place, Wakers, Who};
use crate::connection::Connection;

/// Attempts of one poll. More are left to the next one.
const ATTEMPTS: u32 = 16;

/// A connection in a runtime.
pub(super) struct Core {
    connection: Connection<TcpStream>,
    wakers: Arc<Wakers>,
    /// Wakes all of them: what the reactor is given for each.
    all: Waker,
    /// Until when a reader and a writer look again.
    looks: [Mutex<Option<Instant>>; 2],
    nap: Nap,
}

/// What may change while a task makes a call, and concerns the others.
#[derive(PartialEq, Eq)]
struct Mark {
    turn: u32,
    has_rings: bool,
}

/// What an attempt has brought.
enum Step<T> {
    Done(T),
    /// To be tried again at once.
    Again,
    /// Nothing, and the reactor knows that the task waits for the kernel.
    Kernel,
    /// Nothing, and the peer can be asked for a bell.
    Ring,
}

impl Core {
    pub(super) fn new(connection: Connection<TcpStream>) -> Self {
        let wakers = Arc::new(Wakers::default());
        let all = Waker::from(Arc::clone(&wakers));
        Self { connection, wakers, all, looks: Default::default(), nap: Nap::default() }
    }

    #[inline]
    pub(super) fn connection(&self) -> &Connection<TcpStream> {
        &self.connection
    }

    /// For a future of which there may be any number.
    pub(super) fn place(&self) -> Place<'_> {
        self.wakers.place()
    }

    /// Receives to `buffers`, or looks at what is there without taking it.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        who: Who,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, who, |then| self.receive_step(buffers, peek, then))
    }

    /// Sends what can be sent of `slices`.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll(cx, Who::Writer, |_| self.send_step(slices))
    }

    /// Ready when a call that receives, or one that sends, may do something.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>, who: Who, output: bool) -> Poll<io::Result<()>> {
        let mut has_bell = false;
        self.wakers.register(who, cx.waker());
        for _ in 0..ATTEMPTS {
            let before = self.mark();
            let step = self.attempt(has_bell, || self.ready_step(output));
            let is_changed = self.tell(Some(who), &before);
            match step? {
                Step::Done(()) => return Poll::Ready(Ok(())),
                Step::Again => {}
                Step::Kernel if is_changed => {}
                Step::Kernel => return Poll::Pending,
                Step::Ring => has_bell = ready!(self.poll_bell(output))?,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Receives what is there.
    pub(super) fn try_receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<usize> {
        let connection = self.connection();
        let (stream, kernel) = (&connection.stream, connection.kernel());
        let before = self.mark();
        let mut then = Then::Look;
        let received = loop {
            match stream.receive(&kernel, buffers, peek, then) {
                Ok(Answer::Done(length)) => break Ok(length),
                // A caller that tries again and again has the peer ring no more: not while a task waits for that.
                Ok(Answer::Wait) if then == Then::Look => {
                    then = if self.wakers.wait_for_input() { Then::Sleep } else { Then::Return };
                }
                Ok(Answer::Wait) => break Err(Errno::AGAIN),
                Ok(Answer::Kernel) => {
                    let outcome = self.kernel_receive(buffers, peek);
                    match stream.received(&kernel, buffers, outcome, peek) {
                        Ok(Some(length)) => break Ok(length),
                        Ok(None) => {}
                        Err(error) => break Err(error),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        // A task that has begun to wait meanwhile asks again.
        if !self.tell(None, &before) && then == Then::Return && self.wakers.wait_for_input() {
            self.wakers.wake_others(None);
        }
        Ok(received?)
    }

    /// Sends what there is room for.
    pub(super) fn try_send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let connection = self.connection();
        let (stream, kernel) = (&connection.stream, connection.kernel());
        let before = self.mark();
        let sent = match stream.send(&kernel, slices) {
            Ok(Answer::Done(length)) => Ok(length),
            Ok(Answer::Wait) => Err(Errno::AGAIN),
            Ok(Answer::Kernel) => {
                let outcome = self.kernel_send(slices);
                stream.sent(&kernel, *outcome.as_ref().unwrap_or(&0)).and(outcome)
            }
            Err(error) => Err(error),
        };
        self.tell(None, &before);
        Ok(sent?)
    }

    pub(super) fn shutdown(&self, how: std::net::Shutdown) -> io::Result<()> {
        let outcome = self.connection().shutdown(how);
        self.wakers.wake_others(None);
        outcome
    }

    /// Attempts something for the one task that reads or writes. What its peer has to be asked for is
    /// attempted with [`Then::Sleep`].
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        who: Who,
        mut attempt: impl FnMut(Then) -> io::Result<Step<T>>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(poll_proceed(cx));
        let (mut then, mut has_bell) = (Then::Look, false);
        let mut is_registered = false;
        for _ in 0..ATTEMPTS {
            // In this order: the attempt says what to wait for.
            if !is_registered && (then == Then::Sleep || !self.connection().stream.has_rings()) {
                self.wakers.register(who, cx.waker());
                is_registered = true;
            }
            let before = self.mark();
            let step = self.attempt(has_bell, || attempt(then));
            let is_changed = self.tell(Some(who), &before);
            match step {
                Ok(Step::Done(value)) => {
                    self.end_looks(who);
                    budget.made_progress();
                    return Poll::Ready(Ok(value));
                }
                Ok(Step::Again) => {}
                Ok(Step::Kernel) if is_changed => {}
                Ok(Step::Kernel) if is_registered => return Poll::Pending,
                Ok(Step::Kernel) => then = Then::Sleep,
                Ok(Step::Ring) if then == Then::Look => {
                    if self.looks_again(who) {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    then = Then::Sleep;
                }
                Ok(Step::Ring) => has_bell = ready!(self.poll_bell(who == Who::Writer))?,
                Err(error) => {
                    // Others would wait for a bell that nobody rings.
                    self.wakers.wake_others(Some(who));
                    return Poll::Ready(Err(error));
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn receive_step(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
        then: Then,
    ) -> io::Result<Step<usize>> {
        let connection = self.connection();
        let (stream, kernel) = (&connection.stream, connection.kernel());
        match stream.receive(&kernel, buffers, peek, then)? {
            Answer::Done(length) => return Ok(Step::Done(length)),
            Answer::Wait => return Ok(Step::Ring),
            Answer::Kernel => {}
        }
        let polled = connection.socket.poll_read_ready(&mut Context::from_waker(&self.all));
        let Poll::Ready(Ok(())) = polled else {
            let given_back = stream.received(&kernel, buffers, Err(Errno::AGAIN), peek);
            return step_of_pending(polled, given_back.err());
        };
        let outcome = self.kernel_receive(buffers, peek);
        match stream.received(&kernel, buffers, outcome, peek) {
            Ok(Some(length)) => Ok(Step::Done(length)),
            Ok(None) | Err(Errno::AGAIN) => Ok(Step::Again),
            Err(error) => Err(error.into()),
        }
    }

    fn send_step(&self, slices: &[IoSlice<'_>]) -> io::Result<Step<usize>> {
        let connection = self.connection();
        let (stream, kernel) = (&connection.stream, connection.kernel());
        match stream.send(&kernel, slices)? {
            Answer::Done(length) => return Ok(Step::Done(length)),
            Answer::Wait => return Ok(Step::Ring),
            Answer::Kernel => {}
        }
        let polled = connection.socket.poll_write_ready(&mut Context::from_waker(&self.all));
        let Poll::Ready(Ok(())) = polled else {
            let given_back = stream.sent(&kernel, 0);
            return step_of_pending(polled, given_back.err());
        };
        let outcome = self.kernel_send(slices);
        stream.sent(&kernel, *outcome.as_ref().unwrap_or(&0))?;
        match outcome {
            Ok(length) => Ok(Step::Done(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Step::Again),
            Err(error) => Err(error.into()),
        }
    }

    fn ready_step(&self, output: bool) -> io::Result<Step<()>> {
        let connection = self.connection();
        let (stream, kernel) = (&connection.stream, connection.kernel());
        let found = |arm| -> Result<Option<bool>, Errno> {
            let ready = stream.look(&kernel, arm, output)?;
            Ok(if output { ready.output } else { ready.input })
        };
        let is_ready = match found(false)? {
            // Takes bells, also those that came for nothing, and finds the end.
            Some(false) => {
                stream.can_be_rung() && stream.settle(&kernel)? && !output || found(true)? == Some(true)
            }
            Some(true) => true,
            None => {
                let (cx, socket) = (&mut Context::from_waker(&self.all), &connection.socket);
                let polled = if output { socket.poll_write_ready(cx) } else { socket.poll_read_ready(cx) };
                return match polled {
                    Poll::Ready(Ok(())) => Ok(Step::Done(())),
                    other => step_of_pending(other, None),
                };
            }
        };
        Ok(if is_ready { Step::Done(()) } else { Step::Ring })
    }

    /// Waits for a bell, if the reactor has told of none since the last attempt, or for a moment if nobody
    /// rings. Returns whether it was for a bell.
    fn poll_bell(&self, output: bool) -> Poll<io::Result<bool>> {
        let cx = &mut Context::from_waker(&self.all);
        let connection = self.connection();
        if connection.stream.is_leaving() || output && !connection.stream.can_be_rung() {
            return self.nap.poll(cx).map_ok(|()| false);
        }
        connection.socket.poll_read_ready(cx).map_ok(|()| true)
    }

    /// Attempts something. `has_bell`: the reactor has told of a bell, which this attempt answers. If it
    /// finds nothing, the reactor forgets what it said before, and nothing that comes meanwhile.
    fn attempt<T>(
        &self,
        has_bell: bool,
        mut attempt: impl FnMut() -> io::Result<Step<T>>,
    ) -> io::Result<Step<T>> {
        let mut step = None;
        if has_bell {
            let _ = self.connection().socket.try_io(Interest::READABLE, || match step.insert(attempt()) {
                Ok(Step::Ring) => Err(ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            });
        }
        step.unwrap_or_else(attempt)
    }

    /// The kernel's call, if the reactor says that it may do something.
    fn kernel_receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        // Bytes that a look leaves are there still.
        let wanted = if peek { 0 } else { buffers.iter().map(|buffer| buffer.len()).sum() };
        self.kernel_call(Interest::READABLE, wanted, || self.connection().kernel_receive(buffers, peek))
    }

    /// As [`kernel_receive`](Self::kernel_receive).
    fn kernel_send(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        self.kernel_call(Interest::WRITABLE, wanted, || self.connection().kernel_send(slices))
    }

    /// A call that did less than it wanted has the reactor tell anew when the kernel can do more.
    fn kernel_call(
        &self,
        interest: Interest,
        wanted: usize,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut outcome = Err(Errno::AGAIN);
        let _ = self.connection().socket.try_io(interest, || {
            outcome = call();
            match outcome {
                Ok(length) if (1..wanted).contains(&length) => Err(ErrorKind::WouldBlock.into()),
                Err(Errno::AGAIN) => Err(ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        });
        outcome
    }

    fn mark(&self) -> Mark {
        let stream = &self.connection().stream;
        Mark { turn: stream.turn(), has_rings: stream.has_rings() }
    }

    /// Tells the other tasks if this one has taken a bell, or upgraded the connection. Returns whether so.
    fn tell(&self, who: Option<Who>, before: &Mark) -> bool {
        let is_changed = self.mark() != *before;
        if is_changed {
            self.wakers.wake_others(who);
        }
        is_changed
    }

    /// Whether a task that found nothing looks again when others have run.
    fn looks_again(&self, who: Who) -> bool {
        let patience = &self.connection().patience;
        let mut until = self.looks(who).lock().unwrap_or_else(PoisonError::into_inner);
        match *until {
            None if patience.has_paid() => {
                *until = Some(Instant::now() + LOOK);
                true
            }
            None => false,
            Some(end) if Instant::now() < end => true,
            Some(_) => {
                *until = None;
                patience.learn(false);
                false
            }
        }
    }

    fn end_looks(&self, who: Who) {
        let mut until = self.looks(who).lock().unwrap_or_else(PoisonError::into_inner);
        if until.take().is_some() {
            self.connection().patience.learn(true);
        }
    }

    fn looks(&self, who: Who) -> &Mutex<Option<Instant>> {
        &self.looks[usize::from(who == Who::Writer)]
    }
}

/// What follows if the reactor has said nothing, or failed.
fn step_of_pending<T>(polled: Poll<io::Result<()>>, error: Option<Errno>) -> io::Result<Step<T>> {
    match (polled, error) {
        (Poll::Ready(Err(error)), _) => Err(error),
        (_, Some(error)) if error != Errno::AGAIN => Err(error.into()),
        _ => Ok(Step::Kernel),
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection().fmt(f)
    }
}
