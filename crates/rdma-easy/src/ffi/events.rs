//! Event loops, peers and messages.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use rdma_verbs::typed::messages::Options;

use super::arguments::{Out, bytes, required_text, value};
use super::connection::rdma_easy_request;
use super::domain::rdma_easy_domain;
use crate::connection::count;
use crate::domain::{Domain, Timeout};
use crate::error::{Error, call};
use crate::events::{self, Loop, Message, Peer, Report, Status};
use crate::handle;
use crate::listener::Request;

/// An event loop: it listens and connects, and tells the program by callbacks what happens. Messages arrive
/// whole and in order, whatever their length, and no receives have to be posted. Its peers have to be event
/// loops too, or hubs of the Rust crate rdma-verbs.
pub struct rdma_easy_loop;

/// A connection of an event loop. Its handle is valid until the callback `ended` returns.
pub struct rdma_easy_peer;

/// A message to send: memory, and whether it was sent.
pub struct rdma_easy_message;

/// What an event loop tells the program, in calls that rdma_easy_loop_dispatch makes. Each may be NULL. A
/// callback may call all functions but rdma_easy_loop_dispatch, and must return: no longjmp, no exception.
/// `user` is what rdma_easy_loop_create has got.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_callbacks {
    /// A peer wants to connect. rdma_easy_loop_accept or rdma_easy_reject answers; if neither is called, the
    /// request is rejected. Afterwards its handle is invalid.
    pub request: Option<unsafe extern "C" fn(request: *mut rdma_easy_request, user: *mut c_void)>,
    /// There is a connection: messages can be sent. `data` is the peer's private data, valid in the call.
    pub established: Option<
        unsafe extern "C" fn(
            peer: *mut rdma_easy_peer,
            data: *const c_void,
            length: usize,
            user: *mut c_void,
        ),
    >,
    /// A message has arrived. Its bytes are valid in the call.
    pub received: Option<
        unsafe extern "C" fn(
            peer: *mut rdma_easy_peer,
            bytes: *const c_void,
            length: usize,
            user: *mut c_void,
        ),
    >,
    /// A message was sent: its memory can be used again, or freed.
    pub sent: Option<
        unsafe extern "C" fn(peer: *mut rdma_easy_peer, message: *mut rdma_easy_message, user: *mut c_void),
    >,
    /// The connection is no more, or could not be made; messages that were not sent have failed. `error`: 0
    /// after an orderly end, or a negative errno, of which rdma_easy_last_error has the text.
    pub ended: Option<unsafe extern "C" fn(peer: *mut rdma_easy_peer, error: c_int, user: *mut c_void)>,
}

/// What each connection of an event loop has. 0 stands for the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_loop_sizes {
    /// Length in bytes of the longest message that this side takes; default 1048576.
    pub longest: u32,
    /// Length in bytes of the longest message that is copied to a buffer and sent at once; default 4088. A
    /// longer one stays in its memory until the peer's device has read it.
    pub eager: u32,
    /// Messages that may be under way to this side; default 16.
    pub window: u16,
    /// Messages that may be posted to a peer and not sent; default 32.
    pub queue: u32,
}

/// Makes an event loop on a domain. It does not block.
///
/// `sizes`: NULL for the defaults. `callbacks`: copied. `user`: for the callbacks.
/// `event_loop`: gets the loop, which rdma_easy_loop_free frees.
/// Returns 0; -EINVAL for sizes outside their limits; -EBADF if it is no domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_loop_create(
    domain: *mut rdma_easy_domain,
    sizes: *const rdma_easy_loop_sizes,
    callbacks: *const rdma_easy_callbacks,
    user: *mut c_void,
    event_loop: *mut *mut rdma_easy_loop,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (out, callbacks) = unsafe { (Out::new(event_loop)?, value(callbacks)?) };
        let mut options = Options::default();
        if !sizes.is_null() {
            // SAFETY: as above.
            let sizes = unsafe { value(sizes) }?;
            let or = |wanted, default| if wanted == 0 { default } else { wanted };
            options.longest = or(sizes.longest, options.longest);
            options.eager = or(sizes.eager, options.eager.min(options.longest));
            options.window = if sizes.window == 0 { options.window } else { sizes.window };
            options.queue = or(sizes.queue, options.queue);
        }
        let domain = handle::find::<Domain>(domain)?;
        let program = Program { callbacks, user: user.expose_provenance() };
        out.set(handle::insert(Loop::new(domain, options, program)?));
        Ok(0)
    })
}

