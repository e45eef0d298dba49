//! The sockets of connection requests that wait for an answer.
//!
//! They stand in the listener's wait set until then: when a peer leaves, the listener closes its socket,
//! whoever has the request. The request finds an empty place and can still be answered, to nobody.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::socket::Socket;
use crate::{Interest, Result, Token, WaitSet};

/// See the module.
pub(super) struct Lobby {
    wait: Arc<WaitSet>,
    sockets: Mutex<BTreeMap<Token, Socket>>,
}

/// The place of one request; dropping it closes the socket.
pub(super) struct Place {
    lobby: Arc<Lobby>,
    token: Token,
}

impl Lobby {
    /// A lobby whose sockets stand in `wait`.
    pub(super) fn new(wait: Arc<WaitSet>) -> Arc<Self> {
        Arc::new(Self { wait, sockets: Mutex::default() })
    }

    /// Takes a socket in. The wait set reports `token` when its peer leaves.
    pub(super) fn admit(self: &Arc<Self>, token: Token, socket: Socket) -> Result<Place> {
        self.wait.add(socket.as_fd(), token, Interest::HangUp)?;
        self.sockets.lock().insert(token, socket);
        Ok(Place { lobby: Arc::clone(self), token })
    }

    /// Gives a socket out, if it is still there.
    pub(super) fn take(&self, token: Token) -> Option<Socket> {
        let socket = self.sockets.lock().remove(&token)?;
        // It is there: `admit` added it.
        let _ = self.wait.remove(socket.as_fd());
        Some(socket)
    }
}

impl Place {
    /// Whether the peer has left.
    pub(super) fn is_empty(&self) -> bool {
        !self.lobby.sockets.lock().contains_key(&self.token)
    }

    /// The socket, unless the peer has left.
    pub(super) fn leave(self) -> Option<Socket> {
        self.lobby.take(self.token)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.take(self.token);
    }
}
