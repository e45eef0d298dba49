//! `struct fi_info`: what an application looks for, and what it gets. See
//! [`fi_getinfo(3)`](https://ofiwg.github.io/libfabric/main/man/fi_getinfo.3.html).
//!
//! [`InfoRef`] reads one of C's, of which every part may be missing; [`Info`] is one of ours, made
//! by the running libfabric, complete, and freed by it. Fields are read one by one and never as a
//! whole struct: libfabric's structs grow at their end, so the caller's may be shorter than ours.

mod attributes;
mod owned;

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ptr::NonNull;

pub use attributes::{
    DomainAttr, DomainAttrMut, EpAttr, EpAttrMut, FabricAttr, FabricAttrMut, RxAttr, RxAttrMut, TxAttr,
    TxAttrMut,
};
pub use owned::{Info, InfoList};

use super::object::AnyFid;
use super::{Result, address, sys};

/// A `struct fi_info` of C's.
#[derive(Debug, Clone, Copy)]
pub struct InfoRef<'a> {
    raw: NonNull<sys::fi_info>,
    call: PhantomData<&'a sys::fi_info>,
}

/// Reads a field of the struct behind a pointer.
macro_rules! field {
    ($self:ident . $field:ident) => {
        // SAFETY: `raw` points to such a struct for the life of the borrow (`from_raw`); the field
        // has been in it since libfabric's first ABI or, where newer, is there by the version
        // that the running libfabric serves.
        unsafe { (*$self.raw.as_ptr()).$field }
    };
}
use field;

impl<'a> InfoRef<'a> {
    /// Of a pointer from C; `None` for a null pointer.
    ///
    /// # Safety
    /// If not null, `info` and what it points to are as `fi_getinfo(3)` says, and stay unchanged
    /// for `'a`.
    pub(super) unsafe fn from_raw(info: *const sys::fi_info) -> Option<Self> {
        NonNull::new(info.cast_mut()).map(|raw| Self { raw, call: PhantomData })
    }

    /// Capabilities, `FI_MSG` and the like.
    #[must_use]
    pub fn caps(self) -> u64 {
        field!(self.caps)
    }

    /// What the application is ready to do (hints), or must (info).
    #[must_use]
    pub fn mode(self) -> u64 {
        field!(self.mode)
    }

    /// `FI_SOCKADDR` and the like.
    #[must_use]
    pub fn addr_format(self) -> u32 {
        field!(self.addr_format)
    }

    /// The local address, if there is one.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what is no IPv4 or IPv6 address.
    pub fn src_addr(self) -> Result<Option<SocketAddr>> {
        let (address, length) = (field!(self.src_addr), field!(self.src_addrlen));
        // SAFETY: null or as many bytes as it says (`from_raw`).
        unsafe { address::read(address, length) }
    }

    /// The peer's address, if there is one.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what is no IPv4 or IPv6 address.
    pub fn dest_addr(self) -> Result<Option<SocketAddr>> {
        let (address, length) = (field!(self.dest_addr), field!(self.dest_addrlen));
        // SAFETY: null or as many bytes as it says (`from_raw`).
        unsafe { address::read(address, length) }
    }

    /// What it refers to: a connection request or a passive endpoint.
    #[must_use]
    pub fn handle(self) -> Option<AnyFid> {
        let handle = field!(self.handle);
        (!handle.is_null()).then_some(AnyFid(handle))
    }

    /// Of the sending side.
    #[must_use]
    pub fn tx_attr(self) -> Option<TxAttr<'a>> {
        let part = field!(self.tx_attr);
        // SAFETY: null or as `fi_getinfo(3)` says (`from_raw`).
        unsafe { TxAttr::of(part) }
    }

    /// Of the receiving side.
    #[must_use]
    pub fn rx_attr(self) -> Option<RxAttr<'a>> {
        let part = field!(self.rx_attr);
        // SAFETY: null or as `fi_getinfo(3)` says (`from_raw`).
        unsafe { RxAttr::of(part) }
    }

    /// Of the endpoint.
    #[must_use]
    pub fn ep_attr(self) -> Option<EpAttr<'a>> {
        let part = field!(self.ep_attr);
        // SAFETY: null or as `fi_getinfo(3)` says (`from_raw`).
        unsafe { EpAttr::of(part) }
    }

    /// Of the domain.
    #[must_use]
    pub fn domain_attr(self) -> Option<DomainAttr<'a>> {
        let part = field!(self.domain_attr);
        // SAFETY: null or as `fi_getinfo(3)` says (`from_raw`).
        unsafe { DomainAttr::of(part) }
    }

    /// Of the fabric.
    #[must_use]
    pub fn fabric_attr(self) -> Option<FabricAttr<'a>> {
        let part = field!(self.fabric_attr);
        // SAFETY: null or as `fi_getinfo(3)` says (`from_raw`).
        unsafe { FabricAttr::of(part) }
    }

    /// A copy that we own. Its handle is the same.
    ///
    /// # Errors
    /// `-FI_ENOMEM`; `-FI_EINVAL` if a part is missing.
    pub fn to_owned(self) -> Result<Info> {
        // SAFETY: `raw` is as `fi_getinfo(3)` says (`from_raw`).
        let copy = unsafe { sys::fi_dupinfo(self.raw.as_ptr()) };
        // SAFETY: `fi_dupinfo` answers null or an info that is ours alone.
        unsafe { Info::from_raw(copy) }
    }
}