/// Frees an event loop. Its connections are ended in order, without waiting for that, and the handles of its
/// peers are invalid. Messages that were not sent have failed. It does not block.
///
/// Returns 0; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_loop_free(event_loop: *mut rdma_easy_loop) -> c_int {
    call(|| {
        handle::remove::<Loop>(event_loop)?.close();
        Ok(0)
    })
}

/// Listens, as long as the loop lives. It does not block, but for the name of the host.
///
/// `host`: the address to listen on, or its name. `port`: 0 for any free one.
/// `backlog`: requests that may wait to be reported; further ones are cut.
/// Returns the port, 1 to 65535; -EADDRNOTAVAIL; -EADDRINUSE; -EBADF if it is no loop; the system's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_loop_listen(
    event_loop: *mut rdma_easy_loop,
    host: *const c_char,
    port: u16,
    backlog: u32,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let host = unsafe { required_text(host) }?;
        Ok(handle::find::<Loop>(event_loop)?.listen(host, port, backlog)?.into())
    })
}

/// Begins to connect to an event loop that listens. `established` or `ended` tells the outcome. It does not
/// block, but for the name of the host.
///
/// `host`, `port`: as for rdma_easy_connect.
/// `data`: private data of `length` bytes for the peer; at most 44 go with every device.
/// `peer`: gets the peer.
/// Returns 0; -EADDRNOTAVAIL if the host is unknown; -EINVAL for too much data; -EBADF if it is no loop; the
/// device's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_loop_connect(
    event_loop: *mut rdma_easy_loop,
    host: *const c_char,
    port: u16,
    data: *const c_void,
    length: usize,
    peer: *mut *mut rdma_easy_peer,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (out, host, data) = unsafe { (Out::new(peer)?, required_text(host)?, bytes(data, length)?) };
        out.set(handle::find::<Loop>(event_loop)?.connect(host, port, data)?);
        Ok(0)
    })
}

/// Accepts a request that the callback `request` has got. `established` or `ended` tells the outcome. It does
/// not block.
///
/// `data`: private data of `length` bytes for the peer; at most 184 go with every device.
/// `peer`: gets the peer.
/// Returns 0; -EBADF if it is no loop, or no request, or answered; -EINVAL for too much data, or for a
/// request of rdma_easy_get_request; the device's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_loop_accept(
    event_loop: *mut rdma_easy_loop,
    request: *mut rdma_easy_request,
    data: *const c_void,
    length: usize,
    peer: *mut *mut rdma_easy_peer,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (out, data) = unsafe { (Out::new(peer)?, bytes(data, length)?) };
        let event_loop = handle::find::<Loop>(event_loop)?;
        out.set(event_loop.accept(&*handle::find::<Request>(request)?, data)?);
        Ok(0)
    })
}

/// Makes progress and calls the callbacks, for at most 256 events. It blocks until there is one, `timeout_ms`
/// milliseconds at most; without end if that is below 0. Then it reports what there is without blocking.
///
/// A program that waits by the descriptor of the domain calls this with a time-out of 0 before it waits, and
/// whenever the descriptor is readable.
///
/// Returns the number of events, 0 if the time is over; -EBUSY in a callback, or while another thread does
/// the same; -EBADF if it is no loop.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_loop_dispatch(event_loop: *mut rdma_easy_loop, timeout_ms: c_int) -> c_int {
    call(|| Ok(count(handle::find::<Loop>(event_loop)?.dispatch(Timeout::from_ms(timeout_ms))?)))
}

/// Begins the orderly end of a connection: it ends when the peer has everything that was sent. Nothing more
/// can be sent, and messages of the peer may still arrive until `ended` is called. It does not block.
///
/// Returns 0; -EBADF if it is no peer.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_peer_disconnect(peer: *mut rdma_easy_peer) -> c_int {
    call(|| handle::find::<Peer>(peer)?.disconnect().map(|()| 0))
}

