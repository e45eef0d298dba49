#![doc = include_str!("../README.md")]
#![allow(clippy::missing_safety_doc, reason = "the functions here are the C library's")]
// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod attach;
mod beside;
mod connection;
mod descriptor;
pub mod errno;
mod futex;
mod guard;
mod inside;
mod log;
mod many;
mod poll;
mod process;
pub mod real;
mod receive;
mod select;
mod send;
mod set;
mod settings;
mod sleep;
mod table;
mod unseen;

pub use attach::{attach, detach, forget_if_closed, path};
pub use connection::{cookie, socket_stays_on_tcp, stays_on_tcp};
pub use descriptor::{
    accept, accept4, close, close_range, closefrom, connect, dup, dup2, dup3, fcntl, getsockopt, ioctl, made,
    setsockopt, shutdown, splice,
};
pub use many::{preadv2, pwritev2, recvmmsg, sendmmsg};
pub use poll::{poll, ppoll};
pub use process::{begin, end};
pub use receive::{read, readv, recv, recvfrom, recvmsg};
pub use rstream_sockets::jitter;
pub use select::{pselect, select};
pub use send::{send, sendfile, sendmsg, sendto, write, writev};
pub use set::{epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait};
pub use settings::is_off;
