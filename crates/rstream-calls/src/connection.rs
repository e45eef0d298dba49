//! A TCP connection of the application.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rstream_sockets::settings::Options;
use rstream_sockets::statistics::close_left;
use rstream_sockets::{LOOK, Patience, Role, Socket, Step, Stream, TURNS, WayBack};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;

use crate::guard::guard;
use crate::inside::Inside;
use crate::set::Set;
use crate::table::{self, Item};
use crate::unseen::Unseen;
use crate::{set, settings, sleep};

/// A connection that has been upgraded, or may be.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    role: Role,
    /// Whether the program has attached it, so that it may ask for the path at any time.
    is_attached: bool,
    /// One of its descriptors.
    fd: AtomicI32,
    /// The kernel's number for the socket.
    pub(crate) cookie: u64,
    pub(crate) patience: Patience,
    pub(crate) unseen: Unseen,
    /// How long a thread looks again before it sleeps.
    pub(crate) spin: Duration,
    /// The epoll sets that watch it, and by which descriptor.
    sets: Mutex<Vec<(Weak<Item>, c_int)>>,
    /// Whether there were any.
    is_watched: AtomicBool,
    /// Whether the sets are still to be told of a use, by a signal handler.
    is_missed: AtomicBool,
    /// Calls that found no room.
    full: AtomicU32,
    /// Whether the one set that watches it looks at it in each wait.
    is_touched: AtomicBool,
    /// Whether the sets know that it has gone back to TCP.
    is_back_known: AtomicBool,
}

/// Watches a new connection, if it is one of TCP and the rules allow it. `fd` was connected or accepted just
/// now.
pub(crate) fn add(fd: c_int, role: Role) {
    close_left(fd);
    // SAFETY: a number; the kernel says if it is no socket.
    if !Socket::new(unsafe { BorrowedFd::borrow_raw(fd) }, false).is_tcp() {
        return;
    }
    if let Some(options) = settings::choose(fd, role) {
        let _ = insert(fd, role, &options, false);
    }
}

