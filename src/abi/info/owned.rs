//! Infos of the provider. The running libfabric allocates them, because its struct may be longer than that of
//! the headers, and frees them, either here or when the application has received them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use socket2::SockAddr;

use super::{DomainAttrMut, EpAttrMut, FabricAttrMut, InfoRef, RxAttrMut, TxAttrMut};
use crate::abi::object::AnyFid;
use crate::abi::{Errno, Result, sys};

/// An owned `struct fi_info` with all parts.
#[derive(Debug)]
pub struct Info(NonNull<sys::fi_info>);

// SAFETY: owns the struct and the memory that it points to, except the handle, which is only an
// address. Memory of `malloc` is not tied to a thread.
unsafe impl Send for Info {}
// SAFETY: as above; the struct changes only through an exclusive reference.
unsafe impl Sync for Info {}

impl Info {
    /// Creates an info with no field set.
    ///
    /// # Errors
    /// `-FI_ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: `fi_dupinfo(NULL)` returns null or a new info with all parts.
        unsafe { Self::from_raw(sys::fi_dupinfo(ptr::null())) }
    }

    /// Takes ownership of an info of `fi_dupinfo`.
    ///
    /// # Errors
    /// `-FI_ENOMEM` for a null pointer, `-FI_EINVAL` if a part is missing.
    ///
    /// # Safety
    /// `raw` is null, or an info of `fi_dupinfo` that nothing else refers to.
    pub(super) unsafe fn from_raw(raw: *mut sys::fi_info) -> Result<Self> {
        let info = Self(NonNull::new(raw).ok_or(Errno::ENOMEM)?);
        let parts = info.as_ref();
        let complete = parts.tx_attr().is_some()
            && parts.rx_attr().is_some()
            && parts.ep_attr().is_some()
            && parts.domain_attr().is_some()
            && parts.fabric_attr().is_some();
        if complete { Ok(info) } else { Err(Errno::EINVAL) }
    }

    /// A reference that reads the info.
    #[must_use]
    pub fn as_ref(&self) -> InfoRef<'_> {
        InfoRef { raw: self.0, call: PhantomData }
    }

    /// Sets [`InfoRef::caps`].
    pub fn set_caps(&mut self, caps: u64) {
        self.fields().caps = caps;
    }

    /// Sets [`InfoRef::mode`].
    pub fn set_mode(&mut self, mode: u64) {
        self.fields().mode = mode;
    }

    /// Sets [`InfoRef::addr_format`].
    pub fn set_addr_format(&mut self, format: u32) {
        self.fields().addr_format = format;
    }

    /// Sets [`InfoRef::src_addr`].
    ///
    /// # Errors
    /// `-FI_ENOMEM`; the address is unchanged then.
    pub fn set_src_addr(&mut self, address: Option<SocketAddr>) -> Result<()> {
        let info = self.fields();
        replace(&mut info.src_addr, &mut info.src_addrlen, address)
    }

    /// Sets [`InfoRef::dest_addr`].
    ///
    /// # Errors
    /// `-FI_ENOMEM`; the address is unchanged then.
    pub fn set_dest_addr(&mut self, address: Option<SocketAddr>) -> Result<()> {
        let info = self.fields();
        replace(&mut info.dest_addr, &mut info.dest_addrlen, address)
    }

    /// Sets [`InfoRef::handle`]. The info does not keep the handle alive.
    pub fn set_handle(&mut self, handle: AnyFid) {
        self.fields().handle = handle.0;
    }

    /// Writes [`InfoRef::tx_attr`].
    pub fn tx_attr(&mut self) -> TxAttrMut<'_> {
        let part = self.fields().tx_attr;
        // SAFETY: not null (`from_raw`), and borrowed with `self`.
        unsafe { TxAttrMut::of(part) }
    }

    /// Writes [`InfoRef::rx_attr`].
    pub fn rx_attr(&mut self) -> RxAttrMut<'_> {
        let part = self.fields().rx_attr;
        // SAFETY: not null (`from_raw`), and borrowed with `self`.
        unsafe { RxAttrMut::of(part) }
    }

    /// Writes [`InfoRef::ep_attr`].
    pub fn ep_attr(&mut self) -> EpAttrMut<'_> {
        let part = self.fields().ep_attr;
        // SAFETY: not null (`from_raw`), and borrowed with `self`.
        unsafe { EpAttrMut::of(part) }
    }

    /// Writes [`InfoRef::domain_attr`].
    pub fn domain_attr(&mut self) -> DomainAttrMut<'_> {
        let part = self.fields().domain_attr;
        // SAFETY: not null (`from_raw`), and borrowed with `self`.
        unsafe { DomainAttrMut::of(part) }
    }

    /// Writes [`InfoRef::fabric_attr`].
    pub fn fabric_attr(&mut self) -> FabricAttrMut<'_> {
        let part = self.fields().fabric_attr;
        // SAFETY: not null (`from_raw`), and borrowed with `self`.
        unsafe { FabricAttrMut::of(part) }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fi_info {
        self.0.as_ptr()
    }

    /// Passes ownership to C, which frees the info.
    pub(in crate::abi) fn into_raw(self) -> *mut sys::fi_info {
        ManuallyDrop::new(self).0.as_ptr()
    }

    fn fields(&mut self) -> &mut sys::fi_info {
        // SAFETY: an owned info, borrowed exclusively. It is at least as long as in the headers of the build,
        // because the dynamic linker resolves `fi_dupinfo` to at least that version.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the info is from `fi_dupinfo`, has no other owner, and is not used after this.
        unsafe { sys::fi_freeinfo(self.0.as_ptr()) };
    }
}

/// The result of `fi_getinfo`: infos in order of preference, which C receives chained by `next`.
#[derive(Debug, Default)]
pub struct InfoList(Vec<Info>);

impl InfoList {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an info.
    pub fn push(&mut self, info: Info) {
        self.0.push(info);
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of infos.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the infos.
    pub fn iter(&self) -> impl Iterator<Item = InfoRef<'_>> {
        self.0.iter().map(Info::as_ref)
    }

    /// Chains the infos and passes ownership to C, which frees them. Null for an empty list.
    pub(in crate::abi) fn into_raw(self) -> *mut sys::fi_info {
        self.0.into_iter().rev().fold(ptr::null_mut(), |next, mut info| {
            info.fields().next = next;
            info.into_raw()
        })
    }
}

/// Replaces an address of an info by a copy of `address` in C layout, which `fi_freeinfo` frees.
fn replace(place: &mut *mut c_void, length: &mut usize, address: Option<SocketAddr>) -> Result<()> {
    let (new, size) = match address.map(SockAddr::from) {
        None => (ptr::null_mut(), 0),
        Some(raw) => {
            let size = raw.len() as usize;
            // SAFETY: `malloc` takes any size.
            let memory = unsafe { libc::malloc(size) };
            if memory.is_null() {
                return Err(Errno::ENOMEM);
            }
            // SAFETY: `raw` has `size` valid bytes, and the new memory has `size` bytes.
            unsafe { ptr::copy_nonoverlapping(raw.as_ptr().cast(), memory.cast::<u8>(), size) };
            (memory, size)
        }
    };
    // SAFETY: an address in an info is null or memory of `malloc`, also if libfabric has set it.
    unsafe { libc::free(*place) };
    *place = new;
    *length = size;
    Ok(())
}
