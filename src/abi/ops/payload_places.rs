//! The private interface by which `ofi_rxm` of libfabric 1.15 to 1.19 tells a provider where the payload of a message goes,
//! behind a receive that has room for its header only: `fi_set_ops` on a domain, with the name "ofix_dynamic_rbuf_v2". No
//! manual describes it; its structures are in `ofi_util.h` of these releases. That of 1.14 has the interface, but mistakes
//! `fi_tinject` and `fi_tinjectdata` for each other.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libc::iovec;

use super::{DomainOps, fid};
use crate::abi::buffer::text;
use crate::abi::completion::UserContext;
use crate::abi::{Errno, MESSAGE_IOV_LIMIT, Place, ffi_boundary, sys};

/// The first libfabric in whose interface this provider takes part.
const FIRST_VERSION: u32 = sys::version(1, 15);
/// Its name.
const DYNAMIC_RECEIVES: &str = "ofix_dynamic_rbuf_v2";

/// `struct ofi_cq_rbuf_entry`: the message that is asked about.
#[repr(C)]
struct Arrival {
    /// The context of the receive.
    receive: *mut c_void,
    flags: u64,
    length: usize,
    buffer: *mut c_void,
    data: u64,
    tag: u64,
    /// The context of the endpoint.
    endpoint: *mut c_void,
}

/// `struct ofi_ops_dynamic_rbuf`.
#[repr(C)]
struct Table {
    size: usize,
    places: Option<PlacesOf>,
}

/// `get_rbuf`: stores up to `*count` pieces of memory, and their number.
type PlacesOf = unsafe extern "C" fn(arrival: *mut Arrival, pieces: *mut iovec, count: *mut usize) -> isize;

/// The function that `ofi_rxm` gave a domain: it tells where the payload goes behind the header in a receive. Whoever gives
/// it posts all receives of the domain with contexts that the function knows.
#[derive(Debug, Clone, Copy)]
pub struct PayloadPlaces(PlacesOf);

impl PayloadPlaces {
    /// Where the payload goes of the message whose header is in the memory of the receive with this context, which has been
    /// passed to `fi_recv` and is not posted yet.
    pub fn of(&self, receive: UserContext) -> impl Iterator<Item = Place> {
        let mut arrival = Arrival {
            receive: receive.0,
            flags: 0,
            length: 0,
            buffer: ptr::null_mut(),
            data: 0,
            tag: 0,
            // Looked at for messages only that are matched with receives of the application.
            endpoint: ptr::null_mut(),
        };
        let mut pieces = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MESSAGE_IOV_LIMIT];
        let mut count = pieces.len();
        // SAFETY: the function is for such calls, and knows the contexts of receives (see the type). The arguments live
        // through the call, and there is room for `count` pieces.
        let outcome = unsafe { (self.0)(&raw mut arrival, pieces.as_mut_ptr(), &raw mut count) };
        let given = if outcome < 0 { 0 } else { count };
        pieces.into_iter().take(given).filter_map(|piece| {
            // No message is longer.
            let length = u32::try_from(piece.iov_len).unwrap_or(u32::MAX);
            // SAFETY: null, or bytes that no other code uses until the receive completes: that is what the function gives
            // them for.
            unsafe { Place::new(piece.iov_base.cast(), length) }
        })
    }
}

/// The `struct fi_ops` of a domain: the table of every object, plus `fi_set_ops`.
pub(in crate::abi) const fn fid_table<T: DomainOps>() -> *const sys::fi_ops {
    const { &sys::fi_ops { ops_set: Some(ops_set::<T>), ..fid::ops::<sys::fid_domain, T>() } }
}

unsafe extern "C" fn ops_set<T: DomainOps>(
    fid: *mut sys::fid,
    name: *const c_char,
    _flags: u64,
    ops: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let body = |domain: &Arc<T>, _: &crate::abi::object::DomainState| {
        // SAFETY: null, or NUL-terminated and unchanged during the call, by `fi_set_ops(3)`.
        let name = unsafe { text(name) }?.ok_or(Errno::EINVAL)?;
        // SAFETY: `fi_version` has no preconditions.
        let is_known = unsafe { sys::fi_version() } >= FIRST_VERSION;
        if name != DYNAMIC_RECEIVES || !is_known {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: null, or the table that this name stands for, which begins with its size.
        let table = unsafe { ops.cast::<Table>().as_ref() }.ok_or(Errno::EINVAL)?;
        if table.size != size_of::<Table>() {
            return Err(Errno::ENOSYS);
        }
        domain.place_payloads(PayloadPlaces(table.places.ok_or(Errno::EINVAL)?))
    };
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_domain, T, _, _, _>(fid, body) }
}
