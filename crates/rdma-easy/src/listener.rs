//! Listeners and the requests of peers.

use std::sync::Arc;

use parking_lot::Mutex;
use rdma_verbs::typed::{self, messages};

use crate::connection::Connection;
use crate::domain::{Domain, Timeout, address};
use crate::error::{Error, Result};
use crate::handle::Object;

/// A listener of a domain.
pub(crate) struct Listener {
    domain: Arc<Domain>,
    listener: typed::Listener,
}

/// A request to connect, until it is answered. What nobody answers is cut, or rejected if it is a hub's.
pub(crate) struct Request {
    asked: Mutex<Option<Asked>>,
    pub(crate) private_data: Vec<u8>,
}

/// Who was asked.
enum Asked {
    Listener(typed::Incoming),
    Hub(messages::Request),
}

impl Object for Listener {
    const NAME: &'static str = "listener";
    type Handle = crate::ffi::rdma_easy_listener;
}

impl Object for Request {
    const NAME: &'static str = "request";
    type Handle = crate::ffi::rdma_easy_request;
}

impl Listener {
    pub(crate) fn open(domain: Arc<Domain>, host: &str, port: u16, backlog: u32) -> Result<Arc<Self>> {
        let listener = domain.shard.listen(address(host, port)?, backlog)?;
        Ok(Arc::new(Self { domain, listener }))
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_address().port()
    }

    /// Stops listening. Threads that wait for a request return.
    pub(crate) fn stop(&self) {
        self.listener.stop();
    }

    pub(crate) fn next(&self, timeout: Timeout) -> Result<Arc<Request>> {
        let mut next = self.listener.next();
        let Some(incoming) = self.domain.wait(&mut next, timeout) else {
            return Err(Timeout::error("request"));
        };
        let incoming = incoming?;
        let private_data = incoming.private_data().to_vec();
        Ok(Arc::new(Request { asked: Mutex::new(Some(Asked::Listener(incoming))), private_data }))
    }
}

impl Request {
    /// A request that a hub has reported.
    pub(crate) fn of_hub(request: messages::Request) -> Self {
        let private_data = request.private_data().to_vec();
        Self { asked: Mutex::new(Some(Asked::Hub(request))), private_data }
    }

    /// The right to answer a listener's request, which there is once.
    fn take(&self) -> Result<typed::Incoming> {
        let mut asked = self.asked.lock();
        match asked.take() {
            Some(Asked::Listener(incoming)) => Ok(incoming),
            None => Err(answered()),
            other => {
                *asked = other;
                Err(Error::new(libc::EINVAL, "the request is one of an event loop"))
            }
        }
    }

    /// The right to answer a hub's request, which there is once.
    pub(crate) fn take_of_hub(&self) -> Result<messages::Request> {
        let mut asked = self.asked.lock();
        match asked.take() {
            Some(Asked::Hub(request)) => Ok(request),
            None => Err(answered()),
            other => {
                *asked = other;
                Err(Error::new(libc::EINVAL, "the request is one of a listener"))
            }
        }
    }

    pub(crate) fn accept(&self, connection: &Connection, data: &[u8]) -> Result<()> {
        connection.establish(Some(&self.private_data), |endpoint| match self.take() {
            Ok(incoming) => Ok(incoming.accept(endpoint, data)),
            Err(error) => Err((endpoint, error)),
        })
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.asked.lock().is_none()
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result<()> {
        match self.asked.lock().take().ok_or_else(answered)? {
            Asked::Listener(incoming) => incoming.reject(data),
            Asked::Hub(request) => request.reject(data),
        }
        Ok(())
    }
}

fn answered() -> Error {
    Error::new(libc::EBADF, "the request was answered")
}
