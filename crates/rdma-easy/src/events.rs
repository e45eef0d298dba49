//! Event loops: messages between hubs, reported by callbacks.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use rdma_verbs::Access;
use rdma_verbs::typed;
use rdma_verbs::typed::messages::{self, Event, Hub, Options, Reason, Ticket};

use crate::domain::{Domain, Timeout, address};
use crate::error::{Error, Result};
use crate::ffi::{Program, rdma_easy_message, rdma_easy_peer, rdma_easy_request};
use crate::handle::{self, Object};
use crate::listener::Request;

/// Events that one call reports.
const MOST_EVENTS: usize = 256;

/// A hub whose events C is told of.
pub(crate) struct Loop {
    domain: Arc<Domain>,
    program: Program,
    state: Mutex<State>,
    /// Held by the call that reports events.
    dispatching: Mutex<()>,
}

struct State {
    /// `None` when the loop was freed.
    hub: Option<Hub>,
    peers: BTreeMap<messages::Peer, Known>,
    /// That of the thread that waits for an event.
    waker: Option<Waker>,
}

/// A peer that C has a handle of.
struct Known {
    handle: Handle<rdma_easy_peer>,
    /// Messages that are not reported as sent.
    posted: BTreeMap<Ticket, (Handle<rdma_easy_message>, Arc<Message>)>,
}

/// A connection of a loop.
pub(crate) struct Peer {
    of: Weak<Loop>,
    id: messages::Peer,
}

/// Memory of a message to send.
pub(crate) struct Message {
    pub(crate) memory: typed::Region,
    status: Mutex<Status>,
}

/// What became of a message.
#[derive(Clone)]
pub(crate) enum Status {
    New,
    Posted,
    Sent,
    Failed(Error),
}

impl Object for Loop {
    const NAME: &'static str = "event loop";
    type Handle = crate::ffi::rdma_easy_loop;
}

impl Object for Peer {
    const NAME: &'static str = "peer";
    type Handle = rdma_easy_peer;
}

impl Object for Message {
    const NAME: &'static str = "message";
    type Handle = rdma_easy_message;
}

/// A handle as a number, which threads can share.
struct Handle<H>(usize, std::marker::PhantomData<fn() -> H>);

impl<H> Handle<H> {
    fn new(handle: *mut H) -> Self {
        Self(handle.addr(), std::marker::PhantomData)
    }

