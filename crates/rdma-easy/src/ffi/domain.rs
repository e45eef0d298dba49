//! Devices and domains.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use rdma_verbs::devices;

use super::arguments::{Out, Room, text};
use super::fork;
use crate::domain::Domain;
use crate::error::{Error, call};
use crate::handle;

/// What a program opens first, on one device: connections, listeners and regions of a domain work together.
/// A waiting call on one of them makes progress for all of them.
pub struct rdma_easy_domain;

/// Tells the name of a device of this machine: with index 0, 1 and so on until it returns -ENODEV. Those of
/// rdma-core come first, and last `iwarp`, the one that every machine has. It does not block.
///
/// `name`: room for `size` bytes, for the name and a zero byte.
/// Returns 0; -ENODEV for an index beyond the last device; -ENOSPC if there is not enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_device_name(index: usize, name: *mut c_char, size: usize) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let room = unsafe { Room::new(name.cast::<c_void>(), size) }?;
        let devices = devices();
        let Some(device) = devices.get(index) else {
            return Err(Error::new(libc::ENODEV, format!("there are {} devices", devices.len())));
        };
        let mut found = device.name().to_owned().into_bytes();
        found.push(0);
        if found.len() > size {
            return Err(Error::new(libc::ENOSPC, format!("the name takes {} bytes", found.len())));
        }
        room.fill(&found);
        Ok(0)
    })
}

/// Opens a domain on a device. It does not block.
///
/// `device`: a name of rdma_easy_device_name; NULL for `iwarp`.
/// `domain`: gets the domain, which rdma_easy_close frees.
/// Returns 0; -ENODEV if there is no such device; the system's error if it cannot be opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_open(device: *const c_char, domain: *mut *mut rdma_easy_domain) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (out, device) = unsafe { (Out::new(domain)?, text(device)?) };
        fork::watch();
        out.set(handle::insert(Domain::open(device)?));
        Ok(0)
    })
}

/// Frees a domain. What was made of it stays valid. It does not block.
///
/// Returns 0; -EBADF if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_close(domain: *mut rdma_easy_domain) -> c_int {
    call(|| handle::remove::<Domain>(domain).map(|_| 0))
}

/// The descriptor of a domain, for a program that waits for other things too: it is readable when
/// rdma_easy_drive, or a call with a time-out of 0, has something to do. The program must not read, change
/// or close it. It is valid until the domain and all that was made of it are freed.
///
/// Returns the descriptor; -EBADF if it is no domain.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_fd(domain: *mut rdma_easy_domain) -> c_int {
    call(|| Ok(handle::find::<Domain>(domain)?.shard.as_fd().as_raw_fd()))
}

/// Does what there is to do for all connections of a domain, without blocking. Only programs need this that
/// wait by the descriptor: every call that waits does the same.
///
/// Returns 1 if there may be more to do now; 0 if there is nothing until the descriptor is readable; -EBADF
/// if it is no domain; the device's error.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_drive(domain: *mut rdma_easy_domain) -> c_int {
    call(|| Ok(handle::find::<Domain>(domain)?.shard.drive()?.into()))
}
