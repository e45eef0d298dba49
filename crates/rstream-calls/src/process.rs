//! What happens to the whole process: it begins, forks, and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rstream_sockets::Stream;

use crate::connection::cookie;
use crate::table::{self, Item};
use crate::{descriptor, inside, log, set};

/// The process that uses this memory: a child of `vfork` shares it, and must not change it.
static OWN: AtomicU32 = AtomicU32::new(0);

/// Whether this process is the one whose table this is.
pub(crate) fn is_own() -> bool {
    OWN.load(Ordering::Relaxed) == current()
}

fn current() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// To be called when the library is loaded, once, and before anything else here.
pub fn begin() {
    OWN.store(current(), Ordering::Relaxed);
    log::note_standard_error();
    rstream_sockets::set_reporter(log::write);
    rstream_ring::prepare();
    rstream_ring::lengthen_table();
    // SAFETY: three functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

/// To be called when the process is about to end. The kernel closes what is open. Bells that nobody took would
/// look to the peer like bytes that were lost.
pub fn end() {
    if is_own() {
        for (fd, item) in table::all() {
            if let Some(connection) = item.connection()
                // It may have been closed unseen, and be another file's.
                && cookie(fd) == Some(connection.cookie)
                && connection.stream.close(&connection.socket(fd), || false)
            {
                descriptor::reset(fd);
            }
        }
        log::write_statistics();
    }
}

unsafe extern "C" fn before_fork() {
    rstream_sockets::before_fork(&mut streams(&items()));
    inside::close();
}

unsafe extern "C" fn in_parent() {
    inside::open();
}

unsafe extern "C" fn in_child() {
    inside::open();
    OWN.store(current(), Ordering::Relaxed);
    // A child's table is as long as what was open needs.
    rstream_ring::lengthen_table();
    let items = items();
    set::forget_sleepers(items.iter().filter_map(|item| item.set()));
    rstream_sockets::after_fork(&mut streams(&items));
}

/// What this process's descriptors mean, each once: descriptors may be copies of one another.
fn items() -> Vec<Arc<Item>> {
    let mut items: Vec<_> = table::all().map(|(_, item)| item).collect();
    items.sort_by_key(Arc::as_ptr);
    items.dedup_by_key(|item| Arc::as_ptr(item));
    items
}

fn streams(items: &[Arc<Item>]) -> impl Iterator<Item = &Stream> {
    items.iter().filter_map(|item| Some(&item.connection()?.stream))
}
