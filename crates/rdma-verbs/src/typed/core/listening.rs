//! Listeners, and the requests that nobody has taken.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::{Core, Source};
use crate::typed::TrustedDevice;
use crate::typed::waiters::Waiters;
use crate::{EventTarget, Listener, Result, Token};

/// A listener, and the requests that nobody has taken.
pub(in crate::typed) struct Listening<D: TrustedDevice> {
    /// `None` when it has stopped.
    pub(in crate::typed) listener: Option<D::Listener>,
    token: Token,
    pub(in crate::typed) requests: VecDeque<D::Request>,
    backlog: usize,
    pub(in crate::typed) watchers: Waiters,
}

impl<D: TrustedDevice> Core<D> {
    /// Listens. Returns the index of the listener, and its address with the actual port.
    pub(in crate::typed) fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<(usize, SocketAddr)> {
        let target = EventTarget::new(&self.events);
        let token = target.token;
        let listener = self.device.listen(address, backlog, &self.options, target)?;
        let address = listener.local_address();
        let (requests, watchers) = (VecDeque::new(), Waiters::default());
        let backlog = backlog as usize;
        let listener = Some(listener);
        let index = self.listeners.insert(Listening { listener, token, requests, backlog, watchers });
        self.sources.insert(token, Source::Listener(index));
        self.kick.set(true);
        Ok((index, address))
    }

    /// Cuts the requests that nobody has taken, and those that come.
    pub(in crate::typed) fn stop_listening(&mut self, index: usize) {
        if let Some(listening) = self.listeners.get_mut(index) {
            self.sources.remove(&listening.token);
            listening.listener = None;
            listening.requests.clear();
            listening.watchers.wake(&mut self.woken);
        }
    }

    /// Does so, and forgets the listener.
    pub(in crate::typed) fn remove_listener(&mut self, index: usize) {
        self.stop_listening(index);
        self.listeners.try_remove(index);
    }

    /// Takes over the requests of a listener. Those that its backlog has no room for are cut.
    pub(in crate::typed) fn poll_listener(&mut self, index: usize) {
        let Some(listening) = self.listeners.get_mut(index) else { return };
        while let Some(request) = listening.listener.as_mut().and_then(Listener::poll) {
            if listening.requests.len() < listening.backlog {
                listening.requests.push_back(request);
            }
            listening.watchers.wake(&mut self.woken);
        }
    }
}
