//! Connections, listeners and requests.

use std::ffi::{c_char, c_int, c_void};

use super::arguments::{Out, Room, bytes, required_text, value};
use super::domain::rdma_easy_domain;
use crate::connection::{Connection, count, sizes};
use crate::domain::{Domain, Timeout, address};
use crate::error::call;
use crate::handle;
use crate::listener::{Listener, Request};

/// A connection context: a queue pair with its queues, before, during and after its connection. It connects
/// or accepts once.
pub struct rdma_easy_connection;

/// What takes the requests of peers.
pub struct rdma_easy_listener;

/// A peer's request to connect, until it is answered.
pub struct rdma_easy_request;

/// The sizes of a connection's queues. 0 stands for the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_sizes {
    /// Sends, writes and reads that may be posted and not done; default 64.
    pub sends: u32,
    /// Receives that may be posted and not done; default 64.
    pub receives: u32,
    /// Reads that the device has under way at a time, in each direction; default 16.
    pub reads: u8,
}

/// Makes a connection context. Receives can be posted to it, and have to be before it connects or accepts: an
/// iWARP device breaks the connection when a message finds none. It does not block.
///
/// `sizes`: NULL for the defaults.
/// `connection`: gets the context, which rdma_easy_connection_free frees.
/// Returns 0; -EBADF if it is no domain; the device's error, if it has no queues of this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_connection_create(
    domain: *mut rdma_easy_domain,
    sizes: *const rdma_easy_sizes,
    connection: *mut *mut rdma_easy_connection,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(connection) }?;
        let wanted = match sizes.is_null() {
            true => self::sizes(0, 0, 0),
            false => {
                // SAFETY: as above.
                let rdma_easy_sizes { sends, receives, reads } = unsafe { value(sizes) }?;
                self::sizes(sends, receives, reads)
            }
        };
        let connection = Connection::new(handle::find::<Domain>(domain)?, wanted)?;
        out.set(handle::insert(connection));
        Ok(0)
    })
}

/// Connects to a listener. It blocks until there is a connection or the attempt fails: 10 s at most, if the
/// name of the host is resolved at once.
///
/// `host`: a name or a numeric address; of several addresses, the first. `port`: of the listener.
/// `data`: private data of `length` bytes for the peer; at most 56 go with every device.
/// Returns 0; -ECONNREFUSED if nobody listens, or if the peer rejects: then rdma_easy_private_data has what
/// it said; -ETIMEDOUT; -EADDRNOTAVAIL if the host is unknown; -EISCONN if it has connected before; -EALREADY
/// during an attempt; -EINVAL for too much data; the network's error. After a failed attempt the context is
/// spent: it can only be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_connect(
    connection: *mut rdma_easy_connection,
    host: *const c_char,
    port: u16,
    data: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (host, data) = unsafe { (required_text(host)?, bytes(data, length)?) };
        let connection = handle::find::<Connection>(connection)?;
        let address = address(host, port)?;
        connection.establish(None, |endpoint| Ok(endpoint.connect(address, data)))?;
        Ok(0)
    })
}

/// Listens. It does not block, but for the name of the host.
///
/// `host`: the address to listen on, or its name. `port`: 0 for any free one.
/// `backlog`: requests that may wait to be taken; further ones are cut.
/// `listener`: gets the listener, which rdma_easy_listener_free frees.
/// Returns 0; -EADDRNOTAVAIL; -EADDRINUSE; -EBADF if it is no domain; the system's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_listen(
    domain: *mut rdma_easy_domain,
    host: *const c_char,
    port: u16,
    backlog: u32,
    listener: *mut *mut rdma_easy_listener,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (out, host) = unsafe { (Out::new(listener)?, required_text(host)?) };
        let listener = Listener::open(handle::find::<Domain>(domain)?, host, port, backlog)?;
        out.set(handle::insert(listener));
        Ok(0)
    })
}

/// The port of a listener.
///
/// Returns 1 to 65535; -EBADF if it is no listener.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_listener_port(listener: *mut rdma_easy_listener) -> c_int {
    call(|| Ok(handle::find::<Listener>(listener)?.port().into()))
}

/// Frees a listener. Requests that were not taken are cut. A thread that waits for one returns. It does not
/// block.
///
/// Returns 0; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_listener_free(listener: *mut rdma_easy_listener) -> c_int {
    call(|| {
        handle::remove::<Listener>(listener)?.stop();
        Ok(0)
    })
}

