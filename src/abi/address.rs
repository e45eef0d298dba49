//! Conversion of socket addresses between C (`struct sockaddr_in`, `struct sockaddr_in6`) and Rust. See
//! [`fi_cm(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cm.3.html).

use std::ffi::c_void;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use socket2::SockAddr;

use super::buffer::bytes_mut;
use super::{Errno, Result};

/// Reads an address of `length` bytes, which may be more than it needs. `None` for a null pointer.
///
/// # Errors
/// `-FI_EINVAL` for a family other than IPv4 and IPv6, or too few bytes.
///
/// # Safety
/// If not null, `address` points to `length` bytes.
pub(super) unsafe fn read(address: *const c_void, length: usize) -> Result<Option<SocketAddr>> {
    if address.is_null() {
        return Ok(None);
    }
    if length < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null and readable for the size of the family, checked above; the read needs no
    // alignment.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: readable for the size of the structure, checked in the guard; the read needs no
            // alignment, and any bytes are a valid value.
            let raw = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into()))
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above.
            let raw = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Ok(Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into()))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Reads an address whose length follows from its family. `None` for a null pointer.
///
/// # Errors
/// `-FI_EINVAL` for a family other than IPv4 and IPv6.
///
/// # Safety
/// If not null, `address` points to a socket address of the length of its family.
pub(super) unsafe fn read_by_family(address: *const c_void) -> Result<Option<SocketAddr>> {
    // SAFETY: `read` reads the family and then as many bytes as the family has. Both are readable by the
    // requirement of this function.
    unsafe { read(address, size_of::<libc::sockaddr_in6>()) }
}

/// Writes an address to `out`, cut to `length` bytes, and sets `length` to its full length.
///
/// # Errors
/// `-FI_EINVAL` for a null pointer (a null `out` is allowed with a length of 0), `-FI_ETOOSMALL` if
/// the address was cut.
///
/// # Safety
/// If not null, `length` is readable and writable, and `out` is writable for that many bytes.
/// No other code uses either during the call.
pub(super) unsafe fn write(address: SocketAddr, out: *mut c_void, length: *mut usize) -> Result<()> {
    // SAFETY: null, or valid and exclusive by the requirement of this function.
    let length = unsafe { length.as_mut() }.ok_or(Errno::EINVAL)?;
    // SAFETY: null, or `length` bytes, writable and exclusive by the requirement of this function.
    let out = unsafe { bytes_mut(out, *length) }?;
    let raw = SockAddr::from(address);
    let full = raw.len() as usize;
    let count = out.len().min(full);
    // SAFETY: `raw` has `full` valid bytes and `out` has `out.len()`; `count` exceeds neither. They do
    // not overlap: `raw` is a local value.
    unsafe { ptr::copy_nonoverlapping(raw.as_ptr().cast(), out.as_mut_ptr(), count) };
    *length = full;
    if count < full { Err(Errno::ETOOSMALL) } else { Ok(()) }
}
