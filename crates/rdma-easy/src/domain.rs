//! Domains: what a program opens first, on one device.

use std::ffi::c_int;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rdma_verbs::typed::{Pool, Remote, Shard};
use rdma_verbs::{Access, AnyDevice, Device as _, DeviceInfo, devices};

use crate::error::{Error, Result};
use crate::handle::Object;

/// Advertisements of a domain that can be on their way at a time, and those that it can wait for.
const ADVERTS: u32 = 256;

/// A shard, and what its connections share.
pub(crate) struct Domain {
    pub(crate) shard: Shard,
    /// Buffers of advertisements.
    pub(crate) adverts: Pool,
    /// What the target of a read needs on this device.
    pub(crate) read_target: Access,
}

impl Object for Domain {
    const NAME: &'static str = "domain";
    type Handle = crate::ffi::rdma_easy_domain;
}

/// Opens a device of this machine.
pub(crate) fn open_device(name: Option<&str>) -> Result<AnyDevice> {
    let Some(name) = name else { return Ok(DeviceInfo::Embedded.open()?) };
    match devices().iter().find(|device| device.name() == name) {
        Some(device) => Ok(device.open()?),
        None => Err(Error::new(libc::ENODEV, format!("there is no RDMA device {name}"))),
    }
}

impl Domain {
    pub(crate) fn open(name: Option<&str>) -> Result<Arc<Self>> {
        let device = open_device(name)?;
        let read_target = match device.attributes().private_read_sinks {
            true => Access::LOCAL_WRITE,
            false => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        };
        let shard = Shard::new(device)?;
        let adverts = shard.pool(ADVERTS, Remote::ADVERT as u32)?;
        Ok(Arc::new(Self { shard, adverts, read_target }))
    }

    /// Waits for a future, as long as a time-out of C says. `None` after that; the future can go on.
    pub(crate) fn wait<F: Future + Unpin>(&self, future: &mut F, timeout: Timeout) -> Option<F::Output> {
        match timeout.deadline {
            None => Some(self.shard.block_on(future)),
            Some(deadline) => {
                // A time-out of 0 looks what there is.
                let _ = self.shard.drive();
                self.shard.block_on_until(future, deadline)
            }
        }
    }
}

/// How long a call waits.
#[derive(Clone, Copy)]
pub(crate) struct Timeout {
    /// `None`: without end.
    pub(crate) deadline: Option<Instant>,
}

impl Timeout {
    /// From milliseconds; below 0: without end.
    pub(crate) fn from_ms(ms: c_int) -> Self {
        let deadline = u64::try_from(ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        Self { deadline }
    }

    /// What a call answers whose time is over.
    pub(crate) fn error(what: &str) -> Error {
        Error::new(libc::ETIMEDOUT, format!("the time is over, and there is no {what}"))
    }
}

/// The first address of a host.
pub(crate) fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let resolved = (host, port).to_socket_addrs();
    resolved
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| Error::new(libc::EADDRNOTAVAIL, format!("there is no address of {host}")))
}

/// Polls a future once, for what it does before it waits.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
