//! A connection in an epoll set: what of it is ready, and what of that the application has not been told.

use std::sync::Arc;

use crate::connection::Connection;
use crate::table::Item;

pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
pub(super) const PRI: u32 = libc::EPOLLPRI as u32;
pub(super) const ERR: u32 = libc::EPOLLERR as u32;
pub(super) const HUP: u32 = libc::EPOLLHUP as u32;
pub(super) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(super) const NORMAL_IN: u32 = IN | libc::EPOLLRDNORM as u32;
pub(super) const NORMAL_OUT: u32 = OUT | libc::EPOLLWRNORM as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONCE: u32 = libc::EPOLLONESHOT as u32;
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// A connection in a set.
pub(super) struct Entry {
    pub(super) item: Arc<Item>,
    pub(super) asked: u32,
    pub(super) data: u64,
    pub(super) is_adopted: bool,
    pub(super) is_touched: bool,
    /// The application has taken it out. The kernel has it still: it is often put back soon.
    pub(super) is_parked: bool,
    /// It was asked for one event, which was reported.
    pub(super) is_off: bool,
    /// For edges: bytes that had arrived when input was reported last, if it was, and whether the end was
    /// among it.
    seen: Option<u64>,
    seen_end: bool,
    /// For edges: how often calls had found no room when room was reported last, if it was.
    seen_full: Option<u32>,
    /// What the kernel reported of its end, and for edges what of it was reported.
    pub(super) ends: u32,
    seen_ends: u32,
    /// Whether the kernel has reported something since input was reported last.
    pub(super) rang: bool,
    /// Sleeps since something happened.
    pub(super) idle: u8,
}

impl Entry {
    pub(super) fn new(item: Arc<Item>, asked: u32, data: u64) -> Self {
        Self {
            item,
            asked,
            data,
            is_adopted: false,
            is_touched: false,
            is_parked: false,
            is_off: false,
            seen: None,
            seen_end: false,
            seen_full: None,
            ends: 0,
            seen_ends: 0,
            rang: false,
            idle: 0,
        }
    }

    fn connection(&self) -> Option<&Connection> {
        self.item.connection()
    }

    pub(super) fn has_rings(&self) -> bool {
        self.connection().is_some_and(|connection| connection.stream.has_rings())
    }

    /// What is ready of what was asked for.
    fn look(&self, arm: bool) -> (u32, u64, bool) {
        let Some(connection) = self.connection() else { return (0, 0, false) };
        let (wants_input, wants_output) = (self.asked & NORMAL_IN != 0, self.asked & NORMAL_OUT != 0);
        let Ok(ready) = connection.stream.look(&connection.own_socket(), arm, wants_output) else {
            return (self.asked & (NORMAL_IN | NORMAL_OUT) | ERR, u64::MAX, true);
        };
        let mut found = self.ends & self.asked & PRI;
        // What it reported once may be over, or more by now.
        if ready.ended || self.ends & (ERR | HUP) != 0 {
            found |= u32::from(connection.own_socket().failures().bits()) & (ERR | HUP);
        }
        if ready.failed {
            found |= ERR;
        }
        // The kernel reports what only it knows.
        if wants_input && ready.input == Some(true) {
            found |= self.asked & NORMAL_IN;
        }
        let has_room = || self.has_rings() && connection.own_socket().has_room();
        if wants_output && ready.output.unwrap_or_else(has_room) {
            found |= self.asked & NORMAL_OUT;
        }
        if ready.ended || self.ends & RDHUP != 0 {
            found |= self.asked & RDHUP;
        }
        if ready.hung_up {
            found |= HUP;
        }
        (found, ready.arrived, ready.ended)
    }

    /// Whether it is upgraded, perhaps by this look.
    pub(super) fn is_upgraded_now(&self) -> bool {
        let Some(connection) = self.connection().filter(|connection| !connection.stream.is_over()) else {
            return false;
        };
        // What it finds beside that is looked at when it is reported.
        let _ = connection.stream.look(&connection.own_socket(), false, false);
        connection.stream.has_rings()
    }

    /// What of this was not reported before, if the application asked for edges.
    fn news(&self, found: u32, arrived: u64, ended: bool) -> u32 {
        if self.is_off || self.is_parked {
            return 0;
        }
        if self.asked & EDGE == 0 {
            return found;
        }
        let has_input = found & (NORMAL_IN | RDHUP) != 0;
        let has_arrived = self.seen.is_none_or(|seen| arrived > seen);
        let is_new = has_input && (has_arrived || ended && !self.seen_end || self.rang);
        let has_new_room = found & NORMAL_OUT != 0 && self.seen_full != Some(self.full());
        // An edge reports everything that is ready.
        if is_new || has_new_room || found & (ERR | HUP | PRI) & !self.seen_ends != 0 { found } else { 0 }
    }

    fn full(&self) -> u32 {
        self.connection().map_or(0, Connection::full)
    }

    /// Whether its peer cannot ring when there is room, or it is on its way back to TCP.
    pub(super) fn is_stuck(&self) -> bool {
        let wants_output = self.asked & NORMAL_OUT != 0 && !self.is_off && !self.is_parked;
        self.connection().is_some_and(|connection| {
            connection.stream.is_leaving() || wants_output && !connection.stream.can_be_rung()
        })
    }

    pub(super) fn is_ready(&self, arm: bool) -> bool {
        let (found, arrived, ended) = self.look(arm);
        self.news(found, arrived, ended) != 0
    }

    /// Takes note of a break that only the kernel knows. Returns whether there is one.
    fn settle_break(&mut self) -> bool {
        let Some(connection) = self.item.connection() else { return false };
        let socket = connection.own_socket();
        let told = u32::from(socket.failures().bits()) & (ERR | HUP);
        self.ends |= told;
        told != 0 && connection.stream.settle(&socket).is_ok()
    }

    /// What is to be reported now.
    pub(super) fn find(&mut self) -> u32 {
        let (mut found, mut arrived, mut ended) = self.look(false);
        // What is reported once leaves nothing to a further report.
        let is_once = self.asked & ONCE != 0 && !self.is_off && found != 0 && found & NORMAL_IN == 0;
        if is_once && self.settle_break() {
            (found, arrived, ended) = self.look(false);
        }
        let news = self.news(found, arrived, ended);
        if news != 0 {
            self.idle = 0;
            if found & NORMAL_IN != 0 {
                (self.seen, self.seen_end, self.rang) = (Some(arrived), ended, false);
            }
            if found & NORMAL_OUT != 0 {
                self.seen_full = Some(self.full());
            }
            self.seen_ends = found & (ERR | HUP | PRI);
            self.is_off = self.asked & ONCE != 0;
        }
        news
    }
}
