//! Forks of the process. The C library calls the handlers here around each `fork`. They hold the lock of the
//! handles meanwhile, so that no child begins with one that another thread of its parent held, and count
//! forks: a child leaves alone what it shares with its parent.

use std::sync::Once;

use rdma_verbs::process;

use crate::handle;

/// Installs the handlers, once. They are removed when the library is unloaded.
pub(super) fn watch() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers are functions of this library, and the C library removes them when it unloads
        // the library.
        let error = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if error != 0 {
            log::warn!("cannot install fork handlers: error {error}");
        }
    });
}

unsafe extern "C" fn before() {
    handle::freeze();
}

unsafe extern "C" fn in_parent() {
    handle::thaw();
}

unsafe extern "C" fn in_child() {
    handle::thaw();
    process::forked();
}

#[cfg(test)]
mod tests {
    use rdma_verbs::process::Maker;

    use super::watch;

    #[test]
    fn a_child_is_another_maker() {
        watch();
        watch();
        let maker = Maker::this_process();
        // SAFETY: the child compares two numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends the child.
            unsafe { libc::_exit(maker.is_this_process().into()) };
        }
        let mut status = -1;
        // SAFETY: the status is written to a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(maker.is_this_process());
    }
}