/// Watches a connection of TCP that has carried no bytes.
pub(crate) fn insert(
    fd: c_int,
    role: Role,
    options: &Options,
    is_attached: bool,
) -> Result<Arc<Item>, Errno> {
    let stream = Stream::new(role, turns().or(options.after).unwrap_or(TURNS))?;
    // SAFETY: the caller's descriptor, which is a socket.
    let cookie = socket_cookie(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let connection = Connection {
        stream: stream.with_window(options.window),
        role,
        is_attached,
        fd: AtomicI32::new(fd),
        cookie,
        patience: Patience::new(),
        unseen: Unseen::default(),
        spin: options.spin.unwrap_or(LOOK),
        sets: Mutex::new(Vec::new()),
        is_watched: AtomicBool::new(false),
        is_missed: AtomicBool::new(false),
        full: AtomicU32::new(0),
        is_touched: AtomicBool::new(false),
        is_back_known: AtomicBool::new(false),
    };
    connection.stream.begin_statistics(&connection.socket(fd));
    let item = Arc::new(Item::Connection(connection));
    table::put(fd, Some(Arc::clone(&item)));
    Ok(item)
}

/// Whether the descriptor can be used without this library from now on, for this reason: it is no connection,
/// or one that stays on TCP or goes back to it.
pub fn stays_on_tcp(fd: c_int, why: &'static str) -> bool {
    let item = table::get(fd);
    item.as_ref().and_then(|item| item.connection()).is_none_or(|connection| connection.stay_on_tcp(fd, why))
}

/// As [`stays_on_tcp`], for the socket with this number, whatever descriptors are known for it. `fd` is one of
/// them.
pub fn socket_stays_on_tcp(cookie: u64, fd: c_int, why: &'static str) -> bool {
    let stays = |connection: &Connection| connection.cookie != cookie || connection.stay_on_tcp(fd, why);
    table::all().all(|(_, item)| item.connection().is_none_or(stays))
}

/// The kernel's number for a socket, which stays as long as the socket and is never used again.
pub fn cookie(fd: c_int) -> Option<u64> {
    if fd < 0 {
        return None;
    }
    // SAFETY: a number, which is not negative; the kernel says if it is no socket.
    socket_cookie(unsafe { BorrowedFd::borrow_raw(fd) }).ok()
}

/// `RSTREAM_SOCKETS_AFTER`.
fn turns() -> Option<u32> {
    static KNOWN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    let read = || std::env::var("RSTREAM_SOCKETS_AFTER").ok().and_then(|value| value.parse().ok());
    *KNOWN.get_or_init(read)
}

/// Whether a signal handler has used a connection while its thread had a lock.
static MISSED: AtomicBool = AtomicBool::new(false);

/// Tells sets what signal handlers could not tell. Returns whether there was something.
pub(crate) fn tell_missed() -> bool {
    let is_missed = MISSED.swap(false, Ordering::SeqCst);
    if is_missed {
        for (_, item) in table::all() {
            let missed = item.connection().filter(|found| found.is_missed.swap(false, Ordering::SeqCst));
            missed.into_iter().for_each(Connection::tell_sets);
        }
    }
    is_missed
}

impl Connection {
    /// A call found no room, or not enough: who waits for edges has to be told of room anew.
    pub(crate) fn note_full(&self) {
        self.full.fetch_add(1, Ordering::Release);
    }

    /// How often that was.
    pub(crate) fn full(&self) -> u32 {
        self.full.load(Ordering::Acquire)
    }

    /// The kernel's side of it, by whatever descriptor is open.
    pub(crate) fn own_socket(&self) -> Socket<'static> {
        self.socket(self.fd.load(Ordering::Acquire))
    }

    /// This descriptor is open for it.
    pub(crate) fn set_descriptor(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Release);
    }

    /// The kernel's side of it.
    pub(crate) fn socket(&self, fd: c_int) -> Socket<'static> {
        // SAFETY: a number that the application passes; if it is not open any more, or another file's, calls
        // of the kernel fail, or do what the application's own would have done.
        Socket::new(unsafe { BorrowedFd::borrow_raw(fd) }, self.role == Role::Active)
    }

    /// An epoll set watches it from now on.
    pub(crate) fn watch(&self, set: &Arc<Item>, fd: c_int) {
        let _inside = Inside::enter();
        self.is_watched.store(true, Ordering::SeqCst);
        self.unseen.note_seen();
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|(known, _)| known.strong_count() > 0);
        sets.push((Arc::downgrade(set), fd));
        self.is_touched.store(false, Ordering::SeqCst);
    }

    /// An epoll set does not watch it any more.
    pub(crate) fn unwatch(&self, set: &Arc<Item>, fd: c_int) {
        let _inside = Inside::enter();
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|(known, by)| *by != fd || !std::ptr::eq(known.as_ptr(), Arc::as_ptr(set)));
    }

    /// To be called after each call by this descriptor.
    #[inline]
    pub(crate) fn end_call(&self, fd: c_int) {
        self.note_use();
        // What sets know of it stays right.
        if self.stream.is_over() && !self.is_attached && !self.is_watched.load(Ordering::Relaxed) {
            self.leave(fd);
        }
    }

    /// Takes note of a call that the kernel has served, and that received so much.
    pub(crate) fn note_received(&self, fd: c_int, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(length) if length > 0 && self.unseen.note_something() && !self.is_attached => {
                self.stream.stay(&self.socket(fd), "it is waited for unseen");
            }
            Err(Errno::AGAIN) if !sleep::is_blocking(fd) => self.unseen.note_nothing(),
            _ => {}
        }
    }

    /// It stays on TCP: its calls go straight to the kernel from now on.
    #[cold]
    fn leave(&self, fd: c_int) {
        self.stream.leave_statistics(fd);
        drop(table::put(fd, None));
    }

    /// To be called after each use: epoll sets are told what they have to know.
    #[inline]
    pub(crate) fn note_use(&self) {
        if self.is_watched.load(Ordering::Relaxed)
            && (!self.is_touched.load(Ordering::SeqCst) || set::has_sleepers())
            && (self.stream.has_rings() || self.is_news_that_it_is_back())
        {
            self.tell_sets();
        }
    }

    fn is_news_that_it_is_back(&self) -> bool {
        self.stream.is_back() && !self.is_back_known.swap(true, Ordering::SeqCst)
    }

    /// Has the kernel serve it: what is to be done with it is for this reason beyond the rings. It stays on
    /// TCP, or goes back to it if the peer answers in time. Returns whether it does.
    pub(crate) fn stay_on_tcp(&self, fd: c_int, why: &'static str) -> bool {
        let socket = self.socket(fd);
        if self.stream.stay(&socket, why) {
            return true;
        }
        let mut way = WayBack::default();
        loop {
            match guard(|| way.step(&self.stream, &socket)) {
                Ok(Step::Back) => {
                    self.is_touched.store(false, Ordering::SeqCst);
                    self.note_use();
                    return true;
                }
                Ok(Step::Pause(pause)) => std::thread::sleep(pause),
                Ok(Step::Refused) | Err(_) => return false,
            }
        }
    }

    /// A set looks at it again. If it is the only one, the peer need not ring.
    pub(crate) fn warm(&self) {
        let is_only_one = {
            let _inside = Inside::enter();
            self.sets.lock().unwrap_or_else(PoisonError::into_inner).len() == 1
        };
        self.is_touched.store(is_only_one, Ordering::SeqCst);
        if is_only_one {
            self.stream.disarm();
        }
    }

    /// Takes the bells that ended a wait, and tells all sets: they were meant for each.
    pub(crate) fn settle(&self) {
        let _ = self.stream.settle(&self.own_socket());
        self.note_use();
    }

    /// Its sets look at it no more: they rely on a bell.
    pub(crate) fn cool(&self) {
        self.is_touched.store(false, Ordering::SeqCst);
    }

    /// No set watches this connection any more.
    pub(crate) fn leave_sets(&self) {
        let _inside = Inside::enter();
        let sets = std::mem::take(&mut *self.sets.lock().unwrap_or_else(PoisonError::into_inner));
        for_each_set(&sets, Set::forget);
    }

    /// The sets that watch it by this descriptor leave that to the kernel.
    pub(crate) fn leave_sets_to_kernel(&self, fd: c_int) {
        let _inside = Inside::enter();
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let by_this = sets.extract_if(.., |(_, by)| *by == fd).collect::<Vec<_>>();
        drop(sets);
        for_each_set(&by_this, Set::leave_to_kernel);
    }

    fn tell_sets(&self) {
        if Inside::is_in() {
            self.is_missed.store(true, Ordering::SeqCst);
            MISSED.store(true, Ordering::SeqCst);
            return;
        }
        let _inside = Inside::enter();
        let sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.is_touched.store(sets.len() == 1, Ordering::SeqCst);
        for_each_set(&sets, Set::touch);
    }
}

/// Does `act` with each of these sets that is there still, and the descriptor by which it watches.
fn for_each_set(sets: &[(Weak<Item>, c_int)], act: impl Fn(&Set, c_int)) {
    for (item, fd) in sets {
        if let Some(set) = item.upgrade().as_ref().and_then(|item| item.set()) {
            act(set, *fd);
        }
    }
}
