//! The parts of `struct fi_info`, each as a pair: one that reads, one that writes those of ours. The
//! latter does not read, so that no text is borrowed while it is replaced.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;

use super::field;
use crate::abi::{AnyFid, Errno, Result, buffer, sys};

/// Declares the pair for a struct and the accessors of its plain fields.
macro_rules! attributes {
    ($(#[$doc:meta])* $read:ident, $write:ident: $raw:ident {
        $($(#[$field_doc:meta])* $field:ident, $set:ident: $type:ty;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $read<'a> {
            raw: NonNull<sys::$raw>,
            call: PhantomData<&'a sys::$raw>,
        }

        impl $read<'_> {
            /// Of a pointer from C; `None` for a null pointer.
            ///
            /// # Safety
            /// If not null, `raw` and what it points to are as `fi_getinfo(3)` says, and stay
            /// unchanged while the result is used.
            pub(in crate::abi) unsafe fn of(raw: *mut sys::$raw) -> Option<Self> {
                NonNull::new(raw).map(|raw| Self { raw, call: PhantomData })
            }

            $($(#[$field_doc])* #[must_use] pub fn $field(self) -> $type {
                field!(self.$field)
            })*
        }

        #[doc = concat!("Writes what [`", stringify!($read), "`] reads.")]
        #[derive(Debug)]
        pub struct $write<'a>($read<'a>);

        impl $write<'_> {
            /// Of a pointer in an info of ours.
            ///
            /// # Safety
            /// `raw` is not null, and to be written by nobody else for the life of the result.
            pub(super) unsafe fn of(raw: *mut sys::$raw) -> Self {
                // SAFETY: not null by the caller's promise.
                Self($read { raw: unsafe { NonNull::new_unchecked(raw) }, call: PhantomData })
            }

            $(#[doc = concat!("Sets [`", stringify!($read), "::", stringify!($field), "`].")]
            pub fn $set(&mut self, value: $type) {
                // SAFETY: the struct is ours for the life of the borrow, and as long as the headers
                // that we were built with say or longer.
                unsafe { (*self.0.raw.as_ptr()).$field = value };
            })*
        }
    };
}

attributes! {
    /// `struct fi_tx_attr`: the sending side.
    TxAttr, TxAttrMut: fi_tx_attr {
        /// Capabilities of this side.
        caps, set_caps: u64;
        /// As [`super::InfoRef::mode`].
        mode, set_mode: u64;
        /// Flags of operations that have none of their own.
        op_flags, set_op_flags: u64;
        /// `FI_ORDER_SAS` and the like.
        msg_order, set_msg_order: u64;
        /// The same for completions.
        comp_order, set_comp_order: u64;
        /// Most bytes of `fi_inject`.
        inject_size, set_inject_size: usize;
        /// Depth of the queue, in operations.
        size, set_size: usize;
        /// Most pieces of a vector.
        iov_limit, set_iov_limit: usize;
        /// The same for remote memory.
        rma_iov_limit, set_rma_iov_limit: usize;
    }
}

attributes! {
    /// `struct fi_rx_attr`: the receiving side.
    RxAttr, RxAttrMut: fi_rx_attr {
        /// Capabilities of this side.
        caps, set_caps: u64;
        /// As [`super::InfoRef::mode`].
        mode, set_mode: u64;
        /// Flags of operations that have none of their own.
        op_flags, set_op_flags: u64;
        /// `FI_ORDER_SAS` and the like.
        msg_order, set_msg_order: u64;
        /// The same for completions.
        comp_order, set_comp_order: u64;
        /// Bytes that are buffered when no receive is posted.
        total_buffered_recv, set_total_buffered_recv: usize;
        /// Depth of the queue, in operations.
        size, set_size: usize;
        /// Most pieces of a vector.
        iov_limit, set_iov_limit: usize;
    }
}

attributes! {
    /// `struct fi_ep_attr`: the endpoint.
    EpAttr, EpAttrMut: fi_ep_attr {
        /// An `enum fi_ep_type`, which names no byte streams in newer headers:
        /// [`sys::FI_EP_SOCK_STREAM`].
        type_, set_type: u32;
        /// `FI_PROTO_RSTREAM` and the like.
        protocol, set_protocol: u32;
        /// Version of the protocol.
        protocol_version, set_protocol_version: u32;
        /// Most bytes of one message.
        max_msg_size, set_max_msg_size: usize;
        /// Bytes before each message that are the provider's.
        msg_prefix_size, set_msg_prefix_size: usize;
        /// Sending contexts.
        tx_ctx_cnt, set_tx_ctx_cnt: usize;
        /// Receiving contexts.
        rx_ctx_cnt, set_rx_ctx_cnt: usize;
    }
}

