//! What a set knows of its descriptors, and how it adopts connections in the kernel's set.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::epoll_event;

use super::entry::{EDGE, Entry, IN, ONCE, PRI, RDHUP};
use super::key;
use crate::real;

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: HashMap<c_int, Entry>,
    /// Other descriptors, which may be connected later: what was asked for, and the application's data.
    pub(super) strangers: HashMap<c_int, (u32, u64)>,
    pub(super) touched: Vec<c_int>,
    /// Those that are armed and were used lately.
    pub(super) warm: Vec<c_int>,
    /// Whether the last look before a sleep found some for which no bell may come.
    pub(super) has_stuck: bool,
}

impl State {
    /// How long a wait looks: as long as the call of a connection that it looks at.
    pub(super) fn spin(&self) -> Duration {
        let spin = |fd| self.entries.get(fd)?.item.connection().map(|connection| connection.spin);
        self.touched.iter().filter_map(spin).max().unwrap_or_default()
    }

    pub(super) fn touch(&mut self, set: c_int, fd: c_int) {
        let Some(entry) = self.entries.get_mut(&fd) else { return };
        if !entry.has_rings() {
            return self.release(set, fd);
        }
        if !entry.is_adopted {
            // The kernel reports bells, the end and breaks; each once, because bytes may stay unread.
            let mut event = epoll_event { events: IN | RDHUP | EDGE | entry.asked & PRI, u64: key(fd) };
            // SAFETY: `event` is valid.
            if unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, &raw mut event) } < 0 {
                return;
            }
            entry.is_adopted = true;
        }
        if !entry.is_touched {
            entry.is_touched = true;
            self.touched.push(fd);
        }
    }

    /// The connection has gone back to TCP: the kernel reports what the application asks for.
    pub(super) fn release(&mut self, set: c_int, fd: c_int) {
        let Some(entry) = self.entries.get_mut(&fd).filter(|entry| entry.is_adopted) else { return };
        let (operation, asked) = match (entry.is_parked, entry.is_off) {
            (true, _) => (libc::EPOLL_CTL_DEL, 0),
            (_, true) => (libc::EPOLL_CTL_MOD, ONCE),
            _ => (libc::EPOLL_CTL_MOD, entry.asked),
        };
        let mut event = epoll_event { events: asked, u64: key(fd) };
        // SAFETY: `event` is valid. It fails if the descriptor was closed unseen.
        unsafe { real::epoll_ctl(set, operation, fd, &raw mut event) };
        let is_off = entry.is_off;
        *entry = Entry::new(Arc::clone(&entry.item), entry.asked, entry.data);
        entry.is_off = is_off;
        self.look_no_more(fd);
        if operation == libc::EPOLL_CTL_DEL {
            self.entries.remove(&fd);
        }
    }

    /// It is none of a connection any more: the kernel has the application's data too.
    pub(super) fn leave_to_kernel(&mut self, set: c_int, fd: c_int) {
        self.release(set, fd);
        let Some(entry) = self.entries.remove(&fd) else { return };
        let asked = if entry.is_off { ONCE } else { entry.asked };
        let mut event = epoll_event { events: asked, u64: entry.data };
        // SAFETY: `event` is valid. It fails if the descriptor was closed unseen.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        self.strangers.insert(fd, (entry.asked, entry.data));
    }

    /// The application asks for something else of an adopted connection. A change reports what is there.
    pub(super) fn change(&mut self, set: c_int, fd: c_int, asked: u32, data: u64) {
        let Some(entry) = self.entries.get_mut(&fd) else { return };
        let is_touched = entry.is_touched;
        let was = std::mem::replace(entry, Entry::new(Arc::clone(&entry.item), asked, data));
        (entry.is_touched, entry.ends) = (is_touched, was.ends);
        entry.is_adopted = (was.asked ^ asked) & PRI == 0;
        self.touch(set, fd);
    }

    pub(super) fn remove(&mut self, fd: c_int) {
        self.strangers.remove(&fd);
        if self.entries.remove(&fd).is_some() {
            self.look_no_more(fd);
        }
    }

    /// Another connection may get this descriptor, which is not looked at yet.
    fn look_no_more(&mut self, fd: c_int) {
        self.touched.retain(|&touched| touched != fd);
        self.warm.retain(|&warm| warm != fd);
    }
}
