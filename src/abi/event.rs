//! Events of an event queue, and their C representation: `struct fi_eq_cm_entry` and
//! `struct fi_eq_err_entry`. See [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html).

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use super::object::{EqState, FidHandle};
use super::{Errno, Info, Result, sys};

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// `FI_CONNREQ`: a peer wants to connect.
    ConnReq {
        /// The passive endpoint.
        fid: FidHandle,
        /// The info with which the application opens an endpoint for the request. The application frees it.
        info: Info,
        /// The peer's connection data.
        data: Vec<u8>,
    },
    /// `FI_CONNECTED`: the connection is established.
    Connected {
        /// The endpoint.
        fid: FidHandle,
        /// The peer's connection data.
        data: Vec<u8>,
    },
    /// `FI_SHUTDOWN`: the connection is over.
    Shutdown {
        /// The endpoint.
        fid: FidHandle,
    },
}

/// A queued error.
#[derive(Debug)]
pub struct ErrorEvent {
    /// The endpoint.
    pub fid: FidHandle,
    /// The error.
    pub err: Errno,
    /// The provider's own number of the error. [`super::EqOps::strerror`] has its text.
    pub prov_errno: i32,
    /// Additional data: the data of a reject.
    pub err_data: Vec<u8>,
}

impl Event {
    /// The object of the event.
    #[must_use]
    pub fn fid(&self) -> FidHandle {
        match self {
            Self::ConnReq { fid, .. } | Self::Connected { fid, .. } | Self::Shutdown { fid } => *fid,
        }
    }

    /// The event's number, the entry without data, and the data.
    fn parts(&self) -> (u32, sys::fi_eq_cm_entry, &[u8]) {
        let (number, info, data) = match self {
            Self::ConnReq { info, data, .. } => (sys::FI_CONNREQ, info.as_ptr(), data.as_slice()),
            Self::Connected { data, .. } => (sys::FI_CONNECTED, ptr::null_mut(), data.as_slice()),
            Self::Shutdown { .. } => (sys::FI_SHUTDOWN, ptr::null_mut(), &[][..]),
        };
        let entry = sys::fi_eq_cm_entry { fid: self.fid().fid, info, data: Default::default() };
        (number, entry, data)
    }
}

/// The output buffer of `fi_eq_read`.
#[derive(Debug)]
pub struct EventOut<'a> {
    event: &'a mut u32,
    buffer: &'a mut [u8],
    peek: bool,
}

impl<'a> EventOut<'a> {
    /// Creates an output for the event's number and its entry. The only flag is `FI_PEEK`.
    ///
    /// # Errors
    /// `-FI_EBADFLAGS`.
    pub fn new(event: &'a mut u32, buffer: &'a mut [u8], flags: u64) -> Result<Self> {
        Ok(Self { event, buffer, peek: peeks(flags)? })
    }

    /// Writes the first event of `queue`, and removes it unless the caller peeks. Returns the length
    /// written: the entry and as much of its data as fits. With the removal, the application becomes the
    /// owner of the info of a request; a caller that peeks gets only its address.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no event; `-FI_ETOOSMALL` if the buffer is shorter than an entry. The
    /// queue is unchanged then.
    pub fn deliver(&mut self, queue: &mut VecDeque<Event>) -> Result<usize> {
        const ENTRY: usize = offset_of!(sys::fi_eq_cm_entry, data);
        let (number, entry, data) = queue.front().ok_or(Errno::EAGAIN)?.parts();
        let (target, room) = self.buffer.split_at_mut_checked(ENTRY).ok_or(Errno::ETOOSMALL)?;
        // SAFETY: the entry has `ENTRY` bytes before its data, and `target` is that long. They do not
        // overlap: the entry is a local value. Bytes need no alignment.
        unsafe { ptr::copy_nonoverlapping((&raw const entry).cast(), target.as_mut_ptr(), ENTRY) };
        let length = data.len().min(room.len());
        room[..length].copy_from_slice(&data[..length]);
        *self.event = number;
        if !self.peek
            && let Some(Event::ConnReq { info, .. }) = queue.pop_front()
        {
            // The application owns it now.
            info.into_raw();
        }
        Ok(ENTRY + length)
    }
}