/// Takes the next request of a peer. It blocks until there is one, `timeout_ms` milliseconds at most; without
/// end if that is below 0.
///
/// `request`: gets the request. rdma_easy_accept or rdma_easy_reject answers and frees it.
/// Returns 0; -ETIMEDOUT; -EBADF if it is no listener, or is freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_get_request(
    listener: *mut rdma_easy_listener,
    timeout_ms: c_int,
    request: *mut *mut rdma_easy_request,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(request) }?;
        let request = handle::find::<Listener>(listener)?.next(Timeout::from_ms(timeout_ms))?;
        out.set(handle::insert(request));
        Ok(0)
    })
}

/// The private data of a request. On InfiniBand zeros may follow what the peer has given.
///
/// `data`: gets as many bytes as there is room for: `size` at most.
/// Returns the number of bytes that there are; -EBADF if it is no request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_request_data(
    request: *mut rdma_easy_request,
    data: *mut c_void,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let room = unsafe { Room::new(data, size) }?;
        let request = handle::find::<Request>(request)?;
        room.fill(&request.private_data);
        Ok(count(request.private_data.len()))
    })
}

/// Accepts a request on a connection context, and frees the request. It blocks until there is a connection
/// or the attempt fails, 10 s at most.
///
/// `data`: private data of `length` bytes for the peer; at most 196 go with every device.
/// Returns 0; -ECONNRESET or another error if the peer has left; -EBADF if either is none, or the request is
/// answered; -EISCONN, -EALREADY: then the request is still there. After a failed attempt the context is
/// spent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_accept(
    request: *mut rdma_easy_request,
    connection: *mut rdma_easy_connection,
    data: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let data = unsafe { bytes(data, length) }?;
        let answered = handle::find::<Request>(request)?;
        let outcome = answered.accept(&*handle::find::<Connection>(connection)?, data);
        if answered.is_answered() {
            // Another thread may have freed it: it answers once.
            let _ = handle::remove::<Request>(request);
        }
        outcome.map(|()| 0)
    })
}

/// Rejects a request, and frees it. It does not block.
///
/// `data`: private data of `length` bytes for the peer; at most 148 go with every device, and more is cut.
/// Returns 0; -EBADF if it is no request, or answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_reject(
    request: *mut rdma_easy_request,
    data: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let data = unsafe { bytes(data, length) }?;
        handle::find::<Request>(request)?.reject(data)?;
        handle::remove::<Request>(request).map(|_| 0)
    })
}

/// The private data that the peer has given: with its request on the side that accepted, with its reply or
/// its reject on the side that connected. On InfiniBand zeros may follow it.
///
/// `data`: gets as many bytes as there is room for: `size` at most.
/// Returns the number of bytes that there are; -EBADF if it is no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_private_data(
    connection: *mut rdma_easy_connection,
    data: *mut c_void,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let room = unsafe { Room::new(data, size) }?;
        let found = handle::find::<Connection>(connection)?.private_data();
        room.fill(&found);
        Ok(count(found.len()))
    })
}

/// Begins the orderly end: what was posted is sent, and nothing more can be posted. Messages of the peer
/// still arrive until it ends its side. It does not block: the end makes progress as all else does, in calls
/// that wait, such as rdma_easy_await_disconnect.
///
/// Returns 0, also if the end has begun; -ENOTCONN if there was no connection; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_disconnect(connection: *mut rdma_easy_connection) -> c_int {
    call(|| {
        handle::find::<Connection>(connection)?.current()?.disconnect();
        Ok(0)
    })
}

/// Waits for the end of a connection, whichever side begins it: `timeout_ms` milliseconds at most; without
/// end if that is below 0. After rdma_easy_disconnect, the end means that the peer's host has all that was
/// posted.
///
/// Returns 0 after an orderly end; -ETIMEDOUT if the time is over, or if the peer's host does not answer;
/// -ECONNRESET, -EPROTO, -EREMOTEIO and others if the connection broke, with the reason in
/// rdma_easy_last_error; -ENOTCONN if there was no connection; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_await_disconnect(
    connection: *mut rdma_easy_connection,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        handle::find::<Connection>(connection)?.await_end(Timeout::from_ms(timeout_ms))?;
        Ok(0)
    })
}

/// Frees a connection context. A connection that has not ended is broken: rdma_easy_disconnect and
/// rdma_easy_await_disconnect end it in order. Completions that were not taken are lost, and afterwards its
/// requests use no region. A thread that waits for it returns. It blocks as long as the device still uses
/// memory of requests: no time to speak of, and 1 s at most.
///
/// Returns 0; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_connection_free(connection: *mut rdma_easy_connection) -> c_int {
    call(|| {
        handle::remove::<Connection>(connection)?.close();
        Ok(0)
    })
}
