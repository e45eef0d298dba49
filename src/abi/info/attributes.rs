//! The parts of `struct fi_info`. Each part has two types: one that reads any info, and one that writes an
//! owned info. The latter does not read, so that no text is borrowed while it is replaced.

use std::ffi::{CString, c_char};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;

use super::field;
use crate::abi::{AnyFid, Errno, Result, buffer, sys};

/// Declares both types for a struct, and the accessors of its plain fields.
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
            /// Wraps a pointer from C. `None` for a null pointer.
            ///
            /// # Safety
            /// If not null, `raw` and the memory that it refers to are valid by `fi_getinfo(3)`, and
            /// unchanged for the lifetime of the result.
            pub(in crate::abi) unsafe fn of(raw: *mut sys::$raw) -> Option<Self> {
                NonNull::new(raw).map(|raw| Self { raw, call: PhantomData })
            }

            $($(#[$field_doc])* #[must_use] pub fn $field(self) -> $type {
                field!(self.$field)
            })*
        }

        #[doc = concat!("Writes the fields that [`", stringify!($read), "`] reads.")]
        #[derive(Debug)]
        pub struct $write<'a>($read<'a>);

        impl $write<'_> {
            /// Wraps a pointer in an owned info.
            ///
            /// # Safety
            /// `raw` is not null, and no other code uses the struct for the lifetime of the result.
            pub(super) unsafe fn of(raw: *mut sys::$raw) -> Self {
                // SAFETY: not null by the requirement of this function.
                Self($read { raw: unsafe { NonNull::new_unchecked(raw) }, call: PhantomData })
            }

            $(#[doc = concat!("Sets [`", stringify!($read), "::", stringify!($field), "`].")]
            pub fn $set(&mut self, value: $type) {
                // SAFETY: the struct is exclusive for the lifetime of the borrow (`of`), and at least as long
                // as in the headers of the build.
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
        /// Default flags of operations.
        op_flags, set_op_flags: u64;
        /// Order of messages, such as `FI_ORDER_SAS`.
        msg_order, set_msg_order: u64;
        /// Order of completions.
        comp_order, set_comp_order: u64;
        /// Maximum length of `fi_inject`, in bytes.
        inject_size, set_inject_size: usize;
        /// Depth of the queue, in operations.
        size, set_size: usize;
        /// Maximum number of pieces of a vector.
        iov_limit, set_iov_limit: usize;
        /// Maximum number of pieces of a vector of remote memory.
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
        /// Default flags of operations.
        op_flags, set_op_flags: u64;
        /// Order of messages, such as `FI_ORDER_SAS`.
        msg_order, set_msg_order: u64;
        /// Order of completions.
        comp_order, set_comp_order: u64;
        /// Bytes that are buffered while no receive is posted.
        total_buffered_recv, set_total_buffered_recv: usize;
        /// Depth of the queue, in operations.
        size, set_size: usize;
        /// Maximum number of pieces of a vector.
        iov_limit, set_iov_limit: usize;
    }
}

attributes! {
    /// `struct fi_ep_attr`: the endpoint.
    EpAttr, EpAttrMut: fi_ep_attr {
        /// An `enum fi_ep_type`. Newer headers do not name byte streams: [`sys::FI_EP_SOCK_STREAM`].
        type_, set_type: u32;
        /// Protocol, such as `FI_PROTO_RSTREAM`.
        protocol, set_protocol: u32;
        /// Version of the protocol.
        protocol_version, set_protocol_version: u32;
        /// Maximum length of one message, in bytes.
        max_msg_size, set_max_msg_size: usize;
        /// Bytes before each message that the provider uses.
        msg_prefix_size, set_msg_prefix_size: usize;
        /// Maximum length of a read that sees every earlier write, in bytes.
        max_order_raw_size, set_max_order_raw_size: usize;
        /// Maximum length of a write that no earlier read sees, in bytes.
        max_order_war_size, set_max_order_war_size: usize;
        /// Maximum length of a write that follows every earlier write, in bytes.
        max_order_waw_size, set_max_order_waw_size: usize;
        /// The fields of a tag: neighbours differ in their bits. Upper bits of 0 cannot be used.
        mem_tag_format, set_mem_tag_format: u64;
        /// Number of sending contexts.
        tx_ctx_cnt, set_tx_ctx_cnt: usize;
        /// Number of receiving contexts.
        rx_ctx_cnt, set_rx_ctx_cnt: usize;
    }
}

attributes! {
    /// `struct fi_domain_attr`: the domain.
    DomainAttr, DomainAttrMut: fi_domain_attr {
        /// An `enum fi_threading`.
        threading, set_threading: u32;
        /// An `enum fi_progress`: progress of connections.
        control_progress, set_control_progress: u32;
        /// An `enum fi_resource_mgmt`.
        resource_mgmt, set_resource_mgmt: u32;
        /// An `enum fi_av_type`.
        av_type, set_av_type: u32;
        /// Requirements of memory registration on the application, such as `FI_MR_LOCAL`.
        mr_mode, set_mr_mode: i32;
        /// Length of a memory region's key, in bytes.
        mr_key_size, set_mr_key_size: usize;
        /// Length of the data in completions, in bytes.
        cq_data_size, set_cq_data_size: usize;
        /// Maximum number of completion queues.
        cq_cnt, set_cq_cnt: usize;
        /// Maximum number of endpoints.
        ep_cnt, set_ep_cnt: usize;
        /// Maximum number of sending contexts.
        tx_ctx_cnt, set_tx_ctx_cnt: usize;
        /// Maximum number of receiving contexts.
        rx_ctx_cnt, set_rx_ctx_cnt: usize;
        /// Maximum number of sending contexts of an endpoint.
        max_ep_tx_ctx, set_max_ep_tx_ctx: usize;
        /// Maximum number of receiving contexts of an endpoint.
        max_ep_rx_ctx, set_max_ep_rx_ctx: usize;
        /// Maximum number of endpoints that share a sending context.
        max_ep_stx_ctx, set_max_ep_stx_ctx: usize;
        /// Maximum number of endpoints that share a receiving context.
        max_ep_srx_ctx, set_max_ep_srx_ctx: usize;
        /// Maximum number of counters.
        cntr_cnt, set_cntr_cnt: usize;
        /// Maximum number of pieces of a memory region.
        mr_iov_limit, set_mr_iov_limit: usize;
        /// Capabilities of the domain.
        caps, set_caps: u64;
        /// As [`super::InfoRef::mode`].
        mode, set_mode: u64;
        /// Maximum length of an error's data, in bytes.
        max_err_data, set_max_err_data: usize;
        /// Maximum number of memory regions.
        mr_cnt, set_mr_cnt: usize;
    }
}