attributes! {
    /// `struct fi_domain_attr`: the domain.
    DomainAttr, DomainAttrMut: fi_domain_attr {
        /// An `enum fi_threading`.
        threading, set_threading: u32;
        /// An `enum fi_progress`: of connections.
        control_progress, set_control_progress: u32;
        /// An `enum fi_resource_mgmt`.
        resource_mgmt, set_resource_mgmt: u32;
        /// An `enum fi_av_type`.
        av_type, set_av_type: u32;
        /// What registering memory asks of the application: `FI_MR_LOCAL` and the like.
        mr_mode, set_mr_mode: i32;
        /// Length of a memory region's key, in bytes.
        mr_key_size, set_mr_key_size: usize;
        /// Length of data that completions carry, in bytes.
        cq_data_size, set_cq_data_size: usize;
        /// Completion queues that there can be.
        cq_cnt, set_cq_cnt: usize;
        /// Endpoints that there can be.
        ep_cnt, set_ep_cnt: usize;
        /// Sending contexts that there can be.
        tx_ctx_cnt, set_tx_ctx_cnt: usize;
        /// Receiving contexts that there can be.
        rx_ctx_cnt, set_rx_ctx_cnt: usize;
        /// Most sending contexts of an endpoint.
        max_ep_tx_ctx, set_max_ep_tx_ctx: usize;
        /// Most receiving contexts of an endpoint.
        max_ep_rx_ctx, set_max_ep_rx_ctx: usize;
        /// Counters that there can be.
        cntr_cnt, set_cntr_cnt: usize;
        /// Most pieces of a memory region.
        mr_iov_limit, set_mr_iov_limit: usize;
        /// Capabilities of the domain.
        caps, set_caps: u64;
        /// As [`super::InfoRef::mode`].
        mode, set_mode: u64;
        /// Most bytes of an error's data.
        max_err_data, set_max_err_data: usize;
        /// Memory regions that there can be.
        mr_cnt, set_mr_cnt: usize;
    }
}

attributes! {
    /// `struct fi_fabric_attr`: the fabric.
    FabricAttr, FabricAttrMut: fi_fabric_attr {
        /// The API version that the application asked for, `FI_VERSION(major, minor)`.
        api_version, set_api_version: u32;
        /// Version of the provider.
        prov_version, set_prov_version: u32;
    }
}

/// Newer headers have `data_progress` in a union without a name; its place is the same.
const DATA_PROGRESS: usize =
    offset_of!(sys::fi_domain_attr, control_progress) + size_of::<sys::fi_progress>();
const _: () =
    assert!(offset_of!(sys::fi_domain_attr, resource_mgmt) == DATA_PROGRESS + size_of::<sys::fi_progress>());

impl EpAttr<'_> {
    /// Length of the key that lets endpoints talk. To be set only along with the key, and so never.
    #[must_use]
    pub fn auth_key_size(self) -> usize {
        field!(self.auth_key_size)
    }
}

impl<'a> DomainAttr<'a> {
    /// Length of the key that lets endpoints talk. To be set only along with the key, and so never.
    #[must_use]
    pub fn auth_key_size(self) -> usize {
        field!(self.auth_key_size)
    }

    /// An `enum fi_progress`: of data.
    #[must_use]
    pub fn data_progress(self) -> u32 {
        // SAFETY: the field of that name in every version of the struct, checked above.
        unsafe { self.raw.byte_add(DATA_PROGRESS).cast().read() }
    }

    /// The domain that the endpoint is to be in: an open one.
    #[must_use]
    pub fn domain(self) -> Option<AnyFid> {
        let domain = field!(self.domain);
        (!domain.is_null()).then(|| AnyFid(domain.cast()))
    }

    /// Name of the domain.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what is not UTF-8.
    pub fn name(self) -> Result<Option<&'a str>> {
        let text = field!(self.name);
        // SAFETY: null or a text by `fi_domain(3)`.
        unsafe { buffer::text(text) }
    }
}

impl DomainAttrMut<'_> {
    /// Sets [`DomainAttr::data_progress`].
    pub fn set_data_progress(&mut self, value: u32) {
        // SAFETY: the field of that name in every version of the struct, checked above; the struct
        // is ours for the life of the borrow.
        unsafe { self.0.raw.byte_add(DATA_PROGRESS).cast().write(value) };
    }

    /// Sets [`DomainAttr::name`].
    ///
    /// # Errors
    /// `-FI_ENOMEM`.
    pub fn set_name(&mut self, name: &CStr) -> Result<()> {
        // SAFETY: the struct is ours for the life of the borrow, and its texts are `malloc`'s.
        unsafe { replace(&raw mut (*self.0.raw.as_ptr()).name, name) }
    }
}

impl<'a> FabricAttr<'a> {
    /// Name of the fabric.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what is not UTF-8.
    pub fn name(self) -> Result<Option<&'a str>> {
        let text = field!(self.name);
        // SAFETY: null or a text by `fi_fabric(3)`.
        unsafe { buffer::text(text) }
    }

    /// Name of the provider. Never set by us: libfabric fills it in.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what is not UTF-8.
    pub fn prov_name(self) -> Result<Option<&'a str>> {
        let text = field!(self.prov_name);
        // SAFETY: null or a text by `fi_fabric(3)`.
        unsafe { buffer::text(text) }
    }

    /// The fabric that the endpoint is to be in: an open one.
    #[must_use]
    pub fn fabric(self) -> Option<AnyFid> {
        let fabric = field!(self.fabric);
        (!fabric.is_null()).then(|| AnyFid(fabric.cast()))
    }
}

impl FabricAttrMut<'_> {
    /// Sets [`FabricAttr::name`].
    ///
    /// # Errors
    /// `-FI_ENOMEM`.
    pub fn set_name(&mut self, name: &CStr) -> Result<()> {
        // SAFETY: the struct is ours for the life of the borrow, and its texts are `malloc`'s.
        unsafe { replace(&raw mut (*self.0.raw.as_ptr()).name, name) }
    }
}

/// Puts a copy of `text` into `place`, from where `fi_freeinfo` frees it, in place of what was there.
///
/// # Safety
/// `place` may be read and written, and holds null or what `malloc` gave.
unsafe fn replace(place: *mut *mut c_char, text: &CStr) -> Result<()> {
    // SAFETY: `strdup` takes any NUL-terminated text.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: the caller's promise; `free` takes null and what `malloc` gave.
    unsafe { libc::free(place.replace(copy).cast()) };
    Ok(())
}
