//! Streams through libfabric's public calls, as an application makes them: this and its children are the only
//! code that knows libfabric.

mod connecting;
pub(crate) mod message;
mod object;
mod opened;
mod sys;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Connector, Interest, Listener, Stream};
use crate::candidate::Rings;
use connecting::{Door, connect};
use object::{Object, check, error_text};
use opened::{Opened, Wanted};

const STREAM: Wanted = Wanted { provider: "rstream", endpoint: sys::FI_EP_SOCK_STREAM, caps: sys::FI_MSG };
const NOT_NOW: isize = -(sys::FI_EAGAIN as isize);

/// The version of the library that runs, as text.
pub(crate) fn version() -> String {
    // SAFETY: takes nothing and only reads a constant.
    let version = unsafe { sys::fi_version() };
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// A connected endpoint.
pub(crate) struct Endpoint {
    endpoint: Arc<Object<sys::fid_ep>>,
    /// What to sleep on, asked for by who sleeps only: one who polls needs none.
    descriptor: Option<i32>,
    opened: Arc<Opened>,
}

impl Endpoint {
    fn new(endpoint: Object<sys::fid_ep>, opened: Arc<Opened>, sleeps: bool) -> Result<Self> {
        let descriptor = sleeps.then(|| endpoint.descriptor()).transpose()?;
        Ok(Self { endpoint: Arc::new(endpoint), descriptor, opened })
    }
}

impl Stream for Endpoint {
    #[inline]
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>> {
        // SAFETY: the endpoint is open; the bytes are `data`'s, and the provider is done with them when it
        // returns.
        let answer = unsafe {
            sys::fi_send(
                self.endpoint.pointer(),
                data.as_ptr().cast(),
                data.len(),
                ptr::null_mut(),
                u64::MAX,
                ptr::null_mut(),
            )
        };
        count("fi_send", answer)
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        // SAFETY: the endpoint is open; at most the buffer's length is written, before the call returns.
        let answer = unsafe {
            sys::fi_recv(
                self.endpoint.pointer(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                ptr::null_mut(),
                u64::MAX,
                ptr::null_mut(),
            )
        };
        count("fi_recv", answer)
    }

    fn finish(&mut self) -> Result<()> {
        // SAFETY: the endpoint is open.
        check("fi_shutdown", unsafe { sys::fi_shutdown(self.endpoint.pointer(), sys::FI_SEND) })
    }

    fn twin(&self) -> Result<Self> {
        let (endpoint, opened) = (Arc::clone(&self.endpoint), Arc::clone(&self.opened));
        Ok(Self { endpoint, descriptor: self.descriptor, opened })
    }

    /// Its descriptor becomes readable for whatever the last call could not do.
    fn sleep(streams: &[Self], _: Interest) -> Result<()> {
        let Some(first) = streams.first() else { return Ok(()) };
        let slept = match streams {
            [stream] => sleep_on(&first.opened, &mut [stream.endpoint.fid()], &mut [stream.readable()?]),
            _ => sleep_on(
                &first.opened,
                &mut streams.iter().map(|stream| stream.endpoint.fid()).collect::<Vec<_>>(),
                &mut streams.iter().map(Self::readable).collect::<Result<Vec<_>>>()?,
            ),
        };
        match slept {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }
}

impl Endpoint {
    fn readable(&self) -> Result<PollFd<'_>> {
        let descriptor = self.descriptor.context("polling was asked for")?;
        // SAFETY: the descriptor is the endpoint's and open as long as it, which the answer borrows.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        Ok(PollFd::from_borrowed_fd(borrowed, PollFlags::IN))
    }
}

/// Sleeps unless libfabric says that there is something already.
fn sleep_on(
    opened: &Opened,
    fids: &mut [*mut sys::fid],
    descriptors: &mut [PollFd<'_>],
) -> rustix::io::Result<()> {
    // SAFETY: the fabric and all the objects are open, and there are as many as told.
    let quiet = unsafe { sys::fi_trywait(opened.fabric(), fids.as_mut_ptr(), fids.len() as i32) } == 0;
    if quiet {
        poll(descriptors, None)?;
    }
    Ok(())
}

#[inline]
fn count(call: &'static str, answer: isize) -> Result<Option<usize>> {
    if answer >= 0 {
        Ok(Some(answer as usize))
    } else if answer == NOT_NOW {
        Ok(None)
    } else {
        bail!("{call}: {}", error_text(answer as i32))
    }
}

/// A passive endpoint of streams.
pub(crate) struct FabricDoor {
    door: Door,
    sleeps: bool,
}

impl FabricDoor {
    pub(crate) fn open(address: IpAddr, rings: Rings, sleeps: bool) -> Result<Self> {
        Ok(Self { door: Door::open(STREAM, address, |passive| set(passive, rings))?, sleeps })
    }
}

impl Listener for FabricDoor {
    type Stream = Endpoint;

    fn target(&self) -> Result<String> {
        self.door.target()
    }

    fn accept(&mut self) -> Result<Endpoint> {
        let (endpoint, _) = self.door.accept(&[], |_| Ok(()))?;
        Endpoint::new(endpoint, Arc::clone(&self.door.opened), self.sleeps)
    }
}

/// Where a passive endpoint of streams is.
pub(crate) struct FabricWay {
    opened: Arc<Opened>,
    rings: Rings,
    sleeps: bool,
}

impl FabricWay {
    pub(crate) fn new(target: SocketAddr, rings: Rings, sleeps: bool) -> Result<Self> {
        Ok(Self { opened: Arc::new(Opened::at(STREAM, target, 0)?), rings, sleeps })
    }
}

impl Connector for FabricWay {
    type Stream = Endpoint;

    fn connect(&mut self) -> Result<Endpoint> {
        let (endpoint, _) = connect(&self.opened, &[], |endpoint| set(endpoint, self.rings))?;
        Endpoint::new(endpoint, Arc::clone(&self.opened), self.sleeps)
    }
}

fn set<T: object::Fid>(endpoint: &Object<T>, rings: Rings) -> Result<()> {
    let options = [
        (sys::FI_OPT_SEND_BUF_SIZE, rings.bytes),
        (sys::FI_OPT_RECV_BUF_SIZE, rings.bytes),
        (sys::FI_OPT_TX_SIZE, rings.messages),
        (sys::FI_OPT_RX_SIZE, rings.messages),
    ];
    for (option, value) in options {
        if let Some(value) = value {
            endpoint.set(option, value)?;
        }
    }
    Ok(())
}
