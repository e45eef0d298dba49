//! Connecting endpoints of any type: both sides, one connection after the other.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, bail};

use super::object::{Info, Object, check};
use super::opened::{ConnectionData, Event, Opened, Wanted};
use super::sys;

/// A passive endpoint that listens.
pub(super) struct Door {
    passive: Object<sys::fid_pep>,
    pub(super) opened: Arc<Opened>,
    /// Read while another connection was waited for.
    requests: VecDeque<(Info, ConnectionData)>,
}

impl Door {
    /// Listens after `prepare`.
    pub(super) fn open(
        wanted: Wanted,
        address: IpAddr,
        prepare: impl FnOnce(&Object<sys::fid_pep>) -> Result<()>,
    ) -> Result<Self> {
        let opened = Arc::new(Opened::at(wanted, SocketAddr::new(address, 0), sys::FI_SOURCE)?);
        let passive = opened.passive_endpoint()?;
        prepare(&passive)?;
        // SAFETY: the passive endpoint is open.
        check("fi_listen", unsafe { sys::fi_listen(passive.pointer()) })?;
        Ok(Self { passive, opened, requests: VecDeque::new() })
    }

    /// The port.
    pub(super) fn target(&self) -> Result<String> {
        // The port of an IPv4 or IPv6 address is at the same place.
        let mut address = [0_u8; 128];
        let mut length = address.len();
        // SAFETY: the object is open; at most `length` bytes are written.
        check("fi_getname", unsafe {
            sys::fi_getname(self.passive.fid(), address.as_mut_ptr().cast(), &raw mut length)
        })?;
        Ok(u16::from_be_bytes([address[2], address[3]]).to_string())
    }

    /// Waits for the next request, opens an endpoint for it, and accepts after `prepare`. Answers the other
    /// side's data as well.
    pub(super) fn accept(
        &mut self,
        data: &[u8],
        prepare: impl FnOnce(&Object<sys::fid_ep>) -> Result<()>,
    ) -> Result<(Object<sys::fid_ep>, ConnectionData)> {
        let (request, theirs) = loop {
            if let Some(request) = self.requests.pop_front() {
                break request;
            }
            self.read_event()?;
        };
        let endpoint = self.opened.endpoint(&request)?;
        prepare(&endpoint)?;
        // SAFETY: the endpoint was opened from a request that was not answered yet; the data is copied.
        check("fi_accept", unsafe { sys::fi_accept(endpoint.pointer(), data.as_ptr().cast(), data.len()) })?;
        while !self.read_event()? {}
        Ok((endpoint, theirs))
    }

    /// Waits for an event. Answers whether the one connection stands that was accepted.
    fn read_event(&mut self) -> Result<bool> {
        match self.opened.event()? {
            Event::Connected(_) => Ok(true),
            Event::Request(request, data) => {
                self.requests.push_back((request, data));
                Ok(false)
            }
        }
    }
}

/// Opens an endpoint and connects it after `prepare`. Answers the other side's data as well.
pub(super) fn connect(
    opened: &Opened,
    data: &[u8],
    prepare: impl FnOnce(&Object<sys::fid_ep>) -> Result<()>,
) -> Result<(Object<sys::fid_ep>, ConnectionData)> {
    let info = opened.info();
    let endpoint = opened.endpoint(info)?;
    prepare(&endpoint)?;
    // SAFETY: the endpoint is open, the address is that of the info it was opened from, and the data is
    // copied.
    check("fi_connect", unsafe {
        sys::fi_connect(endpoint.pointer(), (*info.pointer()).dest_addr, data.as_ptr().cast(), data.len())
    })?;
    let Event::Connected(theirs) = opened.event()? else { bail!("an event that is no connection") };
    Ok((endpoint, theirs))
}