/// The output buffer of `fi_eq_readerr`.
pub struct ErrorOut<'a> {
    entry: *mut sys::fi_eq_err_entry,
    state: &'a EqState,
    peek: bool,
}

impl<'a> ErrorOut<'a> {
    /// Creates an output from the arguments of `fi_eq_readerr` and the queue's state.
    ///
    /// # Errors
    /// `-FI_EINVAL` for a null pointer, `-FI_EBADFLAGS`.
    ///
    /// # Safety
    /// If not null, `entry` is writable for the lifetime of the result, up to the length that the structure
    /// has in the application's API version. From version 1.5 on, its `err_data` and `err_data_size` are
    /// as `fi_eq_readerr(3)` requires.
    pub(super) unsafe fn from_raw(
        entry: *mut sys::fi_eq_err_entry,
        state: &'a EqState,
        flags: u64,
    ) -> Result<Self> {
        if entry.is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(Self { entry, state, peek: peeks(flags)? })
    }

    /// Writes the first error of `queue`, and removes it unless the caller peeks. Returns the length
    /// of the entry. The error's data is written to the caller's buffer, and cut if that is too short.
    /// Without such a buffer it is written to memory of the event queue, valid until the next error is read.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no error.
    pub fn deliver(&mut self, queue: &mut VecDeque<ErrorEvent>) -> Result<usize> {
        let event = queue.front().ok_or(Errno::EAGAIN)?;
        let entry = self.entry;
        // SAFETY: every version has these fields, and they are writable (`from_raw`).
        unsafe {
            (*entry).fid = event.fid.fid;
            (*entry).context = event.fid.context;
            (*entry).data = 0;
            (*entry).err = event.err.number();
            (*entry).prov_errno = event.prov_errno;
        }
        let length = if self.state.api_version >= ERR_DATA_SIZE_SINCE {
            // SAFETY: this version has these fields (`from_raw`).
            let (buffer, room) = unsafe { ((*entry).err_data.cast::<u8>(), (*entry).err_data_size) };
            let size = if buffer.is_null() || room == 0 {
                // SAFETY: the field is writable (`from_raw`).
                unsafe { (*entry).err_data = self.keep(&event.err_data) };
                event.err_data.len()
            } else {
                let size = event.err_data.len().min(room);
                // SAFETY: the caller's buffer has at least `size` bytes (`from_raw`), and the event's data
                // is not in it.
                unsafe { ptr::copy_nonoverlapping(event.err_data.as_ptr(), buffer, size) };
                size
            };
            // SAFETY: as above.
            unsafe { (*entry).err_data_size = size };
            size_of::<sys::fi_eq_err_entry>()
        } else {
            // SAFETY: every version has this field, and it is writable (`from_raw`).
            unsafe { (*entry).err_data = self.keep(&event.err_data) };
            offset_of!(sys::fi_eq_err_entry, err_data_size)
        };
        if !self.peek {
            queue.pop_front();
        }
        Ok(length)
    }

    /// Stores `data` until the next error is read, and returns its address. Null if `data` is empty.
    fn keep(&self, data: &[u8]) -> *mut c_void {
        let mut kept = self.state.err_data.lock();
        *kept = data.to_vec();
        if kept.is_empty() { ptr::null_mut() } else { kept.as_mut_ptr().cast() }
    }
}

/// `FI_VERSION(1, 5)`. The error entry of earlier API versions has no `err_data_size`.
const ERR_DATA_SIZE_SINCE: u32 = 1 << 16 | 5;

/// Whether the flags of a read ask to leave the event queued.
fn peeks(flags: u64) -> Result<bool> {
    match flags {
        0 => Ok(false),
        sys::FI_PEEK => Ok(true),
        _ => Err(Errno::EBADFLAGS),
    }
}
