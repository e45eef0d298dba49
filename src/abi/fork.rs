//! Forks of the process: counted by handlers that the C library calls around each `fork`, and the registry's
//! lock is held meanwhile, so that no child begins with a lock that a thread of its parent held.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{border, provider, registry};

/// Forks between the first process and this one, and 1.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// A number that no other process between this one and its first ancestor has; never 0.
#[inline]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Watches for forks from now on. Unloading the library ends it.
pub(super) fn watch() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: unsafe extern "C" fn(),
            parent: unsafe extern "C" fn(),
            child: unsafe extern "C" fn(),
        ) -> std::ffi::c_int;
    }
    // SAFETY: the handlers are functions of this library, which the C library forgets when it unloads the
    // library.
    let answer = unsafe { pthread_atfork(prepare, parent, child) };
    if answer != 0 {
        log::warn!(target: "core", "forks cannot be watched for: error {answer}");
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
    border::call_free(|| {
        provider::forked();
        Ok(())
    })
}
