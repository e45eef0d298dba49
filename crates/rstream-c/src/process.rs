//! How the process begins and ends, and whether it is one that `rstream-run` runs.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

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

/// Whether the preload library is loaded: then it has all connections, and calls of this one reach it.
pub(crate) fn is_preloaded() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    // SAFETY: the function takes what the call gives it, and needs no data.
    *KNOWN.get_or_init(|| unsafe { libc::dl_iterate_phdr(Some(is_preload), null_mut()) } != 0)
}

/// Not 0 for the library that is looked for, which ends the search.
unsafe extern "C" fn is_preload(loaded: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the caller, `dl_iterate_phdr`, describes a file that is loaded, whose name ends with a zero.
    let name = unsafe { CStr::from_ptr((*loaded).dlpi_name) };
    name.to_bytes().ends_with(b"/librstream_preload.so").into()
}