    fn get(&self) -> *mut H {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// What a callback is told.
pub(crate) enum Report<'a> {
    Request(*mut rdma_easy_request),
    Established { peer: *mut rdma_easy_peer, private_data: &'a [u8] },
    Received { peer: *mut rdma_easy_peer, bytes: &'a [u8] },
    Sent { peer: *mut rdma_easy_peer, message: *mut rdma_easy_message },
    Ended { peer: *mut rdma_easy_peer, reason: Option<Error> },
}

impl Loop {
    pub(crate) fn new(domain: Arc<Domain>, options: Options, program: Program) -> Result<Arc<Self>> {
        let hub = Hub::new(&domain.shard, options)?;
        let state = Mutex::new(State { hub: Some(hub), peers: BTreeMap::new(), waker: None });
        Ok(Arc::new(Self { domain, program, state, dispatching: Mutex::new(()) }))
    }

    fn with<R>(&self, body: impl FnOnce(&mut Hub, &mut State) -> Result<R>) -> Result<R> {
        let mut state = self.state.lock();
        let mut hub = state.hub.take().ok_or_else(freed)?;
        let outcome = body(&mut hub, &mut state);
        state.hub = Some(hub);
        outcome
    }

    /// Returns the port.
    pub(crate) fn listen(&self, host: &str, port: u16, backlog: u32) -> Result<u16> {
        let address = address(host, port)?;
        self.with(|hub, _| Ok(hub.listen(address, backlog)?.port()))
    }

    pub(crate) fn connect(
        self: &Arc<Self>,
        host: &str,
        port: u16,
        data: &[u8],
    ) -> Result<*mut rdma_easy_peer> {
        let address = address(host, port)?;
        self.with(|hub, state| Ok(self.add(state, hub.connect(address, data)?)))
    }

    pub(crate) fn accept(self: &Arc<Self>, request: &Request, data: &[u8]) -> Result<*mut rdma_easy_peer> {
        self.with(|hub, state| Ok(self.add(state, hub.accept(request.take_of_hub()?, data)?)))
    }

    /// Gives out a handle.
    fn add(self: &Arc<Self>, state: &mut State, id: messages::Peer) -> *mut rdma_easy_peer {
        let peer = handle::insert(Arc::new(Peer { of: Arc::downgrade(self), id }));
        state.peers.insert(id, Known { handle: Handle::new(peer), posted: BTreeMap::new() });
        peer
    }

    /// Reports events until there are none, or the time is over with none. Returns their number.
    pub(crate) fn dispatch(&self, timeout: Timeout) -> Result<usize> {
        let Some(_dispatching) = self.dispatching.try_lock() else {
            return Err(Error::new(libc::EBUSY, "a callback or another thread dispatches the loop"));
        };
        let mut timeout = timeout;
        for count in 0..MOST_EVENTS {
            let mut next = poll_fn(|context| {
                let mut state = self.state.lock();
                state.waker = Some(context.waker().clone());
                match &mut state.hub {
                    None => Poll::Ready(None),
                    Some(hub) => Pin::new(&mut hub.next()).poll(context).map(Some),
                }
            });
            match self.domain.wait(&mut next, timeout) {
                // The time is over; or a callback, or another thread, has freed the loop.
                None => return Ok(count),
                Some(None) => return if count > 0 { Ok(count) } else { Err(freed()) },
                Some(Some(event)) => self.report(event),
            }
            timeout = Timeout::from_ms(0);
        }
        Ok(MOST_EVENTS)
    }

    /// Reports one event. The callback may do anything with the loop, but not dispatch it.
    fn report(&self, event: Event) {
        let report = |report: Report<'_>| self.program.report(report);
        let handle_of = |id| self.state.lock().peers.get(&id).map(|known| known.handle.get());
        match event {
            Event::Request(request) => {
                let request = handle::insert(Arc::new(Request::of_hub(request)));
                report(Report::Request(request));
                // If the callback has not answered it, it is rejected here.
                let _ = handle::remove::<Request>(request);
            }
            Event::Established { peer, private_data } => {
                if let Some(peer) = handle_of(peer) {
                    report(Report::Established { peer, private_data: &private_data });
                }
            }
            Event::Message { peer, message } => {
                if let Some(peer) = handle_of(peer) {
                    report(Report::Received { peer, bytes: &message });
                }
            }
            Event::Sent { peer, ticket } => {
                let mut state = self.state.lock();
                let Some(known) = state.peers.get_mut(&peer) else { return };
                let (peer, posted) = (known.handle.get(), known.posted.remove(&ticket));
                drop(state);
                if let Some((handle, message)) = posted {
                    *message.status.lock() = Status::Sent;
                    report(Report::Sent { peer, message: handle.get() });
                }
            }
            Event::Disconnected { peer, reason } => {
                let known = self.state.lock().peers.remove(&peer);
                let Some(known) = known else { return };
                let reason = failure(reason);
                known.end(reason.as_ref());
                report(Report::Ended { peer: known.handle.get(), reason });
                let _ = handle::remove::<Peer>(known.handle.get());
            }
        }
    }

    /// Ends its connections, the handles of their peers, and the call that waits for an event.
    pub(crate) fn close(&self) {
        let (hub, peers, waker) = {
            let mut state = self.state.lock();
            (state.hub.take(), mem::take(&mut state.peers), state.waker.take())
        };
        drop(hub);
        waker.into_iter().for_each(Waker::wake);
        for known in peers.into_values() {
            known.end(None);
            let _ = handle::remove::<Peer>(known.handle.get());
        }
    }
}

impl Known {
    /// What was not sent never will be.
    fn end(&self, reason: Option<&Error>) {
        let unsent = || Error::new(libc::ECANCELED, "the connection ended before the message was sent");
        for (_, message) in self.posted.values() {
            *message.status.lock() = Status::Failed(reason.cloned().unwrap_or_else(unsent));
        }
    }
}

impl Peer {
    fn with<R>(&self, body: impl FnOnce(&mut Hub, &mut State) -> Result<R>) -> Result<R> {
        self.of.upgrade().ok_or_else(freed)?.with(body)
    }

    pub(crate) fn send(
        &self,
        handle: *mut rdma_easy_message,
        message: Arc<Message>,
        length: usize,
    ) -> Result<()> {
        self.with(|hub, state| {
            let gone = || Error::new(libc::ENOTCONN, "there is no connection any more");
            let known = state.peers.get_mut(&self.id).ok_or_else(gone)?;
            let mut status = message.status.lock();
            if matches!(*status, Status::Posted) {
                return Err(message_is_posted());
            }
            let ticket = hub.send_region(self.id, &message.memory, 0..length)?;
            *status = Status::Posted;
            drop(status);
            known.posted.insert(ticket, (Handle::new(handle), message));
            Ok(())
        })
    }

    pub(crate) fn disconnect(&self) -> Result<()> {
        self.with(|hub, _| {
            hub.disconnect(self.id);
            Ok(())
        })
    }

    pub(crate) fn abort(&self) -> Result<()> {
        self.with(|hub, _| {
            hub.abort(self.id);
            Ok(())
        })
    }
}

impl Message {
    pub(crate) fn new(domain: &Domain, size: usize) -> Result<Arc<Self>> {
        let memory = domain.shard.region(size, Access::REMOTE_READ)?;
        Ok(Arc::new(Self { memory, status: Mutex::new(Status::New) }))
    }

    pub(crate) fn status(&self) -> Status {
        self.status.lock().clone()
    }
}

/// Takes the handle of a message back, unless it is posted.
pub(crate) fn free_message(handle: *mut rdma_easy_message) -> Result<()> {
    let message = handle::find::<Message>(handle)?;
    // Nobody posts it meanwhile.
    let status = message.status.lock();
    if matches!(*status, Status::Posted) {
        return Err(message_is_posted());
    }
    handle::remove::<Message>(handle).map(drop)
}

/// Why a connection ended, unless that was in order.
fn failure(reason: Reason) -> Option<Error> {
    match reason {
        Reason::Ended(typed::End::Disconnected) => None,
        Reason::Ended(end) => Some(end.into()),
        Reason::Violation(violation) => Some(Error::new(libc::EPROTO, violation.to_string())),
        Reason::Failed(error) => Some(error.into()),
        other => Some(Error::new(libc::EIO, other.to_string())),
    }
}

fn freed() -> Error {
    Error::new(libc::EBADF, "the event loop was freed")
}

fn message_is_posted() -> Error {
    Error::new(libc::EBUSY, "the message is posted, and neither sent nor failed")
}
