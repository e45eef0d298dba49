//! `poll`, and what `select` is made of.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};
use rstream_sockets::statistics::waits;
use rstream_sockets::{Naps, Ready};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::set::Asleep;
use crate::table::{self, Item};
use crate::{errno, real};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// What the kernel says whether it was asked or not.
const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Whether any of the descriptors needs more than the kernel's call.
pub(crate) fn is_watched(fds: &[pollfd]) -> bool {
    fds.iter().any(|polled| table::get(polled.fd).is_some())
}

/// Waits as `ppoll` does, and answers for connections that are upgraded.
pub(crate) fn wait(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut asked = ManuallyDrop::new(fds.to_vec());
    let mut naps = Naps::default();
    let returned = loop {
        let is_found = look_long(fds, timeout);
        let lead = Lead::take(if is_found { &[] } else { fds });
        let asleep: Vec<_> = if is_found { Vec::new() } else { sets(fds) };
        let _asleep: Vec<_> = asleep.iter().filter_map(|item| item.set().map(Asleep::new)).collect();
        if !is_found {
            // The last look before the sleep arms.
            look(fds, true);
        }
        let (is_ready, needs_nap) = prepare(fds, &mut asked, lead.is_of_all);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = match (is_ready, needs_nap) {
            (true, _) => Some(Duration::ZERO),
            (_, true) => left.into_iter().chain([naps.length()]).min(),
            _ => left,
        };
        let limit = left.map(|left| timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        if !is_ready {
            waits().count_sleep();
        }
        // SAFETY: so many entries; time and mask are valid or null.
        let found = unsafe { real::ppoll(asked.as_mut_ptr(), asked.len() as nfds_t, limit, mask) };
        let error = errno::errno();
        settle(&asked, !is_found);
        drop(lead);
        if found < 0 {
            errno::set_errno(error);
            break found;
        }
        look(fds, false);
        let found = merge(fds, &asked);
        if found > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break found;
        }
    };
    drop(ManuallyDrop::into_inner(asked));
    returned
}

/// The answers for upgraded connections, into the results; others' results are 0. Returns whether there are
/// any.
fn look(fds: &mut [pollfd], arm: bool) -> bool {
    let mut found = false;
    for polled in fds {
        polled.revents = 0;
        let Some(item) = table::get(polled.fd) else { continue };
        polled.revents = match &*item {
            Item::Connection(connection) => answer(ready(connection, polled, arm), polled.events),
            Item::Set(set) if polled.events & IN != 0 && set.cool_quiet() => polled.events & IN,
            Item::Set(_) => 0,
        };
        found |= polled.revents != 0;
    }
    found
}

/// What is said to `asked`. A connection that is broken is as ready as one with an error.
fn answer(ready: Option<Ready>, asked: i16) -> i16 {
    let Some(ready) = ready else { return asked & (IN | OUT) | libc::POLLERR };
    let mut found = 0;
    if ready.input == Some(true) {
        found |= asked & IN;
    }
    if ready.output == Some(true) {
        found |= asked & OUT;
    }
    if ready.ended {
        found |= asked & libc::POLLRDHUP;
    }
    if ready.hung_up {
        found |= libc::POLLHUP;
    }
    if ready.failed {
        found |= libc::POLLERR;
    }
    found
}

fn ready(connection: &Connection, polled: &pollfd, arm: bool) -> Option<Ready> {
    let ready = connection.stream.look(&connection.socket(polled.fd), arm, polled.events & OUT != 0).ok();
    connection.note_use();
    ready
}

/// Looks for a while. Returns whether something is ready, or nothing of this is upgraded.
fn look_long(fds: &mut [pollfd], timeout: Option<Duration>) -> bool {
    let first = fds.iter().find_map(|polled| {
        table::get(polled.fd)
            .filter(|item| item.connection().is_some_and(|connection| connection.stream.has_rings()))
    });
    let Some(item) = first else { return look(fds, false) };
    let Some(connection) = item.connection() else { return false };
    let most = timeout.map_or(connection.spin, |timeout| timeout.min(connection.spin));
    look(fds, false) || connection.patience.look(most, waits(), || look(fds, false).then_some(())).is_some()
}

/// The sets among them. While this thread sleeps, whoever uses one of their connections has to arm it.
fn sets(fds: &[pollfd]) -> Vec<Arc<Item>> {
    fds.iter().filter_map(|polled| table::get(polled.fd)).filter(|item| item.set().is_some()).collect()
}

/// This thread is the one whose sleep the bells of these connections end, until the sleep has ended or is
/// cancelled.
struct Lead {
    items: Vec<Arc<Item>>,
    /// Whether these are all that were asked for.
    is_of_all: bool,
}

