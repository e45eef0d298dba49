//! `struct fi_info`: the hints of an application, and the infos that it receives. See
//! [`fi_getinfo(3)`](https://ofiwg.github.io/libfabric/main/man/fi_getinfo.3.html).
//!
//! [`InfoRef`] reads an info of C, of which every part may be missing. [`Info`] is an info of the provider:
//! the running libfabric allocates it with all parts and frees it. Fields are read one by one and never as a
//! whole struct: libfabric's structs grow at their end, so the caller's struct may be shorter than the one of
//! the headers.

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

/// A `struct fi_info` of C.
#[derive(Debug, Clone, Copy)]
pub struct InfoRef<'a> {
    raw: NonNull<sys::fi_info>,
    call: PhantomData<&'a sys::fi_info>,
}

/// Reads a field of the struct behind a pointer.
macro_rules! field {
    ($self:ident . $field:ident) => {
        // SAFETY: `raw` points to such a struct for the lifetime of the borrow (`from_raw`). The field
        // exists since libfabric's first ABI or, if it is newer, in the version of the running
        // libfabric.
        unsafe { (*$self.raw.as_ptr()).$field }
    };
}
use field;

impl<'a> InfoRef<'a> {
    /// Wraps a pointer from C. `None` for a null pointer.
    ///
    /// # Safety
    /// If not null, `info` and the memory that it refers to are valid by `fi_getinfo(3)`, and unchanged
    /// for `'a`.
    pub(super) unsafe fn from_raw(info: *const sys::fi_info) -> Option<Self> {
        NonNull::new(info.cast_mut()).map(|raw| Self { raw, call: PhantomData })
    }

    /// Capabilities, such as `FI_MSG`.
    #[must_use]
    pub fn caps(self) -> u64 {
        field!(self.caps)
    }

    /// Modes that the application supports (hints), or that the provider requires (info).
    #[must_use]
    pub fn mode(self) -> u64 {
        field!(self.mode)
    }

    /// Address format, such as `FI_SOCKADDR`.
    #[must_use]
    pub fn addr_format(self) -> u32 {
        field!(self.addr_format)
    }

    /// The local address, if there is one.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an address that is neither IPv4 nor IPv6.
    pub fn src_addr(self) -> Result<Option<SocketAddr>> {
        let (address, length) = (field!(self.src_addr), field!(self.src_addrlen));
        // SAFETY: null, or `length` bytes by `fi_getinfo(3)` (`from_raw`).
        unsafe { address::read(address, length) }
    }

    /// The peer's address, if there is one.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an address that is neither IPv4 nor IPv6.
    pub fn dest_addr(self) -> Result<Option<SocketAddr>> {
        let (address, length) = (field!(self.dest_addr), field!(self.dest_addrlen));
        // SAFETY: null, or `length` bytes by `fi_getinfo(3)` (`from_raw`).
        unsafe { address::read(address, length) }
    }

    /// The handle of a connection request or a passive endpoint.
    #[must_use]
    pub fn handle(self) -> Option<AnyFid> {
        let handle = field!(self.handle);
        (!handle.is_null()).then_some(AnyFid(handle))
    }

    /// Attributes of the sending side.
    #[must_use]
    pub fn tx_attr(self) -> Option<TxAttr<'a>> {
        let part = field!(self.tx_attr);
        // SAFETY: null, or valid by `fi_getinfo(3)` (`from_raw`).
        unsafe { TxAttr::of(part) }
    }

    /// Attributes of the receiving side.
    #[must_use]
    pub fn rx_attr(self) -> Option<RxAttr<'a>> {
        let part = field!(self.rx_attr);
        // SAFETY: null, or valid by `fi_getinfo(3)` (`from_raw`).
        unsafe { RxAttr::of(part) }
    }

    /// Attributes of the endpoint.
    #[must_use]
    pub fn ep_attr(self) -> Option<EpAttr<'a>> {
        let part = field!(self.ep_attr);
        // SAFETY: null, or valid by `fi_getinfo(3)` (`from_raw`).
        unsafe { EpAttr::of(part) }
    }

    /// Attributes of the domain.
    #[must_use]
    pub fn domain_attr(self) -> Option<DomainAttr<'a>> {
        let part = field!(self.domain_attr);
        // SAFETY: null, or valid by `fi_getinfo(3)` (`from_raw`).
        unsafe { DomainAttr::of(part) }
    }

    /// Attributes of the fabric.
    #[must_use]
    pub fn fabric_attr(self) -> Option<FabricAttr<'a>> {
        let part = field!(self.fabric_attr);
        // SAFETY: null, or valid by `fi_getinfo(3)` (`from_raw`).
        unsafe { FabricAttr::of(part) }
    }

    /// An owned copy, with the same handle.
    ///
    /// # Errors
    /// `-FI_ENOMEM`; `-FI_EINVAL` if a part is missing.
    pub fn to_owned(self) -> Result<Info> {
        // SAFETY: `raw` is valid by `fi_getinfo(3)` (`from_raw`).
        let copy = unsafe { sys::fi_dupinfo(self.raw.as_ptr()) };
        // SAFETY: `fi_dupinfo` returns null or a new info.
        unsafe { Info::from_raw(copy) }
    }
}