attributes! {
    /// `struct fi_fabric_attr`: the fabric.
    FabricAttr, FabricAttrMut: fi_fabric_attr {
        /// The API version that the application requested, `FI_VERSION(major, minor)`.
        api_version, set_api_version: u32;
        /// Version of the provider.
        prov_version, set_prov_version: u32;
    }
}

/// Offset of `data_progress`. Newer headers have it in an anonymous union at the same offset.
const DATA_PROGRESS: usize =
    offset_of!(sys::fi_domain_attr, control_progress) + size_of::<sys::fi_progress>();
const _: () =
    assert!(offset_of!(sys::fi_domain_attr, resource_mgmt) == DATA_PROGRESS + size_of::<sys::fi_progress>());

impl EpAttr<'_> {
    /// Length of the authorization key. Never set, because it requires the key.
    #[must_use]
    pub fn auth_key_size(self) -> usize {
        field!(self.auth_key_size)
    }
}

impl<'a> DomainAttr<'a> {
    /// Length of the authorization key. Never set, because it requires the key.
    #[must_use]
    pub fn auth_key_size(self) -> usize {
        field!(self.auth_key_size)
    }

    /// An `enum fi_progress`: progress of data.
    #[must_use]
    pub fn data_progress(self) -> u32 {
        // SAFETY: every version of the struct has `data_progress` at this offset (assertion above).
        unsafe { self.raw.byte_add(DATA_PROGRESS).cast().read() }
    }

    /// The open domain of the endpoint.
    #[must_use]
    pub fn domain(self) -> Option<AnyFid> {
        let domain = field!(self.domain);
        (!domain.is_null()).then(|| AnyFid(domain.cast()))
    }

    /// Name of the domain.
    ///
    /// # Errors
    /// `-FI_EINVAL` if the text is not UTF-8.
    pub fn name(self) -> Result<Option<&'a str>> {
        let text = field!(self.name);
        // SAFETY: null, or a NUL-terminated text by `fi_domain(3)`.
        unsafe { buffer::text(text) }
    }
}

impl DomainAttrMut<'_> {
    /// Sets [`DomainAttr::data_progress`].
    pub fn set_data_progress(&mut self, value: u32) {
        // SAFETY: every version of the struct has `data_progress` at this offset (assertion above), and
        // the struct is exclusive for the lifetime of the borrow.
        unsafe { self.0.raw.byte_add(DATA_PROGRESS).cast().write(value) };
    }

    /// Sets [`DomainAttr::name`].
    ///
    /// # Errors
    /// `-FI_ENOMEM`; `-FI_EINVAL` if the text contains a NUL.
    pub fn set_name(&mut self, name: &str) -> Result<()> {
        // SAFETY: the struct is exclusive for the lifetime of the borrow, and its texts are memory of
        // `malloc`.
        unsafe { replace(&raw mut (*self.0.raw.as_ptr()).name, name) }
    }
}

impl<'a> FabricAttr<'a> {
    /// Name of the fabric.
    ///
    /// # Errors
    /// `-FI_EINVAL` if the text is not UTF-8.
    pub fn name(self) -> Result<Option<&'a str>> {
        let text = field!(self.name);
        // SAFETY: null, or a NUL-terminated text by `fi_fabric(3)`.
        unsafe { buffer::text(text) }
    }

    /// Name of the provider. libfabric sets it.
    ///
    /// # Errors
    /// `-FI_EINVAL` if the text is not UTF-8.
    pub fn prov_name(self) -> Result<Option<&'a str>> {
        let text = field!(self.prov_name);
        // SAFETY: null, or a NUL-terminated text by `fi_fabric(3)`.
        unsafe { buffer::text(text) }
    }

    /// The open fabric of the endpoint.
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
    /// `-FI_ENOMEM`; `-FI_EINVAL` if the text contains a NUL.
    pub fn set_name(&mut self, name: &str) -> Result<()> {
        // SAFETY: the struct is exclusive for the lifetime of the borrow, and its texts are memory of
        // `malloc`.
        unsafe { replace(&raw mut (*self.0.raw.as_ptr()).name, name) }
    }
}

/// Replaces the text in `place` by a copy of `text`, which `fi_freeinfo` frees.
///
/// # Safety
/// `place` is readable and writable, and holds null or memory of `malloc`.
unsafe fn replace(place: *mut *mut c_char, text: &str) -> Result<()> {
    let text = CString::new(text).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `text` is NUL-terminated.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: `place` is valid and holds null or memory of `malloc`, by the requirement of this function.
    unsafe { libc::free(place.replace(copy).cast()) };
    Ok(())
}
