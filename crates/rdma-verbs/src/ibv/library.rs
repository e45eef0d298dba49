//! rdma-core's exported functions, looked up at run time.
//!
//! A program that uses this crate is not linked with rdma-core. It therefore starts on a host without
//! rdma-core, and finds no RDMA device there. The two libraries are never unloaded, because their objects may
//! live until the process ends.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::LazyLock;

use rdma_sys as sys;

use super::device::AsyncEvent;

macro_rules! functions {
    ($($file:literal { $($name:ident($($argument:ty),*) $(-> $answer:ty)?;)* })*) => {
        /// The functions, under their own names.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*)*
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                $($(let $name;)*)*
                $({
                    // SAFETY: the constructors of rdma-core's libraries only register drivers; they
                    // require nothing of the caller.
                    let file = unsafe { libloading::Library::new($file) }?;
                    // SAFETY: each function has this signature in rdma-core's public headers, under the
                    // default version of the symbol, which rdma-core's ABI preserves.
                    $($name = *unsafe { file.get(concat!(stringify!($name), "\0").as_bytes()) }?;)*
                    // The function pointers are valid while the library is loaded, so it is never unloaded.
                    std::mem::forget(file);
                })*
                Ok(Self { $($($name,)*)* })
            }
        }
    };
}

functions! {
    "libibverbs.so.1" {
        ibv_get_device_list(*mut c_int) -> *mut *mut sys::ibv_device;
        ibv_free_device_list(*mut *mut sys::ibv_device);
        ibv_open_device(*mut sys::ibv_device) -> *mut sys::ibv_context;
        ibv_close_device(*mut sys::ibv_context) -> c_int;
        ibv_query_device(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int;
        ibv_query_port(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr) -> c_int;
        ibv_get_async_event(*mut sys::ibv_context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event(*mut AsyncEvent);
        ibv_alloc_pd(*mut sys::ibv_context) -> *mut sys::ibv_pd;
        ibv_dealloc_pd(*mut sys::ibv_pd) -> c_int;
        ibv_reg_mr(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr;
        ibv_dereg_mr(*mut sys::ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut sys::ibv_context) -> *mut sys::ibv_comp_channel;
        ibv_destroy_comp_channel(*mut sys::ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut sys::ibv_context, c_int, *mut c_void, *mut sys::ibv_comp_channel, c_int) -> *mut sys::ibv_cq;
        ibv_destroy_cq(*mut sys::ibv_cq) -> c_int;
        ibv_resize_cq(*mut sys::ibv_cq, c_int) -> c_int;
        ibv_create_srq(*mut sys::ibv_pd, *mut sys::ibv_srq_init_attr) -> *mut sys::ibv_srq;
        ibv_destroy_srq(*mut sys::ibv_srq) -> c_int;
        ibv_get_cq_event(*mut sys::ibv_comp_channel, *mut *mut sys::ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut sys::ibv_cq, c_uint);
        ibv_create_qp(*mut sys::ibv_pd, *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp;
        ibv_modify_qp(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp(*mut sys::ibv_qp) -> c_int;
    }
    "librdmacm.so.1" {
        rdma_create_event_channel() -> *mut sys::rdma_event_channel;
        rdma_destroy_event_channel(*mut sys::rdma_event_channel);
        rdma_get_cm_event(*mut sys::rdma_event_channel, *mut *mut sys::rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut sys::rdma_cm_event) -> c_int;
        rdma_create_id(*mut sys::rdma_event_channel, *mut *mut sys::rdma_cm_id, *mut c_void, sys::rdma_port_space::Type) -> c_int;
        rdma_destroy_id(*mut sys::rdma_cm_id) -> c_int;
        rdma_migrate_id(*mut sys::rdma_cm_id, *mut sys::rdma_event_channel) -> c_int;
        rdma_bind_addr(*mut sys::rdma_cm_id, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr(*mut sys::rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut sys::rdma_cm_id, c_int) -> c_int;
        rdma_init_qp_attr(*mut sys::rdma_cm_id, *mut sys::ibv_qp_attr, *mut c_int) -> c_int;
        rdma_connect(*mut sys::rdma_cm_id, *mut sys::rdma_conn_param) -> c_int;
        rdma_establish(*mut sys::rdma_cm_id) -> c_int;
        rdma_listen(*mut sys::rdma_cm_id, c_int) -> c_int;
        rdma_accept(*mut sys::rdma_cm_id, *mut sys::rdma_conn_param) -> c_int;
        rdma_reject(*mut sys::rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut sys::rdma_cm_id) -> c_int;
    }
}

/// rdma-core, or why this host has none.
pub(super) fn library() -> Result<&'static Library, &'static libloading::Error> {
    static LIBRARY: LazyLock<Result<Library, libloading::Error>> = LazyLock::new(Library::load);
    LIBRARY.as_ref()
}
