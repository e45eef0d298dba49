//! The data of an error that an event queue or completion queue reports (`err_data` of its error entry). See
//! [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html) and
//! [`fi_cq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cq.3.html).

use std::ffi::c_void;
use std::ptr;

use parking_lot::Mutex;

use super::sys::version;

/// What the FFI boundary stores beside the value of a queue that reports errors.
#[derive(Default)]
pub struct ErrorState {
    /// The API version that the application requested, which libfabric stores in the fabric.
    pub(super) api_version: u32,
    /// The memory that `err_data` of the last error points to. Valid until the next error is read.
    kept: Mutex<Vec<u8>>,
}

impl ErrorState {
    /// Whether error entries have an `err_data_size`.
    pub(super) fn has_size(&self) -> bool {
        self.api_version >= version(1, 5)
    }

    /// Writes `data` to the caller's buffer, and cuts it if that is too short. Without such a buffer, the
    /// data is written to memory of the queue.
    ///
    /// # Safety
    /// `err_data` is writable. If the application's API version [has](Self::has_size) an `err_data_size`, it
    /// is readable and writable, and `err_data` is readable and holds null or the address of that many
    /// writable bytes, which no other code uses during the call.
    pub(super) unsafe fn deliver(&self, data: &[u8], err_data: *mut *mut c_void, err_data_size: *mut usize) {
        if !self.has_size() {
            // SAFETY: writable by the requirement of this function.
            unsafe { *err_data = self.keep(data) };
            return;
        }
        // SAFETY: this version has both fields, which are readable by the requirement of this function.
        let (buffer, room) = unsafe { ((*err_data).cast::<u8>(), *err_data_size) };
        let size = if buffer.is_null() || room == 0 {
            // SAFETY: writable by the requirement of this function.
            unsafe { *err_data = self.keep(data) };
            data.len()
        } else {
            let size = data.len().min(room);
            // SAFETY: the caller's buffer has `room` bytes, at least `size`, which no other code uses, so
            // that `data` is not in it.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), buffer, size) };
            size
        };
        // SAFETY: this version has the field, which is writable by the requirement of this function.
        unsafe { *err_data_size = size };
    }

    /// Stores `data` until the next error is read, and returns its address. Null if `data` is empty.
    fn keep(&self, data: &[u8]) -> *mut c_void {
        let mut kept = self.kept.lock();
        *kept = data.to_vec();
        if kept.is_empty() { ptr::null_mut() } else { kept.as_mut_ptr().cast() }
    }
}