/// Breaks a connection, or ends the attempt to make one. `ended` reports it. It does not block.
///
/// Returns 0; -EBADF if it is no peer.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_peer_abort(peer: *mut rdma_easy_peer) -> c_int {
    call(|| handle::find::<Peer>(peer)?.abort().map(|()| 0))
}

/// Posts a message to a peer. Until it is sent or has failed, its memory must not be changed. It does not
/// block.
///
/// `length`: bytes of the message, from the beginning of its memory.
/// Returns 0; -EAGAIN if too many are posted: `sent` tells when there is room again; -EINVAL if the peer
/// takes no message of this length; -ERANGE if its memory is not so long; -EBUSY if it is posted; -ENOTCONN
/// if there is no connection yet, or its end has begun; -EXDEV if it is of another domain; -EBADF if either
/// is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_peer_send(
    peer: *mut rdma_easy_peer,
    message: *mut rdma_easy_message,
    length: usize,
) -> c_int {
    call(|| {
        let peer = handle::find::<Peer>(peer)?;
        peer.send(message, handle::find::<Message>(message)?, length)?;
        Ok(0)
    })
}

/// A message is new.
pub const RDMA_EASY_NEW: c_int = 0;
/// A message is posted: its memory must not be changed.
pub const RDMA_EASY_POSTED: c_int = 1;
/// A message was sent: its memory can be used again.
pub const RDMA_EASY_SENT: c_int = 2;

/// Allocates a message of at most `size` bytes, zeros at first. It can be sent again and again, one time
/// after the other. It does not block.
///
/// `message`: gets the message, which rdma_easy_message_free frees.
/// Returns 0; -EINVAL for a size of 0, or above 4294967295; -ENOMEM; -EBADF if it is no domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_message_create(
    domain: *mut rdma_easy_domain,
    size: usize,
    message: *mut *mut rdma_easy_message,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(message) }?;
        out.set(handle::insert(Message::new(&*handle::find::<Domain>(domain)?, size)?));
        Ok(0)
    })
}

/// The memory of a message, valid until it is freed.
///
/// Returns NULL if it is no message.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_message_base(message: *mut rdma_easy_message) -> *mut c_void {
    let mut base = ptr::null_mut();
    call(|| {
        base = handle::find::<Message>(message)?.memory.base().as_ptr().cast();
        Ok(0)
    });
    base
}

/// What became of a message.
///
/// Returns RDMA_EASY_NEW, RDMA_EASY_POSTED, RDMA_EASY_SENT; a negative errno, with a text, if it failed;
/// -EBADF if it is no message.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_message_status(message: *mut rdma_easy_message) -> c_int {
    call(|| match handle::find::<Message>(message)?.status() {
        Status::New => Ok(RDMA_EASY_NEW),
        Status::Posted => Ok(RDMA_EASY_POSTED),
        Status::Sent => Ok(RDMA_EASY_SENT),
        Status::Failed(error) => Err(error),
    })
}

/// Frees a message and its memory. It does not block.
///
/// Returns 0; -EBUSY if it is posted; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_message_free(message: *mut rdma_easy_message) -> c_int {
    call(|| events::free_message(message).map(|()| 0))
}

/// What a loop calls.
pub(crate) struct Program {
    callbacks: rdma_easy_callbacks,
    /// The address that C has given.
    user: usize,
}

impl Program {
    /// Makes the call for an event.
    pub(crate) fn report(&self, report: Report<'_>) {
        let user = ptr::with_exposed_provenance_mut(self.user);
        let rdma_easy_callbacks { request, established, received, sent, ended } = self.callbacks;
        // SAFETY: of all calls here: the program has given a function of this type, which returns as the
        // header asks. Slices are valid for the call; handles are never dereferenced.
        unsafe {
            match report {
                Report::Request(handle) => request.map(|request| request(handle, user)),
                Report::Established { peer, private_data: data } => {
                    established.map(|established| established(peer, data.as_ptr().cast(), data.len(), user))
                }
                Report::Received { peer, bytes } => {
                    received.map(|received| received(peer, bytes.as_ptr().cast(), bytes.len(), user))
                }
                Report::Sent { peer, message } => sent.map(|sent| sent(peer, message, user)),
                Report::Ended { peer, reason } => {
                    let error = reason.map_or(0, Error::keep);
                    ended.map(|ended| ended(peer, error, user))
                }
            }
        };
    }
}
