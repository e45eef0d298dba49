//! Events of an event queue, and how they are written for C: `struct fi_eq_cm_entry` and
//! `struct fi_eq_err_entry`. See [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html).

use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use super::object::{EqState, FidHandle};
use super::{Errno, Info, Result, sys};

/// Something that happened to a connection.
#[derive(Debug)]
pub enum Event {
    /// `FI_CONNREQ`: a peer wants to connect.
    ConnReq {
        /// The passive endpoint.
        fid: FidHandle,
        /// Opens an endpoint for the request; the application frees it.
        info: Info,
        /// The peer's connection data.
        data: Vec<u8>,
    },
    /// `FI_CONNECTED`: the connection stands.
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

/// Something that went wrong.
#[derive(Debug)]
pub struct ErrorEvent {
    /// The endpoint.
    pub fid: FidHandle,
    /// What went wrong.
    pub err: Errno,
    /// The provider's own number for it, which [`super::EqOps::strerror`] explains.
    pub prov_errno: i32,
    /// More about it: the data of a reject.
    pub err_data: Vec<u8>,
}

impl Event {
    /// The object that it is about.
    #[must_use]
    pub fn fid(&self) -> FidHandle {
        match self {
            Self::ConnReq { fid, .. } | Self::Connected { fid, .. } | Self::Shutdown { fid } => *fid,
        }
    }

    /// Its number, the entry without data, and the data.
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

/// Where the caller of `fi_eq_read` wants an event.
#[derive(Debug)]
pub struct EventOut<'a> {
    event: &'a mut u32,
    buffer: &'a mut [u8],
    peek: bool,
}

impl<'a> EventOut<'a> {
    /// Where the event's number and its entry go. The only flag that there is is `FI_PEEK`.
    ///
    /// # Errors
    /// `-FI_EBADFLAGS`.
    pub fn new(event: &'a mut u32, buffer: &'a mut [u8], flags: u64) -> Result<Self> {
        Ok(Self { event, buffer, peek: peeks(flags)? })
    }

    /// Writes the first event of `queue` and takes it from there, unless the caller only peeks.
    /// Answers the length of what was written: the entry and as much of its data as fits. The info
    /// of a request becomes the application's when it is taken; who peeks only sees its address.
    ///
    /// # Errors
    /// `-FI_EAGAIN` without an event; `-FI_ETOOSMALL` if there is no room for an entry. The queue
    /// is as it was then.
    pub fn deliver(&mut self, queue: &mut VecDeque<Event>) -> Result<usize> {
        const ENTRY: usize = offset_of!(sys::fi_eq_cm_entry, data);
        let (number, entry, data) = queue.front().ok_or(Errno::EAGAIN)?.parts();
        let (target, room) = self.buffer.split_at_mut_checked(ENTRY).ok_or(Errno::ETOOSMALL)?;
        // SAFETY: the entry has `ENTRY` bytes before its data, and `target` has that many; both are
        // ours for the call. The caller's buffer need not be aligned.
        unsafe { ptr::copy_nonoverlapping((&raw const entry).cast(), target.as_mut_ptr(), ENTRY) };
        let length = data.len().min(room.len());
        room[..length].copy_from_slice(&data[..length]);
        *self.event = number;
        if !self.peek
            && let Some(Event::ConnReq { info, .. }) = queue.pop_front()
        {
            // The application has it now.
            info.into_raw();
        }
        Ok(ENTRY + length)
    }
}

/// Where the caller of `fi_eq_readerr` wants an error.
pub struct ErrorOut<'a> {
    entry: *mut sys::fi_eq_err_entry,
    state: &'a EqState,
    peek: bool,
}

impl<'a> ErrorOut<'a> {
    /// Of the arguments of `fi_eq_readerr`, and what the border keeps of the queue.
    ///
    /// # Errors
    /// `-FI_EINVAL` for a null pointer, `-FI_EBADFLAGS`.
    ///
    /// # Safety
    /// If not null, `entry` may be written as far as the application's API version has it, as long
    /// as the result lives; from version 1.5 on its `err_data` and `err_data_size` are as
    /// `fi_eq_readerr(3)` says.
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

    /// Writes the first error of `queue` and takes it from there, unless the caller only peeks.
    /// Answers the length of the entry. Its data goes into the caller's buffer, cut if need be, or
    /// else into memory of the event queue's that stays until the next error is read.
    ///
    /// # Errors
    /// `-FI_EAGAIN` without an error.
    pub fn deliver(&mut self, queue: &mut VecDeque<ErrorEvent>) -> Result<usize> {
        let event = queue.front().ok_or(Errno::EAGAIN)?;
        let entry = self.entry;
        // SAFETY: `from_raw`'s caller promised these fields, which every version has.
        unsafe {
            (*entry).fid = event.fid.fid;
            (*entry).context = event.fid.context;
            (*entry).data = 0;
            (*entry).err = event.err.number();
            (*entry).prov_errno = event.prov_errno;
        }
        let length = if self.state.api_version >= ERR_DATA_SIZE_SINCE {
            // SAFETY: this version has them, by the promise of `from_raw`'s caller.
            let (buffer, room) = unsafe { ((*entry).err_data.cast::<u8>(), (*entry).err_data_size) };
            let size = if buffer.is_null() || room == 0 {
                // SAFETY: `from_raw`'s caller promised this field.
                unsafe { (*entry).err_data = self.keep(&event.err_data) };
                event.err_data.len()
            } else {
                let size = event.err_data.len().min(room);
                // SAFETY: the caller's buffer has room for `size` bytes, by the promise of
                // `from_raw`'s caller; our data is not in it.
                unsafe { ptr::copy_nonoverlapping(event.err_data.as_ptr(), buffer, size) };
                size
            };
            // SAFETY: as above.
            unsafe { (*entry).err_data_size = size };
            size_of::<sys::fi_eq_err_entry>()
        } else {
            // SAFETY: `from_raw`'s caller promised this field, which every version has.
            unsafe { (*entry).err_data = self.keep(&event.err_data) };
            offset_of!(sys::fi_eq_err_entry, err_data_size)
        };
        if !self.peek {
            queue.pop_front();
        }
        Ok(length)
    }

    /// Keeps `data` until the next error is read; null if there is none.
    fn keep(&self, data: &[u8]) -> *mut c_void {
        let mut kept = self.state.err_data.lock();
        *kept = data.to_vec();
        if kept.is_empty() { ptr::null_mut() } else { kept.as_mut_ptr().cast() }
    }
}

/// Applications of an earlier API have no `err_data_size` in their error entry: `FI_VERSION(1, 5)`.
const ERR_DATA_SIZE_SINCE: u32 = 1 << 16 | 5;

/// Whether the flags of a read say that the event is to stay.
fn peeks(flags: u64) -> Result<bool> {
    match flags {
        0 => Ok(false),
        sys::FI_PEEK => Ok(true),
        _ => Err(Errno::EBADFLAGS),
    }
}
