//! Events of an event queue, and their C representation: `struct fi_eq_cm_entry` and
//! `struct fi_eq_err_entry`. See [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html).

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ptr;

use super::err_data::ErrorState;
use super::object::FidHandle;
use super::{Errno, Info, Result, sys};

/// An event of a connection or of the application.
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
    /// An event that the application wrote ([`super::EqOps::write`]).
    User {
        /// The event's number.
        number: u32,
        /// Its entry.
        entry: Vec<u8>,
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
    /// The object of the event. `None` for an event of the application.
    #[must_use]
    pub fn fid(&self) -> Option<FidHandle> {
        match self {
            Self::ConnReq { fid, .. } | Self::Connected { fid, .. } | Self::Shutdown { fid } => Some(*fid),
            Self::User { .. } => None,
        }
    }

    /// Writes the entry, and as much of its data as fits. Returns the event's number and the length written.
    ///
    /// # Errors
    /// `-FI_ETOOSMALL`.
    fn write(&self, buffer: &mut [u8]) -> Result<(u32, usize)> {
        const ENTRY: usize = offset_of!(sys::fi_eq_cm_entry, data);
        let (number, fid, info, data) = match self {
            Self::ConnReq { fid, info, data } => (sys::FI_CONNREQ, fid, info.as_ptr(), data.as_slice()),
            Self::Connected { fid, data } => (sys::FI_CONNECTED, fid, ptr::null_mut(), data.as_slice()),
            Self::Shutdown { fid } => (sys::FI_SHUTDOWN, fid, ptr::null_mut(), &[][..]),
            Self::User { number, entry } => {
                let target = buffer.get_mut(..entry.len()).ok_or(Errno::ETOOSMALL)?;
                target.copy_from_slice(entry);
                return Ok((*number, entry.len()));
            }
        };
        let entry = sys::fi_eq_cm_entry { fid: fid.fid, info, data: Default::default() };
        let (target, room) = buffer.split_at_mut_checked(ENTRY).ok_or(Errno::ETOOSMALL)?;
        // SAFETY: the entry has `ENTRY` bytes before its data, and `target` is that long. They do not
        // overlap: the entry is a local value. Bytes need no alignment.
        unsafe { ptr::copy_nonoverlapping((&raw const entry).cast(), target.as_mut_ptr(), ENTRY) };
        let length = data.len().min(room.len());
        room[..length].copy_from_slice(&data[..length]);
        Ok((number, ENTRY + length))
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
    /// written: the entry and as much of its data as fits (an entry of the application as a whole). With the
    /// removal, the application becomes the owner of the info of a request; a caller that peeks gets only its
    /// address.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no event; `-FI_ETOOSMALL` if the buffer is shorter than an entry. The
    /// queue is unchanged then.
    pub fn deliver(&mut self, queue: &mut VecDeque<Event>) -> Result<usize> {
        let (number, length) = queue.front().ok_or(Errno::EAGAIN)?.write(self.buffer)?;
        *self.event = number;
        if !self.peek
            && let Some(Event::ConnReq { info, .. }) = queue.pop_front()
        {
            // The application owns it now.
            info.into_raw();
        }
        Ok(length)
    }
}

/// The output buffer of `fi_eq_readerr`.
pub struct ErrorOut<'a> {
    entry: *mut sys::fi_eq_err_entry,
    state: &'a ErrorState,
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
        state: &'a ErrorState,
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
        // SAFETY: every version has `err_data`, and those whose field `err_data_size` is accessed have that.
        // Both are as `ErrorState::deliver` requires (`from_raw`).
        unsafe {
            let (err_data, size) = (&raw mut (*entry).err_data, &raw mut (*entry).err_data_size);
            self.state.deliver(&event.err_data, err_data, size);
        }
        let length = if self.state.has_size() {
            size_of::<sys::fi_eq_err_entry>()
        } else {
            offset_of!(sys::fi_eq_err_entry, err_data_size)
        };
        if !self.peek {
            queue.pop_front();
        }
        Ok(length)
    }
}

/// Whether the flags of a read ask to leave the event queued.
fn peeks(flags: u64) -> Result<bool> {
    match flags {
        0 => Ok(false),
        sys::FI_PEEK => Ok(true),
        _ => Err(Errno::EBADFLAGS),
    }
}
