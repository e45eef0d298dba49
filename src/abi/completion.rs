//! Completions of a completion queue, and their C representation: the entries of an `enum fi_cq_format`, and
//! `struct fi_cq_err_entry`. See [`fi_cq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cq.3.html).

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use super::err_data::ErrorState;
use super::sys::version;
use super::{Errno, Result, sys};

/// The context of an operation: a pointer that the application passes with the operation and finds in its
/// completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserContext(pub(super) *mut c_void);

impl UserContext {
    /// No context. The completion of a peer's operation has it.
    pub const NONE: Self = Self(ptr::null_mut());
}

#[cfg(test)]
impl UserContext {
    /// A context for tests, which differs for each number.
    pub fn numbered(number: usize) -> Self {
        Self(ptr::without_provenance_mut(number))
    }
}

// SAFETY: an address that is passed back to C and never dereferenced here.
unsafe impl Send for UserContext {}
// SAFETY: as above.
unsafe impl Sync for UserContext {}

/// A completed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The operation's context.
    pub context: UserContext,
    /// The kind of the operation (`FI_SEND`, `FI_MSG`, ...), and `FI_REMOTE_CQ_DATA` if `data` is valid.
    pub flags: u64,
    /// Bytes received; 0 for other operations.
    pub length: usize,
    /// The data that the peer passed with the message.
    pub data: u64,
    /// The tag of a message that was received; 0 without one.
    pub tag: u64,
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionError {
    /// The operation.
    pub completion: Completion,
    /// `olen`: bytes of the message that the receive had no room for.
    pub excess: usize,
    /// The error.
    pub err: Errno,
    /// The provider's own number of the error. [`super::CqOps::strerror`] has its text.
    pub prov_errno: i32,
    /// Additional data.
    pub err_data: Vec<u8>,
}

/// The fields of an entry: an `enum fi_cq_format`. Each format appends fields to the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EntryFormat {
    /// `FI_CQ_FORMAT_CONTEXT`, and the default.
    #[default]
    Context,
    /// `FI_CQ_FORMAT_MSG`.
    Message,
    /// `FI_CQ_FORMAT_DATA`.
    Data,
    /// `FI_CQ_FORMAT_TAGGED`.
    Tagged,
}

impl EntryFormat {
    /// The format of an `enum fi_cq_format`.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an unknown format.
    pub fn new(format: sys::fi_cq_format) -> Result<Self> {
        match format {
            sys::FI_CQ_FORMAT_UNSPEC | sys::FI_CQ_FORMAT_CONTEXT => Ok(Self::Context),
            sys::FI_CQ_FORMAT_MSG => Ok(Self::Message),
            sys::FI_CQ_FORMAT_DATA => Ok(Self::Data),
            sys::FI_CQ_FORMAT_TAGGED => Ok(Self::Tagged),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Length of an entry, in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Context => size_of::<sys::fi_cq_entry>(),
            Self::Message => size_of::<sys::fi_cq_msg_entry>(),
            Self::Data => size_of::<sys::fi_cq_data_entry>(),
            Self::Tagged => size_of::<sys::fi_cq_tagged_entry>(),
        }
    }
}

/// State that the FFI boundary stores for a completion queue.
#[derive(Default)]
pub struct CqState {
    pub(super) format: EntryFormat,
    /// Whether `cond` of `fi_cq_sread` is a number of completions to wait for.
    pub(super) has_threshold: bool,
    pub(super) errors: ErrorState,
}

/// The output buffer of `fi_cq_read`: room for a number of entries.
#[derive(Debug)]
pub struct CompletionsOut<'a> {
    format: EntryFormat,
    buffer: &'a mut [u8],
    count: usize,
}

impl<'a> CompletionsOut<'a> {
    /// Creates an output for as many entries of `format` as `buffer` has room for.
    #[must_use]
    pub fn new(format: EntryFormat, buffer: &'a mut [u8]) -> Self {
        Self { format, buffer, count: 0 }
    }

    /// Number of entries written.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is room for another entry.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.buffer.len() >= self.format.length()
    }

    /// Writes the next entry. Returns whether there was room for it; nothing is written otherwise.
    #[inline]
    #[must_use]
    pub fn push(&mut self, completion: &Completion) -> bool {
        let &Completion { context: UserContext(op_context), flags, length: len, data, tag } = completion;
        let buf = ptr::null_mut();
        let written = match self.format {
            EntryFormat::Context => self.put(sys::fi_cq_entry { op_context }),
            EntryFormat::Message => self.put(sys::fi_cq_msg_entry { op_context, flags, len }),
            EntryFormat::Data => self.put(sys::fi_cq_data_entry { op_context, flags, len, buf, data }),
            EntryFormat::Tagged => {
                self.put(sys::fi_cq_tagged_entry { op_context, flags, len, buf, data, tag })
            }
        };
        self.count += usize::from(written);
        written
    }

    #[inline]
    fn put<E: Copy>(&mut self, entry: E) -> bool {
        let Some((target, rest)) = std::mem::take(&mut self.buffer).split_at_mut_checked(size_of::<E>())
        else {
            return false;
        };
        // SAFETY: `target` is as long as an entry; the write needs no alignment.
        unsafe { target.as_mut_ptr().cast::<E>().write_unaligned(entry) };
        self.buffer = rest;
        true
    }
}

/// Offset of `src_addr` in `struct fi_cq_err_entry`, which later headers have at the end.
const SOURCE: usize = offset_of!(sys::fi_cq_err_entry, err_data_size) + size_of::<usize>();

impl CqState {
    /// Writes an error to the caller's entry.
    ///
    /// # Safety
    /// `entry` is a structure of the application's API version, writable. Its `err_data` and `err_data_size`
    /// are as `fi_cq_readerr(3)` requires.
    pub(super) unsafe fn deliver(&self, entry: *mut sys::fi_cq_err_entry, error: &CompletionError) {
        let Completion { context, flags, length, data, tag } = error.completion;
        // SAFETY: every version has these fields, and they are writable by the requirement of this function.
        unsafe {
            (*entry).op_context = context.0;
            (*entry).flags = flags;
            (*entry).len = length;
            (*entry).buf = ptr::null_mut();
            (*entry).data = data;
            (*entry).tag = tag;
            (*entry).olen = error.excess;
            (*entry).err = error.err.number();
            (*entry).prov_errno = error.prov_errno;
        }
        // SAFETY: every version has `err_data`, and those whose field `err_data_size` is accessed have that.
        // Both are as `ErrorState::deliver` requires by the requirement of this function.
        unsafe {
            let (err_data, size) = (&raw mut (*entry).err_data, &raw mut (*entry).err_data_size);
            self.errors.deliver(&error.err_data, err_data, size);
        }
        if self.errors.api_version >= version(1, 20) {
            // SAFETY: these versions have the field at this offset, and it is writable by the requirement of
            // this function.
            unsafe { entry.byte_add(SOURCE).cast::<sys::fi_addr_t>().write(sys::FI_ADDR_NOTAVAIL) };
        }
    }
}
