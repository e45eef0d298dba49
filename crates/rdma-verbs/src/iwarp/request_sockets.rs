//! The sockets of connection requests that the application has neither accepted nor rejected.
//!
//! Each stays in the listener's wait set until then. If the peer closes the connection first, the listener
//! closes the socket, even though the application holds the request. The request remains valid: accepting or
//! rejecting it finds no socket.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::socket::Socket;
use crate::{Interest, Result, Token, WaitSet};

/// The sockets of one listener's requests.
pub(super) struct RequestSockets {
    wait: Arc<WaitSet>,
    sockets: Mutex<BTreeMap<Token, Socket>>,
}

/// The socket of one request. Dropping it closes the socket.
pub(super) struct RequestSocket {
    sockets: Arc<RequestSockets>,
    token: Token,
}

impl RequestSockets {
    /// Sockets that are added to `wait`.
    pub(super) fn new(wait: Arc<WaitSet>) -> Arc<Self> {
        Arc::new(Self { wait, sockets: Mutex::default() })
    }

    /// Adds a socket. The wait set reports `token` when the peer hangs up.
    pub(super) fn add(self: &Arc<Self>, token: Token, socket: Socket) -> Result<RequestSocket> {
        self.wait.add(socket.as_fd(), token, Interest::HangUp)?;
        self.sockets.lock().insert(token, socket);
        Ok(RequestSocket { sockets: Arc::clone(self), token })
    }

    /// Removes a socket and returns it, if it is still there.
    pub(super) fn take(&self, token: Token) -> Option<Socket> {
        let socket = self.sockets.lock().remove(&token)?;
        // It cannot fail: `add` added the socket to the set.
        let _ = self.wait.remove(socket.as_fd());
        Some(socket)
    }
}

impl RequestSocket {
    /// Whether the listener has closed it, because the peer hung up.
    pub(super) fn is_closed(&self) -> bool {
        !self.sockets.sockets.lock().contains_key(&self.token)
    }

    /// The socket itself, unless the listener has closed it.
    pub(super) fn into_socket(self) -> Option<Socket> {
        self.sockets.take(self.token)
    }
}

impl Drop for RequestSocket {
    fn drop(&mut self) {
        self.sockets.take(self.token);
    }
}
