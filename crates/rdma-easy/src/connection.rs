//! Connections: a queue pair before, during and after its connection, as one object.

use std::ffi::c_int;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_verbs::QpCapabilities;
use rdma_verbs::typed::{self, Connecting, End, Endpoint, Remote};

use crate::domain::{Domain, Timeout, poll_once};
use crate::error::{Error, Result};
use crate::handle::Object;
use crate::queue::Queue;
use crate::region::Region;

/// How long freeing a connection waits for the device to let go of its requests' memory.
const LETTING_GO: Duration = Duration::from_secs(1);
/// Pause between two looks at that.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection context.
pub(crate) struct Connection {
    pub(crate) domain: Arc<Domain>,
    state: Mutex<State>,
    /// What the peer's request, reply or reject has brought.
    private_data: Mutex<Vec<u8>>,
    pub(crate) sends: Queue,
    pub(crate) receives: Queue,
    /// Number of receives for advertisements that nobody has waited for.
    expected: AtomicUsize,
}

enum State {
    New(Endpoint),
    /// With the waker of the call that waits for the outcome.
    Attempting(Connecting, Option<Waker>),
    Connected(Arc<typed::Connection>),
    /// There will be no connection, for this reason.
    Spent(Error),
}

/// What receives are posted to.
pub(crate) enum Receiver<'c> {
    Endpoint(&'c Endpoint),
    Connection(&'c typed::Connection),
}

impl Object for Connection {
    const NAME: &'static str = "connection";
    type Handle = crate::ffi::rdma_easy_connection;
}

impl Connection {
    pub(crate) fn new(domain: Arc<Domain>, sizes: QpCapabilities) -> Result<Arc<Self>> {
        let endpoint = domain.shard.endpoint(sizes)?;
        Ok(Arc::new(Self {
            domain,
            state: Mutex::new(State::New(endpoint)),
            private_data: Mutex::default(),
            sends: Queue::default(),
            receives: Queue::default(),
            expected: AtomicUsize::new(0),
        }))
    }

    /// Connects or accepts, and waits for the outcome. The peer's data may be known before.
    pub(crate) fn establish(
        &self,
        data: Option<&[u8]>,
        begin: impl FnOnce(Endpoint) -> std::result::Result<Connecting, (Endpoint, Error)>,
    ) -> Result<()> {
        self.begin(begin)?;
        self.domain.shard.block_on(poll_fn(|context| self.poll_attempt(data, context)))
    }

    /// Begins an attempt. If it cannot begin, the endpoint comes back.
    fn begin(
        &self,
        begin: impl FnOnce(Endpoint) -> std::result::Result<Connecting, (Endpoint, Error)>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let (next, outcome) = match mem::replace(&mut *state, State::Spent(freed())) {
            State::New(endpoint) => match begin(endpoint) {
                Ok(connecting) => (State::Attempting(connecting, None), Ok(())),
                Err((endpoint, error)) => (State::New(endpoint), Err(error)),
            },
            other => {
                let error = match &other {
                    State::Attempting(..) => Error::new(libc::EALREADY, "an attempt is under way"),
                    State::Spent(error) => error.clone(),
                    _ => Error::new(libc::EISCONN, "the connection was established before"),
                };
                (other, Err(error))
            }
        };
        *state = next;
        outcome
    }

    /// The outcome of the attempt, which is over when the connection is freed.
    fn poll_attempt(&self, data: Option<&[u8]>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.state.lock();
        let State::Attempting(connecting, waker) = &mut *state else { return Poll::Ready(Err(freed())) };
        *waker = Some(context.waker().clone());
        let attempt = ready!(Pin::new(connecting).poll(context));
        let (next, data, outcome) = match attempt {
            Ok(connection) => {
                let data = data.map_or_else(|| connection.private_data(), <[u8]>::to_vec);
                (State::Connected(Arc::new(connection)), data, Ok(()))
            }
            Err(error) => {
                let data = match &error {
                    typed::Error::Ended(End::Rejected { private_data }) => private_data.clone(),
                    _ => data.unwrap_or_default().to_vec(),
                };
                let error = Error::from(error);
                (State::Spent(error.clone()), data, Err(error))
            }
        };
        *self.private_data.lock() = data;
        *state = next;
        Poll::Ready(outcome)
    }

    /// The established connection.
    pub(crate) fn current(&self) -> Result<Arc<typed::Connection>> {
        match &*self.state.lock() {
            State::Connected(connection) => Ok(Arc::clone(connection)),
            State::New(_) | State::Attempting(..) => {
                Err(Error::new(libc::ENOTCONN, "there is no connection yet"))
            }
            State::Spent(error) => Err(error.clone()),
        }
    }

    /// Posts a receive, before or during the connection.
    pub(crate) fn post_receive<R>(&self, post: impl FnOnce(Receiver<'_>) -> Result<R>) -> Result<R> {
        match &*self.state.lock() {
            State::New(endpoint) => post(Receiver::Endpoint(endpoint)),
            State::Connected(connection) => post(Receiver::Connection(connection)),
            State::Attempting(..) => Err(Error::new(libc::EALREADY, "an attempt is under way")),
            State::Spent(error) => Err(error.clone()),
        }
    }

    pub(crate) fn private_data(&self) -> Vec<u8> {
        self.private_data.lock().clone()
    }

    pub(crate) fn await_end(&self, timeout: Timeout) -> Result<()> {
        let connection = self.current()?;
        let mut ended = connection.ended();
        match self.domain.wait(&mut ended, timeout) {
            Some(End::Disconnected) => Ok(()),
            Some(end) => Err(end.into()),
            None => Err(Timeout::error("end of the connection")),
        }
    }

    /// Tells the peer of memory of this side.
    pub(crate) fn advertise(&self, region: &Region, offset: usize, length: usize) -> Result<()> {
        let connection = self.current()?;
        region.belongs_to(&self.domain)?;
        let memory = region.remote(offset, length)?;
        let sending = connection.advertise(self.domain.adverts.take()?, memory)?;
        // It goes on without its future.
        match poll_once(std::pin::pin!(sending)) {
            Some(Err(failed)) => Err(failed.into()),
            _ => Ok(()),
        }
    }

    /// Posts a receive for an advertisement.
    pub(crate) fn expect_advert(&self) -> Result<()> {
        let pool = &self.domain.adverts;
        self.post_receive(|receiver| {
            match receiver {
                Receiver::Endpoint(endpoint) => endpoint.post_receives(pool, 1),
                Receiver::Connection(connection) => connection.post_receives(pool, 1),
            }?;
            self.expected.fetch_add(1, Ordering::AcqRel);
            Ok(())
        })
    }

    /// The peer's next advertisement.
    pub(crate) fn await_advert(&self, timeout: Timeout) -> Result<Remote> {
        let connection = self.current()?;
        let taken =
            self.expected.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if taken.is_err() {
            return Err(Error::new(libc::ENODATA, "no receive for an advertisement is posted"));
        }
        let outcome = self.domain.wait(&mut connection.recv(), timeout);
        let Some(message) = outcome else {
            self.expected.fetch_add(1, Ordering::AcqRel);
            return Err(Timeout::error("advertisement"));
        };
        // Its buffer is not posted again.
        Ok(Remote::from_advert(&message?.into_buf())?)
    }

    /// Ends all of it at once: afterwards its requests use no memory, unless the device fails.
    pub(crate) fn close(&self) {
        let state = mem::replace(&mut *self.state.lock(), State::Spent(freed()));
        if let State::Attempting(connecting, waker) = state {
            drop(connecting);
            waker.into_iter().for_each(Waker::wake);
        } else if let State::Connected(connection) = &state {
            if connection.end().is_none() {
                connection.abort();
            }
            let limit = Instant::now() + LETTING_GO;
            while connection.outstanding() > 0 && Instant::now() < limit {
                self.domain.shard.block_on_until(&mut pending::<()>(), Instant::now() + PAUSE);
            }
        }
        self.sends.clear();
        self.receives.clear();
    }
}

fn freed() -> Error {
    Error::new(libc::EBADF, "the connection was freed")
}

/// The sizes of the queues: what C asks for, and defaults for what is 0.
pub(crate) fn sizes(sends: u32, receives: u32, reads: u8) -> QpCapabilities {
    let or = |wanted, default| if wanted == 0 { default } else { wanted };
    let reads = if reads == 0 { DEFAULT_READS } else { reads };
    QpCapabilities {
        send_depth: or(sends, DEFAULT_DEPTH),
        recv_depth: or(receives, DEFAULT_DEPTH),
        inline: 0,
        initiator_depth: reads,
        responder_resources: reads,
    }
}

/// Entries of a queue of which C says nothing.
const DEFAULT_DEPTH: u32 = 64;
/// Reads under way at a time in each direction of which C says nothing.
const DEFAULT_READS: u8 = 16;

/// The number of bytes as C gets it.
pub(crate) fn count(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}
