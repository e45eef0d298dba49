//! Forks of the process. The C library calls the handlers here around each `fork`. They count forks, and they
//! hold the registry's lock during the fork, so that no child starts with a lock that another thread of its
//! parent held.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{ffi_boundary, provider, registry};

/// 1 plus the number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// A number that differs in each process from the first ancestor to this one. Never 0.
#[inline]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Installs the handlers. They are removed when the library is unloaded.
pub(super) fn watch() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: unsafe extern "C" fn(),
            parent: unsafe extern "C" fn(),
            child: unsafe extern "C" fn(),
        ) -> std::ffi::c_int;
    }
    // SAFETY: the handlers are functions of this library, and the C library removes them when it unloads
    // the library.
    let error = unsafe { pthread_atfork(prepare, parent, child) };
    if error != 0 {
        log::warn!(target: "core", "cannot install fork handlers: error {error}");
    }
}

unsafe extern "C" fn prepare() {
    registry::freeze();
}

unsafe extern "C" fn parent() {
    registry::thaw();
}

unsafe extern "C" fn child() {
    registry::thaw();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    ffi_boundary::call_free(|| {
        provider::forked();
        Ok(())
    })
}