impl Lead {
    fn take(fds: &[pollfd]) -> Self {
        let mut lead = Self { items: Vec::new(), is_of_all: true };
        for polled in fds {
            let item = table::get(polled.fd);
            if let Some(connection) = upgraded(&item) {
                match connection.stream.lead() {
                    true => lead.items.extend(item),
                    false => lead.is_of_all = false,
                }
            }
        }
        lead
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let connections = self.items.iter().filter_map(|item| item.connection());
        connections.for_each(|connection| connection.stream.stop_leading());
    }
}

fn upgraded(item: &Option<Arc<Item>>) -> Option<&Connection> {
    item.as_ref().and_then(|item| item.connection()).filter(|connection| connection.stream.has_rings())
}

/// What the kernel is asked for, into `asked`. Returns whether something is ready already, and whether no
/// bell may come for something that was asked for.
fn prepare(fds: &[pollfd], asked: &mut [pollfd], all_lead: bool) -> (bool, bool) {
    let (mut is_ready, mut needs_nap) = (false, !all_lead);
    for (polled, asked) in fds.iter().zip(asked) {
        *asked = *polled;
        asked.revents = 0;
        is_ready |= polled.revents != 0;
        let item = table::get(polled.fd);
        let Some(connection) = item.as_ref().and_then(|item| item.connection()) else { continue };
        connection.unseen.note_seen();
        let ready = ready(connection, polled, false);
        // The peer may have ended since the look that armed. Its bell has been rung then, and the kernel is not asked
        // for it below.
        is_ready |= answer(ready, polled.events) != 0;
        let Some(ready) = ready else { continue };
        if ready.output.is_some() {
            asked.events &= !OUT;
            // Room comes with a bell.
            asked.events |= libc::POLLIN;
            needs_nap |= ready.output == Some(false) && !connection.stream.can_be_rung();
        }
        if ready.input.is_some() && ready.ended {
            // The kernel would say so for ever.
            asked.events &= !(IN | libc::POLLRDHUP);
            needs_nap |= ready.output == Some(false);
        }
        let is_leaving = connection.stream.is_leaving();
        needs_nap |= is_leaving;
        if (is_leaving || !all_lead) && ready.input.is_some() {
            // Another thread takes the bells, or the peer's last ones stay until it has left its ring.
            asked.events &= !IN;
        }
    }
    (is_ready, needs_nap)
}

/// After the wait: takes note of an end that the kernel reports. If it was a sleep, takes the bells that
/// ended it.
fn settle(asked: &[pollfd], was_sleep: bool) {
    let news = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP | if was_sleep { IN } else { 0 };
    for polled in asked {
        let item = table::get(polled.fd);
        if let Some(connection) = upgraded(&item)
            && polled.revents & news != 0
        {
            connection.settle();
        }
    }
}

/// The kernel's answers and ours.
fn merge(fds: &mut [pollfd], asked: &[pollfd]) -> c_int {
    let mut count = 0;
    for (polled, asked) in fds.iter_mut().zip(asked) {
        let item = table::get(polled.fd);
        let upgraded = item.as_ref().and_then(|item| item.connection());
        let ready = upgraded.and_then(|connection| ready(connection, polled, false));
        let mut theirs = asked.revents & (polled.events | ALWAYS);
        if ready.is_some_and(|ready| ready.input.is_some()) {
            theirs &= !IN;
        }
        if ready.is_some_and(|ready| ready.output.is_some()) {
            theirs &= !OUT;
        }
        polled.revents |= theirs;
        count += c_int::from(polled.revents != 0);
    }
    count
}

/// `ppoll`.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the application's arguments.
    unsafe {
        let own = slice(fds, count);
        match timeout.as_ref().map(duration).transpose() {
            Ok(limit) if is_watched(own) => wait(own, limit, mask),
            _ => real::ppoll(fds, count, timeout, mask),
        }
    }
}

/// `poll`.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: the application's arguments.
    unsafe {
        let own = slice(fds, count);
        if is_watched(own) {
            return wait(own, limit, std::ptr::null());
        }
        let limit = limit
            .map(|limit| timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        real::ppoll(fds, count, limit, std::ptr::null())
    }
}

/// More entries than a process may have descriptors, which the kernel refuses.
const TOO_MANY: nfds_t = 1 << 24;

/// The application's entries. What the kernel would refuse is none.
unsafe fn slice<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    let count = if fds.is_null() || count >= TOO_MANY { 0 } else { count as usize };
    let fds = if fds.is_null() { std::ptr::NonNull::dangling().as_ptr() } else { fds };
    // SAFETY: the application promises so many entries.
    unsafe { std::slice::from_raw_parts_mut(fds, count) }
}

/// A time of the application. The kernel refuses what is none; here it is as near as possible.
pub(crate) fn duration(time: &timespec) -> Result<Duration, Errno> {
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) => Ok(Duration::new(seconds, nanoseconds)),
        _ => Err(Errno::INVAL),
    }
}
