//! How the process begins and ends, and whether it is one that `rstream-run` runs.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::AtomicPtr;

use rstream_calls::real;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs at `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    real::use_programs();
    if !is_preloaded() {
        rstream_calls::begin();
    }
}

extern "C" fn end() {
    if !is_preloaded() {
        rstream_calls::end();
    }
}

/// Whether the preload library stands in front of the C library: then it has all connections, and calls of
/// this one reach it.
pub(crate) fn is_preloaded() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let recv = real::address(c"recv", &AtomicPtr::new(null_mut()));
        let mut found = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `found` has room for the answer.
        if unsafe { libc::dladdr(recv, found.as_mut_ptr()) } == 0 {
            return false;
        }
        // SAFETY: the call has succeeded, so that the answer is there. It names the file of a library, by a
        // text that ends with a zero and stays as long as the library.
        let file = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
        file.to_bytes().ends_with(b"/librstream_preload.so")
    })
}
